//! Promises of the scheduler, and what becomes of them when the API has moved on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use longshore_cluster::{Api, Context};
use longshore_core::model::{
    ObjectKey,
    keys::annotations,
    kinds::{Claim, Pod, StorageClass, Volume},
};
use serde_json::json;

use super::{Config, Scheduler};
use crate::testing::{Bench, DRIVER, Process, key};

fn start(bench: &Bench, change: impl FnOnce(&mut Context)) -> Process {
    let mut process = bench.process();
    let mut context = process.context.clone();
    change(&mut context);
    let shutdown = process.shutdown.clone();
    process.spawn(Scheduler::new(&context, Config::default()).run(shutdown));
    process
}

/// A node, a class of volumes made by hand and one with a provisioner; both wait for pods.
async fn world() -> Bench {
    let bench = Bench::start().await;
    bench.node("n1").await;
    bench.class("wait", "WaitForFirstConsumer").await;
    bench
        .create::<StorageClass>(json!({"metadata": {"name": "hand"},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer"}))
        .await;
    bench
}

async fn disk(bench: &Bench, name: &str, size: &str) {
    bench
        .create::<Volume>(json!({"metadata": {"name": name}, "spec": {
            "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": "hand", "csi": {"driver": DRIVER, "volumeHandle": name}}}))
        .await;
    let available = json!({"status": {"phase": "Available"}});
    bench.merge_status::<Volume>(&ObjectKey::cluster(name), available).await;
}

async fn sized(bench: &Bench, name: &str, class: &str, size: &str) {
    bench
        .create::<Claim>(json!({"metadata": {"name": name, "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "resources": {"requests": {"storage": size}}}}))
        .await;
}

async fn owner(bench: &Bench, disk: &str) -> Option<String> {
    let volume = bench.get::<Volume>(&ObjectKey::cluster(disk)).await.expect("there");
    volume.spec.claim_ref.map(|claim| claim.name)
}

async fn selected(bench: &Bench, claim: &str) -> Option<String> {
    let claim = bench.get::<Claim>(&key(claim)).await.expect("there");
    claim.metadata.annotation(annotations::SELECTED_NODE).map(str::to_owned)
}

/// Somebody changes an object behind the scheduler's back.
fn touched() -> serde_json::Value {
    json!({"metadata": {"labels": {"touched": "yes"}}})
}

/// An API whose writes of volumes wait while `held`.
fn holding(bench: &Bench, held: Arc<AtomicBool>) -> Api {
    let client = bench.api.client().clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, held) = (client.clone(), held.clone());
        async move {
            let write = request.method() == http::Method::PATCH
                && request.uri().path().contains("/persistentvolumes/");
            while write && held.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            client.send(request).await
        }
    });
    Api::new(kube::Client::new(service, "default"))
}

#[tokio::test(start_paused = true)]
async fn a_promised_volume_is_taken_before_the_api_shows_it() {
    // case: scheduler-and-api/S17
    let bench = world().await;
    disk(&bench, "disk", "5Gi").await;
    let held = Arc::new(AtomicBool::new(true));
    let api = holding(&bench, held.clone());
    let _process = start(&bench, |context| context.api = api);
    bench.claim("first", "hand").await;
    bench.pod("a", None, &["first"]).await;
    bench.pass(Duration::from_secs(5)).await;
    bench.claim("second", "hand").await;
    bench.pod("b", None, &["second"]).await;
    bench.pass(Duration::from_secs(5)).await;
    assert_eq!(owner(&bench, "disk").await, None, "only in memory so far");
    let want =
        "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.";
    assert_eq!(bench.events("FailedScheduling").await, [want]);
    held.store(false, Ordering::Relaxed);
    let kept = |volume: &Volume| {
        let by_us = volume.metadata.annotation(annotations::BOUND_BY_CONTROLLER).is_some();
        by_us && volume.spec.claim_ref.as_ref().is_some_and(|claim| claim.name == "first")
    };
    bench.until::<Volume>(&ObjectKey::cluster("disk"), kept).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_changed_meanwhile_is_not_taken() {
    // case: scheduler-and-api/S18
    let bench = world().await;
    disk(&bench, "disk", "5Gi").await;
    let volumes = bench.frozen::<Volume>().await;
    bench.merge::<Volume>(&ObjectKey::cluster("disk"), touched()).await;
    let process = start(&bench, |context| context.caches.put(volumes));
    bench.claim("data", "hand").await;
    bench.pod("web", None, &["data"]).await;
    bench.pass(Duration::from_secs(5)).await;
    assert_eq!(owner(&bench, "disk").await, None);
    let events = bench.events("FailedScheduling").await;
    assert!(events.iter().any(|text| text.starts_with("binding volumes: ")), "{events:?}");
    process.kill();
    // One that sees the change takes the volume.
    let _process = start(&bench, |_| {});
    let disk = ObjectKey::cluster("disk");
    bench.until::<Volume>(&disk, |volume| volume.spec.claim_ref.is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_written_before_a_conflict_stays() {
    // case: scheduler-and-api/S19
    let bench = world().await;
    disk(&bench, "disk1", "1Gi").await;
    disk(&bench, "disk2", "5Gi").await;
    let volumes = bench.frozen::<Volume>().await;
    bench.merge::<Volume>(&ObjectKey::cluster("disk2"), touched()).await;
    let process = start(&bench, |context| context.caches.put(volumes));
    sized(&bench, "small", "hand", "1Gi").await;
    sized(&bench, "large", "hand", "2Gi").await;
    bench.pod("web", None, &["small", "large"]).await;
    bench.pass(Duration::from_secs(5)).await;
    assert_eq!(owner(&bench, "disk1").await.as_deref(), Some("small"));
    assert_eq!(owner(&bench, "disk2").await, None);
    assert!(!bench.events("FailedScheduling").await.is_empty());
    process.kill();
    let _process = start(&bench, |_| {});
    let disk2 = ObjectKey::cluster("disk2");
    let taken = bench.until::<Volume>(&disk2, |volume| volume.spec.claim_ref.is_some()).await;
    assert_eq!(taken.spec.claim_ref.expect("just seen").name, "large");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_changed_meanwhile_is_not_told_of_a_node() {
    // case: scheduler-and-api/S20
    let bench = world().await;
    sized(&bench, "small", "wait", "1Gi").await;
    sized(&bench, "large", "wait", "2Gi").await;
    let claims = bench.frozen::<Claim>().await;
    bench.merge::<Claim>(&key("large"), touched()).await;
    let _process = start(&bench, |context| context.caches.put(claims));
    bench.pod("web", None, &["small", "large"]).await;
    bench.pass(Duration::from_secs(5)).await;
    assert_eq!(selected(&bench, "small").await.as_deref(), Some("n1"));
    assert_eq!(selected(&bench, "large").await, None);
    let events = bench.events("FailedScheduling").await;
    assert!(events.iter().any(|text| text.starts_with("binding volumes: ")), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn volumes_that_never_come_are_not_waited_for_for_ever() {
    let bench = world().await;
    let _process = start(&bench, |_| {});
    bench.claim("data", "wait").await;
    bench.pod("web", None, &["data"]).await;
    bench.pass(Duration::from_secs(599)).await;
    assert_eq!(bench.events("FailedScheduling").await, [""; 0]);
    bench.pass(Duration::from_secs(5)).await;
    let want = "binding volumes: timed out waiting for the condition";
    assert_eq!(bench.events("FailedScheduling").await, [want]);
    // It is placed anew.
    bench.pass(Duration::from_secs(30)).await;
    bench.bind("data", "pv1", "h1").await;
    bench.until::<Pod>(&key("web"), |pod| pod.spec.node_name == "n1").await;
}
