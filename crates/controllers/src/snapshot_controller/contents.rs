//! Contents that are bound to a snapshot stay until the snapshotter lets them go.

use std::sync::Arc;

use longshore_cluster::{
    Loop, OptionalExt as _, Outcome, Patch, Reconciler, Sources, Subject, WorkQueue,
};
use longshore_core::{
    model::{
        ObjectKey,
        keys::finalizers,
        kinds::{HasMeta as _, VolumeSnapshotContent},
    },
    snapshot::{
        bind::{ContentStep, decide_content},
        writes,
    },
};
use tokio_util::sync::CancellationToken;

use super::Shared;

/// The loop over contents.
pub(super) struct Contents {
    shared: Arc<Shared>,
    queue: WorkQueue<ObjectKey>,
}

impl Contents {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let queue = shared.context.queue("snapshot-controller-content", shared.queue_options());
        Self { shared: shared.clone(), queue }
    }

    pub(super) async fn run(self, shutdown: &CancellationToken) {
        let (queue, shared) = (self.queue.clone(), self.shared.clone());
        let contents = Loop::new("snapshot-content", Arc::new(self), queue);
        contents.workers(shared.workers()).resync(shared.config.resync_period).run(shutdown).await;
    }
}

/// Contents that need a pass; most changes are the snapshotter's, and need none.
fn in_need(content: &VolumeSnapshotContent) -> Option<ObjectKey> {
    (decide_content(content) != ContentStep::Nothing).then(|| content.key())
}

impl Reconciler for Contents {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        let contents = &self.shared.contents;
        sources
            .on(contents, |_, change| change.applied().and_then(|content| in_need(content)))
            .on_resync(contents, |_, content| in_need(content));
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::key(key)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        let Shared { contents, api, recorder, .. } = &*self.shared;
        let Some(content) = contents.get(key) else { return Outcome::Done };
        match decide_content(&content) {
            ContentStep::Nothing => Outcome::Done,
            ContentStep::Invalid(message) => {
                recorder.warning(&*content, "ContentValidationError", message);
                Outcome::retry(format!("content {key}: {message}"))
            }
            ContentStep::AddFinalizer => {
                let patch =
                    writes::with_finalizers(&content.metadata, &[finalizers::CONTENT_BOUND]);
                let written =
                    api.patch::<VolumeSnapshotContent>(key, Patch::Merge(&patch)).await.optional();
                match written {
                    Ok(Some(written)) => {
                        contents.assume(&written);
                        Outcome::Done
                    }
                    Ok(None) => Outcome::Done,
                    Err(error) if error.is_conflict() => self.shared.refresh_content(key).await,
                    Err(error) => Outcome::retry(error),
                }
            }
        }
    }
}

impl Shared {
    /// After a conflict: the next pass sees what is there now.
    pub(super) async fn refresh_content(&self, key: &ObjectKey) -> Outcome {
        match self.api.get_raw::<VolumeSnapshotContent>(key).await {
            Ok(Some(live)) => {
                self.contents.assume(&live);
                Outcome::Again
            }
            Ok(None) => Outcome::Done,
            Err(error) => Outcome::retry(error),
        }
    }
}
