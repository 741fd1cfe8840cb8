//! Volumes stay while a claim is bound to them.

use std::sync::Arc;

use longshore_cluster::{Api, ApiError, Cache, Change, Metrics, QueueOptions, WorkQueue};
use longshore_core::{
    model::{ObjectKey, keys::finalizers::PV_PROTECTION, kinds::Volume},
    protect::{Finalizer, finalizer_step, needs_attention, volume_in_use},
};
use tokio_util::sync::CancellationToken;

use super::{apply, outcome};

const WORKERS: usize = 4;

/// Adds and removes the volumes' protection finalizer.
pub struct VolumeProtection {
    /// Where finalizers are written.
    pub api: Api,
    /// Volumes.
    pub volumes: Cache<Volume>,
    /// Where the queue reports; `None` keeps it quiet.
    pub metrics: Option<Metrics>,
}

impl VolumeProtection {
    /// Works until `shutdown` is cancelled.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut options = QueueOptions::controller();
        options.metrics = self.metrics.clone();
        let queue: WorkQueue<ObjectKey> = WorkQueue::new("pvprotection", options);
        tokio::select! {
            () = self.volumes.synced() => {}
            () = shutdown.cancelled() => return,
        }
        let adding = queue.clone();
        self.volumes.subscribe(move |change| {
            if let Change::Applied { new, .. } = change
                && needs_attention(&new.metadata, PV_PROTECTION)
            {
                adding.add(new.metadata.key());
            }
        });
        let worker = Arc::new(self);
        queue
            .run_until(WORKERS, &shutdown, move |key| {
                let worker = worker.clone();
                async move { outcome(worker.turn(&key).await) }
            })
            .await;
    }

    async fn turn(&self, key: &ObjectKey) -> Result<(), ApiError> {
        let Some(volume) = self.volumes.get(key) else { return Ok(()) };
        let step = finalizer_step(&volume.metadata, PV_PROTECTION, volume_in_use(&volume));
        let written = apply::<Volume>(&self.api, &volume.metadata, PV_PROTECTION, step).await?;
        if let Some(written) = written.filter(|_| step == Finalizer::Add) {
            self.volumes.assume(&written);
        }
        Ok(())
    }
}
