//! Objects made, read or changed through another door than the right one.

use serde_json::{Value, json};

use crate::*;

const PODS: &str = "/api/v1/namespaces/default/pods";

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

fn typed(api_version: &str, kind: &str, mut object: Value) -> Value {
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind);
    object["metadata"] = json!({"name": "new"});
    object
}

pub fn all() -> Vec<Attack> {
    let mut all = applied();
    all.extend(updated());
    all.extend(subresources());
    all
}

/// An apply of what is not there.
fn applied() -> Vec<Attack> {
    let volume = json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}});
    let class = json!({"provisioner": "x"});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"}, "versions": [{"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let rows = [
        ("", "pods", PODS, "v1", "Pod", pod("new")),
        ("", "configmaps", "/api/v1/namespaces/default/configmaps", "v1", "ConfigMap", json!({})),
        ("", "secrets", "/api/v1/namespaces/default/secrets", "v1", "Secret", json!({})),
        (
            "",
            "serviceaccounts",
            "/api/v1/namespaces/default/serviceaccounts",
            "v1",
            "ServiceAccount",
            json!({}),
        ),
        ("", "persistentvolumes", "/api/v1/persistentvolumes", "v1", "PersistentVolume", volume),
        ("", "namespaces", "/api/v1/namespaces", "v1", "Namespace", json!({})),
        (
            "storage.k8s.io",
            "storageclasses",
            "/apis/storage.k8s.io/v1/storageclasses",
            "storage.k8s.io/v1",
            "StorageClass",
            class,
        ),
        (
            "coordination.k8s.io",
            "leases",
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            "coordination.k8s.io/v1",
            "Lease",
            json!({"spec": {}}),
        ),
        (
            "example.com",
            "things",
            "/apis/example.com/v1/namespaces/default/things",
            "example.com/v1",
            "Thing",
            json!({}),
        ),
    ];
    let mut all = Vec::new();
    for (group, plural, path, version, kind, object) in rows {
        for verbs in [&["patch", "get"][..], &["patch", "update", "get"]] {
            let rules = json!([{"apiGroups": [group], "resources": [plural], "verbs": verbs}]);
            let body = typed(version, kind, object.clone());
            let one = format!("{path}/new");
            let try_it =
                |query: &str| step("PATCH", &format!("{one}?{query}"), APPLY, body.clone(), 403);
            all.push(
                attack(
                    &format!("{plural}: an apply makes what is not there, with {verbs:?}"),
                    rules,
                    vec![
                        try_it("fieldManager=m"),
                        try_it("fieldManager=m&force=true"),
                        try_it("fieldManager=m&dryRun=All"),
                        step("PATCH", &one, MERGE, body.clone(), 404),
                        get(&one, 404),
                    ],
                )
                .with(
                    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                    definition.clone(),
                ),
            );
        }
    }
    let one = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"], "resourceNames": ["other"]}]);
    all.push(attack(
        "an apply with the right to create another name",
        one,
        vec![step("PATCH", &format!("{PODS}/new?fieldManager=m"), APPLY, pod("new"), 403)],
    ));
    let both = json!([on_core(&["patch", "create"], &["pods"])]);
    all.push(attack(
        "an apply with both rights",
        both,
        vec![step("PATCH", &format!("{PODS}/new?fieldManager=m"), APPLY, pod("new"), 201)],
    ));
    all
}

/// An update of what is not there.
fn updated() -> Vec<Attack> {
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases/new";
    let lease = || json!({"metadata": {"name": "new"}, "spec": {}});
    let group = "coordination.k8s.io";
    vec![
        attack(
            "leases: an update makes what is not there",
            json!([{"apiGroups": [group], "resources": ["leases"], "verbs": ["update", "get"]}]),
            vec![step("PUT", leases, JSON, lease(), 403), get(leases, 404)],
        ),
        attack(
            "leases: an update with both rights",
            json!([{"apiGroups": [group], "resources": ["leases"], "verbs": ["update", "create"]}]),
            vec![step("PUT", leases, JSON, lease(), 201)],
        ),
        attack(
            "roles: an update makes what is not there",
            json!([on_roles(&["update"], &["clusterroles"])]),
            vec![step("PUT", &format!("{RBAC}/clusterroles/r"), JSON, role("r", json!([])), 403)],
        ),
        attack(
            "pods: an update makes nothing",
            json!([on_core(&["update", "create"], &["pods"])]),
            vec![step("PUT", &format!("{PODS}/new"), JSON, pod("new"), 404)],
        ),
    ]
}

/// What stands below an object has rights of its own.
fn subresources() -> Vec<Attack> {
    let all_of_pods = json!([on_core(&["*"], &["pods", "serviceaccounts", "nodes"])]);
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let below =
        |method, path: &str, kind, body| step(method, &format!("{PODS}/p/{path}"), kind, body, 403);
    let mut all = vec![
        attack(
            "subresources without rights of their own",
            all_of_pods,
            vec![
                below("GET", "log", JSON, Value::Null),
                below("POST", "binding", JSON, binding.clone()),
                below("POST", "eviction", JSON, eviction.clone()),
                below("GET", "status", JSON, Value::Null),
                below("PATCH", "status", MERGE, json!({"status": {"phase": "Running"}})),
                below("PATCH", "status?fieldManager=m", APPLY, pod("p")),
                below("PUT", "status", JSON, pod("p")),
                below("POST", "exec", JSON, Value::Null),
                below("GET", "exec", JSON, Value::Null),
                below("POST", "attach", JSON, Value::Null),
                below("POST", "portforward", JSON, Value::Null),
                below("PATCH", "ephemeralcontainers", MERGE, json!({})),
                step(
                    "POST",
                    "/api/v1/namespaces/default/serviceaccounts/default/token",
                    JSON,
                    json!({}),
                    403,
                ),
            ],
        )
        .with(PODS, pod("p")),
        attack(
            "one subresource does not open another, nor the object",
            json!([on_core(&["*"], &["pods/log", "pods/status"])]),
            vec![
                below("POST", "eviction", JSON, eviction),
                below("POST", "binding", JSON, binding),
                step("DELETE", &format!("{PODS}/p"), JSON, Value::Null, 403),
                step("PATCH", &format!("{PODS}/p"), MERGE, json!({}), 403),
                get(PODS, 403),
            ],
        )
        .with(PODS, pod("p")),
    ];
    let named =
        json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"], "resourceNames": ["p"]}]);
    all.push(
        attack(
            "rights on one name do not reach the collection",
            named,
            vec![
                get(PODS, 403),
                get(&format!("{PODS}?fieldSelector=metadata.name%3Dp"), 200),
                get(&format!("{PODS}?fieldSelector=metadata.name%21%3Dp"), 403),
                get(&format!("{PODS}?fieldSelector=metadata.name%3Dq"), 403),
                get(&format!("{PODS}?fieldSelector=spec.nodeName%3Dmetadata.name%3Dp"), 403),
                step("DELETE", PODS, JSON, Value::Null, 403),
                step(
                    "DELETE",
                    &format!("{PODS}?fieldSelector=metadata.name%3Dp"),
                    JSON,
                    Value::Null,
                    403,
                ),
                post(PODS, pod("p"), 403),
            ],
        )
        .with(PODS, pod("p")),
    );
    let writers = json!([on_core(&["delete", "list", "get"], &["pods"])]);
    all.push(
        attack(
            "deletion of one is not deletion of all",
            writers,
            vec![step("DELETE", PODS, JSON, Value::Null, 403)],
        )
        .with(PODS, pod("p")),
    );
    all
}
