//! What the controller remembers about volumes between two reconciles.

use std::collections::HashMap;

use longshore_core::model::{Uid, VolumeName};
use parking_lot::Mutex;

#[derive(Default)]
pub(crate) struct Memory {
    /// Volumes, by UID, whose storage is gone while their object lingers: asked once is enough.
    /// The value says whether the deletion was counted.
    emptied: Mutex<HashMap<Uid, bool>>,
    /// Failed reconciles in a row, by name.
    failures: Mutex<HashMap<VolumeName, u32>>,
}

impl Memory {
    pub(crate) fn mark_emptied(&self, uid: &Uid) {
        self.emptied.lock().insert(uid.into(), false);
    }

    pub(crate) fn is_emptied(&self, uid: &Uid) -> bool {
        self.emptied.lock().contains_key(uid)
    }

    /// Whether this deletion is still to be counted; true once.
    pub(crate) fn count_deletion(&self, uid: &Uid) -> bool {
        self.emptied.lock().get_mut(uid).is_some_and(|counted| !std::mem::replace(counted, true))
    }

    pub(crate) fn forget_volume(&self, name: &VolumeName, uid: &Uid) {
        self.emptied.lock().remove(uid);
        self.failures.lock().remove(name);
    }

    /// Counts a failure; true once the threshold was reached before it.
    pub(crate) fn volume_failed(&self, name: &VolumeName, threshold: u32) -> bool {
        let mut failures = self.failures.lock();
        let count = failures.entry(name.into()).or_default();
        *count = count.saturating_add(1);
        threshold > 0 && *count > threshold
    }

    pub(crate) fn volume_done(&self, name: &VolumeName) {
        self.failures.lock().remove(name);
    }
}
