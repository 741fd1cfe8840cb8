//! The loop over group contents, and the calls of the driver that it makes.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use longshore_cluster::{
    Cache, Change, Loop, Outcome, Reconciler, Sources, Subject, WorkQueue, clock, controller::note,
};
use longshore_core::{
    model::{
        ObjectKey,
        keys::{annotations, finalizers},
        kinds::{
            HasMeta as _, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, VolumeSnapshotInfo,
        },
    },
    snapshot::{
        group::{
            sidecar::{self, Next, is_being_created},
            writes::{Taken, begun, cleared, described, settled},
        },
        params::{self, Role},
        writes::{failed, without_finalizers},
    },
};
use longshore_csi::v1;
use tokio_util::sync::CancellationToken;

use super::{
    Planted, Sidecar,
    calls::nanos,
    contents::{Progress, STEPS},
    error::{InputError, SnapshotterError},
};

/// Serves group contents while their kinds are defined.
pub(super) async fn run(sidecar: &Arc<Sidecar>, shutdown: &CancellationToken) {
    if !sidecar.config.groups {
        return;
    }
    let work = |stop: CancellationToken| Groups::new(sidecar).run(stop);
    crate::group_kinds::while_defined(&sidecar.api, shutdown, || (), work).await;
}

struct Groups {
    sidecar: Arc<Sidecar>,
    contents: Cache<VolumeGroupSnapshotContent>,
    classes: Cache<VolumeGroupSnapshotClass>,
    queue: WorkQueue<String>,
}

impl Groups {
    fn new(sidecar: &Arc<Sidecar>) -> Self {
        let (context, options) = (&sidecar.context, sidecar.queue_options());
        Self {
            contents: context.cache(),
            classes: context.cache(),
            queue: context.queue("csi-snapshotter-groupsnapshotcontent", options),
            sidecar: sidecar.clone(),
        }
    }

    async fn run(self, stop: CancellationToken) {
        let (queue, sidecar) = (self.queue.clone(), self.sidecar.clone());
        let groups = Loop::new("group-snapshotter", Arc::new(self), queue);
        groups.workers(sidecar.workers()).resync(sidecar.config.resync_period).run(&stop).await;
    }

    fn in_need(&self, content: &VolumeGroupSnapshotContent) -> Option<String> {
        let ours =
            self.sidecar.is_here(&content.metadata) && content.spec.driver == self.sidecar.name;
        let needs = ours && sidecar::decide(content) != Next::Nothing;
        needs.then(|| content.metadata.name.clone())
    }

    /// Our own status and note call for nothing: a pass goes on by itself.
    fn changed(&self, change: &Change<VolumeGroupSnapshotContent>) -> Option<String> {
        let Change::Applied { old, new } = change else { return None };
        let notes = |one: &VolumeGroupSnapshotContent| {
            let mut notes = one.metadata.annotations.clone();
            notes.remove(annotations::GROUP_SNAPSHOT_BEING_CREATED);
            (notes, one.metadata.deletion_timestamp, one.metadata.labels.clone())
        };
        let news = old.as_ref().is_none_or(|old| old.spec != new.spec || notes(old) != notes(new));
        news.then(|| self.in_need(new)).flatten()
    }

    fn class_of(
        &self,
        content: &VolumeGroupSnapshotContent,
    ) -> Option<Arc<VolumeGroupSnapshotClass>> {
        let class = content.spec.volume_group_snapshot_class_name.as_deref()?;
        self.classes.get(&ObjectKey::cluster(class))
    }

