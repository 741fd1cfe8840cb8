//! Carries out the steps of one group snapshot.

use longshore_cluster::{DeleteParams, OptionalExt as _, Outcome};
use longshore_core::{
    model::{
        ObjectKey,
        keys::{annotations, finalizers},
        kinds::{HasMeta as _, VolumeGroupSnapshot, VolumeGroupSnapshotContent, VolumeSnapshot},
    },
    snapshot::{Failure, group::bind::Step, status::Copied, writes},
};
use serde_json::json;

use super::{
    super::{error::ControllerError, snapshots::Flow},
    Groups,
};

impl Groups {
    pub(super) async fn act(
        &self,
        step: Step,
        group: &VolumeGroupSnapshot,
        content: &str,
    ) -> Result<Flow, ControllerError> {
        let (shared, kinds, key) = (&self.shared, &self.kinds, group.key());
        let content = ObjectKey::cluster(content);
        match step {
            Step::Nothing => return Ok(Flow::End(Outcome::Done)),
            Step::Fail(failure) => return self.fail(group, &failure).await,
            Step::Blocked { reason, message } => {
                shared.recorder.warning(group, reason, message.clone());
                return Ok(Flow::End(Outcome::retry(message)));
            }
            Step::FindClass => return self.find_class(group).await,
            Step::CreateContent => return self.create_content(group).await,
            Step::CreateMembers => return self.create_members(group, &content).await,
            Step::AddFinalizer => {
                if let Err(error) = self.keep(group).await {
                    let what = "Failed to check and update group snapshot";
                    return self.not_bound(group, "GroupSnapshotFinalizerError", what, error).await;
                }
            }
            Step::Bind(patch) => {
                if let Err(error) = shared.patch(&kinds.contents, &content, &patch).await {
                    let what = "Group snapshot failed to bind VolumeGroupSnapshotContent";
                    return self.not_bound(group, "GroupSnapshotBindFailed", what, error).await;
                }
            }
            Step::CopyStatus(copied) => return self.copy_status(group, copied).await,
            Step::LookForContent => {
                let live = shared.api.get_raw::<VolumeGroupSnapshotContent>(&content).await?;
                let Some(live) = live else { return Ok(Flow::NoContent) };
                kinds.contents.assume(&live);
            }
            Step::MarkContent => {
                let note = json!({annotations::GROUP_SNAPSHOT_BEING_DELETED: "yes"});
                let patch = json!({"metadata": {"annotations": note}});
                shared.patch(&kinds.contents, &content, &patch).await?;
            }
            Step::DeleteContent => return self.delete_content(group, &content).await,
            Step::DeleteMembers => self.delete_members(group).await?,
            Step::RemoveFinalizer => {
                let gone = [finalizers::GROUP_SNAPSHOT_BOUND];
                let patch = writes::without_finalizers(&group.metadata, &gone);
                shared.patch(&kinds.groups, &key, &patch).await?;
            }
        }
        Ok(Flow::On)
    }

    /// Puts our finalizer on the group snapshot.
    pub(super) async fn keep(&self, group: &VolumeGroupSnapshot) -> Result<(), ControllerError> {
        let new = [finalizers::GROUP_SNAPSHOT_BOUND];
        let patch = writes::with_finalizers(&group.metadata, &new);
        self.shared.patch(&self.kinds.groups, &group.key(), &patch).await
    }

    async fn copy_status(
        &self,
        group: &VolumeGroupSnapshot,
        copied: Copied,
    ) -> Result<Flow, ControllerError> {
        let Copied { mut patch, created, ready } = copied;
        patch["metadata"]["uid"] = group.metadata.uid.as_str().into();
        let (shared, key) = (&self.shared, group.key());
        if let Err(error) = shared.patch_status(&self.kinds.groups, &key, &patch).await {
            let what = "Group snapshot status update failed";
            return self.not_bound(group, "GroupSnapshotStatusUpdateFailed", what, error).await;
        }
        if created {
            shared.metrics.created(group);
            let text = format!("GroupSnapshot {key} was successfully created by the CSI driver.");
            shared.recorder.normal(group, "GroupSnapshotCreated", text);
        }
        if ready {
            shared.metrics.ready(group);
            let text = format!("GroupSnapshot {key} is ready to use.");
            shared.recorder.normal(group, "GroupSnapshotReady", text);
        }
        Ok(Flow::On)
    }

    async fn delete_content(
        &self,
        group: &VolumeGroupSnapshot,
        key: &ObjectKey,
    ) -> Result<Flow, ControllerError> {
        let deleted = self.shared.delete(&self.kinds.contents, key).await;
        deleted.inspect_err(|error| {
            if !error.is_conflict() {
                let text = "Failed to delete group snapshot content API object";
                self.shared.recorder.warning(group, "GroupSnapshotContentObjectDeleteError", text);
            }
        })
    }

    async fn delete_members(&self, group: &VolumeGroupSnapshot) -> Result<(), ControllerError> {
        let shared = &self.shared;
        for member in self.members(group).iter().filter(|member| !member.metadata.deleting()) {
            let key = member.key();
            let this = DeleteParams::uid(member.metadata.uid.as_str());
            let deleted = shared.api.delete::<VolumeSnapshot>(&key, &this).await;
            if let Err(error) = deleted.optional() {
                let text = format!("Failed to delete snapshot {key} of the group: {error}");
                shared.recorder.warning(group, "SnapshotDeleteError", text);
                return Err(error.into());
            }
            shared.refresh(&shared.snapshots, &key).await?;
        }
        Ok(())
    }

    /// A write was refused. That the object was changed meanwhile is no failure.
    async fn not_bound(
        &self,
        group: &VolumeGroupSnapshot,
        reason: &'static str,
        what: &str,
        error: ControllerError,
    ) -> Result<Flow, ControllerError> {
        if error.is_conflict() {
            return Err(error);
        }
        self.fail(group, &Failure::unready(reason, format!("{what}, {error}"))).await
    }

    /// Shows a failure once, and ends the pass.
    pub(super) async fn fail(
        &self,
        group: &VolumeGroupSnapshot,
        failure: &Failure,
    ) -> Result<Flow, ControllerError> {
        let error = group.status.as_ref().and_then(|status| status.error.as_ref());
        self.shared.show(&self.kinds.groups, group, error, failure).await
    }

    /// After a conflict: the next look sees what is there now.
    pub(super) async fn refresh(
        &self,
        key: &ObjectKey,
        content: &str,
    ) -> Result<(), ControllerError> {
        let (shared, kinds) = (&self.shared, &self.kinds);
        shared.refresh(&kinds.groups, key).await?;
        shared.refresh(&kinds.contents, &ObjectKey::cluster(content)).await
    }
}
