//! What the resizer remembers about claims: nothing that a restart may not lose.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use longshore_core::model::Uid;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

/// What is remembered about one claim. Keyed by UID: a claim of the same name starts anew.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The driver's last answer to an expansion was a final error.
    pub(super) refused: bool,
    /// The driver expands this volume only while nobody uses it.
    pub(super) only_offline: bool,
    /// When the driver called the expansion infeasible.
    pub(super) size_infeasible: Option<Instant>,
    /// When the driver called the class infeasible.
    pub(super) class_infeasible: Option<Instant>,
    /// Of the last ControllerModifyVolume there is no verdict, or none that was recorded.
    pub(super) modify_uncertain: bool,
    lock: Arc<tokio::sync::Mutex<()>>,
}

impl Marks {
    fn is_needed(&self) -> bool {
        let Self {
            refused,
            only_offline,
            size_infeasible,
            class_infeasible,
            modify_uncertain,
            lock,
        } = self;
        *refused
            || *only_offline
            || *modify_uncertain
            || size_infeasible.is_some()
            || class_infeasible.is_some()
            || Arc::strong_count(lock) > 1
    }
}

/// One map by claim UID. Claims about which nothing is known take no room in it.
#[derive(Default)]
pub(super) struct Memory {
    claims: Mutex<HashMap<Uid, Marks>>,
}

impl Memory {
    /// Reads or changes what is remembered.
    pub(super) fn with<R>(&self, uid: &Uid, work: impl FnOnce(&mut Marks) -> R) -> R {
        let mut claims = self.claims.lock();
        let marks = claims.entry(uid.clone()).or_default();
        let result = work(marks);
        if !marks.is_needed() {
            claims.remove(uid);
        }
        result
    }

    /// Waits until nobody else writes this claim's status: expansion and modification decide side by
    /// side, and neither shall lose its write to the other.
    pub(super) async fn lock(&self, uid: &Uid) -> OwnedMutexGuard<()> {
        let lock = self.claims.lock().entry(uid.clone()).or_default().lock.clone();
        lock.lock_owned().await
    }

    /// After a pass: drops what says nothing, and all of a claim that was deleted during the pass.
    pub(super) fn tidy(&self, uid: &Uid, gone: bool) {
        let mut claims = self.claims.lock();
        if claims.get(uid).is_some_and(|marks| gone || !marks.is_needed()) {
            claims.remove(uid);
        }
    }

    /// The claim is gone.
    pub(super) fn forget(&self, uid: &Uid) {
        self.claims.lock().remove(uid);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.claims.lock().len()
    }
}

/// How long an infeasible change still rests; none when it may be tried.
pub(super) fn rest(since: Option<Instant>, retention: Duration) -> Option<Duration> {
    let left = (since? + retention).saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}
