//! The resizer: lets volumes of one driver grow, and gives them another VolumeAttributesClass.
//!
//! [`longshore_core::resize`] holds the rules. Expansion and modification are loops of their own, so
//! that a claim that asks for both gets both at once; what they write to one claim they write one after
//! the other.

mod claims;
mod config;
mod error;
mod expand;
pub mod fault;
mod memory;
mod modify;
mod request;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_failures;
#[cfg(test)]
mod tests_of_lives;
#[cfg(test)]
mod tests_of_requests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use longshore_cluster::{Api, Cache, Context, Recorder};
use longshore_core::{
    model::{
        ObjectKey,
        keys::manifest,
        kinds::{Claim, Pod, Volume, VolumeAttributesClass},
    },
    resize::{is_of, target},
};
use longshore_csi::{
    Client, CsiError,
    capabilities::{ControllerCapability, NodeCapability, PluginService},
    client::DriverNameError,
};
use tokio_util::sync::CancellationToken;

pub use self::config::{ATTRIBUTES_CLASSES, Config, GATES, Node};
use self::{expand::Expansions, fault::Faults, memory::Memory, modify::Modifications};
use crate::index::{index_pods, pods_of_claim};

/// Who expands the driver's volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expander {
    /// ControllerExpandVolume, and then perhaps nodes.
    Controller,
    /// Nodes alone.
    Nodes,
    Nobody,
}

/// A driver, and what of the resizer's work it can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abilities {
    pub driver: String,
    pub expander: Expander,
    pub modifies: bool,
    /// The parameters that the driver can change, if it says which: then a class that leaves one out
    /// brings it back to the driver's default.
    pub mutable: Vec<String>,
}

