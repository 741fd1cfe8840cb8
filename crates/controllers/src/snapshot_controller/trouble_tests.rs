//! The controller with an API that refuses some requests, and without the kinds of group snapshots.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use http::Method;
use kube::client::Body;
use longshore_cluster::{Api, DeleteParams};
use longshore_core::model::{
    Kind, ObjectKey,
    kinds::{
        Claim, VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent,
        VolumeSnapshot, VolumeSnapshotContent,
    },
};
use longshore_csi::{
    Call,
    capabilities::{GroupCapability, PluginService},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Config, SnapshotController};
use crate::snapshot_testing::World;
use crate::testing::{DRIVER, key};

/// The first request of this method for each path that contains `part`.
fn first(method: Method, part: &'static str) -> impl Fn(&Method, &str) -> bool + Send + Sync {
    let seen: Mutex<HashSet<String>> = Mutex::default();
    move |asked, path| {
        *asked == method && path.contains(part) && seen.lock().insert(path.to_owned())
    }
}

/// Answers requests of which `refuse` says so with a failure.
pub(super) fn refusing(
    api: &Api,
    code: u16,
    refuse: impl Fn(&Method, &str) -> bool + Send + Sync + 'static,
) -> Api {
    let client = api.client().clone();
    let refuse = Arc::new(refuse);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let client = client.clone();
        let refused = refuse(request.method(), request.uri().path());
        async move {
            if refused {
                let reason = if code == 409 { "Conflict" } else { "InternalError" };
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "reason": reason, "code": code, "message": "not now"});
                let body = Body::from(status.to_string().into_bytes());
                let response = http::Response::builder().status(code).body(body);
                return Ok(response.expect("a response"));
            }
            client.send(request).await
        }
    });
    Api::new(kube::Client::new(service, "default"))
}

/// The same world with a controller that reaches the API in a way of its own.
async fn world_with(
    code: u16,
    refuse: impl Fn(&Method, &str) -> bool + Send + Sync + 'static,
) -> World {
    let mut world = World::start().await;
    let api = refusing(&world.bench.api, code, refuse);
    run_through(&mut world, api);
    world
}

/// Another controller instead of the one that runs.
pub(super) fn run_through(world: &mut World, api: Api) {
    world.controller.take().expect("runs").kill();
    let mut process = world.bench.process_with(api);
    let controller = SnapshotController::new(&process.context, Config::default());
    let shutdown = process.shutdown.clone();
    process.spawn(async move { controller.run(shutdown).await });
    world.controller = Some(process);
}

