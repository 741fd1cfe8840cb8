//! Whether a driver's "no" proves that there is no volume.
//!
//! Usually it does. After a call without a verdict it may not: the volume was made, the answer got
//! lost, and now the driver fails for a reason that has nothing to do with that. The protocol has no
//! way to ask for a volume by its name, so the same call is repeated: a driver that has the volume
//! says so as soon as it can.

/// How often a driver must say "no" in a row while a claim waits for the outcome.
const WHILE_A_CLAIM_WAITS: u32 = 3;
/// The same when the claim is gone. Nobody waits, so there is no hurry: with pauses that double, ten
/// times are some minutes.
const WHEN_NOBODY_WAITS: u32 = 10;

/// A refusal of CreateVolume, and what came before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusalView {
    /// Whether an earlier call for the same volume has had no verdict.
    pub in_doubt: bool,
    /// How often the driver has said "no" in a row since then, this time included.
    pub refusals: u32,
    /// Whether it said that the request can never succeed.
    pub infeasible: bool,
    /// Whether a claim still waits for the volume.
    pub claim_waits: bool,
}

/// Whether the refusal proves that nothing was made.
#[must_use]
pub fn proves_nothing_made(view: RefusalView) -> bool {
    let RefusalView { in_doubt, refusals, infeasible, claim_waits } = view;
    match (in_doubt, claim_waits) {
        (false, _) => true,
        // What can never succeed has not. The claim shall ask anew, as its class may have been
        // corrected meanwhile.
        (true, true) if infeasible => true,
        (true, true) => refusals >= WHILE_A_CLAIM_WAITS,
        (true, false) => refusals >= WHEN_NOBODY_WAITS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_no_is_believed_at_once_unless_there_is_doubt() {
        // doubt, refusals, infeasible, claim waits: believed
        for (in_doubt, refusals, infeasible, claim_waits, believed) in [
            (false, 1, false, true, true),
            (false, 1, true, true, true),
            (false, 1, false, false, true),
            (true, 1, false, true, false),
            (true, 2, false, true, false),
            (true, 3, false, true, true),
            (true, 4, false, true, true),
            (true, 1, true, true, true),
            (true, 1, false, false, false),
            (true, 3, false, false, false),
            (true, 9, false, false, false),
            (true, 10, false, false, true),
            (true, 1, true, false, false),
            (true, 10, true, false, true),
        ] {
            let view = RefusalView { in_doubt, refusals, infeasible, claim_waits };
            assert_eq!(proves_nothing_made(view), believed, "{view:?}");
        }
    }
}
