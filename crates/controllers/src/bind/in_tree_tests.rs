//! The in-tree plugin: what is made, saved, deleted, and what becomes of failures.

use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use longshore_cluster::{Api, Metrics};
use longshore_core::{
    bind::{HostPathPlugin, Options},
    model::{
        ClaimPhase, ObjectKey, VolumeName, VolumePhase,
        keys::{annotations, finalizers::PV_CONTROLLER},
        kinds::{Claim, Node, StorageClass, Volume},
    },
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Binder, Config, DeleteError, InTreePlugin, MakeError};
use crate::testing::{Bench, Process, key};

const PLUGIN: &str = "kubernetes.io/host-path";

/// Keeps a set of names; fails as often as it is told.
#[derive(Default)]
struct Scripted {
    there: Mutex<BTreeSet<String>>,
    make_failures: AtomicUsize,
    delete_failures: AtomicUsize,
}

/// Counts a failure down; whether there was one left.
fn fails(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

impl InTreePlugin for Scripted {
    fn name(&self) -> &'static str {
        PLUGIN
    }

    fn make(&self, volume: &VolumeName, _: &Claim, _: &StorageClass) -> Result<Value, MakeError> {
        if fails(&self.make_failures) {
            let source = io::Error::other("planned failure");
            return Err(MakeError::Directory { path: "/srv".into(), source });
        }
        self.there.lock().insert(format!("/srv/{volume}"));
        Ok(json!({"hostPath": {"path": format!("/srv/{volume}")}}))
    }

    fn delete(&self, volume: &Volume) -> Result<(), DeleteError> {
        if fails(&self.delete_failures) {
            return Err(DeleteError::Failed("planned failure".into()));
        }
        let path = volume.spec.host_path.as_ref().map(|source| source.path.clone());
        self.there.lock().remove(&path.unwrap_or_default());
        Ok(())
    }
}

struct World {
    bench: Bench,
    plugin: Arc<Scripted>,
    metrics: Metrics,
    _process: Process,
}

/// An API that refuses to save this many volumes; with `after` it saves the first one all the same.
fn refusing(bench: &Bench, creates: usize, after: bool) -> Api {
    let client = bench.api.client().clone();
    let left = Arc::new(AtomicUsize::new(creates));
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, left) = (client.clone(), left.clone());
        async move {
            let create = request.method() == http::Method::POST
                && request.uri().path().ends_with("/persistentvolumes");
            if create && fails(&left) {
                if after {
                    client.send(request).await?;
                }
                let body = kube::client::Body::from(Vec::new());
                let answer = http::Response::builder().status(500).body(body);
                return Ok(answer.expect("an answer"));
            }
            client.send(request).await
        }
    });
    Api::new(kube::Client::new(service, "default"))
}

async fn class(bench: &Bench, name: &str, more: Value) {
    let mut class = json!({"metadata": {"name": name}, "provisioner": PLUGIN});
    class.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    bench.create::<StorageClass>(class).await;
}

/// A binder with the scripted plugin, and a class of it.
async fn world(plugin: Scripted, creates_refused: usize, after: bool) -> World {
    let bench = Bench::start().await;
    class(&bench, "gold", json!({})).await;
    let mut process = bench.process();
    let plugin = Arc::new(plugin);
    let mut context = process.context.clone();
    if creates_refused > 0 {
        context.api = refusing(&bench, creates_refused, after);
    }
    let metrics = context.metrics.clone();
    let shutdown = process.shutdown.clone();
    let options = Options { host_path: HostPathPlugin::Makes, ..Options::default() };
    let config = Config { options, ..Config::default() };
    process.spawn(Binder::new(&context, config, Some(plugin.clone())).run(shutdown));
    World { bench, plugin, metrics, _process: process }
}

impl World {
    async fn bound(&self) -> Volume {
        let claim =
            self.bench.until::<Claim>(&key("data"), |c| c.status.phase == ClaimPhase::Bound).await;
        let name = ObjectKey::cluster(claim.spec.volume_name);
        self.bench.until::<Volume>(&name, |volume| volume.status.phase == VolumePhase::Bound).await
    }

    async fn claim_goes(&self) {
        self.bench.merge::<Claim>(&key("data"), json!({"metadata": {"finalizers": null}})).await;
        self.bench.delete::<Claim>(&key("data")).await;
    }

    /// The API server holds volumes by a finalizer of its own; nobody runs to take it off.
    async fn unprotected(&self, name: &str) {
        let only = json!({"metadata": {"finalizers": [PV_CONTROLLER]}});
        self.bench.merge::<Volume>(&ObjectKey::cluster(name), only).await;
    }

    async fn events(&self, reason: &str) -> usize {
        self.bench.events(reason).await.len()
    }

