//! What the scheduler has promised and the API does not show yet.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use longshore_core::{
    backoff::Backoff,
    model::{NodeName, ObjectKey, Uid, VolumeName, kinds::Pod},
    schedule::NodePlan,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// A node chosen for a pod, and how far it has come.
#[derive(Debug, Clone)]
pub(super) struct Placement {
    pub(super) node: NodeName,
    pub(super) plan: NodePlan,
    /// The plan is in the API: all that is left is to wait.
    pub(super) written: bool,
    pub(super) deadline: Instant,
}

/// Memory behind a lock that is never held across an await.
#[derive(Default)]
pub(super) struct State {
    inner: Mutex<Inner>,
}

/// What the lock guards. Holding it makes decisions serial.
#[derive(Default)]
pub(super) struct Inner {
    /// Placements under way, by pod, with its UID.
    placing: BTreeMap<ObjectKey, (Uid, Placement)>,
    /// Pods bound to a node that the cache still shows without one: UID and node.
    bound: BTreeMap<ObjectKey, (Uid, NodeName)>,
    /// Pods that fit nowhere and wait for a change.
    waiting: BTreeSet<ObjectKey>,
    /// Pods that pause after a failed placement: until when, and the length.
    paused: HashMap<ObjectKey, (Instant, Duration)>,
}

impl Inner {
    /// Pods that are on their way to a node, by key.
    pub(super) fn heading_to(&self, node: &NodeName) -> Vec<ObjectKey> {
        let placing = self.placing.iter().filter(|(_, (_, one))| one.node == *node);
        let bound = self.bound.iter().filter(|(_, (_, target))| target == node);
        placing.map(|(key, _)| key.clone()).chain(bound.map(|(key, _)| key.clone())).collect()
    }

    /// Every pod that is on its way to some node.
    pub(super) fn on_their_way(&self) -> impl Iterator<Item = &ObjectKey> {
        self.placing.keys().chain(self.bound.keys())
    }

    /// Volumes promised to claims.
    pub(super) fn taken(&self) -> BTreeSet<VolumeName> {
        let plans = self.placing.values().map(|(_, placement)| &placement.plan);
        plans.flat_map(|plan| plan.bind.iter().map(|(_, volume)| volume.clone())).collect()
    }

    pub(super) fn promise(&mut self, pod: &Pod, placement: Placement) {
        let key = pod.metadata.key();
        self.waiting.remove(&key);
        self.placing.insert(key, (pod.metadata.uid.clone(), placement));
    }

    /// Remembers that a pod fits nowhere.
    pub(super) fn wait(&mut self, pod: &Pod) {
        self.waiting.insert(pod.metadata.key());
    }
}

impl State {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// The pod's placement, if one is under way for this very pod.
    pub(super) fn placement(&self, pod: &Pod) -> Option<Placement> {
        let inner = self.inner.lock();
        let (uid, placement) = inner.placing.get(&pod.metadata.key())?;
        (*uid == pod.metadata.uid).then(|| placement.clone())
    }

    /// The plan is in the API.
    pub(super) fn set_written(&self, key: &ObjectKey) {
        if let Some((_, placement)) = self.inner.lock().placing.get_mut(key) {
            placement.written = true;
        }
    }

    /// The pod is bound; the cache shows it soon.
    pub(super) fn set_bound(&self, pod: &Pod, node: &NodeName) {
        let mut inner = self.inner.lock();
        let key = pod.metadata.key();
        inner.placing.remove(&key);
        inner.paused.remove(&key);
        inner.bound.insert(key, (pod.metadata.uid.clone(), node.clone()));
    }

    /// Whether this very pod is bound already, although the cache does not show it.
    pub(super) fn is_bound(&self, pod: &Pod) -> bool {
        let inner = self.inner.lock();
        inner.bound.get(&pod.metadata.key()).is_some_and(|(uid, _)| *uid == pod.metadata.uid)
    }

    /// The pod needs nothing from us any more, or everything anew.
    pub(super) fn forget(&self, key: &ObjectKey) {
        let mut inner = self.inner.lock();
        inner.placing.remove(key);
        inner.bound.remove(key);
        inner.waiting.remove(key);
    }

    /// The pod is gone or placed for good: its pauses start anew for a successor.
    pub(super) fn forget_pause(&self, key: &ObjectKey) {
        self.inner.lock().paused.remove(key);
    }

    /// Pauses a pod, each time twice as long as the last.
    pub(super) fn pause(&self, key: &ObjectKey, backoff: Backoff) {
        let mut inner = self.inner.lock();
        let length = backoff.following(inner.paused.get(key).map(|(_, last)| *last));
        inner.paused.insert(key.clone(), (Instant::now() + length, length));
    }

    /// How long the pod still pauses.
    pub(super) fn pause_left(&self, key: &ObjectKey) -> Option<Duration> {
        let inner = self.inner.lock();
        let (until, _) = inner.paused.get(key)?;
        let left = until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// The pods that fit nowhere, for another look.
    pub(super) fn take_waiting(&self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut self.inner.lock().waiting)
    }
}