    async fn pass(&self, key: &ObjectKey) -> Outcome {
        let mut conflict = None;
        for _ in 0..STEPS {
            let Some(content) = self.contents.get(key) else { return Outcome::Done };
            let class = self.class_of(&content);
            if !sidecar::serves(&self.sidecar.name, &content, class.as_deref()) {
                return Outcome::Done;
            }
            let next = sidecar::decide(&content);
            match self.act(&content, &next).await {
                Ok(Progress::Idle) => return Outcome::Done,
                Ok(Progress::On) => conflict = None,
                Ok(Progress::Unfinished) => {
                    let newest = self.contents.get(key);
                    if !newest.is_some_and(|newest| sidecar::should_delete(&newest)) {
                        return Outcome::retry(format!(
                            "the group snapshot of content {key} is not ready yet"
                        ));
                    }
                }
                Err(error) if error.is_gone() => return Outcome::Done,
                Err(error) if error.is_conflict() => {
                    if let Err(error) = self.sidecar.refresh(&self.contents, key).await {
                        return Outcome::retry(error);
                    }
                    conflict = Some(error);
                }
                Err(error) => return self.failed(&content, &next, error).await,
            }
        }
        conflict.map_or(Outcome::Again, Outcome::retry)
    }

    async fn act(
        &self,
        content: &VolumeGroupSnapshotContent,
        next: &Next,
    ) -> Result<Progress, SnapshotterError> {
        let patch = async |patch| self.sidecar.patch(&self.contents, content, patch).await;
        match next {
            Next::Nothing => Ok(Progress::Idle),
            Next::DropNote => patch(settled()).await,
            Next::Release => {
                let gone = [finalizers::GROUP_CONTENT_BOUND];
                patch(without_finalizers(&content.metadata, &gone)).await
            }
            Next::Delete { handle, members } => self.delete(content, handle, members).await,
            Next::Create { .. } => self.create(content).await,
            Next::Find { handle, members } => self.find(content, handle, members).await,
        }
    }

    /// Shows a failure once, and has the content looked at again.
    async fn failed(
        &self,
        content: &VolumeGroupSnapshotContent,
        next: &Next,
        error: SnapshotterError,
    ) -> Outcome {
        let (reason, what) = match next {
            Next::Create { first: true } => {
                ("GroupSnapshotCreationFailed", "Failed to create group snapshot")
            }
            Next::Create { first: false } | Next::Find { .. } => (
                "GroupSnapshotContentCheckandUpdateFailed",
                "Failed to check and update group snapshot content",
            ),
            Next::Delete { .. } => {
                let text = format!("Failed to delete group snapshot: {error}");
                self.sidecar.recorder.warning(content, "GroupSnapshotDeleteError", text);
                return Outcome::retry(error);
            }
            Next::Nothing | Next::DropNote | Next::Release => return Outcome::retry(error),
        };
        let message = format!("{what}: {error}");
        let newest = self.contents.get(&content.key());
        let shown = newest.as_ref().and_then(|newest| newest.status.as_ref());
        let shown = shown.and_then(|status| status.error.as_ref());
        let now = clock::seconds(clock::now());
        if let Some(patch) = failed(shown, &message, &now) {
            let written = self.sidecar.patch_status(&self.contents, content, patch).await;
            self.sidecar.recorder.warning(content, reason, message);
            if let Err(error) = written {
                tracing::warn!(content = content.metadata.name, %error, "the failure is not in the status yet");
            }
        }
        self.sidecar.again(&content.metadata, error)
    }

    async fn create(
        &self,
        content: &VolumeGroupSnapshotContent,
    ) -> Result<Progress, SnapshotterError> {
        let request = self.create_request(content).await?;
        let sidecar = &self.sidecar;
        let (meta, guard) = (&content.metadata, sidecar.config.leak_guard);
        let kept = meta.deleting() || meta.has_finalizer(finalizers::GROUP_CONTENT_BOUND);
        if !is_being_created(meta) || (guard && !kept) {
            sidecar.patch(&self.contents, content, begun(meta, guard)).await?;
        }
        sidecar.verdicts.begin(&meta.uid, is_being_created(meta));
        let volumes = request.source_volume_ids.join(" ");
        let (secrets, response) =
            (request.secrets.clone(), sidecar.driver.create_volume_group_snapshot(request).await);
        let group = match response {
            Ok(response) => response.group_snapshot,
            Err(source) => {
                // Without a verdict the note stays: the call may still be running.
                if sidecar.settles(content, &source, Planted::ForgetsGroups) {
                    sidecar.patch(&self.contents, content, settled()).await?;
                }
                return Err(SnapshotterError::TakeGroup { volumes, source });
            }
        };
        let group = group.filter(|group| !group.group_snapshot_id.is_empty());
        let taken = group.map(taken).ok_or(SnapshotterError::NoSnapshot(volumes))?;
        match self.describe(content, &taken, true).await {
            Err(error) if error.is_gone() || error.is_conflict() => {
                return self.vanished(content, &taken, secrets, error).await;
            }
            described => described?,
        }
        sidecar.verdicts.known(&meta.uid);
        sidecar.patch(&self.contents, content, settled()).await?;
        Ok(if taken.ready { Progress::On } else { Progress::Unfinished })
    }

