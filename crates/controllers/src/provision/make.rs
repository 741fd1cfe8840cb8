//! The CSI provisioner: one claim to one CreateVolume, one volume to one DeleteVolume.

use std::{collections::BTreeSet, sync::Arc};

use longshore_cluster::clock;
use longshore_core::{
    claim::storage_provisioner,
    model::{
        NodeName, ObjectKey, VolumeName,
        keys::annotations,
        kinds::{Claim, Volume, VolumeNodeAffinity},
    },
    provision::{DeletionSecret, deletion_secret, migration},
};
use longshore_provisioner::{
    Attempts, DeleteError, ProvisionError, ProvisionedVolume, Provisioner, Request,
};
use parking_lot::Mutex;
use serde::Deserialize;

use super::{
    Config, Parts,
    call::{Content, read_secret},
    guard::Intents,
    in_use::InUse,
    places::{Map, Places},
    planning, sweep,
};
use crate::{
    Driver,
    capacity::CapacityWaker,
    driver,
    index::{attachments_of_volume, index_attachments},
};

pub(super) struct CsiProvisioner {
    pub(super) config: Config,
    pub(super) parts: Parts,
    pub(super) driver: Driver,
    pub(super) intents: Option<Intents>,
    /// Where the provisioning of each claim stands; the library's controller takes part in it.
    pub(super) attempts: Attempts,
    pub(super) places: Places,
    pub(super) capacity: Option<CapacityWaker>,
    pub(super) identity: String,
    pub(super) in_use: Option<InUse>,
    /// Snapshots that have our finalizer as far as this process knows.
    pub(super) held_snapshots: Mutex<BTreeSet<ObjectKey>>,
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
        if let Some(attachments) = &parts.attachments {
            index_attachments(attachments);
        }
        if let Some(grants) = &parts.grants {
            planning::index_grants(grants);
        }
        let places = Places::new(&driver.name, map);
        let in_use = config.check_volumes_in_use.then(|| InUse::follow(&parts.context.cache()));
        sweep::index_claims(&parts.claims);
        Self {
            config,
            parts,
            driver,
            intents,
            attempts,
            in_use,
            places,
            capacity,
            identity,
            held_snapshots: Mutex::default(),
        }
    }

    pub(super) async fn wait_for_caches(&self) {
        if let Some((nodes, csi_nodes)) = &self.parts.nodes {
            nodes.synced().await;
            csi_nodes.synced().await;
        }
        if let Some(in_use) = &self.in_use {
            in_use.nodes().synced().await;
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

    /// The secret for DeleteVolume; one that cannot be read is left out, as the volume must go.
    async fn deletion_content(
        &self,
        volume: &Volume,
        in_tree: bool,
    ) -> Result<Content, DeleteError> {
        let class = self.parts.classes.get(&ObjectKey::cluster(volume.class_name()));
        let name = &volume.metadata.name;
        let class = match class {
            Some(class) if in_tree => {
                Some(Arc::new(migration::class_to_csi(&class).map_err(DeleteError::failed)?))
            }
            other => other,
        };
        let found = deletion_secret(volume, class.as_deref()).map_err(|error| {
            let text = format!("failed to get secretreference for volume {name}: {error}");
            DeleteError::failed(text)
        })?;
        let DeletionSecret::From(reference) = found else { return Ok(Content::new()) };
        Ok(read_secret(&self.parts.api, &reference).await.unwrap_or_else(|error| {
            tracing::warn!(volume = name, %error, "deleting the volume without its secret");
            Content::new()
        }))
    }

    /// Whether this provisioner is the one to delete the volume.
    fn is_in_scope(&self, volume: &Volume) -> bool {
        let Some(scope) = &self.config.node else { return true };
        let Some((nodes, _)) = &self.parts.nodes else { return false };
        // Another node's driver would not know the volume, and "unknown" reads as "deleted".
        nodes
            .get(&ObjectKey::cluster(&scope.node))
            .is_some_and(|node| volume.reachable_from(&scope.node, &node.metadata.labels))
    }

    fn attached_to(&self, volume: &VolumeName) -> Option<NodeName> {
        let attachments = self.parts.attachments.as_ref()?;
        let found = attachments_of_volume(attachments, volume);
        Some(found.first()?.spec.node_name.clone())
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
        let translated = migration::volume_to_csi(volume).map_err(DeleteError::failed)?;
        let in_tree = translated.is_some();
        let volume = translated.as_ref().unwrap_or(volume);
        let source =
            volume.spec.csi.as_ref().ok_or_else(|| DeleteError::failed("invalid CSI PV"))?;
        if source.driver != self.driver.name {
            return Err(DeleteError::Ignored(format!("the volume is of driver {}", source.driver)));
        }
        if !self.is_on_this_node(volume) {
            return Err(DeleteError::Ignored("PV was not provisioned on this node".into()));
        }
        let capabilities = driver::capabilities(&self.parts.csi).await;
        if let Some(missing) = capabilities.map_err(DeleteError::failed)?.missing() {
            return Err(DeleteError::failed(missing));
        }
        let secrets = self.deletion_content(volume, in_tree).await?;
        let name = &volume.name();
        if let Some(node) = self.attached_to(name) {
            let text = format!("persistentvolume {name} is still attached to node {node}");
            return Err(DeleteError::failed(text));
        }
        if let Some(node) = self.in_use.as_ref().and_then(|in_use| in_use.user(source)) {
            return Err(DeleteError::failed(format!(
                "persistentvolume {name} is still in use on node {node}; it is deleted once that node has unmounted it"
            )));
        }
        let deleted = self.delete_handle(&source.volume_handle, secrets, in_tree).await;
        deleted.map_err(DeleteError::failed)?;
        if let Some(capacity) = &self.capacity {
            capacity.deleted(&volume.spec.node_affinity);
        }
        Ok(())
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
            tracing::warn!(claim = %claim.metadata.key(), %error, "cannot tell which provisioner owns the claim");
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
            self.drop_settled(uid).await;
        }
        self.release_snapshot(claim).await;
    }
}