#[tokio::test(start_paused = true)]
async fn a_content_that_cannot_be_deleted_is_tried_again() {
    // case: snapshotter/41
    let world = world_with(500, first(Method::DELETE, "/volumesnapshotcontents/")).await;
    let snap = world.snapshot("snap").await;
    world.until_ready(&snap).await;
    world.delete(&snap).await;
    world.until_gone(&snap).await;
    assert_eq!(
        world.bench.events("SnapshotContentObjectDeleteError").await,
        ["Failed to delete snapshot content API object"]
    );
    assert_eq!((world.contents().await.len(), world.taken()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn conflicts_are_neither_failures_nor_waits() {
    for (method, part) in [
        (Method::PUT, "/persistentvolumeclaims/"),
        (Method::PATCH, "/volumesnapshots/"),
        (Method::PATCH, "/volumesnapshotcontents/"),
    ] {
        let world = world_with(409, first(method, part)).await;
        let snap = world.snapshot("snap").await;
        let ready = world.until_ready(&snap).await;
        assert_eq!(crate::snapshot_testing::error(&ready), "", "{part}");
        world.pass(1).await;
        assert_eq!(world.claim_finalizers().await, ["kubernetes.io/pvc-protection"], "{part}");
        world.delete(&snap).await;
        world.until_gone(&snap).await;
        assert_eq!(world.taken(), 0, "{part}");
    }
}

#[tokio::test(start_paused = true)]
async fn claim_is_freed_in_the_end_however_many_conflicts_there_are() {
    // case: snapshotter/82
    // More in a row than one write is repeated at once.
    let count = AtomicUsize::new(0);
    let world = world_with(409, move |method, path| {
        let meant = *method == Method::PUT && path.contains("/persistentvolumeclaims/");
        meant && count.fetch_add(1, Relaxed) % 20 != 19
    })
    .await;
    let snap = world.snapshot("snap").await;
    world.pass(60).await;
    let ready = world.until_ready(&snap).await;
    assert_eq!(crate::snapshot_testing::error(&ready), "");
    world.pass(60).await;
    assert_eq!(world.claim_finalizers().await, ["kubernetes.io/pvc-protection"]);
    assert!(!world.bench.events("ErrorPVCFinalizer").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn conflict_that_does_not_end_is_tried_less_and_less_often() {
    for part in ["/volumesnapshots/", "/volumesnapshotcontents/"] {
        let (on, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let (still, count) = (on.clone(), asked.clone());
        let world = world_with(409, move |method, path| {
            let refuse = still.load(Relaxed) && method == Method::PATCH && path.contains(part);
            count.fetch_add(usize::from(refuse), Relaxed);
            refuse
        })
        .await;
        let snap = world.snapshot("snap").await;
        world.pass(60).await;
        // Sixteen at once, after 1, 2, 4, 8, 16 and 32 seconds, and whenever the snapshotter writes.
        let refused = asked.load(Relaxed);
        assert!((16..=400).contains(&refused), "{part}: {refused} writes in a minute");
        on.store(false, Relaxed);
        world.pass(60).await;
        world.until_ready(&snap).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_content_that_was_made_before_is_used() {
    // case: snapshotter/6
    let mut world = World::start().await;
    world.controller.take().expect("runs").kill();
    let snap = world.snapshot("snap").await;
    let uid = world.bench.get::<VolumeSnapshot>(&snap).await.expect("there").metadata.uid;
    let origin = world.driver.volumes().keys().next().cloned().expect("a volume");
    let content = json!({"metadata": {"name": format!("snapcontent-{uid}")}, "spec": {
        "driver": DRIVER, "deletionPolicy": "Delete", "source": {"volumeHandle": origin},
        "volumeSnapshotClassName": "fast",
        "volumeSnapshotRef": {"name": "snap", "namespace": "default", "uid": uid}}});
    world.bench.create::<VolumeSnapshotContent>(content).await;
    world.run_controller();
    world.until_ready(&snap).await;
    assert_eq!((world.contents().await.len(), world.calls(Call::CreateSnapshot)), (1, 1));
    assert!(world.bench.events("SnapshotContentCreationFailed").await.is_empty());
}

/// A CustomResourceDefinition.
struct Definition;

impl Kind for Definition {
    const GROUP: &'static str = "apiextensions.k8s.io";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "CustomResourceDefinition";
    const PLURAL: &'static str = "customresourcedefinitions";
    const NAMESPACED: bool = false;
}

/// Has the definition serve a version, or not.
fn serve(definition: &mut Value, version: &str, served: bool) {
    let versions = definition["spec"]["versions"].as_array_mut().expect("versions");
    let found = versions.iter_mut().find(|one| one["name"] == version);
    found.expect("the version")["served"] = served.into();
}

#[tokio::test(start_paused = true)]
async fn without_the_gate_group_kinds_are_not_asked_for() {
    // case: snapshotter/63
    let mut world = World::start().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let api = refusing(&world.bench.api, 500, move |_, path| {
        let group = path.contains("groupsnapshot.storage.k8s.io");
        count.fetch_add(usize::from(group), Relaxed);
        false
    });
    world.controller.take().expect("runs").kill();
    let mut process = world.bench.process_with(api);
    let config = Config { groups: false, ..Config::default() };
    let controller = SnapshotController::new(&process.context, config);
    let shutdown = process.shutdown.clone();
    process.spawn(async move { controller.run(shutdown).await });
    world.controller = Some(process);
    let snap = world.snapshot("snap").await;
    world.until_ready(&snap).await;
    let member = json!({"status": {"volumeGroupSnapshotName": "g"}});
    world.bench.merge_status::<VolumeSnapshot>(&snap, member).await;
    world.pass(60).await;
    world.delete(&snap).await;
    world.until_gone(&snap).await;
    assert!(world.contents().await.is_empty());
    assert_eq!((world.taken(), asked.load(Relaxed)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn group_kinds_may_come_later() {
    let all = longshore_cluster::ListParams::default();
    let mut world = World::start().await;
    world.controller.take().expect("runs").kill();
    world.snapshotter.take().expect("runs").kill();
    world.driver.configure(|driver| {
        driver.plugin.services.insert(PluginService::GroupControllerService);
        driver.group = [GroupCapability::CreateDeleteGetVolumeGroupSnapshot].into();
    });
    let mut definitions = Vec::new();
    for plural in [
        VolumeGroupSnapshot::PLURAL,
        VolumeGroupSnapshotClass::PLURAL,
        VolumeGroupSnapshotContent::PLURAL,
    ] {
        let name = ObjectKey::cluster(format!("{plural}.groupsnapshot.storage.k8s.io"));
        let found = world.bench.api.get_raw::<Definition>(&name).await.expect("readable");
        let found = found.expect("defined");
        definitions.push(json!({"metadata": {"name": name.name,
            "annotations": found["metadata"]["annotations"]}, "spec": found["spec"]}));
        let now = DeleteParams::default();
        world.bench.api.delete::<Definition>(&name, &now).await.expect("deleted");
    }
    world.pass(5).await;
    world.run_controller();
    world.run_snapshotter();
    // case: snapshotter/50
    let snap = world.snapshot("snap").await;
    world.until_ready(&snap).await;
    // case: snapshotter/64
    let names: Vec<ObjectKey> = definitions
        .iter()
        .map(|one| ObjectKey::cluster(one["metadata"]["name"].as_str().expect("a name")))
        .collect();
    for mut definition in definitions {
        serve(&mut definition, "v1", false);
        world.bench.create::<Definition>(definition).await;
    }
    world.pass(100).await;
    assert!(world.bench.api.list::<VolumeGroupSnapshot>(None, &all).await.is_err(), "v1beta2 only");
    let other = world.snapshot("other").await;
    world.until_ready(&other).await;
    for name in &names {
        let found = world.bench.api.get_raw::<Definition>(name).await.expect("readable");
        let mut definition = found.expect("defined");
        serve(&mut definition, "v1", true);
        let versions = json!({"spec": {"versions": definition["spec"]["versions"]}});
        world.bench.merge::<Definition>(name, versions).await;
    }
    world.pass(60).await;
    let label: Value = json!({"metadata": {"labels": {"app": "db"}}});
    world.bench.merge::<Claim>(&key("origin"), label).await;
    world
        .bench
        .create::<VolumeGroupSnapshotClass>(
            json!({"metadata": {"name": "groups"}, "driver": DRIVER,
            "deletionPolicy": "Delete"}),
        )
        .await;
    world
        .bench
        .create::<VolumeGroupSnapshot>(json!({"metadata": {"name": "g", "namespace": "default"},
            "spec": {"volumeGroupSnapshotClassName": "groups",
                "source": {"selector": {"matchLabels": {"app": "db"}}}}}))
        .await;
    world.pass(60).await;
    let group = world.bench.get::<VolumeGroupSnapshot>(&key("g")).await.expect("there");
    let ready = group.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true));
    assert!(ready, "{:?}", group.status);
}
