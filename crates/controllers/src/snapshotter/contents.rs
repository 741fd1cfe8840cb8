//! The loop over contents: look, decide, call the driver, write what it said.

use std::sync::Arc;

use longshore_cluster::{
    Cache, Cacheable, Change, Loop, Outcome, Patch, Reconciler, Sources, Subject, WorkQueue, clock,
    controller::note,
};
use longshore_core::{
    model::{
        ObjectKey,
        keys::finalizers,
        kinds::{Meta, VolumeSnapshotClass, VolumeSnapshotContent},
    },
    snapshot::{
        sidecar::{self, Next},
        writes,
    },
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Planted, Sidecar, error::SnapshotterError};

/// How many steps one pass takes before others come first.
pub(super) const STEPS: usize = 16;

/// The loop over contents.
pub(super) struct Contents {
    sidecar: Arc<Sidecar>,
    queue: WorkQueue<String>,
}

/// What follows a step that went well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing is to be done.
    Idle,
    /// Look again.
    On,
    /// The driver is not done yet: look again later, after longer and longer pauses.
    Unfinished,
}

impl Contents {
    pub(super) fn new(sidecar: &Arc<Sidecar>) -> Self {
        let queue = sidecar.context.queue("csi-snapshotter-content", sidecar.queue_options());
        Self { sidecar: sidecar.clone(), queue }
    }

    pub(super) async fn run(self, shutdown: &CancellationToken) {
        let (queue, sidecar) = (self.queue.clone(), self.sidecar.clone());
        let contents = Loop::new("snapshotter", Arc::new(self), queue);
        contents
            .workers(sidecar.workers())
            .resync(sidecar.config.resync_period)
            .run(shutdown)
            .await;
    }

    fn in_need(&self, content: &VolumeSnapshotContent) -> Option<String> {
        let ours =
            self.sidecar.is_here(&content.metadata) && content.spec.driver == self.sidecar.name;
        let needs = ours && sidecar::decide(content) != Next::Nothing;
        needs.then(|| content.metadata.name.clone())
    }

    fn changed(&self, change: &Change<VolumeSnapshotContent>) -> Option<String> {
        let Change::Applied { old, new } = change else { return None };
        let news = old.as_ref().is_none_or(|old| sidecar::worth_a_look(old, new));
        news.then(|| self.in_need(new)).flatten()
    }

    /// A class that appeared lets the contents begin that name it.
    fn of_class(&self, class: &VolumeSnapshotClass) -> Vec<String> {
        let names = |content: &VolumeSnapshotContent| {
            content.spec.volume_snapshot_class_name.as_deref() == Some(&*class.metadata.name)
        };
        let all = self.sidecar.contents.list();
        all.iter().filter(|one| names(one)).filter_map(|one| self.in_need(one)).collect()
    }
}

impl Reconciler for Contents {
    type Key = String;

    fn sources(&self, sources: &mut Sources<Self>) {
        let Sidecar { contents, classes, .. } = &*self.sidecar;
        sources
            .on(classes, |this, change| match change {
                Change::Applied { old: None, new } => this.of_class(new),
                _ => Vec::new(),
            })
            .on(contents, Self::changed)
            .on_resync(contents, Self::in_need);
    }

    fn subject(&self, name: &String) -> Subject {
        Subject::key(name)
    }

    async fn reconcile(&self, name: &String) -> Outcome {
        note("driver", &self.sidecar.name);
        self.sidecar.pass(&ObjectKey::cluster(name)).await
    }
}

impl Sidecar {
    fn serves(&self, content: &VolumeSnapshotContent) -> bool {
        let class = content.spec.volume_snapshot_class_name.as_deref().map(ObjectKey::cluster);
        let class = class.and_then(|class| self.classes.get(&class));
        sidecar::serves(&self.name, content, class.as_deref())
    }

