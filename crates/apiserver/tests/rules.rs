//! Defaulting, admission, validation and immutability of the storage kinds, one row per case.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use http::Method;
use longshore_apiserver::{ApiServer, Config};
use serde_json::{Value, json};

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";
const NODES: &str = "/apis/storage.k8s.io/v1/csinodes";
const CAPACITIES: &str = "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities";
const ATTRIBUTES: &str = "/apis/storage.k8s.io/v1/volumeattributesclasses";

struct Api {
    server: ApiServer,
}

impl Api {
    async fn new() -> Self {
        Self { server: ApiServer::open(Config::deterministic(3)).await.unwrap() }
    }

    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let kind = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let bytes = body.map(|b| b.to_string().into_bytes()).unwrap_or_default();
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", kind)
            .body(kube::client::Body::from(bytes))
            .unwrap();
        let response = self.server.client().send(request).await.unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect_bytes().await.unwrap();
        (code, serde_json::from_slice(&bytes).unwrap())
    }

    async fn create(&self, path: &str, object: &Value) -> (u16, Value) {
        self.call(Method::POST, path, Some(object)).await
    }

    async fn patch(&self, path: &str, change: &Value) -> (u16, Value) {
        self.call(Method::PATCH, path, Some(change)).await
    }
}

fn claim(spec: Value) -> Value {
    let mut object = json!({"metadata": {"name": "x"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}},
    }});
    merge(&mut object["spec"], spec);
    object
}

fn volume(spec: Value) -> Value {
    let mut object = json!({"metadata": {"name": "x"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "d.example.com", "volumeHandle": "h"},
    }});
    merge(&mut object["spec"], spec);
    object
}

fn class(name: &str, fields: Value) -> Value {
    let mut object = json!({"metadata": {"name": name}, "provisioner": "d.example.com"});
    merge(&mut object, fields);
    object
}

fn attachment(source: Value) -> Value {
    json!({"metadata": {"name": "x"}, "spec": {
        "attacher": "d.example.com", "nodeName": "n", "source": source,
    }})
}

fn driver(spec: Value) -> Value {
    json!({"metadata": {"name": "x"}, "spec": spec})
}

fn merge(object: &mut Value, fields: Value) {
    for (key, value) in fields.as_object().unwrap() {
        object[key] = value.clone();
    }
}

fn affinity(key: &str) -> Value {
    json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": key, "operator": "In", "values": ["a"]}]},
    ]}}})
}

fn default_class(name: &str) -> Value {
    let mut class = class(name, json!({"allowVolumeExpansion": true}));
    class["metadata"]["annotations"] =
        json!({"storageclass.kubernetes.io/is-default-class": "true"});
    class
}

/// One change of one fresh object: case, collection, object, status before, change, answer.
type Row = (&'static str, &'static str, Value, Option<Value>, Value, u16);

async fn check(rows: Vec<Row>) {
    for (case, path, object, status, change, wanted) in rows {
        let api = Api::new().await;
        api.create(CLASSES, &class("grow", json!({"allowVolumeExpansion": true}))).await;
        api.create(CLASSES, &class("fixed", json!({}))).await;
        let (code, made) = api.create(path, &object).await;
        assert_eq!(code, 201, "{case}: {made}");
        if let Some(status) = status {
            let path = format!("{path}/x/status");
            let (code, answer) = api.patch(&path, &json!({"status": status})).await;
            assert_eq!(code, 200, "{case}: {answer}");
        }
        let (code, answer) = api.patch(&format!("{path}/x"), &change).await;
        assert_eq!(code, wanted, "{case}: {change}: {answer}");
    }
}

fn spec(fields: Value) -> Value {
    json!({ "spec": fields })
}

fn request(size: &str) -> Value {
    spec(json!({"resources": {"requests": {"storage": size}}}))
}

