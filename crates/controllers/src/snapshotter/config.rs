//! Settings of the snapshotter, which are its flags.

use std::{num::NonZeroU32, time::Duration};

use longshore_core::model::{NodeName, keys::labels, kinds::Meta};
use longshore_flags::{Environment, Gates, UsageError, check_backoff, values};

#[cfg(any(test, feature = "planted-bugs"))]
use super::planted::Planted;
pub use crate::snapshot_controller::GATES;
use crate::snapshot_controller::GROUPS;

/// Settings of the snapshotter, named as csi-snapshotter names its flags and with its defaults.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[group(skip)]
pub struct Config {
    /// Longest time one CSI call may take.
    #[arg(long, default_value = "1m", value_parser = values::positive_duration)]
    pub timeout: Duration,
    /// Prefix of the names under which the driver is asked for snapshots.
    #[arg(long, default_value = "snapshot", value_parser = prefix, value_name = "PREFIX")]
    pub snapshot_name_prefix: String,
    /// Characters of the snapshot's UID in that name; -1 takes the whole UID.
    #[arg(long, default_value = "-1", value_parser = uid_length, allow_hyphen_values = true, value_name = "N")]
    pub snapshot_name_uuid_length: UidLength,
    /// Prefix of the names under which the driver is asked for group snapshots.
    #[arg(long, default_value = "groupsnapshot", value_parser = prefix, value_name = "PREFIX")]
    pub groupsnapshot_name_prefix: String,
    /// Characters of the group snapshot's UID in that name; -1 takes the whole UID.
    #[arg(long, default_value = "-1", value_parser = uid_length, allow_hyphen_values = true, value_name = "N")]
    pub groupsnapshot_name_uuid_length: UidLength,
    /// Pause between looks at contents that did not change; 0 is never.
    #[arg(long, default_value = "15m", value_parser = values::duration)]
    pub resync_period: Duration,
    /// Contents worked on at once.
    #[arg(long, default_value = "10", value_parser = values::at_least_one, value_name = "N")]
    pub worker_threads: NonZeroU32,
    /// First delay after a failure, and before a snapshot that is not ready is looked at again; doubles every time.
    #[arg(long, default_value = "1s", value_parser = values::positive_duration)]
    pub retry_interval_start: Duration,
    /// Longest such delay.
    #[arg(long, default_value = "5m", value_parser = values::positive_duration)]
    pub retry_interval_max: Duration,
    /// Pass the names of snapshot and content to the driver as parameters.
    #[arg(long)]
    pub extra_create_metadata: bool,
    /// Serve only contents of the node that NODE_NAME names. Give every node its own, without --leader-election.
    #[arg(long)]
    pub node_deployment: bool,
    /// Keep each content until its snapshot is deleted, from before the driver is asked for it, so that no crash leaks
    /// one (not in csi-snapshotter).
    #[arg(long)]
    pub leak_guard: bool,
    /// Feature gate `CSIVolumeGroupSnapshot`.
    #[arg(skip = GROUPS.default)]
    pub groups: bool,
    /// The node whose contents are served; none is all.
    #[arg(skip)]
    pub scope: Option<NodeScope>,
    #[cfg(any(test, feature = "planted-bugs"))]
    #[arg(skip)]
    pub planted: Option<Planted>,
}

/// The contents that one of several snapshotters of a driver serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeScope {
    /// Those that are labelled with this node.
    pub node: NodeName,
    /// Also those that are labelled with none. Exactly one node may say yes.
    pub unlabelled: bool,
}

impl NodeScope {
    pub(super) fn serves(&self, meta: &Meta) -> bool {
        let label = meta.labels.get(labels::SNAPSHOT_MANAGED_BY);
        label.map_or(self.unlabelled, |node| *node == *self.node)
    }
}

/// A length that may be absent; clap would take the bare type for a flag that may be absent.
type UidLength = Option<usize>;

impl Default for Config {
    fn default() -> Self {
        longshore_flags::defaults()
    }
}

impl Config {
    /// The same with the feature gates taken into account, and the node that `--node-deployment` is about.
    ///
    /// # Errors
    /// When two of the flags cannot go together, or nobody says which node this is.
    pub fn with(self, gates: &Gates, environment: &Environment) -> Result<Self, UsageError> {
        check_backoff(self.retry_interval_start, self.retry_interval_max)?;
        let node = self.node_deployment.then(|| environment.deployed_on()).transpose()?;
        let scope = node.map(|node| NodeScope { node: node.into(), unlabelled: false });
        Ok(Self { groups: gates.on(GROUPS.name), scope, ..self })
    }
}

fn prefix(text: &str) -> Result<String, String> {
    match text {
        "" => Err("snapshot name prefix cannot be of length 0".into()),
        _ => Ok(text.to_owned()),
    }
}

fn uid_length(text: &str) -> Result<UidLength, String> {
    match values::integer(text)? {
        -1 => Ok(None),
        length @ 1..=32 => Ok(Some(length as usize)),
        _ => Err("it is -1, or between 1 and 32, the characters of a UID".into()),
    }
}
