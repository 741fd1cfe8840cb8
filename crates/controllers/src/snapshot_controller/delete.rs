//! Lets the content of a snapshot go.

use longshore_core::model::{ObjectKey, keys::annotations, kinds::VolumeSnapshot};
use serde_json::json;

use super::{
    error::ControllerError,
    snapshots::{Flow, Snapshots},
};

impl Snapshots {
    /// Says to the snapshotter that the snapshot goes.
    pub(super) async fn mark_content(&self, key: &ObjectKey) -> Result<(), ControllerError> {
        let Some(content) = self.shared.contents.get(key) else { return Ok(()) };
        let patch = json!({"metadata": {"uid": content.metadata.uid,
            "annotations": {annotations::SNAPSHOT_BEING_DELETED: "yes"}}});
        self.shared.patch(&self.shared.contents, key, &patch).await
    }

    pub(super) async fn delete_content(
        &self,
        snapshot: &VolumeSnapshot,
        key: &ObjectKey,
    ) -> Result<Flow, ControllerError> {
        let deleted = self.shared.delete(&self.shared.contents, key).await;
        deleted.inspect_err(|error| {
            if !error.is_conflict() {
                let text = "Failed to delete snapshot content API object";
                self.shared.recorder.warning(snapshot, "SnapshotContentObjectDeleteError", text);
            }
        })
    }
}
