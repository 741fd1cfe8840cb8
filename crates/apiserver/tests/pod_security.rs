//! Pod Security admission through the API: what labels of a namespace do to requests.

#![allow(clippy::unwrap_used, reason = "tests")]

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use longshore_apiserver::{ApiServer, Config};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/n/pods";
const MERGE: &str = "application/merge-patch+json";

struct Answer {
    code: u16,
    warnings: Vec<String>,
    body: Value,
    text: String,
}

impl Answer {
    fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }
}

async fn ask(server: &ApiServer, method: &str, path: &str, kind: &str, body: Value) -> Answer {
    let request = http::Request::builder().method(method).uri(path).header("Content-Type", kind);
    let request = request.body(Full::new(Bytes::from(body.to_string()))).unwrap();
    let answer = server.service().handle(request).await;
    let code = answer.status().as_u16();
    let warnings = answer.headers().get_all("warning").iter();
    let warnings = warnings.map(|value| value.to_str().unwrap().to_owned()).collect();
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(text.to_vec()).unwrap();
    Answer { code, warnings, body: serde_json::from_str(&text).unwrap_or_default(), text }
}

async fn server(labels: Value) -> ApiServer {
    let config = Config { snapshot_kinds: false, ..Config::memory() };
    let server = ApiServer::open(config).await.unwrap();
    let namespace = json!({"metadata": {"name": "n", "labels": labels}});
    let made = ask(&server, "POST", "/api/v1/namespaces", "application/json", namespace).await;
    assert_eq!(made.code, 201, "{}", made.text);
    server
}

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": name}, "spec": spec});
    pod["spec"]["containers"] = json!([{"name": "c", "image": "i"}]);
    pod
}

async fn create(server: &ApiServer, pod: Value) -> Answer {
    ask(server, "POST", PODS, "application/json", pod).await
}

#[tokio::test]
async fn pods_beyond_the_enforced_level_are_refused_in_upstreams_words() {
    let server = server(json!({"pod-security.kubernetes.io/enforce": "baseline"})).await;
    let volume = json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]});
    let refused = create(&server, pod("x", volume.clone())).await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.message(),
        "pods \"x\" is forbidden: violates PodSecurity \"baseline:latest\": hostPath volumes (volume \"v\")"
    );
    let mut generated = pod("", volume.clone());
    generated["metadata"] = json!({"generateName": "x-"});
    let refused = create(&server, generated).await;
    assert!(refused.message().starts_with("pods \"x-"), "{}", refused.message());
    let mut applied = pod("x", volume);
    applied["apiVersion"] = json!("v1");
    applied["kind"] = json!("Pod");
    let path = format!("{PODS}/x?fieldManager=m");
    let refused = ask(&server, "PATCH", &path, "application/apply-patch+yaml", applied).await;
    assert_eq!(refused.code, 403, "{}", refused.text);
    assert_eq!(create(&server, pod("y", json!({}))).await.code, 201);
    let metrics = ask(&server, "GET", "/metrics", "", Value::Null).await.text;
    let series = |decision: &str, count: usize| {
        format!(
            "pod_security_evaluations_total{{decision=\"{decision}\",mode=\"enforce\",policy_level=\"baseline\",policy_version=\"latest\",request_operation=\"create\",resource=\"pod\",subresource=\"\"}} {count}"
        )
    };
    for wanted in [series("deny", 3), series("allow", 1)] {
        assert!(metrics.contains(&wanted), "{wanted}\n{metrics}");
    }
}

#[tokio::test]
async fn warned_and_audited_pods_are_made() {
    let labels = json!({"pod-security.kubernetes.io/warn": "baseline", "pod-security.kubernetes.io/audit": "restricted", "pod-security.kubernetes.io/audit-version": "v1.22"});
    let server = server(labels).await;
    let made = create(&server, pod("x", json!({"hostPID": true}))).await;
    assert_eq!(made.code, 201);
    let wanted = "299 - \"would violate PodSecurity \\\"baseline:latest\\\": host namespaces (hostPID=true)\"";
    assert_eq!(made.warnings, [wanted]);
    let metrics = ask(&server, "GET", "/metrics", "", Value::Null).await.text;
    for mode in [
        "mode=\"warn\",policy_level=\"baseline\",policy_version=\"latest\"",
        "mode=\"audit\",policy_level=\"restricted\",policy_version=\"v1.22\"",
    ] {
        assert!(metrics.contains(&format!("decision=\"deny\",{mode}")), "{mode}");
    }
}

#[tokio::test]
async fn another_image_is_judged_and_other_changes_are_not() {
    let server = server(json!({})).await;
    assert_eq!(create(&server, pod("x", json!({"hostIPC": true}))).await.code, 201);
    let labels =
        json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    let stricter = ask(&server, "PATCH", "/api/v1/namespaces/n", MERGE, labels).await;
    assert_eq!(stricter.code, 200);
    assert_eq!(
        stricter.warnings,
        [
            "299 - \"existing pods in namespace \\\"n\\\" violate the new PodSecurity enforce level \\\"baseline:latest\\\"\"",
            "299 - \"x: host namespaces\"",
        ]
    );
    let path = format!("{PODS}/x");
    let label =
        ask(&server, "PATCH", &path, MERGE, json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!(label.code, 200, "{}", label.text);
    let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "j"}]);
    let image = ask(&server, "PATCH", &path, "application/json-patch+json", image).await;
    assert_eq!(image.code, 403, "{}", image.text);
}

#[tokio::test]
async fn labels_that_are_no_policy_are_refused() {
    let server = server(json!({})).await;
    let rows = [
        ("enforce", "strict", "must be one of privileged, baseline, restricted"),
        ("warn", "", "must be one of privileged, baseline, restricted"),
        ("enforce-version", "v1.x", "must be \"latest\" or \"v1.x\""),
        ("audit-version", "1.22", "must be \"latest\" or \"v1.x\""),
    ];
    for (mode, value, why) in rows {
        let key = format!("pod-security.kubernetes.io/{mode}");
        let wanted = format!("metadata.labels[{key}]: Invalid value: {value:?}: {why}");
        let body = json!({"metadata": {"name": "m", "labels": {&key: value}}});
        let path = "/api/v1/namespaces";
        let new = ask(&server, "POST", path, "application/json", body.clone()).await;
        assert_eq!(new.message(), format!("Namespace \"m\" is invalid: {wanted}"));
        let body = json!({"metadata": {"labels": {&key: value}}});
        let changed = ask(&server, "PATCH", "/api/v1/namespaces/n", MERGE, body).await;
        assert_eq!(changed.message(), format!("Namespace \"n\" is invalid: {wanted}"));
        assert_eq!(changed.code, 422);
    }
}

#[tokio::test]
async fn debugging_containers_do_not_come_with_a_new_pod() {
    let server = server(json!({})).await;
    let debug = json!({"ephemeralContainers": [{"name": "e", "image": "i"}]});
    let refused = create(&server, pod("x", debug)).await;
    assert_eq!(refused.code, 422);
    assert!(
        refused.message().contains("spec.ephemeralContainers: Forbidden: cannot be set on create")
    );
}
