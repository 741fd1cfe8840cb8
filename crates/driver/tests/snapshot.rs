//! Snapshots, restores and clones: what was written is in the copy, and nothing of one is in the
//! other afterwards.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::*;
use longshore_csi::Client;
use longshore_csi::v1::volume_capability::access_mode::Mode;
use longshore_csi::v1::*;
use longshore_driver::{DriverKind, FsType};
use longshore_testing::{Need, need};
use sha2::{Digest, Sha256};
use tonic::Code;

#[test]
fn freeze_holder() {
    hold_freeze();
}

/// Checksums of all files below a directory, by name.
fn sums(dir: &str) -> BTreeMap<String, String> {
    let files = std::fs::read_dir(dir).expect(dir).map(|entry| entry.expect("entry").path());
    let files = files.filter(|path| path.is_file());
    files
        .map(|path| {
            let name = path.file_name().expect("name").to_str().expect("text").to_owned();
            (name, hex::encode(Sha256::digest(std::fs::read(&path).expect("read"))))
        })
        .collect()
}

/// Files of many sizes, and what they are.
fn write_files(dir: &str, seed: u8) -> BTreeMap<String, String> {
    for n in 0..12_u8 {
        let bytes: Vec<u8> = (0..(usize::from(n) * 30_011)).map(|i| seed ^ n ^ i as u8).collect();
        std::fs::write(Path::new(dir).join(format!("f{n}")), bytes).expect("written");
    }
    sums(dir)
}

async fn staged(client: &Client, world: &World, id: &str, name: &str) -> String {
    let staging = world.dir(name);
    client.node_stage_volume(stage(id, &staging, writer())).await.expect("staged");
    staging
}

async fn gone(client: &Client, id: &str, staging: &str) {
    client.node_unstage_volume(unstage(id, staging)).await.expect("unstaged");
    client.delete_volume(delete(id)).await.expect("deleted");
}

/// The pools every test of copies runs on: one that copies extents, and one that shares blocks.
fn pools(test: &str) -> Vec<(&'static str, World)> {
    let mut pools = vec![("plain", World::new())];
    if need(test, &[Need::Root, Need::LoopDevices, Need::Tool("mkfs.xfs")]) {
        let world = World::new();
        mount_pool(&world, "xfs", 2 << 30);
        pools.push(("xfs", world));
    }
    pools
}

#[tokio::test(flavor = "multi_thread")]
async fn data_through_snapshot_clone_and_restore() {
    const NAME: &str = "data_through_snapshot_clone_and_restore";
    if !able(NAME) {
        return;
    }
    for (kind, world) in pools(NAME) {
        let running = start(world.config(DriverKind::Local, "n1")).await;
        let client = &running.client;
        let source = make(client, "source", 20 * MIB, writer()).await;
        let staging = staged(client, &world, &source, "s").await;
        let then = write_files(&staging, 1);
        // Cut while it is mounted and in use: not flushed by anybody.
        let snap = cut(client, "snap", &source).await;
        assert!(snap.ready_to_use, "{kind}");
        assert_eq!((snap.size_bytes, &snap.source_volume_id), (20 * MIB, &source), "{kind}");
        let clone = copy_of(from_volume(&source), "clone", 20 * MIB, writer());
        let clone = client.create_volume(clone).await.expect("cloned").volume.expect("a volume");
        assert_eq!(clone.content_source, Some(from_volume(&source)), "{kind}");
        let clone = clone.volume_id;

        // The source goes on, and then goes away.
        let now = write_files(&staging, 2);
        assert_ne!(now, then);
        assert_eq!(cut(client, "snap", &source).await, snap, "{kind}: cut again");
        let clone_staging = staged(client, &world, &clone, "c").await;
        assert_eq!(sums(&clone_staging), then, "{kind}: the clone");
        write_files(&clone_staging, 3);
        assert_eq!(sums(&staging), now, "{kind}: the source after its clone was written to");
        gone(client, &source, &staging).await;
        gone(client, &clone, &clone_staging).await;

        let listed = client.list_snapshots(ListSnapshotsRequest::default()).await.unwrap();
        assert_eq!(listed.entries.len(), 1, "{kind}");
        let restored = copy_of(from_snapshot(&snap.snapshot_id), "restored", 20 * MIB, writer());
        let restored = client.create_volume(restored).await.expect("restored").volume.unwrap();
        assert_eq!(restored.content_source, Some(from_snapshot(&snap.snapshot_id)));
        let restored_staging = staged(client, &world, &restored.volume_id, "r").await;
        assert_eq!(sums(&restored_staging), then, "{kind}: the restored volume");
        gone(client, &restored.volume_id, &restored_staging).await;
        client.delete_snapshot(delete_snapshot(&snap.snapshot_id)).await.unwrap();
        client.delete_snapshot(delete_snapshot(&snap.snapshot_id)).await.expect("again");
        assert_eq!(world.files(), Vec::<String>::new(), "{kind}");
    }
}

