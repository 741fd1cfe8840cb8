//! Group snapshots: all members at one moment, all or none, and gone together.

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use longshore_csi::Client;
use longshore_csi::v1::*;
use longshore_driver::DriverKind;
use tonic::Code;

#[test]
fn freeze_holder() {
    hold_freeze();
}

fn remove(group: &VolumeGroupSnapshot) -> DeleteVolumeGroupSnapshotRequest {
    DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id.clone(),
        snapshot_ids: group.snapshots.iter().map(|one| one.snapshot_id.clone()).collect(),
        ..Default::default()
    }
}

async fn cut_group(client: &Client, name: &str, sources: &[&str]) -> VolumeGroupSnapshot {
    let made = client.create_volume_group_snapshot(group(name, sources)).await.expect("cut");
    made.group_snapshot.expect("a group")
}

/// Writes the same number to the first volume and then to the second, over and over, and files
/// beside it so that there is always something to write back.
fn writer_of_two(
    first: &str,
    second: &str,
    stop: &Arc<AtomicBool>,
) -> std::thread::JoinHandle<u64> {
    let open = |dir: &str| std::fs::File::create(Path::new(dir).join("number")).expect("made");
    let (a, b) = (open(first), open(second));
    let (dir, stop) = (first.to_owned(), Arc::clone(stop));
    std::thread::spawn(move || {
        let mut number = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            number += 1;
            for file in [&a, &b] {
                file.write_all_at(&number.to_le_bytes(), 0).expect("written");
                file.sync_data().expect("flushed");
            }
            let noise = Path::new(&dir).join(format!("noise-{}", number % 16));
            std::fs::write(noise, vec![number as u8; 100_000]).expect("written");
        }
        number
    })
}

