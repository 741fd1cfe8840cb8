//! Volumes stay while a claim is bound to them.

use std::sync::Arc;

use longshore_cluster::{
    Api, ApiError, Cache, Context, Loop, Outcome, QueueOptions, Reconciler, Sources, Subject,
    WorkQueue,
};
use longshore_core::{
    model::{ObjectKey, keys::finalizers::PV_PROTECTION, kinds::Volume},
    protect::{finalizer_step, volume_in_use},
};
use tokio_util::sync::CancellationToken;

use super::{apply, in_need, outcome};

const WORKERS: usize = 4;

/// Adds and removes the volumes' protection finalizer.
pub struct VolumeProtection {
    api: Api,
    volumes: Cache<Volume>,
    queue: WorkQueue<ObjectKey>,
}

impl VolumeProtection {
    /// A loop that does nothing until [`Self::run`].
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            api: context.api.clone(),
            volumes: context.cache(),
            queue: context.queue("pvprotection", QueueOptions::controller()),
        }
    }

    pub async fn run(self, shutdown: CancellationToken) {
        let queue = self.queue.clone();
        Loop::new("protect", Arc::new(self), queue).workers(WORKERS).run(&shutdown).await;
    }

    async fn protect(&self, key: &ObjectKey) -> Result<(), ApiError> {
        let Some(volume) = self.volumes.get(key) else { return Ok(()) };
        let step = finalizer_step(&volume.metadata, PV_PROTECTION, volume_in_use(&volume));
        apply(&self.api, &self.volumes, &volume.metadata, PV_PROTECTION, step).await
    }
}

impl Reconciler for VolumeProtection {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources.on(&self.volumes, |_, change| in_need(change, PV_PROTECTION));
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::volume(&key.name)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        outcome(self.protect(key).await)
    }
}
