//! What the process uses, as every Prometheus client reports it.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Ticks per second in `/proc/self/stat`; fixed for user space on Linux.
const TICKS: f64 = 100.0;
const PAGE: f64 = 4096.0;

/// Reads `/proc` at each scrape. What the system does not say is left out.
#[derive(Debug)]
pub struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let fields = stat();
        let field = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
        // Fields are counted from the state, which follows the name in parentheses.
        let cpu = field(11).zip(field(12)).map(|(user, system)| (user + system) / TICKS);
        if let Some(seconds) = cpu {
            let help = "Total user and system CPU time spent in seconds.";
            let counter = ConstCounter::new(seconds);
            let kind = counter.metric_type();
            counter.encode(encoder.encode_descriptor(
                "process_cpu_seconds",
                help,
                None,
                kind,
            )?)?;
        }
        let open = fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
        let started = field(19).zip(boot_time()).map(|(ticks, boot)| boot + ticks / TICKS);
        let resident = field(21).map(|pages| pages * PAGE);
        let gauges = [
            ("max_fds", "Maximum number of open file descriptors.", max_files()),
            ("open_fds", "Number of open file descriptors.", open),
            ("resident_memory_bytes", "Resident memory size in bytes.", resident),
            (
                "start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
                started,
            ),
            ("virtual_memory_bytes", "Virtual memory size in bytes.", field(20)),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(value);
            let (name, kind) = (format!("process_{name}"), gauge.metric_type());
            gauge.encode(encoder.encode_descriptor(&name, help, None, kind)?)?;
        }
        Ok(())
    }
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
