//! Inline ephemeral volumes: they come and go with one path of one pod.

mod common;

use std::path::Path;

use common::*;
use longshore_csi::v1::volume_capability::access_mode::Mode;
use longshore_csi::v1::*;
use longshore_driver::DriverKind;
use tonic::Code;

fn inline(id: &str, target: &str, context: &[(&str, &str)]) -> NodePublishVolumeRequest {
    let mut request = publish(id, "", target, mount(Mode::SingleNodeWriter));
    request.volume_context.insert("csi.storage.k8s.io/ephemeral".into(), "true".into());
    request.volume_context.insert("csi.storage.k8s.io/pod.name".into(), "p".into());
    for (key, value) in context {
        request.volume_context.insert((*key).to_owned(), (*value).to_owned());
    }
    request
}

fn id(n: u8) -> String {
    format!("csi-{}", format!("{n:02x}").repeat(32))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inline_volume_lives_as_long_as_its_path() {
    let Some(world) = World::for_test("an_inline_volume_lives_as_long_as_its_path") else { return };
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let (id, target) = (id(1), world.at("target"));
    for round in 0..2 {
        for _ in 0..2 {
            client.node_publish_volume(inline(&id, &target, &[("size", "8Mi")])).await.unwrap();
        }
        assert_eq!((world.mounts().len(), world.loops().len()), (1, 1));
        let file = Path::new(&target).join("f");
        assert!(!file.exists(), "round {round}: old data");
        std::fs::write(&file, "x").unwrap();
        let usage = client.node_get_volume_stats(stats(&id, &target)).await.unwrap().usage;
        assert!((4 * MIB..=8 * MIB).contains(&usage[0].total), "{usage:?}");
        // It belongs to its pod and is not listed.
        let list = client.list_volumes(ListVolumesRequest::default()).await.unwrap();
        assert_eq!(list.entries.len(), 0);
        for _ in 0..2 {
            client.node_unpublish_volume(unpublish(&id, &target)).await.unwrap();
        }
        world.assert_clean();
        assert_eq!(world.files(), Vec::<String>::new());
        assert!(!Path::new(&target).exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_inline_volumes_leave_nothing() {
    let Some(world) = World::for_test("bad_inline_volumes_leave_nothing") else { return };
    let mut config = world.config(DriverKind::Local, "n1");
    config.pools[0].limit_bytes = Some(64 << 20);
    let running = start(config).await;
    let client = &running.client;
    let target = world.at("target");
    let mut raw = inline(&id(2), &target, &[]);
    raw.volume_capability = Some(block(Mode::SingleNodeWriter));
    let cases = [
        ("a pool", inline(&id(2), &target, &[("pool", "default")]), Code::InvalidArgument),
        ("no size", inline(&id(2), &target, &[("size", "big")]), Code::InvalidArgument),
        ("zero", inline(&id(2), &target, &[("size", "0")]), Code::InvalidArgument),
        ("filesystem", inline(&id(2), &target, &[("fstype", "zfs")]), Code::InvalidArgument),
        ("too large", inline(&id(2), &target, &[("size", "1Gi")]), Code::ResourceExhausted),
        ("raw", raw, Code::InvalidArgument),
        ("no id", inline("", &target, &[("size", "8Mi")]), Code::InvalidArgument),
        ("a path", inline(&id(2), "/a/../b", &[("size", "8Mi")]), Code::InvalidArgument),
    ];
    for (name, request, code) in cases {
        assert_eq!(refused(client.node_publish_volume(request).await), code, "{name}");
        assert_eq!(world.files(), Vec::<String>::new(), "{name}");
        assert!(!Path::new(&target).exists(), "{name}");
    }
    // Something in the way: what was made for it goes again.
    std::fs::write(&target, "a file").unwrap();
    let got = client.node_publish_volume(inline(&id(2), &target, &[("size", "8Mi")])).await;
    assert_eq!(refused(got), Code::InvalidArgument);
    assert_eq!(world.files(), Vec::<String>::new());
    world.assert_clean();

    let shared = World::new();
    let running = start(shared.config(DriverKind::Shared, "n1")).await;
    let got = running.client.node_publish_volume(inline(&id(2), &shared.at("t"), &[])).await;
    assert_eq!(refused(got), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_reboot_inline_volumes_are_gone() {
    let Some(world) = World::for_test("after_a_reboot_inline_volumes_are_gone") else { return };
    let config = world.config(DriverKind::Local, "n1");
    let running = start(config.clone()).await;
    let (id, target) = (id(3), world.at("target"));
    running.client.node_publish_volume(inline(&id, &target, &[("size", "8Mi")])).await.unwrap();
    // A new process alone changes nothing for a running pod.
    stop(running).await;
    let running = start(config.clone()).await;
    assert_eq!(world.mounts().len(), 1);
    stop(running).await;
    world.reboot();
    let running = start(config).await;
    assert_eq!(world.files(), Vec::<String>::new());
    running.client.node_unpublish_volume(unpublish(&id, &target)).await.unwrap();
    assert!(!Path::new(&target).exists());
}
