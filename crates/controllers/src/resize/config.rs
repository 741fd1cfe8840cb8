//! Settings of the resizer, which are its flags.

use std::{num::NonZeroUsize, time::Duration};

use longshore_core::model::NodeName;
use longshore_core::provision::topology::Term;
use longshore_flags::{Environment, Gate, Gates, Stage, UsageError, check_backoff, values};

/// Record what was asked for, so that an expansion that failed can be given up for a smaller one.
const RECOVER: Gate =
    Gate { name: "RecoverVolumeExpansionFailure", default: true, stage: Stage::Stable };
/// Note on volumes what their claim had before. Alpha and off in csi-resizer 2.2.
const ANNOTATE: Gate = Gate { name: "AnnotateFsResize", default: true, stage: Stage::Beta };
/// Claims may name another VolumeAttributesClass. Where the command line does not say, the API server is asked whether it has the kind.
pub const ATTRIBUTES_CLASSES: Gate =
    Gate { name: "VolumeAttributesClass", default: true, stage: Stage::Stable };

/// Feature gates of the resizer.
pub const GATES: &[Gate] = &[RECOVER, ANNOTATE, ATTRIBUTES_CLASSES];

/// Settings of the resizer, named as csi-resizer names its flags and with its defaults.
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[group(skip)]
pub struct Config {
    /// Longest time one CSI call may take.
    #[arg(long, default_value = "10s", value_parser = values::positive_duration)]
    pub timeout: Duration,
    /// Pause between looks at objects that did not change; 0 is never.
    #[arg(long, default_value = "10m", value_parser = values::duration)]
    pub resync_period: Duration,
    /// Claims expanded at once, and as many modified at once.
    #[arg(long, default_value = "10", value_parser = workers, value_name = "N")]
    pub workers: NonZeroUsize,
    /// First delay after a failure; doubles with every further one.
    #[arg(long, default_value = "1s", value_parser = values::positive_duration)]
    pub retry_interval_start: Duration,
    /// Longest delay after a failure, and the pause after the driver called a change infeasible.
    #[arg(long, default_value = "5m", value_parser = values::positive_duration)]
    pub retry_interval_max: Duration,
    /// After FAILED_PRECONDITION, wait until no pod uses the claim.
    #[arg(long, default_value_t = true)]
    pub handle_volume_inuse_error: bool,
    /// Tell the driver the names of claim and volume when it modifies a volume.
    #[arg(long)]
    pub extra_modify_metadata: bool,
    /// Serve only volumes with a node affinity that fits the node which NODE_NAME names; not in csi-resizer. Give every node its own, without --leader-election.
    #[arg(long)]
    pub node_deployment: bool,
    /// Feature gate `RecoverVolumeExpansionFailure`.
    #[arg(skip = RECOVER.default)]
    pub recovers: bool,
    /// Feature gate `AnnotateFsResize`.
    #[arg(skip = ANNOTATE.default)]
    pub annotates: bool,
    /// Feature gate `VolumeAttributesClass`.
    #[arg(skip = ATTRIBUTES_CLASSES.default)]
    pub modifies: bool,
    /// Pods are watched also beside a driver that only modifies: their end and their start may let a change
    /// of the class through that was refused.
    #[arg(skip)]
    pub pods_wake: bool,
    /// The node whose volumes are served; none is all.
    #[arg(skip)]
    pub node: Option<Node>,
}

/// A node, and where its driver says that it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub name: NodeName,
    pub segments: Term,
}

impl Default for Config {
    fn default() -> Self {
        longshore_flags::defaults()
    }
}

impl Config {
    /// The same with the feature gates taken into account, and the node that `--node-deployment` is
    /// about. Where it is, its driver says.
    ///
    /// # Errors
    /// When two of the flags cannot go together, or nobody says which node this is.
    pub fn with(self, gates: &Gates, environment: &Environment) -> Result<Self, UsageError> {
        check_backoff(self.retry_interval_start, self.retry_interval_max)?;
        let node = match self.node_deployment {
            false => None,
            true => {
                Some(Node { name: environment.deployed_on()?.into(), segments: Term::default() })
            }
        };
        Ok(Self {
            recovers: gates.on(RECOVER.name),
            annotates: gates.on(ANNOTATE.name),
            modifies: gates.on(ATTRIBUTES_CLASSES.name),
            node,
            ..self
        })
    }
}

fn workers(text: &str) -> Result<NonZeroUsize, String> {
    NonZeroUsize::new(values::count(text)? as usize).ok_or_else(|| "at least 1 is needed".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_official_ones() {
        let want = Config {
            timeout: Duration::from_secs(10),
            resync_period: Duration::from_secs(600),
            workers: NonZeroUsize::new(10).expect("ten is not zero"),
            retry_interval_start: Duration::from_secs(1),
            retry_interval_max: Duration::from_secs(300),
            handle_volume_inuse_error: true,
            extra_modify_metadata: false,
            node_deployment: false,
            recovers: true,
            annotates: true,
            modifies: true,
            pods_wake: false,
            node: None,
        };
        assert_eq!(Config::default(), want);
    }
}
