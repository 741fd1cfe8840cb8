//! Claims stay while a pod on a node names them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use longshore_cluster::{
    Api, ApiError, Cache, Change, Context, Loop, OptionalExt as _, Outcome, Patch, QueueOptions,
    Reconciler, Sources, Subject, WorkQueue, clock,
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

/// Adds and removes the claims' protection finalizer, and keeps their `Unused` condition.
pub struct ClaimProtection {
    api: Api,
    claims: Cache<Claim>,
    pods: Cache<Pod>,
    /// Feature gate `PersistentVolumeClaimUnusedSinceTime`: keep the `Unused` condition.
    unused_condition: bool,
    live: LivePods,
    /// Claims whose condition is yet to be written, and since when.
    put_off: Mutex<HashMap<ObjectKey, Instant>>,
    queue: WorkQueue<ObjectKey>,
}

impl ClaimProtection {
    /// A loop that does nothing until [`Self::run`].
    #[must_use]
    pub fn new(context: &Context, unused_condition: bool) -> Self {
        let pods = context.cache();
        index_pods(&pods);
        Self {
            api: context.api.clone(),
            claims: context.cache(),
            pods,
            unused_condition,
            live: LivePods::default(),
            put_off: Mutex::default(),
            queue: context.queue("pvcprotection", QueueOptions::controller()),
        }
    }

    pub async fn run(self, shutdown: CancellationToken) {
        let queue = self.queue.clone();
        Loop::new("protect", Arc::new(self), queue).workers(WORKERS).run(&shutdown).await;
    }
}

impl Reconciler for ClaimProtection {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources.on(&self.claims, Self::claim_changed).on(&self.pods, |_, change| {
            let pods = changed_pods(change);
            pods.into_iter().flat_map(|pod| claims_of(&pod)).collect::<Vec<_>>()
        });
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::claim(key)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        match self.protect(key).await {
            Ok(Some(wait)) => Outcome::After(wait),
            result => outcome(result.map(drop)),
        }
    }
}

/// The pods whose use of claims has changed.
fn changed_pods(change: &Change<Pod>) -> Vec<Arc<Pod>> {
    match change {
        Change::Applied { old: Some(old), new } => {
            let facts = |pod: &Pod| {
                let meta = &pod.metadata;
                let grace = meta.deletion_grace_period_seconds;
                (pod.spec.node_name.clone(), terminated(pod), meta.deleting(), grace)
            };
            if old.metadata.uid != new.metadata.uid {
                vec![old.clone(), new.clone()]
            } else if facts(old) != facts(new) {
                vec![new.clone()]
            } else {
                Vec::new()
            }
        }
        Change::Applied { old: None, new } => vec![new.clone()],
        Change::Deleted { old } => vec![old.clone()],
    }
}

fn claims_of(pod: &Pod) -> Vec<ObjectKey> {
    let names = pod.claim_names();
    names.map(|(name, _)| ObjectKey::new(&pod.metadata.namespace, name)).collect()
}

impl ClaimProtection {
    fn claim_changed(&self, change: &Change<Claim>) -> Option<ObjectKey> {
        let Change::Applied { new: claim, .. } = change else { return None };
        let unsaid = self.unused_condition
            && !claim.status.conditions.iter().any(|condition| condition.kind == UNUSED);
        let due = unsaid || needs_attention(&claim.metadata, PVC_PROTECTION);
        due.then(|| claim.metadata.key())
    }

    /// One pass over a claim; returns when to look again if something was put off.
    async fn protect(&self, key: &ObjectKey) -> Result<Option<Duration>, ApiError> {
        let claim = self.claims.get(key);
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
        apply(&self.api, &self.claims, &claim.metadata, PVC_PROTECTION, step).await?;
        Ok(again)
    }

    /// The cache is asked first, because its "yes" is enough; its "no" may be late.
    async fn is_held(&self, claim: &Claim) -> Result<bool, ApiError> {
        let seen = pods_of_claim(&self.pods, &claim.metadata.key());
        if seen.iter().any(|pod| pod_holds_claim(pod, claim)) {
            return Ok(true);
        }
        let pods = self.live.of(&self.api, &claim.metadata.namespace).await?;
        Ok(pods.iter().any(|pod| pod_holds_claim(pod, claim)))
    }

    /// Whether there is more urgent work for now.
    fn can_wait(&self, key: &ObjectKey) -> bool {
        if !self.api.is_saturated() {
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
        let users = pods_of_claim(&self.pods, &claim.metadata.key());
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
        let written = self.api.patch_status::<Claim>(key, Patch::Strategic(&patch)).await;
        written.optional()?.iter().for_each(|claim| self.claims.assume(claim));
        Ok(())
    }
}
