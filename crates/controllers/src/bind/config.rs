//! Settings of the binder, and its flags.

use std::time::Duration;

use longshore_core::bind::{HostPathPlugin, Options};
use longshore_flags::values;

use crate::planted::{Planted, plantable};

/// Flags of the binder, named as kube-controller-manager names them.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Volumes")]
pub struct Flags {
    /// Have volumes made for claims that no existing one fits.
    #[arg(long, default_value_t = true)]
    enable_dynamic_provisioning: bool,
    /// Make and delete directories below /tmp on this machine as volumes, for class provisioner
    /// kubernetes.io/host-path. For tests on one machine only.
    #[arg(long)]
    enable_hostpath_provisioner: bool,
    /// Pause between looks at claims and volumes that did not change.
    #[arg(long, default_value = "15s", value_parser = values::positive_duration)]
    pvclaimbinder_sync_period: Duration,
}

impl From<Flags> for Config {
    fn from(flags: Flags) -> Self {
        let Flags {
            enable_dynamic_provisioning: dynamic_provisioning,
            enable_hostpath_provisioner,
            pvclaimbinder_sync_period: resync,
        } = flags;
        let host_path = match enable_hostpath_provisioner {
            true => HostPathPlugin::Makes,
            false => HostPathPlugin::Deletes,
        };
        let options = Options { dynamic_provisioning, host_path, ..Options::default() };
        Self { options, resync, ..Self::default() }
    }
}

/// How the binder behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub options: Options,
    /// How many turns run side by side.
    pub workers: usize,
    /// How often everything is looked at again, whether it changed or not.
    pub resync: Duration,
    #[cfg(any(test, feature = "planted-bugs"))]
    pub planted: Option<Planted>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            options: Options::default(),
            workers: 16,
            resync: Duration::from_secs(15 * 60),
            #[cfg(any(test, feature = "planted-bugs"))]
            planted: None,
        }
    }
}

plantable!(Config, Planted);
