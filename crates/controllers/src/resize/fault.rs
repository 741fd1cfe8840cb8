//! Named points between the steps of the resizer, where a test can end the process.

/// What happens at the points of a resizer.
pub type Faults = longshore_files::fault::Faults<Bug>;

/// Every point: of an expansion, then of a modification, each in the order in which it passes them.
pub const POINTS: [&str; 7] = [
    "expand.marked",
    "expand.answered",
    "expand.volume-written",
    "expand.claim-written",
    "modify.marked",
    "modify.answered",
    "modify.volume-written",
];

/// A defect on purpose, to prove that a test would notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The claim is told that it has its size before the driver or the node has said so.
    EarlySuccess,
    /// A claim that went back to the class that it had is left as it is.
    LostRollback,
    /// A new class does not wait for the verdict on the last one.
    TwoClasses,
}
