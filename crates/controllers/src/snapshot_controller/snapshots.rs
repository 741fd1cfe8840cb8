//! The loop over snapshots: look, decide, act, until there is nothing to do.

use std::sync::Arc;

use longshore_cluster::{Change, Loop, Outcome, Reconciler, Sources, Subject, WorkQueue};
use longshore_core::{
    model::{
        ClaimPhase, ObjectKey,
        kinds::{Claim, HasMeta as _, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent},
    },
    snapshot::{
        self, Failure,
        bind::{Class, Step, View, decide},
        content_name, needs_claim, status, writes,
    },
};
use tokio_util::sync::CancellationToken;

use super::{BY_CLAIM, BY_SNAPSHOT, Shared, error::ControllerError};

/// How many steps one pass takes before others come first.
pub(super) const STEPS: usize = 16;

/// The loop over snapshots.
pub(super) struct Snapshots {
    pub(super) shared: Arc<Shared>,
    pub(super) queue: WorkQueue<ObjectKey>,
}

/// What follows a step.
pub(super) enum Flow {
    /// Look again.
    On,
    /// The API has no content of that name.
    NoContent,
    End(Outcome),
}

impl Snapshots {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let queue = shared.context.queue("snapshot-controller-snapshot", shared.queue_options());
        Self { shared: shared.clone(), queue }
    }

    pub(super) async fn run(self, shutdown: &CancellationToken) {
        let (queue, shared) = (self.queue.clone(), self.shared.clone());
        let snapshots = Loop::new("snapshot", Arc::new(self), queue);
        snapshots.workers(shared.workers()).resync(shared.config.resync_period).run(shutdown).await;
    }

    /// A claim that was bound lets snapshots of it begin, and snapshots that it was restored from go.
    fn of_claim(&self, claim: &Claim) -> Vec<ObjectKey> {
        let snapshots = &self.shared.snapshots;
        let taken = snapshots.by_index(BY_CLAIM, &claim.metadata.key().to_string()).into_iter();
        let taken = taken.filter(|one| needs_claim(one)).map(|one| one.key());
        let deleting =
            |key: &ObjectKey| snapshots.get(key).is_some_and(|one| one.metadata.deleting());
        taken.chain(snapshot::restored_from(claim).filter(deleting)).collect()
    }

    /// A class that appeared lets the snapshots begin that wait for it, or for a default class.
    fn of_class(&self, class: &VolumeSnapshotClass) -> Vec<ObjectKey> {
        let waits = |snapshot: &VolumeSnapshot| {
            let named = snapshot.spec.volume_snapshot_class_name.as_ref();
            named.is_none_or(|named| *named == class.metadata.name) && needs_claim(snapshot)
        };
        let all = self.shared.snapshots.list();
        all.iter().filter(|one| waits(one)).map(|one| one.key()).collect()
    }

    fn observe(&self, change: &Change<VolumeSnapshot>) -> Option<ObjectKey> {
        match change {
            Change::Applied { new, .. } => Some(new.key()),
            Change::Deleted { old } => {
                self.shared.metrics.deleted(&**old);
                None
            }
        }
    }

    async fn pass(&self, key: &ObjectKey) -> Outcome {
        let (mut live, mut conflict) = (None, None);
        for _ in 0..STEPS {
            let Some(snapshot) = self.shared.snapshots.get(key) else { return Outcome::Done };
            let name = content_name(&snapshot);
            self.shared.metrics.begun(&*snapshot, || self.driver_of(&snapshot, &name));
            let released = self.release_claim(&snapshot).await;
            if snapshot.metadata.deleting()
                && let Err(error) = released
            {
                return Outcome::retry(error);
            }
            let step = self.look(&snapshot, &name, live.as_ref() == Some(&name));
            match self.act(step, &snapshot, &name).await {
                Ok(Flow::On) => conflict = None,
                Ok(Flow::NoContent) => live = Some(name),
                // The claim does not hold up its snapshot, but it is looked after.
                Ok(Flow::End(Outcome::Done)) => return released.into(),
                Ok(Flow::End(outcome)) => return outcome,
                Err(error) if error.is_conflict() => {
                    if let Err(error) = self.refresh(key, &name).await {
                        return Outcome::retry(error);
                    }
                    conflict = Some(error);
                }
                Err(error) => return Outcome::retry(error),
            }
        }
        conflict.map_or(Outcome::Again, Outcome::retry)
    }

    /// The driver of the snapshot, by its content or its class.
    fn driver_of(&self, snapshot: &VolumeSnapshot, content: &str) -> Option<String> {
        if let Some(content) = self.shared.contents.get(&ObjectKey::cluster(content)) {
            return Some(content.spec.driver.clone());
        }
        let class = snapshot.spec.volume_snapshot_class_name.as_deref()?;
        Some(self.shared.classes.get(&ObjectKey::cluster(class))?.driver.clone())
    }

    fn look(&self, snapshot: &VolumeSnapshot, name: &str, content_is_live: bool) -> Step {
        let content = self.shared.contents.get(&ObjectKey::cluster(name));
        let class = match &snapshot.spec.volume_snapshot_class_name {
            None => Class::Unnamed,
            Some(class) => match self.shared.classes.get(&ObjectKey::cluster(class)) {
                Some(_) => Class::Known,
                None => Class::Missing,
            },
        };
        let claims = self.shared.claims.by_index(BY_SNAPSHOT, &snapshot.key().to_string());
        let group = self.shared.group_of(snapshot, content.as_deref());
        let parent = self.shared.parent_of(snapshot);
        decide(&View {
            snapshot,
            content: content.as_deref(),
            content_is_live,
            class,
            group: group.view(),
            parent: parent.as_deref(),
            restoring: claims.iter().any(|claim| claim.status.phase == ClaimPhase::Pending),
        })
    }

    async fn act(
        &self,
        step: Step,
        snapshot: &VolumeSnapshot,
        content: &str,
    ) -> Result<Flow, ControllerError> {
        let key = snapshot.key();
        let content = ObjectKey::cluster(content);
        match step {
            Step::Nothing => return Ok(Flow::End(Outcome::Done)),
            Step::Wait(why) => return Ok(Flow::End(Outcome::retry(format!("{key}: {why}")))),
            Step::Fail(failure) => return self.fail(snapshot, &failure).await,
            Step::Blocked { reason, message } => {
                self.shared.recorder.warning(snapshot, reason, message.clone());
                return Ok(Flow::End(Outcome::retry(message)));
            }
            Step::FindClass => return self.find_class(snapshot).await,
            Step::CreateContent => return self.create_content(snapshot).await,
            Step::AddFinalizers(new) => {
                let patch = writes::with_finalizers(&snapshot.metadata, &new);
                if let Err(error) = self.shared.patch(&self.shared.snapshots, &key, &patch).await {
                    return self.finalizer_failed(snapshot, error).await;
                }
            }
            Step::Bind(patch) => {
                if let Err(error) = self.shared.patch(&self.shared.contents, &content, &patch).await
                {
                    return self
                        .not_bound(
                            snapshot,
                            "SnapshotBindFailed",
                            "Snapshot failed to bind VolumeSnapshotContent",
                            error,
                        )
                        .await;
                }
            }
            Step::AddOwner(patch) => {
                self.shared.patch(&self.shared.snapshots, &key, &patch).await?;
            }
            Step::CopyStatus(copied) => return self.copy_status(snapshot, copied).await,
            Step::LookForContent => {
                let live = self.shared.api.get_raw::<VolumeSnapshotContent>(&content).await?;
                let Some(live) = live else { return Ok(Flow::NoContent) };
                self.shared.contents.assume(&live);
            }
            Step::MarkContent => self.mark_content(&content).await?,
            Step::DeleteContent => return self.delete_content(snapshot, &content).await,
            Step::RemoveFinalizers(gone) => {
                let patch = writes::without_finalizers(&snapshot.metadata, &gone);
                self.shared.patch(&self.shared.snapshots, &key, &patch).await?;
            }
        }
        Ok(Flow::On)
    }

    async fn copy_status(
        &self,
        snapshot: &VolumeSnapshot,
        copied: status::Copied,
    ) -> Result<Flow, ControllerError> {
        let status::Copied { mut patch, created, ready } = copied;
        patch["metadata"]["uid"] = snapshot.metadata.uid.as_str().into();
        let key = snapshot.key();
        if let Err(error) = self.shared.patch_status(&self.shared.snapshots, &key, &patch).await {
            return self
                .not_bound(
                    snapshot,
                    "SnapshotStatusUpdateFailed",
                    "Snapshot status update failed",
                    error,
                )
                .await;
        }
        let recorder = &self.shared.recorder;
        if created {
            self.shared.metrics.created(snapshot);
            let text = format!("Snapshot {key} was successfully created by the CSI driver.");
            recorder.normal(snapshot, "SnapshotCreated", text);
        }
        if ready {
            self.shared.metrics.ready(snapshot);
            let text = format!("Snapshot {key} is ready to use.");
            recorder.normal(snapshot, "SnapshotReady", text);
        }
        Ok(Flow::On)
    }

    async fn finalizer_failed(
        &self,
        snapshot: &VolumeSnapshot,
        error: ControllerError,
    ) -> Result<Flow, ControllerError> {
        self.not_bound(
            snapshot,
            "SnapshotFinalizerError",
            "Failed to check and update snapshot",
            error,
        )
        .await
    }

    /// A write was refused. That the object was changed meanwhile is no failure.
    async fn not_bound(
        &self,
        snapshot: &VolumeSnapshot,
        reason: &'static str,
        what: &str,
        error: ControllerError,
    ) -> Result<Flow, ControllerError> {
        if error.is_conflict() {
            return Err(error);
        }
        self.fail(snapshot, &Failure::unready(reason, format!("{what}, {error}"))).await
    }

    /// Shows a failure once, and ends the pass.
    pub(super) async fn fail(
        &self,
        snapshot: &VolumeSnapshot,
        failure: &Failure,
    ) -> Result<Flow, ControllerError> {
        let error = snapshot.status.as_ref().and_then(|status| status.error.as_ref());
        self.shared.show(&self.shared.snapshots, snapshot, error, failure).await
    }

    /// After a conflict: the next look sees what is there now.
    async fn refresh(&self, key: &ObjectKey, content: &str) -> Result<(), ControllerError> {
        let shared = &self.shared;
        shared.refresh(&shared.snapshots, key).await?;
        shared.refresh(&shared.contents, &ObjectKey::cluster(content)).await
    }
}

impl Reconciler for Snapshots {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        let Shared { snapshots, contents, classes, claims, nodes, .. } = &*self.shared;
        if let Some(nodes) = nodes {
            sources.needs(nodes);
        }
        sources
            .on(classes, |this, change| {
                change.applied().map_or_else(Vec::new, |class| this.of_class(class))
            })
            .on(claims, |this, change| this.of_claim(change.object()))
            .on(contents, |_, change| {
                let reference = &change.object().spec.volume_snapshot_ref;
                Some(ObjectKey::new(&reference.namespace, &reference.name))
            })
            .on(snapshots, Self::observe)
            .on_resync(snapshots, |_, snapshot| [snapshot.key()]);
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::key(key)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        pass_outcome(self.pass(key).await)
    }
}

/// An object that is gone ends whatever there was to do.
pub(super) fn pass_outcome(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Retry(error) if gone(&*error) => Outcome::Done,
        outcome => outcome,
    }
}

fn gone(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    match error.downcast_ref::<ControllerError>() {
        Some(ControllerError::Api(error)) => error.is_not_found(),
        _ => false,
    }
}
