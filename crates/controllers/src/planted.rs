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

/// Gives a `Config` the question whether a bug is planted. Programs lack the field, so there the answer
/// is always no.
macro_rules! plantable {
    ($config:ty, $bug:ty) => {
        impl $config {
            #[cfg_attr(
                not(any(test, feature = "planted-bugs")),
                allow(clippy::unused_self, reason = "no program has the field")
            )]
            pub(super) fn has(&self, bug: $bug) -> bool {
                #[cfg(any(test, feature = "planted-bugs"))]
                return self.planted == Some(bug);
                #[cfg(not(any(test, feature = "planted-bugs")))]
                {
                    let _ = bug;
                    false
                }
            }
        }
    };
}

pub(crate) use plantable;
