//! Growth: the image, the device and the filesystem, and success only when it can be seen.

mod common;

use std::path::Path;

use common::{grow_on_node as expand, *};
use longshore_csi::v1::volume_capability::access_mode::Mode;
use longshore_csi::v1::*;
use longshore_driver::{DriverKind, FsType};
use tonic::Code;

fn range(required_bytes: i64, limit_bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes, limit_bytes })
}

fn controller_expand(id: &str, bytes: i64, limit: i64) -> ControllerExpandVolumeRequest {
    ControllerExpandVolumeRequest {
        volume_id: id.to_owned(),
        capacity_range: range(bytes, limit),
        ..Default::default()
    }
}

/// Bytes that a user of the mounted filesystem sees.
fn seen(path: &str) -> i64 {
    let stat = rustix::fs::statvfs(path).expect("measured");
    (stat.f_blocks * stat.f_frsize).cast_signed()
}

#[tokio::test(flavor = "multi_thread")]
async fn xfs_and_btrfs_grow_under_their_user() {
    if !able_all("xfs_and_btrfs_grow_under_their_user") {
        return;
    }
    let world = World::new();
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    for (fstype, small, large) in
        [(FsType::Xfs, 320 * MIB, 512 * MIB), (FsType::Btrfs, 128 * MIB, 256 * MIB)]
    {
        let id = make(client, fstype.as_str(), small, writer_of(fstype)).await;
        let staging = world.dir(&format!("s-{fstype}"));
        client.node_stage_volume(stage(&id, &staging, writer_of(fstype))).await.unwrap();
        std::fs::write(Path::new(&staging).join("f"), "kept").unwrap();
        let before = seen(&staging);
        for _ in 0..2 {
            let grown = client.node_expand_volume(expand(&id, &staging, large)).await.unwrap();
            assert_eq!(grown.capacity_bytes, large, "{fstype}");
        }
        assert!(seen(&staging) >= before + (large - small) - MIB, "{fstype}: {}", seen(&staging));
        assert_eq!(std::fs::read_to_string(Path::new(&staging).join("f")).unwrap(), "kept");
        // A smaller request is fulfilled by what is there; nothing shrinks.
        let again = client.node_expand_volume(expand(&id, &staging, small)).await.unwrap();
        assert_eq!(again.capacity_bytes, large);
        client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
        assert_eq!(image(&world, &id).metadata().unwrap().len(), large.cast_unsigned());
    }
}

/// The kernel refuses sizes below that for a mounted btrfs.
#[tokio::test(flavor = "multi_thread")]
async fn small_btrfs_grows_to_256_mib_at_least() {
    if !able_all("small_btrfs_grows_to_256_mib_at_least") {
        return;
    }
    let world = World::new();
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let id = make(client, "a", 128 * MIB, writer_of(FsType::Btrfs)).await;
    let staging = world.dir("staging");
    client.node_stage_volume(stage(&id, &staging, writer_of(FsType::Btrfs))).await.unwrap();
    let mut limited = expand(&id, &staging, 160 * MIB);
    limited.capacity_range = range(160 * MIB, 200 * MIB);
    assert_eq!(refused(client.node_expand_volume(limited).await), Code::OutOfRange);
    let grown = client.node_expand_volume(expand(&id, &staging, 160 * MIB)).await.unwrap();
    assert_eq!(grown.capacity_bytes, 256 * MIB);
    assert_eq!(seen(&staging), 256 * MIB);
}

/// Whether the kernel lets this process grow a mounted ext4.
fn grows_ext4_online() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("CapEff");
    let bits = u64::from_str_radix(line.trim(), 16).expect("hexadecimal");
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    bits & CAP_SYS_RESOURCE != 0
}