    async fn create_request(
        &self,
        content: &VolumeGroupSnapshotContent,
    ) -> Result<v1::CreateVolumeGroupSnapshotRequest, SnapshotterError> {
        let (name, config) = (&content.metadata.name, &self.sidecar.config);
        let input = |cause| SnapshotterError::Input { content: name.clone(), cause };
        let class = self.class_of(content);
        let class = class.ok_or_else(|| input(InputError::NoClass(name.clone())))?;
        let secrets = self.noted_secrets(content).await.map_err(input)?;
        let reference = &content.spec.volume_group_snapshot_ref;
        let names = config.extra_create_metadata.then_some((reference, name.as_str()));
        let request_name = params::request_name(
            &config.groupsnapshot_name_prefix,
            &reference.uid,
            config.groupsnapshot_name_uuid_length,
        );
        let volumes = content.spec.source.volume_handles.iter().flatten();
        Ok(v1::CreateVolumeGroupSnapshotRequest {
            name: request_name.ok_or_else(|| input(InputError::NoUid))?,
            source_volume_ids: volumes.map(ToString::to_string).collect(),
            secrets,
            parameters: params::for_driver(&class.parameters, names)?,
        })
    }

    /// The content is gone, or another object has its name: nobody else knows of the snapshots.
    async fn vanished(
        &self,
        content: &VolumeGroupSnapshotContent,
        taken: &Taken,
        secrets: BTreeMap<String, String>,
        error: SnapshotterError,
    ) -> Result<Progress, SnapshotterError> {
        let live = self.sidecar.api.get::<VolumeGroupSnapshotContent>(&content.key()).await?;
        let here = live.is_some_and(|live| live.metadata.uid == content.metadata.uid);
        if here || content.spec.deletion_policy != longshore_core::model::DeletionPolicy::Delete {
            return Err(error);
        }
        tracing::warn!(
            content = content.metadata.name,
            group = taken.handle,
            "the content vanished while its group snapshot was taken; the group snapshot is deleted"
        );
        let members: Vec<String> =
            taken.members.iter().map(|one| one.snapshot_handle.clone()).collect();
        super::calls::undo(|| self.delete_handle(&taken.handle, &members, secrets.clone())).await?;
        Err(error)
    }

