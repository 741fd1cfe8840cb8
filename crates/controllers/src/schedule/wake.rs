//! Decides which pods a change enqueues.

use longshore_cluster::{Change, Outcome, Reconciler, Sources, Subject};
use longshore_core::model::{
    ObjectKey,
    kinds::{CsiNode, Node, Pod, Volume, VolumeAttachment},
};

use super::{Scheduler, waits_for_us};
use crate::index::pods_of_claim;

impl Reconciler for Scheduler {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources
            .on(&self.nodes, Self::node_changed)
            .on(&self.classes, |this, _| this.take_waiting())
            .on(&self.drivers, |this, _| this.take_waiting())
            .on(&self.capacities, |this, _| this.take_waiting())
            .on(&self.csi_nodes, Self::csi_node_changed)
            .on(&self.volumes, Self::volume_changed)
            .on(&self.claims, |this, change| this.pods_of(&change.object().metadata.key()))
            .on(&self.attachments, Self::attachment_changed)
            .on(&self.pods, Self::pod_changed);
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::pod(key)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        self.pass(key).await
    }
}

impl Scheduler {
    /// The pods that fitted nowhere: something changed that may make room for them.
    fn take_waiting(&self) -> Vec<ObjectKey> {
        self.state.take_waiting().into_iter().collect()
    }

    fn pod_changed(&self, change: &Change<Pod>) -> Vec<ObjectKey> {
        match change {
            Change::Applied { old, new } if waits_for_us(new) => {
                // What we write into its status is no reason to look at it again.
                let news = old
                    .as_ref()
                    .is_none_or(|old| old.spec != new.spec || old.metadata.uid != new.metadata.uid);
                news.then(|| new.metadata.key()).into_iter().collect()
            }
            Change::Applied { old, new } => {
                self.settle(&new.metadata.key());
                let ended = new.finished() && old.as_ref().is_some_and(|old| !old.finished());
                if ended { self.take_waiting() } else { Vec::new() }
            }
            Change::Deleted { old } => {
                self.settle(&old.metadata.key());
                self.take_waiting()
            }
        }
    }

    /// The pod is placed or gone: nothing is promised any more.
    fn settle(&self, key: &ObjectKey) {
        self.state.forget(key);
        self.state.forget_pause(key);
    }

    /// The pods of a claim that are to be placed.
    fn pods_of(&self, claim: &ObjectKey) -> Vec<ObjectKey> {
        let pods = pods_of_claim(&self.pods, claim).into_iter();
        pods.filter(|pod| waits_for_us(pod)).map(|pod| pod.metadata.key()).collect()
    }

    fn volume_changed(&self, change: &Change<Volume>) -> Vec<ObjectKey> {
        match &change.object().spec.claim_ref {
            Some(claim) => self.pods_of(&ObjectKey::new(&claim.namespace, &claim.name)),
            None => self.take_waiting(),
        }
    }

    fn node_changed(&self, change: &Change<Node>) -> Vec<ObjectKey> {
        let relevant = match change {
            Change::Applied { old: Some(old), new } => {
                old.metadata.labels != new.metadata.labels
                    || old.spec != new.spec
                    || old.ready() != new.ready()
                    || old.status.allocatable != new.status.allocatable
            }
            Change::Applied { old: None, .. } | Change::Deleted { .. } => true,
        };
        if !relevant {
            return Vec::new();
        }
        let coming = self.state.lock().heading_to(&change.object().name());
        coming.into_iter().chain(self.take_waiting()).collect()
    }

    fn csi_node_changed(&self, change: &Change<CsiNode>) -> Vec<ObjectKey> {
        match change {
            Change::Applied { old: Some(old), new } if old.spec == new.spec => Vec::new(),
            _ => self.take_waiting(),
        }
    }

    fn attachment_changed(&self, change: &Change<VolumeAttachment>) -> Vec<ObjectKey> {
        change.deleted().map(|_| self.take_waiting()).unwrap_or_default()
    }
}
