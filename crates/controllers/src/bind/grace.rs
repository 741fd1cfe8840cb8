//! Grace periods: events about missing volumes wait for caches that are late.
//!
//! Claims and volumes come by two watches. A claim that was made just after its volume can be seen
//! first, and then there seems to be no volume for it. That passes within moments; a warning stays.

use std::{collections::HashMap, time::Duration};

use longshore_core::{
    bind::Action,
    model::{Uid, kinds::Claim},
};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Grace period before a claim without a match gets an event.
const GRACE_PERIOD: Duration = Duration::from_millis(150);

/// Claims without a match, by UID, and since when.
#[derive(Default)]
pub(super) struct GracePeriods(Mutex<HashMap<Uid, Instant>>);

impl GracePeriods {
    /// How long to wait until `actions`, decided without any volume, may be carried out; `None` when
    /// they may be at once.
    pub(super) fn wait(&self, claim: &Claim, actions: &[Action]) -> Option<Duration> {
        let mut since = self.0.lock();
        if !says_there_is_nothing(actions) {
            since.remove(&claim.metadata.uid);
            return None;
        }
        let first = *since.entry(claim.metadata.uid.clone()).or_insert_with(Instant::now);
        GRACE_PERIOD.checked_sub(first.elapsed()).filter(|left| !left.is_zero())
    }

    /// The claim is gone.
    pub(super) fn forget(&self, claim: &Claim) {
        self.0.lock().remove(&claim.metadata.uid);
    }
}

/// Whether the claim would get an event that no volume matches and none can be provisioned.
fn says_there_is_nothing(actions: &[Action]) -> bool {
    actions.iter().any(|action| match action {
        Action::Event(note) => matches!(note.reason, "FailedBinding" | "ProvisioningFailed"),
        _ => false,
    })
}
