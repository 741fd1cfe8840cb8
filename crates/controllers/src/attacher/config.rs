//! Settings of the attacher, which are its flags.

use std::{error::Error, num::NonZeroUsize, time::Duration};

use longshore_flags::{Gate, Gates, Stage, UsageError, check_backoff, values};

/// Write the code of a failed attach into the attachment's status.
const ERROR_CODES: Gate =
    Gate { name: "MutableCSINodeAllocatableCount", default: true, stage: Stage::Stable };

/// Feature gates of the attacher.
pub const GATES: &[Gate] = &[ERROR_CODES];

/// Settings of the attacher, named as csi-attacher names its flags and with its defaults.
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[group(skip)]
pub struct Config {
    /// Longest time one attach or detach call may take.
    // It is also the deadline of one whole list of volumes.
    #[arg(long, default_value = "15s", value_parser = values::positive_duration)]
    pub timeout: Duration,
    /// Pause between looks at objects that did not change; 0 is never.
    #[arg(long, default_value = "10m", value_parser = values::duration)]
    pub resync: Duration,
    /// First delay after a failure; doubles with every further one.
    #[arg(long, default_value = "1s", value_parser = values::positive_duration)]
    pub retry_interval_start: Duration,
    /// Longest delay after a failure.
    #[arg(long, default_value = "5m", value_parser = values::positive_duration)]
    pub retry_interval_max: Duration,
    /// Attachments worked on at once, and as many volumes.
    #[arg(long, default_value = "10", value_parser = workers, value_name = "N")]
    pub worker_threads: NonZeroUsize,
    /// Page size of ListVolumes; 0 leaves it to the driver.
    #[arg(long, default_value = "0", value_parser = page_size, value_name = "N")]
    pub max_entries: i32,
    /// File system passed when the volume names none.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TYPE")]
    pub default_fstype: String,
    /// Pause between comparisons with the driver's list of volumes.
    #[arg(long, default_value = "1m", value_parser = values::positive_duration)]
    pub reconcile_sync: Duration,
    /// Feature gate `MutableCSINodeAllocatableCount`: write the code of a failed attach.
    #[arg(skip = ERROR_CODES.default)]
    pub error_codes: bool,
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
        Ok(Self { error_codes: gates.on(ERROR_CODES.name), ..self })
    }
}

/// csi-attacher refuses zero with exit code 1.
fn workers(text: &str) -> Result<NonZeroUsize, Box<dyn Error + Send + Sync>> {
    NonZeroUsize::new(values::count(text)? as usize).ok_or_else(|| {
        UsageError::AsOfficial("--worker-threads must be greater than zero".into()).into()
    })
}

fn page_size(text: &str) -> Result<i32, String> {
    i32::try_from(values::count(text)?).map_err(|_| "CSI allows at most 2147483647".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_official_ones() {
        let want = Config {
            timeout: Duration::from_secs(15),
            retry_interval_start: Duration::from_secs(1),
            retry_interval_max: Duration::from_secs(300),
            resync: Duration::from_secs(600),
            worker_threads: NonZeroUsize::new(10).expect("ten is not zero"),
            max_entries: 0,
            default_fstype: String::new(),
            reconcile_sync: Duration::from_secs(60),
            error_codes: true,
        };
        assert_eq!(Config::default(), want);
    }
}
