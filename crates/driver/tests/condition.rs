//! What volumes say about themselves: one by one, listed, and at a path.

mod common;

use std::path::Path;
use std::time::Duration;

use common::*;
use longshore_csi::v1::volume_capability::AccessType;
use longshore_csi::v1::*;
use longshore_driver::DriverKind;
use tonic::Code;

fn get(id: &str) -> ControllerGetVolumeRequest {
    ControllerGetVolumeRequest { volume_id: id.to_owned() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_shown_with_its_nodes_and_its_condition() {
    let Some(world) = World::for_test("a_volume_is_shown_with_its_nodes_and_its_condition") else {
        return;
    };
    let running = start(world.config(DriverKind::Shared, "n1")).await;
    let client = &running.client;
    let id = make(client, "a", 4 * MIB, writer()).await;
    client.controller_publish_volume(attach(&id, "n1", writer())).await.unwrap();
    let got = client.controller_get_volume(get(&id)).await.unwrap();
    assert_eq!(got.volume.as_ref().unwrap().capacity_bytes, 4 * MIB);
    let status = got.status.unwrap();
    assert_eq!(status.published_node_ids, ["n1"]);
    assert!(!status.volume_condition.unwrap().abnormal);
    assert_eq!(refused(client.controller_get_volume(get("vol-1")).await), Code::NotFound);
    assert_eq!(refused(client.controller_get_volume(get("")).await), Code::InvalidArgument);

    // Its bytes are gone: said by every call that looks.
    std::fs::remove_file(image(&world, &id)).unwrap();
    let got = client.controller_get_volume(get(&id)).await.unwrap().status.unwrap();
    let condition = got.volume_condition.unwrap();
    assert!(condition.abnormal && condition.message.contains("missing"), "{condition:?}");
    let list = client.list_volumes(ListVolumesRequest::default()).await.unwrap();
    let listed = list.entries[0].status.clone().unwrap();
    assert_eq!(listed.published_node_ids, ["n1"]);
    assert!(listed.volume_condition.unwrap().abnormal);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filesystem_that_became_read_only_is_reported_abnormal() {
    let Some(world) = World::for_test("a_filesystem_that_became_read_only_is_reported_abnormal")
    else {
        return;
    };
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let mut careful = writer();
    if let Some(AccessType::Mount(mount)) = &mut careful.access_type {
        mount.mount_flags = vec!["errors=remount-ro".to_owned()];
    }
    let id = make(client, "a", 4 * MIB, writer()).await;
    let (staging, target) = (world.dir("staging"), world.at("target"));
    client.node_stage_volume(stage(&id, &staging, careful.clone())).await.unwrap();
    client.node_publish_volume(publish(&id, &staging, &target, careful)).await.unwrap();
    let healthy = client.node_get_volume_stats(stats(&id, &target)).await.unwrap();
    assert!(!healthy.volume_condition.unwrap().abnormal);
    assert_eq!(healthy.usage.len(), 2);

    let device = world.loops().pop().expect("a device");
    let trigger = Path::new("/sys/fs/ext4")
        .join(device.file_name().expect("a name"))
        .join("trigger_fs_error");
    std::fs::write(trigger, "longshore test").unwrap();
    let mut condition = VolumeCondition::default();
    for _ in 0..500 {
        let response = client.node_get_volume_stats(stats(&id, &target)).await.unwrap();
        condition = response.volume_condition.unwrap();
        if condition.abnormal {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(condition.abnormal && condition.message.contains("read-only"), "{condition:?}");

    // A staged volume whose image is gone still has a condition that says so.
    let id = make(client, "b", 4 * MIB, writer()).await;
    let staging = world.dir("staging-b");
    client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    std::fs::remove_file(image(&world, &id)).unwrap();
    let response = client.node_get_volume_stats(stats(&id, &staging)).await.unwrap();
    let condition = response.volume_condition.unwrap();
    assert!(condition.abnormal && condition.message.contains("missing"), "{condition:?}");
}
