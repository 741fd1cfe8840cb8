//! What the controller remembers between two looks. Nothing here is needed after a crash: a
//! provisioner that must not lose track of storage keeps its own record (see
//! [`Provisioner::saved`](crate::Provisioner::saved)).

use std::{collections::HashMap, sync::Arc, time::Duration};

use longshore_core::model::kinds::{Claim, StorageClass};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use crate::Request;

/// A claim whose storage may be on its way, kept because the claim may be deleted meanwhile.
#[derive(Clone)]
pub(crate) struct Begun {
    pub(crate) claim: Arc<Claim>,
    pub(crate) class: Arc<StorageClass>,
}

/// A volume that was made and could not be saved yet.
#[derive(Clone)]
pub(crate) struct Unsaved {
    pub(crate) volume: Value,
    pub(crate) request: Request,
}

struct Rest {
    since: Instant,
    class_uid: String,
}

#[derive(Default)]
pub(crate) struct Memory {
    begun: Mutex<HashMap<String, Begun>>,
    resting: Mutex<HashMap<String, Rest>>,
    unsaved: Mutex<HashMap<String, Unsaved>>,
    /// Volumes, by UID, whose storage is gone while their object lingers: asked once is enough.
    /// The value says whether the deletion was counted.
    emptied: Mutex<HashMap<String, bool>>,
    claim_failures: Mutex<HashMap<String, u32>>,
    volume_failures: Mutex<HashMap<String, u32>>,
}

impl Memory {
    pub(crate) fn begun(&self, uid: &str) -> Option<Begun> {
        self.begun.lock().get(uid).cloned()
    }

    pub(crate) fn begin(&self, uid: &str, begun: Begun) {
        self.begun.lock().insert(uid.into(), begun);
    }

    pub(crate) fn settle(&self, uid: &str) {
        self.begun.lock().remove(uid);
    }

    /// Puts an infeasible claim to rest; a rest that is under way is not prolonged.
    pub(crate) fn rest(&self, uid: &str, class_uid: &str) {
        let rest = || Rest { since: Instant::now(), class_uid: class_uid.into() };
        self.resting.lock().entry(uid.into()).or_insert_with(rest);
    }

    /// How much longer a claim rests. A class made anew ends the rest: it may say something else.
    pub(crate) fn rests_for(
        &self,
        uid: &str,
        class_uid: Option<&str>,
        pause: Duration,
    ) -> Option<Duration> {
        let mut resting = self.resting.lock();
        let rest = resting.get(uid)?;
        let left = pause.saturating_sub(rest.since.elapsed());
        match class_uid {
            None => None,
            Some(now) if now != rest.class_uid || left.is_zero() => {
                resting.remove(uid);
                None
            }
            Some(_) => Some(left),
        }
    }

    pub(crate) fn resting(&self) -> Vec<String> {
        self.resting.lock().keys().cloned().collect()
    }

    pub(crate) fn wake(&self, uid: &str) {
        self.resting.lock().remove(uid);
    }

    pub(crate) fn keep_unsaved(&self, name: &str, unsaved: Unsaved) {
        self.unsaved.lock().insert(name.into(), unsaved);
    }

    pub(crate) fn unsaved(&self, name: &str) -> Option<Unsaved> {
        self.unsaved.lock().get(name).cloned()
    }

    pub(crate) fn drop_unsaved(&self, name: &str) {
        self.unsaved.lock().remove(name);
    }

    pub(crate) fn mark_emptied(&self, uid: &str) {
        self.emptied.lock().insert(uid.into(), false);
    }

    pub(crate) fn is_emptied(&self, uid: &str) -> bool {
        self.emptied.lock().contains_key(uid)
    }

    /// Whether this deletion is still to be counted; true once.
    pub(crate) fn count_deletion(&self, uid: &str) -> bool {
        self.emptied.lock().get_mut(uid).is_some_and(|counted| !std::mem::replace(counted, true))
    }

    pub(crate) fn forget_volume(&self, name: &str, uid: &str) {
        self.emptied.lock().remove(uid);
        self.volume_failures.lock().remove(name);
    }

    /// Counts a failure; true once the threshold was reached before it.
    pub(crate) fn claim_failed(&self, uid: &str, threshold: u32) -> bool {
        count(&self.claim_failures, uid, threshold)
    }

    pub(crate) fn claim_done(&self, uid: &str) {
        self.claim_failures.lock().remove(uid);
    }

    pub(crate) fn volume_failed(&self, name: &str, threshold: u32) -> bool {
        count(&self.volume_failures, name, threshold)
    }

    pub(crate) fn volume_done(&self, name: &str) {
        self.volume_failures.lock().remove(name);
    }
}

fn count(failures: &Mutex<HashMap<String, u32>>, key: &str, threshold: u32) -> bool {
    if threshold == 0 {
        return false;
    }
    let mut failures = failures.lock();
    let count = failures.entry(key.into()).or_default();
    if *count >= threshold {
        return true;
    }
    *count += 1;
    false
}