    fn left(&self) -> usize {
        self.plugin.there.lock().len()
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_made_and_bound() {
    // case: pv-controller/11-1 case: pv-controller/12-1
    let world = world(Scripted::default(), 0, false).await;
    let uid = world.bench.claim("data", "gold").await;
    let volume = world.bound().await;
    assert_eq!(volume.metadata.name, format!("pvc-{uid}"));
    let note = |key| volume.metadata.annotation(key);
    assert_eq!(note(annotations::PROVISIONED_BY), Some(PLUGIN));
    assert_eq!(note(annotations::BOUND_BY_CONTROLLER), Some("yes"));
    assert!(volume.metadata.has_finalizer(PV_CONTROLLER));
    assert_eq!(volume.spec.storage_class_name, "gold");
    let claim = world.bench.get::<Claim>(&key("data")).await.expect("there");
    for key in [annotations::STORAGE_PROVISIONER, annotations::BETA_STORAGE_PROVISIONER] {
        assert_eq!(claim.metadata.annotation(key), Some(PLUGIN));
    }
    let said = format!("Successfully provisioned volume pvc-{uid} using {PLUGIN}");
    assert_eq!(world.bench.events("ProvisioningSucceeded").await, [said]);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_fails_is_asked_again() {
    // case: pv-controller/11-4
    let failing = Scripted { make_failures: AtomicUsize::new(1), ..Scripted::default() };
    let world = world(failing, 0, false).await;
    world.bench.claim("data", "gold").await;
    world.bound().await;
    let want =
        "Failed to provision volume with StorageClass \"gold\": cannot make /srv: planned failure";
    assert_eq!(world.bench.events("ProvisioningFailed").await, [want]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_cannot_be_saved() {
    let endless = 1000;
    // Refused creates, refused deletes; warnings about the save, about the cleaning, and what stays.
    let rows = [
        ("case: pv-controller/11-8", 1, 0, 0, 0, 1),
        ("case: pv-controller/11-9", 5, 0, 1, 0, 1),
        ("case: pv-controller/11-10, pv-controller/11-11", 5, 5, 1, 1, 1),
        ("case: pv-controller/11-12", 5, 1, 1, 0, 1),
        ("never", endless, 0, 1, 0, 0),
    ];
    for (name, creates, deletes, failed, unclean, stays) in rows {
        let plugin = Scripted { delete_failures: AtomicUsize::new(deletes), ..Scripted::default() };
        let world = world(plugin, creates, false).await;
        world.bench.claim("data", "gold").await;
        // Five saves, then as many deletes, ten seconds apart, fit into this.
        world.bench.pass(Duration::from_secs(95)).await;
        assert_eq!(world.events("ProvisioningFailed").await.min(1), failed, "{name}");
        assert_eq!(world.events("ProvisioningCleanupFailed").await, unclean, "{name}");
        if creates < endless {
            world.bound().await;
        }
        assert!(world.left() >= stays, "{name}: {}", world.left());
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_there_already_is_not_made_twice() {
    // case: pv-controller/11-19: saved, but the answer was lost
    let world = world(Scripted::default(), 1, true).await;
    world.bench.claim("data", "gold").await;
    world.bound().await;
    assert_eq!(world.events("ProvisioningFailed").await, 0);
    assert_eq!(world.left(), 1);
    // case: pv-controller/11-7: somebody else saved it
    let uid = world.bench.claim("late", "slow").await;
    world
        .bench
        .create::<Volume>(json!({"metadata": {"name": format!("pvc-{uid}")}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": "/srv/other"}}}))
        .await;
    class(&world.bench, "slow", json!({})).await;
    world.bench.pass(Duration::from_secs(60)).await;
    assert_eq!(world.left(), 1, "no second volume");
}

#[tokio::test(start_paused = true)]
async fn what_the_plugin_cannot_do() {
    let world = world(Scripted::default(), 0, false).await;
    class(&world.bench, "mounts", json!({"mountOptions": ["ro"]})).await;
    // case: pv-controller/11-20
    world.bench.claim("data", "mounts").await;
    // case: pv-controller/11-25
    world
        .bench
        .create::<Claim>(json!({"metadata": {"name": "copy", "namespace": "default"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "gold",
            "dataSource": {"kind": "PersistentVolumeClaim", "name": "data"},
            "resources": {"requests": {"storage": "1Gi"}}}}))
        .await;
    world.bench.pass(Duration::from_secs(5)).await;
    let mut events = world.bench.events("ProvisioningFailed").await;
    events.sort();
    let [mounts, source] = &events[..] else { panic!("{events:?}") };
    let want = "Mount options are not supported by the provisioner but StorageClass";
    assert!(mounts.starts_with(want), "{mounts}");
    assert!(source.contains("Only CSI plugin can provision a claim with a datasource"), "{source}");
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_chosen_node_gets_a_new_volume() {
    // case: pv-controller/11-23 case: pv-controller/12-3
    let world = world(Scripted::default(), 0, false).await;
    class(&world.bench, "late", json!({"volumeBindingMode": "WaitForFirstConsumer"})).await;
    world
        .bench
        .create::<Volume>(json!({"metadata": {"name": "free"}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": "late", "hostPath": {"path": "/srv/free"}}}))
        .await;
    world.bench.claim("data", "late").await;
    let chosen = json!({"metadata": {"annotations": {annotations::SELECTED_NODE: "n1"}}});
    world.bench.merge::<Claim>(&key("data"), chosen).await;
    world.bench.pass(Duration::from_secs(5)).await;
    let events = world.bench.events("ProvisioningFailed").await;
    assert_eq!(events[0], "Failed to get target node: node \"n1\" not found");
    world.bench.create::<Node>(json!({"metadata": {"name": "n1"}})).await;
    assert_ne!(world.bound().await.metadata.name, "free");
    let free = world.bench.get::<Volume>(&ObjectKey::cluster("free")).await.expect("there");
    assert_eq!((free.status.phase.as_str(), free.spec.claim_ref), ("Available", None));
}

#[tokio::test(start_paused = true)]
async fn a_released_volume_is_deleted() {
    // case: pv-controller/8-1 case: pv-controller/8-13 (its finalizer goes with it)
    let world = world(Scripted::default(), 0, false).await;
    world.bench.claim("data", "gold").await;
    let volume = world.bound().await;
    world.unprotected(&volume.metadata.name).await;
    world.claim_goes().await;
    world.bench.until_gone::<Volume>(&volume.metadata.key()).await;
    assert_eq!(world.left(), 0);
    assert_eq!(world.events("VolumeFailedDelete").await, 0);
    let counted = world.metrics.render();
    for operation in ["volume_provision", "volume_delete"] {
        let line = format!(
            "storage_operation_duration_seconds_count{{volume_plugin=\"{PLUGIN}\",operation_name=\"{operation}\",status=\"success\",migrated=\"false\"}} 1\n"
        );
        assert!(counted.contains(&line), "{line}{counted}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_made_by_hand_is_deleted_and_another_claim_of_its_name_stays() {
    // case: pv-controller/8-2 (not bound by the binder) case: pv-controller/8-9
    let world = world(Scripted::default(), 0, false).await;
    world.bench.claim("data", "").await;
    world
        .bench
        .create::<Volume>(json!({"metadata": {"name": "pv"}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete", "hostPath": {"path": "/srv/pv"},
            "claimRef": {"namespace": "default", "name": "data", "uid": "an-earlier-one"}}}))
        .await;
    world
        .bench
        .merge::<Volume>(&ObjectKey::cluster("pv"), json!({"metadata": {"finalizers": null}}))
        .await;
    world.bench.until_gone::<Volume>(&ObjectKey::cluster("pv")).await;
    let claim = world.bench.get::<Claim>(&key("data")).await.expect("there");
    assert_eq!((claim.status.phase.as_str(), claim.spec.volume_name.as_str()), ("Pending", ""));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_fails_is_tried_again() {
    // case: pv-controller/8-5 case: pv-controller/9-1
    let failing = Scripted { delete_failures: AtomicUsize::new(3), ..Scripted::default() };
    let world = world(failing, 0, false).await;
    world.bench.claim("data", "gold").await;
    let volume = world.bound().await;
    let key = volume.metadata.key();
    world.claim_goes().await;
    let failed = |volume: &Volume| volume.status.phase == VolumePhase::Failed;
    let failed = world.bench.until::<Volume>(&key, failed).await;
    assert_eq!(failed.status.message, "planned failure");
    world.unprotected(&key.name).await;
    world.bench.until_gone::<Volume>(&key).await;
    assert_eq!(world.bench.events("VolumeFailedDelete").await, ["planned failure"]);
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_second_volume_of_one_claim_is_deleted() {
    // case: pv-controller/8-11
    let world = world(Scripted::default(), 0, false).await;
    let uid = world.bench.claim("data", "gold").await;
    world.bound().await;
    world
        .bench
        .create::<Volume>(json!({"metadata": {"name": "second",
            "annotations": {annotations::PROVISIONED_BY: PLUGIN}}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete", "hostPath": {"path": "/srv/second"},
            "claimRef": {"namespace": "default", "name": "data", "uid": uid}}}))
        .await;
    let free = json!({"metadata": {"finalizers": null}});
    world.bench.merge::<Volume>(&ObjectKey::cluster("second"), free).await;
    world.bench.until_gone::<Volume>(&ObjectKey::cluster("second")).await;
    assert_eq!(world.bound().await.metadata.name, format!("pvc-{uid}"));
    assert_eq!(world.left(), 1);
}
