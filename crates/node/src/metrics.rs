//! What a node counts and measures, under the kubelet's names.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use longshore_cluster::Metrics;
use longshore_csi::metrics::Side;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::registration::Registrar;
use crate::volumes::VolumeManager;
use crate::volumes::stats::{Amount, ClaimUsage, Usage};

type Pair = [(&'static str, String); 2];
type OperationLabels = [(&'static str, String); 4];

fn seconds() -> Histogram {
    Histogram::new([0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0])
}

/// The metrics of one node. Clones share them.
#[derive(Clone)]
pub(crate) struct NodeMetrics {
    /// Durations of the calls to drivers.
    pub csi: longshore_csi::metrics::Metrics,
    bytes: AmountGauges,
    inodes: AmountGauges,
    abnormal: Family<Pair, Gauge>,
    label_conflicts: Family<Pair, Counter>,
    operations: Family<OperationLabels, Histogram>,
    totals: Family<Pair, Histogram>,
    pub reconstructed: Counter,
    pub not_reconstructed: Counter,
    pub forced: Counter,
    pub not_forced: Counter,
    state: Arc<State>,
}

impl NodeMetrics {
    /// Registers the metrics, or finds those that are.
    pub(crate) fn of(metrics: &Metrics) -> Self {
        metrics.shared(|registry| {
            let new = Self {
                csi: longshore_csi::metrics::Metrics::register(registry, Side::Node),
                bytes: AmountGauges::default(),
                inodes: AmountGauges::default(),
                abnormal: Family::default(),
                label_conflicts: Family::default(),
                operations: Family::new_with_constructor(seconds as fn() -> Histogram),
                totals: Family::new_with_constructor(seconds as fn() -> Histogram),
                reconstructed: Counter::default(),
                not_reconstructed: Counter::default(),
                forced: Counter::default(),
                not_forced: Counter::default(),
                state: Arc::default(),
            };
            new.register_stats(registry);
            new.register_operations(registry);
            registry.register_collector(Box::new(new.state.clone()));
            new
        })
    }

    fn register_stats(&self, registry: &mut Registry) {
        let Self { bytes, inodes, .. } = self;
        for (name, help, family) in [
            ("capacity_bytes", "Capacity in bytes of the volume", &bytes.total),
            ("available_bytes", "Number of available bytes in the volume", &bytes.available),
            ("used_bytes", "Number of used bytes in the volume", &bytes.used),
            ("inodes", "Maximum number of inodes in the volume", &inodes.total),
            ("inodes_free", "Number of free inodes in the volume", &inodes.available),
            ("inodes_used", "Number of used inodes in the volume", &inodes.used),
            (
                "health_status_abnormal",
                "Whether the driver calls the volume abnormal: 1 if it does, else 0",
                &self.abnormal,
            ),
        ] {
            registry.register(format!("kubelet_volume_stats_{name}"), help, family.clone());
        }
    }

    fn register_operations(&self, registry: &mut Registry) {
        let help = "Storage operation duration";
        registry.register("storage_operation_duration_seconds", help, self.operations.clone());
        let help = "Storage operation end to end duration in seconds";
        registry.register("volume_operation_total_seconds", help, self.totals.clone());
        registry.register(
            "volume_manager_selinux_volume_context_mismatch_errors",
            "Pods refused because another pod has the volume with another SELinux label",
            self.label_conflicts.clone(),
        );
        for (name, help, counter) in [
            (
                "reconstruct_volume_operations",
                "Volumes found on disk at start",
                &self.reconstructed,
            ),
            (
                "reconstruct_volume_operations_errors",
                "Volumes found on disk at start that nobody can make sense of",
                &self.not_reconstructed,
            ),
            (
                "force_cleaned_failed_volume_operations",
                "Volumes unmounted without their driver, because their metadata was lost",
                &self.forced,
            ),
            (
                "force_cleaned_failed_volume_operation_errors",
                "Volumes that could not be unmounted without their driver",
                &self.not_forced,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
    }

    /// Has volumes counted at each scrape for as long as the manager lives.
    pub(crate) fn count_volumes(&self, manager: &Arc<VolumeManager>) {
        *self.state.volumes.lock() = Arc::downgrade(manager);
    }

    /// Has registration sockets counted at each scrape for as long as the registrar lives.
    pub(crate) fn count_plugins(&self, registrar: &Arc<Registrar>) {
        *self.state.plugins.lock() = Arc::downgrade(registrar);
    }

    pub(crate) fn label_conflict(&self, access_mode: &str, driver: &str) {
        let plugin = format!("kubernetes.io/csi:{driver}");
        let labels = [("access_mode", access_mode.to_owned()), ("volume_plugin", plugin)];
        self.label_conflicts.get_or_create(&labels).inc();
    }

    /// One operation on a volume has ended.
    pub(crate) fn operation(&self, plugin: &str, name: &str, took: Duration, done: bool) {
        let labels = [
            ("volume_plugin", plugin.to_owned()),
            ("operation_name", name.to_owned()),
            ("status", if done { "success" } else { "fail-unknown" }.to_owned()),
            ("migrated", "false".to_owned()),
        ];
        self.operations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// A volume was mounted this long after its pod was first seen.
    pub(crate) fn mounted(&self, plugin: &str, took: Duration) {
        let labels = [
            ("plugin_name", plugin.to_owned()),
            ("operation_name", "overall_volume_mount".to_owned()),
        ];
        self.totals.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Shows how full claims are, and nothing of those that are not here any more.
    pub(crate) fn set_usage(&self, claims: &[ClaimUsage]) {
        self.bytes.clear();
        self.inodes.clear();
        self.abnormal.clear();
        for ClaimUsage { namespace, claim, usage } in claims {
            let labels =
                [("namespace", namespace.clone()), ("persistentvolumeclaim", claim.clone())];
            let Usage { bytes, inodes, abnormal } = usage;
            self.bytes.set(&labels, bytes);
            self.inodes.set(&labels, inodes);
            if let Some(abnormal) = abnormal {
                self.abnormal.get_or_create(&labels).set(i64::from(*abnormal));
            }
        }
    }
}

/// The gauges of one [`Amount`].
#[derive(Clone, Default)]
struct AmountGauges {
    total: Family<Pair, Gauge>,
    available: Family<Pair, Gauge>,
    used: Family<Pair, Gauge>,
}

impl AmountGauges {
    fn clear(&self) {
        let Self { total, available, used } = self;
        [total, available, used].into_iter().for_each(Family::clear);
    }

    fn set(&self, labels: &Pair, amount: &Amount) {
        self.total.get_or_create(labels).set(amount.total);
        self.available.get_or_create(labels).set(amount.available);
        self.used.get_or_create(labels).set(amount.used);
    }
}

/// Counts at each scrape.
#[derive(Default)]
struct State {
    volumes: Mutex<Weak<VolumeManager>>,
    plugins: Mutex<Weak<Registrar>>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("State")
    }
}

/// Counts by name and by desired or actual state.
pub(crate) type Counts = BTreeMap<(String, &'static str), u64>;

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let volumes = self.volumes.lock().upgrade().map(|manager| manager.total_volumes());
        let plugins = self.plugins.lock().upgrade().map(|registrar| registrar.total_plugins());
        for (name, help, label, counts) in [
            (
                "volume_manager_total_volumes",
                "Number of volumes in Volume Manager",
                "plugin_name",
                volumes,
            ),
            (
                "plugin_manager_total_plugins",
                "Number of plugins in Plugin Manager",
                "socket_path",
                plugins,
            ),
        ] {
            let Some(counts) = counts.filter(|counts| !counts.is_empty()) else { continue };
            let gauge = ConstGauge::new(0_u64);
            let mut family = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            for ((first, state), count) in counts {
                let labels = [(label, first), ("state", state.to_owned())];
                ConstGauge::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
