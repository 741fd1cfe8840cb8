//! The wire against the embedded API server, in process and under paused time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longshore_apiserver::{ApiServer, Config};
use longshore_cluster::election::{self, ElectionConfig};
use longshore_cluster::limit::{Limit, limited};
use longshore_cluster::{
    Api, Cache, Change, ClientConfig, DeleteParams, EventType, ListParams, Metrics, ObjectKey,
    ObjectRef, Outcome, Patch, QueueOptions, Recorder, Scope, WorkQueue,
};
use longshore_core::model::HasMeta;
use longshore_core::model::kinds::{Claim, ConfigMap, Event, Lease};
use longshore_testing::eventually;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

async fn server() -> (ApiServer, Api) {
    let server = ApiServer::open(Config::deterministic(7)).await.expect("opens");
    let api = Api::new(server.client());
    (server, api)
}

fn config_map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "data": {"k": value}})
}

#[tokio::test(start_paused = true)]
async fn objects_are_created_changed_and_deleted() {
    let (_server, api) = server().await;
    let key = ObjectKey::new("default", "a");
    assert!(api.get::<ConfigMap>(&key).await.expect("response").is_none());
    let mut made = api.create::<ConfigMap>(&config_map("a", "1")).await.expect("made");
    let again = api.create::<ConfigMap>(&config_map("a", "1")).await.expect_err("exists");
    assert!(again.is_already_exists(), "{again}");
    let mut stale = made.clone();
    made["data"]["k"] = "2".into();
    api.update::<ConfigMap>(&made).await.expect("updated");
    stale["data"]["k"] = "3".into();
    let conflict = api.update::<ConfigMap>(&stale).await.expect_err("stale");
    assert!(conflict.is_conflict(), "{conflict}");
    let patch = json!({"data": {"more": "4"}});
    api.patch::<ConfigMap>(&key, Patch::Merge(&patch)).await.expect("patched");
    let map = api.get::<ConfigMap>(&key).await.expect("response").expect("there");
    assert_eq!((&*map.data["k"], &*map.data["more"]), ("2", "4"));
    let wrong = api.delete::<ConfigMap>(&key, &DeleteParams::uid("other")).await;
    assert!(wrong.expect_err("another uid").is_conflict());
    api.delete::<ConfigMap>(&key, &DeleteParams::uid(map.meta().uid.clone())).await.expect("gone");
    let gone = api.delete::<ConfigMap>(&key, &DeleteParams::default()).await;
    assert!(gone.expect_err("gone already").is_not_found());
}

