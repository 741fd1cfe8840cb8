//! The snapshot controller: binds snapshots to contents, and contents to snapshots.
//!
//! [`longshore_core::snapshot`] holds the rules. It never talks to a driver: a content that it makes is a
//! request to the snapshotter beside the driver, whose answer it copies back into the snapshot's status.

mod claims;
mod config;
mod contents;
mod create;
mod delete;
mod error;
mod groups;
mod metrics;
mod snapshots;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trouble_tests;
mod writes;

use std::sync::Arc;

use longshore_cluster::{Api, Cache, Context, QueueOptions, Recorder};
use longshore_core::{
    model::{
        NodeName,
        kinds::{Claim, Node, Volume, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent},
    },
    snapshot::{create::managing_node, group_owner, restored_from},
};
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

pub use self::config::{Config, GATES, GROUPS};
use self::{
    claims::Claims, contents::Contents, groups::Kinds, metrics::SnapshotMetrics,
    snapshots::Snapshots,
};
use crate::index::{index_nodes, nodes_for};

/// Where its events come from.
const COMPONENT: &str = "snapshot-controller";

/// Snapshots by the claim that they are taken of.
const BY_CLAIM: &str = "snapshots-by-claim";
/// Claims by the snapshot that they are restored from.
const BY_SNAPSHOT: &str = "claims-by-snapshot";
/// Snapshots by the UID of the group snapshot that owns them.
const BY_GROUP: &str = "snapshots-by-group";
/// Snapshots that name a group snapshot, and are not owned by one.
const BY_GROUP_NAME: &str = "snapshots-by-group-name";

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
        let snapshots = Snapshots::new(&shared);
        let queue = snapshots.queue.clone();
        let contents = Contents::new(&shared, &shared.contents, "snapshot-controller-content");
        tokio::join!(
            snapshots.run(&shutdown),
            contents.run("snapshot-content", &shutdown),
            Claims::new(&shared).run(&shutdown),
            groups::run(&shared, &queue, &shutdown),
        );
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
    group_kinds: RwLock<Kinds>,
}

impl Shared {
    fn new(context: Context, config: Config) -> Self {
        let snapshots: Cache<VolumeSnapshot> = context.cache();
        snapshots.index(BY_CLAIM, |snapshot: &VolumeSnapshot| {
            let namespace = &snapshot.metadata.namespace;
            let claim = snapshot.spec.source.persistent_volume_claim_name.iter();
            claim.map(|claim| format!("{namespace}/{claim}")).collect()
        });
        snapshots.index(BY_GROUP, |snapshot: &VolumeSnapshot| {
            group_owner(&snapshot.metadata).map(|owner| owner.uid.to_string()).into_iter().collect()
        });
        snapshots.index(BY_GROUP_NAME, |snapshot: &VolumeSnapshot| {
            let free =
                snapshot.status.as_ref().filter(|_| group_owner(&snapshot.metadata).is_none());
            let name = free.and_then(|status| status.volume_group_snapshot_name.as_ref());
            let namespace = &snapshot.metadata.namespace;
            name.map(|name| format!("{namespace}/{name}")).into_iter().collect()
        });
        let claims: Cache<Claim> = context.cache();
        claims.index(BY_SNAPSHOT, |claim: &Claim| {
            restored_from(claim).map(|key| key.to_string()).into_iter().collect()
        });
        let nodes = config.enable_distributed_snapshotting.then(|| context.cache());
        nodes.iter().for_each(index_nodes);
        Self {
            api: context.api.clone(),
            snapshots,
            contents: context.cache(),
            classes: context.cache(),
            claims,
            nodes,
            recorder: context.recorder(COMPONENT),
            metrics: SnapshotMetrics::of(&context.metrics),
            group_kinds: RwLock::default(),
            context,
            config,
        }
    }

    fn queue_options(&self) -> QueueOptions {
        QueueOptions::backoff(self.config.retry_interval_start, self.config.retry_interval_max)
    }

    /// The node whose snapshotter takes snapshots of a volume, where each serves its own.
    fn managing_node(&self, volume: &Volume) -> Option<NodeName> {
        let required = volume.spec.node_affinity.required.as_ref()?;
        let nodes = nodes_for(self.nodes.as_ref()?, required);
        managing_node(volume, nodes.iter().map(|node| &**node))
    }

    fn workers(&self) -> usize {
        self.config.worker_threads.get() as usize
    }
}
