//! This node's `Node` object and its lease.

use std::sync::Arc;
use std::time::Duration;

use longshore_cluster::{
    Api, ApiError, Cache, Change, Loop, Outcome, Patch, QueueOptions, Reconciler, Sources, Subject,
    WorkQueue, clock,
};
use longshore_core::model::ObjectKey;
use longshore_core::model::keys::{annotations, labels};
use longshore_core::model::kinds::{CsiNode, Lease, Namespace, Node};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const LEASE_NAMESPACE: &str = "kube-node-lease";
const LEASE_SECONDS: i64 = 40;
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Heartbeat of the conditions when nothing changes.
const REPORT_EVERY: Duration = Duration::from_secs(300);

/// Keeps the node's object and lease fresh.
pub(crate) struct NodeObject {
    api: Api,
    name: String,
    /// Holds only this node; absent while there are no caches yet.
    node: Option<Cache<Node>>,
}

/// What is renewed, each at its own pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Duty {
    /// The lease by which the cluster knows that the node lives.
    Lease,
    /// The node object and its conditions.
    Status,
}

impl Reconciler for NodeObject {
    type Key = Duty;

    fn sources(&self, sources: &mut Sources<Self>) {
        if let Some(node) = &self.node {
            sources.on(node, Self::keys_of_node);
        }
    }

    fn subject(&self, _: &Duty) -> Subject {
        Subject::node(&self.name)
    }

    async fn reconcile(&self, duty: &Duty) -> Outcome {
        let (renewed, period) = match duty {
            Duty::Lease => (self.renew().await, RENEW_EVERY),
            Duty::Status => (self.ensure().await, REPORT_EVERY),
        };
        if let Err(error) = renewed {
            tracing::warn!(%error, "cannot renew the node's lease or status");
            return Outcome::After(RENEW_EVERY);
        }
        Outcome::After(period)
    }
}

impl NodeObject {
    /// For the node of this name.
    pub(crate) fn new(api: Api, name: &str) -> Self {
        Self { api, name: name.to_owned(), node: None }
    }

    /// The same, contradicting at once who says that the node is not ready.
    pub(crate) fn watching(self, node: Cache<Node>) -> Self {
        Self { node: Some(node), ..self }
    }

    /// A node that did not run for a while, or whose process is new, was given up meanwhile.
    fn keys_of_node(&self, change: &Change<Node>) -> Option<Duty> {
        let node = change.applied().filter(|node| node.metadata.name == self.name)?;
        (!node.ready()).then_some(Duty::Status)
    }

    /// Makes the node and its `CSINode` if missing and says that it is ready.
    pub(crate) async fn ensure(&self) -> Result<(), ApiError> {
        let node = self.ensure_node().await?;
        self.ensure_csi_node(&node).await?;
        self.report(&node).await
    }

    async fn ensure_node(&self) -> Result<Value, ApiError> {
        let key = ObjectKey::cluster(&self.name);
        let wanted = json!({
            "labels": {labels::HOSTNAME: self.name, labels::OS: "linux", labels::ARCH: arch()},
            "annotations": {annotations::CONTROLLER_MANAGED_ATTACH: "true"},
        });
        if let Some(node) = self.api.get_raw::<Node>(&key).await? {
            if contains(&node["metadata"], &wanted) {
                return Ok(node);
            }
            return self.api.patch::<Node>(&key, Patch::Merge(&json!({"metadata": wanted}))).await;
        }
        let mut node = json!({"apiVersion": "v1", "kind": "Node", "metadata": wanted, "spec": {}});
        node["metadata"]["name"] = self.name.as_str().into();
        match self.api.create::<Node>(&node).await {
            Err(error) if error.is_already_exists() => {
                Ok(self.api.get_raw::<Node>(&key).await?.unwrap_or(node))
            }
            other => other,
        }
    }

    /// An empty `CSINode`, so that drivers can be added and the scheduler knows the node is set up.
    async fn ensure_csi_node(&self, node: &Value) -> Result<(), ApiError> {
        if self.api.get_raw::<CsiNode>(&ObjectKey::cluster(&self.name)).await?.is_some() {
            return Ok(());
        }
        let object = csi_node(&self.name, node["metadata"]["uid"].as_str().unwrap_or_default());
        match self.api.create::<CsiNode>(&object).await {
            Err(error) if !error.is_already_exists() => Err(error),
            _ => Ok(()),
        }
    }