/// A client that hands objects over as they are, and one that sends text: what is stored and what is
/// returned is the same, and so are the refusals.
#[tokio::test(start_paused = true)]
async fn objects_within_the_process_are_those_of_the_wire() {
    let (server, far) = server().await;
    let service = server.service();
    let near = Api::in_process(server.client(), move |request| {
        let service = service.clone();
        Box::pin(async move { service.handle(request).await })
    });
    let mut seen = Vec::new();
    for (api, name) in [(&near, "near"), (&far, "afar")] {
        let claim = json!({
            "metadata": {"name": name, "namespace": "default", "annotations": {"a": "\"quoted\" \n"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": 1_073_741_824}}, "unknown": 1},
        });
        let mut steps = Vec::new();
        let made = api.create::<Claim>(&claim).await.expect("made");
        steps.push(made.clone());
        let twice = api.create::<Claim>(&claim).await.expect_err("is there");
        steps.push(twice.to_string().into());
        let mut changed = made.clone();
        changed["metadata"]["labels"] = json!({"x": "y"});
        changed["status"]["phase"] = "Lost".into();
        let changed = api.update::<Claim>(&changed).await.expect("changed");
        steps.push(changed.clone());
        let stale = api.update_moved::<Claim>(made).await.expect_err("is not the newest");
        assert!(stale.is_conflict(), "{stale}");
        steps.push(stale.to_string().into());
        let mut bound = changed.clone();
        bound["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
        bound["spec"]["volumeName"] = "not by this road".into();
        let bound = api.update_status_moved::<Claim>(bound).await.expect("status changed");
        steps.push(bound.clone());
        let same = api.update_status::<Claim>(&bound).await.expect("nothing to change");
        steps.push(same);
        let mut wrong = bound.clone();
        wrong["spec"]["accessModes"] = json!("ReadWriteOnce");
        steps.push(api.update::<Claim>(&wrong).await.expect_err("no list").to_string().into());
        wrong["spec"]["accessModes"] = json!(["ReadWriteMany"]);
        steps.push(api.update::<Claim>(&wrong).await.expect_err("immutable").to_string().into());
        let patch = json!({"metadata": {"labels": {"x": null, "z": "1"}}});
        let key = ObjectKey::new("default", name);
        steps.push(api.patch::<Claim>(&key, Patch::Merge(&patch)).await.expect("patched"));
        let stored = far.get_raw::<Claim>(&key).await.expect("response").expect("there");
        assert_eq!(steps.last(), Some(&stored), "the last response is what is stored");
        let event = json!({
            "metadata": {"name": format!("{name}.1"), "namespace": "default"}, "reason": "Because",
            "involvedObject": {"kind": "PersistentVolumeClaim", "name": name, "namespace": "default"},
        });
        steps.push(api.create::<Event>(&event).await.expect("an event"));
        seen.push(Value::from(steps).to_string().replace(name, "NAME"));
    }
    let [near, far] = [&seen[0], &seen[1]].map(|text| without_accidents(text));
    assert_eq!(near, far);
}

/// Text of objects without what differs from one object to the next.
fn without_accidents(text: &str) -> Value {
    let mut value: Value = serde_json::from_str(text).expect("JSON");
    for object in value.as_array_mut().into_iter().flatten() {
        let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
            continue;
        };
        assert!(!meta.contains_key("managedFields"));
        for field in ["uid", "resourceVersion", "creationTimestamp"] {
            assert!(meta.remove(field).is_some(), "{field}");
        }
    }
    value
}

#[tokio::test(start_paused = true)]
async fn lists_of_several_pages_are_complete() {
    let (_server, api) = server().await;
    for i in 0..1203 {
        api.create::<ConfigMap>(&config_map(&format!("m{i:04}"), "")).await.expect("made");
    }
    let maps =
        api.list::<ConfigMap>(Some("default"), &ListParams::default()).await.expect("listed");
    let mine = maps.iter().filter(|m| m.metadata.name.starts_with('m')).count();
    assert_eq!(mine, 1203);
}

/// The cache follows the server through a burst of changes, and a subscriber that only applies
/// changes ends with the same picture.
#[tokio::test(start_paused = true)]
async fn a_cache_and_its_subscribers_follow_the_server() {
    let (_server, api) = server().await;
    for i in 0..50 {
        api.create::<ConfigMap>(&config_map(&format!("m{i}"), "0")).await.expect("made");
    }
    let stop = CancellationToken::new();
    let (cache, task) = Cache::<ConfigMap>::start(&api, Scope::namespace("default"), &stop);
    cache.index("value", |m| m.data.get("k").cloned().into_iter().collect());
    let picture = Arc::new(Mutex::new(std::collections::BTreeMap::new()));
    let painted = picture.clone();
    let _kept = cache.subscribe(move |change| {
        let mut picture = painted.lock();
        match change {
            Change::Applied { new, .. } => {
                picture.insert(new.key(), new.metadata.resource_version.clone());
            }
            Change::Deleted { old } => {
                picture.remove(&old.key());
            }
        }
    });
    cache.synced().await;
    assert_eq!(cache.by_index("value", "0").len(), 50);
    for i in 0..50 {
        let key = ObjectKey::new("default", format!("m{i}"));
        if i % 3 == 0 {
            api.delete::<ConfigMap>(&key, &DeleteParams::default()).await.expect("deleted");
        } else {
            let patch = json!({"data": {"k": i.to_string()}});
            let written =
                api.patch::<ConfigMap>(&key, Patch::Merge(&patch)).await.expect("patched");
            cache.assume(&written);
            let seen = cache.get(&key).expect("there");
            assert_eq!(seen.data["k"], i.to_string(), "own writes show at once");
        }
    }
    eventually("the watch catches up", || {
        cache.by_index("value", "0").is_empty() && picture.lock().len() == cache.len()
    })
    .await;
    let want: Vec<_> =
        cache.list().iter().map(|m| (m.key(), m.metadata.resource_version.clone())).collect();
    eventually("subscribers too", || {
        picture.lock().clone().into_iter().collect::<Vec<_>>() == want
    })
    .await;
    stop.cancel();
    task.await.expect("ends");
}

/// Watches end after 200 s and are opened again; nothing is missed over half an hour.
#[tokio::test(start_paused = true)]
async fn a_cache_lives_through_many_watches() {
    let (_server, api) = server().await;
    let (cache, _task) =
        Cache::<ConfigMap>::start(&api, Scope::namespace("default"), &CancellationToken::new());
    cache.synced().await;
    for i in 0..30 {
        tokio::time::sleep(Duration::from_secs(61)).await;
        api.create::<ConfigMap>(&config_map(&format!("m{i}"), "")).await.expect("made");
        let key = ObjectKey::new("default", format!("m{i}"));
        eventually("seen", || cache.get(&key).is_some()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_equal_failures_are_one_event() {
    let (_server, api) = server().await;
    let claim = api.create::<ConfigMap>(&config_map("data", "")).await.expect("made");
    let claim: ConfigMap = serde_json::from_value(claim).expect("readable");
    let object = ObjectRef::of::<ConfigMap>(claim.meta());
    let (recorder, _task) = Recorder::start(&api, "attacher", "node-a", &CancellationToken::new());
    for i in 0..1000 {
        recorder.event(&object, EventType::Warning, "AttachFailed", "no such disk");
        if i % 100 == 0 {
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    let events = api.list::<Event>(Some("default"), &ListParams::default()).await.expect("listed");
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].count, Some(1000));
    assert_eq!(events[0].involved_object.uid, claim.metadata.uid);
    let volume =
        ObjectRef { kind: "PersistentVolume".into(), name: "pv".into(), ..ObjectRef::default() };
    recorder.event(&volume, EventType::Normal, "R", "about a cluster-wide object");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let events = api.list::<Event>(Some("default"), &ListParams::default()).await.expect("listed");
    assert_eq!(events.len(), 2);
}

fn candidate(
    api: &Api,
    identity: &str,
) -> (CancellationToken, election::Status, tokio::task::JoinHandle<()>) {
    let mut config = ElectionConfig::new(api.clone(), "kube-system", "longshore-test");
    config.identity = identity.to_owned();
    let (stop, status) = (CancellationToken::new(), config.status.clone());
    let shutdown = stop.clone();
    let task = tokio::spawn(async move {
        let lead = |leading: CancellationToken| async move { leading.cancelled().await };
        election::run(config, &shutdown, lead).await.expect("graceful");
    });
    (stop, status, task)
}

#[tokio::test(start_paused = true)]
async fn leadership_changes_hands_by_release_and_by_death() {
    let (_server, api) = server().await;
    let (stop_one, one, _) = candidate(&api, "one");
    eventually("one leads", || one.is_leading()).await;
    let (_stop_two, two, task_two) = candidate(&api, "two");
    tokio::time::sleep(Duration::from_secs(33)).await;
    assert!(one.is_leading() && !two.is_leading());
    let released = tokio::time::Instant::now();
    stop_one.cancel();
    eventually("two leads", || two.is_leading()).await;
    assert!(released.elapsed() < Duration::from_millis(100), "{:?}", released.elapsed());
    let (_stop_three, three, _) = candidate(&api, "three");
    tokio::time::sleep(Duration::from_secs(12)).await;
    let killed = tokio::time::Instant::now();
    task_two.abort();
    eventually("three leads", || three.is_leading()).await;
    assert!(killed.elapsed() <= Duration::from_secs(20), "{:?}", killed.elapsed());
    let key = ObjectKey::new("kube-system", "longshore-test");
    let lease = api.get::<Lease>(&key).await.expect("response").expect("there");
    assert_eq!(lease.spec.holder_identity, "three");
    assert_eq!(lease.spec.lease_transitions, Some(2));
}

/// A whole loop: cache, queue, writes. Every object is worked on although each first try fails.
#[tokio::test(start_paused = true)]
async fn a_loop_works_every_object() {
    let (_server, api) = server().await;
    let limit = Api::new(limited(api.client().clone(), Limit::Adaptive, None));
    let stop = CancellationToken::new();
    let (cache, _task) = Cache::<ConfigMap>::start(&limit, Scope::namespace("default"), &stop);
    let queue = WorkQueue::new("maps", QueueOptions::default());
    let keys = queue.clone();
    let _kept = cache.subscribe(move |change| keys.add(change.object().key()));
    let failures = Arc::new(AtomicUsize::new(0));
    let (seen, writer, failed) = (cache.clone(), limit.clone(), failures.clone());
    let (work, until) = (queue.clone(), stop.clone());
    let tries = queue.clone();
    let running = tokio::spawn(async move {
        work.run_until(
            4,
            &until,
            |_, _| tracing::Span::none(),
            move |key: ObjectKey| {
                let (cache, api, failed) = (seen.clone(), writer.clone(), failed.clone());
                let first = tries.requeues(&key) == 0;
                async move {
                    let Some(map) = cache.get(&key).filter(|m| !m.data.contains_key("done")) else {
                        return Outcome::Done;
                    };
                    if first && map.metadata.name.starts_with('m') {
                        failed.fetch_add(1, Ordering::SeqCst);
                        return Outcome::retry("the first try always fails");
                    }
                    let patch = json!({"data": {"done": "yes"}});
                    match api.patch::<ConfigMap>(&key, Patch::Merge(&patch)).await {
                        Ok(written) => cache.assume(&written),
                        Err(error) => return Outcome::retry(error),
                    }
                    Outcome::Done
                }
            },
        )
        .await;
    });
    for i in 0..200 {
        limit.create::<ConfigMap>(&config_map(&format!("m{i}"), "")).await.expect("made");
    }
    let done = || {
        let maps = cache.list();
        maps.iter()
            .filter(|m| m.data.contains_key("done") && m.metadata.name.starts_with('m'))
            .count()
    };
    eventually("all are done", || done() == 200).await;
    assert!(failures.load(Ordering::SeqCst) >= 200);
    stop.cancel();
    running.await.expect("ends");
}

/// Serves on `address` until the token is cancelled.
async fn serve(
    server: &ApiServer,
    address: &str,
) -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind(address).await.expect("bound");
    let address = listener.local_addr().expect("address");
    let (server, stop) = (server.clone(), CancellationToken::new());
    let shutdown = stop.clone();
    let task = tokio::spawn(async move { server.serve(listener, shutdown).await.expect("serves") });
    (address, stop, task)
}

/// From a kubeconfig over TLS: configuration, limits, streamed list, watch, and a server that
/// goes away and comes back.
#[tokio::test]
async fn a_kubeconfig_leads_to_a_cache_that_outlives_the_connection() {
    let server = ApiServer::open(Config::memory()).await.expect("opens");
    let (address, stop_serving, serving) = serve(&server, "127.0.0.1:0").await;
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), server.kubeconfig(address)).expect("written");
    let metrics = Metrics::new();
    let config = ClientConfig {
        user_agent: Some("longshore-test/1".into()),
        metrics: Some(metrics.clone()),
        ..ClientConfig::from_kubeconfig(file.path())
    };
    let api = Api::new(config.client().await.expect("a client"));
    let stop = CancellationToken::new();
    let (cache, task) = Cache::<ConfigMap>::start(&api, Scope::namespace("default"), &stop);
    cache.synced().await;
    let makes = (0..100).map(|i| {
        let api = api.clone();
        async move { api.create::<ConfigMap>(&config_map(&format!("m{i}"), "")).await }
    });
    for made in futures::future::join_all(makes).await {
        made.expect("made");
    }
    let seen = || cache.list().iter().filter(|m| m.metadata.name.starts_with('m')).count();
    eventually("all are seen", || seen() == 100).await;
    let text = metrics.render();
    let counted = "rest_client_requests_total{code=\"201\",method=\"POST\"} 100\n";
    assert!(text.contains(counted), "{text}");

    stop_serving.cancel();
    serving.await.expect("ends");
    let inside = Api::new(server.client());
    let key = ObjectKey::new("default", "m0");
    inside.delete::<ConfigMap>(&key, &DeleteParams::default()).await.expect("deleted");
    let (_, stop_serving, serving) = serve(&server, &address.to_string()).await;
    eventually("the deletion is seen", || seen() == 99).await;
    stop.cancel();
    task.await.expect("ends");
    stop_serving.cancel();
    serving.await.expect("ends");
}
