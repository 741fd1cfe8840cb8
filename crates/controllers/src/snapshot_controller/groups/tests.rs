//! Group snapshots, with both programs and a driver in memory.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use http::Method;
use kube::client::Body;
use longshore_cluster::{Api, DeleteParams, Patch};
use longshore_core::model::{
    ObjectKey,
    keys::{annotations, finalizers},
    kinds::{
        Claim, Volume, VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent,
        VolumeSnapshot,
    },
};
use longshore_csi::{
    Call,
    capabilities::{ControllerCapability, GroupCapability, PluginService},
    fake::{self, Fault},
};
use serde_json::{Value, json};
use tonic::Code;

use super::super::trouble_tests::{refusing, run_through};
use crate::snapshot_testing::World;
use crate::snapshotter::Config;
use crate::testing::{DRIVER, key};

const TAKEN: Call = Call::CreateVolumeGroupSnapshot;

fn groups(driver: &mut fake::Config) {
    driver.plugin.services.insert(PluginService::GroupControllerService);
    driver.group = [GroupCapability::CreateDeleteGetVolumeGroupSnapshot].into();
}

/// Two claims with the label `app=db`, one without, and the class `groups`.
async fn world() -> World {
    let world = World::start_with(Config { leak_guard: true, ..Config::default() }, groups).await;
    for name in ["one", "two"] {
        world.claim(name).await;
        let label = json!({"metadata": {"labels": {"app": "db"}}});
        world.bench.merge::<Claim>(&key(name), label).await;
    }
    world
        .bench
        .create::<VolumeGroupSnapshotClass>(
            json!({"metadata": {"name": "groups"}, "driver": DRIVER,
            "deletionPolicy": "Delete"}),
        )
        .await;
    world
}

async fn group_of(world: &World, selector: Value) -> ObjectKey {
    world
        .bench
        .create::<VolumeGroupSnapshot>(json!({"metadata": {"name": "g", "namespace": "default"},
            "spec": {"volumeGroupSnapshotClassName": "groups", "source": {"selector": selector}}}))
        .await;
    key("g")
}

async fn group(world: &World) -> ObjectKey {
    group_of(world, json!({"matchLabels": {"app": "db"}})).await
}

fn is_ready(group: &VolumeGroupSnapshot) -> bool {
    group.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
}

async fn members(world: &World) -> Vec<VolumeSnapshot> {
    let all = longshore_cluster::ListParams::default();
    world.bench.api.list(None, &all).await.expect("listed")
}

async fn until_members_ready(world: &World) -> Vec<VolumeSnapshot> {
    for _ in 0..1000 {
        let all = members(world).await;
        if all.len() == 2 && all.iter().all(VolumeSnapshot::ready) {
            return all;
        }
        world.bench.pass(Duration::from_millis(20)).await;
    }
    panic!("members are not ready: {:#?}", members(world).await);
}

/// The content of a dynamic group snapshot.
async fn group_content(world: &World, group: &ObjectKey) -> VolumeGroupSnapshotContent {
    let group = world.bench.get::<VolumeGroupSnapshot>(group).await.expect("there");
    let name = format!("groupsnapcontent-{}", group.metadata.uid);
    world.bench.get(&ObjectKey::cluster(name)).await.expect("a content")
}

/// The API, where something happens right before some requests.
fn doing_before<F>(
    api: &Api,
    before: impl Fn(&Method, &str) -> Option<F> + Send + Sync + 'static,
) -> Api
where
    F: Future<Output = ()> + Send + 'static,
{
    let client = api.client().clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, first) = (client.clone(), before(request.method(), request.uri().path()));
        async move {
            if let Some(first) = first {
                first.await;
            }
            client.send(request).await
        }
    });
    Api::new(kube::Client::new(service, "default"))
}

