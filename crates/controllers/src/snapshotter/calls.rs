//! The calls of the driver, each with what is written before and after it.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_cluster::{clock, secrets::read_secret};
use longshore_core::{
    backoff::Backoff,
    model::{
        DeletionPolicy, ObjectKey,
        keys::{annotations, finalizers},
        kinds::{HasMeta, SecretRef, VolumeSnapshotClass, VolumeSnapshotContent},
    },
    snapshot::{
        params::{self, Role},
        sidecar::is_being_created,
        writes::{self, Taken},
    },
};
use longshore_csi::{CsiError, client::SnapshotLookup, v1};

use super::{
    Planted, Sidecar,
    contents::Progress,
    error::{InputError, SnapshotterError},
};

/// How often a snapshot is deleted whose content vanished during the call.
const UNDO_TRIES: u32 = 8;
const UNDO_PAUSE: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));

impl Sidecar {
    /// Takes a snapshot, or asks what became of it: the name is the same every time.
    pub(super) async fn create(
        &self,
        content: &VolumeSnapshotContent,
    ) -> Result<Progress, SnapshotterError> {
        let request = self.create_request(content).await?;
        let (volume, secrets) = (request.source_volume_id.clone(), request.secrets.clone());
        let meta = &content.metadata;
        let unguarded = self.config.leak_guard
            && !meta.deleting()
            && !meta.has_finalizer(finalizers::CONTENT_BOUND);
        if !is_being_created(meta) || unguarded {
            self.patch(&self.contents, content, writes::begun(meta, self.config.leak_guard))
                .await?;
        }
        self.verdicts.begin(&meta.uid, is_being_created(meta));
        let taken = match self.driver.take_snapshot(request).await {
            Ok(v1::CreateSnapshotResponse { snapshot: Some(snapshot) })
                if !snapshot.snapshot_id.is_empty() =>
            {
                Taken { group: None, ..taken(snapshot) }
            }
            Ok(_) => return Err(SnapshotterError::NoSnapshot(volume)),
            Err(source) => {
                // Without a verdict the note stays: the call may still be running.
                if self.settles(content, &source, Planted::ForgetsCalls) {
                    self.patch(&self.contents, content, writes::settled()).await?;
                }
                return Err(SnapshotterError::Take { volume, source });
            }
        };
        match self.describe(content, &taken).await {
            Err(error) if error.is_gone() || error.is_conflict() => {
                return self.vanished(content, &taken, secrets, error).await;
            }
            described => described?,
        }
        self.verdicts.known(&meta.uid);
        self.patch(&self.contents, content, writes::settled()).await?;
        Ok(if taken.ready { Progress::On } else { Progress::Unfinished })
    }

    /// Whether a failed call leaves nothing behind, so that its note may go. `bug` is one that says so at once.
    pub(super) fn settles(&self, content: &impl HasMeta, error: &CsiError, bug: Planted) -> bool {
        let meta = content.meta();
        if self.config.has(bug) {
            return true;
        }
        if !error.is_final() {
            self.verdicts.none(&meta.uid);
            return false;
        }
        self.verdicts.refused(&meta.uid, self.config.leak_guard, !meta.deleting())
    }

    /// The content is gone, or another object has its name: nobody else knows of the snapshot.
    async fn vanished(
        &self,
        content: &VolumeSnapshotContent,
        taken: &Taken,
        secrets: BTreeMap<String, String>,
        error: SnapshotterError,
    ) -> Result<Progress, SnapshotterError> {
        let live = self.api.get::<VolumeSnapshotContent>(&content.metadata.key()).await?;
        if live.is_some_and(|live| live.metadata.uid == content.metadata.uid) {
            return Err(error);
        }
        if content.spec.deletion_policy != DeletionPolicy::Delete {
            return Err(error);
        }
        let name = &content.metadata.name;
        tracing::warn!(
            content = name,
            snapshot = taken.handle,
            "the content vanished while its snapshot was taken; the snapshot is deleted"
        );
        undo(|| self.delete_handle(&taken.handle, secrets.clone())).await?;
        Err(error)
    }