fn number(dir: &str) -> u64 {
    let bytes = std::fs::read(Path::new(dir).join("number")).expect("read");
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// No copy may hold a write of the second volume without the earlier one of the first, and each
/// is a whole filesystem.
#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_writes_is_kept_across_volumes() {
    const NAME: &str = "the_order_of_writes_is_kept_across_volumes";
    let Some(world) = World::for_test(NAME) else { return };
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let mut volumes = Vec::new();
    for name in ["a", "b"] {
        let id = make(client, name, 24 * MIB, writer()).await;
        let staging = world.dir(name);
        client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
        volumes.push((id, staging));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writing = writer_of_two(&volumes[0].1, &volumes[1].1, &stop);
    let rounds = if std::env::var_os("LONGSHORE_LONG").is_some() { 60 } else { 4 };
    let mut seen = Vec::new();
    for round in 0..rounds {
        let ids = [volumes[0].0.as_str(), volumes[1].0.as_str()];
        let group = cut_group(client, &format!("g{round}"), &ids).await;
        let mut numbers = Vec::new();
        for (id, _) in &volumes {
            let snap = group.snapshots.iter().find(|one| one.source_volume_id == *id);
            let snap = &snap.expect("a member").snapshot_id;
            let checked = Command::new("e2fsck")
                .arg("-fn")
                .arg(world.pool().join(format!("{snap}.img")))
                .output()
                .expect("e2fsck");
            let said = String::from_utf8_lossy(&checked.stdout);
            assert!(checked.status.success(), "{}: {said}", checked.status);
            let copy = copy_of(from_snapshot(snap), &format!("{snap}-r"), 24 * MIB, writer());
            let copy = client.create_volume(copy).await.unwrap().volume.unwrap().volume_id;
            let at = world.dir("restored");
            client.node_stage_volume(stage(&copy, &at, writer())).await.unwrap();
            numbers.push(number(&at));
            client.node_unstage_volume(unstage(&copy, &at)).await.unwrap();
            client.delete_volume(delete(&copy)).await.unwrap();
        }
        assert!(numbers[0] == numbers[1] || numbers[0] == numbers[1] + 1, "{numbers:?}");
        seen.push(numbers[0]);
        client.delete_volume_group_snapshot(remove(&group)).await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let last = writing.join().expect("the writer ends well");
    assert!(seen.is_sorted() && *seen.last().unwrap() <= last, "{seen:?} of {last}");
    for (id, staging) in &volumes {
        client.node_unstage_volume(unstage(id, staging)).await.unwrap();
        client.delete_volume(delete(id)).await.unwrap();
    }
    assert_eq!(world.files(), Vec::<String>::new());
    world.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn group_snapshots_are_created_and_deleted_as_one() {
    const NAME: &str = "group_snapshots_are_created_and_deleted_as_one";
    let Some(world) = World::for_test(NAME) else { return };
    let mut config = world.config(DriverKind::Local, "n1");
    config.pools.push(longshore_driver::PoolConfig::new("other", world.path().join("other")));
    let running = start(config.clone()).await;
    let client = &running.client;
    let a = make(client, "a", 4 * MIB, writer()).await;
    let b = CreateVolumeRequest {
        parameters: [("pool".to_owned(), "other".to_owned())].into(),
        ..create("b", 4 * MIB, writer())
    };
    let b = client.create_volume(b).await.unwrap().volume.unwrap().volume_id;
    let made = cut_group(client, "g", &[&a, &b]).await;
    assert_eq!(made.snapshots.len(), 2);
    assert!(made.ready_to_use && made.snapshots.iter().all(|one| one.ready_to_use));
    assert!(made.snapshots.iter().all(|one| one.group_snapshot_id == made.group_snapshot_id));
    // In any order, the same set is the same group; another set is not.
    assert_eq!(cut_group(client, "g", &[&b, &a]).await, made);
    let code = |result: Result<CreateVolumeGroupSnapshotResponse, _>| refused(result);
    let cases = [
        (group("g", &[&a]), Code::AlreadyExists),
        (group("", &[&a]), Code::InvalidArgument),
        (group("h", &[]), Code::InvalidArgument),
        (group("h", &[&a, &a]), Code::InvalidArgument),
        (group("h", &[&a, "vol-x"]), Code::NotFound),
    ];
    for (request, want) in cases {
        assert_eq!(
            code(client.create_volume_group_snapshot(request.clone()).await),
            want,
            "{request:?}"
        );
    }
    let member = &made.snapshots[0].snapshot_id;
    let alone = client.delete_snapshot(delete_snapshot(member)).await;
    assert_eq!(refused(alone), Code::InvalidArgument);
    let get = |snapshot_ids: Vec<String>| GetVolumeGroupSnapshotRequest {
        group_snapshot_id: made.group_snapshot_id.clone(),
        snapshot_ids,
        ..Default::default()
    };
    let ids = remove(&made).snapshot_ids;
    let got = client.get_volume_group_snapshot(get(ids.clone())).await.unwrap();
    assert_eq!(got.group_snapshot.as_ref(), Some(&made));
    let wrong = client.get_volume_group_snapshot(get(ids[..1].to_vec())).await;
    assert_eq!(refused(wrong), Code::InvalidArgument);
    let mut wrong = remove(&made);
    wrong.snapshot_ids.pop();
    assert_eq!(refused(client.delete_volume_group_snapshot(wrong).await), Code::InvalidArgument);

    // A crash after the members and before the group leaves nothing of it.
    stop(running).await;
    let file = world.pool().join(format!("{}.json", made.group_snapshot_id));
    let file = if file.exists() {
        file
    } else {
        world.path().join("other").join(format!("{}.json", made.group_snapshot_id))
    };
    std::fs::remove_file(file).expect("the group's record");
    let running = start(config).await;
    let client = &running.client;
    let listed = client.list_snapshots(ListSnapshotsRequest::default()).await.unwrap();
    assert_eq!(listed.entries, []);
    let gone = client.get_volume_group_snapshot(get(ids)).await;
    assert_eq!(refused(gone), Code::NotFound);
    assert!(world.files().iter().all(|name| name.starts_with("vol-")), "{:?}", world.files());
    // The name is free again.
    let made = cut_group(client, "g", &[&a, &b]).await;
    client.delete_volume_group_snapshot(remove(&made)).await.unwrap();
    client.delete_volume_group_snapshot(remove(&made)).await.expect("again");
    for id in [a, b] {
        client.delete_volume(delete(&id)).await.unwrap();
    }
    assert_eq!(world.files(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_cannot_be_whole_is_nothing() {
    const NAME: &str = "a_group_that_cannot_be_whole_is_nothing";
    if !able(NAME) {
        return;
    }
    // Room for one of the copies, and on one node each.
    let world = World::new();
    let mut config = world.config(DriverKind::Shared, "n1");
    config.pools[0].limit_bytes = Some(40 << 20);
    let running = start(config.clone()).await;
    let client = &running.client;
    let raw = || block(volume_capability::access_mode::Mode::SingleNodeWriter);
    let (a, b) =
        (make(client, "a", 12 * MIB, raw()).await, make(client, "b", 12 * MIB, raw()).await);
    for id in [&a, &b] {
        std::fs::write(image(&world, id), vec![7; 12 << 20]).unwrap();
    }
    let before = world.files();
    let full = client.create_volume_group_snapshot(group("g", &[&a, &b])).await;
    assert_eq!(refused(full), Code::ResourceExhausted);
    assert_eq!(world.files(), before, "a refusal left something");
    cut_group(client, "one", &[&a]).await;

    config.mode = longshore_driver::Mode::Node;
    config.node_id = "n2".to_owned();
    let _other = start(config).await;
    client.controller_publish_volume(attach(&a, "n1", raw())).await.unwrap();
    client.controller_publish_volume(attach(&b, "n2", raw())).await.unwrap();
    let apart = client.create_volume_group_snapshot(group("h", &[&a, &b])).await;
    assert!(format!("{apart:?}").contains("different nodes"), "{apart:?}");
    assert_eq!(refused(apart), Code::FailedPrecondition);
}
