//! Keeps claims that are being cloned, and lets them go when their clones are there.

use std::sync::Arc;

use longshore_cluster::{Loop, Outcome, QueueOptions, Reconciler, Sources, Subject};
use longshore_core::{
    model::{
        ClaimPhase, HasMeta, ObjectKey,
        keys::finalizers,
        kinds::{Claim, Meta},
    },
    provision::source::{SourceKind, clone_source, cloning},
};
use tokio_util::sync::CancellationToken;

use super::make::CsiProvisioner;
use crate::finalizers::remove_finalizer;

/// The name of the index of clones by the claim that they are made from.
const BY_SOURCE: &str = "clone-source";

/// Takes the finalizer off deleted sources until `shutdown`; ends at once for a driver that
/// cannot clone.
pub(super) async fn run(provisioner: Arc<CsiProvisioner>, shutdown: CancellationToken) {
    let config = &provisioner.config;
    if !provisioner.driver.capabilities.clone_volume || config.clone_threads == 0 {
        return;
    }
    let retry = QueueOptions::backoff(config.retry_interval_start, config.retry_interval_max);
    let threads = config.clone_threads;
    provisioner.parts.claims.index(BY_SOURCE, |claim| {
        let source = clone_source(claim);
        let key = source.map(|name| ObjectKey::new(&claim.metadata.namespace, name).to_string());
        key.into_iter().collect()
    });
    let queue = provisioner.parts.context.queue("clones", retry);
    let sources = Arc::new(CloneSources(provisioner));
    Loop::new("clone", sources, queue).workers(threads).run(&shutdown).await;
}

/// Claims that are being cloned.
struct CloneSources(Arc<CsiProvisioner>);

impl Reconciler for CloneSources {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources.on(&self.0.parts.claims, |_, change| {
            let claim = change.object();
            let applied = change.applied().is_some();
            let held = (applied && is_held(claim.meta())).then(|| claim.key());
            // A clone that is there, or gone, may have been the last one to wait for.
            let waits = applied && claim.status.phase == ClaimPhase::Pending;
            let source = clone_source(claim).filter(|_| !waits);
            let source = source.map(|name| ObjectKey::new(&claim.metadata.namespace, name));
            held.into_iter().chain(source)
        });
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::claim(key)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        self.0.release_claim(key).await
    }
}

/// Deleted, and there only because of our finalizer as far as we know.
fn is_held(meta: &Meta) -> bool {
    meta.deleting() && meta.has_finalizer(finalizers::CLONING_PROTECTION)
}

impl CsiProvisioner {
    async fn release_claim(&self, key: &ObjectKey) -> Outcome {
        let claims = &self.parts.claims;
        let Some(source) = claims.get(key).filter(|claim| is_held(claim.meta())) else {
            return Outcome::Done;
        };
        let clones = claims.by_index(BY_SOURCE, &key.to_string());
        let clones = clones.iter().map(|clone| clone.as_ref() as &Claim);
        if let Some(clone) = cloning(source.meta(), clones) {
            let name = &clone.metadata.name;
            let text = format!("PVC '{name}' is in 'Pending' state, cloning in progress");
            return Outcome::retry(text);
        }
        if self.is_begun_from(SourceKind::Claim, key) {
            let text = "a clone was begun whose claim is gone; its outcome is not known";
            return Outcome::retry(text);
        }
        let finalizer = finalizers::CLONING_PROTECTION;
        match remove_finalizer::<Claim>(&self.parts.api, key, finalizer).await {
            Err(error) if error.is_conflict() => Outcome::Again,
            changed => changed.map(|changed| changed.assume_in(claims)).into(),
        }
    }

    /// Whether an intent tells of a call that fills a volume from this object.
    pub(super) fn is_begun_from(&self, kind: SourceKind, key: &ObjectKey) -> bool {
        self.intents.as_ref().is_some_and(|intents| intents.is_begun_from(kind, key))
    }
}