/// Two volumes that are cut together, restored larger, and grown themselves.
#[tokio::test(flavor = "multi_thread")]
async fn data_through_group_snapshot_and_expansion() {
    const NAME: &str = "data_through_group_snapshot_and_expansion";
    if !able(NAME) {
        return;
    }
    for (kind, world) in pools(NAME) {
        let running = start(world.config(DriverKind::Local, "n1")).await;
        let client = &running.client;
        let mut volumes = Vec::new();
        for (name, seed) in [("a", 1), ("b", 2)] {
            let (id, staging) = make_staged(&world, client, name, 20 * MIB, writer()).await;
            let then = write_files(&staging, seed);
            volumes.push((id, staging, then));
        }
        let ids = [volumes[0].0.as_str(), volumes[1].0.as_str()];
        let cut = client.create_volume_group_snapshot(group("g", &ids)).await.unwrap();
        let cut = cut.group_snapshot.unwrap();
        for (id, staging, then) in &volumes {
            let now = write_files(staging, 7);
            assert_ne!(now, *then);
            let member = cut.snapshots.iter().find(|one| one.source_volume_id == *id).unwrap();
            let source = from_snapshot(&member.snapshot_id);
            let copy = copy_of(source, &format!("{id}-restored"), 40 * MIB, writer());
            let copy = client.create_volume(copy).await.unwrap().volume.unwrap().volume_id;
            let at = staged(client, &world, &copy, "restored").await;
            assert_eq!(sums(&at), *then, "{kind}: restored and larger");
            gone(client, &copy, &at).await;

            match client.node_expand_volume(grow_on_node(id, staging, 40 * MIB)).await {
                Ok(_) => {}
                // Where the kernel does not let a mounted ext4 grow: at the next stage.
                refusal => {
                    assert_eq!(refused(refusal), Code::FailedPrecondition, "{kind}");
                    client.node_unstage_volume(unstage(id, staging)).await.unwrap();
                    client.node_stage_volume(stage(id, staging, writer())).await.unwrap();
                }
            }
            let stat = rustix::fs::statvfs(staging).unwrap();
            assert!((stat.f_blocks * stat.f_frsize).cast_signed() > 30 * MIB, "{kind}: not grown");
            assert_eq!(sums(staging), now, "{kind}: grown");
            gone(client, id, staging).await;
        }
        let request = DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: cut.group_snapshot_id,
            snapshot_ids: cut.snapshots.into_iter().map(|one| one.snapshot_id).collect(),
            ..Default::default()
        };
        client.delete_volume_group_snapshot(request).await.unwrap();
        assert_eq!(world.files(), Vec::<String>::new(), "{kind}");
    }
}

