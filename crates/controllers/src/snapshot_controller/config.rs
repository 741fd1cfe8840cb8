//! Settings of the snapshot controller, which are its flags.

use std::{num::NonZeroU32, time::Duration};

use longshore_flags::{Gate, Gates, Stage, UsageError, check_backoff, values};

/// Snapshots of several volumes at one moment. Beta and off in snapshot-controller 8.6.
pub const GROUPS: Gate =
    Gate { name: "CSIVolumeGroupSnapshot", default: true, stage: Stage::Stable };

/// Feature gates of the snapshot controller.
pub const GATES: &[Gate] = &[GROUPS];

/// Settings of the snapshot controller, named as upstream names its flags and with its defaults.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[group(skip)]
pub struct Config {
    /// Pause between looks at objects that did not change; 0 is never.
    #[arg(long, default_value = "15m", value_parser = values::duration)]
    pub resync_period: Duration,
    /// Objects of each kind worked on at once.
    #[arg(long, default_value = "10", value_parser = values::at_least_one, value_name = "N")]
    pub worker_threads: NonZeroU32,
    /// First delay after a failure; doubles with every further one.
    #[arg(long, default_value = "1s", value_parser = values::positive_duration)]
    pub retry_interval_start: Duration,
    /// Longest delay after a failure.
    #[arg(long, default_value = "5m", value_parser = values::positive_duration)]
    pub retry_interval_max: Duration,
    /// Label each content with a node that can reach the volume, for snapshotters with --node-deployment.
    #[arg(long)]
    pub enable_distributed_snapshotting: bool,
    /// Note on contents how their volume is used, so that it is not restored in another way.
    #[arg(long, default_value_t = true)]
    pub prevent_volume_mode_conversion: bool,
    /// Feature gate `CSIVolumeGroupSnapshot`.
    #[arg(skip = GROUPS.default)]
    pub groups: bool,
}

impl Default for Config {
    fn default() -> Self {
        longshore_flags::defaults()
    }
}

impl Config {
    /// The same with the feature gates taken into account.
    ///
    /// # Errors
    /// When two of the flags cannot go together.
    pub fn with(self, gates: &Gates) -> Result<Self, UsageError> {
        check_backoff(self.retry_interval_start, self.retry_interval_max)?;
        Ok(Self { groups: gates.on(GROUPS.name), ..self })
    }
}
