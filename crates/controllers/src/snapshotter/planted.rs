//! Bugs on purpose: they show that the simulator would see one. No program has them.

use super::Config;
use crate::planted::plantable;

/// A bug on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// A call without a verdict counts as one that failed.
    ForgetsCalls,
    /// The same with a call for a group.
    ForgetsGroups,
    /// Every attempt asks for a snapshot under a name of its own.
    NewNames,
    /// A content that is deleted is let go without a word to the driver.
    ReleasesEarly,
}

plantable!(Config, Planted);