#[tokio::test(start_paused = true)]
async fn volumes_change_only_where_allowed() {
    let secret = |name: &str| {
        spec(json!({"csi": {"controllerExpandSecretRef": {"name": name, "namespace": "n"}}}))
    };
    let with_secret = || {
        volume(json!({"csi": {
            "driver": "d.example.com", "volumeHandle": "h",
            "controllerExpandSecretRef": {"name": "s", "namespace": "n"},
        }}))
    };
    let zone = "topology.kubernetes.io/zone";
    let beta = "failure-domain.beta.kubernetes.io/zone";
    let none = || volume(json!({}));
    check(vec![
        (
            "case: scheduler-and-api/P1",
            VOLUMES,
            none(),
            None,
            spec(json!({"csi": {"volumeHandle": "i"}})),
            422,
        ),
        ("case: scheduler-and-api/P2", VOLUMES, none(), None, secret("s"), 200),
        ("case: scheduler-and-api/P2", VOLUMES, with_secret(), None, secret("t"), 422),
        ("case: scheduler-and-api/P3", VOLUMES, none(), None, spec(affinity(zone)), 200),
        (
            "case: scheduler-and-api/P3",
            VOLUMES,
            volume(affinity(zone)),
            None,
            spec(affinity("other")),
            422,
        ),
        (
            "case: scheduler-and-api/P3",
            VOLUMES,
            volume(affinity(beta)),
            None,
            spec(affinity(zone)),
            200,
        ),
        (
            "case: scheduler-and-api/P4",
            VOLUMES,
            none(),
            None,
            spec(json!({"capacity": {"storage": "2Gi"}})),
            200,
        ),
        (
            "case: scheduler-and-api/P4",
            VOLUMES,
            none(),
            None,
            spec(json!({"persistentVolumeReclaimPolicy": "Delete"})),
            200,
        ),
        (
            "case: scheduler-and-api/P4",
            VOLUMES,
            none(),
            None,
            spec(json!({"claimRef": {"name": "c", "namespace": "n"}})),
            200,
        ),
        (
            "case: scheduler-and-api/P5",
            VOLUMES,
            volume(json!({"volumeAttributesClassName": "gold"})),
            None,
            spec(json!({"volumeAttributesClassName": null})),
            422,
        ),
    ])
    .await;
    let api = Api::new().await;
    // case: scheduler-and-api/P6
    let both = volume(json!({"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}));
    assert_eq!(api.create(VOLUMES, &both).await.0, 422);
    // case: scheduler-and-api/P7
    let (_, made) = api.create(VOLUMES, &volume(json!({}))).await;
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
    let change = json!({"status": {"phase": "Available"}, "spec": {"storageClassName": "z"}});
    let (_, changed) = api.patch(&format!("{VOLUMES}/x/status"), &change).await;
    assert_eq!(changed["status"]["phase"], "Available");
    assert_eq!(changed["spec"], made["spec"]);
    let time = |volume: &Value| volume["status"]["lastPhaseTransitionTime"].clone();
    assert_ne!(time(&changed), time(&made));
}

#[tokio::test(start_paused = true)]
async fn claims_change_only_where_allowed() {
    let bound = || Some(json!({"phase": "Bound", "capacity": {"storage": "5Gi"}}));
    let applied = || Some(json!({"phase": "Bound", "currentVolumeAttributesClassName": "gold"}));
    let growing = || claim(json!({"storageClassName": "grow"}));
    let plain = || claim(json!({}));
    let named = |field: &str, value: Value| spec(json!({ field: value }));
    let beta = || {
        let mut object = claim(json!({}));
        object["metadata"]["annotations"] =
            json!({"volume.beta.kubernetes.io/storage-class": "gold"});
        object
    };
    let moved = |to: &str| {
        json!({
            "metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": null}},
            "spec": {"storageClassName": to},
        })
    };
    let gold = || claim(json!({"volumeAttributesClassName": "gold"}));
    let attributes = |to: Value| named("volumeAttributesClassName", to);
    let on_v = || claim(json!({"volumeName": "v"}));
    let classy = || claim(json!({"storageClassName": "gold"}));
    check(vec![
        ("case: scheduler-and-api/A4", CLAIMS, growing(), None, request("20Gi"), 422),
        (
            "case: scheduler-and-api/A5",
            CLAIMS,
            claim(json!({"storageClassName": "fixed"})),
            bound(),
            request("20Gi"),
            403,
        ),
        ("case: scheduler-and-api/A5", CLAIMS, plain(), bound(), request("20Gi"), 403),
        ("case: scheduler-and-api/A6", CLAIMS, growing(), bound(), request("20Gi"), 200),
        ("case: scheduler-and-api/C1", CLAIMS, plain(), None, named("volumeName", json!("v")), 200),
        ("case: scheduler-and-api/C1", CLAIMS, on_v(), None, named("volumeName", json!("w")), 422),
        (
            "case: scheduler-and-api/C2",
            CLAIMS,
            plain(),
            None,
            named("accessModes", json!(["ReadOnlyMany"])),
            422,
        ),
        (
            "case: scheduler-and-api/C3",
            CLAIMS,
            plain(),
            None,
            named("storageClassName", json!("gold")),
            200,
        ),
        (
            "case: scheduler-and-api/C3",
            CLAIMS,
            classy(),
            None,
            named("storageClassName", json!("silver")),
            422,
        ),
        (
            "case: scheduler-and-api/C3",
            CLAIMS,
            classy(),
            None,
            named("storageClassName", Value::Null),
            422,
        ),
        ("case: scheduler-and-api/C4", CLAIMS, beta(), None, moved("gold"), 200),
        ("case: scheduler-and-api/C4", CLAIMS, beta(), None, moved("silver"), 422),
        ("case: scheduler-and-api/C5", CLAIMS, growing(), bound(), request("11Gi"), 200),
        ("case: scheduler-and-api/C5", CLAIMS, growing(), None, request("11Gi"), 422),
        ("case: scheduler-and-api/C6", CLAIMS, growing(), bound(), request("7Gi"), 200),
        ("case: scheduler-and-api/C6", CLAIMS, growing(), bound(), request("5Gi"), 422),
        ("case: scheduler-and-api/C6", CLAIMS, growing(), bound(), request("3Gi"), 422),
        (
            "case: scheduler-and-api/C7",
            CLAIMS,
            plain(),
            None,
            named("volumeMode", json!("Block")),
            422,
        ),
        ("case: scheduler-and-api/C8", CLAIMS, gold(), applied(), attributes(json!("silver")), 200),
        ("case: scheduler-and-api/C8", CLAIMS, gold(), applied(), attributes(Value::Null), 422),
        ("case: scheduler-and-api/C8", CLAIMS, gold(), None, attributes(json!("silver")), 422),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn claims_are_completed_at_creation() {
    let api = Api::new().await;
    // case: scheduler-and-api/A7
    let (_, made) = api.create(VOLUMES, &volume(json!({}))).await;
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
    let mut once = claim(json!({}));
    once["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
    let (_, made) = api.create(CLAIMS, &once).await;
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let attributes =
        json!({"metadata": {"name": "x"}, "driverName": "d", "parameters": {"a": "b"}});
    let (_, made) = api.create(ATTRIBUTES, &attributes).await;
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/vac-protection"]));

    let named = |name: &str, fields: Value| {
        let mut object = claim(fields);
        object["metadata"]["name"] = json!(name);
        object
    };
    // case: scheduler-and-api/A1
    api.create(CLASSES, &default_class("gold")).await;
    let (_, made) = api.create(CLAIMS, &named("a1", json!({}))).await;
    assert_eq!(made["spec"]["storageClassName"], "gold");
    // case: scheduler-and-api/A2
    let (_, made) = api.create(CLAIMS, &named("a2", json!({"storageClassName": ""}))).await;
    assert_eq!(made["spec"]["storageClassName"], "");
    // case: scheduler-and-api/A3
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
    api.create(CLASSES, &default_class("younger")).await;
    let (_, made) = api.create(CLAIMS, &named("a3", json!({}))).await;
    assert_eq!(made["spec"]["storageClassName"], "younger");
    // case: scheduler-and-api/C9
    let foreign =
        json!({"dataSource": {"apiGroup": "g.example.com", "kind": "Populator", "name": "p"}});
    let (code, made) = api.create(CLAIMS, &named("c9", foreign)).await;
    assert_eq!(code, 201);
    assert!(made["spec"]["dataSource"].is_null(), "{made}");
    // case: scheduler-and-api/C10
    let reference = json!({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "p"}});
    let (_, made) = api.create(CLAIMS, &named("c10", reference)).await;
    assert_eq!(made["spec"]["dataSource"]["name"], "p");
    // case: scheduler-and-api/K15
    let (code, _) =
        api.call(Method::GET, &format!("{CLAIMS}?fieldSelector=status.phase=Bound"), None).await;
    assert_eq!(code, 400);
}

#[tokio::test(start_paused = true)]
async fn classes_drivers_and_nodes_change_only_where_allowed() {
    let class = || {
        let mut object = class("x", json!({"parameters": {"a": "b"}}));
        object["metadata"]["name"] = json!("x");
        object
    };
    let va = || attachment(json!({"persistentVolumeName": "v"}));
    let node = || {
        driver(
            json!({"drivers": [{"name": "d", "nodeID": "n", "topologyKeys": ["k"], "allocatable": {"count": 1}}]}),
        )
    };
    let node_with = |id: &str, count: i64| {
        spec(
            json!({"drivers": [{"name": "d", "nodeID": id, "topologyKeys": ["k"], "allocatable": {"count": count}}]}),
        )
    };
    let capacity = || json!({"metadata": {"name": "x"}, "storageClassName": "s", "capacity": "1Gi", "nodeTopology": {}});
    let attributes =
        || json!({"metadata": {"name": "x"}, "driverName": "d", "parameters": {"a": "b"}});
    let topologies =
        json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "z", "values": ["1"]}]}]});
    check(vec![
        (
            "case: scheduler-and-api/K1",
            CLASSES,
            class(),
            None,
            json!({"parameters": {"a": "c"}}),
            422,
        ),
        ("case: scheduler-and-api/K1", CLASSES, class(), None, json!({"provisioner": "e"}), 422),
        (
            "case: scheduler-and-api/K1",
            CLASSES,
            class(),
            None,
            json!({"reclaimPolicy": "Retain"}),
            422,
        ),
        (
            "case: scheduler-and-api/K1",
            CLASSES,
            class(),
            None,
            json!({"volumeBindingMode": "WaitForFirstConsumer"}),
            422,
        ),
        (
            "case: scheduler-and-api/K2",
            CLASSES,
            class(),
            None,
            json!({"allowVolumeExpansion": true}),
            200,
        ),
        (
            "case: scheduler-and-api/K2",
            CLASSES,
            class(),
            None,
            json!({"mountOptions": ["ro"]}),
            200,
        ),
        ("case: scheduler-and-api/K2", CLASSES, class(), None, topologies, 200),
        (
            "case: scheduler-and-api/K4",
            ATTACHMENTS,
            va(),
            None,
            spec(json!({"nodeName": "m"})),
            422,
        ),
        (
            "case: scheduler-and-api/K7",
            DRIVERS,
            driver(json!({})),
            None,
            spec(json!({"attachRequired": false})),
            422,
        ),
        ("case: scheduler-and-api/K11", NODES, node(), None, node_with("m", 1), 422),
        ("case: scheduler-and-api/K11", NODES, node(), None, node_with("n", 2), 200),
        (
            "case: scheduler-and-api/K12",
            CAPACITIES,
            capacity(),
            None,
            json!({"capacity": "2Gi"}),
            200,
        ),
        (
            "case: scheduler-and-api/K12",
            CAPACITIES,
            capacity(),
            None,
            json!({"nodeTopology": {"matchLabels": {"a": "b"}}}),
            422,
        ),
        (
            "case: scheduler-and-api/K13",
            ATTRIBUTES,
            attributes(),
            None,
            json!({"parameters": {"a": "c"}}),
            422,
        ),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn bad_classes_drivers_and_attachments_are_refused() {
    let inline = json!({"csi": {"driver": "d", "volumeHandle": "h"}});
    let both = json!({"persistentVolumeName": "v", "inlineVolumeSpec": inline});
    let rows = [
        ("case: scheduler-and-api/K3", CLASSES, class("x", json!({"reclaimPolicy": "Recycle"}))),
        ("case: scheduler-and-api/K5", ATTACHMENTS, attachment(both)),
        ("case: scheduler-and-api/K5", ATTACHMENTS, attachment(json!({}))),
        (
            "case: scheduler-and-api/K9",
            DRIVERS,
            driver(json!({"nodeAllocatableUpdatePeriodSeconds": 9})),
        ),
        (
            "case: scheduler-and-api/K10",
            DRIVERS,
            driver(json!({"serviceAccountTokenInSecrets": true})),
        ),
        (
            "case: scheduler-and-api/K13",
            ATTRIBUTES,
            json!({"metadata": {"name": "x"}, "driverName": "d"}),
        ),
    ];
    let api = Api::new().await;
    for (case, path, object) in rows {
        let (code, answer) = api.create(path, &object).await;
        assert_eq!(code, 422, "{case}: {answer}");
    }
    // case: scheduler-and-api/K8
    let (_, made) = api.create(DRIVERS, &driver(json!({}))).await;
    assert!(made["metadata"]["generation"].is_null());
    let (_, changed) =
        api.patch(&format!("{DRIVERS}/x"), &spec(json!({"podInfoOnMount": true}))).await;
    assert_eq!(changed["metadata"]["generation"], 1);
}

#[tokio::test(start_paused = true)]
async fn metadata_through_status_depends_on_the_kind() {
    let api = Api::new().await;
    let change = json!({"metadata": {"annotations": {"a": "b"}, "finalizers": ["example.com/f"]}});
    // case: scheduler-and-api/K14
    api.create(CLAIMS, &claim(json!({}))).await;
    let (_, changed) = api.patch(&format!("{CLAIMS}/x/status"), &change).await;
    assert_eq!(changed["metadata"]["annotations"], json!({"a": "b"}));
    // case: scheduler-and-api/K6
    api.create(ATTACHMENTS, &attachment(json!({"persistentVolumeName": "v"}))).await;
    let (code, kept) = api.patch(&format!("{ATTACHMENTS}/x/status"), &change).await;
    assert_eq!(code, 200);
    assert!(kept["metadata"]["annotations"].is_null(), "{kept}");
    assert!(kept["metadata"]["finalizers"].is_null(), "{kept}");
}

#[tokio::test(start_paused = true)]
async fn empty_lists_and_maps_of_a_claims_status_are_left_out() {
    let api = Api::new().await;
    api.create(CLAIMS, &claim(json!({}))).await;
    // case: resizer/75
    let set = json!({"metadata": {"annotations": {"a": "b"}}, "status": {
        "conditions": [{"type": "Resizing", "status": "True"}],
        "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"}}});
    let (_, changed) = api.patch(&format!("{CLAIMS}/x/status"), &set).await;
    assert_eq!(changed["status"]["conditions"][0]["type"], "Resizing");
    assert_eq!(changed["metadata"]["annotations"]["a"], "b");
    let cleared =
        json!({"status": {"conditions": [], "allocatedResourceStatuses": {"storage": null}}});
    let (_, changed) = api.patch(&format!("{CLAIMS}/x/status"), &cleared).await;
    assert_eq!(changed["status"], json!({"phase": "Pending"}), "{changed}");
}
