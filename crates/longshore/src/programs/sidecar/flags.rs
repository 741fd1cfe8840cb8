//! Flags that every CSI sidecar has beside those of its loop.

use std::path::PathBuf;

use crate::flags::{
    CommonFlags, CsiFlags, Diagnostics, DiagnosticsFlags, Election, ElectionFlags, Environment,
    Gate, Gates, KlogFlags, KubeAccess, KubeFlags, Logging, Stage, UsageError,
};

/// The lease is given up at the end, so that another process need not wait for it to run out.
pub(crate) const RELEASE_ON_EXIT: &str = "ReleaseLeaderElectionOnExit";

/// Feature gates that every sidecar has.
pub(crate) const GATES: &[Gate] =
    &[Gate { name: RELEASE_ON_EXIT, default: false, stage: Stage::Alpha }];

/// Flags of every sidecar. [`CommonFlags`] and [`CsiFlags`] come before the flags of the loop and these after them,
/// which is their order in the help.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SidecarFlags {
    #[command(flatten)]
    kube: KubeFlags,
    #[command(flatten)]
    election: ElectionFlags,
    #[command(flatten)]
    diagnostics: DiagnosticsFlags,
    #[command(flatten)]
    klog: KlogFlags,
    #[arg(skip = Environment::of_process())]
    pub(crate) environment: Environment,
}

/// What every sidecar runs on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    pub(crate) logging: Logging,
    /// Socket of the driver.
    pub(crate) socket: PathBuf,
    /// Longest logged response; none is no limit.
    pub(crate) log_limit: Option<usize>,
    pub(crate) kube: KubeAccess,
    /// Leader election, if on.
    pub(crate) election: Option<Election>,
    /// Gate `ReleaseLeaderElectionOnExit`.
    pub(crate) release_lease_on_exit: bool,
    /// Metrics and health, if served.
    pub(crate) diagnostics: Option<Diagnostics>,
}

/// Reads `--feature-gates` of a sidecar whose loop has the gates `own`.
///
/// # Errors
/// On a malformed item or an unknown gate.
pub(crate) fn read_gates(own: &[Gate], given: &[String]) -> Result<Gates, UsageError> {
    Gates::read(&[own, GATES].concat(), given)
}

/// Why a program that serves one node takes no lease: all of them would share it, and only one would work.
pub(crate) fn no_lease_per_node(program: &str) -> String {
    format!(
        "--leader-election cannot be used together with --node-deployment: every node has a {program} of its own"
    )
}

impl SidecarFlags {
    /// Checks the flags against each other.
    ///
    /// # Errors
    /// When they cannot be run.
    pub(crate) fn config(
        self,
        common: CommonFlags,
        csi: CsiFlags,
        gates: &Gates,
    ) -> Result<Config, UsageError> {
        let Self { kube, election, diagnostics, klog, environment } = self;
        let CsiFlags { csi_address } = csi;
        let mut logging = Logging::try_from(common)?.with(klog)?;
        logging.notes.extend_from_slice(gates.notes());
        Ok(Config {
            logging,
            socket: csi_address,
            log_limit: None,
            kube: kube.access(None),
            election: election.election(&environment)?,
            release_lease_on_exit: gates.on(RELEASE_ON_EXIT),
            diagnostics: diagnostics.endpoint()?,
        })
    }
}
