//! Flag groups that several programs share, each declared once, and what they turn into.
//!
//! Syntax, values and gates are in `longshore-flags`; flags of a loop are in the loop's own crate.

mod shared;

pub(crate) use longshore_flags::{
    Gate, Gates, Stage, UsageError, goify, nearest, normalise, values,
};
pub(crate) use shared::{
    CommonFlags, CsiFlags, Diagnostics, DiagnosticsFlags, Election, ElectionFlags, ElectionTimes,
    Environment, KlogFlags, KubeAccess, KubeFlags, LogFormat, Logging, Throttle,
};
