//! The `shared` driver: one pool, several nodes, recorded exclusive attachment.

mod common;

use std::path::Path;

use common::*;
use longshore_csi::v1::volume_capability::access_mode::Mode;
use longshore_csi::v1::*;
use longshore_driver::{DriverKind, Mode as DriverMode};
use tonic::Code;

#[test]
fn freeze_holder() {
    hold_freeze();
}

async fn two_nodes(world: &World) -> (Running, Running) {
    let first = start(world.config(DriverKind::Shared, "n1")).await;
    let mut config = world.config(DriverKind::Shared, "n2");
    config.mode = DriverMode::Node;
    (first, start(config).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_at_a_time() {
    let Some(world) = World::for_test("one_node_at_a_time") else { return };
    let (first, second) = two_nodes(&world).await;
    let controller = &first.client;
    let id = make(controller, "a", 4 * MIB, writer()).await;
    let (s1, s2) = (world.dir("s1"), world.dir("s2"));

    // Without ControllerPublishVolume no node stages.
    assert_eq!(
        refused(first.client.node_stage_volume(stage(&id, &s1, writer())).await),
        Code::FailedPrecondition
    );
    for _ in 0..2 {
        controller.controller_publish_volume(attach(&id, "n1", writer())).await.unwrap();
    }
    assert_eq!(
        refused(controller.controller_publish_volume(attach(&id, "n2", writer())).await),
        Code::FailedPrecondition
    );
    let other = ControllerPublishVolumeRequest { readonly: true, ..attach(&id, "n1", writer()) };
    assert_eq!(refused(controller.controller_publish_volume(other).await), Code::AlreadyExists);
    assert_eq!(
        refused(second.client.node_stage_volume(stage(&id, &s2, writer())).await),
        Code::FailedPrecondition
    );

    first.client.node_stage_volume(stage(&id, &s1, writer())).await.unwrap();
    std::fs::write(Path::new(&s1).join("f"), "from n1").unwrap();
    // The leave does not end while the node has the volume.
    assert_eq!(
        refused(controller.controller_unpublish_volume(detach(&id, "n1")).await),
        Code::FailedPrecondition
    );
    assert_eq!(
        refused(controller.controller_unpublish_volume(detach(&id, "")).await),
        Code::FailedPrecondition
    );
    first.client.node_unstage_volume(unstage(&id, &s1)).await.unwrap();
    assert_eq!(refused(controller.delete_volume(delete(&id)).await), Code::FailedPrecondition);
    for _ in 0..2 {
        controller.controller_unpublish_volume(detach(&id, "n1")).await.unwrap();
    }

    // Now it is the other node's, with the data.
    controller.controller_publish_volume(attach(&id, "n2", writer())).await.unwrap();
    let listed = controller.list_volumes(ListVolumesRequest::default()).await.unwrap();
    assert_eq!(listed.entries[0].status.as_ref().unwrap().published_node_ids, ["n2"]);
    second.client.node_stage_volume(stage(&id, &s2, writer())).await.unwrap();
    assert_eq!(std::fs::read_to_string(Path::new(&s2).join("f")).unwrap(), "from n1");
    assert_eq!(
        refused(first.client.node_stage_volume(stage(&id, &s1, writer())).await),
        Code::FailedPrecondition
    );
    second.client.node_unstage_volume(unstage(&id, &s2)).await.unwrap();
    controller.controller_unpublish_volume(detach(&id, "")).await.unwrap();
    controller.delete_volume(delete(&id)).await.unwrap();
    world.assert_clean();
    assert_eq!(world.files(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_pods_lets_go_of_everything() {
    let Some(world) = World::for_test("a_node_without_pods_lets_go_of_everything") else { return };
    let (first, second) = two_nodes(&world).await;
    let controller = &first.client;
    let raw_access = || block(Mode::SingleNodeWriter);
    let raw = make(controller, "raw", 4 * MIB, raw_access()).await;
    let files = make(controller, "files", 4 * MIB, writer()).await;
    let (s1, s2) = (world.dir("s1"), world.dir("s2"));
    controller.controller_publish_volume(attach(&raw, "n2", raw_access())).await.unwrap();
    controller.controller_publish_volume(attach(&files, "n2", writer())).await.unwrap();
    second.client.node_stage_volume(stage(&raw, &s1, raw_access())).await.unwrap();
    second.client.node_stage_volume(stage(&files, &s2, writer())).await.unwrap();
    // Nothing shows that the raw volume is in use; it is staged, and that is enough for this.
    assert_eq!(second.driver.cleanup_orphans().unwrap(), 0);
    // What is mounted is not taken away.
    let error = second.driver.evacuate().unwrap_err().to_string();
    assert!(error.contains(&files) && error.contains("still in use on node n2"), "{error}");
    assert!(error.contains("held by the mount at") && error.contains(&s2), "{error}");
    run("umount", &[&s2]);
    second.driver.evacuate().unwrap();
    assert_eq!(world.volume_loops(), Vec::<std::path::PathBuf>::new());
    for id in [&raw, &files] {
        controller.controller_unpublish_volume(detach(id, "n2")).await.unwrap();
        controller.delete_volume(delete(id)).await.unwrap();
    }
    world.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn several_nodes_may_read_one_volume() {
    let Some(world) = World::for_test("several_nodes_may_read_one_volume") else { return };
    let (first, second) = two_nodes(&world).await;
    let controller = &first.client;
    let id = make(controller, "a", 4 * MIB, writer()).await;
    let (s1, s2) = (world.dir("s1"), world.dir("s2"));
    let reader = || mount(Mode::MultiNodeReaderOnly);

    // Blank: a writer has to format it first.
    controller.controller_publish_volume(attach(&id, "n1", reader())).await.unwrap();
    assert_eq!(
        refused(first.client.node_stage_volume(stage(&id, &s1, reader())).await),
        Code::FailedPrecondition
    );
    controller.controller_unpublish_volume(detach(&id, "n1")).await.unwrap();
    controller.controller_publish_volume(attach(&id, "n1", writer())).await.unwrap();
    first.client.node_stage_volume(stage(&id, &s1, writer())).await.unwrap();
    std::fs::write(Path::new(&s1).join("f"), "x").unwrap();
    first.client.node_unstage_volume(unstage(&id, &s1)).await.unwrap();
    controller.controller_unpublish_volume(detach(&id, "n1")).await.unwrap();

    for (running, node, staging) in [(&first, "n1", &s1), (&second, "n2", &s2)] {
        controller.controller_publish_volume(attach(&id, node, reader())).await.unwrap();
        for _ in 0..2 {
            running.client.node_stage_volume(stage(&id, staging, reader())).await.unwrap();
        }
        assert_eq!(std::fs::read_to_string(Path::new(staging).join("f")).unwrap(), "x");
        assert!(std::fs::write(Path::new(staging).join("f"), "y").is_err());
    }
    assert_eq!(world.loops().len(), 2);
    for (running, staging) in [(&first, &s1), (&second, &s2)] {
        running.client.node_unstage_volume(unstage(&id, staging)).await.unwrap();
    }
    world.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_have_limits_that_survive_a_restart() {
    let Some(world) = World::for_test("nodes_have_limits_that_survive_a_restart") else { return };
    let mut config = world.config(DriverKind::Shared, "n1");
    config.max_volumes = 2;
    let mut running = start(config.clone()).await;
    let ids = [
        make(&running.client, "a", 4 * MIB, writer()).await,
        make(&running.client, "b", 4 * MIB, writer()).await,
        make(&running.client, "c", 4 * MIB, writer()).await,
    ];
    for id in &ids[..2] {
        running.client.controller_publish_volume(attach(id, "n1", writer())).await.unwrap();
    }
    for _ in 0..2 {
        let third = running.client.controller_publish_volume(attach(&ids[2], "n1", writer())).await;
        assert_eq!(refused(third), Code::ResourceExhausted);
        stop(running).await;
        running = start(config.clone()).await;
    }
    running.client.controller_unpublish_volume(detach(&ids[0], "n1")).await.unwrap();
    running.client.controller_publish_volume(attach(&ids[2], "n1", writer())).await.unwrap();
    assert_eq!(
        refused(
            running.client.controller_publish_volume(attach(&ids[0], "nowhere", writer())).await
        ),
        Code::NotFound
    );
}

/// A volume that the second node has staged and written to; nothing is flushed.
async fn use_on(world: &World, nodes: (&Running, &Running), name: &str) -> (String, String) {
    let id = make(&nodes.0.client, name, 8 * MIB, writer()).await;
    nodes.0.client.controller_publish_volume(attach(&id, "n2", writer())).await.expect("used");
    let staging = world.dir(&format!("staging-{name}"));
    nodes.1.client.node_stage_volume(stage(&id, &staging, writer())).await.expect("used");
    std::fs::write(Path::new(&staging).join("f"), name).expect("used");
    (id, staging)
}

/// The driver that has a volume mounted holds it still for a controller in another process.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_in_use_on_another_node_is_copied() {
    let Some(world) = World::for_test("a_volume_in_use_on_another_node_is_copied") else { return };
    let (first, second) = two_nodes(&world).await;
    let controller = &first.client;
    let (a, at_a) = use_on(&world, (&first, &second), "a").await;
    let (b, at_b) = use_on(&world, (&first, &second), "b").await;
    let cut_here = cut(controller, "s", &a).await.snapshot_id;
    let together = controller.create_volume_group_snapshot(group("g", &[&a, &b])).await.unwrap();
    let together = together.group_snapshot.unwrap();
    let cloned = copy_of(from_volume(&b), "clone", 8 * MIB, writer());
    let cloned = controller.create_volume(cloned).await.unwrap().volume.unwrap().volume_id;
    for at in [&at_a, &at_b] {
        writable(at).await.expect("thawed");
        std::fs::write(Path::new(at).join("f"), "later").unwrap();
    }
    // Each copy has what was written before it, and is mounted here beside its source there.
    let mut copies = vec![(cloned, "b")];
    let members = together.snapshots.iter().map(|one| (&one.snapshot_id, &one.source_volume_id));
    for (snap, source) in members.chain([(&cut_here, &a)]) {
        let copy = copy_of(from_snapshot(snap), snap, 8 * MIB, writer());
        let copy = controller.create_volume(copy).await.unwrap().volume.unwrap().volume_id;
        copies.push((copy, if *source == a { "a" } else { "b" }));
    }
    for (copy, want) in &copies {
        let staging = world.dir("copy");
        controller.controller_publish_volume(attach(copy, "n1", writer())).await.unwrap();
        first.client.node_stage_volume(stage(copy, &staging, writer())).await.unwrap();
        assert_eq!(std::fs::read_to_string(Path::new(&staging).join("f")).unwrap(), *want);
        first.client.node_unstage_volume(unstage(copy, &staging)).await.unwrap();
    }
    let notes = |name: &String| name.starts_with(".frz-");
    assert_eq!(world.files().into_iter().filter(notes).count(), 0);

    // A driver that is not there cannot be asked, and the refusal says what to do.
    drop(second);
    let socket = world.pool().join(longshore_driver::pool::names::quiesce_socket("n2"));
    for tries in 0.. {
        if std::os::unix::net::UnixStream::connect(&socket).is_err() {
            break;
        }
        assert!(tries < 3_000, "the quiesce socket stays open");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let before = world.files();
    let refusal = controller.create_snapshot(snapshot("t", &a)).await;
    let text = format!("{refusal:?}");
    assert!(text.contains("in use on node n2") && text.contains("stop its pod"), "{text}");
    assert_eq!(refused(refusal), Code::FailedPrecondition);
    assert_eq!(world.files(), before, "a refusal left something");
    let mut config = world.config(DriverKind::Shared, "n2");
    config.mode = DriverMode::Node;
    let second = start(config).await;
    cut(controller, "t", &a).await;

    // A connection that sends nothing, or nonsense, does no harm.
    use std::io::Write;
    let silent = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    for nonsense in ["\n", "{}\n", "\"thaw\"\n", "{\"freeze\":1}\n", "{\"prepare\":\"../x\"}\n"] {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        stream.write_all(nonsense.as_bytes()).unwrap();
        assert_eq!(std::io::copy(&mut stream, &mut std::io::sink()).unwrap(), 0, "{nonsense:?}");
    }
    cut(controller, "u", &a).await;
    drop(silent);
    for (id, at) in [(&a, &at_a), (&b, &at_b)] {
        second.client.node_unstage_volume(unstage(id, at)).await.unwrap();
    }
    world.assert_clean();
}

/// As on one node: a raw device is flushed and shared, and never copied slowly.
#[tokio::test(flavor = "multi_thread")]
async fn a_raw_volume_in_use_on_another_node_is_copied_only_by_sharing_blocks() {
    if !able_all("a_raw_volume_in_use_on_another_node_is_copied_only_by_sharing_blocks") {
        return;
    }
    let raw = || block(Mode::SingleNodeWriter);
    for shares in [false, true] {
        let world = World::new();
        if shares {
            world.own_pool(longshore_driver::FsType::Btrfs, 512);
        }
        let (first, second) = two_nodes(&world).await;
        let controller = &first.client;
        let id = make(controller, "a", 4 * MIB, raw()).await;
        controller.controller_publish_volume(attach(&id, "n2", raw())).await.unwrap();
        let (staging, target) = (world.dir("s"), world.at("t"));
        second.client.node_stage_volume(stage(&id, &staging, raw())).await.unwrap();
        second.client.node_publish_volume(publish(&id, &staging, &target, raw())).await.unwrap();
        // Into the page cache of the device only.
        std::fs::OpenOptions::new()
            .write(true)
            .open(&target)
            .and_then(|mut device| std::io::Write::write_all(&mut device, &vec![7; 1 << 20]))
            .unwrap();
        let snap = controller.create_snapshot(snapshot("s", &id)).await;
        if shares {
            let snap = snap.unwrap().snapshot.unwrap().snapshot_id;
            let copied = std::fs::read(world.pool().join(format!("{snap}.img"))).unwrap();
            assert!(copied[..1 << 20].iter().all(|&b| b == 7), "not flushed");
        } else {
            assert!(format!("{snap:?}").contains("raw device"), "{snap:?}");
            assert_eq!(refused(snap), Code::FailedPrecondition);
        }
        second.client.node_unpublish_volume(unpublish(&id, &target)).await.unwrap();
        second.client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
    }
}
