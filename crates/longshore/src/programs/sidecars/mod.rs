//! `longshore sidecars`, also as `csi-sidecars`: the sidecars of one driver in one process.
//!
//! Each is the very program that it is alone, with its own flags, lease and loops; the process shares the connection to
//! the driver, one cache per kind, the connection for leases and one port.

mod access;
mod board;
mod choice;
mod flags;
mod known;
mod link;
mod members;
mod merge;
mod node;
mod pages;
#[cfg(test)]
mod rights;
mod run;
mod seat;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use flags::Flags;
pub(crate) use table::{Included, Member};

use crate::cli::{Program, Syntax, Threads};
use crate::flags::{Logging, UsageError};
use crate::programs::sidecar;

/// What the process runs on.
pub(crate) struct Config {
    process: sidecar::Config,
    members: Vec<(&'static str, Member)>,
    /// Whose leases they are: no other process of this host has the same.
    identity: String,
}

impl Program for Config {
    const NAME: &'static str = "sidecars";
    const OFFICIAL: &'static [&'static str] = &["csi-sidecars"];
    const SUMMARY: &'static str =
        "Run the sidecars of one CSI driver in one process (as csi-sidecars)";
    const EXAMPLES: &'static str = "longshore sidecars --csi-address=/run/csi/socket --controllers=*,-snapshotter --leader-election --timeout=30s";
    const SYNTAX: Syntax = Syntax::Merged(merge::merge);
    const CHECKS_BEFORE_VERSION: bool = true;
    const THREADS: Threads = Threads::Two;
    const RBAC: &'static [&'static str] = &[
        "rbac/sidecars.yaml",
        "rbac/leader-election.yaml",
        "rbac/leak-guard.yaml",
        "rbac/capacity.yaml",
    ];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        members::read(flags)
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.process.logging)
    }

    async fn run(self) -> anyhow::Result<()> {
        run::run(self).await
    }
}