/// Why there is no work for a resizer beside this driver.
#[derive(Debug, thiserror::Error)]
pub enum AbilitiesError {
    #[error("error getting CSI driver name: {0}")]
    Name(#[from] DriverNameError),
    #[error("failed to check what the CSI driver supports: {0}")]
    Call(#[from] CsiError),
    #[error("CSI driver {0} neither supports controller service nor resize or modify")]
    NoController(String),
    #[error("CSI driver does not support resize nor modify")]
    Neither,
}

impl Abilities {
    /// Asks the driver; `timeout` is the deadline of each call.
    ///
    /// # Errors
    /// When it does not answer, or can do nothing that a resizer asks for.
    pub async fn ask(csi: &Client, timeout: Duration) -> Result<Self, AbilitiesError> {
        let csi = csi.with_timeout(Some(timeout));
        let (driver, about) = csi.driver_name_and_manifest().await?;
        if !csi.plugin_capabilities().await?.has(PluginService::ControllerService) {
            return Err(AbilitiesError::NoController(driver));
        }
        let controller = csi.controller_capabilities().await?;
        let expander = if controller.has(ControllerCapability::ExpandVolume) {
            Expander::Controller
        } else if csi.node_capabilities().await?.has(NodeCapability::ExpandVolume) {
            Expander::Nodes
        } else {
            Expander::Nobody
        };
        let modifies = controller.has(ControllerCapability::ModifyVolume);
        let named = about.get(manifest::MUTABLE_PARAMETERS).map(String::as_str).unwrap_or_default();
        let mutable = named.split(',').filter(|key| !key.is_empty()).map(str::to_owned).collect();
        match (expander, modifies) {
            (Expander::Nobody, false) => Err(AbilitiesError::Neither),
            _ => Ok(Self { driver, expander, modifies, mutable }),
        }
    }

    /// Those of a driver that no instance of this program has to call: its nodes expand.
    #[must_use]
    pub fn of_nodes(driver: &str) -> Self {
        let expander = Expander::Nodes;
        Self { driver: driver.to_owned(), expander, modifies: false, mutable: Vec::new() }
    }
}

/// The resizer of one driver.
pub struct Resizer {
    context: Context,
    driver: Client,
    config: Config,
    abilities: Abilities,
    faults: Faults,
}

impl Resizer {
    /// A resizer that does nothing until [`Self::run`].
    #[must_use]
    pub fn new(context: &Context, driver: Client, config: Config, abilities: Abilities) -> Self {
        Self { context: context.clone(), driver, config, abilities, faults: Faults::NONE }
    }

    /// With what a test has happen at its points.
    #[must_use]
    pub fn with_faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// Runs until `shutdown` is cancelled; calls in flight are finished then.
    pub async fn run(self, shutdown: CancellationToken) {
        let expands = self.abilities.expander != Expander::Nobody;
        let modifies = self.abilities.modifies && self.config.modifies;
        let sidecar = Arc::new(self.into_sidecar());
        let expansions = async {
            match expands {
                true => Expansions::new(&sidecar).run(&shutdown).await,
                false => tracing::info!("the driver does not expand volumes"),
            }
        };
        let modifications = async {
            if modifies {
                Modifications::new(&sidecar).run(&shutdown).await;
            }
        };
        tokio::join!(expansions, modifications);
        // With nothing to do it still holds its lease.
        shutdown.cancelled().await;
    }

    fn into_sidecar(self) -> Sidecar {
        let Self { context, driver, config, abilities, faults } = self;
        let offline = config.handle_volume_inuse_error && abilities.expander != Expander::Nobody;
        let pods = (offline || config.pods_wake).then(|| context.cache());
        if let Some(pods) = &pods {
            index_pods(pods);
        }
        let classes = abilities.modifies && config.modifies;
        Sidecar {
            api: context.api.clone(),
            driver: driver.with_timeout(Some(config.timeout)),
            claims: context.cache(),
            volumes: context.cache(),
            pods,
            classes: classes.then(|| context.cache()),
            recorder: context.recorder(&format!("external-resizer {}", abilities.driver)),
            memory: Memory::default(),
            faults,
            mutable: abilities.mutable,
            expander: abilities.expander,
            name: abilities.driver,
            context,
            config,
        }
    }
}

/// The resizer at work.
struct Sidecar {
    name: String,
    expander: Expander,
    mutable: Vec<String>,
    context: Context,
    api: Api,
    driver: Client,
    claims: Cache<Claim>,
    volumes: Cache<Volume>,
    /// Watched to know which claims are in use, and which may have come free.
    pods: Option<Cache<Pod>>,
    classes: Option<Cache<VolumeAttributesClass>>,
    recorder: Recorder,
    memory: Memory,
    faults: Faults,
    config: Config,
}

impl Sidecar {
    /// Whether this instance serves the volume: with `--node-deployment` only one whose node affinity fits
    /// its node. One without any would be expanded by the resizers of all nodes at once.
    fn serves(&self, volume: &Volume) -> bool {
        let Some(node) = &self.config.node else { return true };
        let Some(required) = &volume.spec.node_affinity.required else { return false };
        let labels: BTreeMap<String, String> =
            node.segments.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        required.matches(&node.name, &labels)
    }

    /// Says why nobody does what a claim asks for.
    fn note_unserved(&self, claim: &Claim, volume: &Volume) {
        if is_of(&self.name, volume) && volume.spec.node_affinity.required.is_none() {
            tracing::warn!(
                claim = %claim.metadata.key(),
                volume = volume.metadata.name,
                "the volume has no node affinity, so no resizer with --node-deployment serves it; \
                 run one for the cluster, without that flag"
            );
        }
    }

    /// Ends a pass over the claim. One that was deleted meanwhile leaves no marks: nobody would ever look
    /// at them again.
    fn tidy(&self, claim: &Claim) {
        let uid = &claim.metadata.uid;
        let here = self.claims.get(&claim.metadata.key());
        self.memory.tidy(uid, here.is_none_or(|here| here.metadata.uid != *uid));
    }

    fn rules(&self) -> target::Resizer<'_> {
        target::Resizer {
            driver: &self.name,
            controller_expands: self.expander == Expander::Controller,
            recovers: self.config.recovers,
            annotates: self.config.annotates,
        }
    }

    fn is_in_use(&self, claim: &ObjectKey) -> bool {
        let pods = self.pods.iter().flat_map(|pods| pods_of_claim(pods, claim));
        pods.into_iter().any(|pod| !pod.finished())
    }

    fn queue_name(&self) -> String {
        format!("{}-pvc", self.name)
    }
}
