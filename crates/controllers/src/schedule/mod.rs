//! The scheduler: finds a node for each pod, has its volumes bound there, then binds the pod.
//!
//! Decisions are made one at a time over the caches plus what this scheduler has promised and
//! the API does not show yet. Writes and waiting happen outside: a pod whose volumes are being
//! made holds no worker, the change of its claim brings it back. Nothing is kept that the API
//! does not tell again, so the scheduler may be dropped at any await.
//!
//! Of the pod's wishes it honours node selector, required node affinity, taints, requests for
//! processors and memory, and everything about volumes.

mod decide;
mod place;
#[cfg(test)]
mod reserve_tests;
mod state;
#[cfg(test)]
mod tests;
mod view;
mod wake;

use std::{sync::Arc, time::Duration};

use longshore_cluster::{
    Api, ApiError, Cache, Context, Loop, Outcome, Patch, QueueOptions, Recorder, WorkQueue, clock,
};
use longshore_core::{
    backoff::Backoff,
    model::{
        ObjectKey,
        kinds::{
            Claim, CsiDriver, CsiNode, CsiStorageCapacity, Node, Pod, StorageClass, Volume,
            VolumeAttachment,
        },
    },
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use self::state::State;
use crate::index::{index_attachments, index_pods};

/// The component that events of the scheduler come from, and the name that pods ask for it by.
pub const COMPONENT: &str = "default-scheduler";

/// A pod that fits nowhere is looked at again after this time even if nothing changed.
const LOOK_AGAIN: Duration = Duration::from_secs(300);

/// How many pods are written or waited for at once.
const WORKERS: usize = 16;

/// Settings of the scheduler.
#[derive(Debug, Clone)]
pub struct Config {
    /// How long the volumes of a pod may take.
    pub bind_timeout: Duration,
    /// First and longest pause after a placement that failed.
    pub backoff: Backoff,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bind_timeout: Duration::from_secs(600),
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(10)),
        }
    }
}

/// The scheduler.
pub struct Scheduler {
    api: Api,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    claims: Cache<Claim>,
    volumes: Cache<Volume>,
    classes: Cache<StorageClass>,
    drivers: Cache<CsiDriver>,
    csi_nodes: Cache<CsiNode>,
    capacities: Cache<CsiStorageCapacity>,
    attachments: Cache<VolumeAttachment>,
    recorder: Recorder,
    config: Config,
    queue: WorkQueue<ObjectKey>,
    state: State,
}

impl Scheduler {
    /// A scheduler that does nothing until [`Self::run`].
    #[must_use]
    pub fn new(context: &Context, config: Config) -> Self {
        let retry = QueueOptions { backoff: config.backoff, ..QueueOptions::default() };
        let new = Self {
            api: context.api.clone(),
            pods: context.cache(),
            nodes: context.cache(),
            claims: context.cache(),
            volumes: context.cache(),
            classes: context.cache(),
            drivers: context.cache(),
            csi_nodes: context.cache(),
            capacities: context.cache(),
            attachments: context.cache(),
            recorder: context.recorder(COMPONENT),
            config,
            queue: context.queue("scheduler", retry),
            state: State::default(),
        };
        index_pods(&new.pods);
        index_attachments(&new.attachments);
        view::index_volumes(&new.volumes);
        new
    }

    /// Runs until `shutdown` is cancelled; writes in flight are finished then.
    pub async fn run(self, shutdown: CancellationToken) {
        let queue = self.queue.clone();
        Loop::new("schedule", Arc::new(self), queue).workers(WORKERS).run(&shutdown).await;
    }
}

/// Why a placement did not come to its end.
#[derive(Debug, thiserror::Error)]
enum PlaceError {
    #[error("binding volumes: {0}")]
    Write(#[source] ApiError),
    #[error("binding rejected: {0}")]
    Bind(#[source] ApiError),
    #[error("{0}")]
    Volumes(String),
    #[error("binding volumes: timed out waiting for the condition")]
    TimedOut,
}

impl Scheduler {
    /// One pass over one pod: find a node, or see how far the placement has come.
    async fn pass(&self, key: &ObjectKey) -> Outcome {
        let pod = self.pods.get(key).filter(|pod| waits_for_us(pod));
        let Some(pod) = pod else {
            self.state.forget(key);
            return Outcome::Done;
        };
        if self.state.is_bound(&pod) {
            return Outcome::Done;
        }
        if let Some(left) = self.state.pause_left(key) {
            return Outcome::After(left);
        }
        let placement = match self.state.placement(&pod) {
            Some(placement) => placement,
            None => match self.decide(&pod) {
                Ok(placement) => placement,
                Err(why) => return self.tell_unschedulable(&pod, why.to_string()).await,
            },
        };
        match self.place(&pod, placement).await {
            Ok(outcome) => outcome,
            Err(error) => self.give_back(&pod, error).await,
        }
    }

    /// The placement failed: the pod is placed anew, after a pause that grows.
    async fn give_back(&self, pod: &Pod, error: PlaceError) -> Outcome {
        let key = pod.metadata.key();
        self.state.forget(&key);
        self.state.pause(&key, self.config.backoff);
        let text = error.to_string();
        self.recorder.warning(pod, "FailedScheduling", text.as_str());
        self.set_condition(pod, "SchedulerError", &text).await;
        match self.state.pause_left(&key) {
            Some(left) => Outcome::After(left),
            None => Outcome::Again,
        }
    }

    async fn tell_unschedulable(&self, pod: &Pod, message: String) -> Outcome {
        self.recorder.warning(pod, "FailedScheduling", message.as_str());
        self.set_condition(pod, "Unschedulable", &message).await;
        Outcome::After(LOOK_AGAIN)
    }

    /// Says in the pod's status why it waits. Only advice for people, so a failure is logged.
    async fn set_condition(&self, pod: &Pod, reason: &str, message: &str) {
        let old = pod.status.conditions.iter().find(|one| one.kind == "PodScheduled");
        let same = |one: &&longshore_core::model::kinds::Condition| {
            one.status == "False" && one.reason == reason && one.message == message
        };
        if old.filter(same).is_some() {
            return;
        }
        let since =
            old.filter(|one| one.status == "False").and_then(|one| one.last_transition_time);
        let since = clock::seconds(since.unwrap_or_else(clock::now));
        let patch = json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False",
            "reason": reason, "message": message, "lastTransitionTime": since}]}});
        let key = pod.metadata.key();
        match self.api.patch_status::<Pod>(&key, Patch::Strategic(&patch)).await {
            Ok(written) => self.pods.assume(&written),
            Err(error) => tracing::debug!(pod = %key, %error, "the condition was not written"),
        }
    }
}

/// Whether a pod is to be placed, and by this scheduler.
fn waits_for_us(pod: &Pod) -> bool {
    let spec = &pod.spec;
    spec.node_name.is_empty()
        && matches!(spec.scheduler_name.as_str(), "" | COMPONENT)
        && spec.scheduling_gates.is_empty()
        && !pod.metadata.deleting()
        && !pod.finished()
}
