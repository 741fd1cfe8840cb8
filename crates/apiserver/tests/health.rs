//! The health of volumes and of storage in the status of claims, pods and CSINodes.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use http::Method;
use longshore_apiserver::{ApiServer, Config};
use serde_json::{Value, json};

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const PODS: &str = "/api/v1/namespaces/default/pods";
const NODES: &str = "/apis/storage.k8s.io/v1/csinodes";

const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

struct Api {
    server: ApiServer,
}

impl Api {
    /// A server with the gate on or off, where there are a claim, a pod and a CSINode, each named x.
    async fn new(volume_health: bool) -> Self {
        let config = Config { volume_health, ..Config::deterministic(3) };
        let api = Self { server: ApiServer::open(config).await.unwrap() };
        api.fill().await;
        api
    }

    async fn fill(&self) {
        let claim = json!({"metadata": {"name": "x"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        let pod = json!({"metadata": {"name": "x"}, "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "logs", "emptyDir": {}}]}});
        let node = json!({"metadata": {"name": "x"},
            "spec": {"drivers": [{"name": "d.example.com", "nodeID": "n"}]}});
        for (path, object) in [(CLAIMS, claim), (PODS, pod), (NODES, node)] {
            let (code, made) = self.call(Method::POST, path, "application/json", &object).await;
            assert_eq!(code, 201, "{made}");
        }
    }

    async fn call(&self, method: Method, path: &str, kind: &str, body: &Value) -> (u16, Value) {
        let body = match method {
            Method::GET => Vec::new(),
            _ => body.to_string().into_bytes(),
        };
        let request =
            http::Request::builder().method(method).uri(path).header("Content-Type", kind);
        let request = request.body(kube::client::Body::from(body)).unwrap();
        let response = self.server.client().send(request).await.unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect_bytes().await.unwrap();
        (code, serde_json::from_slice(&bytes).unwrap())
    }

    /// A change of the status of the object x.
    async fn patch(&self, collection: &str, status: &Value) -> (u16, Value) {
        let path = format!("{collection}/x/status");
        self.call(Method::PATCH, &path, MERGE, &json!({ "status": status })).await
    }

    async fn get(&self, collection: &str) -> Value {
        let path = format!("{collection}/x");
        let (code, object) = self.call(Method::GET, &path, "application/json", &Value::Null).await;
        assert_eq!(code, 200, "{object}");
        object
    }
}

fn condition(status: &str, reason: &str) -> Value {
    json!({"status": status, "reason": reason})
}

fn of_claim(conditions: &Value) -> Value {
    json!({"healthStatus": {"healthConditions": conditions, "lastTransitionTime": "2026-01-01T00:00:00Z"}})
}

fn of_pod(name: &str, conditions: &Value) -> Value {
    json!({"volumeHealth": [{"name": name, "healthConditions": conditions}]})
}

fn of_node(name: &str, conditions: &Value) -> Value {
    json!({"storageHealth": [{"name": name, "healthConditions": conditions}]})
}

/// What stands of the health in the object x of each kind.
async fn stored(api: &Api) -> [Value; 3] {
    let (claim, pod, node) = (api.get(CLAIMS).await, api.get(PODS).await, api.get(NODES).await);
    [
        claim["status"]["healthStatus"]["healthConditions"].clone(),
        pod["status"]["volumeHealth"].clone(),
        node["status"]["storageHealth"].clone(),
    ]
}

#[tokio::test(start_paused = true)]
async fn health_is_kept_with_the_gate_and_dropped_without() {
    let bad = json!([condition("Degraded", "PoolFull")]);
    let storage = json!([condition("StorageDegraded", "PoolFull")]);
    let changes = [
        (CLAIMS, of_claim(&bad)),
        (PODS, of_pod("data", &bad)),
        (NODES, of_node("d.example.com", &storage)),
    ];
    // case: health/H38
    for gate in [true, false] {
        let api = Api::new(gate).await;
        for (path, change) in &changes {
            let (code, answer) = api.patch(path, change).await;
            assert_eq!(code, 200, "{path}: {answer}");
            // The same again changes nothing, whether it was kept or dropped.
            let (_, again) = api.patch(path, change).await;
            let versions = [&answer, &again].map(|one| &one["metadata"]["resourceVersion"]);
            assert_eq!(versions[0], versions[1], "{path}: {again}");
        }
        let kept = stored(&api).await.map(|value| !value.is_null());
        assert_eq!(kept, [gate; 3]);
        // Everything else of a status is open in both cases.
        let capacity = json!({"capacity": {"storage": "1Gi"}, "healthStatus": {}});
        let (code, claim) = api.patch(CLAIMS, &capacity).await;
        assert_eq!((code, &claim["status"]["capacity"]["storage"]), (200, &json!("1Gi")));
    }
}

#[tokio::test]
async fn what_was_kept_before_the_gate_was_switched_off_may_change() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { volume_health: true, ..Config::at(dir.path()) };
    let api = Api { server: ApiServer::open(config).await.unwrap() };
    api.fill().await;
    api.patch(CLAIMS, &of_claim(&json!([condition("Degraded", "A")]))).await;
    api.patch(NODES, &of_node("d.example.com", &json!([condition("StorageDegraded", "A")]))).await;
    api.server.shutdown().await;
    drop(api);
    let api = Api { server: ApiServer::open(Config::at(dir.path())).await.unwrap() };
    // case: health/H40
    let worse = json!([condition("DataLoss", "B")]);
    let (code, claim) = api.patch(CLAIMS, &of_claim(&worse)).await;
    assert_eq!((code, &claim["status"]["healthStatus"]["healthConditions"]), (200, &worse));
    let (code, claim) = api.patch(CLAIMS, &of_claim(&json!([condition("Bad", "B")]))).await;
    assert_eq!(code, 422, "it is judged as ever: {claim}");
    let (code, claim) = api.patch(CLAIMS, &json!({"healthStatus": null})).await;
    assert_eq!((code, &claim["status"]["healthStatus"]), (200, &Value::Null));
    let (_, claim) = api.patch(CLAIMS, &of_claim(&worse)).await;
    assert_eq!(claim["status"]["healthStatus"], Value::Null, "once cleared it cannot come back");
    api.patch(NODES, &of_node("d.example.com", &json!([]))).await;
    let node = api.get(NODES).await;
    assert_eq!(node["status"]["storageHealth"][0]["name"], "d.example.com");
    api.server.shutdown().await;
}

/// The first thing that is said of a refused change: field and text.
async fn refusal(api: &Api, path: &str, status: &Value) -> (String, String) {
    let (code, answer) = api.patch(path, status).await;
    assert_eq!(code, 422, "{status}: {answer}");
    let cause = &answer["details"]["causes"][0];
    let text = |part: &str| cause[part].as_str().unwrap_or_default().to_owned();
    (text("field"), text("message"))
}

#[tokio::test(start_paused = true)]
async fn conditions_of_volumes_are_judged() {
    let api = Api::new(true).await;
    let many: Vec<Value> = (0..17).map(|n| condition("Degraded", &format!("R{n}"))).collect();
    let wordy =
        |bytes: usize| json!([{"status": "Degraded", "reason": "A", "message": "m".repeat(bytes)}]);
    let twice = json!([condition("Degraded", "A"), condition("Degraded", "A")]);
    let one = |status: &str, reason: &str| json!([condition(status, reason)]);
    let cases = [
        ("[0].status", one("", "A"), "Required value"),
        (
            "[0].status",
            one("Broken", "A"),
            r#"Unsupported value: "Broken": supported values: "DataLoss", "Degraded", "Inaccessible""#,
        ),
        ("[0].reason", one("Degraded", ""), "Required value"),
        (
            "[0].reason",
            one("Degraded", &"a".repeat(257)),
            "Too long: may not be more than 256 bytes",
        ),
        (
            "[0].reason",
            one("Degraded", "disk is bad"),
            r#"Invalid value: "disk is bad": a condition reason must start with alphabetic character"#,
        ),
        ("[0].reason", one("Degraded", "A:"), r#"Invalid value: "A:": a condition reason must"#),
        ("[0].message", wordy(1025), "Too long: may not be more than 1024 bytes"),
        ("[1]", twice, r#"Duplicate value: {"status":"Degraded","reason":"A"}"#),
        ("", json!(many), "Too many: 17: must have at most 16 items"),
    ];
    for (place, conditions, text) in cases {
        for (path, field, status) in [
            (CLAIMS, "status.healthStatus.healthConditions", of_claim(&conditions)),
            (PODS, "status.volumeHealth[0].healthConditions", of_pod("data", &conditions)),
        ] {
            let (at, said) = refusal(&api, path, &status).await;
            assert_eq!(at, format!("{field}{place}"), "{said}");
            assert!(said.starts_with(text), "{at}: {said}");
        }
    }
    // case: health/H11
    let longest =
        json!({"status": "DataLoss", "reason": "a".repeat(256), "message": "m".repeat(1024)});
    let fine = json!([condition("Degraded", "A"), condition("Degraded", "B"), longest]);
    for (path, status) in [(CLAIMS, of_claim(&fine)), (PODS, of_pod("logs", &fine))] {
        let (code, answer) = api.patch(path, &status).await;
        assert_eq!(code, 200, "{answer}");
    }
    assert_eq!(stored(&api).await[0], fine);
}

#[tokio::test(start_paused = true)]
async fn health_of_pods_is_about_their_volumes() {
    let api = Api::new(true).await;
    // case: health/H45
    let (at, said) = refusal(&api, PODS, &of_pod("nowhere", &json!([]))).await;
    assert_eq!((&*at, &*said), ("status.volumeHealth[0]", "Not found: \"nowhere\""));
    let (at, said) = refusal(&api, PODS, &of_pod("", &json!([]))).await;
    assert_eq!((&*at, &*said), ("status.volumeHealth[0].name", "Required value"));
    let twice = json!({"volumeHealth": [{"name": "data"}, {"name": "data"}]});
    let (at, said) = refusal(&api, PODS, &twice).await;
    assert_eq!(at, "status.volumeHealth[1]");
    assert_eq!(said, r#"Duplicate value: {"name":"data"}"#);
}

#[tokio::test(start_paused = true)]
async fn health_of_storage_is_judged() {
    let api = Api::new(true).await;
    let many: Vec<Value> =
        (0..17).map(|n| condition("StorageDegraded", &format!("R{n}"))).collect();
    let with = |part: &str, word: &str| {
        let mut one = condition("StorageDegraded", "A");
        one[part] = json!(word);
        of_node("d.example.com", &json!([one]))
    };
    // case: health/H44
    let twice = json!({"storageHealth": [{"name": "d.example.com"}, {"name": "d.example.com"}]});
    let conditions = "storageHealth[0].healthConditions";
    for (status, field, text) in [
        (of_node("", &json!([])), "storageHealth[0].name".to_owned(), "Required value"),
        (twice, "storageHealth[1].name".to_owned(), r#"Duplicate value: "d.example.com""#),
        (
            of_node("d.example.com", &json!(many)),
            conditions.to_owned(),
            "Too many: 17: must have at most 16 items",
        ),
        (
            of_node("d.example.com", &json!([condition("Degraded", "A")])),
            format!("{conditions}[0].status"),
            r#"Unsupported value: "Degraded": supported values: "StorageDegraded", "StorageUnreachable""#,
        ),
        (
            with("accessMode", "Some"),
            format!("{conditions}[0].accessMode"),
            r#"Unsupported value: "Some": supported values: "ReadOnlyMany", "ReadWriteMany","#,
        ),
        (
            with("volumeMode", "Tape"),
            format!("{conditions}[0].volumeMode"),
            r#"Unsupported value: "Tape": supported values: "Block", "Filesystem""#,
        ),
    ] {
        let (at, said) = refusal(&api, NODES, &status).await;
        assert_eq!(at, format!("status.{field}"), "{said}");
        assert!(said.starts_with(text), "{at}: {said}");
    }
    let (code, answer) = api.patch(NODES, &with("accessMode", "ReadWriteOncePod")).await;
    assert_eq!(code, 200, "{answer}");
}

#[tokio::test(start_paused = true)]
async fn status_of_a_csi_node_is_written_apart_from_the_rest() {
    let api = Api::new(true).await;
    let status = of_node("d.example.com", &json!([condition("StorageDegraded", "A")]));
    // case: health/H46
    let made = json!({"metadata": {"name": "y"}, "spec": {"drivers": []}, "status": status});
    let (code, made) = api.call(Method::POST, NODES, "application/json", &made).await;
    assert_eq!((code, &made["status"]["storageHealth"]), (201, &Value::Null));
    // case: health/H43
    let mut node = api.get(NODES).await;
    node["status"] = status.clone();
    let path = format!("{NODES}/x");
    let (code, put) = api.call(Method::PUT, &path, "application/json", &node).await;
    assert_eq!((code, &put["status"]["storageHealth"]), (200, &Value::Null));
    let mut node = api.get(NODES).await;
    node["status"] = status.clone();
    node["spec"]["drivers"] = json!([]);
    node["metadata"]["labels"] = json!({"a": "b"});
    let path = format!("{NODES}/x/status");
    let (code, put) = api.call(Method::PUT, &path, "application/json", &node).await;
    assert_eq!((code, &put["status"]), (200, &status));
    assert_eq!(put["spec"]["drivers"][0]["name"], "d.example.com");
    assert_eq!(put["metadata"]["labels"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_strategic_patch_merges_reasons_of_one_status() {
    let api = Api::new(true).await;
    api.patch(CLAIMS, &of_claim(&json!([condition("Degraded", "A")]))).await;
    let more = json!({"status": of_claim(&json!([condition("Degraded", "B")]))});
    let path = format!("{CLAIMS}/x/status");
    let (code, claim) = api.call(Method::PATCH, &path, STRATEGIC, &more).await;
    // This is why the health monitor sends the whole list in a JSON merge patch.
    let merged = &claim["status"]["healthStatus"]["healthConditions"];
    assert_eq!((code, merged), (200, &json!([condition("Degraded", "B")])));
}
