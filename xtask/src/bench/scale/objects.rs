//! The objects of a large cluster: nodes in zones, five classes, bound claims and volumes, a third of them
//! attached for a pod each.

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::bench::{api::side::Side, http::Server, load::send_all};

pub const DRIVER: &str = "bench.csi.example";
pub const ZONE: &str = "topology.bench/zone";
pub const ZONES: usize = 20;
pub const NAMESPACE: &str = "default";
const CLASSES: usize = 5;
/// Nodes for so many volumes each.
const VOLUMES_PER_NODE: usize = 20;
/// etcd takes so many changes at once.
const IN_ONE_TRANSACTION: usize = 100;

/// Which objects there are: those of the volumes `from..to`.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    pub from: usize,
    pub to: usize,
}

/// An object, and where it is.
struct Object {
    /// The collection's path in the API.
    collection: &'static str,
    /// Its directory in etcd.
    stored: &'static str,
    body: Value,
}

/// The name of a node.
pub fn node_name(at: usize) -> String {
    format!("node-{at}")
}

pub fn nodes_for(volumes: usize) -> usize {
    (volumes / VOLUMES_PER_NODE).max(1)
}

/// Whether a volume is attached, and for which pod's node.
pub fn node_of(volume: usize) -> Option<usize> {
    (volume % 10 < 3).then_some(volume / VOLUMES_PER_NODE)
}

pub fn claim_path(name: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/{name}")
}

pub fn attachment_name(handle: &str, node: &str) -> String {
    let hash = Sha256::digest(format!("{handle}{DRIVER}{node}"));
    format!("csi-{}", hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Makes what is missing; gives the bytes of all objects as they are written.
pub fn fill(side: &Side, range: Range) -> Result<usize> {
    eprintln!("{}: objects of the volumes {} to {}", side.label, range.from, range.to);
    match side.etcd()? {
        Some(etcd) => store(&etcd, range),
        None => create(&side.server, range),
    }
}

/// Past the API server: writing through it would take longer than everything that is measured.
fn store(etcd: &Server, range: Range) -> Result<usize> {
    let parts: Vec<String> = (range.from..range.to)
        .step_by(IN_ONE_TRANSACTION / 5)
        .map(|from| from.to_string())
        .collect();
    let bytes = std::sync::atomic::AtomicUsize::new(0);
    send_all(etcd, &parts, |connection, from| {
        let from: usize = from.parse().context("a number")?;
        let end = (from + IN_ONE_TRANSACTION / 5).min(range.to);
        let objects = (from..end).flat_map(|at| of_volume(at, range.from == 0 && at == 0));
        let put = |object: Object| {
            let meta = &object.body["metadata"];
            let text = |name: &str| meta[name].as_str().unwrap_or_default().to_owned();
            let (namespace, name) = (text("namespace"), text("name"));
            let between =
                if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
            let body = object.body.to_string();
            bytes.fetch_add(body.len(), std::sync::atomic::Ordering::Relaxed);
            let code = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
            let key = format!("/registry/{}/{between}{name}", object.stored);
            json!({"requestPut": {"key": code(&key), "value": code(&body)}})
        };
        let steps: Vec<Value> = objects.map(put).collect();
        let done = connection.call("POST", "/v3/kv/txn", Some(&json!({"success": steps})))?;
        ensure!(done["succeeded"] == true, "etcd did not store objects: {done}");
        Ok(())
    })?;
    Ok(bytes.into_inner())
}

fn create(server: &Server, range: Range) -> Result<usize> {
    let numbers: Vec<String> = (range.from..range.to).map(|at| at.to_string()).collect();
    let bytes = std::sync::atomic::AtomicUsize::new(0);
    send_all(server, &numbers, |connection, at| {
        let at: usize = at.parse().context("a number")?;
        let mut claim = Value::Null;
        for Object { collection, mut body, .. } in of_volume(at, range.from == 0 && at == 0) {
            if body["kind"] == "PersistentVolume" {
                body["spec"]["claimRef"]["uid"] = claim.take();
            }
            bytes.fetch_add(body.to_string().len(), std::sync::atomic::Ordering::Relaxed);
            let status = body["status"].clone();
            let made = connection.call("POST", collection, Some(&body))?;
            if body["kind"] == "PersistentVolumeClaim" {
                claim = made["metadata"]["uid"].clone();
            }
            if !status.is_null() {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                let path = format!("{collection}/{name}/status");
                connection.call("PATCH", &path, Some(&json!({"status": status})))?;
            }
        }
        Ok(())
    })?;
    Ok(bytes.into_inner())
}

/// The objects that come with a volume; with the first one also those that there is one of.
fn of_volume(at: usize, first: bool) -> Vec<Object> {
    let mut all = Vec::new();
    if first {
        all.extend((0..CLASSES).map(class));
        all.push(object(
            "/apis/storage.k8s.io/v1/csidrivers",
            "csidrivers",
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
                "metadata": {"name": DRIVER}, "spec": {"attachRequired": true,
                    "podInfoOnMount": false, "volumeLifecycleModes": ["Persistent"]}}),
        ));
    }
    if at.is_multiple_of(VOLUMES_PER_NODE) {
        all.extend(node(at / VOLUMES_PER_NODE));
    }
    all.extend(pair(at));
    all.extend(node_of(at).into_iter().flat_map(|node| attached(at, node)));
    all
}

