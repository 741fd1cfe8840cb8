//! What a failed call says about a mount.

/// What is known of one mount, of a device (stage) or of a pod (publish).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Mounted {
    /// Certainly not there.
    #[default]
    No,
    /// A call was sent and no verdict came back, or an earlier life of this process left it.
    Unknown,
    /// Certainly there.
    Yes,
}

/// How much a failure tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The driver said no: nothing was done.
    Final,
    /// No verdict: it may have happened, it may happen yet.
    Uncertain,
    /// The driver was not asked.
    Transient,
}

/// The state after a failed mount.
#[must_use]
pub fn after_failure(state: Mounted, failure: Failure, reconstructed: bool) -> Mounted {
    match (failure, state) {
        // A mount found on disk is never forgotten on a "no" to mounting it once more.
        (Failure::Final, Mounted::Unknown) if !reconstructed => Mounted::No,
        (Failure::Uncertain, Mounted::No) => Mounted::Unknown,
        (Failure::Final | Failure::Uncertain | Failure::Transient, state) => state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Failure::*;
    use Mounted::*;

    #[test]
    fn states_after_a_failure() {
        for (case, state, failure, reconstructed, expected) in [
            ("case: node/N7", No, Uncertain, false, Unknown),
            ("case: node/N55", Unknown, Uncertain, false, Unknown),
            ("case: node/N56", Unknown, Final, false, No),
            ("case: node/N57", Yes, Final, false, Yes),
            ("mounted, uncertain", Yes, Uncertain, false, Yes),
            ("not mounted, final", No, Final, false, No),
            ("not asked", No, Transient, false, No),
            ("not asked, unknown", Unknown, Transient, false, Unknown),
            ("reconstructed, final", Unknown, Final, true, Unknown),
        ] {
            assert_eq!(after_failure(state, failure, reconstructed), expected, "{case}");
        }
    }
}
