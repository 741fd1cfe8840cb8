//! The controller, with a snapshotter beside it.

use longshore_core::model::{
    ObjectKey,
    keys::{annotations, finalizers},
    kinds::{Claim, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent},
};
use longshore_csi::{
    Call,
    fake::{self, Fault},
};
use serde_json::json;
use tonic::Code;

use crate::snapshot_testing::{World, error};
use crate::testing::key;

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_taken_and_deleted() {
    let world = World::start().await;
    // case: snapshotter/5
    let key = world.snapshot("snap").await;
    let ready = world.until_ready(&key).await;
    let status = ready.status.clone().expect("a status");
    assert!(status.creation_time.is_some() && status.error.is_none());
    assert_eq!(status.restore_size.map(|size| size.to_string()).as_deref(), Some("1Gi"));
    let content = world.content_of(&ready).await;
    assert_eq!(content.metadata.name, format!("snapcontent-{}", ready.metadata.uid));
    assert_eq!(content.spec.volume_snapshot_ref.uid, ready.metadata.uid);
    assert!(content.metadata.has_finalizer(finalizers::CONTENT_BOUND));
    assert_eq!(world.calls(Call::CreateSnapshot), 1);
    // case: snapshotter/44
    world.pass(1).await;
    assert!(!world.claim_finalizers().await.contains(&finalizers::CLAIM_AS_SOURCE.to_owned()));
    for (reason, text) in [
        (
            "CreatingSnapshot",
            "Waiting for a snapshot default/snap to be created by the CSI driver.",
        ),
        ("SnapshotCreated", "Snapshot default/snap was successfully created by the CSI driver."),
        ("SnapshotReady", "Snapshot default/snap is ready to use."),
    ] {
        assert_eq!(world.bench.events(reason).await, [text]);
    }
    // case: snapshotter/36
    world.delete(&key).await;
    world.until_gone(&key).await;
    assert!(world.contents().await.is_empty());
    assert_eq!((world.calls(Call::DeleteSnapshot), world.taken()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn operations_are_counted_by_driver_and_what_was_given_up_as_cancelled() {
    // case: snapshotter/60
    let polls = |driver: &mut fake::Config| driver.snapshot_polls = 3;
    let world = World::start_with(Default::default(), polls).await;
    let counts = || {
        let of = |status| {
            ["CreateSnapshot", "CreateSnapshotAndReady", "DeleteSnapshot"]
                .map(|operation| world.counted(operation, status))
        };
        (of("success"), of("cancel"))
    };
    let snap = world.snapshot("snap").await;
    world.pass(1).await;
    assert_eq!((counts(), world.in_flight()), (([1, 0, 0], [0, 0, 0]), 1), "cut, and not ready");
    world.until_ready(&snap).await;
    world.pass(1).await;
    assert_eq!((counts(), world.in_flight()), (([1, 1, 0], [0, 0, 0]), 0));
    world.delete(&snap).await;
    world.until_gone(&snap).await;
    world.pass(1).await;
    assert_eq!((counts(), world.in_flight()), (([1, 1, 1], [0, 0, 0]), 0));
    // One that is deleted before it is ready, and one that is deleted before it is cut.
    let unready = world.snapshot("unready").await;
    world.pass(1).await;
    world.delete(&unready).await;
    world.until_gone(&unready).await;
    world.pass(1).await;
    assert_eq!((counts(), world.in_flight()), (([2, 1, 2], [0, 1, 0]), 0));
    let refused = Fault::Before(Code::Internal, "no".into());
    world.driver.always(Call::CreateSnapshot, refused);
    let uncut = world.snapshot("uncut").await;
    world.bench.until::<VolumeSnapshot>(&uncut, |one| !error(one).is_empty()).await;
    world.delete(&uncut).await;
    world.until_gone(&uncut).await;
    world.pass(1).await;
    assert_eq!((counts(), world.in_flight()), (([2, 1, 3], [1, 2, 0]), 0));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_in_flight_after_a_thousand_operations() {
    // case: snapshotter/79
    let polls = |driver: &mut fake::Config| driver.snapshot_polls = 1;
    let world = World::start_with(Default::default(), polls).await;
    // Each is created, becomes ready or not, and is deleted.
    let mut all = Vec::new();
    for n in 0..340 {
        if n % 5 == 4 {
            let refused = Fault::Before(Code::Internal, "no".into());
            world.driver.script(Call::CreateSnapshot, [refused]);
        }
        let class = if n % 5 == 3 { "missing" } else { "fast" };
        let snap = world.snapshot_of_class(&format!("snap-{n}"), class).await;
        if n % 5 == 2 {
            world.delete(&snap).await;
        }
        all.push(snap);
    }
    assert!(world.in_flight() > 0);
    world.pass(30).await;
    for (n, snap) in all.iter().enumerate() {
        if n % 5 < 2 {
            world.until_ready(snap).await;
        }
        if n % 5 != 2 {
            world.delete(snap).await;
        }
    }
    for snap in &all {
        world.until_gone(snap).await;
    }
    world.pass(1).await;
    assert_eq!((world.in_flight(), world.taken()), (0, 0));
    let deleted = world.counted("DeleteSnapshot", "success");
    assert!((200..=340).contains(&deleted), "{deleted}");
}

#[tokio::test(start_paused = true)]
async fn the_default_class_is_filled_in_as_soon_as_there_is_one() {
    let mut world = World::start().await;
    let snap = world.snapshot_of_class("snap", "").await;
    let seen = world.bench.until::<VolumeSnapshot>(&snap, |one| !error(one).is_empty()).await;
    assert!(error(&seen).ends_with("cannot find default snapshot class"), "{}", error(&seen));
    // case: snapshotter/8
    world.controller.take().expect("runs").kill();
    for name in ["first", "second"] {
        let note = json!({annotations::SNAPSHOT_IS_DEFAULT_CLASS: "true"});
        world.class(name, json!({"metadata": {"name": name, "annotations": note}})).await;
    }
    world.run_controller();
    let two = |one: &VolumeSnapshot| error(one).ends_with("2 default snapshot classes were found");
    world.bench.until::<VolumeSnapshot>(&snap, two).await;
    // case: snapshotter/78
    // The text is upstream's and counts the classes; the log names them.
    let told = world.bench.events("SetDefaultSnapshotClassFailed").await;
    let text =
        "Failed to set default snapshot class with error 2 default snapshot classes were found";
    assert!(told.iter().any(|told| told == text), "{told:?}");
    assert!(world.contents().await.is_empty());
    let plain =
        json!({"metadata": {"annotations": {annotations::SNAPSHOT_IS_DEFAULT_CLASS: "false"}}});
    world.bench.merge::<VolumeSnapshotClass>(&ObjectKey::cluster("second"), plain).await;
    world.until_ready(&snap).await;
    // case: snapshotter/7
    let first = world.bench.get::<VolumeSnapshot>(&snap).await.expect("there");
    assert!(first.spec.volume_snapshot_class_name.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_class_that_comes_later_lets_its_snapshots_begin() {
    let world = World::start().await;
    // case: snapshotter/10
    let waits = world.snapshot_of_class("waits", "late").await;
    let goes = world.snapshot_of_class("goes", "late").await;
    let seen = world.bench.until::<VolumeSnapshot>(&waits, |one| !error(one).is_empty()).await;
    assert!(
        error(&seen).starts_with("Failed to get snapshot class with error"),
        "{}",
        error(&seen)
    );
    assert_eq!(seen.status.and_then(|status| status.ready_to_use), None);
    world.delete(&goes).await;
    world.until_gone(&goes).await;
    world.class("late", json!({})).await;
    let ready = world.until_ready(&waits).await;
    assert_eq!(error(&ready), "");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_bound_later_is_snapshotted_then() {
    let world = World::start().await;
    world.bench.claim("late", "any").await;
    // case: snapshotter/11
    let spec =
        json!({"source": {"persistentVolumeClaimName": "late"}, "volumeSnapshotClassName": "fast"});
    let metadata = json!({"name": "snap", "namespace": "default"});
    world.bench.create::<VolumeSnapshot>(json!({"metadata": metadata, "spec": spec})).await;
    let snap = key("snap");
    let seen = world.bench.until::<VolumeSnapshot>(&snap, |one| !error(one).is_empty()).await;
    assert!(error(&seen).contains("the PVC late is not yet bound to a PV"), "{}", error(&seen));
    world.pass(100).await;
    let handle = world.driver.volumes().keys().next().cloned().expect("a volume");
    world.bench.bind("late", "pv-late", &handle).await;
    world.pass(1).await;
    assert!(world.bench.get::<VolumeSnapshot>(&snap).await.expect("there").ready());
}

#[tokio::test(start_paused = true)]
async fn a_restore_holds_its_snapshot_until_it_is_bound() {
    let world = World::start().await;
    let snap = world.snapshot("snap").await;
    world.until_ready(&snap).await;
    // case: snapshotter/38
    world
        .bench
        .create::<Claim>(json!({"metadata": {"name": "restore", "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "any",
                "resources": {"requests": {"storage": "1Gi"}},
                "dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"}}}))
        .await;
    let pending = json!({"status": {"phase": "Pending"}});
    world.bench.merge_status::<Claim>(&key("restore"), pending).await;
    world.pass(1).await;
    world.delete(&snap).await;
    world.pass(200).await;
    assert_eq!(world.calls(Call::DeleteSnapshot), 0);
    assert_eq!(
        world.bench.events("SnapshotDeletePending").await,
        ["Snapshot is being used to restore a PVC"]
    );
    // case: snapshotter/74
    let bound = json!({"status": {"phase": "Bound"}});
    world.bench.merge_status::<Claim>(&key("restore"), bound).await;
    world.pass(1).await;
    assert!(world.bench.get::<VolumeSnapshot>(&snap).await.is_none());
    assert_eq!(world.taken(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_was_cut_is_never_cut_again() {
    let world = World::start().await;
    let snap = world.snapshot("snap").await;
    let ready = world.until_ready(&snap).await;
    // case: snapshotter/34
    let content = ObjectKey::cluster(ready.bound_content().expect("bound"));
    world.bench.delete::<VolumeSnapshotContent>(&content).await;
    let free = json!({"metadata": {"finalizers": null}});
    world.bench.merge::<VolumeSnapshotContent>(&content, free).await;
    let seen = world.bench.until::<VolumeSnapshot>(&snap, |one| !one.ready()).await;
    assert_eq!(error(&seen), "VolumeSnapshotContent is missing");
    world.pass(1000).await;
    assert_eq!(world.calls(Call::CreateSnapshot), 1);
    assert!(world.contents().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn contents_that_are_there_already_are_bound_both_ways() {
    let world = World::start().await;
    // case: snapshotter/26
    let early = world.snapshot_of_content("kept").await;
    let seen = world.bench.until::<VolumeSnapshot>(&early, |one| !error(one).is_empty()).await;
    assert_eq!(error(&seen), "VolumeSnapshotContent is missing");
    let made = world.snapshot("made").await;
    let made = world.content_of(&world.until_ready(&made).await).await;
    let handle = made.status.and_then(|status| status.snapshot_handle).expect("a handle");
    world.given("kept", &handle, json!({})).await;
    // case: snapshotter/25
    let ready = world.until_ready(&early).await;
    let content = world.content_of(&ready).await;
    assert_eq!(content.spec.volume_snapshot_ref.uid, ready.metadata.uid);
    assert!(content.metadata.has_finalizer(finalizers::CONTENT_BOUND));
    // case: snapshotter/27
    world
        .given(
            "taken",
            &handle,
            json!({"volumeSnapshotRef": {"name": "other", "namespace": "default"}}),
        )
        .await;
    let other = world.snapshot_of_content("taken").await;
    let seen = world.bench.until::<VolumeSnapshot>(&other, |one| !error(one).is_empty()).await;
    assert_eq!(error(&seen), "VolumeSnapshotContent [taken] is bound to a different snapshot");
}

#[tokio::test(start_paused = true)]
async fn retained_contents_outlive_their_snapshots() {
    let world = World::start().await;
    world.class("keeps", json!({"deletionPolicy": "Retain"})).await;
    let snap = world.snapshot_of_class("snap", "keeps").await;
    let content = world.content_of(&world.until_ready(&snap).await).await;
    // case: snapshotter/37
    world.delete(&snap).await;
    world.until_gone(&snap).await;
    let name = ObjectKey::cluster(&content.metadata.name);
    let kept = world.bench.get::<VolumeSnapshotContent>(&name).await.expect("kept");
    assert_eq!(kept.metadata.annotation(annotations::SNAPSHOT_BEING_DELETED), Some("yes"));
    world.bench.delete::<VolumeSnapshotContent>(&name).await;
    world.bench.until_gone::<VolumeSnapshotContent>(&name).await;
    assert_eq!((world.calls(Call::DeleteSnapshot), world.taken()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_used_again_is_another_snapshot() {
    let mut world = World::start().await;
    let snap = world.snapshot("snap").await;
    let first = world.content_of(&world.until_ready(&snap).await).await;
    // case: snapshotter/43
    world.controller.take().expect("runs").kill();
    let free = json!({"metadata": {"finalizers": null}});
    world.bench.merge::<VolumeSnapshot>(&snap, free).await;
    world.delete(&snap).await;
    world.until_gone(&snap).await;
    world.run_controller();
    world.snapshot("snap").await;
    let second = world.content_of(&world.until_ready(&snap).await).await;
    assert_ne!(first.metadata.name, second.metadata.name);
    world.delete(&snap).await;
    world.until_gone(&snap).await;
    assert_eq!(world.contents().await.len(), 1, "the first content is nobody's to delete");
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_kept_while_any_snapshot_of_it_is_not_ready() {
    let world = World::start_with(Default::default(), |driver| driver.snapshot_polls = 6).await;
    // case: snapshotter/44
    let kept =
        async || world.claim_finalizers().await.contains(&finalizers::CLAIM_AS_SOURCE.to_owned());
    let (one, two) = (world.snapshot("one").await, world.snapshot("two").await);
    world.pass(2).await;
    assert!(kept().await);
    world.delete(&one).await;
    world.until_gone(&one).await;
    assert!(kept().await, "the other one is not ready");
    world.pass(100).await;
    world.until_ready(&two).await;
    world.pass(1).await;
    assert!(!kept().await);
}

#[tokio::test(start_paused = true)]
async fn claim_is_freed_of_a_snapshot_that_went_without_a_pass() {
    for runs in [true, false] {
        let mut world = World::start().await;
        // Its class is gone, so it is not ready, and it has no finalizer that would hold it.
        let snap = world.snapshot_of_class("snap", "gone").await;
        world.bench.until::<VolumeSnapshot>(&snap, |one| !error(one).is_empty()).await;
        let kept = ["kubernetes.io/pvc-protection", finalizers::CLAIM_AS_SOURCE];
        let patch = json!({"metadata": {"finalizers": kept}});
        world.bench.merge::<Claim>(&key("origin"), patch).await;
        world.pass(1000).await;
        assert_eq!(world.claim_finalizers().await, kept, "the snapshot is not ready");
        if !runs {
            world.controller.take().expect("runs").kill();
        }
        world.delete(&snap).await;
        world.until_gone(&snap).await;
        if !runs {
            world.run_controller();
        }
        world.pass(5).await;
        assert_eq!(world.claim_finalizers().await, kept[..1], "controller runs: {runs}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_older_than_what_was_seen_is_passed_over() {
    let world = World::start_with(Default::default(), |driver| driver.snapshot_polls = 1).await;
    // case: snapshotter/47
    let snap = world.snapshot("snap").await;
    world.pass(1).await;
    let cut = world.bench.until::<VolumeSnapshot>(&snap, |one| one.bound_content().is_some()).await;
    let name = ObjectKey::cluster(cut.bound_content().expect("bound"));
    let old_snapshot = world.bench.api.get_raw::<VolumeSnapshot>(&snap).await.expect("read");
    let old_content = world.bench.api.get_raw::<VolumeSnapshotContent>(&name).await.expect("read");
    world.until_ready(&snap).await;
    world.pass(1).await;
    let ready = world.bench.get::<VolumeSnapshot>(&snap).await.expect("there");
    let content = world.content_of(&ready).await;
    let asked = world.calls(Call::CreateSnapshot);
    for process in [&world.controller, &world.snapshotter] {
        let context = &process.as_ref().expect("runs").context;
        let (snapshots, contents) =
            (context.cache::<VolumeSnapshot>(), context.cache::<VolumeSnapshotContent>());
        snapshots.synced().await;
        contents.synced().await;
        snapshots.assume(old_snapshot.as_ref().expect("there"));
        contents.assume(old_content.as_ref().expect("there"));
        let version = |meta: &longshore_core::model::kinds::Meta| meta.resource_version.clone();
        let held = snapshots.get(&snap).expect("held");
        assert_eq!(version(&held.metadata), version(&ready.metadata));
        let held = contents.get(&name).expect("held");
        assert_eq!(version(&held.metadata), version(&content.metadata));
    }
    // A resync looks at what is held, and finds nothing to do.
    world.pass(2000).await;
    assert_eq!(world.calls(Call::CreateSnapshot), asked);
    assert_eq!(world.bench.get::<VolumeSnapshot>(&snap).await.expect("there"), ready);
}