/// Every filesystem, cut in use and mounted beside its source: log replayed, identity renewed.
#[tokio::test(flavor = "multi_thread")]
async fn copies_of_every_filesystem_mount_beside_their_source() {
    const NAME: &str = "copies_of_every_filesystem_mount_beside_their_source";
    if !able_all(NAME) {
        return;
    }
    for (kind, world) in pools(NAME) {
        let running = start(world.config(DriverKind::Local, "n1")).await;
        let client = &running.client;
        let mut all = vec![(FsType::Ext4, 40), (FsType::Xfs, 320), (FsType::Btrfs, 128)];
        if kind != "plain" && std::env::var_os("LONGSHORE_LONG").is_none() {
            all.truncate(2);
        }
        for (fstype, bytes) in all.into_iter().map(|(fstype, mib)| (fstype, mib * MIB)) {
            let case = format!("{fstype} on {kind}");
            let put = |id: String, name: &'static str| {
                let staging = world.dir(&format!("{name}-{fstype}"));
                async move {
                    let request = stage(&id, &staging, writer_of(fstype));
                    client.node_stage_volume(request).await.expect("staged");
                    staging
                }
            };
            let source = make(client, &format!("source-{fstype}"), bytes, writer_of(fstype)).await;
            let at_source = put(source.clone(), "s").await;
            let then = write_files(&at_source, 5);
            let snap = cut(client, &format!("snap-{fstype}"), &source).await.snapshot_id;
            // The filesystem of the source counts, not the default, when none is asked for.
            let plain = mount_any();
            let copies = [(from_volume(&source), "clone"), (from_snapshot(&snap), "restored")];
            write_files(&at_source, 6);
            let mut mounted = vec![(source, at_source.clone())];
            for (from, name) in copies {
                // The restored one is twice as large, and so is its filesystem.
                let size = if name == "clone" { bytes } else { 2 * bytes };
                let request = copy_of(from, &format!("{name}-{fstype}"), size, plain.clone());
                let made = client.create_volume(request).await.expect(&case).volume.unwrap();
                let at = put(made.volume_id.clone(), name).await;
                let want = if name == "clone" { sums(&at_source) } else { then.clone() };
                assert_eq!(sums(&at), want, "{case}: {name}");
                let stat = rustix::fs::statvfs(&at).expect("measured");
                let total = (stat.f_blocks * stat.f_frsize).cast_signed();
                assert!(total > size * 8 / 10 - 32 * MIB, "{case}: {name} has {total} bytes");
                mounted.push((made.volume_id, at));
            }
            for (id, at) in mounted {
                gone(client, &id, &at).await;
            }
            client.delete_snapshot(delete_snapshot(&snap)).await.unwrap();
        }
        assert_eq!(world.files(), Vec::<String>::new(), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_sizes_and_uses_are_checked() {
    const NAME: &str = "names_sizes_and_uses_are_checked";
    let Some(world) = World::for_test(NAME) else { return };
    let mut config = world.config(DriverKind::Local, "n1");
    config.pools.push(longshore_driver::PoolConfig::new("other", world.path().join("other")));
    let running = start(config).await;
    let client = &running.client;
    let raw = || block(Mode::SingleNodeWriter);
    let (a, b) = (make(client, "a", 8 * MIB, writer()).await, make(client, "b", MIB, raw()).await);
    let snap = cut(client, "s", &a).await.snapshot_id;
    let raw_snap = cut(client, "r", &b).await.snapshot_id;
    let before = world.files();

    assert_eq!(refused(client.create_snapshot(snapshot("s", &b)).await), Code::AlreadyExists);
    assert_eq!(refused(client.create_snapshot(snapshot("", &a)).await), Code::InvalidArgument);
    assert_eq!(refused(client.create_snapshot(snapshot("x", "")).await), Code::InvalidArgument);
    for missing in ["vol-../../etc", "nope", &a.replace("vol-", "snap-")] {
        assert_eq!(refused(client.create_snapshot(snapshot("x", missing)).await), Code::NotFound);
    }
    let unknown = CreateSnapshotRequest {
        parameters: [("compress".to_owned(), "yes".to_owned())].into(),
        ..snapshot("x", &a)
    };
    assert_eq!(refused(client.create_snapshot(unknown).await), Code::InvalidArgument);

    let other_pool = |request: CreateVolumeRequest| CreateVolumeRequest {
        parameters: [("pool".to_owned(), "other".to_owned())].into(),
        ..request
    };
    let limited = |limit_bytes: i64, request: CreateVolumeRequest| CreateVolumeRequest {
        capacity_range: Some(CapacityRange { required_bytes: 0, limit_bytes }),
        ..request
    };
    let restore = |bytes, capability| copy_of(from_snapshot(&snap), "n", bytes, capability);
    let nothing = VolumeContentSource { r#type: None };
    let cases = [
        ("too small", restore(4 * MIB, writer()), Code::OutOfRange),
        ("limit too small", limited(4 * MIB, restore(0, writer())), Code::OutOfRange),
        ("as blocks", restore(8 * MIB, raw()), Code::InvalidArgument),
        ("as files", copy_of(from_snapshot(&raw_snap), "n", MIB, writer()), Code::InvalidArgument),
        ("elsewhere", other_pool(restore(8 * MIB, writer())), Code::InvalidArgument),
        ("empty source", copy_of(nothing, "n", MIB, writer()), Code::InvalidArgument),
        ("no id", copy_of(from_snapshot(""), "n", MIB, writer()), Code::InvalidArgument),
        ("no snapshot", copy_of(from_snapshot("snap-x"), "n", MIB, writer()), Code::NotFound),
        ("no volume", copy_of(from_volume("vol-x"), "n", MIB, writer()), Code::NotFound),
        ("taken", copy_of(from_snapshot(&snap), "a", 8 * MIB, writer()), Code::AlreadyExists),
        ("of itself", copy_of(from_volume(&a), "a", 8 * MIB, writer()), Code::AlreadyExists),
    ];
    for (name, request, want) in cases {
        assert_eq!(refused(client.create_volume(request).await), want, "{name}");
    }
    assert_eq!(world.files(), before, "a refusal left something");

    // A copy is found again, also after its source is gone, and distinguished from others.
    let copy = copy_of(from_snapshot(&snap), "copy", 0, writer());
    let copy = CreateVolumeRequest { capacity_range: None, ..copy };
    let made = client.create_volume(copy.clone()).await.expect("made");
    assert_eq!(made.volume.as_ref().unwrap().capacity_bytes, 8 * MIB);
    client.delete_snapshot(delete_snapshot(&snap)).await.unwrap();
    assert_eq!(client.create_volume(copy.clone()).await.expect("found"), made);
    let other = CreateVolumeRequest { volume_content_source: None, ..copy.clone() };
    assert_eq!(refused(client.create_volume(other).await), Code::AlreadyExists);
    let other = CreateVolumeRequest { volume_content_source: Some(from_volume(&a)), ..copy };
    assert_eq!(refused(client.create_volume(other).await), Code::AlreadyExists);
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_listed_in_pages() {
    const NAME: &str = "snapshots_are_listed_in_pages";
    let Some(world) = World::for_test(NAME) else { return };
    let config = world.config(DriverKind::Shared, "n1");
    let running = start(config.clone()).await;
    let (a, b) = (
        make(&running.client, "a", 4 * MIB, writer()).await,
        make(&running.client, "b", 4 * MIB, writer()).await,
    );
    let mut all = Vec::new();
    for n in 0..5 {
        let source = if n == 4 { &b } else { &a };
        all.push(cut(&running.client, &format!("s{n}"), source).await);
    }
    // As many after a restart.
    stop(running).await;
    let running = start(config).await;
    let client = &running.client;
    let list = |request: ListSnapshotsRequest| async move {
        let response = client.list_snapshots(request).await.unwrap();
        let found: Vec<_> = response.entries.into_iter().map(|one| one.snapshot.unwrap()).collect();
        (found, response.next_token)
    };
    let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let request =
            ListSnapshotsRequest { max_entries: 2, starting_token: token, ..Default::default() };
        let (found, next) = list(request).await;
        seen.extend(found);
        pages += 1;
        token = next;
        if token.is_empty() {
            break;
        }
    }
    let last = all[4].clone();
    all.sort_by(|x, y| x.snapshot_id.cmp(&y.snapshot_id));
    assert_eq!((&seen, pages), (&all, 3));
    let by_source = ListSnapshotsRequest { source_volume_id: b.clone(), ..Default::default() };
    assert_eq!(list(by_source).await.0, std::slice::from_ref(&last));
    let by_id =
        ListSnapshotsRequest { snapshot_id: last.snapshot_id.clone(), ..Default::default() };
    assert_eq!(list(by_id.clone()).await.0, std::slice::from_ref(&last));
    let both = ListSnapshotsRequest { source_volume_id: a, ..by_id };
    assert_eq!(list(both).await.0, []);
    let none = ListSnapshotsRequest { snapshot_id: "none".to_owned(), ..Default::default() };
    assert_eq!(list(none).await.0, []);
    let bad = ListSnapshotsRequest { starting_token: "x".to_owned(), ..Default::default() };
    assert_eq!(refused(client.list_snapshots(bad).await), Code::Aborted);
    let bad = ListSnapshotsRequest { max_entries: -1, ..Default::default() };
    assert_eq!(refused(client.list_snapshots(bad).await), Code::InvalidArgument);
    let get = |id: &str| GetSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
    let got = client.get_snapshot(get(&last.snapshot_id)).await.unwrap().snapshot;
    assert_eq!(got.as_ref(), Some(&last));
    assert_eq!(refused(client.get_snapshot(get("snap-x")).await), Code::NotFound);
    assert_eq!(refused(client.get_snapshot(get("")).await), Code::InvalidArgument);
}

/// Blocks, and everything that may be shared, are counted as if nothing were.
#[tokio::test(flavor = "multi_thread")]
async fn snapshots_take_room_from_the_pool() {
    const NAME: &str = "snapshots_take_room_from_the_pool";
    if !able(NAME) {
        return;
    }
    for (kind, world) in pools(NAME) {
        let mut config = world.config(DriverKind::Local, "n1");
        config.pools[0].limit_bytes = Some(40 << 20);
        let running = start(config.clone()).await;
        let client = &running.client;
        let raw = || block(Mode::SingleNodeWriter);
        let id = make(client, "a", 16 * MIB, raw()).await;
        let room = |client: Client| async move {
            client.get_capacity(GetCapacityRequest::default()).await.unwrap().available_capacity
        };
        assert_eq!(room(client.clone()).await, 24 * MIB, "{kind}");
        std::fs::write(image(&world, &id), vec![7; 16 << 20]).unwrap();
        let snap = cut(client, "s", &id).await.snapshot_id;
        assert_eq!(room(client.clone()).await, 8 * MIB, "{kind}: a full snapshot");
        let again = client.create_snapshot(snapshot("t", &id)).await;
        assert_eq!(refused(again), Code::ResourceExhausted, "{kind}");
        stop(running).await;
        let running = start(config).await;
        let client = &running.client;
        assert_eq!(room(client.clone()).await, 8 * MIB, "{kind}: after a restart");
        client.delete_volume(delete(&id)).await.unwrap();
        assert_eq!(room(client.clone()).await, 24 * MIB, "{kind}");
        let copied = std::fs::read(world.pool().join(format!("{snap}.img"))).unwrap();
        assert!(copied == vec![7; 16 << 20], "{kind}: the snapshot outlives its source");
        client.delete_snapshot(delete_snapshot(&snap)).await.unwrap();
        assert_eq!(room(client.clone()).await, 40 * MIB, "{kind}");
    }
}

/// Blocks that a copy shares are owed once more, and no longer when it has its own.
#[tokio::test(flavor = "multi_thread")]
async fn shared_blocks_are_owed_until_they_part() {
    const NAME: &str = "shared_blocks_are_owed_until_they_part";
    if !able(NAME) || !need(NAME, &[Need::Tool("mkfs.xfs")]) {
        return;
    }
    const DATA: i64 = 64 * MIB;
    let world = World::new();
    mount_pool(&world, "xfs", 1 << 30);
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let room = || async {
        // What was written lately is not on disk yet.
        std::process::Command::new("sync").arg("-f").arg(world.pool()).status().expect("sync");
        client.get_capacity(GetCapacityRequest::default()).await.unwrap().available_capacity
    };
    // Metadata of the pool's own filesystem takes a little here and there.
    let near = |a: i64, b: i64| (a - b).abs() < 4 * MIB;
    let raw = || block(Mode::SingleNodeWriter);
    let id = make(client, "a", DATA, raw()).await;
    let fill = |id: &str| {
        use std::io::Write as _;
        let mut file = std::fs::OpenOptions::new().write(true).open(image(&world, id)).unwrap();
        file.write_all(&vec![7; DATA as usize]).unwrap();
        file.sync_all().unwrap();
    };
    fill(&id);
    let full = room().await;
    let request = copy_of(from_volume(&id), "b", DATA, raw());
    let copy = client.create_volume(request).await.unwrap().volume.unwrap().volume_id;
    let shared = room().await;
    assert!(near(shared, full - DATA), "{full} {shared}");
    // The copy writes all its blocks: now it has them, and owes nothing.
    fill(&copy);
    let parted = room().await;
    assert!(near(parted, shared), "{shared} {parted}");
    client.delete_volume(delete(&id)).await.unwrap();
    // XFS frees the blocks of a deleted file in the background.
    let began = std::time::Instant::now();
    let mut alone = room().await;
    while !near(alone, full) && began.elapsed() < std::time::Duration::from_secs(30) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        alone = room().await;
    }
    assert!(near(alone, full), "{full} {alone}");
}

/// What a thick volume has been given is its own: neither its snapshots nor its sources share it.
#[tokio::test(flavor = "multi_thread")]
async fn thick_volumes_share_no_blocks() {
    const NAME: &str = "thick_volumes_share_no_blocks";
    if !able(NAME) || !need(NAME, &[Need::Tool("mkfs.btrfs"), Need::Tool("filefrag")]) {
        return;
    }
    let world = World::new();
    mount_pool(&world, "btrfs", 1 << 30);
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let raw = || block(Mode::SingleNodeWriter);
    let thick = |request: CreateVolumeRequest| CreateVolumeRequest {
        parameters: [("provisioning".to_owned(), "thick".to_owned())].into(),
        ..request
    };
    let make_from = |request: CreateVolumeRequest| async move {
        client.create_volume(request).await.expect("made").volume.expect("set").volume_id
    };
    let shared = |id: &str| {
        let path = world.pool().join(format!("{id}.img"));
        let output = std::process::Command::new("filefrag").arg("-vs").arg(path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).contains("shared")
    };
    let fat = make_from(thick(create("fat", 8 * MIB, raw()))).await;
    let thin = make_from(create("thin", 8 * MIB, raw())).await;
    for id in [&fat, &thin] {
        use std::io::Write as _;
        let mut file = std::fs::OpenOptions::new().write(true).open(image(&world, id)).unwrap();
        file.write_all(&vec![7; 4 << 20]).unwrap();
        file.sync_all().unwrap();
    }
    let of_fat = cut(client, "s", &fat).await.snapshot_id;
    let fat_of_thin = make_from(thick(copy_of(from_volume(&thin), "ft", 8 * MIB, raw()))).await;
    for id in [&fat, &of_fat, &thin, &fat_of_thin] {
        assert!(!shared(id), "{id} shares blocks");
    }
    let allocated = std::os::unix::fs::MetadataExt::blocks(
        &image(&world, &fat_of_thin).metadata().expect("there"),
    );
    assert_eq!(allocated * 512, 8 << 20, "all of it is set aside");
    // Others do share.
    let of_thin = cut(client, "t", &thin).await.snapshot_id;
    assert!(shared(&thin) && shared(&of_thin));
}
