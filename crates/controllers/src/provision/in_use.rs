//! Delays the deletion of volumes that a node still has staged.
//!
//! A volume that needs no attaching has no attachment that would hold its deletion up. Its last pod
//! can be gone, and its claim with it, while the node still has it staged. Our node says so in
//! `status.volumesInUse`; other nodes list only what is attached, which has an attachment besides. So only
//! `longshore up` looks there unless `--check-volumes-in-use` asks for it: a kubelet that died lists its volumes for ever.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use longshore_cluster::{Cache, Change, Subscription};
use longshore_core::model::kinds::{CsiSource, Node, Volume};
use longshore_provisioner::Waker;
use tokio::sync::Notify;

/// How long a deletion waits for a node before it goes on, and then fails with the node's name.
const PATIENCE: Duration = Duration::from_secs(10);

/// The index of volumes by the unique name that nodes report.
const BY_UNIQUE_NAME: &str = "csi-handle";

/// Nodes by the unique names of the volumes that they have.
const NODES_BY_VOLUME: &str = "nodes-by-volume-in-use";

/// Gives volumes another look as soon as a node is done with them.
pub(super) fn wake(nodes: &Cache<Node>, volumes: &Cache<Volume>, waker: Waker) -> Subscription {
    volumes.index(BY_UNIQUE_NAME, |volume| {
        let names = volume.spec.csi.iter().map(CsiSource::unique_name);
        names.map(String::from).collect()
    });
    let volumes = volumes.clone();
    nodes.subscribe(move |change| {
        let (before, now) = match change {
            Change::Applied { old: Some(old), new } => (old, new.status.volumes_in_use.as_slice()),
            Change::Applied { old: None, .. } => return,
            Change::Deleted { old } => (old, [].as_slice()),
        };
        let left = before.status.volumes_in_use.iter().filter(|name| !now.contains(name));
        for name in left {
            for volume in volumes.by_index(BY_UNIQUE_NAME, name) {
                waker.look_at_volume(&volume.name());
            }
        }
    })
}

/// What nodes say.
pub(super) struct InUse {
    nodes: Cache<Node>,
    changed: Arc<Notify>,
    _notified: Subscription,
}

impl InUse {
    pub(super) fn follow(nodes: &Cache<Node>) -> Self {
        nodes.index(NODES_BY_VOLUME, |node: &Node| {
            node.status.volumes_in_use.iter().map(String::from).collect()
        });
        let changed = Arc::<Notify>::default();
        let told = changed.clone();
        let notified = nodes.subscribe(move |_| told.notify_waiters());
        Self { nodes: nodes.clone(), changed, _notified: notified }
    }

    pub(super) fn nodes(&self) -> &Cache<Node> {
        &self.nodes
    }

    /// Waits until no node has the volume, but not for ever.
    pub(super) async fn released(&self, volume: &CsiSource) {
        let free = async {
            loop {
                let mut changed = pin!(self.changed.notified());
                // Before the look: a change in between must not be missed.
                changed.as_mut().enable();
                if self.user(volume).is_none() {
                    return;
                }
                changed.await;
            }
        };
        let _ = tokio::time::timeout(PATIENCE, free).await;
    }

    /// A node that has the volume.
    pub(super) fn user(&self, volume: &CsiSource) -> Option<String> {
        let name = volume.unique_name();
        let node = self.nodes.first_by_index(NODES_BY_VOLUME, &name)?;
        Some(node.metadata.name.clone())
    }
}
