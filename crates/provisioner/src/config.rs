//! Settings, with the defaults of the Go library.

use std::time::Duration;

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
}

/// Pauses between attempts: doubling from `start` to `max`.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Save {
    /// A number of attempts; when all fail the storage is removed again.
    Attempts {
        /// How many.
        count: u32,
        /// The pause between two.
        interval: Duration,
    },
    /// Until it works. Nothing is removed: the storage is worth more than the wait.
    Always,
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
            save: Save::Attempts { count: 5, interval: Duration::from_secs(10) },
            infeasible_pause: Duration::from_secs(300),
            provision_timeout: None,
            deletion_timeout: None,
            resync: Duration::from_secs(15 * 60),
        }
    }

    /// All names, the own one first.
    pub(crate) fn names(&self) -> Vec<String> {
        std::iter::once(self.name.clone()).chain(self.additional_names.iter().cloned()).collect()
    }
}
