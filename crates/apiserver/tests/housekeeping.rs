//! What the server does by itself: namespaces, owners, accounts; and what watches promise.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Pod, ServiceAccount};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use longshore_apiserver::{ApiServer, Config, Limits};
use serde_json::{Value, json};

async fn server() -> ApiServer {
    ApiServer::open(Config::deterministic(5)).await.unwrap()
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Waits, in paused time, until something holds.
async fn until<F: AsyncFn() -> bool>(what: &str, holds: F) {
    let holds = &holds;
    longshore_testing::found(what, || async move { holds().await.then_some(()) }).await;
}

async fn owned(maps: &Api<ConfigMap>, name: &str, owner: &ConfigMap, block: bool) -> ConfigMap {
    let map = object(json!({"metadata": {"name": name, "ownerReferences": [{
        "apiVersion": "v1", "kind": "ConfigMap", "name": owner.metadata.name,
        "uid": owner.metadata.uid, "blockOwnerDeletion": block,
    }]}}));
    maps.create(&PostParams::default(), &map).await.unwrap()
}

async fn owner(maps: &Api<ConfigMap>) -> ConfigMap {
    let map: ConfigMap = object(json!({"metadata": {"name": "owner"}}));
    maps.create(&PostParams::default(), &map).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_deleted_namespace_takes_its_content_along() {
    let server = server().await;
    let namespaces: Api<Namespace> = Api::all(server.client());
    let made: Namespace = object(json!({"metadata": {"name": "n"}}));
    namespaces.create(&PostParams::default(), &made).await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(server.client(), "n");
    until("a default account", async || accounts.get_opt("default").await.unwrap().is_some()).await;
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "n");
    let held: ConfigMap =
        object(json!({"metadata": {"name": "held", "finalizers": ["example.com/f"]}}));
    maps.create(&PostParams::default(), &held).await.unwrap();

    namespaces.delete("n", &DeleteParams::default()).await.unwrap();
    let late: ConfigMap = object(json!({"metadata": {"name": "late"}}));
    let refused = maps.create(&PostParams::default(), &late).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(s) if s.code == 403));
    until("content is marked", async || {
        maps.get("held").await.unwrap().metadata.deletion_timestamp.is_some()
    })
    .await;
    assert!(namespaces.get_opt("n").await.unwrap().is_some(), "content is left");
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch("held", &PatchParams::default(), &free).await.unwrap();
    until("the namespace is gone", async || namespaces.get_opt("n").await.unwrap().is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn dependents_follow_their_owner() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    let first = owner(&maps).await;
    owned(&maps, "dependent", &first, false).await;
    let dependent = maps.get("dependent").await.unwrap();
    owned(&maps, "grandchild", &dependent, false).await;
    maps.delete("owner", &DeleteParams::background()).await.unwrap();
    for name in ["dependent", "grandchild"] {
        until(name, async || maps.get_opt(name).await.unwrap().is_none()).await;
    }
    // The owner is another object of the same name, so this one goes too.
    owner(&maps).await;
    owned(&maps, "stray", &first, false).await;
    until("the stray is gone", async || maps.get_opt("stray").await.unwrap().is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_in_the_foreground_waits_and_orphans_stay() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    let waiting = owner(&maps).await;
    let mut held = owned(&maps, "blocking", &waiting, true).await;
    held.metadata.finalizers = Some(vec!["example.com/f".into()]);
    maps.replace("blocking", &PostParams::default(), &held).await.unwrap();
    maps.delete("owner", &DeleteParams::foreground()).await.unwrap();
    until("the dependent is marked", async || {
        maps.get("blocking").await.unwrap().metadata.deletion_timestamp.is_some()
    })
    .await;
    assert!(maps.get_opt("owner").await.unwrap().is_some(), "the owner waits");
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch("blocking", &PatchParams::default(), &free).await.unwrap();
    until("the owner is gone", async || maps.get_opt("owner").await.unwrap().is_none()).await;

    let leaving = owner(&maps).await;
    owned(&maps, "orphan", &leaving, false).await;
    maps.delete("owner", &DeleteParams::orphan()).await.unwrap();
    until("the owner is gone", async || maps.get_opt("owner").await.unwrap().is_none()).await;
    let orphan = maps.get("orphan").await.unwrap();
    assert!(orphan.metadata.owner_references.unwrap_or_default().is_empty());
}

#[tokio::test(start_paused = true)]
async fn events_are_forgotten_after_an_hour() {
    let server = server().await;
    let events: Api<Event> = Api::namespaced(server.client(), "default");
    let make = |name: &str| -> Event {
        object(json!({
            "metadata": {"name": name}, "reason": "R", "type": "Normal",
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        }))
    };
    events.create(&PostParams::default(), &make("old")).await.unwrap();
    events.create(&PostParams::default(), &make("repeated")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1800)).await;
    let again = Patch::Merge(json!({"count": 2}));
    events.patch("repeated", &PatchParams::default(), &again).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1900)).await;
    assert!(events.get_opt("old").await.unwrap().is_none());
    assert!(events.get_opt("repeated").await.unwrap().is_some(), "written half an hour ago");
}

