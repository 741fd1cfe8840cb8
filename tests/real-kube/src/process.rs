//! Naming a process so that a reused pid is never mistaken for it.

use std::time::Duration;
use std::{fs, io};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process: its pid and when it started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// What it is, for messages.
    pub name: String,
    /// Its pid.
    pub pid: u32,
    /// Its start time in clock ticks since boot, as the kernel counts.
    pub start: u64,
}

impl Process {
    /// The running process of that pid.
    #[must_use]
    pub fn of(name: &str, pid: u32) -> Option<Self> {
        let (_, start) = stat(pid)?;
        Some(Self { name: name.to_owned(), pid, start })
    }

    /// This very process.
    #[must_use]
    pub fn own(name: &str) -> Option<Self> {
        Self::of(name, std::process::id())
    }

    /// Whether it still runs. A zombie does not.
    #[must_use]
    pub fn runs(&self) -> bool {
        stat(self.pid).is_some_and(|(state, start)| start == self.start && state != 'Z')
    }

    /// Ends it: SIGTERM, and SIGKILL when it is still there after `grace`.
    ///
    /// # Errors
    /// When it cannot be signalled, or lives on.
    pub fn end(&self, grace: Duration) -> io::Result<()> {
        self.signal(Signal::TERM)?;
        if self.gone_within(grace) {
            return Ok(());
        }
        self.signal(Signal::KILL)?;
        if self.gone_within(Duration::from_secs(10)) {
            return Ok(());
        }
        Err(io::Error::other(format!("{} (pid {}) does not end", self.name, self.pid)))
    }

    /// The descriptor is taken before the check, so the signal can only reach the process checked.
    fn signal(&self, signal: Signal) -> io::Result<()> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return Ok(());
        };
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if !self.runs() {
            return Ok(());
        }
        match pidfd_send_signal(&handle, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn gone_within(&self, wait: Duration) -> bool {
        let end = std::time::Instant::now() + wait;
        while self.runs() {
            if std::time::Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}

/// State and start time. The program's name is in brackets and may hold anything.
fn stat(pid: u32) -> Option<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_start_time_is_another_process() {
        let own = Process::own("test").unwrap();
        assert!(own.runs());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let real = Process::of("sleep", child.id()).unwrap();
        let stale = Process { start: real.start + 1, ..real.clone() };
        assert!(!stale.runs());
        stale.end(Duration::from_secs(1)).unwrap();
        assert!(real.runs(), "a stale record must not end the process that has its pid now");
        real.end(Duration::from_secs(5)).unwrap();
        assert!(!real.runs());
        child.wait().unwrap();
    }
}