fn object(collection: &'static str, stored: &'static str, mut body: Value) -> Object {
    let meta = &mut body["metadata"];
    let hash = Sha256::digest(format!("{stored}/{}", meta["name"]));
    let hex: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let uid = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..32]].join("-");
    meta["uid"] = json!(uid);
    meta["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    Object { collection, stored, body }
}

fn class(at: usize) -> Object {
    object(
        "/apis/storage.k8s.io/v1/storageclasses",
        "storageclasses",
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": format!("class-{at}")}, "provisioner": DRIVER,
            "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
            "allowVolumeExpansion": true}),
    )
}

fn node(at: usize) -> [Object; 2] {
    let name = node_name(at);
    let zone = format!("z{}", at % ZONES);
    [
        object(
            "/api/v1/nodes",
            "minions",
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name,
                "labels": {ZONE: zone, "kubernetes.io/hostname": name},
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
                "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True",
                    "reason": "KubeletReady", "message": "ready",
                    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                    "volumesInUse": on_node(at), "volumesAttached": on_node(at).into_iter()
                        .map(|name| json!({"name": name, "devicePath": ""})).collect::<Vec<_>>()}}),
        ),
        object(
            "/apis/storage.k8s.io/v1/csinodes",
            "csinodes",
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
                "spec": {"drivers": [{"name": DRIVER, "nodeID": name, "topologyKeys": [ZONE]}]}}),
        ),
    ]
}

/// The unique names of the volumes that are attached to a node.
fn on_node(at: usize) -> Vec<String> {
    let volumes = at * VOLUMES_PER_NODE..(at + 1) * VOLUMES_PER_NODE;
    let here = volumes.filter(|volume| node_of(*volume).is_some());
    here.map(|volume| format!("kubernetes.io/csi/{DRIVER}^handle-{volume}")).collect()
}

/// A claim and its volume, bound to each other.
fn pair(at: usize) -> [Object; 2] {
    let (claim, class) = (format!("claim-{at}"), format!("class-{}", at % CLASSES));
    let claim = object(
        "/api/v1/namespaces/default/persistentvolumeclaims",
        "persistentvolumeclaims",
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": NAMESPACE,
                "annotations": {"pv.kubernetes.io/bind-completed": "yes",
                    "pv.kubernetes.io/bound-by-controller": "yes",
                    "volume.kubernetes.io/storage-provisioner": DRIVER},
                "finalizers": ["kubernetes.io/pvc-protection"]},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "volumeMode": "Filesystem", "volumeName": format!("pv-{at}"),
                "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"}}}),
    );
    let uid = &claim.body["metadata"]["uid"];
    let volume = object(
        "/api/v1/persistentvolumes",
        "persistentvolumes",
        json!({"apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": format!("pv-{at}"),
                "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER},
                "finalizers": ["kubernetes.io/pv-protection",
                    "external-attacher/bench-csi-example"]},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                "storageClassName": class, "volumeMode": "Filesystem",
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "name": format!("claim-{at}"), "namespace": NAMESPACE, "uid": uid},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": ZONE, "operator": "In",
                     "values": [format!("z{}", (at / VOLUMES_PER_NODE) % ZONES)]}]}]}},
                "csi": {"driver": DRIVER, "volumeHandle": format!("handle-{at}"), "fsType": "ext4",
                    "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity":
                        "1767225600000-1234-bench.csi.example"}}},
            "status": {"phase": "Bound"}}),
    );
    // Whoever creates through the API gets another UID: the claim comes first.
    [claim, volume]
}

/// The attachment and the pod that wants it.
fn attached(volume: usize, node: usize) -> [Object; 2] {
    let (node, handle) = (node_name(node), format!("handle-{volume}"));
    [
        object(
            "/apis/storage.k8s.io/v1/volumeattachments",
            "volumeattachments",
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
                "metadata": {"name": attachment_name(&handle, &node),
                    "finalizers": ["external-attacher/bench-csi-example"],
                    "annotations": {"csi.alpha.kubernetes.io/node-id": node}},
                "spec": {"attacher": DRIVER, "nodeName": node,
                    "source": {"persistentVolumeName": format!("pv-{volume}")}},
                "status": {"attached": true}}),
        ),
        pod(&format!("pod-{volume}"), &node, &format!("claim-{volume}")),
    ]
}

fn pod(name: &str, node: &str, claim: &str) -> Object {
    object(
        "/api/v1/namespaces/default/pods",
        "pods",
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "example/app:1",
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]},
            "status": {"phase": "Running"}}),
    )
}

/// A pod that does not run yet.
pub fn new_pod(name: &str, node: &str, claim: &str) -> Value {
    pod(name, node, claim).body
}
