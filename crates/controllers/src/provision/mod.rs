//! Provisions and deletes volumes through a CSI driver.
//!
//! [`longshore_core::provision`] decides, [`longshore_provisioner`] drives, and this module calls the
//! driver: `planning` from claim to plan, `create` from plan to volume. Where each claim stands is in one map, shared with the library
//! ([`longshore_core::provision::attempt`] says what may follow on what).
//!
//! The leak guard (`guard`): before CreateVolume goes out, the whole call is written down as an
//! *intent* (a ConfigMap, with secrets by reference only), and the intent is deleted when the volume
//! is saved or the driver has refused for good. Whatever happens in between, the intent is there: a
//! later attempt repeats the very same call, and an intent whose claim has gone is repeated to a
//! verdict and the volume deleted (`resolve`).

mod call;
mod clones;
mod config;
mod create;
mod distributed;
mod fill;
mod guard;
mod identity;
mod in_use;
mod make;
mod node_flags;
mod places;
mod planning;
mod planted;
mod resolve;
mod sweep;

use std::{sync::Arc, time::Duration};

use longshore_cluster::{Api, Cache, Context, Recorder, Scope, Subscription};
use longshore_core::{
    backoff::Backoff,
    model::{
        NodeName,
        keys::annotations,
        kinds::{
            Claim, ConfigMap, CsiNode, Node, ReferenceGrant, StorageClass, Volume, VolumeAttachment,
        },
    },
    provision::{migration, topology::Term},
};
use longshore_csi::Client;
use longshore_provisioner::{Attempts, Config as LibraryConfig, ProvisionController, Retry, Save};
use tokio_util::sync::CancellationToken;

pub use config::{ATTRIBUTES_CLASSES, Config, Flags, GATES};
pub use distributed::NodeDeployment;
use guard::Intents;
pub use guard::{INTENT_KIND, intent_name};
use make::CsiProvisioner;
pub use node_flags::NodeFlags;
#[cfg(feature = "planted-bugs")]
pub use planted::Planted;
#[cfg(not(feature = "planted-bugs"))]
use planted::Planted;

use crate::Driver;
use crate::capacity::{self, CapacityPublisher, Places};

/// How long an infeasible claim rests at least. As in the official program a shorter limit on the
/// delay after other failures does not change it.
const INFEASIBLE_PAUSE: Duration = Duration::from_secs(300);

/// What the provisioner works with.
#[derive(Clone)]
pub struct Parts {
    pub api: Api,
    pub csi: Client,
    pub claims: Cache<Claim>,
    pub volumes: Cache<Volume>,
    pub classes: Cache<StorageClass>,
    /// Nodes and what they know of drivers; needed only for drivers with topology.
    pub nodes: Option<(Cache<Node>, Cache<CsiNode>)>,
    /// Attachments; needed only for drivers that attach.
    pub attachments: Option<Cache<VolumeAttachment>>,
    /// Grants for sources of other namespaces; needed only with that feature.
    pub grants: Option<Cache<ReferenceGrant>>,
    /// Where the three above come from, once it is known what the driver can do.
    pub context: Context,
    pub recorder: Recorder,
    /// Publish how much room there is.
    pub capacity: Option<CapacityParts>,
}

/// What publishing capacity needs besides.
#[derive(Clone)]
pub struct CapacityParts {
    pub config: capacity::Config,
    pub api: Api,
    /// The only place that this driver knows about; without it, wherever nodes say that it runs.
    pub place: Option<Term>,
}

impl Parts {
    /// What a provisioner needs, from what all loops of the process share. Its events come from
    /// `component`.
    #[must_use]
    pub fn new(context: &Context, csi: Client, component: &str) -> Self {
        Self {
            api: context.api.clone(),
            csi,
            claims: context.cache(),
            volumes: context.cache(),
            classes: context.cache(),
            nodes: None,
            attachments: None,
            grants: None,
            context: context.clone(),
            recorder: context.recorder(component),
            capacity: None,
        }
    }
}

/// One node of several, each of which has its own instance of a driver and a provisioner beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeScope {
    /// Only claims that were placed on this node are answered, and only its volumes deleted.
    pub node: NodeName,
    /// Also answer claims for which no node was chosen. Exactly one node may say yes.
    pub unplaced: bool,
}

impl NodeScope {
    fn answers(&self, claim: &Claim) -> bool {
        match claim.metadata.annotation(annotations::SELECTED_NODE) {
            Some(node) if !node.is_empty() => self.node == node,
            _ => self.unplaced,
        }
    }
}

/// Waits for the driver, asks it who it is, and provisions until `shutdown`.
///
/// A driver that cannot be asked is asked again, with growing pauses. Aborting this anywhere is
/// safe with the leak guard on.
pub async fn run(config: Config, parts: Parts, shutdown: CancellationToken) {
    let pause = config.retry_interval_start;
    let driver = Driver::describe_with_retries(&parts.csi, config.timeout, pause, &shutdown);
    let Some(driver) = driver.await else { return };
    CsiController::new(config, parts, driver).run(shutdown).await;
}

/// The provisioner for one driver, whose name and capabilities are known.
pub struct CsiController {
    config: Config,
    parts: Parts,
    driver: Driver,
}

impl CsiController {
    /// A provisioner that does nothing until [`Self::run`].
    #[must_use]
    pub fn new(config: Config, mut parts: Parts, driver: Driver) -> Self {
        let all = !config.spare_watches;
        let can = driver.capabilities;
        let places = (config.topology && can.topology) || parts.capacity.is_some();
        if all || config.node.is_some() || (places && config.deployment.is_none()) {
            parts.nodes = Some((parts.context.cache(), parts.context.cache()));
        }
        if all || can.publish {
            parts.attachments = Some(parts.context.cache());
        }
        if config.cross_namespace {
            parts.grants = Some(parts.context.cache());
        }
        Self { config, parts, driver }
    }

