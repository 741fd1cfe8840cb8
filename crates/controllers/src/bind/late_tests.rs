//! The binder with caches that are late, and the times that it takes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use longshore_cluster::{Api, Context};
use longshore_core::model::{
    ClaimPhase, ObjectKey, VolumePhase,
    kinds::{Claim, Volume},
};
use serde_json::{Value, json};

use super::{BindMetrics, Binder, Config, Operation};
use crate::testing::{Bench, DRIVER, Process, key};

/// A binder in a process of its own, whose context is changed by `change`.
fn start(bench: &Bench, change: impl FnOnce(&mut Context)) -> (Process, Context) {
    let mut process = bench.process();
    let mut context = process.context.clone();
    change(&mut context);
    let shutdown = process.shutdown.clone();
    process.spawn(Binder::new(&context, Config::default(), None).run(shutdown));
    (process, context)
}

fn in_flight(context: &Context, operation: Operation, key: &str) -> bool {
    BindMetrics::of(&context.metrics).in_flight(operation, key)
}

/// An API that refuses to show claims while `failing`.
fn failing(bench: &Bench, failing: Arc<AtomicBool>) -> Api {
    let client = bench.api.client().clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, failing) = (client.clone(), failing.clone());
        async move {
            let one_claim = request.method() == http::Method::GET
                && request.uri().path().contains("/persistentvolumeclaims/");
            if one_claim && failing.load(Ordering::Relaxed) {
                let body = kube::client::Body::from(Vec::new());
                let answer = http::Response::builder().status(500).body(body);
                return Ok(answer.expect("an answer"));
            }
            client.send(request).await
        }
    });
    Api::new(kube::Client::new(service, "default"))
}

/// A volume that points at a claim, with this phase; `over` changes its spec.
async fn pointing(bench: &Bench, name: &str, uid: &str, phase: &str, over: Value) {
    let mut spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": DRIVER, "volumeHandle": name},
        "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1",
            "namespace": "default", "name": "data", "uid": uid}});
    spec.as_object_mut().expect("an object").extend(over.as_object().expect("one").clone());
    bench.create::<Volume>(json!({"metadata": {"name": name}, "spec": spec})).await;
    let status = json!({"status": {"phase": phase}});
    bench.merge_status::<Volume>(&ObjectKey::cluster(name), status).await;
}

async fn name_volume(bench: &Bench, volume: &str) {
    bench.merge::<Claim>(&key("data"), json!({"spec": {"volumeName": volume}})).await;
}

fn pv() -> ObjectKey {
    ObjectKey::cluster("pv")
}

