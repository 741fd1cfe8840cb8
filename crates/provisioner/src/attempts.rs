//! What is known about each claim: one map by claim UID, one lock per claim.

use std::{collections::HashMap, sync::Arc};

use longshore_core::model::Uid;
use longshore_core::provision::attempt::{Attempt, Draft, Event};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// Where the provisioning of every claim stands.
///
/// The controller and a provisioner that keeps records share one of these
/// ([`ProvisionController::shared`](crate::ProvisionController::shared)). What it holds dies with the
/// process; claims about which nothing is known take no room in it.
#[derive(Clone, Default)]
pub struct Attempts {
    claims: Arc<Mutex<HashMap<Uid, Entry>>>,
}

#[derive(Default)]
struct Entry {
    attempt: Attempt,
    /// Failed reconciles in a row.
    failures: u32,
    lock: Arc<tokio::sync::Mutex<()>>,
}

impl Entry {
    fn is_needed(&self) -> bool {
        self.failures > 0 || Arc::strong_count(&self.lock) > 1 || self.attempt != Attempt::default()
    }
}

/// The right to decide over one claim's volume. The controller holds it while it calls
/// [`Provisioner::provision`](crate::Provisioner::provision) and
/// [`Provisioner::saved`](crate::Provisioner::saved).
pub struct ClaimLock {
    attempts: Attempts,
    uid: Uid,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Drop for ClaimLock {
    fn drop(&mut self) {
        self.guard = None;
        self.attempts.change(&self.uid, |_| ());
    }
}

impl Attempts {
    /// Waits until nobody else decides over the claim's volume.
    pub async fn lock(&self, uid: &Uid) -> ClaimLock {
        let mut claim = ClaimLock { attempts: self.clone(), uid: uid.into(), guard: None };
        let lock = self.claims.lock().entry(uid.into()).or_default().lock.clone();
        claim.guard = Some(lock.lock_owned().await);
        claim
    }

    /// Answers a question about a claim's attempt.
    pub fn read<R>(&self, uid: &Uid, question: impl FnOnce(&Attempt) -> R) -> R {
        match self.claims.lock().get(uid) {
            Some(entry) => question(&entry.attempt),
            None => question(&Attempt::default()),
        }
    }

    /// Takes an event in.
    pub fn apply(&self, uid: &Uid, event: Event) {
        self.change(uid, |entry| match std::mem::take(&mut entry.attempt).after(event) {
            Ok(next) => entry.attempt = next,
            Err(misplaced) => {
                debug_assert!(false, "claim {uid}: {misplaced}");
                tracing::error!(claim_uid = uid.as_str(), %misplaced, "the claim's state stays as it is");
                entry.attempt = misplaced.state;
            }
        });
    }

    /// Works with what was seen before a plan was made; nothing of it is kept once there is one.
    pub fn draft<R>(&self, uid: &Uid, work: impl FnOnce(&mut Draft) -> R) -> R {
        self.change(uid, |entry| match entry.attempt.draft() {
            Some(draft) => work(draft),
            None => work(&mut Draft::default()),
        })
    }

    /// The claim is gone: forgets it, unless something is owed for it.
    pub fn forget(&self, uid: &Uid) {
        self.change(uid, |entry| {
            entry.failures = 0;
            if matches!(entry.attempt, Attempt::Idle(_) | Attempt::Resting(_)) {
                entry.attempt = Attempt::default();
            }
        });
    }

    /// Counts a failed reconcile; true once the threshold was reached before it.
    pub(crate) fn failed(&self, uid: &Uid, threshold: u32) -> bool {
        threshold > 0
            && self.change(uid, |entry| {
                let over = entry.failures >= threshold;
                entry.failures += u32::from(!over);
                over
            })
    }

    pub(crate) fn succeeded(&self, uid: &Uid) {
        self.change(uid, |entry| entry.failures = 0);
    }

    /// The claims that rest.
    pub(crate) fn resting(&self) -> Vec<Uid> {
        let claims = self.claims.lock();
        let rest = claims.iter().filter(|(_, entry)| entry.attempt.resting().is_some());
        let mut resting: Vec<Uid> = rest.map(|(uid, _)| uid.clone()).collect();
        // In a fixed order, so that a simulated run can be repeated.
        resting.sort_unstable();
        resting
    }

    fn change<R>(&self, uid: &Uid, change: impl FnOnce(&mut Entry) -> R) -> R {
        let mut claims = self.claims.lock();
        let entry = claims.entry(uid.into()).or_default();
        let result = change(entry);
        if !entry.is_needed() {
            claims.remove(uid);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use longshore_core::provision::attempt::Asker;

    use super::*;

    #[tokio::test]
    async fn a_claim_about_which_nothing_is_known_takes_no_room() {
        let attempts = Attempts::default();
        let known = || attempts.claims.lock().len();
        let (a, b) = (Uid::from("a"), Uid::from("b"));
        let lock = attempts.lock(&a).await;
        let waiting = tokio::spawn({
            let (attempts, a) = (attempts.clone(), a.clone());
            async move { drop(attempts.lock(&a).await) }
        });
        tokio::task::yield_now().await;
        attempts.apply(&a, Event::Kept(Asker::default()));
        attempts.apply(&a, Event::LetGo);
        attempts.succeeded(&b);
        assert_eq!((known(), waiting.is_finished()), (1, false));
        drop(lock);
        waiting.await.unwrap();
        assert_eq!(known(), 0);
    }

    #[test]
    fn what_is_owed_outlives_its_claim() {
        let attempts = Attempts::default();
        let a = Uid::from("a");
        attempts.apply(&a, Event::Kept(Asker::default()));
        attempts.draft(&"b".into(), |draft| draft.contests = 3);
        for uid in ["a", "b"].map(Uid::from) {
            assert!(!attempts.failed(&uid, 1) && attempts.failed(&uid, 1));
            attempts.forget(&uid);
        }
        assert_eq!(attempts.claims.lock().keys().collect::<Vec<_>>(), ["a"]);
        assert!(!attempts.failed(&a, 0) && !attempts.failed(&a, 0), "zero never gives up");
    }
}
