//! Volume attributes classes stay while a volume or a claim names them.

use std::sync::Arc;

use longshore_cluster::{
    Api, ApiError, Cache, Change, Context, Loop, Outcome, QueueOptions, Reconciler, Sources,
    Subject, WorkQueue,
};
use longshore_core::{
    model::{
        ObjectKey,
        keys::finalizers::VAC_PROTECTION,
        kinds::{Claim, Volume, VolumeAttributesClass},
    },
    protect::{classes_of_claim, classes_of_volume, finalizer_step},
};
use tokio_util::sync::CancellationToken;

use super::{apply, in_need, outcome};

const WORKERS: usize = 1;
const BY_CLASS: &str = "by-attributes-class";

/// Adds and removes the protection finalizer of volume attributes classes.
pub struct ClassProtection {
    api: Api,
    classes: Cache<VolumeAttributesClass>,
    claims: Cache<Claim>,
    volumes: Cache<Volume>,
    queue: WorkQueue<ObjectKey>,
}

impl ClassProtection {
    /// A loop that does nothing until [`Self::run`].
    #[must_use]
    pub fn new(context: &Context) -> Self {
        let new = Self {
            api: context.api.clone(),
            classes: context.cache(),
            claims: context.cache(),
            volumes: context.cache(),
            queue: context.queue("vacprotection", QueueOptions::controller()),
        };
        new.claims.index(BY_CLASS, classes_of_claim);
        new.volumes.index(BY_CLASS, classes_of_volume);
        new
    }

    pub async fn run(self, shutdown: CancellationToken) {
        let queue = self.queue.clone();
        Loop::new("protect", Arc::new(self), queue).workers(WORKERS).run(&shutdown).await;
    }

    async fn protect(&self, key: &ObjectKey) -> Result<(), ApiError> {
        let Some(class) = self.classes.get(key) else { return Ok(()) };
        let step = finalizer_step(&class.metadata, VAC_PROTECTION, self.in_use(&key.name));
        apply(&self.api, &self.classes, &class.metadata, VAC_PROTECTION, step).await
    }

    fn in_use(&self, class: &str) -> bool {
        self.claims.has_indexed(BY_CLASS, class) || self.volumes.has_indexed(BY_CLASS, class)
    }
}

impl Reconciler for ClassProtection {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources
            .on(&self.classes, |_, change| in_need(change, VAC_PROTECTION))
            .on(&self.claims, |_, change| released(change, classes_of_claim))
            .on(&self.volumes, |_, change| released(change, classes_of_volume));
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::key(&key.name)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        outcome(self.protect(key).await)
    }
}

/// The classes that an object named before and names no more.
fn released<T>(change: &Change<T>, of: fn(&T) -> Vec<String>) -> Vec<ObjectKey> {
    let (before, after) = match change {
        Change::Applied { old: Some(old), new } => (of(old), of(new)),
        Change::Applied { old: None, .. } => return Vec::new(),
        Change::Deleted { old } => (of(old), Vec::new()),
    };
    let gone = before.into_iter().filter(|class| !after.contains(class));
    gone.map(ObjectKey::cluster).collect()
}
