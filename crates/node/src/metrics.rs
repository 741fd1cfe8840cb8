//! What a node counts and measures, under the kubelet's names.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use longshore_cluster::Metrics;
use longshore_cluster::telemetry::{RegistryExt as _, VolumeOperations, encode_gauges};
use longshore_core::names::metrics_plugin;
use longshore_csi::metrics::Side;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::registration::Registrar;
use crate::volumes::VolumeManager;
use crate::volumes::stats::{Amount, ClaimUsage, Usage};

type Pair = [(&'static str, String); 2];

/// The metrics of one node. Clones share them.
#[derive(Clone)]
pub(crate) struct NodeMetrics {
    /// Durations of the calls to drivers.
    pub csi: longshore_csi::metrics::Metrics,
    bytes: AmountGauges,
    inodes: AmountGauges,
    abnormal: Family<Pair, Gauge>,
    label_conflicts: Family<Pair, Counter>,
    pub operations: VolumeOperations,
    pub reconstructed: Counter,
    pub not_reconstructed: Counter,
    pub forced: Counter,
    pub not_forced: Counter,
    state: Arc<State>,
}

impl NodeMetrics {
    /// Registers the metrics, or finds those that are.
    pub(crate) fn of(metrics: &Metrics) -> Self {
        let operations = VolumeOperations::of(metrics);
        metrics.shared(|registry| {
            let state = Arc::<State>::default();
            registry.register_collector(Box::new(state.clone()));
            Self::register(registry, operations, state)
        })
    }

    fn register(r: &mut Registry, operations: VolumeOperations, state: Arc<State>) -> Self {
        Self {
            csi: longshore_csi::metrics::Metrics::register(r, Side::Node),
            bytes: AmountGauges {
                total: of_volume(r, "capacity_bytes", "Capacity in bytes of the volume"),
                available: of_volume(
                    r,
                    "available_bytes",
                    "Number of available bytes in the volume",
                ),
                used: of_volume(r, "used_bytes", "Number of used bytes in the volume"),
            },
            inodes: AmountGauges {
                total: of_volume(r, "inodes", "Maximum number of inodes in the volume"),
                available: of_volume(r, "inodes_free", "Number of free inodes in the volume"),
                used: of_volume(r, "inodes_used", "Number of used inodes in the volume"),
            },
            abnormal: of_volume(
                r,
                "health_status_abnormal",
                "Whether the driver calls the volume abnormal: 1 if it does, else 0",
            ),
            label_conflicts: r.metric(
                "volume_manager_selinux_volume_context_mismatch_errors",
                "Pods refused because another pod has the volume with another SELinux label",
            ),
            operations,
            reconstructed: r
                .metric("reconstruct_volume_operations", "Volumes found on disk at start"),
            not_reconstructed: r.metric(
                "reconstruct_volume_operations_errors",
                "Volumes found on disk at start that nobody can make sense of",
            ),
            forced: r.metric(
                "force_cleaned_failed_volume_operations",
                "Volumes unmounted without their driver, because their metadata was lost",
            ),
            not_forced: r.metric(
                "force_cleaned_failed_volume_operation_errors",
                "Volumes that could not be unmounted without their driver",
            ),
            state,
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
        let plugin = metrics_plugin(driver);
        let labels = [("access_mode", access_mode.to_owned()), ("volume_plugin", plugin)];
        self.label_conflicts.get_or_create(&labels).inc();
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

fn of_volume(registry: &mut Registry, name: &str, help: &str) -> Family<Pair, Gauge> {
    registry.metric(&format!("kubelet_volume_stats_{name}"), help)
}

/// The gauges of one [`Amount`].
#[derive(Clone)]
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
            let gauges = counts.into_iter().flatten().map(|((first, state), count)| {
                ([(label, first), ("state", state.to_owned())], count)
            });
            encode_gauges(&mut encoder, name, help, gauges)?;
        }
        Ok(())
    }
}
