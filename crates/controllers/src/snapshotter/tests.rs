//! The snapshotter, with a controller beside it.

use std::time::Duration;

use longshore_core::model::{
    ObjectKey,
    keys::{annotations, finalizers, labels},
    kinds::{Secret, VolumeSnapshot, VolumeSnapshotContent},
};
use longshore_csi::{
    Call,
    capabilities::ControllerCapability,
    fake::{Driver, Fault},
};
use serde_json::json;
use tonic::Code;

use super::{AbilitiesError, Config, NodeScope, ask};
use crate::snapshot_testing::{World, error};
use crate::testing::DRIVER;

const TAKEN: Call = Call::CreateSnapshot;
const DELETED: Call = Call::DeleteSnapshot;

fn refused(code: Code) -> Fault {
    Fault::Before(code, "no".into())
}

fn guarded() -> Config {
    Config { leak_guard: true, ..Config::default() }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_not_ready_is_asked_for_again_under_its_name() {
    let world = World::start_with(Config::default(), |driver| driver.snapshot_polls = 3).await;
    // case: snapshotter/17
    let snap = world.snapshot("snap").await;
    world.until_ready(&snap).await;
    let calls = world.driver.calls_of(TAKEN);
    assert_eq!(calls.len(), 4);
    assert!(calls.iter().all(|call| call.request == calls[0].request));
    assert!(world.bench.events("SnapshotCreationFailed").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn refusals_are_shown_once_and_end_when_it_is_ready() {
    let world = World::start().await;
    for _ in 0..3 {
        world.driver.script(TAKEN, [refused(Code::Internal)]);
    }
    // case: snapshotter/18
    let snap = world.snapshot("snap").await;
    let seen = world.bench.until::<VolumeSnapshot>(&snap, |one| !error(one).is_empty()).await;
    assert!(error(&seen).contains("failed to take snapshot of the volume"), "{}", error(&seen));
    // case: snapshotter/32
    let ready = world.until_ready(&snap).await;
    assert_eq!(error(&ready), "");
    let content = world.content_of(&ready).await;
    assert_eq!(content.metadata.annotation(annotations::SNAPSHOT_BEING_CREATED), None);
    // case: snapshotter/22
    assert_eq!(world.bench.events("SnapshotCreationFailed").await.len(), 1);
    assert_eq!(world.bench.events("SnapshotContentCheckandUpdateFailed").await.len(), 1);
    assert_eq!(world.calls(TAKEN), 4);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_verdict_stays_noted() {
    let world = World::start().await;
    world.driver.always(TAKEN, refused(Code::DeadlineExceeded));
    // case: snapshotter/19
    let snap = world.snapshot("snap").await;
    let seen = world.bench.until::<VolumeSnapshot>(&snap, |one| !error(one).is_empty()).await;
    let content = world.content_of(&seen).await;
    assert_eq!(content.metadata.annotation(annotations::SNAPSHOT_BEING_CREATED), Some("yes"));
    // case: snapshotter/20
    world.delete(&snap).await;
    world.pass(30).await;
    let content = world.content_of(&seen).await;
    assert!(content.metadata.deleting(), "it goes when there is a verdict");
    assert_eq!(world.calls(DELETED), 0);
    world.driver.clear_faults();
    world.pass(100).await;
    world.until_gone(&snap).await;
    assert_eq!((world.calls(DELETED), world.taken()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_lets_a_deleted_content_go() {
    let world = World::start().await;
    world.driver.script(TAKEN, [refused(Code::Unavailable)]);
    world.driver.always(TAKEN, refused(Code::Internal));
    // case: snapshotter/21
    let snap = world.snapshot("snap").await;
    world.bench.until::<VolumeSnapshot>(&snap, |one| !error(one).is_empty()).await;
    world.delete(&snap).await;
    world.until_gone(&snap).await;
    assert!(world.contents().await.is_empty());
    assert_eq!(world.calls(DELETED), 0);
}

/// The snapshot was taken, the answer got lost, and then the driver fails for a while.
#[tokio::test(start_paused = true)]
async fn a_no_after_a_lost_answer_is_not_believed_at_once() {
    let world = World::start_with(guarded(), |_| ()).await;
    world.driver.script(TAKEN, [Fault::After(Code::Unavailable, "lost".into())]);
    for _ in 0..4 {
        world.driver.script(TAKEN, [refused(Code::Internal)]);
    }
    let snap = world.snapshot("snap").await;
    world.bench.until::<VolumeSnapshot>(&snap, |one| !error(one).is_empty()).await;
    assert_eq!(world.taken(), 1);
    world.delete(&snap).await;
    world.pass(120).await;
    assert!(world.bench.get::<VolumeSnapshot>(&snap).await.is_none());
    assert_eq!((world.taken(), world.contents().await.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_fails_is_repeated() {
    let world = World::start().await;
    let snap = world.snapshot("snap").await;
    world.until_ready(&snap).await;
    world.driver.script(DELETED, [refused(Code::Internal)]);
    // case: snapshotter/39
    world.delete(&snap).await;
    world.until_gone(&snap).await;
    assert_eq!(world.bench.events("SnapshotDeleteError").await, ["Failed to delete snapshot"]);
    assert_eq!((world.calls(DELETED), world.taken()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_deleted_before_it_is_ready_is_deleted_at_once() {
    // case: snapshotter/75
    let world = World::start_with(guarded(), |driver| driver.snapshot_polls = 1000).await;
    let snap = world.snapshot("snap").await;
    world.pass(3).await;
    world.delete(&snap).await;
    world.pass(1).await;
    assert!(world.bench.get::<VolumeSnapshot>(&snap).await.is_none());
    assert_eq!(world.taken(), 0);
}

#[tokio::test(start_paused = true)]
async fn no_snapshot_of_impatient_users_is_left() {
    // case: snapshotter/67
    for config in [guarded(), Config::default()] {
        let world = World::start_with(config, |_| ()).await;
        world.driver.always(TAKEN, Fault::Delay(Duration::from_millis(60)));
        for n in 0..100 {
            let snap = world.snapshot(&format!("snap-{n}")).await;
            world.bench.pass(Duration::from_millis(n * 7 % 141)).await;
            world.delete(&snap).await;
        }
        for n in 0..100 {
            world.until_gone(&crate::testing::key(&format!("snap-{n}"))).await;
        }
        world.pass(10).await;
        assert!(world.contents().await.is_empty());
        assert_eq!(world.taken(), 0);
        assert_eq!(world.claim_finalizers().await, ["kubernetes.io/pvc-protection"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_whose_content_vanished_during_the_call_is_deleted() {
    for guard in [true, false] {
        let world =
            World::start_with(Config { leak_guard: guard, ..Config::default() }, |_| ()).await;
        let mut world = world;
        // Nobody but the snapshotter gives the content a finalizer.
        world.controller.take().expect("runs").kill();
        world.driver.always(TAKEN, Fault::Delay(Duration::from_secs(5)));
        let origin = world.driver.volumes().keys().next().cloned().expect("a volume");
        let name = ObjectKey::cluster("content");
        world
            .bench
            .create::<VolumeSnapshotContent>(json!({"metadata": {"name": "content"}, "spec": {
                "driver": DRIVER, "deletionPolicy": "Delete", "source": {"volumeHandle": origin},
                "volumeSnapshotClassName": "fast",
                "volumeSnapshotRef": {"name": "snap", "namespace": "default", "uid": "some-uid"}}}))
            .await;
        world.pass(2).await;
        world.bench.delete::<VolumeSnapshotContent>(&name).await;
        let there = world.bench.get::<VolumeSnapshotContent>(&name).await;
        assert_eq!(there.is_some(), guard, "only the guard's finalizer keeps it");
        world.pass(10).await;
        if guard {
            let note =
                json!({"metadata": {"annotations": {annotations::SNAPSHOT_BEING_DELETED: "yes"}}});
            world.bench.merge::<VolumeSnapshotContent>(&name, note).await;
            world.bench.until_gone::<VolumeSnapshotContent>(&name).await;
        }
        assert_eq!((world.taken(), world.calls(DELETED)), (0, 1), "guard {guard}");
    }
}

#[tokio::test(start_paused = true)]
async fn contents_that_were_never_asked_about_are_deleted_by_their_own_handle() {
    // case: snapshotter/66
    let world = World::start_with(Config::default(), |driver| {
        driver.controller.remove(ControllerCapability::GetSnapshot);
    })
    .await;
    // Polls answer late, so that deletion comes first.
    world.driver.always(Call::ListSnapshots, refused(Code::Unavailable));
    for policy in ["Delete", "Retain"] {
        world.driver.clear_calls();
        for n in 0..100 {
            let name = format!("{}-{n}", policy.to_lowercase());
            let key =
                world.given(&name, &format!("s-{n}"), json!({"deletionPolicy": policy})).await;
            let foreign = json!({"metadata": {"finalizers": ["example.com/backup"]}});
            world.bench.merge::<VolumeSnapshotContent>(&key, foreign).await;
            world.bench.pass(Duration::from_millis(n * 3 % 141)).await;
            world.bench.delete::<VolumeSnapshotContent>(&key).await;
        }
        world.pass(60).await;
        let free = json!({"metadata": {"finalizers": null}});
        for n in 0..100 {
            let key = ObjectKey::cluster(format!("{}-{n}", policy.to_lowercase()));
            world.bench.merge::<VolumeSnapshotContent>(&key, free.clone()).await;
            world.bench.until_gone::<VolumeSnapshotContent>(&key).await;
        }
        let want = if policy == "Delete" { 100 } else { 0 };
        assert_eq!(world.calls(DELETED), want, "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_time_leaves_no_snapshot() {
    for millis in (0..160).step_by(20) {
        let mut world = World::start_with(guarded(), |driver| driver.snapshot_polls = 2).await;
        world.driver.always(TAKEN, Fault::Delay(Duration::from_millis(50)));
        let snap = world.snapshot("snap").await;
        world.bench.pass(Duration::from_millis(millis)).await;
        world.restart();
        if millis % 40 == 0 {
            world.until_ready(&snap).await;
        }
        world.delete(&snap).await;
        world.bench.pass(Duration::from_millis(millis)).await;
        world.restart();
        world.until_gone(&snap).await;
        assert!(world.contents().await.is_empty(), "{millis} ms");
        assert_eq!(world.taken(), 0, "{millis} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn snapshots_are_looked_up_as_the_driver_can() {
    let made = async |world: &World| {
        let snap = world.snapshot("made").await;
        let content = world.content_of(&world.until_ready(&snap).await).await;
        content.status.and_then(|status| status.snapshot_handle).expect("a handle")
    };
    // case: snapshotter/77
    let world = World::start().await;
    let handle = made(&world).await;
    world.given("kept", &handle, json!({})).await;
    let snap = world.snapshot_of_content("kept").await;
    world.until_ready(&snap).await;
    assert_eq!((world.calls(Call::GetSnapshot), world.calls(Call::ListSnapshots)), (1, 0));
    // case: snapshotter/30
    world.given("lost", "nowhere", json!({})).await;
    let lost = world.snapshot_of_content("lost").await;
    let seen = world.bench.until::<VolumeSnapshot>(&lost, |one| !error(one).is_empty()).await;
    assert!(
        error(&seen).ends_with("can not find snapshot for snapshotID nowhere\""),
        "{}",
        error(&seen)
    );
    // case: snapshotter/29
    let world = World::start_with(Config::default(), |driver| {
        driver.controller.remove(ControllerCapability::GetSnapshot);
        driver.controller.remove(ControllerCapability::ListSnapshots);
    })
    .await;
    world.given("kept", "anything", json!({})).await;
    let snap = world.snapshot_of_content("kept").await;
    let ready = world.until_ready(&snap).await;
    assert_eq!(ready.status.and_then(|status| status.restore_size), None);
}

#[tokio::test(start_paused = true)]
async fn secret_for_lookups_is_named_by_the_class_and_the_content() {
    // case: snapshotter/31
    let world = World::start_with(Config::default(), |driver| {
        driver.controller.remove(ControllerCapability::GetSnapshot);
    })
    .await;
    let made = world.snapshot("made").await;
    let made = world.content_of(&world.until_ready(&made).await).await;
    let handle = made.status.and_then(|status| status.snapshot_handle).expect("a handle");
    let parameters = json!({
        "csi.storage.k8s.io/snapshotter-list-secret-name": "of-${volumesnapshotcontent.name}",
        "csi.storage.k8s.io/snapshotter-list-secret-namespace": "default"});
    world.class("listed", json!({"parameters": parameters})).await;
    let content = world.given("kept", &handle, json!({"volumeSnapshotClassName": "listed"})).await;
    let snap = world.snapshot_of_content("kept").await;
    let missing = "error getting secret of-kept in namespace default";
    let seen = world.bench.until::<VolumeSnapshot>(&snap, |one| error(one).contains(missing)).await;
    assert_eq!(seen.status.and_then(|status| status.ready_to_use), Some(false));
    let refused = world.bench.get::<VolumeSnapshotContent>(&content).await.expect("there");
    let status = refused.status.expect("a status");
    let text = status.error.and_then(|error| error.message).expect("a message");
    assert!(text.contains(missing), "{text}");
    assert_eq!(world.calls(Call::ListSnapshots), 0);
    let secret = json!({"metadata": {"name": "of-kept", "namespace": "default"},
        "stringData": {"user": "x"}});
    world.bench.create::<Secret>(secret).await;
    world.pass(60).await;
    assert_eq!(error(&world.until_ready(&snap).await), "");
    let calls = world.driver.calls_of(Call::ListSnapshots);
    assert!(calls[0].request.contains("\"secrets\":\"***stripped***\""), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn secrets_names_and_parameters() {
    let config = Config {
        extra_create_metadata: true,
        snapshot_name_prefix: "cut".into(),
        snapshot_name_uuid_length: Some(8),
        ..Config::default()
    };
    let world = World::start_with(config, |_| ()).await;
    let parameters = json!({"tier": "cold", "csi.storage.k8s.io/snapshotter-secret-name": "s",
        "csi.storage.k8s.io/snapshotter-secret-namespace": "${volumesnapshot.namespace}"});
    world.class("secret", json!({"parameters": parameters})).await;
    let snap = world.snapshot_of_class("snap", "secret").await;
    let seen = world.bench.until::<VolumeSnapshot>(&snap, |one| !error(one).is_empty()).await;
    assert!(
        error(&seen).contains("error getting secret s in namespace default"),
        "{}",
        error(&seen)
    );
    assert_eq!(world.calls(TAKEN), 0);
    world
        .bench
        .create::<Secret>(
            json!({"metadata": {"name": "s", "namespace": "default"}, "stringData": {"u": "x"}}),
        )
        .await;
    world.until_ready(&snap).await;
    let request = &world.driver.calls_of(TAKEN)[0].request;
    // case: snapshotter/23
    // case: snapshotter/24
    let uid: String = seen.metadata.uid.chars().filter(|c| *c != '-').take(8).collect();
    for part in [
        &format!("cut-{uid}"),
        "tier",
        "csi.storage.k8s.io/volumesnapshot/name",
        "csi.storage.k8s.io/volumesnapshotcontent/name",
    ] {
        assert!(request.contains(part), "{part}: {request}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_parameter_calls_nobody_and_holds_nothing() {
    // case: snapshotter/15
    let world = World::start().await;
    world.class("odd", json!({"parameters": {"csi.storage.k8s.io/foo": "1"}})).await;
    let snap = world.snapshot_of_class("snap", "odd").await;
    let seen = world.bench.until::<VolumeSnapshot>(&snap, |one| !error(one).is_empty()).await;
    assert!(error(&seen).contains("found unknown parameter key"), "{}", error(&seen));
    world.delete(&snap).await;
    world.until_gone(&snap).await;
    assert_eq!((world.calls(TAKEN), world.calls(DELETED)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn contents_of_other_nodes_are_left_alone() {
    // case: snapshotter/48
    for unlabelled in [false, true] {
        let scope = Some(NodeScope { node: "n1".into(), unlabelled });
        let mut world = World::start_with(Config { scope, ..Config::default() }, |_| ()).await;
        world.controller.take().expect("runs").kill();
        let origin = world.driver.volumes().keys().next().cloned().expect("a volume");
        for (name, node) in [("here", Some("n1")), ("there", Some("n2")), ("nowhere", None)] {
            let mut content = json!({"metadata": {"name": name}, "spec": {
                "driver": DRIVER, "deletionPolicy": "Delete", "source": {"volumeHandle": origin},
                "volumeSnapshotClassName": "fast",
                "volumeSnapshotRef": {"name": name, "namespace": "default", "uid": name}}});
            if let Some(node) = node {
                content["metadata"]["labels"] = json!({labels::SNAPSHOT_MANAGED_BY: node});
            }
            world.bench.create::<VolumeSnapshotContent>(content).await;
        }
        world.pass(30).await;
        let served: Vec<String> = world
            .contents()
            .await
            .into_iter()
            .filter(VolumeSnapshotContent::ready)
            .map(|one| one.metadata.name)
            .collect();
        let want: &[&str] = if unlabelled { &["here", "nowhere"] } else { &["here"] };
        assert_eq!(served, want);
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_without_snapshots_is_refused() {
    // case: snapshotter/49
    let driver = Driver::new(DRIVER);
    driver.configure(|config| config.controller.remove(ControllerCapability::CreateDeleteSnapshot));
    let refused = ask(&driver.client(), Duration::from_secs(1)).await;
    assert!(matches!(refused, Err(AbilitiesError::NoSnapshots(_))));
}

#[tokio::test(start_paused = true)]
async fn eighty_snapshots_need_one_call_each() {
    // case: snapshotter/80
    let world = World::start_with(guarded(), |_| ()).await;
    let mut all = Vec::new();
    for n in 0..80 {
        all.push(world.snapshot(&format!("snap-{n}")).await);
    }
    for snap in &all {
        let ready = world.until_ready(snap).await;
        let content = world.content_of(&ready).await;
        assert!(content.metadata.has_finalizer(finalizers::CONTENT_BOUND));
    }
    assert_eq!(world.calls(TAKEN), 80);
}
