//! Whether a driver's refusal of CreateVolume proves that there is no volume.
//!
//! Usually it does. After a call without a verdict it may not: the volume was made, the response got
//! lost, and now the driver fails for a reason that has nothing to do with that. The protocol has no
//! way to ask for a volume by its name, so the same call is repeated: a driver that has the volume
//! returns it as soon as it can.

/// Refusals in a row that are conclusive while a claim waits for the volume.
const WHILE_A_CLAIM_WAITS: u32 = 3;
/// Refusals in a row that are conclusive when the claim is gone. There is no hurry then: with pauses
/// that double, ten refusals take some minutes.
const AFTER_THE_CLAIM: u32 = 10;

/// A refusal of CreateVolume, and what came before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusalView {
    /// The call is in an intent record, so somebody repeats it whatever happens.
    pub guarded: bool,
    /// An earlier call for the same volume has had no verdict.
    pub uncertain: bool,
    /// Refusals in a row since then, this one included.
    pub refusals: u32,
    /// The driver said that the request can never succeed.
    pub infeasible: bool,
    /// A claim still waits for the volume.
    pub claim_waits: bool,
}

/// Whether the refusal proves that no volume exists.
#[must_use]
pub fn refusal_is_conclusive(view: RefusalView) -> bool {
    let RefusalView { guarded, uncertain, refusals, infeasible, claim_waits } = view;
    match (guarded && uncertain, claim_waits) {
        // Without the leak guard every refusal counts, as upstream has it.
        (false, _) => true,
        // What can never succeed has not. The claim shall be planned anew, as its class may have
        // been corrected meanwhile.
        (true, true) if infeasible => true,
        (true, true) => refusals >= WHILE_A_CLAIM_WAITS,
        (true, false) => refusals >= AFTER_THE_CLAIM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_conclusive_at_once_unless_an_earlier_call_had_no_verdict() {
        // uncertain, refusals, infeasible, claim waits: conclusive
        for (uncertain, refusals, infeasible, claim_waits, conclusive) in [
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
            let view = RefusalView { guarded: true, uncertain, refusals, infeasible, claim_waits };
            assert_eq!(refusal_is_conclusive(view), conclusive, "{view:?}");
            assert!(refusal_is_conclusive(RefusalView { guarded: false, ..view }), "{view:?}");
        }
    }
}
