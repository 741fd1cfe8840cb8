//! Server-side apply as kube-rs does it, and who manages what afterwards.

#![allow(clippy::unwrap_used, reason = "tests")]

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use longshore_apiserver::{ApiServer, Config};
use serde_json::{Value, json};

async fn server() -> (ApiServer, kube::Client) {
    let server = ApiServer::open(Config::memory()).await.unwrap();
    let client = server.client();
    (server, client)
}

fn config(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

fn managers(object: &impl kube::ResourceExt) -> Vec<(String, String, Value)> {
    let entries = object.managed_fields().iter().map(|entry| {
        let fields = entry.fields_v1.clone().map(|f| f.0).unwrap_or_default();
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        (text(&entry.manager), text(&entry.operation), fields)
    });
    entries.collect()
}

#[tokio::test]
async fn appliers_share_conflict_and_take_over() {
    let (_server, client) = server().await;
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let one = PatchParams::apply("one");
    api.patch("a", &one, &Patch::Apply(config(json!({"x": "1", "y": "1"})))).await.unwrap();
    let two = PatchParams::apply("two");
    let clash = Patch::Apply(config(json!({"x": "2"})));
    let kube::Error::Api(status) = api.patch("a", &two, &clash).await.unwrap_err() else {
        panic!("a conflict is an answer of the API");
    };
    assert_eq!(status.code, 409);
    let taken = api.patch("a", &two.clone().force(), &clash).await.unwrap();
    assert_eq!(
        managers(&taken),
        [
            ("one".into(), "Apply".into(), json!({"f:data": {"f:y": {}}})),
            ("two".into(), "Apply".into(), json!({"f:data": {"f:x": {}}})),
        ]
    );
    // What nobody applies any more goes.
    let left = api.patch("a", &one, &Patch::Apply(config(json!({})))).await.unwrap();
    assert_eq!(left.data.unwrap().into_iter().collect::<Vec<_>>(), [("x".into(), "2".into())]);
}

#[tokio::test]
async fn plain_writers_are_managers_too() {
    let (_server, client) = server().await;
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client, "default");
    let claim = serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}))
    .unwrap();
    let maker = PostParams { field_manager: Some("maker".into()), ..PostParams::default() };
    let made = api.create(&maker, &claim).await.unwrap();
    let spec = json!({"f:accessModes": {}, "f:resources": {"f:requests": {".": {}, "f:storage": {}}},
        "f:volumeMode": {}});
    assert_eq!(managers(&made), [("maker".into(), "Update".into(), json!({"f:spec": spec}))]);
    let binder = PatchParams { field_manager: Some("binder".into()), ..PatchParams::default() };
    let status = Patch::Merge(json!({"status": {"phase": "Bound"}}));
    let bound = api.patch_status("c", &binder, &status).await.unwrap();
    let entries = bound.metadata.managed_fields.clone().unwrap();
    let entry = entries.iter().find(|entry| entry.manager.as_deref() == Some("binder")).unwrap();
    assert_eq!(entry.subresource.as_deref(), Some("status"));
    // A write that changes nothing changes no manager either.
    let again = api.patch_status("c", &binder, &status).await.unwrap();
    assert_eq!(again.metadata.resource_version, bound.metadata.resource_version);
}

#[tokio::test]
async fn keyed_lists_are_applied_by_element() {
    let (_server, client) = server().await;
    let api: Api<Pod> = Api::namespaced(client, "default");
    let pod = |containers: Value| {
        Patch::Apply(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"containers": containers}}))
    };
    let first = pod(json!([{"name": "a", "image": "i"}, {"name": "b", "image": "j"}]));
    api.patch("p", &PatchParams::apply("one"), &first).await.unwrap();
    let second = pod(json!([{"name": "b", "image": "k"}]));
    let forced = PatchParams::apply("two").force();
    let merged = api.patch("p", &forced, &second).await.unwrap();
    let images: Vec<_> =
        merged.spec.unwrap().containers.into_iter().map(|c| (c.name, c.image.unwrap())).collect();
    assert_eq!(images, [("a".into(), "i".into()), ("b".into(), "k".into())]);
}

#[tokio::test]
async fn managers_stay_short_whatever_a_client_calls_itself() {
    let (_server, client) = server().await;
    let path = "/api/v1/namespaces/default/configmaps";
    let ask = async |method: &str, path: &str, agent: &str, body: Value| -> (u16, Value) {
        let request = http::Request::builder().method(method).uri(path);
        let request =
            request.header("Content-Type", "application/json").header("User-Agent", agent);
        let request = request.body(body.to_string().into_bytes().into()).unwrap();
        let answer = client.send(request).await.unwrap();
        let code = answer.status().as_u16();
        let text = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
        (code, serde_json::from_slice(&text).unwrap())
    };
    let long = "a".repeat(200_000);
    let (code, made) = ask("POST", path, &long, config(json!({"x": "1"}))).await;
    assert_eq!(code, 201);
    assert_eq!(made["metadata"]["managedFields"][0]["manager"], "a".repeat(128));
    let (code, _) =
        ask("POST", &format!("{path}?fieldManager={}", &long[..10_000]), "k", config(json!({})))
            .await;
    assert_eq!(code, 422);
    let (code, _) =
        ask("POST", &format!("{path}?fieldManager=a%0Ab"), "k", config(json!({}))).await;
    assert_eq!(code, 422);
    let mut brought = made.clone();
    brought["metadata"]["managedFields"][0]["manager"] = json!(long);
    let (code, refused) = ask("PUT", &format!("{path}/a"), "k", brought).await;
    assert_eq!(code, 422, "{}", refused["message"]);
    assert!(refused.to_string().len() < 2000);
}
