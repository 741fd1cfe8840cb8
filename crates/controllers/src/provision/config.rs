//! Flags of the provisioner's loop, and the settings that they turn into.

use std::time::Duration;

use longshore_core::provision::PlanSettings;
use longshore_flags::{Gate, Gates, Stage, UsageError, check_backoff, values};

#[cfg(any(test, feature = "planted-bugs"))]
use super::planted::Planted;
use super::{NodeDeployment, NodeScope};

const TOPOLOGY: Gate = Gate { name: "Topology", default: true, stage: Stage::Stable };

/// Claims may name a VolumeAttributesClass. Where the command line does not say, the API server is asked whether it has the kind.
pub const ATTRIBUTES_CLASSES: Gate =
    Gate { name: "VolumeAttributesClass", default: true, stage: Stage::Stable };

const CROSS_NAMESPACE: Gate =
    Gate { name: "CrossNamespaceVolumeDataSource", default: false, stage: Stage::Alpha };

/// A volume that was released before its claim was deleted is deleted as its policy says. csi-provisioner 5 had
/// the gate.
const HONOR_RECLAIM_POLICY: Gate =
    Gate { name: "HonorPVReclaimPolicy", default: true, stage: Stage::Removed };

/// Feature gates of the provisioner.
pub const GATES: &[Gate] = &[TOPOLOGY, ATTRIBUTES_CLASSES, CROSS_NAMESPACE, HONOR_RECLAIM_POLICY];

/// Flags of the provisioner, named as csi-provisioner names them.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Flags {
    /// Longest time one CSI call may take.
    #[arg(long, default_value = "10s", value_parser = values::positive_duration)]
    timeout: Duration,
    /// Prefix of volume names.
    #[arg(long, default_value = "pvc", value_parser = name_prefix)]
    volume_name_prefix: String,
    /// Characters of the claim's UID in volume names; -1 takes the whole UID.
    #[arg(long, default_value = "-1", value_parser = uid_length, allow_hyphen_values = true, value_name = "N")]
    volume_name_uuid_length: UidLength,
    /// First delay after a failure; doubles with every further one.
    #[arg(long, default_value = "1s", value_parser = values::positive_duration)]
    retry_interval_start: Duration,
    /// Longest delay after a failure.
    #[arg(long, default_value = "5m", value_parser = values::positive_duration)]
    retry_interval_max: Duration,
    /// Claims provisioned at once, and as many volumes deleted at once.
    #[arg(long, default_value = "100", value_parser = workers, value_name = "N")]
    worker_threads: usize,
    /// Late binding: ask only for the selected node's topology.
    #[arg(long)]
    strict_topology: bool,
    /// Immediate binding: pass the topology of all nodes to the driver.
    #[arg(long, default_value_t = true)]
    immediate_topology: bool,
    /// Pass names of claim and volume to the driver as parameters.
    #[arg(long)]
    extra_create_metadata: bool,
    /// File system used when the class names none.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TYPE")]
    default_fstype: String,
    /// Mark volumes of read-only claims as read-only for the driver.
    #[arg(long)]
    controller_publish_readonly: bool,
    /// Restored volumes keep the mode of the snapshot's source, unless the content allows a change.
    #[arg(long, default_value_t = true)]
    prevent_volume_mode_conversion: bool,
    /// Deleted claims worked on at once that are kept while they are cloned; 0 lets none go.
    #[arg(long, default_value = "1", value_parser = values::count, value_name = "N")]
    cloning_protection_threads: u32,
    /// Period of the sweep of finalizers that restores left on snapshots; 0 turns it off.
    #[arg(long, default_value = "5m", value_parser = values::duration)]
    snapshot_orphan_sweep_interval: Duration,
    /// Write an intent record before each volume is made, so that a crash leaks none (not in csi-provisioner).
    // The program knows in which namespace, and sets `Config::leak_guard`.
    #[arg(long)]
    pub leak_guard: bool,
    /// Delete no volume that a node still lists in `status.volumesInUse` (not in csi-provisioner). A node that is gone
    /// for good must be deleted, or its volumes stay.
    #[arg(long)]
    check_volumes_in_use: bool,
}

/// A length that may be absent; clap would take the bare type for a flag that may be absent.
type UidLength = Option<usize>;

