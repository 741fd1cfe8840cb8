//! Settings, with the defaults of the Go library.

use std::time::Duration;

use longshore_core::model::{Uid, VolumeName};
use longshore_core::provision::name::volume_name;

/// How a controller behaves. Start from [`Config::new`] and change what differs.
#[derive(Debug, Clone)]
pub struct Config {
    /// The provisioner's name, as classes spell it.
    pub name: String,
    /// Further names it answers to.
    pub additional_names: Vec<String>,
    /// How many claims, and how many volumes, are worked on at a time.
    pub threads: usize,
    /// Pauses between attempts.
    pub retry: Retry,
    /// Failed attempts after which a claim is given up; 0 means never.
    pub failed_provision_threshold: u32,
    /// Failed attempts after which a deletion is given up; 0 means never.
    pub failed_delete_threshold: u32,
    /// Protect volumes with a finalizer until their storage is gone.
    pub add_finalizer: bool,
    /// How PersistentVolumes are saved.
    pub save: Save,
    /// How long an infeasible claim rests.
    pub infeasible_pause: Duration,
    /// Bounds one attempt to provision.
    pub provision_timeout: Option<Duration>,
    /// Bounds one attempt to delete.
    pub deletion_timeout: Option<Duration>,
    /// How often everything is looked at again, whether it changed or not.
    pub resync: Duration,
    /// Raw block volumes can be made.
    pub block_volumes: bool,
    /// What volumes are called: this, a dash, and the claim's UID.
    pub volume_name_prefix: String,
    /// Characters of the UID in volume names, dashes left out; all of it when absent.
    pub volume_name_uuid_length: Option<usize>,
}

/// Pauses between attempts: doubling from `start` to `max`. With both alike they are constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// The first pause.
    pub start: Duration,
    /// The longest.
    pub max: Duration,
    /// Retries per second of all claims together, and their burst.
    pub bucket: Option<(f64, u32)>,
}

/// How PersistentVolumes are saved.
///
/// The two ways exclude each other, and the type says so: whoever saves always has no number of
/// attempts to give.
///
/// ```compile_fail
/// // case: provisioner/38
/// let save = longshore_provisioner::Save::Always { count: 5 };
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Save {
    /// A number of attempts; when all fail the storage is removed again, with as many attempts.
    Attempts {
        /// How many.
        count: u32,
        /// The pause between the first two.
        interval: Duration,
        /// Each further pause is this many times the one before.
        factor: f64,
        /// No pause is longer.
        longest: Duration,
    },
    /// Until it works. Nothing is removed: the storage is worth more than the wait.
    Always,
}

impl Save {
    /// A number of attempts with equal pauses.
    #[must_use]
    pub fn attempts(count: u32, interval: Duration) -> Self {
        Self::Attempts { count, interval, factor: 1.0, longest: interval }
    }
}

/// A setting that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("provisioner {name:?}: {field}: {why}")]
pub struct InvalidConfig {
    /// The provisioner's name.
    pub name: String,
    /// The field of [`Config`].
    pub field: &'static str,
    /// What it must be.
    pub why: &'static str,
}

impl Config {
    /// The defaults under a name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            additional_names: Vec::new(),
            threads: 4,
            retry: Retry {
                start: Duration::from_secs(15),
                max: Duration::from_secs(1000),
                bucket: Some((10.0, 100)),
            },
            failed_provision_threshold: 15,
            failed_delete_threshold: 15,
            add_finalizer: false,
            save: Save::attempts(5, Duration::from_secs(10)),
            infeasible_pause: Duration::from_secs(300),
            provision_timeout: None,
            deletion_timeout: None,
            resync: Duration::from_secs(15 * 60),
            block_volumes: false,
            volume_name_prefix: "pvc".into(),
            volume_name_uuid_length: None,
        }
    }

    /// Finds the first setting that makes no sense.
    ///
    /// # Errors
    /// [`InvalidConfig`] names the field.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let wrong = |field, why| Err(InvalidConfig { name: self.name.clone(), field, why });
        if self.names().iter().any(String::is_empty) {
            return wrong("name", "a provisioner needs a name, as classes spell it");
        }
        if self.threads == 0 {
            return wrong("threads", "at least one is needed");
        }
        if self.retry.start > self.retry.max {
            return wrong("retry", "the first pause may not be longer than the longest");
        }
        if self.resync.is_zero() {
            return wrong("resync", "it must be longer than zero");
        }
        match self.save {
            Save::Attempts { count: 0, .. } => wrong("save", "at least one attempt is needed"),
            Save::Attempts { factor, .. } if !factor.is_finite() || factor < 1.0 => {
                wrong("save", "pauses cannot shrink: the factor is at least 1")
            }
            Save::Attempts { .. } | Save::Always => Ok(()),
        }
    }

    /// The name of a claim's volume. One that cannot be made is empty, and the provisioner says why.
    pub(crate) fn volume_name(&self, claim_uid: &Uid) -> VolumeName {
        volume_name(&self.volume_name_prefix, claim_uid, self.volume_name_uuid_length)
            .unwrap_or_default()
    }

    /// All names, the own one first.
    pub(crate) fn names(&self) -> Vec<String> {
        std::iter::once(self.name.clone()).chain(self.additional_names.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_named() {
        assert_eq!(Config::new("a").validate(), Ok(()));
        let second = Duration::from_secs(1);
        type Change = fn(&mut Config);
        let rows: [(&str, Change); 6] = [
            ("name", |config| config.name.clear()),
            ("name", |config| config.additional_names.push(String::new())),
            ("threads", |config| config.threads = 0),
            ("retry", |config| config.retry.start = Duration::from_secs(2000)),
            ("resync", |config| config.resync = Duration::ZERO),
            ("save", |config| config.save = Save::attempts(0, Duration::ZERO)),
        ];
        for (field, change) in rows {
            let mut config = Config::new("a");
            change(&mut config);
            assert_eq!(config.validate().map_err(|error| error.field), Err(field));
        }
        let save = Save::Attempts { count: 2, interval: second, factor: 0.5, longest: second };
        let config = Config { save, ..Config::new("a") };
        assert!(config.validate().is_err_and(|error| error.to_string().contains("at least 1")));
    }
}
