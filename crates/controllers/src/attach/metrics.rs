//! What the controller counts, under upstream's names.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use longshore_cluster::{
    Metrics,
    telemetry::{RegistryExt as _, VolumeOperations, encode_gauges},
};
use longshore_core::attach::{Forced, Operation};
use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::DescriptorEncoder,
    metrics::{counter::Counter, family::Family},
};

use super::Controller;

/// The plugin's name where an operation is about many volumes.
const NO_PLUGIN: &str = "<n/a>";

/// Counters that outlive a controller: one that takes over goes on counting.
#[derive(Clone)]
pub(super) struct AttachMetrics {
    forced: Family<[(&'static str, &'static str); 1], Counter>,
    operations: VolumeOperations,
    state: Arc<StateCollector>,
}

impl AttachMetrics {
    pub(super) fn of(metrics: &Metrics) -> Self {
        let operations = VolumeOperations::of(metrics);
        metrics.shared(|registry| {
            let state = Arc::<StateCollector>::default();
            registry.register_collector(Box::new(state.clone()));
            let forced = registry.metric(
                "attach_detach_controller_attachdetach_controller_forced_detaches",
                "Number of times the A/D Controller performed a forced detach",
            );
            Self { forced, operations, state }
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
        plugin: &str,
        migrated: bool,
        took: Duration,
        done: bool,
    ) {
        let name = match operation {
            Operation::Attach => "volume_attach",
            Operation::Detach => "volume_detach",
        };
        self.operations.ended(plugin, name, migrated, took, done);
    }

    /// The volumes of one node were compared with their attachments.
    pub(super) fn verified(&self, took: Duration) {
        let name = "verify_volumes_are_attached_per_node";
        self.operations.ended(NO_PLUGIN, name, false, took, true);
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
        for pod in self.pods.list() {
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
            let gauges = counts.into_iter();
            let gauges = gauges.map(|((one, two), count)| ([(first, one), (second, two)], count));
            encode_gauges(&mut encoder, name, help, gauges)?;
        }
        Ok(())
    }
}
