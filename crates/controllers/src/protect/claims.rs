//! Claims stay while a pod on a node names them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use longshore_cluster::{
    Api, ApiError, Cache, Change, Metrics, Outcome, Patch, QueueOptions, SharedCaches, WorkQueue,
    clock,
};
use longshore_core::{
    attach::resolve::terminated,
    model::{
        ObjectKey,
        keys::finalizers::PVC_PROTECTION,
        kinds::{Claim, Pod},
    },
    protect::{
        Finalizer, UNUSED, UnusedCondition, finalizer_step, needs_attention, pod_holds_claim,
        pod_uses_claim, unused_condition,
    },
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{apply, live::LivePods, outcome};
use crate::index::{index_pods, pods_of_claim};

const WORKERS: usize = 8;
/// In a burst it can wait to be told whether a claim is used, but not longer than this.
const TELL_AFTER: Duration = Duration::from_secs(5);
/// And is looked at again after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What the loop watches.
#[derive(Clone)]
pub struct ClaimProtectionCaches {
    /// Claims of all namespaces.
    pub claims: Cache<Claim>,
    /// Pods of all namespaces.
    pub pods: Cache<Pod>,
}

impl ClaimProtectionCaches {
    /// The caches that all loops of the process share.
    #[must_use]
    pub fn shared(caches: &SharedCaches) -> Self {
        Self { claims: caches.of(), pods: caches.of() }
    }
}

/// Adds and removes the claims' protection finalizer, and keeps their `Unused` condition.
pub struct ClaimProtection {
    /// Where finalizers are written.
    pub api: Api,
    /// What is watched.
    pub caches: ClaimProtectionCaches,
    /// Where the queue reports; `None` keeps it quiet.
    pub metrics: Option<Metrics>,
    /// Feature gate `PersistentVolumeClaimUnusedSinceTime`: keep the `Unused` condition.
    pub unused_condition: bool,
}

impl ClaimProtection {
    /// Works until `shutdown` is cancelled.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut options = QueueOptions::controller();
        options.metrics = self.metrics;
        let worker = Arc::new(Worker {
            api: self.api,
            caches: self.caches,
            unused_condition: self.unused_condition,
            live: LivePods::default(),
            put_off: Mutex::default(),
            queue: WorkQueue::new("pvcprotection", options),
        });
        index_pods(&worker.caches.pods);
        let synced = async {
            worker.caches.claims.synced().await;
            worker.caches.pods.synced().await;
        };
        tokio::select! {
            () = synced => {}
            () = shutdown.cancelled() => return,
        }
        worker.subscribe();
        let (queue, turn) = (worker.queue.clone(), worker.clone());
        queue
            .run_until(WORKERS, &shutdown, move |key| {
                let worker = turn.clone();
                async move {
                    match worker.turn(&key).await {
                        Ok(Some(wait)) => Outcome::After(wait),
                        result => outcome(result.map(drop)),
                    }
                }
            })
            .await;
    }
}

struct Worker {
    api: Api,
    caches: ClaimProtectionCaches,
    unused_condition: bool,
    live: LivePods,
    /// Claims whose use is yet to be told of, and since when.
    put_off: Mutex<HashMap<ObjectKey, Instant>>,
    queue: WorkQueue<ObjectKey>,
}

impl Worker {
    fn subscribe(self: &Arc<Self>) {
        let worker = Arc::downgrade(self);
        self.caches.claims.subscribe(move |change| {
            if let (Some(worker), Change::Applied { new, .. }) = (worker.upgrade(), change) {
                worker.claim_changed(new);
            }
        });
        let worker = Arc::downgrade(self);
        self.caches.pods.subscribe(move |change| {
            if let Some(worker) = worker.upgrade() {
                worker.pod_changed(change);
            }
        });
    }

