//! Bugs on purpose in the binder and in what attaches. They show that the simulator would see one; no
//! program has them.

/// A bug on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// The binder does not ask who has a volume.
    TwoClaims,
    /// The binder does not see a volume that it has begun to bind.
    TwoVolumes,
    /// The binder takes a claim that is being deleted for gone.
    EarlyReclaim,
    /// The binder never tries again what has failed.
    GivesUp,
    /// The attach-detach controller does not ask who has a volume.
    DoubleAttach,
    /// The attach-detach controller does not ask whether a volume is mounted.
    EarlyDetach,
    /// The attach-detach controller does not look, at its start, for what an earlier one has begun.
    ForgetsAttachments,
}