    pub async fn run(self, shutdown: CancellationToken) {
        let Self { config, parts, driver } = self;
        // Ends the watch of the intents in whatever way this future ends.
        let stop = shutdown.child_token();
        let _stopped = stop.clone().drop_guard();
        let guarded = config.leak_guard.as_ref().filter(|_| !config.has(Planted::Leak));
        let deployed = config.deployment.as_ref().map(|deployment| &deployment.node);
        let node = config.node.as_ref().map(|scope| &scope.node).or(deployed);
        let intents = match guarded {
            None => None,
            Some(namespace) => {
                let pauses = Backoff::new(config.retry_interval_start, config.retry_interval_max);
                let cluster = identity::of_cluster(&parts.api, pauses);
                let Some(cluster) = stop.run_until_cancelled(cluster).await else { return };
                let ours = Scope::labels(guard::selector(&driver.name, node));
                let scope = Scope { namespace: Some(namespace.clone()), ..ours };
                let (records, _) = Cache::<ConfigMap>::start(&parts.api, scope, &stop);
                let (api, recorder) = (parts.api.clone(), parts.recorder.clone());
                Some(Intents::new(api, records, namespace, &driver.name, node, cluster, recorder))
            }
        };
        let library = library_config(&config, &driver);
        let publisher = publisher(&config, &parts, &driver.name);
        let waker = publisher.as_ref().map(CapacityPublisher::waker);
        let attempts = Attempts::default();
        let provisioner =
            CsiProvisioner::new(config, parts, driver, intents, attempts.clone(), waker);
        let provisioner = Arc::new(provisioner);
        if shutdown.run_until_cancelled(provisioner.wait_for_caches()).await.is_none() {
            return;
        }
        let parts = &provisioner.parts;
        let _forgets = forget_deleted_claims(&parts.claims, attempts.clone());
        #[cfg(any(test, feature = "planted-bugs"))]
        let _planted = planted::delete_early(&provisioner);
        let recorder = parts.recorder.clone();
        let controller = ProvisionController::shared(
            library,
            &parts.context,
            recorder,
            provisioner.clone(),
            attempts,
        );
        let _detached = parts.attachments.as_ref().map(|attachments| {
            // A volume that was still attached can go as soon as its last attachment has.
            let waker = controller.waker();
            attachments.subscribe(move |change| {
                let gone = change.deleted().map(|old| &old.spec.source.persistent_volume_name);
                gone.into_iter().flatten().for_each(|volume| waker.look_at_volume(volume));
            })
        });
        let in_use = provisioner.in_use.as_ref();
        let _released =
            in_use.map(|in_use| in_use::wake(in_use.nodes(), &parts.volumes, controller.waker()));
        let publishing = async {
            if let Some(publisher) = publisher {
                publisher.run(shutdown.clone()).await;
            }
        };
        tokio::join!(
            controller.run(shutdown.clone()),
            resolve::run(provisioner.clone(), shutdown.clone()),
            clones::run(provisioner.clone(), shutdown.clone()),
            sweep::run(provisioner, shutdown.clone()),
            publishing,
        );
    }
}

/// Forgets a deleted claim for which nothing is owed.
fn forget_deleted_claims(claims: &Cache<Claim>, attempts: Attempts) -> Subscription {
    claims.subscribe(move |change| {
        change.deleted().into_iter().for_each(|old| attempts.forget(&old.metadata.uid));
    })
}

fn publisher(config: &Config, parts: &Parts, driver: &str) -> Option<CapacityPublisher> {
    let wanted = parts.capacity.clone()?;
    let deployed = || config.deployment.as_ref().map(|deployment| deployment.segments.clone());
    let places = match (wanted.place.or_else(deployed), &parts.nodes) {
        (Some(place), _) => Places::Fixed(place),
        (None, Some((nodes, csi_nodes))) => Places::Watched(nodes.clone(), csi_nodes.clone()),
        (None, None) => return None,
    };
    let context = parts.context.with_api(wanted.api);
    Some(CapacityPublisher::new(wanted.config, &context, &parts.csi, places, driver))
}

fn library_config(config: &Config, driver: &Driver) -> LibraryConfig {
    LibraryConfig {
        threads: config.worker_threads,
        retry: Retry {
            start: config.retry_interval_start,
            max: config.retry_interval_max,
            bucket: None,
        },
        failed_provision_threshold: 0,
        failed_delete_threshold: 0,
        add_finalizer: !config.has(Planted::NoFinalizer),
        save: Save::Always,
        infeasible_pause: config.retry_interval_max.max(INFEASIBLE_PAUSE),
        additional_names: Vec::from_iter(migration::plugin_of(&driver.name).map(String::from)),
        block_volumes: true,
        volume_name_prefix: config.plan.name_prefix.clone(),
        volume_name_uuid_length: config.plan.name_uuid_length,
        ..LibraryConfig::new(driver.name.clone())
    }
}

#[cfg(test)]
mod burst_tests;
#[cfg(test)]
mod guard_tests;
#[cfg(test)]
mod node_tests;
#[cfg(test)]
mod place_tests;
#[cfg(test)]
mod secret_tests;
#[cfg(test)]
mod source_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod throttle_tests;
#[cfg(test)]
mod uncertain_tests;
