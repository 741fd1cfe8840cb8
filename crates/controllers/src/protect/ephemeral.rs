//! Claims for the ephemeral volumes of pods.

use std::sync::Arc;

use longshore_cluster::{
    Api, ApiError, Cache, Change, EventType, Metrics, Outcome, QueueOptions, Recorder, WorkQueue,
};
use longshore_core::{
    attach::resolve::owned_by,
    model::{
        Kind, ObjectKey, ObjectRef,
        kinds::{Claim, Pod, PodVolume},
    },
};
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::index::{index_pods, pods_of_claim};

/// What the loop counts, under upstream's names. Cheap to clone; register once per process.
#[derive(Debug, Clone, Default)]
pub struct EphemeralMetrics {
    creates: Counter,
    failures: Counter,
}

impl EphemeralMetrics {
    /// Registers the counters.
    #[must_use]
    pub fn register(metrics: &Metrics) -> Self {
        let new = Self::default();
        metrics.with_registry(|registry| {
            registry.register(
                "ephemeral_volume_controller_create",
                "Number of PersistentVolumeClaim creation requests",
                new.creates.clone(),
            );
            registry.register(
                "ephemeral_volume_controller_create_failures",
                "Number of PersistentVolumeClaim creation requests that failed",
                new.failures.clone(),
            );
        });
        new
    }
}

/// Makes the claims that pods describe in their own volumes. They belong to the pod and go with
/// it, by way of garbage collection.
pub struct EphemeralClaims {
    /// Where claims are made.
    pub api: Api,
    /// Pods of all namespaces.
    pub pods: Cache<Pod>,
    /// Claims of all namespaces.
    pub claims: Cache<Claim>,
    /// Where pods are told about failures; its component is `ephemeral_volume`.
    pub recorder: Recorder,
    /// Where the queue reports; `None` keeps it quiet.
    pub metrics: Option<Metrics>,
    /// What is counted.
    pub counted: EphemeralMetrics,
    /// How many pods are looked at side by side; upstream's `--concurrent-ephemeralvolume-syncs`.
    pub workers: usize,
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
    /// Works until `shutdown` is cancelled.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut options = QueueOptions::controller();
        options.metrics = self.metrics.clone();
        let queue: WorkQueue<ObjectKey> = WorkQueue::new("ephemeral_volume", options);
        index_pods(&self.pods);
        let synced = async {
            self.pods.synced().await;
            self.claims.synced().await;
        };
        tokio::select! {
            () = synced => {}
            () = shutdown.cancelled() => return,
        }
        self.subscribe(&queue);
        let worker = Arc::new(self);
        queue
            .run_until(worker.workers, &shutdown, move |key| {
                let worker = worker.clone();
                async move { worker.turn(&key).await }
            })
            .await;
    }

    fn subscribe(&self, queue: &WorkQueue<ObjectKey>) {
        let adding = queue.clone();
        self.pods.subscribe(move |change| {
            if let Change::Applied { old, new } = change
                && old.as_ref().is_none_or(|old| old.metadata.uid != new.metadata.uid)
                && has_ephemeral(new)
            {
                adding.add(new.metadata.key());
            }
        });
        let (adding, pods) = (queue.clone(), self.pods.clone());
        self.claims.subscribe(move |change| {
            if let Change::Deleted { old } = change {
                let users = pods_of_claim(&pods, &old.metadata.key());
                for pod in users.into_iter().filter(|pod| has_ephemeral(pod)) {
                    adding.add(pod.metadata.key());
                }
            }
        });
    }

    async fn turn(&self, key: &ObjectKey) -> Outcome {
        let Some(pod) = self.pods.get(key).filter(|pod| !pod.metadata.deleting()) else {
            return Outcome::Done;
        };
        for volume in pod.spec.volumes.iter().filter(|volume| volume.ephemeral.is_some()) {
            if let Err(error) = self.ensure_claim(&pod, volume).await {
                let object = ObjectRef::of::<Pod>(&pod.metadata);
                let text = format!("ephemeral volume {}: {error}", volume.name);
                self.recorder.event(&object, EventType::Warning, "FailedBinding", text);
                return Outcome::retry(error);
            }
        }
        Outcome::Done
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
