//! What the process uses, as every Prometheus client reports it.

use std::fmt::Write;
use std::fs;

/// Ticks per second in `/proc/self/stat`; fixed for user space on Linux.
const TICKS: f64 = 100.0;
const PAGE: u64 = 4096;

/// Appends the process' metrics; what the system does not tell is left out.
pub fn write(out: &mut String) {
    let mut put = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
    };
    let fields = stat();
    let field = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
    // Fields are counted from the state, which follows the name in parentheses.
    let cpu = field(11).zip(field(12)).map(|(user, system)| (user + system) / TICKS);
    let started = field(19).zip(boot_time()).map(|(ticks, boot)| boot + ticks / TICKS);
    let resident = field(21).map(|pages| pages * PAGE as f64);
    let open = fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
    put(
        "process_cpu_seconds_total",
        "counter",
        "Total user and system CPU time spent in seconds.",
        cpu,
    );
    put("process_max_fds", "gauge", "Maximum number of open file descriptors.", max_files());
    put("process_open_fds", "gauge", "Number of open file descriptors.", open);
    put("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", resident);
    put(
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds.",
        started,
    );
    put("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", field(20));
}

fn stat() -> Vec<String> {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_whitespace().map(str::to_owned).collect()
}

fn boot_time() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn max_files() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/limits").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}
