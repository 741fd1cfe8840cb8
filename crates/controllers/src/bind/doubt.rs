//! Patience with caches that are late.
//!
//! Claims and volumes come by two watches. A claim that was made just after its volume can be seen
//! first, and then there seems to be no volume for it. That passes within moments; a warning stays.

use std::{collections::HashMap, time::Duration};

use longshore_core::{bind::Action, model::kinds::Claim};
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long a claim for which nothing is there is left in peace before it is told.
const PATIENCE: Duration = Duration::from_millis(150);

/// Claims for which nothing was there, by UID, and since when.
#[derive(Default)]
pub(super) struct Doubts(Mutex<HashMap<String, Instant>>);

impl Doubts {
    /// How long to wait until `actions`, decided without any volume, may be carried out; `None` when
    /// they may be at once.
    pub(super) fn wait(&self, claim: &Claim, actions: &[Action]) -> Option<Duration> {
        let mut since = self.0.lock();
        if !says_there_is_nothing(actions) {
            since.remove(&claim.metadata.uid);
            return None;
        }
        let first = *since.entry(claim.metadata.uid.clone()).or_insert_with(Instant::now);
        PATIENCE.checked_sub(first.elapsed()).filter(|left| !left.is_zero())
    }

    /// The claim is gone.
    pub(super) fn forget(&self, claim: &Claim) {
        self.0.lock().remove(&claim.metadata.uid);
    }
}

/// The claim would be told that there is neither a volume nor a way to get one.
fn says_there_is_nothing(actions: &[Action]) -> bool {
    actions.iter().any(|action| match action {
        Action::Tell(note) => matches!(note.reason, "FailedBinding" | "ProvisioningFailed"),
        _ => false,
    })
}
