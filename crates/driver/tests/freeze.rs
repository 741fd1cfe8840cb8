//! Freezing: only while a copy is made, thawed whatever happens, and never a freeze of another
//! program.

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::*;
use longshore_csi::v1::volume_capability::access_mode::Mode;
use longshore_driver::DriverKind;
use longshore_testing::{Need, need};
use tonic::Code;

#[test]
fn freeze_holder() {
    hold_freeze();
}

fn able_to_freeze(test: &str) -> bool {
    able(test) && need(test, &[Need::Tool("fsfreeze")])
}

fn fsfreeze(how: &str, at: &str) -> bool {
    Command::new("fsfreeze").args([how, at]).output().expect("fsfreeze").status.success()
}

fn note(world: &World) -> Vec<String> {
    world.files().into_iter().filter(|name| name.starts_with(".frz-")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freeze_by_another_program_is_not_thawed() {
    const NAME: &str = "a_freeze_by_another_program_is_not_thawed";
    if !able_to_freeze(NAME) {
        return;
    }
    let world = World::new();
    let config = world.config(DriverKind::Local, "n1");
    let running = start(config.clone()).await;
    let (id, staging) = make_staged(&world, &running.client, "a", 8 * MIB, writer()).await;
    let before = world.files();
    assert!(fsfreeze("--freeze", &staging));
    let refusal = running.client.create_snapshot(snapshot("s", &id)).await;
    assert!(format!("{refusal:?}").contains("somebody else"), "{refusal:?}");
    assert_eq!(refused(refusal), Code::FailedPrecondition);
    assert_eq!(world.files(), before, "a refusal left something");
    // Nor does a start touch it.
    stop(running).await;
    let running = start(config).await;
    assert!(fsfreeze("--unfreeze", &staging), "it was thawed");
    cut(&running.client, "s", &id).await;
    writable(&staging).await.expect("after a snapshot");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_both_processes_left_frozen_is_thawed_at_start() {
    const NAME: &str = "what_both_processes_left_frozen_is_thawed_at_start";
    if !able_to_freeze(NAME) {
        return;
    }
    let world = World::new();
    let config = world.config(DriverKind::Local, "n1");
    let running = start(config.clone()).await;
    let (id, staging) = make_staged(&world, &running.client, "a", 8 * MIB, writer()).await;
    stop(running).await;
    // As a killed holder leaves it.
    let volume = longshore_driver::id::VolumeId::parse(&id).unwrap();
    let name = longshore_driver::pool::names::freeze(&volume, "n1");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let cases = [
        (format!("frozen {boot}"), true),
        (format!("frozen {boot}thawed {boot}"), false),
        ("frozen before-the-last-reboot\n".to_owned(), false),
    ];
    for (text, ours) in cases {
        assert!(fsfreeze("--freeze", &staging));
        std::fs::write(world.pool().join(&name), &text).unwrap();
        let running = start(config.clone()).await;
        assert_eq!(fsfreeze("--unfreeze", &staging), !ours, "{text}");
        assert_eq!(note(&world), Vec::<String>::new());
        stop(running).await;
    }
    writable(&staging).await.expect("at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_takes_too_long_is_given_up() {
    const NAME: &str = "a_copy_that_takes_too_long_is_given_up";
    if !able_to_freeze(NAME) {
        return;
    }
    let world = World::new();
    let mut config = world.config(DriverKind::Local, "n1");
    let running = start(config.clone()).await;
    let (id, staging) = make_staged(&world, &running.client, "a", 96 * MIB, writer()).await;
    std::fs::write(Path::new(&staging).join("data"), vec![7; 64 << 20]).unwrap();
    stop(running).await;

    config.copy_budget = Duration::from_millis(1);
    let running = start(config.clone()).await;
    for _ in 0..3 {
        let refusal = running.client.create_snapshot(snapshot("s", &id)).await;
        let text = format!("{refusal:?}");
        match refused(refusal) {
            Code::FailedPrecondition => assert!(text.contains("stop the pod"), "{text}"),
            // The holder of the attempt before is still on its way out.
            code => assert_eq!(code, Code::Aborted, "{text}"),
        }
        writable(&staging).await.expect("too slow");
        assert!(world.files().iter().all(|name| !name.contains("snap-")), "{:?}", world.files());
    }
    // Without a pod that waits there is no hurry. The last holder may still be on its way out.
    for tries in 0.. {
        match running.client.node_unstage_volume(unstage(&id, &staging)).await {
            Ok(_) => break,
            Err(error) => assert!(tries < 600, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let snap = cut(&running.client, "s", &id).await;
    running.client.delete_snapshot(delete_snapshot(&snap.snapshot_id)).await.unwrap();
    // Without a program to hold it, nothing that is mounted is copied.
    running.client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    stop(running).await;
    config.freeze_holder = None;
    let running = start(config).await;
    let refusal = running.client.create_snapshot(snapshot("s", &id)).await;
    assert_eq!(refused(refusal), Code::FailedPrecondition);
    let left = world.files();
    assert!(left.iter().all(|name| !name.contains("snap-")), "{left:?}");
    assert_eq!(note(&world), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_devices_in_use_are_copied_only_by_sharing_blocks() {
    const NAME: &str = "raw_devices_in_use_are_copied_only_by_sharing_blocks";
    if !able(NAME) || !need(NAME, &[Need::Tool("mkfs.btrfs")]) {
        return;
    }
    let raw = || block(Mode::SingleNodeWriter);
    for shares in [false, true] {
        let world = World::new();
        if shares {
            mount_pool(&world, "btrfs", 512 << 20);
        }
        let running = start(world.config(DriverKind::Local, "n1")).await;
        let client = &running.client;
        let (id, staging) = make_staged(&world, client, "a", 4 * MIB, raw()).await;
        let target = world.at("t");
        client.node_publish_volume(publish(&id, &staging, &target, raw())).await.unwrap();
        // Into the page cache of the device only.
        let mut device = std::fs::OpenOptions::new().write(true).open(&target).unwrap();
        device.write_all(&vec![7; 1 << 20]).unwrap();
        let snap = client.create_snapshot(snapshot("s", &id)).await;
        if shares {
            let snap = snap.unwrap().snapshot.unwrap().snapshot_id;
            let copied = std::fs::read(world.pool().join(format!("{snap}.img"))).unwrap();
            assert!(copied[..1 << 20].iter().all(|&b| b == 7), "not flushed");
        } else {
            assert_eq!(refused(snap), Code::FailedPrecondition);
        }
        // A group promises the order of writes, which a raw device in use cannot keep.
        let other = make(client, "b", 4 * MIB, raw()).await;
        let together = client.create_volume_group_snapshot(group("g", &[&id, &other])).await;
        assert_eq!(refused(together), Code::FailedPrecondition, "shares: {shares}");
        drop(device);
        client.node_unpublish_volume(unpublish(&id, &target)).await.unwrap();
        client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
        client.create_volume_group_snapshot(group("g", &[&id, &other])).await.expect("at rest");
        let left: Vec<PathBuf> = world.loops();
        assert_eq!(left.len(), usize::from(shares), "{left:?}");
    }
}