    async fn pass(&self, key: &ObjectKey) -> Outcome {
        let mut conflict = None;
        for _ in 0..STEPS {
            let Some(content) = self.contents.get(key) else { return Outcome::Done };
            if !self.serves(&content) {
                return Outcome::Done;
            }
            let next = sidecar::decide(&content);
            let done = match &next {
                Next::Nothing => Ok(Progress::Idle),
                Next::DropNote => self.patch(&self.contents, &content, writes::settled()).await,
                Next::Release => self.release(&content).await,
                Next::Delete { .. } if self.config.has(Planted::ReleasesEarly) => {
                    self.release(&content).await
                }
                Next::Delete { handle } => self.delete(&content, handle).await,
                Next::Create { .. } => self.create(&content).await,
                Next::Find { handle } => self.find(&content, handle).await,
            };
            match done {
                Ok(Progress::Idle) => return Outcome::Done,
                Ok(Progress::On) => conflict = None,
                Ok(Progress::Unfinished) => {
                    // It may have been deleted meanwhile; then what was made goes now.
                    let newest = self.contents.get(key);
                    if !newest.is_some_and(|newest| sidecar::should_delete(&newest)) {
                        return Outcome::retry(format!(
                            "the snapshot of content {key} is not ready yet"
                        ));
                    }
                }
                Err(error) if error.is_gone() => return Outcome::Done,
                Err(error) if error.is_conflict() => {
                    if let Err(error) = self.refresh(&self.contents, key).await {
                        return Outcome::retry(error);
                    }
                    conflict = Some(error);
                }
                Err(error) => return self.failed(&content, &next, error).await,
            }
        }
        conflict.map_or(Outcome::Again, Outcome::retry)
    }

    /// Shows a failure once, and has the content looked at again.
    async fn failed(
        &self,
        content: &VolumeSnapshotContent,
        next: &Next,
        error: SnapshotterError,
    ) -> Outcome {
        let (reason, what) = match next {
            Next::Create { first: true } => ("SnapshotCreationFailed", "Failed to create snapshot"),
            Next::Create { first: false } | Next::Find { .. } => (
                "SnapshotContentCheckandUpdateFailed",
                "Failed to check and update snapshot content",
            ),
            // These have said what is to be said.
            Next::Delete { .. } | Next::Nothing | Next::DropNote | Next::Release => {
                return Outcome::retry(error);
            }
        };
        let message = format!("{what}: {error}");
        let newest = self.contents.get(&content.metadata.key());
        let shown = newest.as_ref().and_then(|newest| newest.status.as_ref());
        let shown = shown.and_then(|status| status.error.as_ref());
        let now = clock::seconds(clock::now());
        if let Some(patch) = writes::failed(shown, &message, &now) {
            let written = self.patch_status(&self.contents, content, patch).await;
            self.recorder.warning(content, reason, message);
            if let Err(error) = written {
                tracing::warn!(content = content.metadata.name, %error, "the failure is not in the status yet");
            }
        }
        self.again(&content.metadata, error)
    }

    /// When a failed call is made again.
    pub(super) fn again(&self, meta: &Meta, error: SnapshotterError) -> Outcome {
        match self.verdicts.begins_anew(&meta.uid) {
            true => Outcome::After(self.config.retry_interval_start),
            false => Outcome::retry(error),
        }
    }

    async fn release(&self, content: &VolumeSnapshotContent) -> Result<Progress, SnapshotterError> {
        let gone = [finalizers::CONTENT_BOUND];
        self.patch(&self.contents, content, writes::without_finalizers(&content.metadata, &gone))
            .await
    }

    /// Patches an object, if it is still the same one.
    pub(super) async fn patch<T: Cacheable>(
        &self,
        cache: &Cache<T>,
        object: &T,
        mut patch: Value,
    ) -> Result<Progress, SnapshotterError> {
        patch["metadata"]["uid"] = object.meta().uid.as_str().into();
        let written = self.api.patch::<T>(&object.key(), Patch::Merge(&patch)).await?;
        cache.assume(&written);
        Ok(Progress::On)
    }

    /// Patches the status of an object, if it is still the same one.
    pub(super) async fn patch_status<T: Cacheable>(
        &self,
        cache: &Cache<T>,
        object: &T,
        mut patch: Value,
    ) -> Result<(), SnapshotterError> {
        patch["metadata"]["uid"] = object.meta().uid.as_str().into();
        let written = self.api.patch_status::<T>(&object.key(), Patch::Merge(&patch)).await?;
        cache.assume(&written);
        Ok(())
    }

    /// After a conflict: the next look sees what is there now.
    pub(super) async fn refresh<T: Cacheable>(
        &self,
        cache: &Cache<T>,
        key: &ObjectKey,
    ) -> Result<(), SnapshotterError> {
        if let Some(live) = self.api.get_raw::<T>(key).await? {
            cache.assume(&live);
        }
        Ok(())
    }
}
