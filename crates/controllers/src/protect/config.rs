//! Settings of the protection loops, and their flags.

use std::num::NonZeroU32;

use longshore_flags::{Gate, Gates, Stage, values};

const UNUSED_SINCE: Gate =
    Gate { name: "PersistentVolumeClaimUnusedSinceTime", default: true, stage: Stage::Stable };

/// Feature gates of the protection loops.
pub const GATES: &[Gate] = &[UNUSED_SINCE];

/// Settings of the protection loops, named as kube-controller-manager names its flags.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Volumes")]
pub struct Config {
    /// Pods whose ephemeral volumes are looked after at once.
    #[arg(long, default_value = "5", value_parser = values::at_least_one, value_name = "N")]
    pub concurrent_ephemeralvolume_syncs: NonZeroU32,
    /// Feature gate `PersistentVolumeClaimUnusedSinceTime`: claims say since when no pod uses them.
    #[arg(skip = UNUSED_SINCE.default)]
    pub unused_condition: bool,
}

impl Default for Config {
    fn default() -> Self {
        longshore_flags::defaults()
    }
}

impl Config {
    /// The same with the feature gates taken into account.
    #[must_use]
    pub fn with(self, gates: &Gates) -> Self {
        Self { unused_condition: gates.on(UNUSED_SINCE.name), ..self }
    }
}
