//! Custom resources through a client: from a definition to its end.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, WatchEvent};
use longshore_apiserver::{ApiServer, Config};
use serde_json::json;

const NAME: &str = "widgets.example.com";

fn definition() -> CustomResourceDefinition {
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "color": {"type": "string"},
                        "replicas": {"type": "integer", "default": 1}}},
                    "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}}},
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
            }],
        },
    }))
    .unwrap()
}

async fn established(api: &Api<CustomResourceDefinition>) {
    for _ in 0..500 {
        let conditions = api.get(NAME).await.unwrap().status.and_then(|s| s.conditions);
        if conditions.into_iter().flatten().any(|c| c.type_ == "Established" && c.status == "True")
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the definition was not established");
}

fn widgets(client: &kube::Client) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Widget"));
    Api::namespaced_with(client.clone(), "default", &kind)
}

fn widget(name: &str, spec: serde_json::Value) -> DynamicObject {
    let object = json!({"apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"name": name}, "spec": spec});
    serde_json::from_value(object).unwrap()
}

#[tokio::test]
async fn a_definition_serves_its_kind_until_it_is_deleted() {
    let server = ApiServer::open(Config::memory()).await.unwrap();
    let client = server.client();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &definition()).await.unwrap();
    established(&definitions).await;
    let api = widgets(&client);
    let params = PostParams::default();
    let made = api.create(&params, &widget("a", json!({"color": "red"}))).await.unwrap();
    assert_eq!(made.data["spec"], json!({"color": "red", "replicas": 1}));
    api.create(&params, &widget("b", json!({"color": "blue"}))).await.unwrap();
    let red = api.list(&ListParams::default().fields("spec.color=red")).await.unwrap();
    assert_eq!(red.items.len(), 1);
    let refused = api.list(&ListParams::default().fields("spec.size=1")).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 400));

    let three = Patch::Merge(json!({"spec": {"replicas": 3}}));
    let scale = api.patch_scale("a", &PatchParams::default(), &three).await.unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(3));
    assert_eq!(api.get("a").await.unwrap().data["spec"]["replicas"], 3);

    let watch = api.watch(&WatchParams::default(), "0").await.unwrap();
    definitions.delete(NAME, &DeleteParams::default()).await.unwrap();
    // The stream tells of both deletions and ends with the kind.
    let events: Vec<_> =
        tokio::time::timeout(Duration::from_secs(10), watch.collect()).await.unwrap();
    assert!(events.len() >= 2, "{events:?}");
    let gone = api.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(gone, kube::Error::Api(status) if status.code == 404));
}

#[tokio::test]
async fn a_restart_serves_the_kind_at_once() {
    let dir = tempfile::Builder::new().prefix("longshore-custom-").tempdir().unwrap();
    {
        let server = ApiServer::open(Config::at(dir.path())).await.unwrap();
        let definitions: Api<CustomResourceDefinition> = Api::all(server.client());
        definitions.create(&PostParams::default(), &definition()).await.unwrap();
        established(&definitions).await;
        widgets(&server.client())
            .create(&PostParams::default(), &widget("a", json!({})))
            .await
            .unwrap();
        server.shutdown().await;
    }
    let server = ApiServer::open(Config::at(dir.path())).await.unwrap();
    assert!(widgets(&server.client()).get("a").await.is_ok());
    server.shutdown().await;
}

/// Waits until an object of the kind shows what is wanted.
async fn shows(api: &Api<DynamicObject>, name: &str, wanted: serde_json::Value) {
    for _ in 0..500 {
        let found = api.get_opt(name).await.ok().flatten();
        if found.is_some_and(|found| found.data["spec"] == wanted) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{name} never showed {wanted}");
}

#[tokio::test]
async fn objects_get_defaults_that_came_after_them() {
    let server = ApiServer::open(Config::memory()).await.unwrap();
    let client = server.client();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &definition()).await.unwrap();
    established(&definitions).await;
    let api = widgets(&client);
    let made = api.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let patch = json!([{"op": "add", "value": "green",
        "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/color/default"}]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).unwrap());
    definitions.patch(NAME, &PatchParams::default(), &patch).await.unwrap();
    let wanted = json!({"color": "green", "replicas": 1});
    shows(&api, "a", wanted.clone()).await;
    let green = api.list(&ListParams::default().fields("spec.color=green")).await.unwrap();
    assert_eq!(green.items[0].data["spec"], wanted);
    assert_eq!(green.items[0].types.as_ref().unwrap().kind, "Widget");
    assert_eq!(green.items[0].metadata.resource_version, made.metadata.resource_version);
    let watch = api.watch(&WatchParams::default().timeout(1), "0").await.unwrap();
    let events: Vec<_> = watch.collect().await;
    let Some(Ok(WatchEvent::Added(first))) = events.first() else { panic!("{events:?}") };
    assert_eq!(first.data["spec"], wanted);
    server.shutdown().await;
}

#[tokio::test]
async fn a_deleted_definition_deletes_objects_of_unserved_versions() {
    let server = ApiServer::open(Config::memory()).await.unwrap();
    let client = server.client();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &definition()).await.unwrap();
    established(&definitions).await;
    let api = widgets(&client);
    api.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let patch = json!([{"op": "replace", "path": "/spec/versions/0/served", "value": false}]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).unwrap());
    definitions.patch(NAME, &PatchParams::default(), &patch).await.unwrap();
    definitions.delete(NAME, &DeleteParams::default()).await.unwrap();
    for _ in 0..500 {
        if definitions.get_opt(NAME).await.unwrap().is_none() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    definitions.create(&PostParams::default(), &definition()).await.unwrap();
    established(&definitions).await;
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 0);
    server.shutdown().await;
}
