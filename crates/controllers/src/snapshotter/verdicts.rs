//! Which calls of CreateSnapshot have had no verdict so far, and how often the driver has refused since.
//!
//! A refusal usually proves that there is no snapshot. After a call whose answer got lost it may not: the
//! snapshot was taken, and now the driver fails for a reason that has nothing to do with that. With the leak
//! guard such a "no" counts when it is repeated, as for CreateVolume ([`refusal_is_conclusive`]).

use std::collections::HashMap;

use longshore_core::provision::{RefusalView, refusal_is_conclusive};
use parking_lot::Mutex;

/// By the uid of a content without a verdict: refusals in a row since.
#[derive(Default)]
pub(super) struct Verdicts(Mutex<HashMap<String, u32>>);

impl Verdicts {
    /// A call is about to be made. One that is noted was made before, perhaps by an earlier process.
    pub(super) fn begin(&self, uid: &str, is_noted: bool) {
        if is_noted {
            self.0.lock().entry(uid.to_owned()).or_default();
        }
    }

    /// No answer came, or none that says what became of the call.
    pub(super) fn none(&self, uid: &str) {
        self.0.lock().insert(uid.to_owned(), 0);
    }

    /// The driver refused. Whether that proves that it has nothing; then what was known is forgotten.
    pub(super) fn refused(&self, uid: &str, guarded: bool, is_wanted: bool) -> bool {
        let mut open = self.0.lock();
        let refusals = open.get_mut(uid).map(|refusals| {
            *refusals += 1;
            *refusals
        });
        let conclusive = refusal_is_conclusive(RefusalView {
            guarded,
            uncertain: refusals.is_some(),
            refusals: refusals.unwrap_or(1),
            infeasible: false,
            claim_waits: is_wanted,
        });
        if conclusive {
            open.remove(uid);
        }
        conclusive
    }

    /// The driver has it, and the status says so.
    pub(super) fn known(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_no_counts_at_once_unless_an_answer_is_owed() {
        let verdicts = Verdicts::default();
        verdicts.begin("a", false);
        assert!(verdicts.refused("a", true, true));
        // The note of an earlier process, or an answer that got lost in this one.
        for lost in [|one: &Verdicts| one.begin("a", true), |one: &Verdicts| one.none("a")] {
            lost(&verdicts);
            assert_eq!([(); 3].map(|()| verdicts.refused("a", true, true)), [false, false, true]);
            assert!(verdicts.refused("a", true, true), "forgotten");
            lost(&verdicts);
            assert_eq!((1..=10).position(|_| verdicts.refused("a", true, false)), Some(9));
            lost(&verdicts);
            assert!(verdicts.refused("a", false, true), "as upstream, without the guard");
            lost(&verdicts);
            verdicts.refused("a", true, true);
            verdicts.none("a");
            assert!(!verdicts.refused("a", true, true), "counted anew");
            verdicts.known("a");
            assert!(verdicts.refused("a", true, true));
        }
    }
}
