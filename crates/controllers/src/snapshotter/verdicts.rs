//! Which calls of CreateSnapshot have had no verdict so far, and how often the driver has refused since.
//!
//! A refusal usually proves that there is no snapshot. After a call whose answer got lost it may not: the
//! snapshot was taken, and now the driver fails for a reason that has nothing to do with that. With the leak
//! guard such a "no" counts when it is repeated, as for CreateVolume ([`refusal_is_conclusive`]).

use std::collections::HashMap;

use longshore_core::provision::{RefusalView, refusal_is_conclusive};
use parking_lot::Mutex;

/// By the uid of a content without a verdict.
#[derive(Default)]
pub(super) struct Verdicts(Mutex<HashMap<String, Doubt>>);

#[derive(Debug, Clone, Copy, Default)]
struct Doubt {
    /// Refusals in a row since.
    refusals: u32,
    /// A row of refusals ended without a verdict: the next one begins, with short pauses.
    begins_anew: bool,
}

impl Verdicts {
    /// A call is about to be made. One that is noted was made before, perhaps by an earlier process.
    pub(super) fn begin(&self, uid: &str, is_noted: bool) {
        if is_noted {
            self.0.lock().entry(uid.to_owned()).or_default();
        }
    }

    /// No answer came, or none that says what became of the call.
    pub(super) fn none(&self, uid: &str) {
        let mut open = self.0.lock();
        let doubt = open.entry(uid.to_owned()).or_default();
        *doubt = Doubt { refusals: 0, begins_anew: doubt.refusals > 0 };
    }

    /// Whether a row of refusals was cut short; says so once. Its pauses have grown long by then, and ten more of
    /// them would take an hour.
    pub(super) fn begins_anew(&self, uid: &str) -> bool {
        let mut open = self.0.lock();
        open.get_mut(uid).is_some_and(|doubt| std::mem::take(&mut doubt.begins_anew))
    }

    /// The driver refused. Whether that proves that it has nothing; then what was known is forgotten.
    pub(super) fn refused(&self, uid: &str, guarded: bool, is_wanted: bool) -> bool {
        let mut open = self.0.lock();
        let refusals = open.get_mut(uid).map(|doubt| {
            doubt.refusals += 1;
            doubt.refusals
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
            assert_eq!([(); 2].map(|()| verdicts.begins_anew("a")), [true, false]);
            assert!(!verdicts.refused("a", true, true), "counted anew");
            verdicts.known("a");
            assert!(verdicts.refused("a", true, true));
        }
    }
}