/// The raw events of a watch.
async fn events(server: &ApiServer, path: &str) -> impl Stream<Item = Value> + use<> {
    let request = http::Request::get(path).body(kube::client::Body::empty()).unwrap();
    let response = server.client().send(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let chunks = response.into_body().into_data_stream();
    chunks.map(Result::unwrap).flat_map(|chunk| {
        let lines: Vec<Value> = chunk
            .split(|b| *b == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        futures::stream::iter(lines)
    })
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_ends_with_a_marked_bookmark() {
    let server = server().await;
    let path = "/api/v1/namespaces?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut stream = Box::pin(events(&server, path).await);
    for _ in 0..4 {
        assert_eq!(stream.next().await.unwrap()["type"], "ADDED");
    }
    let mark = stream.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_falls_behind_is_cut_off() {
    let limits = Limits { history_events: 10, ..Limits::default() };
    let config = Config { limits, ..Config::deterministic(5) };
    let server = ApiServer::open(config).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    let start = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let path = format!("/api/v1/configmaps?watch=1&resourceVersion={start}");
    // Opened, but not read: a client that does not keep up.
    let mut stream = Box::pin(events(&server, &path).await);
    for i in 0..20 {
        let map: ConfigMap = object(json!({"metadata": {"name": format!("m{i}")}}));
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
    let error = stream.next().await.unwrap();
    assert_eq!(error["type"], "ERROR");
    assert_eq!(error["object"]["code"], 410);
    assert!(stream.next().await.is_none(), "the stream ends");
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_watches() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::all(server.client());
    let stream = maps.watch(&kube::api::WatchParams::default(), "0").await.unwrap();
    server.shutdown().await;
    let _: Vec<_> = stream.try_collect().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn pods_get_the_token_of_their_account_unless_somebody_says_no() {
    let config = Config { default_accounts: true, ..Config::deterministic(5) };
    let server = ApiServer::open(config).await.unwrap();
    let accounts: Api<ServiceAccount> = Api::default_namespaced(server.client());
    let pods: Api<Pod> = Api::default_namespaced(server.client());
    let quiet: ServiceAccount =
        object(json!({"metadata": {"name": "quiet"}, "automountServiceAccountToken": false}));
    accounts.create(&PostParams::default(), &quiet).await.unwrap();
    for (name, account, said, mounted) in [
        ("plain", None, None, true),
        ("no", None, Some(false), false),
        ("quiet", Some("quiet"), None, false),
        ("loud", Some("quiet"), Some(true), true),
    ] {
        let pod: Pod = object(json!({"metadata": {"name": name}, "spec": {
            "serviceAccountName": account, "automountServiceAccountToken": said,
            "containers": [{"name": "c", "image": "host"}]}}));
        let made = pods.create(&PostParams::default(), &pod).await.unwrap();
        let made = serde_json::to_value(made).unwrap();
        assert_eq!(made["spec"]["serviceAccountName"], account.unwrap_or("default"), "{name}");
        let volumes = made["spec"]["volumes"].as_array().map_or(0, Vec::len);
        assert_eq!(volumes, usize::from(mounted), "{name}: {made}");
        let mounts = made["spec"]["containers"][0]["volumeMounts"].as_array().map_or(0, Vec::len);
        assert_eq!(mounts, usize::from(mounted), "{name}: {made}");
    }
    let lost: Pod =
        object(json!({"metadata": {"name": "lost"}, "spec": {"serviceAccountName": "nobody",
        "containers": [{"name": "c", "image": "host"}]}}));
    let error = pods.create(&PostParams::default(), &lost).await.unwrap_err().to_string();
    assert!(error.contains("error looking up service account default/nobody"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn files_of_volumes_are_judged_before_a_node_has_to() {
    let server = server().await;
    let pods: Api<Pod> = Api::default_namespaced(server.client());
    let source = |source: Value| json!({"projected": {"sources": [source]}});
    let token = |token: Value| source(json!({"serviceAccountToken": token}));
    let field = |path: &str| json!({"path": "a", "fieldRef": {"fieldPath": path}});
    for (volume, why) in [
        (token(json!({"path": "t", "expirationSeconds": 599})), "less than 10 minutes"),
        (token(json!({"path": "../t"})), "must not contain '..'"),
        (token(json!({"path": "/t"})), "must be a relative path"),
        (token(json!({"path": ""})), "serviceAccountToken.path: Required value"),
        (source(json!({"configMap": {"items": []}})), "configMap.name: Required value"),
        (
            source(json!({"secret": {"name": "s"}, "configMap": {"name": "s"}})),
            "more than 1 volume type",
        ),
        (
            json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}},
                {"configMap": {"name": "m", "items": [{"key": "k", "path": "t"}]}}]}}),
            "conflicting duplicate paths",
        ),
        (json!({"downwardAPI": {"items": [field("spec.nodeName")]}}), "supported values"),
        (
            json!({"downwardAPI": {"items": [{"path": "a"}]}}),
            "one of fieldRef and resourceFieldRef",
        ),
        (
            json!({"configMap": {"name": "m", "items": [{"key": "k", "path": "p", "mode": 4096}]}}),
            "0777 (octal)",
        ),
    ] {
        let mut named = json!({"name": "v"});
        named.as_object_mut().unwrap().extend(volume.as_object().unwrap().clone());
        let pod: Pod = object(json!({"metadata": {"name": "p"}, "spec": {"volumes": [named],
            "containers": [{"name": "c", "image": "host"}]}}));
        let error = pods.create(&PostParams::default(), &pod).await.unwrap_err().to_string();
        assert!(error.contains(why), "{volume}: {error}");
    }
    let good = json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}},
        {"downwardAPI": {"items": [field("metadata.labels['app']")]}}]}});
    let pod: Pod = object(json!({"metadata": {"name": "p"}, "spec": {"volumes": [good],
        "containers": [{"name": "c", "image": "host"}]}}));
    let made =
        serde_json::to_value(pods.create(&PostParams::default(), &pod).await.unwrap()).unwrap();
    let sources = &made["spec"]["volumes"][0]["projected"]["sources"];
    assert_eq!(sources[0]["serviceAccountToken"]["expirationSeconds"], 3600);
    assert_eq!(sources[1]["downwardAPI"]["items"][0]["fieldRef"]["apiVersion"], "v1");
}
