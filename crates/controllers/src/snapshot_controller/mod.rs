//! The snapshot controller: binds snapshots to contents, and contents to snapshots.
//!
//! [`longshore_core::snapshot`] holds the rules. It never talks to a driver: a content that it makes is a
//! request to the snapshotter beside the driver, whose answer it copies back into the snapshot's status.

mod config;
mod contents;
mod create;
mod delete;
mod error;
mod metrics;
mod snapshots;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use longshore_cluster::{Api, Cache, Context, QueueOptions, Recorder};
use longshore_core::{
    model::kinds::{Claim, Node, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent},
    snapshot::restored_from,
};
use tokio_util::sync::CancellationToken;

pub use self::config::{Config, GATES, GROUPS};
use self::{contents::Contents, metrics::SnapshotMetrics, snapshots::Snapshots};

/// Where its events come from.
const COMPONENT: &str = "snapshot-controller";

/// Snapshots by the claim that they are taken of.
const BY_CLAIM: &str = "snapshots-by-claim";
/// Claims by the snapshot that they are restored from.
const BY_SNAPSHOT: &str = "claims-by-snapshot";

/// The snapshot controller of a cluster.
pub struct SnapshotController {
    context: Context,
    config: Config,
}

impl SnapshotController {
    /// A controller that does nothing until [`Self::run`].
    #[must_use]
    pub fn new(context: &Context, config: Config) -> Self {
        Self { context: context.clone(), config }
    }

    /// Runs until `shutdown` is cancelled; passes in flight are finished then.
    pub async fn run(self, shutdown: CancellationToken) {
        let shared = Arc::new(Shared::new(self.context, self.config));
        tokio::join!(Snapshots::new(&shared).run(&shutdown), Contents::new(&shared).run(&shutdown),);
    }
}

/// What the loops share.
struct Shared {
    context: Context,
    config: Config,
    api: Api,
    snapshots: Cache<VolumeSnapshot>,
    contents: Cache<VolumeSnapshotContent>,
    classes: Cache<VolumeSnapshotClass>,
    claims: Cache<Claim>,
    /// Only where contents are labelled with a node.
    nodes: Option<Cache<Node>>,
    recorder: Recorder,
    metrics: SnapshotMetrics,
}

impl Shared {
    fn new(context: Context, config: Config) -> Self {
        let snapshots: Cache<VolumeSnapshot> = context.cache();
        snapshots.index(BY_CLAIM, |snapshot: &VolumeSnapshot| {
            let namespace = &snapshot.metadata.namespace;
            let claim = snapshot.spec.source.persistent_volume_claim_name.iter();
            claim.map(|claim| format!("{namespace}/{claim}")).collect()
        });
        let claims: Cache<Claim> = context.cache();
        claims.index(BY_SNAPSHOT, |claim: &Claim| {
            restored_from(claim).map(|key| key.to_string()).into_iter().collect()
        });
        Self {
            api: context.api.clone(),
            snapshots,
            contents: context.cache(),
            classes: context.cache(),
            claims,
            nodes: config.enable_distributed_snapshotting.then(|| context.cache()),
            recorder: context.recorder(COMPONENT),
            metrics: SnapshotMetrics::of(&context.metrics),
            context,
            config,
        }
    }

    fn queue_options(&self) -> QueueOptions {
        QueueOptions::backoff(self.config.retry_interval_start, self.config.retry_interval_max)
    }

    fn workers(&self) -> usize {
        self.config.worker_threads.get() as usize
    }
}