    fn claim_changed(&self, claim: &Claim) {
        let unsaid = self.unused_condition
            && !claim.status.conditions.iter().any(|condition| condition.kind == UNUSED);
        if unsaid || needs_attention(&claim.metadata, PVC_PROTECTION) {
            self.queue.add(claim.metadata.key());
        }
    }

    fn pod_changed(&self, change: &Change<Pod>) {
        match change {
            Change::Applied { old: Some(old), new } => {
                let facts = |pod: &Pod| {
                    let meta = &pod.metadata;
                    let grace = meta.deletion_grace_period_seconds;
                    (pod.spec.node_name.clone(), terminated(pod), meta.deleting(), grace)
                };
                if old.metadata.uid != new.metadata.uid {
                    self.enqueue_claims_of(old);
                    self.enqueue_claims_of(new);
                } else if facts(old) != facts(new) {
                    self.enqueue_claims_of(new);
                }
            }
            Change::Applied { old: None, new } => self.enqueue_claims_of(new),
            Change::Deleted { old } => self.enqueue_claims_of(old),
        }
    }

    fn enqueue_claims_of(&self, pod: &Pod) {
        for (name, _) in pod.claim_names() {
            self.queue.add(ObjectKey::new(&pod.metadata.namespace, name));
        }
    }

    /// One look at a claim; returns when to look again if something was put off.
    async fn turn(&self, key: &ObjectKey) -> Result<Option<Duration>, ApiError> {
        let claim = self.caches.claims.get(key);
        let condition = claim.as_deref().and_then(|claim| self.unsaid(claim));
        let again = (condition.is_some() && self.can_wait(key)).then_some(LOOK_AGAIN);
        if again.is_none() {
            self.put_off.lock().remove(key);
        }
        let Some(claim) = claim else { return Ok(None) };
        if let Some(condition) = condition.filter(|_| again.is_none()) {
            self.say_unused(key, &condition).await?;
        }
        let mut step = finalizer_step(&claim.metadata, PVC_PROTECTION, false);
        if step == Finalizer::Remove && self.is_held(&claim).await? {
            step = Finalizer::Leave;
        }
        let written = apply::<Claim>(&self.api, &claim.metadata, PVC_PROTECTION, step).await?;
        if let Some(written) = written.filter(|_| step == Finalizer::Add) {
            self.caches.claims.assume(&written);
        }
        Ok(again)
    }

    /// The cache is asked first, because its "yes" is enough; its "no" may be late.
    async fn is_held(&self, claim: &Claim) -> Result<bool, ApiError> {
        let seen = pods_of_claim(&self.caches.pods, &claim.metadata.key());
        if seen.iter().any(|pod| pod_holds_claim(pod, claim)) {
            return Ok(true);
        }
        let pods = self.live.of(&self.api, &claim.metadata.namespace).await?;
        Ok(pods.iter().any(|pod| pod_holds_claim(pod, claim)))
    }

    /// Whether there is more urgent work for now.
    fn can_wait(&self, key: &ObjectKey) -> bool {
        if !self.api.is_busy() {
            return false;
        }
        let since = *self.put_off.lock().entry(key.clone()).or_insert_with(Instant::now);
        since.elapsed() < TELL_AFTER
    }

    /// What the claim does not say of its use yet.
    fn unsaid(&self, claim: &Claim) -> Option<UnusedCondition> {
        if !self.unused_condition {
            return None;
        }
        let users = pods_of_claim(&self.caches.pods, &claim.metadata.key());
        let used = users.iter().any(|pod| pod_uses_claim(pod, claim));
        unused_condition(claim, used)
    }

    async fn say_unused(
        &self,
        key: &ObjectKey,
        condition: &UnusedCondition,
    ) -> Result<(), ApiError> {
        let patch = json!({"status": {"conditions": [{
            "type": UNUSED,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": clock::seconds(clock::now()),
        }]}});
        match self.api.patch_status::<Claim>(key, Patch::Strategic(&patch)).await {
            Ok(written) => self.caches.claims.assume(&written),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
