//! Volume attributes classes stay while a volume or a claim names them.

use std::sync::Arc;

use longshore_cluster::{
    Api, ApiError, Cache, Change, Metrics, QueueOptions, SharedCaches, WorkQueue,
};
use longshore_core::{
    model::{
        ObjectKey,
        keys::finalizers::VAC_PROTECTION,
        kinds::{Claim, Volume, VolumeAttributesClass},
    },
    protect::{Finalizer, classes_of_claim, classes_of_volume, finalizer_step, needs_attention},
};
use tokio_util::sync::CancellationToken;

use super::{apply, outcome};

const WORKERS: usize = 1;
const BY_CLASS: &str = "by-attributes-class";

/// What the loop watches.
#[derive(Clone)]
pub struct ClassProtectionCaches {
    /// Volume attributes classes.
    pub classes: Cache<VolumeAttributesClass>,
    /// Claims of all namespaces.
    pub claims: Cache<Claim>,
    /// Volumes.
    pub volumes: Cache<Volume>,
}

impl ClassProtectionCaches {
    /// The caches that all loops of the process share.
    #[must_use]
    pub fn shared(caches: &SharedCaches) -> Self {
        Self { classes: caches.of(), claims: caches.of(), volumes: caches.of() }
    }
}

/// Adds and removes the protection finalizer of volume attributes classes.
pub struct ClassProtection {
    /// Where finalizers are written.
    pub api: Api,
    /// What is watched.
    pub caches: ClassProtectionCaches,
    /// Where the queue reports; `None` keeps it quiet.
    pub metrics: Option<Metrics>,
}

impl ClassProtection {
    /// Works until `shutdown` is cancelled.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut options = QueueOptions::controller();
        options.metrics = self.metrics.clone();
        let queue: WorkQueue<ObjectKey> = WorkQueue::new("vacprotection", options);
        self.caches.claims.index(BY_CLASS, classes_of_claim);
        self.caches.volumes.index(BY_CLASS, classes_of_volume);
        let synced = async {
            self.caches.classes.synced().await;
            self.caches.claims.synced().await;
            self.caches.volumes.synced().await;
        };
        tokio::select! {
            () = synced => {}
            () = shutdown.cancelled() => return,
        }
        self.subscribe(&queue);
        let worker = Arc::new(self);
        queue
            .run_until(WORKERS, &shutdown, move |key| {
                let worker = worker.clone();
                async move { outcome(worker.turn(&key).await) }
            })
            .await;
    }

    fn subscribe(&self, queue: &WorkQueue<ObjectKey>) {
        let adding = queue.clone();
        self.caches.classes.subscribe(move |change| {
            if let Change::Applied { new, .. } = change
                && needs_attention(&new.metadata, VAC_PROTECTION)
            {
                adding.add(new.metadata.key());
            }
        });
        let adding = queue.clone();
        self.caches.claims.subscribe(move |change| let_go(&adding, change, classes_of_claim));
        let adding = queue.clone();
        self.caches.volumes.subscribe(move |change| let_go(&adding, change, classes_of_volume));
    }

    async fn turn(&self, key: &ObjectKey) -> Result<(), ApiError> {
        let Some(class) = self.caches.classes.get(key) else { return Ok(()) };
        let step = finalizer_step(&class.metadata, VAC_PROTECTION, self.in_use(&key.name));
        let written =
            apply::<VolumeAttributesClass>(&self.api, &class.metadata, VAC_PROTECTION, step)
                .await?;
        if let Some(written) = written.filter(|_| step == Finalizer::Add) {
            self.caches.classes.assume(&written);
        }
        Ok(())
    }

    fn in_use(&self, class: &str) -> bool {
        !self.caches.claims.by_index(BY_CLASS, class).is_empty()
            || !self.caches.volumes.by_index(BY_CLASS, class).is_empty()
    }
}

/// Looks at the classes that an object named before and names no more.
fn let_go<T>(queue: &WorkQueue<ObjectKey>, change: &Change<T>, of: fn(&T) -> Vec<String>) {
    let (before, after) = match change {
        Change::Applied { old: Some(old), new } => (of(old), of(new)),
        Change::Applied { old: None, .. } => return,
        Change::Deleted { old } => (of(old), Vec::new()),
    };
    for class in before.into_iter().filter(|class| !after.contains(class)) {
        queue.add(ObjectKey::cluster(class));
    }
}
