//! Flags: from what was typed to values that cannot be wrong.
//!
//! The official sidecars are Go programs, so their manifests use Go's flag syntax: one dash or two, `--flag=value` or
//! `--flag value`, switches as `--flag` or `--flag=false`. [`normalise`] rewrites such arguments into the one form
//! that clap reads, and [`values`] reads the values as Go does.

mod error;
mod gates;
mod nearest;
mod normalise;
mod shared;
pub mod values;

pub use error::UsageError;
pub use gates::{Gate, Gates, Stage};
pub use nearest::nearest;
pub use normalise::{Normalised, goify, normalise};
pub use shared::{
    CommonFlags, CsiFlags, Diagnostics, DiagnosticsFlags, Election, ElectionFlags, ElectionTimes,
    Environment, KlogFlags, KubeAccess, KubeFlags, LogFormat, Logging, Throttle,
};