/// How the provisioner behaves; the defaults are the official program's.
#[derive(Debug, Clone)]
pub struct Config {
    /// Names, filesystem type, metadata.
    pub plan: PlanSettings,
    /// Deadline of one call to the driver.
    pub timeout: Duration,
    pub retry_interval_start: Duration,
    pub retry_interval_max: Duration,
    /// Claims, and volumes, worked on at a time.
    pub worker_threads: usize,
    /// Feature gate `Topology`.
    pub topology: bool,
    /// Late binding: ask for the selected node's place only.
    pub strict_topology: bool,
    /// Immediate binding: ask for all places of the cluster.
    pub immediate_topology: bool,
    /// Feature gate `CrossNamespaceVolumeDataSource`.
    pub cross_namespace: bool,
    /// Claims worked on at a time whose clones keep them from going; zero leaves them all alone.
    pub clone_threads: usize,
    /// How often finalizers are taken off snapshots that nobody restores any more, if at all.
    pub snapshot_sweep: Option<Duration>,
    /// Where intents are kept; `None` switches the leak guard off.
    pub leak_guard: Option<String>,
    /// Delete no volume that a node says it uses. A kubelet lists only what is attached, which its attachment
    /// protects already, and a node that died lists it for ever; our node lists all that it has staged.
    pub check_volumes_in_use: bool,
    /// Answer for one node only.
    pub node: Option<NodeScope>,
    /// Be the provisioner of one node in the official manner: ask the driver where it is, and fight
    /// with the others for claims that name no node.
    pub deployment: Option<NodeDeployment>,
    /// Watch nodes and attachments only if the driver's capabilities call for it. The rights that
    /// were granted to the official program may not cover more.
    pub spare_watches: bool,
    #[cfg(any(test, feature = "planted-bugs"))]
    pub planted: Option<Planted>,
}

impl Default for Config {
    fn default() -> Self {
        let gates = Gates::read(GATES, &[]).expect("the gates' defaults can be read");
        longshore_flags::defaults::<Flags>().config(&gates).expect("the defaults fit together")
    }
}

impl Flags {
    /// Turns the flags into settings.
    ///
    /// # Errors
    /// When two of the flags cannot go together.
    pub fn config(self, gates: &Gates) -> Result<Config, UsageError> {
        let Self {
            timeout,
            volume_name_prefix,
            volume_name_uuid_length,
            retry_interval_start,
            retry_interval_max,
            worker_threads,
            strict_topology,
            immediate_topology,
            extra_create_metadata,
            default_fstype,
            controller_publish_readonly,
            prevent_volume_mode_conversion,
            cloning_protection_threads,
            snapshot_orphan_sweep_interval,
            leak_guard: _,
            check_volumes_in_use,
        } = self;
        check_backoff(retry_interval_start, retry_interval_max)?;
        Ok(Config {
            plan: PlanSettings {
                name_prefix: volume_name_prefix,
                name_uuid_length: volume_name_uuid_length,
                default_fs_type: default_fstype,
                extra_create_metadata,
                publish_read_only: controller_publish_readonly,
                attributes_classes: gates.on(ATTRIBUTES_CLASSES.name),
                guard_volume_mode: prevent_volume_mode_conversion,
            },
            timeout,
            retry_interval_start,
            retry_interval_max,
            worker_threads,
            topology: gates.on(TOPOLOGY.name),
            strict_topology,
            immediate_topology,
            cross_namespace: gates.on(CROSS_NAMESPACE.name),
            clone_threads: cloning_protection_threads as usize,
            snapshot_sweep: Some(snapshot_orphan_sweep_interval).filter(|time| !time.is_zero()),
            leak_guard: None,
            check_volumes_in_use,
            node: None,
            deployment: None,
            spare_watches: false,
            #[cfg(any(test, feature = "planted-bugs"))]
            planted: None,
        })
    }
}

fn name_prefix(text: &str) -> Result<String, String> {
    match text {
        "" => Err("volume name prefix cannot be of length 0".into()),
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

fn workers(text: &str) -> Result<usize, String> {
    values::at_least_one(text).map(|number| number.get() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_official_ones() {
        let config = Config::default();
        assert_eq!(config.plan, PlanSettings::default());
        let delays = (config.retry_interval_start, config.retry_interval_max);
        assert_eq!(delays, (Duration::from_secs(1), Duration::from_secs(300)));
        assert_eq!(config.timeout, Duration::from_secs(10));
        assert_eq!((config.worker_threads, config.clone_threads), (100, 1));
        assert_eq!(config.snapshot_sweep, Some(Duration::from_secs(300)));
        assert!(config.topology && config.immediate_topology && !config.strict_topology);
        assert!(!config.cross_namespace && !config.spare_watches && !config.check_volumes_in_use);
        assert_eq!((config.leak_guard, config.node, config.deployment), (None, None, None));
    }
}
