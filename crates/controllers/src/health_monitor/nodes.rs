//! Says on claims that the node of their pods failed, and that it is back.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use longshore_cluster::{
    Cache, Loop, Outcome, QueueOptions, Reconciler, Sources, Subject, WorkQueue,
};
use longshore_core::{
    health::{NodeStep, NodeView, decide_node, handle_of, node_failed, node_recovered, seen},
    model::{
        ObjectKey,
        kinds::{Claim, Node, Pod},
    },
};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Monitor;

/// Finds the pods of a node.
const BY_NODE: &str = "health-monitor: node";

/// Watches the nodes that the driver's volumes are used on.
pub(super) async fn watch(monitor: &Arc<Monitor>, shutdown: &CancellationToken) {
    let pods: Cache<Pod> = monitor.context.cache();
    pods.index(BY_NODE, |pod| vec![pod.spec.node_name.to_string()]);
    let queue: WorkQueue<ObjectKey> = monitor.context.queue("nodes", QueueOptions::controller());
    let config = &monitor.config;
    let nodes = Nodes {
        monitor: monitor.clone(),
        nodes: monitor.context.cache(),
        pods,
        known: Mutex::default(),
    };
    let nodes = Arc::new(nodes);
    let looks = {
        let (nodes, queue) = (nodes.clone(), queue.clone());
        let pause = config.node_list_add_interval;
        async move {
            loop {
                tokio::time::sleep(pause).await;
                nodes.nodes.list().iter().for_each(|node| queue.add(node.metadata.key()));
            }
        }
    };
    Loop::new("health", nodes, queue).resync(config.resync).beside(looks).run(shutdown).await;
}

struct Nodes {
    monitor: Arc<Monitor>,
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    known: Mutex<BTreeMap<String, Known>>,
}

/// What is remembered of a node.
#[derive(Debug, Default, Clone, Copy)]
struct Known {
    broken_since: Option<Instant>,
    down: bool,
}

impl Reconciler for Nodes {
    type Key = ObjectKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        let Monitor { volumes, claims, .. } = self.monitor.as_ref();
        sources
            .needs(volumes)
            .needs(claims)
            .needs(&self.pods)
            .on(&self.nodes, |_, change| [change.object().metadata.key()])
            .on_resync(&self.nodes, |_, node| [node.metadata.key()]);
    }

    fn subject(&self, key: &ObjectKey) -> Subject {
        Subject::node(&key.name)
    }

    async fn reconcile(&self, key: &ObjectKey) -> Outcome {
        let name = key.name.as_str();
        let known = self.known.lock().get(name).copied().unwrap_or_default();
        let node = self.nodes.get(key);
        let view = NodeView {
            seen: seen(node.as_deref()),
            broken_for: known.broken_since.map(|since| since.elapsed()),
            down: known.down,
        };
        let after = match decide_node(&view) {
            NodeStep::Nothing => known,
            NodeStep::Forget => Known::default(),
            NodeStep::Remember => Known { broken_since: Some(Instant::now()), ..known },
            NodeStep::Failed => {
                for (claim, pods) in self.used_on(name) {
                    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
                    let meta = &claim.metadata;
                    let text = node_failed(name, &meta.namespace, &meta.name, &pods);
                    self.monitor.recorder.warning(claim.as_ref(), "NodeFailed", text);
                }
                Known { broken_since: None, down: true }
            }
            NodeStep::Recovered => {
                for (claim, _) in self.used_on(name) {
                    let text = node_recovered(name);
                    // A warning, as upstream has it.
                    self.monitor.recorder.warning(claim.as_ref(), "NodeRecovered", text);
                }
                Known::default()
            }
        };
        let mut all = self.known.lock();
        if after.broken_since.is_none() && !after.down {
            all.remove(name);
        } else {
            all.insert(name.to_owned(), after);
        }
        Outcome::Done
    }
}

impl Nodes {
    /// Claims with a volume of the driver that pods on the node use, and these pods.
    fn used_on(&self, node: &str) -> Vec<(Arc<Claim>, BTreeSet<String>)> {
        let mut users: BTreeMap<ObjectKey, BTreeSet<String>> = BTreeMap::new();
        for pod in self.pods.by_index(BY_NODE, node) {
            for volume in &pod.spec.volumes {
                if let Some(claim) = pod.claim_name(volume) {
                    let key = ObjectKey::new(&pod.metadata.namespace, claim);
                    users.entry(key).or_default().insert(pod.metadata.name.clone());
                }
            }
        }
        let Monitor { claims, volumes, driver, .. } = self.monitor.as_ref();
        let served = |(key, pods): (ObjectKey, BTreeSet<String>)| {
            let claim = claims.get(&key)?;
            let volume = volumes.get(&ObjectKey::cluster(&claim.spec.volume_name))?;
            handle_of(&volume, driver)?;
            Some((claim, pods))
        };
        users.into_iter().filter_map(served).collect()
    }
}