async fn until_all_gone(world: &World, group: &ObjectKey) {
    world.bench.until_gone::<VolumeGroupSnapshot>(group).await;
    world.pass(5).await;
    assert!(members(world).await.is_empty());
    assert!(world.contents().await.is_empty());
    let all = longshore_cluster::ListParams::default();
    let contents = world.bench.api.list::<VolumeGroupSnapshotContent>(None, &all).await;
    assert!(contents.expect("listed").is_empty());
    assert_eq!((world.taken(), world.driver.state().groups.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_group_is_taken_with_its_members_and_deleted_with_them() {
    let world = world().await;
    // case: snapshotter/51
    let group = group(&world).await;
    world.bench.until::<VolumeGroupSnapshot>(&group, is_ready).await;
    let all = until_members_ready(&world).await;
    assert!(all.iter().all(|one| one.metadata.owner_references[0].name == "g"));
    assert!(all.iter().all(|one| {
        let status = one.status.as_ref().expect("a status");
        status.volume_group_snapshot_name.as_deref() == Some("g")
    }));
    assert_eq!(world.calls(TAKEN), 1);
    // case: snapshotter/55
    let member = ObjectKey::new("default", &all[0].metadata.name);
    world.delete(&member).await;
    world.pass(30).await;
    assert!(world.bench.get::<VolumeSnapshot>(&member).await.is_some());
    let told = world.bench.events("SnapshotDeletePending").await;
    assert!(!told.is_empty());
    assert!(
        told.iter().all(|text| text.contains("belongs to group snapshot default/g")),
        "{told:?}"
    );
    // case: snapshotter/56
    world.bench.delete::<VolumeGroupSnapshot>(&group).await;
    until_all_gone(&world, &group).await;
    // case: snapshotter/52
    assert_eq!((world.calls(Call::CreateSnapshot), world.calls(Call::DeleteSnapshot)), (0, 0));
    assert_eq!(world.calls(Call::DeleteVolumeGroupSnapshot), 1);
}

#[tokio::test(start_paused = true)]
async fn group_that_was_given_up_is_not_counted_as_cancelled() {
    let world = world().await;
    world.driver.configure(|driver| driver.group_polls = 1000);
    let group = group(&world).await;
    world.pass(2).await;
    assert_eq!((world.counted("CreateGroupSnapshot", "success"), world.in_flight() > 0), (1, true));
    world.bench.delete::<VolumeGroupSnapshot>(&group).await;
    until_all_gone(&world, &group).await;
    world.pass(1).await;
    for operation in ["CreateGroupSnapshot", "CreateGroupSnapshotAndReady", "DeleteGroupSnapshot"] {
        assert_eq!(world.counted(operation, "cancel"), 0, "{operation}");
    }
    let ended = |operation| world.counted(operation, "success");
    assert_eq!((ended("CreateGroupSnapshotAndReady"), ended("DeleteGroupSnapshot")), (0, 1));
    assert_eq!(world.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn finalizer_that_cannot_be_put_on_a_group_is_said() {
    let mut world = world().await;
    let group = group(&world).await;
    world.bench.until::<VolumeGroupSnapshot>(&group, is_ready).await;
    let left = AtomicUsize::new(1);
    let api = refusing(&world.bench.api, 500, move |method, path| {
        let meant = method == Method::PATCH && path.ends_with("/volumegroupsnapshots/g");
        meant && left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    });
    run_through(&mut world, api);
    let free = json!({"metadata": {"finalizers": null}});
    world.bench.merge::<VolumeGroupSnapshot>(&group, free).await;
    let kept = |group: &VolumeGroupSnapshot| {
        group.metadata.has_finalizer(finalizers::GROUP_SNAPSHOT_BOUND) && is_ready(group)
    };
    world.bench.until::<VolumeGroupSnapshot>(&group, kept).await;
    let told = world.bench.events("GroupSnapshotFinalizerError").await;
    let [text] = &told[..] else { panic!("{told:?}") };
    assert!(text.starts_with("Failed to check and update group snapshot"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn group_that_was_made_anew_does_not_hold_the_members_of_the_last_one() {
    let mut world = world().await;
    let group = group(&world).await;
    world.bench.until::<VolumeGroupSnapshot>(&group, is_ready).await;
    let all = until_members_ready(&world).await;
    world.controller.take().expect("runs").kill();
    let free = json!({"metadata": {"finalizers": null}});
    world.bench.merge::<VolumeGroupSnapshot>(&group, free).await;
    world.bench.delete::<VolumeGroupSnapshot>(&group).await;
    world.bench.until_gone::<VolumeGroupSnapshot>(&group).await;
    group_of(&world, json!({"matchLabels": {"app": "nothing"}})).await;
    world.run_controller();
    // The API server deletes them: their owner is gone.
    for member in &all {
        world.until_gone(&ObjectKey::new("default", &member.metadata.name)).await;
    }
    assert!(world.bench.events("SnapshotDeletePending").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_whole_selector_counts() {
    let world = world().await;
    // case: snapshotter/53
    let selector = json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]});
    let group = group_of(&world, selector).await;
    world.bench.until::<VolumeGroupSnapshot>(&group, is_ready).await;
    assert_eq!(until_members_ready(&world).await.len(), 2, "not the claim without the label");
}

#[tokio::test(start_paused = true)]
async fn a_restore_from_a_member_holds_the_group() {
    let world = world().await;
    let group = group(&world).await;
    world.bench.until::<VolumeGroupSnapshot>(&group, is_ready).await;
    let all = until_members_ready(&world).await;
    // case: snapshotter/73
    world
        .bench
        .create::<Claim>(json!({"metadata": {"name": "restore", "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "any",
                "resources": {"requests": {"storage": "1Gi"}},
                "dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot",
                    "name": all[0].metadata.name}}}))
        .await;
    let phase = |phase: &str| json!({"status": {"phase": phase}});
    world.bench.merge_status::<Claim>(&key("restore"), phase("Pending")).await;
    world.pass(1).await;
    world.bench.delete::<VolumeGroupSnapshot>(&group).await;
    world.pass(100).await;
    assert_eq!((world.taken(), world.calls(Call::DeleteVolumeGroupSnapshot)), (2, 0));
    let waits = world.bench.get::<VolumeGroupSnapshot>(&group).await.expect("it waits");
    assert!(waits.metadata.deleting());
    assert_eq!(members(&world).await.iter().filter(|one| one.metadata.deleting()).count(), 0);
    assert_eq!(
        world.bench.events("SnapshotDeletePending").await,
        ["Snapshot is being used to restore a PVC"]
    );
    world.bench.merge_status::<Claim>(&key("restore"), phase("Bound")).await;
    until_all_gone(&world, &group).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_call_without_a_verdict_is_repeated_under_its_name() {
    let world = world().await;
    // case: snapshotter/83
    for _ in 0..3 {
        world.driver.script(TAKEN, [Fault::After(Code::Aborted, "running".into())]);
    }
    let group = group(&world).await;
    // After 1, 2 and 4 seconds more.
    for calls in 1..=3 {
        while world.calls(TAKEN) < calls {
            world.bench.pass(Duration::from_millis(50)).await;
        }
        world.bench.pass(Duration::from_millis(50)).await;
        let content = group_content(&world, &group).await;
        let note = content.metadata.annotation(annotations::GROUP_SNAPSHOT_BEING_CREATED);
        assert_eq!(note, Some("yes"), "after {calls} calls");
        assert_eq!(world.calls(TAKEN), calls);
    }
    world.bench.until::<VolumeGroupSnapshot>(&group, is_ready).await;
    let content = group_content(&world, &group).await;
    assert_eq!(content.metadata.annotation(annotations::GROUP_SNAPSHOT_BEING_CREATED), None);
    assert_eq!((world.calls(TAKEN), world.driver.state().groups.len()), (4, 1));
    let calls = world.driver.calls_of(TAKEN);
    assert!(calls.iter().all(|call| call.request == calls[0].request), "{calls:?}");
    assert_eq!(until_members_ready(&world).await.len(), 2);
    // case: snapshotter/72
    let refused = Fault::Before(Code::Internal, "half way".into());
    world.driver.script(Call::DeleteVolumeGroupSnapshot, [refused]);
    world.bench.delete::<VolumeGroupSnapshot>(&group).await;
    while world.calls(Call::DeleteVolumeGroupSnapshot) == 0 {
        world.bench.pass(Duration::from_millis(10)).await;
    }
    world.bench.pass(Duration::from_millis(100)).await;
    assert_eq!((members(&world).await.len(), world.taken()), (2, 2), "visible meanwhile");
    let told = world.bench.events("GroupSnapshotDeleteError").await;
    assert!(told.first().is_some_and(|text| text.contains("half way")), "{told:?}");
    until_all_gone(&world, &group).await;
    let calls = world.driver.calls_of(Call::DeleteVolumeGroupSnapshot);
    let [first, second] = &calls[..] else { panic!("{calls:?}") };
    assert_eq!(first.request, second.request, "the same ids");
}

#[tokio::test(start_paused = true)]
async fn members_become_ready_by_themselves() {
    // case: snapshotter/59
    let world = world().await;
    world.driver.configure(|driver| {
        driver.controller.remove(ControllerCapability::GetSnapshot);
        (driver.group_polls, driver.snapshot_polls) = (2, 6);
    });
    let group = group(&world).await;
    world.bench.until::<VolumeGroupSnapshot>(&group, is_ready).await;
    assert_eq!(world.calls(TAKEN), 3, "asked again under its name until it was ready");
    assert!(!members(&world).await.iter().any(VolumeSnapshot::ready));
    world.pass(200).await;
    let all = until_members_ready(&world).await;
    for member in &all {
        let content = world.content_of(member).await;
        let handle = content.status.and_then(|status| status.snapshot_handle).expect("a handle");
        let asked = world.driver.calls_of(Call::ListSnapshots).into_iter();
        let asked = asked.filter(|call| call.request.contains(&handle)).count();
        assert_eq!(asked, 7, "six times not ready, then ready");
    }
    assert_eq!((world.calls(TAKEN), world.calls(Call::CreateSnapshot)), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn volume_of_another_driver_is_no_member() {
    // case: snapshotter/54
    let world = world().await;
    let uid = world.bench.claim("theirs", "any").await;
    world
        .bench
        .create::<Volume>(json!({"metadata": {"name": "pv-theirs"}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": "default", "name": "theirs", "uid": uid},
            "csi": {"driver": "other.example", "volumeHandle": "h"}}}))
        .await;
    let of_claim =
        json!({"metadata": {"labels": {"app": "db"}}, "spec": {"volumeName": "pv-theirs"}});
    world.bench.merge::<Claim>(&key("theirs"), of_claim).await;
    let bound = json!({"status": {"phase": "Bound"}});
    world.bench.merge_status::<Claim>(&key("theirs"), bound).await;
    let group = group(&world).await;
    world.pass(30).await;
    let told = world.bench.events("CreateGroupSnapshotContentFailed").await;
    assert!(
        told.first().is_some_and(|text| text.contains("belongs to driver other.example")),
        "{told:?}"
    );
    let seen = world.bench.get::<VolumeGroupSnapshot>(&group).await.expect("there");
    let status = seen.status.expect("a status");
    assert_eq!(status.ready_to_use, Some(false));
    let text = status.error.and_then(|error| error.message).unwrap_or_default();
    assert!(text.contains("belongs to driver other.example"), "{text}");
    assert_eq!((world.calls(TAKEN), members(&world).await.len()), (0, 0));
    let all = longshore_cluster::ListParams::default();
    let contents = world.bench.api.list::<VolumeGroupSnapshotContent>(None, &all).await;
    assert!(contents.expect("listed").is_empty());
}

#[tokio::test(start_paused = true)]
async fn content_that_vanished_before_its_deletion_is_no_failure() {
    // case: snapshotter/69
    let mut world = world().await;
    let group = group(&world).await;
    world.bench.until::<VolumeGroupSnapshot>(&group, is_ready).await;
    until_members_ready(&world).await;
    let name = ObjectKey::cluster(group_content(&world, &group).await.metadata.name);
    // Between look and deletion somebody takes the content away.
    let (direct, gone) = (world.bench.api.clone(), name.clone());
    let api = doing_before(&world.bench.api, move |method, path| {
        let meant = method == Method::DELETE && path.ends_with(&format!("/{}", gone.name));
        let (direct, gone) = (direct.clone(), gone.clone());
        meant.then_some(async move {
            let free = json!({"metadata": {"finalizers": null}});
            let patched = direct.patch::<VolumeGroupSnapshotContent>(&gone, Patch::Merge(&free));
            patched.await.expect("patched");
            let now = DeleteParams::default();
            direct.delete::<VolumeGroupSnapshotContent>(&gone, &now).await.expect("deleted");
        })
    });
    run_through(&mut world, api);
    world.bench.delete::<VolumeGroupSnapshot>(&group).await;
    world.bench.until_gone::<VolumeGroupSnapshot>(&group).await;
    world.pass(60).await;
    assert!(world.bench.get::<VolumeGroupSnapshotContent>(&name).await.is_none());
    assert!(members(&world).await.is_empty());
    for reason in ["GroupSnapshotContentObjectDeleteError", "SnapshotDeleteError"] {
        assert!(world.bench.events(reason).await.is_empty(), "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_time_leaves_one_group_with_one_set_of_members() {
    // case: snapshotter/70
    // case: snapshotter/71
    for millis in (0..120).step_by(15) {
        let mut world = world().await;
        world.driver.always(TAKEN, Fault::Delay(Duration::from_millis(40)));
        let group = group(&world).await;
        world.bench.pass(Duration::from_millis(millis)).await;
        world.restart();
        world.bench.until::<VolumeGroupSnapshot>(&group, is_ready).await;
        assert_eq!(until_members_ready(&world).await.len(), 2, "{millis} ms");
        assert_eq!(world.driver.state().groups.len(), 1, "{millis} ms");
        world.bench.delete::<VolumeGroupSnapshot>(&group).await;
        world.bench.pass(Duration::from_millis(millis)).await;
        world.restart();
        until_all_gone(&world, &group).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_the_driver_has_already_is_bound() {
    let world = world().await;
    // case: snapshotter/58
    let request = longshore_csi::v1::CreateVolumeGroupSnapshotRequest {
        name: "by-hand".into(),
        source_volume_ids: world.driver.volumes().keys().take(2).cloned().collect(),
        ..Default::default()
    };
    let made = world.driver.client().create_volume_group_snapshot(request).await.expect("made");
    let made = made.group_snapshot.expect("a group");
    let handles: Vec<&str> = made.snapshots.iter().map(|one| &*one.snapshot_id).collect();
    world
        .bench
        .create::<VolumeGroupSnapshotContent>(json!({"metadata": {"name": "kept"}, "spec": {
            "driver": DRIVER, "deletionPolicy": "Delete", "volumeGroupSnapshotClassName": "groups",
            "volumeGroupSnapshotRef": {"name": "g", "namespace": "default"},
            "source": {"groupSnapshotHandles": {"volumeGroupSnapshotHandle": made.group_snapshot_id,
                "volumeSnapshotHandles": handles}}}}))
        .await;
    // The administrator makes the members, some of them before the group snapshot.
    let make = async |name: &str, handle: &str| {
        world.given(name, handle, json!({})).await;
        world.snapshot_of_content(name).await
    };
    let first = make("first", handles[0]).await;
    world.until_ready(&first).await;
    let group = key("g");
    world
        .bench
        .create::<VolumeGroupSnapshot>(json!({"metadata": {"name": "g", "namespace": "default"},
            "spec": {"source": {"volumeGroupSnapshotContentName": "kept"}}}))
        .await;
    let ready = world.bench.until::<VolumeGroupSnapshot>(&group, is_ready).await;
    assert!(world.calls(Call::GetVolumeGroupSnapshot) >= 1);
    let second = make("second", handles[1]).await;
    for member in [&first, &second] {
        let owned = |one: &VolumeSnapshot| !one.metadata.owner_references.is_empty();
        let seen = world.bench.until::<VolumeSnapshot>(member, owned).await;
        let [owner] = &seen.metadata.owner_references[..] else { panic!("{seen:#?}") };
        assert_eq!((&owner.kind[..], &owner.name[..]), ("VolumeGroupSnapshot", "g"));
        assert_eq!(owner.api_version, "groupsnapshot.storage.k8s.io/v1");
        assert_eq!(owner.uid, ready.metadata.uid);
    }
    assert_eq!(until_members_ready(&world).await.len(), 2, "no others are made");
    assert_eq!((world.calls(TAKEN), world.calls(Call::CreateSnapshot)), (1, 0));
    world.bench.delete::<VolumeGroupSnapshot>(&group).await;
    until_all_gone(&world, &group).await;
    assert_eq!(world.calls(Call::DeleteVolumeGroupSnapshot), 1);
    assert_eq!(world.calls(Call::DeleteSnapshot), 0, "the group's deletion deletes its members");
}

#[tokio::test(start_paused = true)]
async fn a_group_content_without_members_is_not_deleted_blindly() {
    let world = world().await;
    // case: snapshotter/57
    world
        .bench
        .create::<VolumeGroupSnapshotContent>(json!({"metadata": {"name": "kept",
            "finalizers": ["example.com/keep"]}, "spec": {
            "driver": DRIVER, "deletionPolicy": "Delete", "volumeGroupSnapshotClassName": "groups",
            "volumeGroupSnapshotRef": {"name": "g", "namespace": "default"},
            "source": {"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "lost",
                "volumeSnapshotHandles": []}}}}))
        .await;
    let kept = ObjectKey::cluster("kept");
    world.bench.delete::<VolumeGroupSnapshotContent>(&kept).await;
    world.pass(10).await;
    let told = world.bench.events("GroupSnapshotDeleteError").await;
    assert!(told.first().is_some_and(|text| text.contains("names no snapshots")), "{told:?}");
    assert_eq!(world.calls(Call::DeleteVolumeGroupSnapshot), 0);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_not_ready_is_asked_for_after_longer_and_longer_pauses() {
    let world = world().await;
    world.driver.configure(|driver| driver.group_polls = 5);
    // case: snapshotter/76
    let group = group(&world).await;
    let begin = tokio::time::Instant::now();
    let mut asked: Vec<Duration> = Vec::new();
    while begin.elapsed() < Duration::from_secs(120) {
        world.bench.pass(Duration::from_millis(100)).await;
        asked.resize_with(world.calls(TAKEN), || begin.elapsed());
    }
    let pauses: Vec<u64> = asked
        .windows(2)
        .map(|two| (two[1] - two[0]).as_millis().div_ceil(500) as u64 / 2)
        .collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16], "{asked:?}");
    let ready = world.bench.get::<VolumeGroupSnapshot>(&group).await.expect("there");
    assert!(is_ready(&ready));
    until_members_ready(&world).await;
    // What is ready is not asked for any more, also when something else of it changes.
    let label = json!({"metadata": {"labels": {"seen": "yes"}}});
    world.bench.merge::<VolumeGroupSnapshot>(&group, label).await;
    world.pass(100).await;
    assert_eq!(world.calls(TAKEN), 6);
}
