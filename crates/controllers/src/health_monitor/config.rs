//! Settings of the health monitor, which are its flags.

use std::{num::NonZeroU32, time::Duration};

use longshore_flags::values;

/// Settings of the health monitor, named as csi-external-health-monitor-controller names its flags and with its
/// defaults.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[group(skip)]
pub struct Config {
    /// Longest time one CSI call may take, and one list with all its pages.
    #[arg(long, default_value = "15s", value_parser = values::positive_duration)]
    pub timeout: Duration,
    /// Pause between looks at nodes that did not change; 0 is never.
    #[arg(long, default_value = "10m", value_parser = values::duration)]
    pub resync: Duration,
    /// Pause of a worker after each volume that it asked about; only for drivers that cannot list volumes.
    #[arg(long, default_value = "1m", value_parser = values::positive_duration)]
    pub monitor_interval: Duration,
    /// Pause between two lists of all volumes.
    #[arg(long, default_value = "5m", value_parser = values::positive_duration)]
    pub list_volumes_interval: Duration,
    /// Pause between looks for volumes that nobody asks about yet; only for drivers that cannot list volumes.
    #[arg(long, default_value = "5m", value_parser = values::positive_duration)]
    pub volume_list_add_interval: Duration,
    /// Pause between looks at all nodes.
    #[arg(long, default_value = "5m", value_parser = values::positive_duration)]
    pub node_list_add_interval: Duration,
    /// Volumes asked about at once; only for drivers that cannot list volumes.
    #[arg(long, default_value = "10", value_parser = values::at_least_one, value_name = "N")]
    pub worker_threads: NonZeroU32,
    /// Also say on claims that the node of their pods failed.
    #[arg(long)]
    pub enable_node_watcher: bool,
}

impl Default for Config {
    fn default() -> Self {
        longshore_flags::defaults()
    }
}