    async fn report(&self, node: &Value) -> Result<(), ApiError> {
        let status = json!({"status": {
            "conditions": conditions(&node["status"]["conditions"]),
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": self.name},
            ],
            "capacity": capacity(),
            "allocatable": capacity(),
            "nodeInfo": node_info(),
        }});
        self.api
            .patch_status::<Node>(&ObjectKey::cluster(&self.name), Patch::Merge(&status))
            .await
            .map(drop)
    }

    /// Renews the lease every ten seconds and the conditions every five minutes.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let queue = WorkQueue::new("node", QueueOptions::default());
        queue.add(Duty::Lease);
        queue.add_after(Duty::Status, REPORT_EVERY);
        Loop::new("node", Arc::new(self), queue).run(&shutdown).await;
    }

    async fn renew(&self) -> Result<(), ApiError> {
        let key = ObjectKey::new(LEASE_NAMESPACE, &self.name);
        let spec = json!({
            "holderIdentity": self.name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": clock::micros(clock::now()),
        });
        match self.api.patch::<Lease>(&key, Patch::Merge(&json!({"spec": spec}))).await {
            Err(error) if error.is_not_found() => self.create_lease(spec).await,
            other => other.map(drop),
        }
    }

    async fn create_lease(&self, spec: Value) -> Result<(), ApiError> {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": self.name, "namespace": LEASE_NAMESPACE},
            "spec": spec,
        });
        match self.api.create::<Lease>(&lease).await {
            Err(error) if error.is_not_found() => {}
            other => return other.map(drop),
        }
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}});
        match self.api.create::<Namespace>(&namespace).await {
            Err(error) if !error.is_already_exists() => return Err(error),
            _ => {}
        }
        self.api.create::<Lease>(&lease).await.map(drop)
    }
}

/// A `CSINode` without drivers, owned by its node.
pub(crate) fn csi_node(name: &str, node_uid: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
        "metadata": {
            "name": name,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}],
        },
        "spec": {"drivers": []},
    })
}

/// Whether `object` holds everything that `part` holds.
fn contains(object: &Value, part: &Value) -> bool {
    match part {
        Value::Object(fields) => fields.iter().all(|(key, value)| contains(&object[key], value)),
        other => object == other,
    }
}

fn conditions(present: &Value) -> Value {
    let now = clock::seconds(clock::now());
    let ours = [
        (
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ];
    let old = |kind: &str| present.as_array()?.iter().find(|one| one["type"] == kind).cloned();
    let foreign = present.as_array().into_iter().flatten();
    let foreign = foreign.filter(|one| ours.iter().all(|(kind, ..)| one["type"] != *kind)).cloned();
    let mut all: Vec<Value> = foreign.collect();
    for (kind, status, reason, message) in ours {
        let unchanged = old(kind).filter(|one| one["status"] == status);
        let since =
            unchanged.map_or_else(|| now.clone().into(), |one| one["lastTransitionTime"].clone());
        all.push(json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": since,
        }));
    }
    all.into()
}

/// What pods may use of this node.
pub(crate) fn capacity() -> Value {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    json!({"cpu": cores.to_string(), "memory": format!("{}Ki", memory_kib()), "pods": "110"})
}

fn memory_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn node_info() -> Value {
    let read = |path: &str| {
        std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
    };
    let uname = rustix::system::uname();
    json!({
        "machineID": read("/etc/machine-id"),
        "systemUUID": "",
        "bootID": read("/proc/sys/kernel/random/boot_id"),
        "kernelVersion": uname.release().to_string_lossy(),
        "osImage": os_image(),
        "containerRuntimeVersion": format!("longshore://{}", env!("CARGO_PKG_VERSION")),
        "kubeletVersion": format!("v1.37.0-longshore-{}", env!("CARGO_PKG_VERSION")),
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": arch(),
    })
}

fn os_image() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    line.unwrap_or("Linux").trim_matches('"').to_owned()
}

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
