//! Claims for the ephemeral volumes of pods.

use std::sync::Arc;

use longshore_cluster::{
    Api, ApiError, Cache, Change, Context, Loop, Metrics, Outcome, QueueOptions, Reconciler,
    Recorder, Sources, Subject, WorkQueue, telemetry::RegistryExt as _,
};
use longshore_core::{
    attach::resolve::owned_by,
    model::{
        Kind, ObjectKey,
        kinds::{Claim, Pod, PodVolume},
    },
};
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::index::{index_pods, pods_of_claim};

/// What the loop counts, under upstream's names.
#[derive(Debug, Clone)]
struct EphemeralMetrics {
    creates: Counter,
    failures: Counter,
}

impl EphemeralMetrics {
    fn of(metrics: &Metrics) -> Self {
        metrics.shared(|registry| Self {
            creates: registry.metric(
                "ephemeral_volume_controller_create",
                "Number of PersistentVolumeClaim creation requests",
            ),
            failures: registry.metric(
                "ephemeral_volume_controller_create_failures",
                "Number of PersistentVolumeClaim creation requests that failed",
            ),
        })
    }
}

/// Makes the claims that pods describe in their own volumes. They belong to the pod and go with
/// it, by way of garbage collection.
pub struct EphemeralClaims {
    api: Api,
    pods: Cache<Pod>,
    claims: Cache<Claim>,
    recorder: Recorder,
    counted: EphemeralMetrics,
    workers: usize,
    queue: WorkQueue<ObjectKey>,
}

/// Why a pod's claim could not be made.
#[derive(Debug, thiserror::Error)]
enum EphemeralError {
    #[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
    NotOwner { claim: ObjectKey, pod: ObjectKey },
    #[error("create PVC {name}: {}", .source.message().map_or_else(|| .source.to_string(), str::to_owned))]
    Create { name: String, source: ApiError },
    #[error("{0}")]
    Api(#[from] ApiError),
}

impl EphemeralClaims {
    /// A loop that does nothing until [`Self::run`]. `workers` is upstream's
    /// `--concurrent-ephemeralvolume-syncs`.
    #[must_use]
    pub fn new(context: &Context, workers: usize) -> Self {
        let pods = context.cache();
        index_pods(&pods);
        Self {
            api: context.api.clone(),
            pods,
            claims: context.cache(),
            recorder: context.recorder("ephemeral_volume"),
            counted: EphemeralMetrics::of(&context.metrics),
            workers,
            queue: context.queue("ephemeral_volume", QueueOptions::controller()),
        }
    }

    pub async fn run(self, shutdown: CancellationToken) {
        let (queue, workers) = (self.queue.clone(), self.workers);
        Loop::new("ephemeral", Arc::new(self), queue).workers(workers).run(&shutdown).await;
    }

    /// A deleted claim is made again for the pods that described it.
    fn claim_changed(&self, change: &Change<Claim>) -> Vec<ObjectKey> {
        let Change::Deleted { old } = change else { return Vec::new() };
        let users = pods_of_claim(&self.pods, &old.metadata.key()).into_iter();
        users.filter(|pod| has_ephemeral(pod)).map(|pod| pod.metadata.key()).collect()
    }

    async fn ensure_claim(&self, pod: &Pod, volume: &PodVolume) -> Result<(), EphemeralError> {
        let name = format!("{}-{}", pod.metadata.name, volume.name);
        let key = ObjectKey::new(&pod.metadata.namespace, name);
        if let Some(claim) = self.claims.get(&key) {
            return check_owner(&claim, pod);
        }
        self.counted.creates.inc();
        match self.api.create::<Claim>(&new_claim(pod, volume, &key)).await {
            Ok(made) => {
                self.claims.assume(&made);
                Ok(())
            }
            Err(error) if error.is_already_exists() => {
                let claim = self.api.get::<Claim>(&key).await?;
                claim.map_or(Ok(()), |claim| check_owner(&claim, pod))
            }
            Err(source) => {
                self.counted.failures.inc();
                Err(EphemeralError::Create { name: key.name, source })
            }
        }
    }
}

impl Reconciler for EphemeralClaims {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources.on(&self.pods, |_, change| new_pod(change)).on(&self.claims, Self::claim_changed);
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::pod(key)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        let Some(pod) = self.pods.get(key).filter(|pod| !pod.metadata.deleting()) else {
            return Outcome::Done;
        };
        for volume in pod.spec.volumes.iter().filter(|volume| volume.ephemeral.is_some()) {
            if let Err(error) = self.ensure_claim(&pod, volume).await {
                let text = format!("ephemeral volume {}: {error}", volume.name);
                self.recorder.warning(pod.as_ref(), "FailedBinding", text);
                return Outcome::retry(error);
            }
        }
        Outcome::Done
    }
}

fn new_pod(change: &Change<Pod>) -> Option<ObjectKey> {
    let Change::Applied { old, new } = change else { return None };
    let is_new = old.as_ref().is_none_or(|old| old.metadata.uid != new.metadata.uid);
    (is_new && has_ephemeral(new)).then(|| new.metadata.key())
}

fn has_ephemeral(pod: &Pod) -> bool {
    !pod.metadata.deleting() && pod.spec.volumes.iter().any(|volume| volume.ephemeral.is_some())
}

fn check_owner(claim: &Claim, pod: &Pod) -> Result<(), EphemeralError> {
    if owned_by(claim, pod) {
        return Ok(());
    }
    let (claim, pod) = (claim.metadata.key(), pod.metadata.key());
    Err(EphemeralError::NotOwner { claim, pod })
}

/// Labels, annotations and spec come from the template, the rest from the pod.
fn new_claim(pod: &Pod, volume: &PodVolume, key: &ObjectKey) -> Value {
    let template = volume.ephemeral.as_ref().and_then(|one| one.get("volumeClaimTemplate"));
    let part = |path: &str| template.and_then(|template| template.pointer(path)).cloned();
    let mut metadata = json!({
        "name": key.name,
        "namespace": key.namespace,
        "ownerReferences": [{
            "apiVersion": Pod::api_version(), "kind": Pod::KIND,
            "name": pod.metadata.name, "uid": pod.metadata.uid,
            "controller": true, "blockOwnerDeletion": true,
        }],
    });
    for field in ["labels", "annotations"] {
        if let Some(value) = part(&format!("/metadata/{field}")) {
            metadata[field] = value;
        }
    }
    json!({"metadata": metadata, "spec": part("/spec").unwrap_or_else(|| json!({}))})
}
