//! Claims whose snapshots are gone: they lose our finalizer, too.
//!
//! A snapshot that goes with our finalizers has its claim released by its own last pass. One from which
//! somebody took them, or that went before it had any, has no pass any more; nor have those that went
//! while no controller ran.

use std::sync::Arc;

use longshore_cluster::{ApiError, Change, Loop, Outcome, Reconciler, Sources, Subject, WorkQueue};
use longshore_core::{
    model::{
        ObjectKey,
        keys::finalizers,
        kinds::{Claim, VolumeSnapshot},
    },
    snapshot::needs_claim,
};
use tokio_util::sync::CancellationToken;

use super::{BY_CLAIM, Shared};
use crate::finalizers::remove_finalizer;

const FINALIZER: &str = finalizers::CLAIM_AS_SOURCE;

impl Shared {
    /// Takes our finalizer off the claim, unless a snapshot is still taken of it.
    pub(super) async fn release_claim(&self, key: &ObjectKey) -> Result<(), ApiError> {
        let kept = |claim: Arc<Claim>| claim.metadata.has_finalizer(FINALIZER);
        if !self.claims.get(key).is_some_and(kept) {
            return Ok(());
        }
        let taken = self.snapshots.by_index(BY_CLAIM, &key.to_string());
        if taken.iter().any(|one| needs_claim(one)) {
            return Ok(());
        }
        let released = remove_finalizer::<Claim>(&self.api, key, FINALIZER).await?;
        released.assume_in(&self.claims);
        Ok(())
    }
}

/// The loop over claims.
pub(super) struct Claims {
    shared: Arc<Shared>,
    queue: WorkQueue<ObjectKey>,
}

impl Claims {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let queue = shared.context.queue("snapshot-controller-claim", shared.queue_options());
        Self { shared: shared.clone(), queue }
    }

    pub(super) async fn run(self, shutdown: &CancellationToken) {
        let (queue, shared) = (self.queue.clone(), self.shared.clone());
        let claims = Loop::new("snapshot-claim", Arc::new(self), queue);
        claims.workers(shared.workers()).resync(shared.config.resync_period).run(shutdown).await;
    }
}

/// The claim that a snapshot which is gone was taken of.
fn of_gone(change: &Change<VolumeSnapshot>) -> Option<ObjectKey> {
    let gone = change.deleted()?;
    let claim = gone.spec.source.persistent_volume_claim_name.as_ref()?;
    Some(ObjectKey::new(&gone.metadata.namespace, claim))
}

fn kept(claim: &Claim) -> Option<ObjectKey> {
    claim.metadata.has_finalizer(FINALIZER).then(|| claim.metadata.key())
}

impl Reconciler for Claims {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        let Shared { snapshots, claims, .. } = &*self.shared;
        sources
            .on(snapshots, |_, change| of_gone(change))
            .on(claims, |_, change| match change {
                // Its snapshots may have gone before this process began.
                Change::Applied { old: None, new } => kept(new),
                _ => None,
            })
            .on_resync(claims, |_, claim| kept(claim));
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::claim(key)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        self.shared.release_claim(key).await.into()
    }
}