    async fn create_request(
        &self,
        content: &VolumeSnapshotContent,
    ) -> Result<v1::CreateSnapshotRequest, SnapshotterError> {
        let name = &content.metadata.name;
        let input = |cause| SnapshotterError::Input { content: name.clone(), cause };
        let class = self.class_of(content).map_err(input)?;
        let secrets = self.noted_secrets(content).await.map_err(input)?;
        let reference = &content.spec.volume_snapshot_ref;
        let names = self.config.extra_create_metadata.then_some((reference, name.as_str()));
        let parameters = params::for_driver(&class.parameters, names)?;
        let Self { config, .. } = self;
        let mut request_name = params::request_name(
            &config.snapshot_name_prefix,
            &reference.uid,
            config.snapshot_name_uuid_length,
        );
        if config.has(Planted::NewNames) {
            request_name = request_name.map(|name| format!("{name}-{}", clock::now()));
        }
        let source = content.spec.source.volume_handle.as_ref();
        Ok(v1::CreateSnapshotRequest {
            source_volume_id: source.map(ToString::to_string).unwrap_or_default(),
            name: request_name.ok_or_else(|| input(InputError::NoUid))?,
            secrets,
            parameters,
            ..v1::CreateSnapshotRequest::default()
        })
    }

    fn class_of(
        &self,
        content: &VolumeSnapshotContent,
    ) -> Result<std::sync::Arc<VolumeSnapshotClass>, InputError> {
        let named = content.spec.volume_snapshot_class_name.as_deref();
        let named = named.ok_or_else(|| InputError::NoClass(content.metadata.name.clone()))?;
        let found = self.classes.get(&ObjectKey::cluster(named));
        found.ok_or_else(|| InputError::ClassMissing(named.to_owned()))
    }

    /// Asks the driver for a snapshot that it has.
    pub(super) async fn find(
        &self,
        content: &VolumeSnapshotContent,
        handle: &str,
    ) -> Result<Progress, SnapshotterError> {
        let name = &content.metadata.name;
        let failed = |cause: String| SnapshotterError::Find { content: name.clone(), cause };
        let secrets = self.list_secrets(content).await?;
        let found = self.driver.find_snapshot(handle, secrets).await;
        let taken = match found.map_err(|error| failed(error.to_string()))? {
            SnapshotLookup::Found(snapshot) => {
                let found = taken(snapshot);
                Taken { handle: handle.to_owned(), ..found }
            }
            SnapshotLookup::Missing => {
                return Err(failed(format!("can not find snapshot for snapshotID {handle}")));
            }
            // Nothing can be known of it, so it is taken at its word.
            SnapshotLookup::Unsupported => {
                let now = clock::now().as_nanosecond();
                let cut_at = i64::try_from(now).unwrap_or_default();
                Taken { handle: handle.to_owned(), ready: true, cut_at, ..Taken::default() }
            }
        };
        self.describe(content, &taken).await?;
        Ok(if taken.ready { Progress::On } else { Progress::Unfinished })
    }

    pub(super) async fn delete(
        &self,
        content: &VolumeSnapshotContent,
        handle: &str,
    ) -> Result<Progress, SnapshotterError> {
        let warn = |text: &str| self.recorder.warning(content, "SnapshotDeleteError", text);
        let secrets = self.noted_secrets(content).await;
        let secrets = secrets.inspect_err(|_| warn("Failed to get snapshot credentials"))?;
        let deleted = self.delete_handle(handle, secrets).await;
        deleted.map_err(|error| {
            warn("Failed to delete snapshot");
            SnapshotterError::Delete(error)
        })?;
        let cleared = self.patch_status(&self.contents, content, writes::cleared()).await;
        cleared.inspect_err(|error| {
            if !error.is_gone() && !error.is_conflict() {
                warn("Failed to clear content status");
            }
        })?;
        Ok(Progress::On)
    }