    async fn find(
        &self,
        content: &VolumeGroupSnapshotContent,
        handle: &str,
        members: &[String],
    ) -> Result<Progress, SnapshotterError> {
        let request = v1::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: handle.to_owned(),
            snapshot_ids: members.to_vec(),
            secrets: self.get_secrets(content).await?,
        };
        let failed = |cause: String| SnapshotterError::FindGroup {
            content: content.metadata.name.clone(),
            cause,
        };
        let response = self.sidecar.driver.get_volume_group_snapshot(request).await;
        let group = response.map_err(|error| failed(error.to_string()))?.group_snapshot;
        let group = group.ok_or_else(|| failed(format!("can not find group snapshot {handle}")))?;
        let taken = Taken { handle: handle.to_owned(), ..taken(group) };
        self.describe(content, &taken, false).await?;
        Ok(if taken.ready { Progress::On } else { Progress::Unfinished })
    }

    async fn delete(
        &self,
        content: &VolumeGroupSnapshotContent,
        handle: &str,
        members: &[String],
    ) -> Result<Progress, SnapshotterError> {
        if members.is_empty() {
            return Err(SnapshotterError::NoMembers(content.metadata.name.clone()));
        }
        let secrets = self.noted_secrets(content).await?;
        self.delete_handle(handle, members, secrets).await.map_err(SnapshotterError::Delete)?;
        self.sidecar.patch_status(&self.contents, content, cleared()).await?;
        Ok(Progress::On)
    }

    async fn delete_handle(
        &self,
        handle: &str,
        members: &[String],
        secrets: BTreeMap<String, String>,
    ) -> Result<(), longshore_csi::CsiError> {
        let request = v1::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: handle.to_owned(),
            snapshot_ids: members.to_vec(),
            secrets,
        };
        self.sidecar.driver.delete_volume_group_snapshot(request).await.map(drop)
    }

    /// Writes what the driver said, all at once.
    async fn describe(
        &self,
        content: &VolumeGroupSnapshotContent,
        taken: &Taken,
        with_members: bool,
    ) -> Result<(), SnapshotterError> {
        let newest = self.contents.get(&content.key());
        let newest = newest.as_deref().filter(|newest| newest.metadata.uid == content.metadata.uid);
        let status = newest.unwrap_or(content).status.as_ref();
        match described(status, taken, with_members) {
            Some(patch) => self.sidecar.patch_status(&self.contents, content, patch).await,
            None => Ok(()),
        }
    }

    /// The secrets for creation and deletion.
    async fn noted_secrets(
        &self,
        content: &VolumeGroupSnapshotContent,
    ) -> Result<BTreeMap<String, String>, InputError> {
        let name = annotations::GROUP_SNAPSHOT_SECRET_NAME;
        let namespace = annotations::GROUP_SNAPSHOT_SECRET_NAMESPACE;
        let noted = params::noted_secret(&content.metadata, name, namespace);
        let noted = noted.map_err(|source| InputError::Note {
            content: content.metadata.name.clone(),
            source,
        })?;
        self.sidecar.secrets(noted).await
    }

    async fn get_secrets(
        &self,
        content: &VolumeGroupSnapshotContent,
    ) -> Result<BTreeMap<String, String>, InputError> {
        let Some(class) = self.class_of(content) else { return Ok(BTreeMap::new()) };
        let name = &content.metadata.name;
        self.sidecar.secrets(params::secret(Role::GroupGet, &class.parameters, name, None)?).await
    }
}

impl Reconciler for Groups {
    type Key = String;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources
            .on(&self.classes, |this, change| {
                let named = |content: &Arc<VolumeGroupSnapshotContent>| {
                    let class = content.spec.volume_group_snapshot_class_name.as_deref();
                    class == Some(&*change.object().metadata.name)
                };
                let all = this.contents.list();
                all.iter()
                    .filter(|one| named(one))
                    .filter_map(|one| this.in_need(one))
                    .collect::<Vec<_>>()
            })
            .on(&self.contents, Self::changed)
            .on_resync(&self.contents, Self::in_need);
    }

    fn subject(&self, name: &String) -> Subject {
        Subject::key(name)
    }

    async fn reconcile(&self, name: &String) -> Outcome {
        note("driver", &self.sidecar.name);
        self.pass(&ObjectKey::cluster(name)).await
    }
}

/// A group snapshot as the driver describes it.
fn taken(group: v1::VolumeGroupSnapshot) -> Taken {
    let cut_at = group.creation_time.and_then(|time| Timestamp::new(time.seconds, time.nanos).ok());
    let member = |one: v1::Snapshot| VolumeSnapshotInfo {
        creation_time: Some(nanos(&one)),
        ready_to_use: Some(one.ready_to_use),
        restore_size: Some(one.size_bytes).filter(|bytes| *bytes > 0),
        snapshot_handle: one.snapshot_id,
        volume_handle: one.source_volume_id.into(),
    };
    Taken {
        handle: group.group_snapshot_id,
        ready: group.ready_to_use,
        cut_at,
        members: group.snapshots.into_iter().map(member).collect(),
    }
}
