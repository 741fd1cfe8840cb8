//! Holds: volumes that a pass is writing are hidden from other passes.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use longshore_cluster::WorkQueue;
use longshore_core::model::{ObjectKey, VolumeName};
use parking_lot::Mutex;

use super::Key;

/// Which volumes are being written, and who waits for it.
pub(super) struct Holds {
    queue: WorkQueue<Key>,
    held: Mutex<HashMap<VolumeName, Held>>,
}

struct Held {
    /// The claim that it is being bound to; `None` while the volume's own turn runs.
    promised: Option<ObjectKey>,
    /// In the order of arrival: whoever came first goes on first, and a run can be repeated.
    waiting: Vec<Key>,
}

impl Holds {
    pub(super) fn new(queue: WorkQueue<Key>) -> Self {
        Self { queue, held: Mutex::default() }
    }

    /// Holds a volume for a claim's bind; `None` when its own turn runs, and then the claim is
    /// given another turn after it.
    pub(super) fn promise(
        self: &Arc<Self>,
        volume: &VolumeName,
        claim: &ObjectKey,
    ) -> Option<Hold> {
        self.hold(volume, Some(claim.clone()), Key::Claim(claim.clone()))
    }

    /// Holds a volume for its own turn; `None` when it is being bound, and then it is given
    /// another turn after that.
    pub(super) fn take(self: &Arc<Self>, volume: &VolumeName) -> Option<Hold> {
        self.hold(volume, None, Key::Volume(volume.clone()))
    }

    fn hold(
        self: &Arc<Self>,
        volume: &VolumeName,
        promised: Option<ObjectKey>,
        who: Key,
    ) -> Option<Hold> {
        let mut held = self.held.lock();
        if let Some(holder) = held.get_mut(volume) {
            if !holder.waiting.contains(&who) {
                holder.waiting.push(who);
            }
            return None;
        }
        held.insert(volume.clone(), Held { promised, waiting: Vec::new() });
        Some(Hold { holds: self.clone(), volume: volume.clone() })
    }

    /// Volumes that are being bound to claims other than this one.
    pub(super) fn promised_to_others(&self, claim: &ObjectKey) -> BTreeSet<VolumeName> {
        let held = self.held.lock();
        let other = |held: &Held| held.promised.as_ref().is_some_and(|promised| promised != claim);
        held.iter().filter(|(_, held)| other(held)).map(|(name, _)| name.clone()).collect()
    }
}

/// A held volume. Letting go wakes whoever waits, also when the turn is aborted.
pub(super) struct Hold {
    holds: Arc<Holds>,
    volume: VolumeName,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let released = self.holds.held.lock().remove(&self.volume);
        for key in released.into_iter().flat_map(|held| held.waiting) {
            self.holds.queue.add(key);
        }
    }
}
