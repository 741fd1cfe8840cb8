//! The server through its in-process client, as the controllers and the simulator use it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, PersistentVolume, PersistentVolumeClaim, Pod,
};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};
use kube::api::{
    Api, DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams, Preconditions,
    WatchEvent, WatchParams,
};
use longshore_apiserver::store::{Entry, Journal, JournalError, Replay};
use longshore_apiserver::{ApiServer, Config, LogSource};
use longshore_core::model::streams::{LogError, LogRequest};
use serde_json::{Value, json};

async fn server() -> ApiServer {
    ApiServer::open(Config::deterministic(1)).await.unwrap()
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn claim(name: &str) -> PersistentVolumeClaim {
    object(json!({
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}},
    }))
}

fn code(error: kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("not an answer of the server: {other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn objects_live_and_die() {
    let server = server().await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(server.client(), "default");
    let made = claims.create(&PostParams::default(), &claim("a")).await.unwrap();
    let spec = made.spec.clone().unwrap();
    assert_eq!(spec.resources.unwrap().requests.unwrap()["storage"].0, "1Gi");
    assert_eq!(made.status.unwrap().phase.as_deref(), Some("Pending"));
    assert_eq!(made.metadata.finalizers.unwrap(), ["kubernetes.io/pvc-protection"]);
    assert_eq!(code(claims.create(&PostParams::default(), &claim("a")).await.unwrap_err()), 409);

    let patch = json!({"metadata": {"labels": {"app": "web"}}});
    claims.patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    let found = claims.list(&ListParams::default().labels("app=web")).await.unwrap();
    assert_eq!(found.items.len(), 1);
    let status = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
    let bound =
        claims.patch_status("a", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    assert_eq!(bound.status.unwrap().phase.as_deref(), Some("Bound"));

    claims.delete("a", &DeleteParams::default()).await.unwrap();
    let held = claims.get("a").await.unwrap();
    assert!(held.metadata.deletion_timestamp.is_some(), "the finalizer holds it");
    let free = json!({"metadata": {"finalizers": null}});
    claims.patch("a", &PatchParams::default(), &Patch::Merge(&free)).await.unwrap();
    assert!(claims.get_opt("a").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_update_of_a_stale_version_conflicts() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    let map: ConfigMap = object(json!({"metadata": {"name": "m"}, "data": {"k": "1"}}));
    let first = maps.create(&PostParams::default(), &map).await.unwrap();
    let mut second = first.clone();
    second.data.as_mut().unwrap().insert("k".into(), "2".into());
    maps.replace("m", &PostParams::default(), &second).await.unwrap();
    let error = maps.replace("m", &PostParams::default(), &second).await.unwrap_err();
    assert_eq!(code(error), 409);
    let preconditions =
        Preconditions { uid: None, resource_version: first.metadata.resource_version };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    assert_eq!(code(maps.delete("m", &params).await.unwrap_err()), 409);
}

#[tokio::test(start_paused = true)]
async fn watches_see_every_change_in_order() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    let params = WatchParams::default().labels("keep=yes");
    let mut stream = maps.watch(&params, "0").await.unwrap().boxed();
    let make = |name: &str, keep: &str| -> ConfigMap {
        object(json!({"metadata": {"name": name, "labels": {"keep": keep}}}))
    };
    maps.create(&PostParams::default(), &make("a", "yes")).await.unwrap();
    maps.create(&PostParams::default(), &make("b", "no")).await.unwrap();
    let label = |keep: &str| Patch::Merge(json!({"metadata": {"labels": {"keep": keep}}}));
    maps.patch("b", &PatchParams::default(), &label("yes")).await.unwrap();
    maps.patch("a", &PatchParams::default(), &label("no")).await.unwrap();
    maps.delete("b", &DeleteParams::default()).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 4 {
        match stream.try_next().await.unwrap().unwrap() {
            WatchEvent::Added(o) => seen.push(format!("added {}", o.metadata.name.unwrap())),
            WatchEvent::Modified(o) => seen.push(format!("modified {}", o.metadata.name.unwrap())),
            WatchEvent::Deleted(o) => seen.push(format!("deleted {}", o.metadata.name.unwrap())),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(e) => panic!("{e:?}"),
        }
    }
    assert_eq!(seen, ["added a", "added b", "deleted a", "deleted b"]);
}

#[tokio::test(start_paused = true)]
async fn idle_watches_send_bookmarks_and_end() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::all(server.client());
    let now = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let params = WatchParams::default().timeout(150);
    let events: Vec<_> = maps.watch(&params, &now).await.unwrap().collect().await;
    let bookmarks = events.iter().filter(|e| matches!(e, Ok(WatchEvent::Bookmark(_)))).count();
    assert_eq!(bookmarks, 3, "two on the minute and one before the end");
    assert_eq!(events.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_default_class_is_filled_in_and_volumes_are_checked() {
    let server = server().await;
    let classes: Api<StorageClass> = Api::all(server.client());
    let class: StorageClass = object(json!({
        "metadata": {"name": "std", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "d.example.com",
    }));
    classes.create(&PostParams::default(), &class).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(server.client(), "default");
    let made = claims.create(&PostParams::default(), &claim("a")).await.unwrap();
    assert_eq!(made.spec.unwrap().storage_class_name.as_deref(), Some("std"));

    let volumes: Api<PersistentVolume> = Api::all(server.client());
    let volume: PersistentVolume = object(json!({
        "metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]},
    }));
    assert_eq!(code(volumes.create(&PostParams::default(), &volume).await.unwrap_err()), 422);
}

#[tokio::test(start_paused = true)]
async fn scheduled_pods_get_time_to_stop() {
    let server = server().await;
    let pods: Api<Pod> = Api::namespaced(server.client(), "default");
    let pod: Pod = object(json!({
        "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]},
    }));
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let params = PostParams::default();
    let bind = || pods.create_subresource::<Value, Value>("binding", "p", &params, &binding);
    bind().await.unwrap();
    assert_eq!(code(bind().await.unwrap_err()), 409);
    let bound = pods.get("p").await.unwrap();
    assert_eq!(bound.spec.unwrap().node_name.as_deref(), Some("n"));
    pods.delete("p", &DeleteParams::default()).await.unwrap();
    let marked = pods.get("p").await.unwrap();
    assert_eq!(marked.metadata.deletion_grace_period_seconds, Some(30));
    pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert!(pods.get_opt("p").await.unwrap().is_none());
}

/// Logs that say what was asked for.
struct EchoLogs;

impl LogSource for EchoLogs {
    fn open(
        &self,
        request: LogRequest,
    ) -> BoxFuture<'static, Result<BoxStream<'static, Bytes>, LogError>> {
        Box::pin(async move {
            if request.container.as_deref() == Some("missing") {
                return Err(LogError::BadRequest("container missing is not valid".into()));
            }
            let text = format!("{}/{} {:?}\n", request.namespace, request.pod, request.tail_lines);
            Ok(futures::stream::iter([Bytes::from(text)]).boxed())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn logs_come_from_their_source() {
    let server = server().await;
    let pods: Api<Pod> = Api::namespaced(server.client(), "default");
    let pod: Pod = object(json!({
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
    }));
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let params = LogParams { tail_lines: Some(3), ..LogParams::default() };
    assert_eq!(code(pods.logs("p", &params).await.unwrap_err()), 503, "no source yet");
    server.set_log_source(EchoLogs);
    assert_eq!(pods.logs("p", &params).await.unwrap(), "default/p Some(3)\n");
    let missing = LogParams { container: Some("missing".into()), ..LogParams::default() };
    assert_eq!(code(pods.logs("p", &missing).await.unwrap_err()), 400);
}

#[tokio::test(start_paused = true)]
async fn others_than_the_admin_are_refused() {
    let server = server().await;
    let client = server.client_as("bot", ["system:authenticated"]);
    let volumes: Api<PersistentVolume> = Api::all(client);
    assert_eq!(code(volumes.list(&ListParams::default()).await.unwrap_err()), 403);
}

#[tokio::test(start_paused = true)]
async fn everybody_may_ask_about_themselves() {
    let server = server().await;
    for (groups, wanted) in [(["system:masters"], true), (["others"], false)] {
        let reviews: Api<SelfSubjectAccessReview> = Api::all(server.client_as("jane", groups));
        let review: SelfSubjectAccessReview = object(json!({"spec": {
            "resourceAttributes": {"verb": "list", "resource": "pods"},
        }}));
        let answer = reviews.create(&PostParams::default(), &review).await.unwrap();
        assert_eq!(answer.status.unwrap().allowed, wanted);
    }
}

#[tokio::test(start_paused = true)]
async fn lists_come_in_consistent_pages() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "kube-public");
    for name in ["a", "b", "c", "d", "e"] {
        let map: ConfigMap = object(json!({"metadata": {"name": name}}));
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
    let first = maps.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.metadata.remaining_item_count, Some(3));
    maps.delete("d", &DeleteParams::default()).await.unwrap();
    let token = first.metadata.continue_.unwrap();
    let rest = maps.list(&ListParams::default().continue_token(&token)).await.unwrap();
    let names: Vec<_> = rest.items.iter().map(|m| m.metadata.name.clone().unwrap()).collect();
    assert_eq!(names, ["c", "d", "e"], "the second page is from the time of the first");
}

#[tokio::test(start_paused = true)]
async fn attachments_need_a_version_and_keep_their_spec() {
    let server = server().await;
    let attachments: Api<VolumeAttachment> = Api::all(server.client());
    let made: VolumeAttachment = object(json!({
        "metadata": {"name": "va"},
        "spec": {"attacher": "d.example.com", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
    }));
    let stored = attachments.create(&PostParams::default(), &made).await.unwrap();
    assert!(!stored.status.unwrap().attached);
    let error = attachments.replace("va", &PostParams::default(), &made).await.unwrap_err();
    assert_eq!(code(error), 422);
    let moved = Patch::Merge(json!({"spec": {"nodeName": "m"}}));
    let error = attachments.patch("va", &PatchParams::default(), &moved).await.unwrap_err();
    assert_eq!(code(error), 422);
}

#[tokio::test(start_paused = true)]
async fn a_seed_repeats_a_whole_run() {
    async fn run() -> String {
        let server = server().await;
        let namespaces: Api<Namespace> = Api::all(server.client());
        let made: Namespace = object(json!({"metadata": {"generateName": "n-"}}));
        let made = namespaces.create(&PostParams::default(), &made).await.unwrap();
        serde_json::to_string(&made).unwrap()
    }
    let first = run().await;
    assert_eq!(first, run().await);
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// A disk that takes its time once it is told to.
#[derive(Clone, Default)]
struct SlowJournal {
    slow: Arc<AtomicBool>,
    begun: Arc<AtomicUsize>,
}

impl Journal for SlowJournal {
    fn load(&mut self, _: &mut dyn Replay) -> Result<u64, JournalError> {
        Ok(0)
    }

    fn commit(&mut self, _batch: &[Entry<'_>]) -> Result<(), JournalError> {
        if self.slow.load(Ordering::Acquire) {
            self.begun.fetch_add(1, Ordering::AcqRel);
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    }

    fn blocks(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn client_that_is_refused_for_a_write_on_its_way_to_disk_finds_that_write() {
    let journal = SlowJournal::default();
    let server =
        ApiServer::open_on(Config::deterministic(1), Box::new(journal.clone())).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(server.client(), "default");
    let (post, merge) = (PostParams::default(), PatchParams::default());
    let version = claims.create(&post, &claim("a")).await.unwrap().metadata.resource_version;
    journal.slow.store(true, Ordering::Release);
    let begins = async |commits: usize| {
        while journal.begun.load(Ordering::Acquire) < commits {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let labelled = |value: &str| json!({"metadata": {"labels": {"by": value}}});

    let first = tokio::spawn({
        let (claims, patch) = (claims.clone(), labelled("first"));
        async move { claims.patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await }
    });
    begins(1).await;
    let mut stale = labelled("second");
    stale["metadata"]["resourceVersion"] = json!(version);
    let refused = claims.patch("a", &merge, &Patch::Merge(&stale)).await.unwrap_err();
    assert_eq!(code(refused), 409);
    let found = claims.get("a").await.unwrap();
    assert_eq!(found.metadata.labels.unwrap()["by"], "first");
    first.await.unwrap().unwrap();

    let begun = journal.begun.load(Ordering::Acquire);
    let first = tokio::spawn({
        let claims = claims.clone();
        async move { claims.create(&PostParams::default(), &claim("b")).await }
    });
    begins(begun + 1).await;
    assert_eq!(code(claims.create(&post, &claim("b")).await.unwrap_err()), 409);
    claims.get("b").await.unwrap();
    first.await.unwrap().unwrap();

    let begun = journal.begun.load(Ordering::Acquire);
    let first = tokio::spawn({
        let (claims, patch) = (claims.clone(), labelled("same"));
        async move { claims.patch("b", &PatchParams::default(), &Patch::Merge(&patch)).await }
    });
    begins(begun + 1).await;
    let unchanged = claims.patch("b", &merge, &Patch::Merge(&labelled("same"))).await.unwrap();
    let found = claims.get("b").await.unwrap();
    assert_eq!(found.metadata.resource_version, unchanged.metadata.resource_version);
    first.await.unwrap().unwrap();
    server.shutdown().await;
}
