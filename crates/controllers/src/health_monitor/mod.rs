//! The health monitor of one driver: asks it about the condition of its volumes, and says on claims what is wrong.
//!
//! [`longshore_core::health`] decides what is said. A driver that lists volumes is asked for all of them at once; another
//! one volume by volume, a few of them in each interval. A failed call says nothing about a volume.

mod conditions;
mod config;
mod nodes;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use longshore_cluster::{Cache, Context, Recorder, Scope};
use longshore_core::{
    health::{self, Condition, RECOVERED, Report},
    model::{
        ObjectKey,
        kinds::{Claim, Event, Volume},
    },
};
use longshore_csi::{
    Client, CsiError,
    capabilities::{ControllerCapability, PluginService},
    client::DriverNameError,
    v1,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::config::Config;

/// How long the driver may take to say what it can do, all calls together.
const ASK: Duration = Duration::from_secs(1);
/// Reason of the event on a claim whose volume has an abnormal condition.
const ABNORMAL: &str = "VolumeConditionAbnormal";
/// Finds the warnings about a claim by its UID.
const BY_CLAIM: &str = "health-monitor: claim";

/// Why there is no work for a health monitor beside this driver.
#[derive(Debug, thiserror::Error)]
pub enum AbilitiesError {
    #[error("error getting CSI driver name: {0}")]
    Name(#[from] DriverNameError),
    #[error("error determining what the driver reports of its volumes: {0}")]
    Call(#[from] CsiError),
    #[error("CSI driver {0} does not support Plugin Controller Service")]
    NoController(String),
    #[error(
        "CSI driver {0} does not support VOLUME_CONDITION; it reports no condition of its volumes"
    )]
    NoCondition(String),
    #[error(
        "CSI driver {0} supports neither LIST_VOLUMES nor GET_VOLUME, so it cannot be asked about its volumes"
    )]
    NoCall(String),
}

/// A driver, and how it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abilities {
    driver: String,
    lists: bool,
}

impl Abilities {
    /// Asks the driver.
    ///
    /// # Errors
    /// When it does not answer within a second, or reports no conditions.
    pub async fn ask(csi: &Client) -> Result<Self, AbilitiesError> {
        let csi = csi.with_deadline(Instant::now() + ASK);
        let driver = csi.driver_name().await?;
        if !csi.has_service(PluginService::ControllerService).await? {
            return Err(AbilitiesError::NoController(driver));
        }
        let able = csi.controller_capabilities().await?;
        if !able.has(ControllerCapability::VolumeCondition) {
            return Err(AbilitiesError::NoCondition(driver));
        }
        let lists = able.has(ControllerCapability::ListVolumes);
        if !lists && !able.has(ControllerCapability::GetVolume) {
            return Err(AbilitiesError::NoCall(driver));
        }
        Ok(Self { driver, lists })
    }
}

/// The health monitor of one driver.
pub struct HealthMonitor {
    context: Context,
    driver: Client,
    config: Config,
}

impl HealthMonitor {
    /// A health monitor that does nothing until [`Self::run`].
    #[must_use]
    pub fn new(context: &Context, driver: Client, config: Config) -> Self {
        Self { context: context.clone(), driver, config }
    }

    /// Runs until `shutdown` is cancelled; calls in flight are finished then.
    pub async fn run(self, abilities: Abilities, shutdown: CancellationToken) {
        let lists = abilities.lists;
        let monitor = Arc::new(self.into_monitor(abilities.driver, &shutdown));
        let volumes = async {
            if lists {
                conditions::list(&monitor, &shutdown).await;
            } else {
                conditions::get(&monitor, &shutdown).await;
            }
        };
        let nodes = async {
            if monitor.config.enable_node_watcher {
                nodes::watch(&monitor, &shutdown).await;
            }
        };
        tokio::join!(volumes, nodes);
    }

    fn into_monitor(self, driver: String, shutdown: &CancellationToken) -> Monitor {
        let Self { context, driver: csi, config } = self;
        // Of all the events of a cluster these few alone.
        let scope = Scope::fields(format!("type=Warning,reason={ABNORMAL}"));
        let warnings: Cache<Event> = Cache::start(&context.api, scope, shutdown).0;
        warnings.index(BY_CLAIM, |event| vec![event.involved_object.uid.to_string()]);
        Monitor {
            volumes: context.cache(),
            claims: context.cache(),
            warnings,
            recorder: context.recorder(&format!("csi-pv-monitor-controller-{driver}")),
            csi: csi.with_timeout(Some(config.timeout)),
            driver,
            context,
            config,
        }
    }
}

/// The health monitor at work.
struct Monitor {
    driver: String,
    context: Context,
    csi: Client,
    config: Config,
    volumes: Cache<Volume>,
    claims: Cache<Claim>,
    /// Warnings of abnormal conditions that have not expired. It is not waited for: without the right to watch events
    /// nothing is said of recoveries.
    warnings: Cache<Event>,
    recorder: Recorder,
}

impl Monitor {
    /// Says on the volume's claim what the driver says of the volume.
    fn report(&self, volume: &Volume, condition: Option<&Condition>) {
        let Some(claim) = volume.spec.claim_ref.as_ref() else { return };
        let key = ObjectKey::new(&claim.namespace, &claim.name);
        let Some(claim) = self.claims.get(&key) else {
            tracing::debug!(claim = %key, volume = volume.metadata.name, "the volume's claim is not there");
            return;
        };
        let warned = self.warnings.has_indexed(BY_CLAIM, claim.metadata.uid.as_ref());
        match health::report(condition, warned) {
            Report::Nothing => {}
            Report::Abnormal(message) => self.recorder.warning(claim.as_ref(), ABNORMAL, message),
            Report::Recovered => {
                self.recorder.normal(claim.as_ref(), "VolumeConditionNormal", RECOVERED)
            }
        }
    }
}

/// The driver's word in the terms of the rules.
fn condition(seen: Option<v1::VolumeCondition>) -> Option<Condition> {
    seen.map(|v1::VolumeCondition { abnormal, message }| Condition { abnormal, message })
}
