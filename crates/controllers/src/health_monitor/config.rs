//! Settings of the health monitor, which are its flags.

use std::{num::NonZeroU32, time::Duration};

use longshore_core::model::NodeName;
use longshore_flags::{Environment, UsageError, values};

/// Settings of the health monitor, named as csi-external-health-monitor-controller names its flags and with its
/// defaults.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[group(skip)]
pub struct Config {
    /// Longest time one CSI call may take, and one list of volume conditions with all its pages.
    #[arg(long, default_value = "15s", value_parser = values::positive_duration)]
    pub timeout: Duration,
    /// Pause between looks at nodes that did not change; 0 is never.
    #[arg(long, default_value = "10m", value_parser = values::duration)]
    pub resync: Duration,
    /// Pause between two questions about a volume; only for drivers that cannot list. For drivers of CSI up to 1.12,
    /// pause of a worker after each volume.
    #[arg(long, default_value = "1m", value_parser = values::positive_duration)]
    pub monitor_interval: Duration,
    /// Pause between two lists of all volumes, or of all that are not healthy.
    #[arg(long, default_value = "5m", value_parser = values::positive_duration)]
    pub list_volumes_interval: Duration,
    /// Pause between looks for volumes that nobody asks about yet; only for drivers of CSI up to 1.12 that cannot list.
    #[arg(long, default_value = "5m", value_parser = values::positive_duration)]
    pub volume_list_add_interval: Duration,
    /// Pause between looks at all nodes.
    #[arg(long, default_value = "5m", value_parser = values::positive_duration)]
    pub node_list_add_interval: Duration,
    /// Volumes asked about, and claims written, at once.
    #[arg(long, default_value = "10", value_parser = values::at_least_one, value_name = "N")]
    pub worker_threads: NonZeroU32,
    /// Also say on claims that the node of their pods failed.
    #[arg(long)]
    pub enable_node_watcher: bool,
    /// Watch only volumes that have the node NODE_NAME in their node affinity: for a driver that knows no others, with
    /// a health monitor on each node.
    #[arg(long)]
    pub node_deployment: bool,
    /// That node.
    #[arg(skip)]
    pub node: Option<NodeName>,
}

impl Config {
    /// Reads the node from the environment, if this monitor is for one.
    ///
    /// # Errors
    /// When nobody says which node this is, or the others are to be watched as well.
    pub fn with(self, environment: &Environment) -> Result<Self, UsageError> {
        if !self.node_deployment {
            return Ok(self);
        }
        if self.enable_node_watcher {
            let why = "--enable-node-watcher cannot be used together with --node-deployment: every node's health monitor would say the same of a node that failed";
            return Err(UsageError::Together(why.to_owned()));
        }
        Ok(Self { node: Some(environment.deployed_on()?.into()), ..self })
    }
}

impl Default for Config {
    fn default() -> Self {
        longshore_flags::defaults()
    }
}
