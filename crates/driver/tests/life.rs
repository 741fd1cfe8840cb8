//! A volume's whole life, with real images, loop devices, filesystems and mounts.

mod common;

use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use common::*;
use longshore_csi::v1::volume_capability::access_mode::Mode;
use longshore_csi::v1::*;
use longshore_driver::DriverKind;
use tonic::Code;

/// Every step twice, because every step may be repeated.
macro_rules! twice {
    ($call:expr) => {{
        $call.await.expect("first");
        $call.await.expect("again");
    }};
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filesystem_from_create_to_delete() {
    let Some(world) = World::for_test("a_filesystem_from_create_to_delete") else { return };
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let (staging, target) = (world.dir("staging"), world.at("target"));

    let id = make(client, "pvc-1", 10 * MIB, writer()).await;
    assert_eq!(make(client, "pvc-1", 10 * MIB, writer()).await, id);
    assert_eq!(world.files(), [format!("{id}.img"), format!("{id}.json")]);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&world.pool()), mode(&image(&world, &id))), (0o700, 0o600));

    for round in 0..2 {
        twice!(client.node_stage_volume(stage(&id, &staging, writer())));
        twice!(client.node_publish_volume(publish(&id, &staging, &target, writer())));
        assert_eq!(world.loops().len(), 1);
        assert_eq!(world.mounts().len(), 2);
        let file = Path::new(&target).join("data");
        if round == 0 {
            std::fs::write(&file, b"kept").unwrap();
        } else {
            assert_eq!(std::fs::read(&file).unwrap(), b"kept");
        }

        let usage = client.node_get_volume_stats(stats(&id, &target)).await.unwrap().usage;
        assert_eq!(usage.len(), 2);
        assert!(usage[0].total > 4 * MIB && usage[0].total <= 10 * MIB, "{usage:?}");

        // In use, so it stays.
        assert_eq!(refused(client.delete_volume(delete(&id)).await), Code::FailedPrecondition);
        assert_eq!(
            refused(client.node_unstage_volume(unstage(&id, &staging)).await),
            Code::FailedPrecondition
        );

        twice!(client.node_unpublish_volume(unpublish(&id, &target)));
        assert!(!Path::new(&target).exists());
        assert_eq!(refused(client.delete_volume(delete(&id)).await), Code::FailedPrecondition);
        twice!(client.node_unstage_volume(unstage(&id, &staging)));
        world.assert_clean();
    }

    twice!(client.delete_volume(delete(&id)));
    assert_eq!(world.files(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_device_from_create_to_delete() {
    let Some(world) = World::for_test("a_raw_device_from_create_to_delete") else { return };
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let (staging, target) = (world.dir("staging"), world.at("device"));
    let raw = || block(Mode::SingleNodeWriter);
    let id = make(client, "raw", 4 * MIB, raw()).await;

    twice!(client.node_stage_volume(stage(&id, &staging, raw())));
    twice!(client.node_publish_volume(publish(&id, &staging, &target, raw())));
    assert!(Path::new(&target).metadata().unwrap().file_type().is_block_device());
    let mut device = std::fs::OpenOptions::new().read(true).write(true).open(&target).unwrap();
    assert_eq!(device.seek(SeekFrom::End(0)).unwrap(), 4 << 20);
    device.seek(SeekFrom::Start(4096)).unwrap();
    device.write_all(b"raw bytes").unwrap();
    device.sync_all().unwrap();
    drop(device);

    let stats = stats(&id, &target);
    assert_eq!(client.node_get_volume_stats(stats).await.unwrap().usage[0].total, 4 * MIB);
    assert_eq!(
        refused(client.node_unstage_volume(unstage(&id, &staging)).await),
        Code::FailedPrecondition
    );
    twice!(client.node_unpublish_volume(unpublish(&id, &target)));
    assert!(!Path::new(&target).exists());
    // Staged and shown nowhere: still in use.
    assert_eq!(running.driver.cleanup_orphans().unwrap(), 0);
    assert_eq!(refused(client.delete_volume(delete(&id)).await), Code::FailedPrecondition);
    twice!(client.node_unstage_volume(unstage(&id, &staging)));
    world.assert_clean();

    // What was written is in the image, and a raw volume is never formatted.
    let mut file = std::fs::File::open(image(&world, &id)).unwrap();
    file.seek(SeekFrom::Start(4096)).unwrap();
    let mut bytes = [0; 9];
    file.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"raw bytes");
    assert_eq!(
        refused(client.node_stage_volume(stage(&id, &staging, writer())).await),
        Code::FailedPrecondition
    );
    twice!(client.delete_volume(delete(&id)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_publish_refuses_writes() {
    let Some(world) = World::for_test("a_read_only_publish_refuses_writes") else { return };
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let many = || mount(Mode::SingleNodeMultiWriter);
    let (id, staging) = make_staged(&world, client, "a", 4 * MIB, many()).await;
    let (rw, ro) = (world.at("rw"), world.at("ro"));
    let read = NodePublishVolumeRequest { readonly: true, ..publish(&id, &staging, &ro, many()) };
    client.node_publish_volume(publish(&id, &staging, &rw, many())).await.unwrap();
    twice!(client.node_publish_volume(read.clone()));
    std::fs::write(Path::new(&rw).join("f"), "x").unwrap();
    assert_eq!(std::fs::read(Path::new(&ro).join("f")).unwrap(), b"x");
    let refused_write = std::fs::write(Path::new(&ro).join("f"), "y").unwrap_err();
    assert_eq!(refused_write.kind(), ErrorKind::ReadOnlyFilesystem);
    // The same target with other access is another volume as far as its pod can tell.
    let other = NodePublishVolumeRequest { readonly: false, ..read };
    assert_eq!(refused(client.node_publish_volume(other).await), Code::AlreadyExists);

    // Raw devices refuse writes themselves.
    let raw = || block(Mode::SingleNodeWriter);
    let (device, staging) = make_staged(&world, client, "b", MIB, raw()).await;
    let target = world.at("device");
    let read =
        NodePublishVolumeRequest { readonly: true, ..publish(&device, &staging, &target, raw()) };
    twice!(client.node_publish_volume(read.clone()));
    let try_write = || std::fs::OpenOptions::new().write(true).open(&target)?.write_all(b"x");
    assert_eq!(try_write().unwrap_err().kind(), ErrorKind::PermissionDenied);
    client.node_unpublish_volume(unpublish(&device, &target)).await.unwrap();
    client.node_publish_volume(publish(&device, &staging, &target, raw())).await.unwrap();
    try_write().unwrap();

    // Nor does the mark stay on a device that others will use next.
    client.node_unpublish_volume(unpublish(&device, &target)).await.unwrap();
    client.node_publish_volume(read).await.unwrap();
    let node = world.loops().into_iter().find(|node| is_read_only(node)).expect("marked");
    client.node_unpublish_volume(unpublish(&device, &target)).await.unwrap();
    client.node_unstage_volume(unstage(&device, &staging)).await.unwrap();
    assert!(!world.loops().contains(&node), "still bound");
}

fn is_read_only(node: &Path) -> bool {
    let attribute = Path::new("/sys/block").join(node.file_name().expect("a name")).join("ro");
    std::fs::read_to_string(attribute).expect("sysfs").trim() == "1"
}

#[tokio::test(flavor = "multi_thread")]
async fn size_is_a_hard_limit() {
    let Some(world) = World::for_test("size_is_a_hard_limit") else { return };
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let (id, staging) = make_staged(&world, client, "a", 4 * MIB, writer()).await;
    let error = std::fs::write(Path::new(&staging).join("big"), vec![1; 8 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    // So does a raw device.
    let raw = || block(Mode::SingleNodeWriter);
    let (device, staged) = make_staged(&world, client, "b", 4 * MIB, raw()).await;
    let target = world.at("device");
    client.node_publish_volume(publish(&device, &staged, &target, raw())).await.unwrap();
    let mut node = std::fs::OpenOptions::new().write(true).open(&target).unwrap();
    let error = node.write_all(&vec![1; 8 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    node.sync_all().unwrap();
    run("sync", &["-f", &staging]);
    // The pool lost what was promised, and no more; its neighbours go on.
    for id in [&id, &device] {
        let stat = image(&world, id).metadata().unwrap();
        assert_eq!(stat.size(), 4 << 20);
        assert!(stat.blocks() * 512 <= (4 << 20) + (64 << 10), "{} blocks", stat.blocks());
    }
    let (_, neighbour) = make_staged(&world, client, "c", 4 * MIB, writer()).await;
    writable(&neighbour).await.unwrap();
}

/// What each mode of a process serves.
#[tokio::test(flavor = "multi_thread")]
async fn each_mode_has_its_services() {
    if !able("each_mode_has_its_services") {
        return;
    }
    use longshore_driver::Mode as DriverMode;
    let cases = [
        (DriverMode::All, true, true),
        (DriverMode::Controller, true, false),
        (DriverMode::Node, false, true),
    ];
    for kind in [DriverKind::Local, DriverKind::Shared] {
        for (mode, controls, stages) in cases {
            let world = World::new();
            let mut config = world.config(kind, "n1");
            (config.mode, config.max_volumes) = (mode, 8);
            let running = start(config).await;
            let client = &running.client;
            let served = |result: Result<(), longshore_csi::CsiError>| match result {
                Ok(()) => true,
                refusal => {
                    assert_eq!(refused(refusal), Code::Unimplemented);
                    false
                }
            };
            let request = ControllerGetCapabilitiesRequest {};
            let controller = client.controller_get_capabilities(request).await.map(drop);
            let groups = GroupControllerGetCapabilitiesRequest {};
            let groups = client.group_controller_get_capabilities(groups).await.map(drop);
            let node = client.node_get_info(NodeGetInfoRequest {}).await;
            if let Ok(info) = &node {
                assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("n1", 8));
            }
            let got = (served(controller), served(groups), served(node.map(drop)));
            assert_eq!(got, (controls, controls, stages), "{kind} {mode}");
            client.driver_name().await.expect("every process says who it is");
        }
    }
}

/// The table at NodePublishVolume: a second target of a staged volume, by access mode.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_target_is_allowed_or_refused_by_access_mode() {
    let Some(world) = World::for_test("a_second_target_is_allowed_or_refused_by_access_mode")
    else {
        return;
    };
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let cases = [
        (Mode::SingleNodeWriter, Some(Code::FailedPrecondition)),
        (Mode::SingleNodeReaderOnly, Some(Code::FailedPrecondition)),
        (Mode::SingleNodeSingleWriter, Some(Code::FailedPrecondition)),
        (Mode::SingleNodeMultiWriter, None),
    ];
    for (mode, want) in cases {
        let name = mode.as_str_name();
        let (id, staging) = make_staged(&world, client, name, 4 * MIB, mount(mode)).await;
        let (first, second) = (world.at(&format!("1-{name}")), world.at(&format!("2-{name}")));
        twice!(client.node_publish_volume(publish(&id, &staging, &first, mount(mode))));
        let got = client.node_publish_volume(publish(&id, &staging, &second, mount(mode))).await;
        match want {
            Some(code) => assert_eq!(refused(got), code, "{name}"),
            None => assert!(got.is_ok(), "{name}: {got:?}"),
        }
        assert_eq!(Path::new(&second).exists(), want.is_none(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_says_about_itself() {
    if !able("what_it_says_about_itself") {
        return;
    }
    for kind in [DriverKind::Local, DriverKind::Shared] {
        let world = World::new();
        let running = start(world.config(kind, "n1")).await;
        let client = &running.client;
        let local = kind == DriverKind::Local;
        assert_eq!(client.driver_name().await.unwrap(), kind.default_driver_name());
        let info = client.node_get_info(NodeGetInfoRequest {}).await.unwrap();
        assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("n1", 128));
        let key = "topology.local.csi.longshore.dev/node".to_owned();
        let here = local.then(|| Topology { segments: [(key, "n1".to_owned())].into() });
        assert_eq!(info.accessible_topology, here);

        let made =
            client.create_volume(create("a", 4 * MIB, writer())).await.unwrap().volume.unwrap();
        assert_eq!(made.accessible_topology, Vec::from_iter(here));
        let published =
            client.controller_publish_volume(attach(&made.volume_id, "n1", writer())).await;
        match local {
            true => assert_eq!(refused(published), Code::Unimplemented),
            false => assert!(published.is_ok()),
        }
        // Not implemented is said, not pretended.
        let expand =
            client.controller_expand_volume(ControllerExpandVolumeRequest::default()).await;
        let code = if local { Code::Unimplemented } else { Code::InvalidArgument };
        assert_eq!(refused(expand), code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_are_listed_in_pages_and_reduce_capacity() {
    let Some(world) = World::for_test("volumes_are_listed_in_pages_and_reduce_capacity") else {
        return;
    };
    let mut config = world.config(DriverKind::Local, "n1");
    config.pools[0].limit_bytes = Some(40 << 20);
    let running = start(config).await;
    let client = &running.client;
    let capacity = || async {
        let response = client.get_capacity(GetCapacityRequest::default()).await.unwrap();
        assert_eq!(response.maximum_volume_size, Some(response.available_capacity));
        response.available_capacity
    };
    assert_eq!(capacity().await, 40 * MIB);
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(make(client, &format!("v{n}"), 4 * MIB, writer()).await);
    }
    ids.sort();
    assert_eq!(capacity().await, 20 * MIB);
    assert_eq!(
        refused(client.create_volume(create("big", 24 * MIB, writer())).await),
        Code::ResourceExhausted
    );

    let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let request = ListVolumesRequest { max_entries: 2, starting_token: token };
        let page = client.list_volumes(request).await.unwrap();
        seen.extend(page.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id));
        pages += 1;
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!((seen, pages), (ids, 3));
    let bad = ListVolumesRequest { max_entries: 0, starting_token: "invalid-token".into() };
    assert_eq!(refused(client.list_volumes(bad).await), Code::Aborted);
    let bad = ListVolumesRequest { max_entries: -1, starting_token: String::new() };
    assert_eq!(refused(client.list_volumes(bad).await), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_make_one_volume() {
    let Some(world) = World::for_test("many_callers_make_one_volume") else { return };
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let calls = (0..24).map(|n| {
        let client = running.client.clone();
        tokio::spawn(async move {
            client.create_volume(create(&format!("v{}", n % 3), 4 * MIB, writer())).await
        })
    });
    let (mut made, mut pending) = (0, 0);
    for call in calls.collect::<Vec<_>>() {
        match call.await.unwrap() {
            Ok(_) => made += 1,
            error => {
                assert_eq!(refused(error), Code::Aborted);
                pending += 1;
            }
        }
    }
    assert!(made >= 3, "{made} made, {pending} told to come back");
    assert_eq!(world.files().len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_drivers_side_by_side() {
    if !able("two_drivers_side_by_side") {
        return;
    }
    let (one, two) = (World::new(), World::new());
    let first = start(one.config(DriverKind::Local, "n1")).await;
    let second = start(two.config(DriverKind::Local, "n1")).await;
    // The same name on the same node id: two pools, two volumes with one id.
    let mut staged = Vec::new();
    for (world, running) in [(&one, &first), (&two, &second)] {
        let (id, staging) = make_staged(world, &running.client, "same", 4 * MIB, writer()).await;
        std::fs::write(Path::new(&staging).join("who"), world.at("")).unwrap();
        staged.push((id, staging));
    }
    assert_eq!(staged[0].0, staged[1].0);
    assert_eq!(first.driver.cleanup_orphans().unwrap(), 0);
    let (id, staging) = &staged[0];
    first.client.node_unstage_volume(unstage(id, staging)).await.unwrap();
    first.client.delete_volume(delete(id)).await.unwrap();
    one.assert_clean();
    assert_eq!(two.loops().len(), 1);
    assert_eq!(std::fs::read_to_string(Path::new(&staged[1].1).join("who")).unwrap(), two.at(""));
}
