//! The Prometheus text format.

use std::fmt::Write as _;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

/// All metrics of a registry in the Prometheus text format 0.0.4.
#[must_use]
pub fn render(registry: &Registry) -> String {
    let mut open = String::new();
    if text::encode_registry(&mut open, registry).is_err() {
        tracing::warn!("a metric could not be encoded");
    }
    to_prometheus_text(&open)
}

/// Counters of old, whose names end otherwise. They are registered as gauges.
const BARE_COUNTERS: [&str; 1] = ["volume_operation_total_errors"];

/// Turns OpenMetrics text into the Prometheus text format 0.0.4: there a counter's family carries
/// the `_total` suffix, units have no line, and unknown types are called untyped.
fn to_prometheus_text(open: &str) -> String {
    let mut out = String::with_capacity(open.len());
    let mut help: Option<(&str, &str)> = None;
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                "gauge" if BARE_COUNTERS.contains(&name) => ("", "counter"),
                other => ("", other),
            };
            if let Some((_, text)) = help.take() {
                let _ = writeln!(out, "# HELP {name}{suffix} {text}");
            }
            let _ = writeln!(out, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with("# UNIT ") && line != "# EOF" {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}
