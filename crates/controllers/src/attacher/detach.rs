//! Detaches one volume from a node: ControllerUnpublishVolume and its status.

use longshore_cluster::{ApiError, OptionalExt as _, Patch};
use longshore_core::model::kinds::VolumeAttachment;
use longshore_csi::v1::ControllerUnpublishVolumeRequest;
use serde_json::{Value, json};

use super::{Sidecar, error::SyncError, request::describe};

impl Sidecar {
    /// Detaches, and notes a failure in the status.
    pub(super) async fn detach(&self, attachment: &VolumeAttachment) -> Result<(), SyncError> {
        let result = self.detach_once(attachment).await;
        if let Err(error) = &result {
            self.note_error(attachment, "detachError", error).await;
        }
        result
    }

    async fn detach_once(&self, attachment: &VolumeAttachment) -> Result<(), SyncError> {
        let attached = describe(attachment, self.volume_of(attachment).await?)?;
        let request = ControllerUnpublishVolumeRequest {
            volume_id: attached.csi.volume_handle.to_string(),
            secrets: self.secrets(&attached.csi).await?,
            node_id: self.last_node_id(attachment)?,
        };
        self.driver_for(&attached).controller_unpublish_volume(request).await?;
        self.let_go(attachment).await.map_err(SyncError::MarkDetached)
    }

    /// Drops the finalizer, then says "detached". The other order would let a crash in between
    /// cause a second unpublish.
    async fn let_go(&self, attachment: &VolumeAttachment) -> Result<(), ApiError> {
        let meta = &attachment.metadata;
        if !meta.has_finalizer(&self.finalizer) && !attachment.status.attached {
            return Ok(());
        }
        let others: Vec<&String> =
            meta.finalizers.iter().filter(|one| **one != self.finalizer).collect();
        if meta.has_finalizer(&self.finalizer) {
            let list = if others.is_empty() { Value::Null } else { json!(others) };
            let patch = json!({"metadata": {"finalizers": list}});
            let key = meta.key();
            let written = self.api.patch::<VolumeAttachment>(&key, Patch::Merge(&patch)).await;
            match written.optional()? {
                Some(written) if !others.is_empty() || !meta.deleting() => {
                    self.attachments.assume(&written);
                }
                // Ours was the last finalizer: the object is gone, and its status with it.
                _ => return Ok(()),
            }
        }
        let patch = json!({"status":
            {"attached": false, "attachmentMetadata": null, "detachError": null}});
        self.patch_status(attachment, &patch).await.optional().map(drop)
    }
}
