//! Volumes that a node is not done with.
//!
//! A volume that needs no attaching has no attachment that would hold its deletion up. Its last pod
//! can be gone, and its claim with it, while the node still has it staged. Our node says so in
//! `status.volumesInUse`; other nodes list only what is attached, which has an attachment besides.

use std::time::Duration;

use longshore_cluster::Cache;
use longshore_core::model::kinds::{CsiSource, Node};
use tokio::sync::watch;

/// How long a deletion waits for a node before it goes on, and then fails with the node's name.
const PATIENCE: Duration = Duration::from_secs(10);

/// What nodes say.
pub(super) struct InUse {
    nodes: Cache<Node>,
    changed: watch::Receiver<()>,
}

impl InUse {
    pub(super) fn follow(nodes: &Cache<Node>) -> Self {
        let (told, changed) = watch::channel(());
        nodes.subscribe(move |_| {
            told.send_replace(());
        });
        Self { nodes: nodes.clone(), changed }
    }

    /// Waits until no node has the volume, but not for ever.
    pub(super) async fn released(&self, volume: &CsiSource) {
        let mut changed = self.changed.clone();
        let free = async {
            while self.user(volume).is_some() {
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(PATIENCE, free).await;
    }

    /// A node that has the volume.
    pub(super) fn user(&self, volume: &CsiSource) -> Option<String> {
        let name = format!("kubernetes.io/csi/{}^{}", volume.driver, volume.volume_handle);
        let uses = |node: &Node| node.status.volumes_in_use.contains(&name);
        self.nodes.list().iter().find(|node| uses(node)).map(|node| node.metadata.name.clone())
    }
}
