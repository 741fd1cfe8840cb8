//! What a killed driver or a rebooted machine leaves, and what the next start makes of it.

mod common;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use common::*;
use longshore_csi::v1::volume_capability::access_mode::Mode;
use longshore_driver::DriverKind;
use longshore_driver::id::VolumeId;
use longshore_driver::loopdev::{self, Binding, Tag};
use tonic::Code;

fn bind(world: &World, id: &str, node: &str) {
    let image =
        std::fs::OpenOptions::new().read(true).write(true).open(image(world, id)).expect("bound");
    let pool = world.pool().metadata().expect("a pool");
    let tag = Tag::new(&VolumeId::parse(id).expect("bound"), node, (pool.dev(), pool.ino()));
    loopdev::attach(&image, &tag, Binding { read_only: false, autoclear: false }).expect("bound");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_volume_outlives_the_driver() {
    let Some(world) = World::for_test("a_running_volume_outlives_the_driver") else { return };
    let config = world.config(DriverKind::Local, "n1");
    let running = start(config.clone()).await;
    let (staging, target) = (world.dir("staging"), world.at("target"));
    let id = make(&running.client, "a", 4 * MIB, writer()).await;
    running.client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    running.client.node_publish_volume(publish(&id, &staging, &target, writer())).await.unwrap();
    stop(running).await;
    std::fs::write(Path::new(&target).join("f"), "x").unwrap();

    let running = start(config).await;
    assert_eq!(world.mounts().len(), 2);
    // The same calls again confirm what stands, and the same undoing undoes it.
    running.client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    running.client.node_publish_volume(publish(&id, &staging, &target, writer())).await.unwrap();
    assert_eq!(world.mounts().len(), 2);
    running.client.node_unpublish_volume(unpublish(&id, &target)).await.unwrap();
    running.client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
    running.client.delete_volume(delete(&id)).await.unwrap();
    world.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_reboot_the_data_is_there_and_nothing_is_staged() {
    let Some(world) = World::for_test("after_a_reboot_the_data_is_there_and_nothing_is_staged")
    else {
        return;
    };
    let config = world.config(DriverKind::Local, "n1");
    let running = start(config.clone()).await;
    let staging = world.dir("staging");
    let id = make(&running.client, "a", 4 * MIB, writer()).await;
    let raw = make(&running.client, "raw", MIB, block(Mode::SingleNodeWriter)).await;
    running.client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    running
        .client
        .node_stage_volume(stage(&raw, &world.dir("r"), block(Mode::SingleNodeWriter)))
        .await
        .unwrap();
    let file = Path::new(&staging).join("f");
    std::fs::write(&file, "x").unwrap();
    std::fs::File::open(&file).unwrap().sync_all().unwrap();
    stop(running).await;
    world.reboot();
    world.assert_clean();

    let running = start(config).await;
    // Nothing is staged any more, so unused devices can go at once.
    running.client.delete_volume(delete(&raw)).await.unwrap();
    running.client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "x");
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_that_nothing_uses_are_let_go() {
    let Some(world) = World::for_test("devices_that_nothing_uses_are_let_go") else { return };
    let config = world.config(DriverKind::Local, "n1");
    let running = start(config.clone()).await;
    let id = make(&running.client, "a", 4 * MIB, writer()).await;

    // Killed between binding and mounting; found by the next start …
    bind(&world, &id, "n1");
    stop(running).await;
    let running = start(config).await;
    world.assert_clean();
    // … by the next stage …
    bind(&world, &id, "n1");
    let staging = world.dir("staging");
    running.client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    assert_eq!(world.loops().len(), 1);
    running.client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
    world.assert_clean();
    // … and by delete.
    bind(&world, &id, "n1");
    running.client.delete_volume(delete(&id)).await.unwrap();
    world.assert_clean();
    assert_eq!(world.files(), Vec::<String>::new());

    // A device without our tag belongs to another program, even on our image.
    let id = make(&running.client, "b", 4 * MIB, writer()).await;
    bind(&world, &id, "n9");
    assert_eq!(running.driver.cleanup_orphans().unwrap(), 0);
    assert_eq!(refused(running.client.delete_volume(delete(&id)).await), Code::FailedPrecondition);
    assert_eq!(world.loops().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_format_is_repeated_and_a_finished_one_is_kept() {
    let Some(world) =
        World::for_test("an_interrupted_format_is_repeated_and_a_finished_one_is_kept")
    else {
        return;
    };
    let config = world.config(DriverKind::Local, "n1");
    let running = start(config.clone()).await;
    let staging = world.dir("staging");

    // Half a filesystem in the scratch file.
    let id = make(&running.client, "a", 4 * MIB, writer()).await;
    std::fs::write(world.pool().join(format!(".fmt-{id}.img")), vec![7; 100_000]).unwrap();
    running.client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    running.client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
    assert_eq!(world.files().len(), 2, "{:?}", world.files());

    // The filesystem is in place, but the record does not say so yet.
    let id = make(&running.client, "b", 4 * MIB, writer()).await;
    let made = std::process::Command::new("mkfs.ext4")
        .args(["-q", "-F", "-L", "kept"])
        .arg(image(&world, &id))
        .status();
    assert!(made.unwrap().success());
    running.client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    running.client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
    let bytes = std::fs::read(image(&world, &id)).unwrap();
    assert_eq!(&bytes[0x478..0x47c], b"kept", "it was formatted again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_without_its_image_comes_off_the_node() {
    let Some(world) = World::for_test("a_volume_without_its_image_comes_off_the_node") else {
        return;
    };
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let (staging, target) = (world.dir("staging"), world.at("target"));
    let id = make(client, "a", 4 * MIB, writer()).await;
    client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    client.node_publish_volume(publish(&id, &staging, &target, writer())).await.unwrap();
    std::fs::remove_file(image(&world, &id)).unwrap();
    assert_eq!(refused(client.delete_volume(delete(&id)).await), Code::FailedPrecondition);
    client.node_unpublish_volume(unpublish(&id, &target)).await.unwrap();
    client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
    world.assert_clean();
    // What is gone is said, not papered over with a fresh image.
    assert_eq!(
        refused(client.node_stage_volume(stage(&id, &staging, writer())).await),
        Code::DataLoss
    );
    client.delete_volume(delete(&id)).await.unwrap();
    assert_eq!(world.files(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_driver_is_kept_out_of_a_pool() {
    let Some(world) = World::for_test("a_second_driver_is_kept_out_of_a_pool") else { return };
    let _running = start(world.config(DriverKind::Local, "n1")).await;
    let second = longshore_driver::Driver::open(world.config(DriverKind::Shared, "n1"));
    let text = second.expect_err("the pool is taken").to_string();
    assert!(text.contains("in use by another driver"), "{text}");
}
