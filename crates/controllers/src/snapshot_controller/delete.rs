//! Lets the content of a snapshot go.

use longshore_cluster::{DeleteParams, Outcome};
use longshore_core::model::{
    ObjectKey,
    keys::annotations,
    kinds::{VolumeSnapshot, VolumeSnapshotContent},
};
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
        self.shared.patch_content(key, &patch).await
    }

    pub(super) async fn delete_content(
        &self,
        snapshot: &VolumeSnapshot,
        key: &ObjectKey,
    ) -> Result<Flow, ControllerError> {
        let Some(content) = self.shared.contents.get(key) else { return Ok(Flow::On) };
        let this = DeleteParams::uid(content.metadata.uid.as_str());
        match self.shared.api.delete::<VolumeSnapshotContent>(key, &this).await {
            Ok(()) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) if error.is_conflict() => return Err(error.into()),
            Err(error) => {
                let text = "Failed to delete snapshot content API object";
                self.shared.recorder.warning(snapshot, "SnapshotContentObjectDeleteError", text);
                return Err(error.into());
            }
        }
        match self.shared.api.get_raw::<VolumeSnapshotContent>(key).await? {
            Some(live) => {
                self.shared.contents.assume(&live);
                Ok(Flow::On)
            }
            // The watch says so, too, and that enqueues the snapshot again.
            None => Ok(Flow::End(Outcome::Done)),
        }
    }
}
