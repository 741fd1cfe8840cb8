//! One valid object of every kind.

use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};

use crate::walk::{Caller, call, create, resource_routes};

/// The name of the sample of a kind.
pub fn name(group: &str, plural: &str) -> &'static str {
    match (group, plural) {
        ("apiextensions.k8s.io", _) => "walks.example.com",
        _ => "x",
    }
}

/// A binding of a role to a user.
pub fn binding(name: &str, kind: &str, role: &str, user: &str) -> Value {
    json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]})
}

/// A definition whose objects have every subresource.
fn definition() -> Value {
    let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({"metadata": {"name": "walks.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": {"plural": "walks", "kind": "Walk"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"spec": free, "status": free}}},
            "subresources": {"status": {}, "scale": {
                "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}}}]}})
}

/// A sample of a kind for snapshots; its version is that of the path.
fn snapshot_kind(plural: &str) -> Value {
    let reference = json!({"name": "x", "namespace": "default"});
    let (kind, mut body) = match plural {
        "volumesnapshotclasses" => ("VolumeSnapshotClass", json!({})),
        "volumegroupsnapshotclasses" => ("VolumeGroupSnapshotClass", json!({})),
        "volumesnapshots" => {
            ("VolumeSnapshot", json!({"spec": {"source": {"persistentVolumeClaimName": "x"}}}))
        }
        "volumegroupsnapshots" => (
            "VolumeGroupSnapshot",
            json!({"spec": {"source": {"selector": {"matchLabels": {"a": "b"}}}}}),
        ),
        "volumesnapshotcontents" => (
            "VolumeSnapshotContent",
            json!({"spec": {"driver": "d", "deletionPolicy": "Delete",
                "source": {"volumeHandle": "h"}, "volumeSnapshotRef": reference}}),
        ),
        "volumegroupsnapshotcontents" => (
            "VolumeGroupSnapshotContent",
            json!({"spec": {"driver": "d", "deletionPolicy": "Delete",
                "source": {"volumeHandles": ["h"]}, "volumeGroupSnapshotRef": reference}}),
        ),
        _ => panic!("no sample of {plural}: add one"),
    };
    if kind.ends_with("Class") {
        body = json!({"driver": "d", "deletionPolicy": "Delete"});
    }
    body["kind"] = json!(kind);
    body
}

/// The sample of a kind; kinds that are only asked, never stored, have none.
fn sample(group: &str, plural: &str) -> Option<Value> {
    let one_giga = json!({"storage": "1Gi"});
    let body = match (group, plural) {
        ("authentication.k8s.io" | "authorization.k8s.io", _) => return None,
        ("", "nodes" | "namespaces" | "secrets" | "configmaps" | "serviceaccounts")
        | ("storage.k8s.io", "csidrivers") => json!({"spec": {}}),
        ("", "persistentvolumes") => json!({"spec": {"capacity": one_giga,
            "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"}}}),
        ("", "persistentvolumeclaims") => json!({"spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": one_giga}}}),
        ("", "pods") => json!({"spec": {"containers": [{"name": "c", "image": "i"}]}}),
        ("", "events") => json!({"involvedObject": {"namespace": "default"}}),
        ("events.k8s.io", "events") => json!({"metadata": {"name": "y"},
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "a.b/c",
            "reportingInstance": "i", "action": "a", "reason": "r", "type": "Normal",
            "regarding": {"namespace": "default"}}),
        ("storage.k8s.io", "storageclasses") => json!({"provisioner": "p"}),
        ("storage.k8s.io", "volumeattributesclasses") => {
            json!({"driverName": "d", "parameters": {"a": "b"}})
        }
        ("storage.k8s.io", "volumeattachments") => json!({"spec": {"attacher": "a",
            "nodeName": "x", "source": {"persistentVolumeName": "x"}}}),
        ("storage.k8s.io", "csinodes") => json!({"spec": {"drivers": []}}),
        ("storage.k8s.io", "csistoragecapacities") => json!({"storageClassName": "x"}),
        ("coordination.k8s.io", "leases") => json!({"spec": {}}),
        ("rbac.authorization.k8s.io", "roles" | "clusterroles") => json!({"rules": []}),
        ("rbac.authorization.k8s.io", "rolebindings") => binding("x", "Role", "x", "nobody"),
        ("rbac.authorization.k8s.io", "clusterrolebindings") => {
            binding("x", "ClusterRole", "x", "nobody")
        }
        ("storagemigration.k8s.io", _) => json!({"spec": {"resource": {"resource": "secrets"}}}),
        ("snapshot.storage.k8s.io" | "groupsnapshot.storage.k8s.io", _) => snapshot_kind(plural),
        ("apiextensions.k8s.io", _) => definition(),
        ("example.com", "walks") => json!({"apiVersion": "example.com/v1", "kind": "Walk",
            "spec": {"replicas": 1}}),
        _ => panic!("no sample of {plural} in {group:?}: add one"),
    };
    Some(body)
}

/// Creates a sample of every kind that is served, and waits until the server has settled.
pub async fn create_all(admin: &Client) {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, made) = create(admin, path, &definition()).await;
    assert_eq!(code, 201, "{made}");
    settle(admin).await;
    for route in resource_routes(admin).await {
        if route.verb != "create" || route.resource.contains('/') {
            continue;
        }
        let Some(mut body) = sample(&route.group, &route.resource) else { continue };
        let snapshots = route.group.ends_with("snapshot.storage.k8s.io");
        if snapshots {
            let version = route.path.split('/').nth(3).unwrap_or_default();
            body["apiVersion"] = json!(format!("{}/{version}", route.group));
        }
        if body["metadata"]["name"].is_null() {
            body["metadata"]["name"] = json!(name(&route.group, &route.resource));
        }
        let (code, made) = create(admin, &route.path, &body).await;
        // Several versions show the same objects.
        let there = (route.group == "apiextensions.k8s.io" || snapshots) && code == 409;
        assert!(code == 201 || there, "{}: {made}", route.path);
    }
    settle(admin).await;
}

/// Waits until the server has done what new objects ask of it.
pub async fn settle(admin: &Client) {
    let admin = Caller { client: admin.clone(), authorization: None };
    for _ in 0..1000 {
        let (_, namespaces) = call(&admin, "GET", "/api/v1/namespaces").await;
        let (_, accounts) = call(&admin, "GET", "/api/v1/serviceaccounts").await;
        let at = |list: &Value, by: &str, value: &str| {
            let found = list["items"].as_array().unwrap().iter();
            found.filter(|item| item["metadata"][by] == value).count()
        };
        let spaces = namespaces["items"].as_array().unwrap().len();
        let settled = spaces == at(&accounts, "name", "default");
        let (code, served) = call(&admin, "GET", "/apis/example.com/v1").await;
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/walks.example.com";
        let (_, definition) = call(&admin, "GET", path).await;
        let conditions = definition["status"]["conditions"].as_array().map_or(0, Vec::len);
        let path = "/apis/storagemigration.k8s.io/v1/storageversionmigrations";
        let (_, migrations) = call(&admin, "GET", path).await;
        let mut migrations = migrations["items"].as_array().unwrap().iter();
        let settled = settled && migrations.all(|m| m["status"]["conditions"].is_array());
        if settled && code == 200 && served["resources"].is_array() && conditions >= 2 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the server did not settle");
}
