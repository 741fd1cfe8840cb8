//! Flag groups that several programs share, each declared once, and what they turn into.
//!
//! Syntax, values and gates are in `longshore-flags`; flags of a loop are in the loop's own crate.

mod csi;
mod diagnostics;
mod election;
mod kube;
mod logging;

pub(crate) use csi::CsiFlags;
pub(crate) use diagnostics::{Diagnostics, DiagnosticsFlags};
pub(crate) use election::{Election, ElectionFlags, ElectionTimes};
pub(crate) use kube::{KubeAccess, KubeFlags, MasterFlag, log_other_kubeconfig};
pub(crate) use logging::{CommonFlags, KlogFlags, LogFormat, Logging};
pub(crate) use longshore_flags::{
    Environment, Gate, Gates, HELP, Normalized, Stage, Throttle, Typed, UsageError, gates_help,
    goify, is_switch, nearest, normalize, typed, values,
};
