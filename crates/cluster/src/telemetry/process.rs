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

/// Reads `/proc` at each scrape. What the system does not tell is left out.
#[derive(Debug)]
pub(super) struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let fields = stat();
        let field = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
        // Fields are counted from the state, which follows the name in parentheses.
        if let Some(seconds) =
            field(11).zip(field(12)).map(|(user, system)| (user + system) / TICKS)
        {
            let counter = ConstCounter::new(seconds);
            let help = "Total user and system CPU time spent in seconds";
            let kind = counter.metric_type();
            counter.encode(encoder.encode_descriptor(
                "process_cpu_seconds",
                help,
                None,
                kind,
            )?)?;
        }
        let open = fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
        let gauges = [
            (
                "process_resident_memory_bytes",
                "Resident memory size in bytes",
                field(21).map(|p| p * PAGE),
            ),
            ("process_virtual_memory_bytes", "Virtual memory size in bytes", field(20)),
            ("process_open_fds", "Number of open file descriptors", open),
            ("process_max_fds", "Maximum number of open file descriptors", max_files()),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(value);
            let kind = gauge.metric_type();
            gauge.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
        }
        Ok(())
    }
}

fn stat() -> Vec<String> {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_whitespace().map(str::to_owned).collect()
}

fn max_files() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/limits").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}