#[tokio::test(flavor = "multi_thread")]
async fn ext4_grows_now_or_when_the_pod_restarts() {
    let Some(world) = World::for_test("ext4_grows_now_or_when_the_pod_restarts") else { return };
    let config = world.config(DriverKind::Local, "n1");
    let running = start(config.clone()).await;
    let client = &running.client;
    let staging = world.dir("staging");
    let id = make(client, "a", 20 * MIB, writer()).await;
    client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    std::fs::write(Path::new(&staging).join("f"), "kept").unwrap();
    let before = seen(&staging);
    let grown = client.node_expand_volume(expand(&id, &staging, 40 * MIB)).await;
    match grows_ext4_online() {
        true => assert_eq!(grown.unwrap().capacity_bytes, 40 * MIB),
        false => {
            let text = grown.as_ref().map(|_| ()).unwrap_err().to_string();
            assert!(text.contains("grows when the pod restarts"), "{text}");
            assert_eq!(refused(grown), Code::FailedPrecondition);
            assert_eq!(seen(&staging), before);
        }
    }
    // Whatever happened is remembered, also by the next process.
    client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
    stop(running).await;
    let running = start(config).await;
    let client = &running.client;
    client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    assert!(seen(&staging) >= before + 15 * MIB, "{} after {before}", seen(&staging));
    assert_eq!(std::fs::read_to_string(Path::new(&staging).join("f")).unwrap(), "kept");
    let grown = client.node_expand_volume(expand(&id, &staging, 40 * MIB)).await.unwrap();
    assert_eq!(grown.capacity_bytes, 40 * MIB);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_device_grows_at_once() {
    let Some(world) = World::for_test("a_raw_device_grows_at_once") else { return };
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let raw = || block(Mode::SingleNodeWriter);
    let id = make(client, "raw", 4 * MIB, raw()).await;
    let (staging, target) = (world.dir("staging"), world.at("device"));
    client.node_stage_volume(stage(&id, &staging, raw())).await.unwrap();
    // Staged and published nowhere: named by its staging path.
    client.node_expand_volume(expand(&id, &staging, 6 * MIB)).await.unwrap();
    client.node_publish_volume(publish(&id, &staging, &target, raw())).await.unwrap();
    client.node_expand_volume(expand(&id, &target, 8 * MIB)).await.unwrap();
    let stats = stats(&id, &target);
    assert_eq!(client.node_get_volume_stats(stats).await.unwrap().usage[0].total, 8 * MIB);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_grows_a_shared_volume_and_the_node_follows() {
    if !able_all("the_controller_grows_a_shared_volume_and_the_node_follows") {
        return;
    }
    let world = World::new();
    let mut config = world.config(DriverKind::Shared, "n1");
    config.pools[0].limit_bytes = Some(600 << 20);
    let running = start(config).await;
    let client = &running.client;
    let xfs = || writer_of(FsType::Xfs);
    let id = make(client, "a", 320 * MIB, xfs()).await;
    let staging = world.dir("staging");
    client.controller_publish_volume(attach(&id, "n1", xfs())).await.unwrap();
    client.node_stage_volume(stage(&id, &staging, xfs())).await.unwrap();

    // The node does not run ahead of the controller.
    let early = client.node_expand_volume(expand(&id, &staging, 400 * MIB)).await;
    assert_eq!(refused(early), Code::OutOfRange);
    let bad = [
        (controller_expand(&id, 700 * MIB, 0), Code::OutOfRange),
        (controller_expand(&id, MIB, 2 * MIB), Code::OutOfRange),
        (controller_expand(&id, -1, 0), Code::InvalidArgument),
        (controller_expand("vol-1", 400 * MIB, 0), Code::NotFound),
        (controller_expand("", 400 * MIB, 0), Code::InvalidArgument),
    ];
    for (request, code) in bad {
        assert_eq!(refused(client.controller_expand_volume(request).await), code);
    }
    let large = client.controller_expand_volume(controller_expand(&id, 700 * MIB, 0)).await;
    let text = large.unwrap_err().to_string();
    assert!(text.contains("Ask for 600Mi or less"), "{text}");
    assert_eq!(image(&world, &id).metadata().unwrap().len(), 320 << 20);
    for _ in 0..2 {
        let grown =
            client.controller_expand_volume(controller_expand(&id, 400 * MIB, 0)).await.unwrap();
        assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (400 * MIB, true));
    }
    let capacity = client.get_capacity(GetCapacityRequest::default()).await.unwrap();
    assert_eq!(capacity.available_capacity, 200 * MIB, "growth is accounted for");
    let before = seen(&staging);
    client.node_expand_volume(expand(&id, &staging, 400 * MIB)).await.unwrap();
    assert!(seen(&staging) >= before + 79 * MIB);

    let gone = world.at("nowhere");
    let nowhere = client.node_expand_volume(expand(&id, &gone, 400 * MIB)).await;
    assert_eq!(refused(nowhere), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn growth_that_was_recorded_and_not_made_is_made_up_for() {
    let Some(world) = World::for_test("growth_that_was_recorded_and_not_made_is_made_up_for")
    else {
        return;
    };
    let config = world.config(DriverKind::Local, "n1");
    let running = start(config.clone()).await;
    let id = make(&running.client, "a", 20 * MIB, writer()).await;
    stop(running).await;
    // As a crash between the record and the image leaves it.
    let record = world.pool().join(format!("{id}.json"));
    let text = std::fs::read_to_string(&record).unwrap();
    let mut changed: serde_json::Value = serde_json::from_str(&text).unwrap();
    changed["capacityBytes"] = (40 * MIB).into();
    // A record without a sum is one of an earlier version, and is believed.
    changed.as_object_mut().unwrap().remove("sum").unwrap();
    std::fs::write(&record, changed.to_string()).unwrap();
    let running = start(config).await;
    let staging = world.dir("staging");
    running.client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    assert!(seen(&staging) > 30 * MIB, "{}", seen(&staging));
}
