//! Contents that are bound to a snapshot stay until the snapshotter lets them go.

use std::sync::Arc;

use longshore_cluster::{Cache, Cacheable, Loop, Outcome, Reconciler, Sources, Subject, WorkQueue};
use longshore_core::{
    model::{
        ObjectKey,
        keys::finalizers,
        kinds::{VolumeGroupSnapshotContent, VolumeSnapshotContent},
    },
    snapshot::{
        bind::{ContentStep, decide_content},
        group::bind::decide_content as decide_group_content,
        writes,
    },
};
use tokio_util::sync::CancellationToken;

use super::{
    Shared,
    error::ControllerError,
    snapshots::{STEPS, pass_outcome},
};

/// A kind of contents.
pub(super) trait Content: Cacheable {
    /// Keeps one that is bound.
    const FINALIZER: &'static str;

    fn next(&self) -> ContentStep;
}

impl Content for VolumeSnapshotContent {
    const FINALIZER: &'static str = finalizers::CONTENT_BOUND;

    fn next(&self) -> ContentStep {
        decide_content(self)
    }
}

impl Content for VolumeGroupSnapshotContent {
    const FINALIZER: &'static str = finalizers::GROUP_CONTENT_BOUND;

    fn next(&self) -> ContentStep {
        decide_group_content(self)
    }
}

/// The loop over the contents of one kind.
pub(super) struct Contents<T> {
    shared: Arc<Shared>,
    contents: Cache<T>,
    queue: WorkQueue<ObjectKey>,
}

impl<T: Content> Contents<T> {
    pub(super) fn new(shared: &Arc<Shared>, contents: &Cache<T>, queue: &str) -> Self {
        let queue = shared.context.queue(queue, shared.queue_options());
        Self { shared: shared.clone(), contents: contents.clone(), queue }
    }

    pub(super) async fn run(self, step: &'static str, shutdown: &CancellationToken) {
        let (queue, shared) = (self.queue.clone(), self.shared.clone());
        let contents = Loop::new(step, Arc::new(self), queue);
        contents.workers(shared.workers()).resync(shared.config.resync_period).run(shutdown).await;
    }

    async fn pass(&self, key: &ObjectKey) -> Result<(), ControllerError> {
        let Some(content) = self.contents.get(key) else { return Ok(()) };
        match content.next() {
            ContentStep::Nothing => Ok(()),
            ContentStep::Invalid { reason, message } => {
                self.shared.recorder.warning(&*content, reason, message);
                Err(ControllerError::Invalid(message))
            }
            ContentStep::AddFinalizer => {
                let patch = writes::with_finalizers(content.meta(), &[T::FINALIZER]);
                self.shared.patch(&self.contents, key, &patch).await
            }
        }
    }
}

/// Contents that need a pass; most changes are the snapshotter's, and need none.
fn in_need<T: Content>(content: &T) -> Option<ObjectKey> {
    (content.next() != ContentStep::Nothing).then(|| content.key())
}

impl<T: Content> Reconciler for Contents<T> {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources
            .on(&self.contents, |_, change| change.applied().and_then(|one| in_need(&**one)))
            .on_resync(&self.contents, |_, content| in_need(content));
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::key(key)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        let mut done = self.pass(key).await;
        for _ in 1..STEPS {
            if !done.as_ref().is_err_and(ControllerError::is_conflict) {
                break;
            }
            done = self.shared.refresh(&self.contents, key).await;
            if done.is_ok() {
                done = self.pass(key).await;
            }
        }
        pass_outcome(done.into())
    }
}
