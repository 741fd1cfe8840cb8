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
    /// What is open when it is gone is counted as cancelled.
    const CANCELS: bool;

    fn meta(&self) -> &Meta;
    fn is_cut(&self) -> bool;
    fn is_ready(&self) -> bool;
    fn is_pre_provisioned(&self) -> bool;
}

impl Counted for VolumeSnapshot {
    const NAMES: [&'static str; 3] = ["CreateSnapshot", "CreateSnapshotAndReady", "DeleteSnapshot"];
    const CANCELS: bool = true;

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
    const CANCELS: bool = false;

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
    begun: Arc<Mutex<HashMap<(Uid, Operation), Begun>>>,
}

/// An operation that goes on.
#[derive(Debug)]
struct Begun {
    since: Instant,
    /// Kept from when it was known: when an object is gone, so is its content.
    driver: Option<String>,
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

    /// A pass sees the object: what is wanted of it begins, unless it has. `driver` finds the name of the
    /// driver, as soon as something says it.
    pub(super) fn begun<T: Counted>(&self, object: &T, driver: impl FnOnce() -> Option<String>) {
        let meta = object.meta();
        let wanted: &[Operation] = match meta.deleting() {
            // Nothing holds it any more: it may be gone already, and have been counted.
            true if meta.finalizers.is_empty() => return,
            true => &[Operation::Delete],
            false if object.is_ready() || object.is_cut() => return,
            false => &[Operation::Create, Operation::CreateAndReady],
        };
        // Before the lock: it looks into caches, whose changes are counted here.
        let driver = driver();
        let mut begun = self.begun.lock();
        for operation in wanted {
            let new = || Begun { since: Instant::now(), driver: None };
            let one = begun.entry((meta.uid.clone(), *operation)).or_insert_with(new);
            if one.driver.is_none() {
                one.driver.clone_from(&driver);
            }
        }
        self.count(begun.len());
    }

    pub(super) fn created<T: Counted>(&self, object: &T) {
        self.end(object, Operation::Create, "success", None);
    }

    pub(super) fn ready<T: Counted>(&self, object: &T) {
        self.end(object, Operation::CreateAndReady, "success", None);
    }

    /// The object is gone; what was not done by then was given up. As upstream, a snapshot's creation is
    /// counted then with the time that the deletion took, and a group snapshot's is not counted.
    pub(super) fn deleted<T: Counted>(&self, object: &T) {
        let of = |operation| (object.meta().uid.clone(), operation);
        let since = self.begun.lock().get(&of(Operation::Delete)).map(|begun| begun.since);
        for operation in [Operation::Create, Operation::CreateAndReady] {
            if T::CANCELS {
                self.end(object, operation, "cancel", since);
            } else {
                self.begun.lock().remove(&of(operation));
            }
        }
        self.end(object, Operation::Delete, "success", None);
        self.count(self.begun.lock().len());
    }

    fn end<T: Counted>(
        &self,
        object: &T,
        operation: Operation,
        status: &str,
        since: Option<Instant>,
    ) {
        let mut begun = self.begun.lock();
        let Some(Begun { since: first, driver }) =
            begun.remove(&(object.meta().uid.clone(), operation))
        else {
            return;
        };
        self.count(begun.len());
        let [create, ready, delete] = T::NAMES;
        let name = match operation {
            Operation::Create => create,
            Operation::CreateAndReady => ready,
            Operation::Delete => delete,
        };
        let kind = if object.is_pre_provisioned() { "pre-provisioned" } else { "dynamic" };
        let labels = [
            // Upstream's word where the driver is not known.
            ("driver_name", driver.unwrap_or_else(|| "unknown".to_owned())),
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
