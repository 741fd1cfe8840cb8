//! Gives up nodes that do not renew their lease, and lets pods come to them again when they do.
//!
//! [`longshore_core::node_lifecycle`] decides. In a cluster this is kube-controller-manager's
//! `node-lifecycle-controller`. Pods are not evicted: whether a silent node still writes to its volumes
//! is not known, so somebody has to say so with the taint `node.kubernetes.io/out-of-service`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use longshore_cluster::{
    Api, ApiError, Cache, Context, EventType, Loop, Outcome, Patch, QueueOptions, Reconciler,
    Recorder, Sources, Subject, WorkQueue, clock,
};
use longshore_core::model::keys::taints::UNREACHABLE;
use longshore_core::model::kinds::{Lease, Node, Pod};
use longshore_core::model::{ObjectKey, ObjectRef};
use longshore_core::node_lifecycle::{Ready, Step, View, decide};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::index::{index_pods, pods_on_node};

/// The name of the loop's lease, and the component that its events come from.
pub const NAME: &str = "node-lifecycle-controller";
const LEASES: &str = "kube-node-lease";
/// How often leases are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long a node may be silent that has no lease, or one that does not say.
const LEASE: Duration = Duration::from_secs(40);
/// The effects of the taint.
const EFFECTS: [&str; 2] = ["NoSchedule", "NoExecute"];
/// Conditions that only the node itself can tell.
const CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// What was seen of a node's lease.
struct Seen {
    renewed: Option<Timestamp>,
    ready: Ready,
    at: Instant,
    /// How long it was watched since then. Time in which this process did not run does not count:
    /// then the node could not renew anything either.
    silent: Duration,
}

/// The controller; its keys are names of nodes.
pub struct NodeLifecycle {
    api: Api,
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    recorder: Recorder,
    queue: WorkQueue<String>,
    seen: Mutex<HashMap<String, Seen>>,
}

impl Reconciler for NodeLifecycle {
    type Key = String;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources
            .on(&self.nodes, |_, change| Some(change.object().metadata.name.clone()))
            .needs(&self.pods);
    }

    fn subject(&self, name: &String) -> Subject {
        Subject::node(name)
    }

    async fn reconcile(&self, name: &String) -> Outcome {
        let Some(node) = self.nodes.get(&ObjectKey::cluster(name)) else {
            self.seen.lock().remove(name);
            return Outcome::Done;
        };
        match self.check(&node).await {
            Ok(()) => Outcome::After(LOOK_EVERY),
            Err(error) if error.is_not_found() => Outcome::Done,
            // The node has changed meanwhile: the change brings it back.
            Err(ApiError::Conflict { .. }) => Outcome::After(LOOK_EVERY),
            Err(error) => Outcome::retry(error),
        }
    }
}

impl NodeLifecycle {
    /// A loop that does nothing until [`Self::run`].
    #[must_use]
    pub fn new(context: &Context) -> Self {
        let new = Self {
            api: context.api.clone(),
            nodes: context.cache(),
            pods: context.cache(),
            recorder: context.recorder(NAME),
            queue: context.queue("node_lifecycle", QueueOptions::controller()),
            seen: Mutex::default(),
        };
        index_pods(&new.pods);
        new
    }

    /// Watches nodes until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let queue = self.queue.clone();
        Loop::new("node-lifecycle", Arc::new(self), queue).run(&shutdown).await;
    }

    async fn check(&self, node: &Node) -> Result<(), ApiError> {
        let name = &node.metadata.name;
        let lease = self.api.get::<Lease>(&ObjectKey::new(LEASES, name)).await?;
        let spec = lease.map(|lease| lease.spec).unwrap_or_default();
        let seconds = spec.lease_duration_seconds.and_then(|all| u64::try_from(all).ok());
        let view = View {
            ready: ready_of(node),
            silent: self.silence(name, spec.renew_time, ready_of(node)),
            lease: seconds.filter(|all| *all > 0).map_or(LEASE, Duration::from_secs),
            tainted: EFFECTS.iter().all(|effect| has_taint(node, effect)),
            partly: EFFECTS.iter().any(|effect| has_taint(node, effect)),
        };
        for step in decide(&view) {
            match step {
                Step::GiveUp { never } => self.give_up(node, never).await?,
                Step::Taint => self.set_taints(name, true).await?,
                Step::Untaint => self.set_taints(name, false).await?,
            }
        }
        Ok(())
    }

    /// How long the node has been watched without a renewal, or a word after it was given up.
    fn silence(&self, name: &str, renewed: Option<Timestamp>, ready: Ready) -> Duration {
        let now = Instant::now();
        let mut seen = self.seen.lock();
        let fresh = || Seen { renewed, ready, at: now, silent: Duration::ZERO };
        let one = seen.entry(name.to_owned()).or_insert_with(fresh);
        let spoke = one.ready == Ready::Unknown && ready == Ready::Said;
        if one.renewed != renewed || spoke {
            *one = fresh();
        }
        one.ready = ready;
        one.silent += now.saturating_duration_since(one.at).min(LOOK_EVERY);
        one.at = now;
        one.silent
    }

    async fn give_up(&self, node: &Node, never: bool) -> Result<(), ApiError> {
        let name = &node.metadata.name;
        let key = ObjectKey::cluster(name);
        let Some(stored) = self.api.get_raw::<Node>(&key).await? else { return Ok(()) };
        let version = &stored["metadata"]["resourceVersion"];
        let conditions = unknown(&stored["status"]["conditions"], never);
        let patch = json!({"metadata": {"resourceVersion": version},
            "status": {"conditions": conditions}});
        let written = self.api.patch_status::<Node>(&key, Patch::Merge(&patch)).await?;
        self.nodes.assume(&written);
        tracing::warn!(node = name, "the node does not renew its lease; it gets no new pods");
        let about = ObjectRef::of::<Node>(&node.metadata);
        let text = format!("Node {name} status is now: NodeNotReady");
        self.recorder.event(&about, EventType::Normal, "NodeNotReady", text);
        for pod in pods_on_node(&self.pods, &node.name()) {
            if !pod.finished() {
                self.recorder.warning(pod.as_ref(), "NodeNotReady", "Node is not ready");
            }
        }
        Ok(())
    }

    /// The list is replaced as a whole, so the change holds only for the version that was read.
    async fn set_taints(&self, name: &str, wanted: bool) -> Result<(), ApiError> {
        let key = ObjectKey::cluster(name);
        let Some(stored) = self.api.get_raw::<Node>(&key).await? else { return Ok(()) };
        let mut all = stored["spec"]["taints"].as_array().cloned().unwrap_or_default();
        if wanted {
            for effect in EFFECTS {
                let there = |one: &Value| one["key"] == UNREACHABLE && one["effect"] == effect;
                if !all.iter().any(there) {
                    let now = clock::seconds(clock::now());
                    all.push(json!({"key": UNREACHABLE, "effect": effect, "timeAdded": now}));
                }
            }
        } else {
            all.retain(|one| one["key"] != UNREACHABLE);
        }
        let version = &stored["metadata"]["resourceVersion"];
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": all}});
        let written = self.api.patch::<Node>(&key, Patch::Merge(&patch)).await?;
        self.nodes.assume(&written);
        Ok(())
    }
}

