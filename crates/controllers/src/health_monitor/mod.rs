//! The health monitor of one driver: asks it about the health of its volumes, and says on claims what is wrong.
//!
//! [`longshore_core::health`] decides what is said. A driver that can list is asked about all volumes at once; another
//! one volume by volume, a few at a time. A failed call says nothing about a volume.
//!
//! A driver of CSI 1.3 to 1.12 gives volumes a condition, which becomes an event (`conditions`). One of CSI 1.13 has
//! calls for health (`reports`), and what it reports is kept in the status of the claim (`claims`) and is an event when
//! it begins and when it ends. Never both: one fault would be told twice.

mod claims;
mod conditions;
mod config;
#[cfg(test)]
mod health_tests;
mod metrics;
mod nodes;
mod reports;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use longshore_cluster::{Cache, Context, Reconciler, Recorder, Scope, Sources};
use longshore_core::{
    health::{self, Condition, RECOVERED, Report},
    model::{
        NodeName, ObjectKey,
        kinds::{Claim, Event, Node, Volume},
    },
};
use longshore_csi::{
    Client, CsiError, HealthSource,
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
/// Reason of the event when nothing is wrong with it any more.
const NORMAL: &str = "VolumeConditionNormal";
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
        "CSI driver {0} does not support VOLUME_CONDITION, nor GET_VOLUME_HEALTH or LIST_VOLUME_HEALTH; it reports nothing of the health of its volumes"
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
    source: HealthSource,
}

impl Abilities {
    /// Asks the driver.
    ///
    /// # Errors
    /// When it does not answer within a second, or reports nothing of the health of volumes.
    pub async fn ask(csi: &Client) -> Result<Self, AbilitiesError> {
        let csi = csi.with_deadline(Instant::now() + ASK);
        let driver = csi.driver_name().await?;
        if !csi.has_service(PluginService::ControllerService).await? {
            return Err(AbilitiesError::NoController(driver));
        }
        let able = csi.controller_capabilities().await?;
        match HealthSource::of(&able) {
            HealthSource::None if able.has(ControllerCapability::VolumeCondition) => {
                Err(AbilitiesError::NoCall(driver))
            }
            HealthSource::None => Err(AbilitiesError::NoCondition(driver)),
            source => Ok(Self { driver, source }),
        }
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
        let source = abilities.source;
        let monitor = Arc::new(self.into_monitor(abilities, &shutdown));
        let volumes = async {
            match source {
                HealthSource::HealthList { confirm } => {
                    reports::list(&monitor, confirm, &shutdown).await;
                }
                HealthSource::HealthGet => reports::get(&monitor, &shutdown).await,
                HealthSource::ConditionList => conditions::list(&monitor, &shutdown).await,
                HealthSource::ConditionGet => conditions::get(&monitor, &shutdown).await,
                // Such abilities cannot be had.
                HealthSource::None => {}
            }
        };
        let nodes = async {
            if monitor.config.enable_node_watcher {
                nodes::watch(&monitor, &shutdown).await;
            }
        };
        tokio::join!(volumes, nodes);
    }

    fn into_monitor(self, abilities: Abilities, shutdown: &CancellationToken) -> Monitor {
        let Self { context, driver: csi, config } = self;
        let Abilities { driver, source } = abilities;
        let warnings = || {
            // Of all the events of a cluster these few alone.
            let scope = Scope::fields(format!("type=Warning,reason={ABNORMAL}"));
            let warnings: Cache<Event> = Cache::start(&context.api, scope, shutdown).0;
            warnings.index(BY_CLAIM, |event| vec![event.involved_object.uid.to_string()]);
            warnings
        };
        let told_again = matches!(source, HealthSource::ConditionList | HealthSource::ConditionGet);
        let node = config.node.clone().map(|name| {
            let scope = Scope::fields(format!("metadata.name={name}"));
            OwnNode { cache: Cache::start(&context.api, scope, shutdown).0, name }
        });
        Monitor {
            volumes: context.cache(),
            claims: context.cache(),
            warnings: told_again.then(warnings),
            node,
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
    /// Warnings of abnormal conditions that have not expired, where nothing else tells that one was said. They are not
    /// waited for: without the right to watch events nothing is said of recoveries.
    warnings: Option<Cache<Event>>,
    /// The only node whose volumes are watched, in a deployment with a monitor on each node.
    node: Option<OwnNode>,
    recorder: Recorder,
}

struct OwnNode {
    name: NodeName,
    /// It alone.
    cache: Cache<Node>,
}

impl Monitor {
    /// The driver's handle of a volume that this monitor watches.
    ///
    /// A driver that knows only the volumes of its own node has nothing to say of others, nor of one that could be
    /// anywhere: that it does not know such a volume means nothing.
    fn handle_of<'a>(&self, volume: &'a Volume) -> Option<&'a str> {
        let handle = health::handle_of(volume, &self.driver)?;
        let Some(OwnNode { name, cache }) = &self.node else { return Some(handle) };
        let node = cache.get(&ObjectKey::cluster(name.as_str()))?;
        let places = volume.spec.node_affinity.required.as_ref()?;
        places.matches(name, &node.metadata.labels).then_some(handle)
    }

    /// Waits for what [`Self::handle_of`] looks at, beside the volume.
    fn needs_node<R: Reconciler>(&self, sources: &mut Sources<R>) {
        if let Some(node) = &self.node {
            sources.needs(&node.cache);
        }
    }

    /// Says on the volume's claim what the driver says of the volume.
    fn report(&self, volume: &Volume, condition: Option<&Condition>) {
        let Some(claim) = volume.spec.claim_ref.as_ref() else { return };
        let key = ObjectKey::new(&claim.namespace, &claim.name);
        let Some(claim) = self.claims.get(&key) else {
            tracing::debug!(claim = %key, volume = volume.metadata.name, "the volume's claim is not there");
            return;
        };
        let uid = claim.metadata.uid.as_ref();
        let warned = self.warnings.as_ref().is_some_and(|all| all.has_indexed(BY_CLAIM, uid));
        match health::report(condition, warned) {
            Report::Nothing => {}
            Report::Abnormal(message) => self.recorder.warning(claim.as_ref(), ABNORMAL, message),
            Report::Recovered => self.recorder.normal(claim.as_ref(), NORMAL, RECOVERED),
        }
    }
}

/// The driver's word in the terms of the rules.
fn condition(seen: Option<v1::VolumeCondition>) -> Option<Condition> {
    seen.map(|v1::VolumeCondition { abnormal, message }| Condition { abnormal, message })
}
