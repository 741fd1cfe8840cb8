//! A child with a log file, readiness and an orderly end.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::keeper;
use crate::process::Process;

/// How many lines of a log an error carries.
const TAIL: usize = 15;
/// How long a program may take to end by itself.
const GRACE: Duration = Duration::from_secs(10);

/// How long a program may live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lifetime {
    /// No longer than this process: the kernel ends it even after a `kill -9`.
    #[default]
    Owner,
    /// Until it is ended by command.
    Detached,
}

/// Set from outside to give up waiting.
pub type Interrupt = Arc<AtomicBool>;

/// A running program.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Option<Child>,
    process: Process,
    log: PathBuf,
}

impl Program {
    /// Starts a program; its output goes to the file `log`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(name: &str, mut command: Command, log: &Path, life: Lifetime) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("cannot make {}", log.display()))?;
        let both = file.try_clone().context("cannot share the log file")?;
        command.stdin(Stdio::null()).stdout(file).stderr(both);
        // A group of its own: Ctrl-C reaches the owner, who then ends the program.
        command.process_group(0);
        let child = match life {
            Lifetime::Owner => keeper::spawn(command),
            Lifetime::Detached => command.spawn(),
        };
        let child = child.with_context(|| format!("cannot start {name}"))?;
        // The child is not reaped yet, so its pid has an entry even if it has ended.
        let process = Process::of(name, child.id()).with_context(|| format!("{name} vanished"))?;
        Ok(Self { name: name.to_owned(), child: Some(child), process, log: log.to_owned() })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid
    }

    /// Its pid and start time.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Its log file.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines of its log.
    #[must_use]
    pub fn tail(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Waits until `probe` says yes.
    ///
    /// # Errors
    /// When the program ends first, `timeout` runs out, or `interrupt` is set.
    pub fn wait_until(
        &mut self,
        timeout: Duration,
        interrupt: Option<&Interrupt>,
        mut probe: impl FnMut() -> bool,
    ) -> Result<()> {
        let end = Instant::now() + timeout;
        loop {
            if interrupted(interrupt) {
                bail!("interrupted while waiting for {}", self.name);
            }
            if !self.runs() {
                bail!("{} ended before it was ready; its log ends:\n{}", self.name, self.tail());
            }
            if probe() {
                return Ok(());
            }
            if Instant::now() >= end {
                let waited = timeout.as_secs();
                bail!(
                    "{} is not ready after {waited} s; its log ends:\n{}",
                    self.name,
                    self.tail()
                );
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it: SIGTERM, and SIGKILL when it does not end by itself.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub fn stop(mut self) -> Result<()> {
        self.end(GRACE)
    }

    /// Ends it with SIGKILL, as a crash would.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub fn kill(mut self) -> Result<()> {
        self.end(Duration::ZERO)
    }

    /// Lets it run on without this process.
    #[must_use]
    pub fn release(mut self) -> Process {
        // Dropping a child of the standard library neither ends nor waits.
        self.child = None;
        self.process.clone()
    }

    fn end(&mut self, grace: Duration) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        if !grace.is_zero() && matches!(child.try_wait(), Ok(None)) {
            signal_term(child.id());
            let end = Instant::now() + grace;
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
                thread::sleep(Duration::from_millis(10));
            }
        }
        if matches!(child.try_wait(), Ok(None)) {
            child.kill().with_context(|| format!("cannot end {}", self.name))?;
        }
        child.wait().with_context(|| format!("cannot wait for {}", self.name))?;
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Err(error) = self.end(GRACE) {
            eprintln!("{error:#}");
        }
    }
}

pub(crate) fn interrupted(flag: Option<&Interrupt>) -> bool {
    flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Only for a child that was not waited for yet: its pid cannot have been reused.
fn signal_term(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}
