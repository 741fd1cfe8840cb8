//! Attaches one volume to a node: ControllerPublishVolume and its status.

use longshore_cluster::{ApiError, Patch, clock};
use longshore_core::{
    attach::sidecar::add_finalizer_patch,
    model::{
        keys::annotations,
        kinds::{Volume, VolumeAttachment},
    },
};
use serde_json::{Value, json};

use super::{Sidecar, error::SyncError, request::describe};

/// The API refuses longer messages.
const LONGEST_MESSAGE: usize = 1024;

impl Sidecar {
    /// Attaches, and notes a failure in the status.
    pub(super) async fn attach(&self, attachment: &VolumeAttachment) -> Result<(), SyncError> {
        let result = self.attach_once(attachment).await;
        match &result {
            // The driver has done its part; the next turn says so.
            Ok(()) | Err(SyncError::MarkAttached(_)) => {}
            Err(error) => self.note_error(attachment, "attachError", error).await,
        }
        result
    }

    async fn attach_once(&self, attachment: &VolumeAttachment) -> Result<(), SyncError> {
        let volume = self.volume_of(attachment).await?;
        // Whatever the volume turns out to be, it must not go away under this attachment.
        if let Some(volume) = &volume {
            self.hold_volume(volume).await?;
        }
        let attached = describe(attachment, volume)?;
        let request = self.publish_request(&attachment.spec.node_name, &attached).await?;
        self.hold_attachment(attachment, &request.node_id).await?;
        let driver = self.driver_for(&attached);
        let answer = driver.controller_publish_volume(request).await?;
        let context = answer.publish_context;
        let metadata = if context.is_empty() { Value::Null } else { json!(context) };
        let patch = json!({"status":
            {"attached": true, "attachmentMetadata": metadata, "attachError": null}});
        self.patch_status(attachment, &patch).await.map_err(SyncError::MarkAttached)
    }

    /// Keeps the volume from going away while an attachment needs it for the detach. Two attachments
    /// that begin together each add the finalizer, as recorded; giving the volume up takes both off.
    async fn hold_volume(&self, volume: &Volume) -> Result<(), SyncError> {
        let meta = &volume.metadata;
        if meta.deleting() {
            return Err(SyncError::VolumeDeleting(meta.name.clone()));
        }
        if meta.has_finalizer(&self.finalizer) {
            return Ok(());
        }
        let patch = add_finalizer_patch(&meta.finalizers, &self.finalizer);
        let written = self.api.patch::<Volume>(&meta.key(), Patch::Json(&patch)).await;
        self.volumes.assume(&written.map_err(SyncError::VolumeFinalizer)?);
        Ok(())
    }

    /// Makes sure that a detach is owed, and with which node id, before the driver hears of it.
    async fn hold_attachment(
        &self,
        attachment: &VolumeAttachment,
        node_id: &str,
    ) -> Result<(), SyncError> {
        let meta = &attachment.metadata;
        let mut changes = json!({});
        if !meta.has_finalizer(&self.finalizer) {
            let mut finalizers = meta.finalizers.clone();
            finalizers.push(self.finalizer.clone());
            changes["finalizers"] = json!(finalizers);
        }
        if meta.annotation(annotations::ATTACH_NODE_ID) != Some(node_id) {
            changes["annotations"] = json!({annotations::ATTACH_NODE_ID: node_id});
        }
        if changes == json!({}) {
            return Ok(());
        }
        let patch = json!({"metadata": changes});
        let written = self.api.patch::<VolumeAttachment>(&meta.key(), Patch::Merge(&patch)).await;
        self.attachments.assume(&written.map_err(SyncError::SaveAttachment)?);
        Ok(())
    }

    pub(super) async fn patch_status(
        &self,
        attachment: &VolumeAttachment,
        patch: &Value,
    ) -> Result<(), ApiError> {
        let key = attachment.metadata.key();
        let written = self.api.patch_status::<VolumeAttachment>(&key, Patch::Merge(patch)).await?;
        self.attachments.assume(&written);
        Ok(())
    }

    /// Notes a failure for those who wait. That the note itself failed is only logged: the turn
    /// is repeated anyway.
    pub(super) async fn note_error(
        &self,
        attachment: &VolumeAttachment,
        field: &str,
        error: &SyncError,
    ) {
        let mut message = error.to_string();
        while message.len() > LONGEST_MESSAGE {
            message.pop();
        }
        let mut note = json!({"message": message, "time": clock::seconds(clock::now())});
        if field == "attachError"
            && self.config.error_codes
            && let Some(code) = error.code()
        {
            note["errorCode"] = json!(code);
        }
        let patch = json!({"status": {field: note}});
        if let Err(failure) = self.patch_status(attachment, &patch).await {
            let name = &attachment.metadata.name;
            tracing::warn!(attachment = %name, %failure, %error, "the error could not be saved");
        }
    }
}
