//! From a released volume to one DeleteVolume.

use std::sync::Arc;

use longshore_core::{
    model::{ObjectKey, kinds::Volume},
    provision::{DeletionSecret, deletion_secret, migration},
};
use longshore_provisioner::DeleteError;

use super::{
    call::{Content, read_secret},
    make::CsiProvisioner,
};

impl CsiProvisioner {
    pub(super) async fn delete_volume(&self, volume: &Volume) -> Result<(), DeleteError> {
        let failed = |text: String| DeleteError::Failed(text.into());
        let translated =
            migration::volume_to_csi(volume).map_err(|error| DeleteError::Failed(error.into()))?;
        let in_tree = translated.is_some();
        let volume = translated.as_ref().unwrap_or(volume);
        let Some(source) = &volume.spec.csi else { return Err(failed("invalid CSI PV".into())) };
        if source.driver != self.driver.name {
            return Err(DeleteError::Ignored(format!("the volume is of driver {}", source.driver)));
        }
        if !self.is_on_this_node(volume) {
            return Err(DeleteError::Ignored("PV was not provisioned on this node".into()));
        }
        if let Some(missing) = self.driver.capabilities.missing() {
            return Err(failed(missing.into()));
        }
        let secrets = self.deletion_content(volume, in_tree).await?;
        let name = &volume.metadata.name;
        if let Some(node) = self.attached_to(name) {
            return Err(failed(format!(
                "persistentvolume {name} is still attached to node {node}"
            )));
        }
        if let Some(node) = self.in_use.as_ref().and_then(|in_use| in_use.user(source)) {
            return Err(failed(format!(
                "persistentvolume {name} is still in use on node {node}; it is deleted once that node has unmounted it"
            )));
        }
        let deleted = self.delete_handle(&source.volume_handle, secrets, in_tree).await;
        deleted.map_err(|error| DeleteError::Failed(error.into()))?;
        if let Some(capacity) = &self.capacity {
            capacity.deleted(&volume.spec.node_affinity);
        }
        Ok(())
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
            Some(class) if in_tree => Some(Arc::new(
                migration::class_to_csi(&class)
                    .map_err(|error| DeleteError::Failed(error.into()))?,
            )),
            other => other,
        };
        let found = deletion_secret(volume, class.as_deref()).map_err(|error| {
            DeleteError::Failed(
                format!("failed to get secretreference for volume {name}: {error}").into(),
            )
        })?;
        let DeletionSecret::From(reference) = found else { return Ok(Content::new()) };
        Ok(read_secret(&self.parts.api, &reference).await.unwrap_or_else(|error| {
            tracing::warn!(volume = name, error, "deleting the volume without its secret");
            Content::new()
        }))
    }

    /// Whether this provisioner is the one to delete the volume.
    pub(super) fn is_in_scope(&self, volume: &Volume) -> bool {
        let Some(scope) = &self.config.node else { return true };
        let Some((nodes, _)) = &self.parts.nodes else { return false };
        // Another node's driver would not know the volume, and "unknown" reads as "deleted".
        nodes
            .get(&ObjectKey::cluster(&scope.node))
            .is_some_and(|node| volume.reachable_from(&scope.node, &node.metadata.labels))
    }

    fn attached_to(&self, volume: &str) -> Option<String> {
        let attachments = self.parts.attachments.as_ref()?.list();
        let holds = |source: &Option<String>| source.as_deref() == Some(volume);
        let found =
            attachments.iter().find(|one| holds(&one.spec.source.persistent_volume_name))?;
        Some(found.spec.node_name.clone())
    }
}
