//! What the controller counts, under upstream's names.

use std::collections::HashMap;
use std::sync::Arc;

use longshore_cluster::{Metrics, telemetry::RegistryExt as _};
use longshore_core::{
    model::{Uid, kinds::VolumeSnapshot},
    snapshot::needs_claim,
};
use parking_lot::Mutex;
use prometheus_client::metrics::{family::Family, gauge::Gauge, histogram::Histogram};
use tokio::time::Instant;

/// Operations on snapshots, from the first pass that saw them wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Operation {
    Create,
    CreateAndReady,
    Delete,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "CreateSnapshot",
            Self::CreateAndReady => "CreateSnapshotAndReady",
            Self::Delete => "DeleteSnapshot",
        }
    }
}

/// Upstream's buckets.
fn seconds() -> Histogram {
    Histogram::new([0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0])
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

    /// A pass sees the snapshot: what is wanted of it begins, unless it has.
    pub(super) fn begun(&self, snapshot: &VolumeSnapshot) {
        let cut = snapshot.status.as_ref().is_some_and(|status| status.creation_time.is_some());
        if snapshot.metadata.deleting() {
            self.begin(snapshot, Operation::Delete);
        } else if needs_claim(snapshot) && !cut {
            self.begin(snapshot, Operation::Create);
            self.begin(snapshot, Operation::CreateAndReady);
        }
    }

    pub(super) fn created(&self, snapshot: &VolumeSnapshot) {
        self.end(snapshot, Operation::Create, "success");
    }

    pub(super) fn ready(&self, snapshot: &VolumeSnapshot) {
        self.end(snapshot, Operation::CreateAndReady, "success");
    }

    /// The snapshot is gone; what was not done by then was given up.
    pub(super) fn deleted(&self, snapshot: &VolumeSnapshot) {
        let deletion = (snapshot.metadata.uid.clone(), Operation::Delete);
        let since = self.begun.lock().get(&deletion).copied();
        for operation in [Operation::Create, Operation::CreateAndReady] {
            let open = (snapshot.metadata.uid.clone(), operation);
            let mut begun = self.begun.lock();
            if let (Some(at), Some(since)) = (begun.get_mut(&open), since) {
                // As long as the deletion took, as upstream.
                *at = since;
            }
            drop(begun);
            self.end(snapshot, operation, "cancel");
        }
        self.end(snapshot, Operation::Delete, "success");
    }

    fn begin(&self, snapshot: &VolumeSnapshot, operation: Operation) {
        let mut begun = self.begun.lock();
        begun.entry((snapshot.metadata.uid.clone(), operation)).or_insert_with(Instant::now);
        self.count(begun.len());
    }

    fn end(&self, snapshot: &VolumeSnapshot, operation: Operation, status: &str) {
        let mut begun = self.begun.lock();
        let Some(since) = begun.remove(&(snapshot.metadata.uid.clone(), operation)) else { return };
        self.count(begun.len());
        let kind = match snapshot.spec.source.volume_snapshot_content_name {
            Some(_) => "pre-provisioned",
            None => "dynamic",
        };
        let labels = [
            // Upstream's word where the driver is not known; it is not kept for each snapshot.
            ("driver_name", "unknown".to_owned()),
            ("operation_name", operation.name().to_owned()),
            ("snapshot_type", kind.to_owned()),
            ("operation_status", status.to_owned()),
        ];
        self.durations.get_or_create(&labels).observe(since.elapsed().as_secs_f64());
    }

    fn count(&self, open: usize) {
        self.in_flight.set(i64::try_from(open).unwrap_or(i64::MAX));
    }
}