async fn phase(bench: &Bench) -> VolumePhase {
    bench.get::<Volume>(&pv()).await.expect("there").status.phase
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_only_the_api_knows_keeps_its_volume() {
    // case: pv-controller/4-11
    let bench = Bench::start().await;
    let uid = bench.claim("data", "").await;
    name_volume(&bench, "pv").await;
    pointing(&bench, "pv", &uid, "Available", json!({})).await;
    let claims = bench.blind::<Claim>();
    let _running = start(&bench, |context| context.caches.put(claims));
    bench.until::<Volume>(&pv(), |volume| volume.status.phase == VolumePhase::Bound).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_made_anew_keeps_its_volume() {
    // case: pv-controller/4-12
    let bench = Bench::start().await;
    bench.claim("data", "").await;
    let claims = bench.frozen::<Claim>().await;
    bench.merge::<Claim>(&key("data"), json!({"metadata": {"finalizers": null}})).await;
    bench.delete::<Claim>(&key("data")).await;
    let uid = bench.claim("data", "").await;
    name_volume(&bench, "pv").await;
    pointing(&bench, "pv", &uid, "Available", json!({})).await;
    let _running = start(&bench, |context| context.caches.put(claims));
    bench.until::<Volume>(&pv(), |volume| volume.status.phase == VolumePhase::Bound).await;
}

#[tokio::test(start_paused = true)]
async fn no_answer_about_a_claim_releases_no_volume() {
    // case: pv-controller/L-7
    let bench = Bench::start().await;
    pointing(&bench, "pv", "a-claim-that-is-gone", "Bound", json!({})).await;
    let down = Arc::new(AtomicBool::new(true));
    let api = failing(&bench, down.clone());
    let _running = start(&bench, |context| context.api = api);
    bench.pass(Duration::from_secs(60)).await;
    assert_eq!(phase(&bench).await, VolumePhase::Bound);
    down.store(false, Ordering::Relaxed);
    bench.pass(Duration::from_secs(1000)).await;
    assert_eq!(phase(&bench).await, VolumePhase::Released, "the turn comes back by itself");
}

/// What the binder makes of a volume that it saw bound to a claim that is gone, and that looks
/// otherwise by now.
async fn too_late(policy: &str, change: Option<Value>) -> (Option<Volume>, Vec<String>) {
    let bench = Bench::start().await;
    let over = json!({"persistentVolumeReclaimPolicy": policy});
    pointing(&bench, "pv", "a-claim-that-is-gone", "Released", over).await;
    let volumes = bench.frozen::<Volume>().await;
    match change {
        Some(change) => {
            bench.merge::<Volume>(&pv(), change).await;
            let free = json!({"status": {"phase": "Available"}});
            bench.merge_status::<Volume>(&pv(), free).await;
        }
        None => {
            bench.merge::<Volume>(&pv(), json!({"metadata": {"finalizers": null}})).await;
            bench.delete::<Volume>(&pv()).await;
        }
    }
    let _running = start(&bench, |context| context.caches.put(volumes));
    bench.pass(Duration::from_secs(1)).await;
    let mut events = bench.events("VolumeFailedRecycle").await;
    events.extend(bench.events("VolumeFailedDelete").await);
    (bench.get::<Volume>(&pv()).await, events)
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_not_released_any_more_is_left_alone() {
    let nobody = || json!({"spec": {"claimRef": null}});
    let kept = json!({"spec": {"claimRef": {"uid": null}}});
    let rows = [
        ("case: pv-controller/6-6", "Recycle", None),
        ("case: pv-controller/6-7", "Recycle", Some(nobody())),
        ("case: pv-controller/6-8", "Recycle", Some(kept)),
        ("case: pv-controller/8-6", "Delete", None),
        ("freed before its deletion", "Delete", Some(nobody())),
    ];
    for (name, policy, change) in rows {
        let gone = change.is_none();
        let (volume, events) = too_late(policy, change).await;
        assert_eq!(volume.is_none(), gone, "{name}");
        assert!(
            volume.is_none_or(|volume| volume.status.phase == VolumePhase::Available),
            "{name}"
        );
        assert_eq!(events, [""; 0], "{name}");
    }
}

/// A bound pair of an external driver, with the policy to delete, and a binder.
async fn bound_pair() -> (Bench, Process, Context) {
    let bench = Bench::start().await;
    bench.class("fast", "Immediate").await;
    let (process, context) = start(&bench, |_| {});
    let uid = bench.claim("data", "fast").await;
    let over = json!({"persistentVolumeReclaimPolicy": "Delete", "storageClassName": "fast"});
    pointing(&bench, "pv", &uid, "Pending", over).await;
    bench.until::<Claim>(&key("data"), |claim| claim.status.phase == ClaimPhase::Bound).await;
    (bench, process, context)
}

async fn claim_goes(bench: &Bench) {
    bench.merge::<Claim>(&key("data"), json!({"metadata": {"finalizers": null}})).await;
    bench.delete::<Claim>(&key("data")).await;
}

async fn volume_goes(bench: &Bench) {
    bench.merge::<Volume>(&pv(), json!({"metadata": {"finalizers": null}})).await;
    bench.delete::<Volume>(&pv()).await;
    bench.pass(Duration::from_secs(1)).await;
}

const DELETED: &str = "volume_operation_total_seconds_count{plugin_name=\"test.csi.example\",operation_name=\"delete\"}";

#[tokio::test(start_paused = true)]
async fn the_time_of_a_deletion_ends_with_the_object() {
    let (bench, _process, context) = bound_pair().await;
    claim_goes(&bench).await;
    // case: pv-controller/5-6
    bench.until::<Volume>(&pv(), |volume| volume.status.phase == VolumePhase::Released).await;
    bench.pass(Duration::from_secs(1)).await;
    assert!(in_flight(&context, Operation::Delete, "pv"));
    assert!(!context.metrics.render().contains(DELETED));
    // case: pv-controller/5-5
    volume_goes(&bench).await;
    assert!(context.metrics.render().contains(&format!("{DELETED} 1\n")));
    assert!(!in_flight(&context, Operation::Delete, "pv"));
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_goes_first_leaves_no_time_behind() {
    // case: pv-controller/5-7
    let (bench, _process, context) = bound_pair().await;
    volume_goes(&bench).await;
    bench.until::<Claim>(&key("data"), |claim| claim.status.phase == ClaimPhase::Lost).await;
    claim_goes(&bench).await;
    bench.pass(Duration::from_secs(1)).await;
    assert!(bench.get::<Claim>(&key("data")).await.is_none());
    assert!(!in_flight(&context, Operation::Delete, "pv"));
    assert!(!context.metrics.render().contains(DELETED));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_goes_leaves_no_time_behind() {
    // case: pv-controller/5-8
    let bench = Bench::start().await;
    bench.class("fast", "Immediate").await;
    let (_process, context) = start(&bench, |_| {});
    bench.claim("data", "fast").await;
    bench.pass(Duration::from_secs(1)).await;
    assert_eq!(bench.events("ExternalProvisioning").await.len(), 1);
    assert!(in_flight(&context, Operation::Provision, "default/data"));
    claim_goes(&bench).await;
    bench.pass(Duration::from_secs(1)).await;
    assert!(!in_flight(&context, Operation::Provision, "default/data"));
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_seen_after_its_claim_is_no_cause_for_a_warning() {
    let bench = Bench::start().await;
    let (late, hold) = bench.late::<Volume>().await;
    let _running = start(&bench, |context| context.caches.put(late));
    let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "storageClassName": "manual", "csi": {"driver": DRIVER, "volumeHandle": "pv"}});
    bench.create::<Volume>(json!({"metadata": {"name": "pv"}, "spec": spec})).await;
    bench.claim("data", "manual").await;
    bench.pass(Duration::from_millis(100)).await;
    drop(hold);
    bench.until::<Claim>(&key("data"), |claim| claim.status.phase == ClaimPhase::Bound).await;
    bench.pass(Duration::from_secs(5)).await;
    assert_eq!(bench.events("ProvisioningFailed").await, [""; 0]);
    // Where none comes the claim is told, once it is certain.
    bench.claim("other", "manual").await;
    bench.pass(Duration::from_secs(5)).await;
    assert_eq!(bench.events("ProvisioningFailed").await.len(), 1);
}