fn ready_of(node: &Node) -> Ready {
    let ready = node.status.conditions.iter().find(|one| one.kind == "Ready");
    match ready.map(|one| one.status.as_str()) {
        None => Ready::Never,
        Some("Unknown") => Ready::Unknown,
        Some(_) => Ready::Said,
    }
}

fn has_taint(node: &Node, effect: &str) -> bool {
    node.spec.taints.iter().any(|one| one.key == UNREACHABLE && one.effect == effect)
}

/// The conditions of a node that is not heard from, in upstream's words.
fn unknown(present: &Value, never: bool) -> Value {
    let now = clock::seconds(clock::now());
    let mut all = present.as_array().cloned().unwrap_or_default();
    for kind in CONDITIONS {
        match all.iter_mut().find(|one| one["type"] == kind) {
            Some(one) if one["status"] == "Unknown" => {}
            Some(one) => {
                one["status"] = "Unknown".into();
                one["reason"] = "NodeStatusUnknown".into();
                one["message"] = "Kubelet stopped posting node status.".into();
                one["lastTransitionTime"] = json!(now);
            }
            None if never || kind != "Ready" => all.push(json!({"type": kind, "status": "Unknown",
                "reason": "NodeStatusNeverUpdated", "message": "Kubelet never posted node status.",
                "lastHeartbeatTime": now, "lastTransitionTime": now})),
            None => {}
        }
    }
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Bench;

    async fn renew(bench: &Bench, node: &str, seconds: i64) {
        let time = clock::micros(Timestamp::from_second(seconds).expect("a time"));
        let spec = json!({"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": time});
        let key = ObjectKey::new(LEASES, node);
        if bench.get::<Lease>(&key).await.is_some() {
            bench.merge::<Lease>(&key, json!({"spec": spec})).await;
        } else {
            let lease = json!({"metadata": {"name": node, "namespace": LEASES}, "spec": spec});
            bench.create::<Lease>(lease).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_is_not_heard_from_is_given_up_until_it_speaks_again() {
        let bench = Bench::start().await;
        let mut process = bench.process();
        let (lifecycle, shutdown) =
            (NodeLifecycle::new(&process.context), process.shutdown.clone());
        process.spawn(lifecycle.run(shutdown));
        for node in ["dead", "alive"] {
            bench.node(node).await;
            renew(&bench, node, 0).await;
        }
        let (dead, alive) = (ObjectKey::cluster("dead"), ObjectKey::cluster("alive"));
        for passed in 1..8 {
            bench.pass(Duration::from_secs(10)).await;
            renew(&bench, "alive", passed * 10).await;
        }
        let node = bench.until::<Node>(&dead, |node| node.spec.taints.len() == 2).await;
        let ready = node.status.conditions.iter().find(|one| one.kind == "Ready");
        let ready = ready.expect("it was there");
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_str(), ready.message.as_str()),
            ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
        );
        assert!(node.spec.taints.iter().all(|taint| taint.key == UNREACHABLE));
        let events = bench.events("NodeNotReady").await;
        assert_eq!(events, ["Node dead status is now: NodeNotReady"]);
        let other = bench.get::<Node>(&alive).await.expect("there");
        assert!(other.ready() && other.spec.taints.is_empty());
        // A renewal alone is not enough; the node has to say how it is.
        renew(&bench, "dead", 100).await;
        bench.pass(Duration::from_secs(20)).await;
        let node = bench.get::<Node>(&dead).await.expect("there");
        assert_eq!(node.spec.taints.len(), 2);
        renew(&bench, "dead", 120).await;
        bench.ready("dead", true).await;
        bench.until::<Node>(&dead, |node| node.spec.taints.is_empty()).await;
    }
}
