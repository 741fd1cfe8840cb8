//! The CSI provisioner: one claim to one CreateVolume, one volume to one DeleteVolume.

use longshore_cluster::clock;
use longshore_core::{
    claim::storage_provisioner,
    model::{
        keys::annotations,
        kinds::{Claim, Volume, VolumeNodeAffinity},
    },
    provision::attempt::Debt,
};
use longshore_provisioner::{
    Attempts, DeleteError, ProvisionError, ProvisionedVolume, Provisioner, Request,
};
use serde::Deserialize;

use super::{
    Config, Driver, Parts,
    guard::Intents,
    in_use::InUse,
    places::{Map, Places},
};
use crate::capacity::CapacityWaker;

pub(super) struct CsiProvisioner {
    pub(super) config: Config,
    pub(super) parts: Parts,
    pub(super) driver: Driver,
    pub(super) intents: Option<Intents>,
    /// Where the provisioning of each claim stands; the library's controller takes part in it.
    pub(super) attempts: Attempts,
    pub(super) places: Places,
    /// Wakes the publisher of capacity.
    pub(super) capacity: Option<CapacityWaker>,
    pub(super) identity: String,
    pub(super) in_use: Option<InUse>,
}

impl CsiProvisioner {
    pub(super) fn new(
        config: Config,
        mut parts: Parts,
        driver: Driver,
        intents: Option<Intents>,
        attempts: Attempts,
        capacity: Option<CapacityWaker>,
    ) -> Self {
        parts.csi = parts.csi.with_timeout(Some(config.timeout));
        let millis = clock::now().as_millisecond();
        let mut identity = format!("{millis}-{}-{}", fastrand::u32(0..10_000), driver.name);
        let map = match (&config.deployment, &parts.nodes) {
            (Some(deployment), _) => {
                identity = format!("{identity}-{}", deployment.node);
                let (node, segments) = (deployment.node.clone(), deployment.segments.clone());
                Map::Fixed { node, segments }
            }
            (None, Some((nodes, csi_nodes))) => Map::Watched(nodes.clone(), csi_nodes.clone()),
            (None, None) => Map::Unknown,
        };
        let places = Places::new(&driver.name, map);
        let in_use = parts.nodes.as_ref().map(|(nodes, _)| InUse::follow(nodes));
        Self { config, parts, driver, intents, attempts, in_use, places, capacity, identity }
    }

    pub(super) async fn wait_for_caches(&self) {
        if let Some((nodes, csi_nodes)) = &self.parts.nodes {
            nodes.synced().await;
            csi_nodes.synced().await;
        }
        if let Some(attachments) = &self.parts.attachments {
            attachments.synced().await;
        }
        if let Some(grants) = &self.parts.grants {
            grants.synced().await;
        }
        if let Some(intents) = &self.intents {
            intents.records().synced().await;
        }
    }

    /// What became of a claim says something about the room there is.
    fn tell_room(&self, class: &str, result: &Result<ProvisionedVolume, ProvisionError>) {
        let Some(capacity) = &self.capacity else { return };
        match result {
            Ok(made) => {
                let affinity = &made.volume["spec"]["nodeAffinity"];
                let affinity = VolumeNodeAffinity::deserialize(affinity).unwrap_or_default();
                capacity.made(class, &affinity);
            }
            Err(ProvisionError::Unchanged(_) | ProvisionError::Ignored(_)) => {}
            Err(_) => capacity.not_made(class),
        }
    }
}

impl Provisioner for CsiProvisioner {
    async fn provision(&self, request: &Request) -> Result<ProvisionedVolume, ProvisionError> {
        self.check_node(request).await?;
        let result = match self.begin(request).await {
            Ok(plan) => self.create_planned(&plan).await,
            Err(error) => Err(error),
        };
        self.tell_room(&request.class.metadata.name, &result);
        result
    }

    async fn delete(&self, volume: &Volume) -> Result<(), DeleteError> {
        self.delete_volume(volume).await
    }

    async fn should_provision(&self, claim: &Claim) -> bool {
        let ours = Some(self.driver.name.as_str());
        let asked = storage_provisioner(claim) == ours
            || claim.metadata.annotation(annotations::MIGRATED_TO) == ours;
        if !asked || !self.config.node.as_ref().is_none_or(|scope| scope.answers(claim)) {
            return false;
        }
        self.is_ours_to_make(claim, None).await.unwrap_or_else(|error| {
            // The attempt fails the same way, and says so where the user looks.
            tracing::warn!(claim = %claim.metadata.key(), error, "cannot tell which provisioner owns the claim");
            true
        })
    }

    async fn should_delete(&self, volume: &Volume) -> bool {
        if !self.is_in_scope(volume) {
            return false;
        }
        if let (Some(in_use), Some(source)) = (&self.in_use, &volume.spec.csi) {
            in_use.released(source).await;
        }
        true
    }

    async fn saved(&self, claim: &Claim) {
        let uid = &claim.metadata.uid;
        if !self.intents.as_ref().is_some_and(|intents| intents.finish_later(uid)) {
            // The resolver may have been faster.
            let _lock = self.attempts.lock(uid).await;
            if self.attempts.read(uid, |attempt| attempt.owes() == Debt::DropRecord) {
                self.drop_settled(uid).await;
            }
        }
        self.release_snapshot(claim).await;
    }
}
