//! What the controller counts, under upstream's names.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use longshore_cluster::Metrics;
use longshore_core::attach::{Forced, Operation};
use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::Counter, family::Family, gauge::ConstGauge, histogram::Histogram},
};

use super::Controller;

/// The plugin's name where an operation is about many volumes.
const NO_PLUGIN: &str = "<n/a>";

type OperationLabels = [(&'static str, String); 4];

/// Counters that outlive a controller: one that takes over goes on counting.
#[derive(Clone)]
pub(super) struct AttachMetrics {
    forced: Family<[(&'static str, &'static str); 1], Counter>,
    operations: Family<OperationLabels, Histogram>,
    state: Arc<StateCollector>,
}

impl Default for AttachMetrics {
    fn default() -> Self {
        Self {
            forced: Family::default(),
            operations: Family::new_with_constructor(operation_histogram as fn() -> Histogram),
            state: Arc::default(),
        }
    }
}

fn operation_histogram() -> Histogram {
    Histogram::new([0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0])
}

impl AttachMetrics {
    pub(super) fn of(metrics: &Metrics) -> Self {
        metrics.shared(|registry| {
            let new = Self::default();
            registry.register(
                "attach_detach_controller_attachdetach_controller_forced_detaches",
                "Number of times the A/D Controller performed a forced detach",
                new.forced.clone(),
            );
            registry.register(
                "storage_operation_duration_seconds",
                "Storage operation duration",
                new.operations.clone(),
            );
            registry.register_collector(Box::new(new.state.clone()));
            new
        })
    }

    /// Has the controller's worlds counted at each scrape for as long as it lives.
    pub(super) fn watch(&self, controller: &Arc<Controller>) {
        *self.state.controller.lock() = Arc::downgrade(controller);
    }

    pub(super) fn forced(&self, forced: Forced) {
        self.forced.get_or_create(&[("reason", forced.reason())]).inc();
    }

    /// One attach or detach has ended.
    pub(super) fn operation(
        &self,
        operation: Operation,
        plugin: String,
        migrated: bool,
        took: Duration,
        done: bool,
    ) {
        let name = match operation {
            Operation::Attach => "volume_attach",
            Operation::Detach => "volume_detach",
        };
        self.observe(plugin, name, migrated, took, done);
    }

    /// The volumes of one node were compared with their attachments.
    pub(super) fn verified(&self, took: Duration) {
        let name = "verify_volumes_are_attached_per_node";
        self.observe(NO_PLUGIN.to_owned(), name, false, took, true);
    }

    fn observe(&self, plugin: String, name: &str, migrated: bool, took: Duration, done: bool) {
        let labels = [
            ("migrated", migrated.to_string()),
            ("operation_name", name.to_owned()),
            ("status", if done { "success" } else { "fail-unknown" }.to_owned()),
            ("volume_plugin", plugin),
        ];
        self.operations.get_or_create(&labels).observe(took.as_secs_f64());
    }
}

/// Counts what both worlds and the pods hold when somebody asks.
#[derive(Default)]
struct StateCollector {
    controller: Mutex<Weak<Controller>>,
}

impl fmt::Debug for StateCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StateCollector")
    }
}

type Counts = BTreeMap<(String, String), u64>;

impl Controller {
    /// Volumes that scheduled pods name, by node and plugin; attached or not.
    fn volumes_in_use(&self) -> Counts {
        let mut counts = Counts::new();
        for pod in self.caches.pods.list() {
            if pod.spec.node_name.is_empty() {
                continue;
            }
            for plugin in self.plugins_of(&pod) {
                *counts.entry((pod.spec.node_name.to_string(), plugin)).or_default() += 1;
            }
        }
        counts
    }

    /// Volumes in both worlds, by plugin and state. Those known only by name have no plugin.
    fn total_volumes(&self) -> Counts {
        let mut counts = Counts::new();
        let mut add = |plugin: String, state: &str| {
            *counts.entry((plugin, state.to_owned())).or_default() += 1;
        };
        let state = self.state.lock();
        for (_, _, wanted) in state.desired.all() {
            add(wanted.spec.plugin(), "desired_state_of_world");
        }
        for spec in state.actual.all().into_iter().filter_map(|entry| entry.spec) {
            add(spec.plugin(), "actual_state_of_world");
        }
        drop(state);
        counts
    }
}

impl Collector for StateCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(controller) = self.controller.lock().upgrade() else { return Ok(()) };
        let families = [
            (
                "storage_count_attachable_volumes_in_use",
                "Measure number of volumes in use",
                ["node", "volume_plugin"],
                controller.volumes_in_use(),
            ),
            (
                "attachdetach_controller_total_volumes",
                "Number of volumes in A/D Controller",
                ["plugin_name", "state"],
                controller.total_volumes(),
            ),
        ];
        for (name, help, [first, second], counts) in families {
            if counts.is_empty() {
                continue;
            }
            let gauge = ConstGauge::new(0_u64);
            let mut family = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            for ((one, two), count) in counts {
                let gauge = ConstGauge::new(count);
                gauge.encode(family.encode_family(&[(first, one), (second, two)])?)?;
            }
        }
        Ok(())
    }
}
