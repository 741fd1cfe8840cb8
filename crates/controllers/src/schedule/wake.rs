//! Which change brings which pods back.

use std::sync::{Arc, Weak};

use longshore_cluster::Change;
use longshore_core::model::{
    ObjectKey,
    kinds::{Claim, CsiNode, Node, Pod, Volume, VolumeAttachment},
};

use super::{Worker, waits_for_us};
use crate::index::pods_of_claim;

impl Worker {
    /// Follows every cache. The subscriptions do not keep the scheduler alive.
    pub(super) fn subscribe(self: &Arc<Self>) {
        let caches = &self.caches;
        caches.nodes.subscribe(self.listener(Self::node_changed));
        caches.classes.subscribe(self.listener(|worker, _| worker.wake_waiting()));
        caches.drivers.subscribe(self.listener(|worker, _| worker.wake_waiting()));
        caches.capacities.subscribe(self.listener(|worker, _| worker.wake_waiting()));
        caches.csi_nodes.subscribe(self.listener(Self::csi_node_changed));
        caches.volumes.subscribe(self.listener(Self::volume_changed));
        caches.claims.subscribe(self.listener(Self::claim_changed));
        caches.attachments.subscribe(self.listener(Self::attachment_changed));
        caches.pods.subscribe(self.listener(Self::pod_changed));
    }

    fn listener<T: 'static>(
        self: &Arc<Self>,
        listen: fn(&Self, &Change<T>),
    ) -> impl FnMut(&Change<T>) + Send + use<T> {
        let worker: Weak<Self> = Arc::downgrade(self);
        move |change| {
            if let Some(worker) = worker.upgrade() {
                listen(&worker, change);
            }
        }
    }

    /// Something changed that may make room for a pod that fits nowhere.
    fn wake_waiting(&self) {
        for key in self.state.take_waiting() {
            self.queue.add(key);
        }
    }

    fn pod_changed(&self, change: &Change<Pod>) {
        match change {
            Change::Applied { old, new } if waits_for_us(new) => {
                // What we write into its status is no reason to look at it again.
                let news = old
                    .as_ref()
                    .is_none_or(|old| old.spec != new.spec || old.metadata.uid != new.metadata.uid);
                if news {
                    self.queue.add(new.metadata.key());
                }
            }
            Change::Applied { old, new } => {
                self.settle(&new.metadata.key());
                let ended = new.finished() && old.as_ref().is_some_and(|old| !old.finished());
                if ended {
                    self.wake_waiting();
                }
            }
            Change::Deleted { old } => {
                self.settle(&old.metadata.key());
                self.wake_waiting();
            }
        }
    }

    /// The pod is placed or gone: nothing is promised any more.
    fn settle(&self, key: &ObjectKey) {
        self.state.forget(key);
        self.state.forget_pause(key);
    }

    fn claim_changed(&self, change: &Change<Claim>) {
        self.wake_pods_of(&change.object().metadata.key());
    }

    fn wake_pods_of(&self, claim: &ObjectKey) {
        for pod in pods_of_claim(&self.caches.pods, claim) {
            if waits_for_us(&pod) {
                self.queue.add(pod.metadata.key());
            }
        }
    }

    fn volume_changed(&self, change: &Change<Volume>) {
        let volume = change.object();
        match &volume.spec.claim_ref {
            Some(claim) => self.wake_pods_of(&ObjectKey::new(&claim.namespace, &claim.name)),
            None => self.wake_waiting(),
        }
    }

    fn node_changed(&self, change: &Change<Node>) {
        let relevant = match change {
            Change::Applied { old: Some(old), new } => {
                old.metadata.labels != new.metadata.labels
                    || old.spec != new.spec
                    || old.ready() != new.ready()
            }
            Change::Applied { old: None, .. } | Change::Deleted { .. } => true,
        };
        if !relevant {
            return;
        }
        let name = &change.object().metadata.name;
        let coming = self.state.lock().heading_to(name);
        for key in coming {
            self.queue.add(key);
        }
        self.wake_waiting();
    }

    fn csi_node_changed(&self, change: &Change<CsiNode>) {
        let same =
            matches!(change, Change::Applied { old: Some(old), new } if old.spec == new.spec);
        if !same {
            self.wake_waiting();
        }
    }

    fn attachment_changed(&self, change: &Change<VolumeAttachment>) {
        if matches!(change, Change::Deleted { .. }) {
            self.wake_waiting();
        }
    }
}
