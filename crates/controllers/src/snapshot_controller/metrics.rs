//! What the controller counts, under upstream's names.

use std::collections::HashMap;
use std::sync::Arc;

use longshore_cluster::{Metrics, telemetry::RegistryExt as _};
use longshore_core::model::{
    Uid,
    kinds::{Meta, VolumeGroupSnapshot, VolumeSnapshot},
};
use parking_lot::Mutex;
use prometheus_client::metrics::{family::Family, gauge::Gauge, histogram::Histogram};
use tokio::time::Instant;

/// What is wanted of an object, from the first pass that saw it wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Operation {
    Create,
    CreateAndReady,
    Delete,
}

/// Upstream's buckets.
fn seconds() -> Histogram {
    Histogram::new([0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0])
}

/// An object that is counted.
pub(super) trait Counted {
    /// The names of the three operations.
    const NAMES: [&'static str; 3];

    fn meta(&self) -> &Meta;
    fn is_cut(&self) -> bool;
    fn is_ready(&self) -> bool;
    fn is_pre_provisioned(&self) -> bool;
}

impl Counted for VolumeSnapshot {
    const NAMES: [&'static str; 3] = ["CreateSnapshot", "CreateSnapshotAndReady", "DeleteSnapshot"];

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    fn is_cut(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.creation_time.is_some())
    }

    fn is_ready(&self) -> bool {
        self.ready()
    }

    fn is_pre_provisioned(&self) -> bool {
        self.spec.source.volume_snapshot_content_name.is_some()
    }
}

impl Counted for VolumeGroupSnapshot {
    const NAMES: [&'static str; 3] =
        ["CreateGroupSnapshot", "CreateGroupSnapshotAndReady", "DeleteGroupSnapshot"];

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    fn is_cut(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.creation_time.is_some())
    }

    fn is_ready(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
    }

    fn is_pre_provisioned(&self) -> bool {
        self.spec.source.volume_group_snapshot_content_name.is_some()
    }
}

/// The operations of this process; one that is started again goes on counting.
#[derive(Debug, Clone)]
pub(super) struct SnapshotMetrics {
    durations: Family<[(&'static str, String); 4], Histogram>,
    in_flight: Gauge,
    begun: Arc<Mutex<HashMap<(Uid, Operation), Instant>>>,
}

impl SnapshotMetrics {
    pub(super) fn of(metrics: &Metrics) -> Self {
        metrics.shared(|registry| Self {
            durations: registry.histograms(
                "snapshot_controller_operation_total_seconds",
                "Total number of seconds spent by the controller on an operation",
                seconds,
            ),
            in_flight: registry.metric(
                "snapshot_controller_operations_in_flight",
                "Total number of operations in flight",
            ),
            begun: Arc::default(),
        })
    }

    /// A pass sees the object: what is wanted of it begins, unless it has.
    pub(super) fn begun<T: Counted>(&self, object: &T) {
        let meta = object.meta();
        if meta.deleting() {
            self.begin(meta, Operation::Delete);
        } else if !object.is_ready() && !object.is_cut() {
            self.begin(meta, Operation::Create);
            self.begin(meta, Operation::CreateAndReady);
        }
    }

    pub(super) fn created<T: Counted>(&self, object: &T) {
        self.end(object, Operation::Create, "success", None);
    }

    pub(super) fn ready<T: Counted>(&self, object: &T) {
        self.end(object, Operation::CreateAndReady, "success", None);
    }

    /// The object is gone; what was not done by then was given up, and is counted with the time that the
    /// deletion took, as upstream does.
    pub(super) fn deleted<T: Counted>(&self, object: &T) {
        let deletion = (object.meta().uid.clone(), Operation::Delete);
        let since = self.begun.lock().get(&deletion).copied();
        for operation in [Operation::Create, Operation::CreateAndReady] {
            self.end(object, operation, "cancel", since);
        }
        self.end(object, Operation::Delete, "success", None);
    }

    fn begin(&self, meta: &Meta, operation: Operation) {
        let mut begun = self.begun.lock();
        begun.entry((meta.uid.clone(), operation)).or_insert_with(Instant::now);
        self.count(begun.len());
    }

    fn end<T: Counted>(
        &self,
        object: &T,
        operation: Operation,
        status: &str,
        since: Option<Instant>,
    ) {
        let mut begun = self.begun.lock();
        let Some(first) = begun.remove(&(object.meta().uid.clone(), operation)) else { return };
        self.count(begun.len());
        let [create, ready, delete] = T::NAMES;
        let name = match operation {
            Operation::Create => create,
            Operation::CreateAndReady => ready,
            Operation::Delete => delete,
        };
        let kind = if object.is_pre_provisioned() { "pre-provisioned" } else { "dynamic" };
        let labels = [
            // Upstream's word where the driver is not known; it is not kept for each snapshot.
            ("driver_name", "unknown".to_owned()),
            ("operation_name", name.to_owned()),
            ("snapshot_type", kind.to_owned()),
            ("operation_status", status.to_owned()),
        ];
        let took = since.unwrap_or(first).elapsed();
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    fn count(&self, open: usize) {
        self.in_flight.set(i64::try_from(open).unwrap_or(i64::MAX));
    }
}
