//! Durations of volume operations, under upstream's names.

use std::time::Duration;

use longshore_metrics::RegistryExt as _;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use super::Metrics;

/// Upstream's buckets for operations on volumes.
fn seconds() -> Histogram {
    Histogram::new([0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0])
}

/// The operations on volumes of this process. The binder, the attach-detach controller and the node
/// agent report to the same two families, since a name may be registered only once.
#[derive(Debug, Clone)]
pub struct VolumeOperations {
    durations: Family<[(&'static str, String); 4], Histogram>,
    totals: Family<[(&'static str, String); 2], Histogram>,
}

impl VolumeOperations {
    /// Those of the process; the first call registers them.
    #[must_use]
    pub fn of(metrics: &Metrics) -> Self {
        metrics.shared(|registry| Self {
            durations: registry.histograms(
                "storage_operation_duration_seconds",
                "Storage operation duration",
                seconds,
            ),
            totals: registry.histograms(
                "volume_operation_total_seconds",
                "Storage operation end to end duration in seconds",
                seconds,
            ),
        })
    }

    /// One call of a plugin has ended. `migrated`: the API knows the volume by another plugin.
    pub fn ended(&self, plugin: &str, name: &str, migrated: bool, took: Duration, done: bool) {
        let labels = [
            ("volume_plugin", plugin.to_owned()),
            ("operation_name", name.to_owned()),
            ("status", if done { "success" } else { "fail-unknown" }.to_owned()),
            ("migrated", migrated.to_string()),
        ];
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// One operation has come to its end, `took` after it was first wanted.
    pub fn completed(&self, plugin: &str, name: &str, took: Duration) {
        let labels = [("plugin_name", plugin.to_owned()), ("operation_name", name.to_owned())];
        self.totals.get_or_create(&labels).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_shown_once_however_many_parts_count() {
        let metrics = Metrics::new();
        let took = Duration::from_secs(1);
        for plugin in ["binder", "node"] {
            VolumeOperations::of(&metrics).ended(plugin, "volume_mount", false, took, true);
            VolumeOperations::of(&metrics).completed(plugin, "provision", took);
        }
        let text = metrics.render();
        for family in ["storage_operation_duration_seconds", "volume_operation_total_seconds"] {
            let heads = text.matches(&format!("# TYPE {family} histogram\n")).count();
            let series = text.lines().filter(|line| line.starts_with(&format!("{family}_count")));
            assert_eq!((heads, series.count()), (1, 2), "{text}");
        }
    }
}