    async fn delete_handle(
        &self,
        handle: &str,
        secrets: BTreeMap<String, String>,
    ) -> Result<(), CsiError> {
        let request = v1::DeleteSnapshotRequest { snapshot_id: handle.to_owned(), secrets };
        self.driver.delete_snapshot(request).await.map(drop)
    }

    /// Writes what the driver said.
    async fn describe(
        &self,
        content: &VolumeSnapshotContent,
        taken: &Taken,
    ) -> Result<(), SnapshotterError> {
        let newest = self.contents.get(&content.metadata.key());
        let newest = newest.as_deref().filter(|newest| newest.metadata.uid == content.metadata.uid);
        let status = newest.unwrap_or(content).status.as_ref();
        match writes::described(status, taken) {
            Some(patch) => self.patch_status(&self.contents, content, patch).await,
            None => Ok(()),
        }
    }

    /// The secrets for CreateSnapshot and DeleteSnapshot.
    async fn noted_secrets(
        &self,
        content: &VolumeSnapshotContent,
    ) -> Result<BTreeMap<String, String>, InputError> {
        let (name, namespace) =
            (annotations::SNAPSHOT_SECRET_NAME, annotations::SNAPSHOT_SECRET_NAMESPACE);
        let noted = params::noted_secret(&content.metadata, name, namespace);
        let noted = noted.map_err(|source| InputError::Note {
            content: content.metadata.name.clone(),
            source,
        })?;
        self.secrets(noted).await
    }

    /// The secrets for GetSnapshot and ListSnapshots: those that the class names, and for a member of a group
    /// those of the group.
    async fn list_secrets(
        &self,
        content: &VolumeSnapshotContent,
    ) -> Result<BTreeMap<String, String>, InputError> {
        if content.metadata.annotation(annotations::GROUP_SNAPSHOT_HANDLE).is_some() {
            return self.noted_secrets(content).await;
        }
        if content.spec.volume_snapshot_class_name.is_none() {
            return Ok(BTreeMap::new());
        }
        let class = self.class_of(content)?;
        let name = &content.metadata.name;
        self.secrets(params::secret(Role::List, &class.parameters, name, None)?).await
    }

    /// Read anew each time: a rotated secret counts from the next call on.
    pub(super) async fn secrets(
        &self,
        reference: Option<SecretRef>,
    ) -> Result<BTreeMap<String, String>, InputError> {
        let Some(reference) = reference else { return Ok(BTreeMap::new()) };
        let secret = ObjectKey::new(reference.namespace, reference.name);
        let read = read_secret(&self.api, &secret).await;
        read.map_err(|source| InputError::Secret { secret, source })
    }
}

/// Deletes what nobody knows of any more; tries again for a while.
pub(super) async fn undo<Fut>(delete: impl Fn() -> Fut) -> Result<(), SnapshotterError>
where
    Fut: Future<Output = Result<(), CsiError>>,
{
    let mut pauses = UNDO_PAUSE.series();
    for _ in 1..UNDO_TRIES {
        match delete().await {
            Ok(()) => return Ok(()),
            Err(error) => {
                tracing::warn!(%error, "what the vanished content had is not deleted yet")
            }
        }
        tokio::time::sleep(pauses.pause()).await;
    }
    delete().await.map_err(SnapshotterError::Delete)
}

/// When a snapshot was cut, in nanoseconds. A driver that gives no time has 1970 written, as upstream.
pub(super) fn nanos(snapshot: &v1::Snapshot) -> i64 {
    snapshot.creation_time.as_ref().map_or(0, |time| {
        time.seconds.saturating_mul(1_000_000_000).saturating_add(time.nanos.into())
    })
}

/// A snapshot as the driver describes it.
fn taken(snapshot: v1::Snapshot) -> Taken {
    Taken {
        cut_at: nanos(&snapshot),
        handle: snapshot.snapshot_id,
        ready: snapshot.ready_to_use,
        size: Some(snapshot.size_bytes).filter(|bytes| *bytes > 0),
        group: Some(snapshot.group_snapshot_id).filter(|group| !group.is_empty()),
    }
}
