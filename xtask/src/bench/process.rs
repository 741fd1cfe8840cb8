//! What the kernel says about a process.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context as _, Result};

/// Memory of a process, in KiB.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct Memory {
    /// Resident, shared pages counted whole.
    pub rss_kib: u64,
    /// Resident, shared pages counted in part.
    pub pss_kib: u64,
}

/// What the process holds now.
pub fn memory(pid: u32) -> Result<Memory> {
    Ok(Memory { rss_kib: resident(pid)?, pss_kib: line(&read(pid, "smaps_rollup")?, "Pss:")? })
}

fn resident(pid: u32) -> Result<u64> {
    line(&read(pid, "status")?, "VmRSS:")
}

/// Resident memory in KiB: all of it, and the part that is no file's.
pub fn resident_and_anonymous(pid: u32) -> Result<(u64, u64)> {
    let status = read(pid, "status")?;
    Ok((line(&status, "VmRSS:")?, line(&status, "RssAnon:")?))
}

/// Processor time used so far, in seconds.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = read(pid, "stat")?;
    // The name is in brackets and may hold anything.
    let (_, rest) = stat.rsplit_once(')').context("/proc/PID/stat")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    let total = ticks(11).zip(ticks(12)).context("/proc/PID/stat")?;
    // Linux has reported in hundredths of a second to programs for as long as there was /proc.
    Ok((total.0 + total.1) / 100.0)
}

/// Processor time of all threads that live, in seconds, as the scheduler counts it.
pub fn precise_cpu_seconds(pid: u32) -> Result<f64> {
    let mut nanoseconds = 0.0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).context("/proc/PID/task")? {
        // One that ends meanwhile does not count.
        let Ok(text) = std::fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        let first = text.split_whitespace().next().and_then(|field| field.parse::<f64>().ok());
        nanoseconds += first.context("/proc/PID/task/TID/schedstat")?;
    }
    Ok(nanoseconds / 1e9)
}

/// Bytes that the process has received on the TCP connections that it has now.
pub fn received_bytes(pid: u32) -> Result<u64> {
    let output = std::process::Command::new("ss").args(["-tinpH"]).output();
    let output = output.context("cannot run ss (package iproute2)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (mut ours, mut all) = (false, 0);
    // The figures of a connection follow in an indented line.
    for line in text.lines() {
        if !line.starts_with(char::is_whitespace) {
            ours = line.contains(&format!("pid={pid},"));
        } else if ours {
            let found = line.split_whitespace().find_map(|one| one.strip_prefix("bytes_received:"));
            all += found.and_then(|bytes| bytes.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(all)
}

fn read(pid: u32, what: &str) -> Result<String> {
    let file = format!("/proc/{pid}/{what}");
    std::fs::read_to_string(&file).with_context(|| format!("{file} (has the process ended?)"))
}

fn line(text: &str, name: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).with_context(|| format!("no {name} in /proc"))
}

/// Watches the resident memory of a process for its peak.
pub struct Peak {
    stop: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Peak {
    /// Starts to watch.
    pub fn of(pid: u32) -> Self {
        let (stop, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ended, highest) = (stop.clone(), most.clone());
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                highest.fetch_max(resident(pid).unwrap_or(0), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { stop, most, thread: Some(thread) }
    }

    /// The most it held since, in KiB.
    pub fn kib(mut self) -> u64 {
        self.end();
        self.most.load(Ordering::Relaxed)
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Peak {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_figures_make_sense() {
        let pid = std::process::id();
        let now = memory(pid).expect("our own memory");
        assert!(now.rss_kib > 500 && now.pss_kib > 100, "{now:?}");
        assert!(now.pss_kib <= now.rss_kib + 1024, "{now:?}");
        assert!(cpu_seconds(pid).expect("our own time") < 3600.0);
        assert!(precise_cpu_seconds(pid).expect("our own time") > 0.0);
        let peak = Peak::of(pid);
        std::thread::sleep(Duration::from_millis(60));
        assert!(peak.kib() > 500);
        assert!(memory(u32::MAX / 4).is_err());
    }
}
