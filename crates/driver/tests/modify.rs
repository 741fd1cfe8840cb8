//! ControllerModifyVolume: parameters that really change something, checked before they do.

mod common;

use std::path::Path;

use common::*;
use longshore_csi::v1::volume_capability::access_mode::Mode;
use longshore_csi::v1::*;
use longshore_driver::{DriverKind, FsType};
use longshore_files::mounts::MountTable;
use tonic::Code;

fn modify(id: &str, all: &[(&str, &str)]) -> ControllerModifyVolumeRequest {
    ControllerModifyVolumeRequest {
        volume_id: id.to_owned(),
        mutable_parameters: all
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        ..Default::default()
    }
}

fn sysfs(device: &Path, file: &str) -> String {
    let name = device.file_name().expect("a name");
    let path = Path::new("/sys/block").join(name).join(file);
    std::fs::read_to_string(path).expect("sysfs").trim().to_owned()
}

fn mount_options(world: &World) -> String {
    let table = MountTable::read().expect("mounts");
    let staged = table.at(Path::new(&world.at("staging"))).expect("mounted");
    staged.options.clone()
}

/// Percent of the blocks that only root may use, of those that the kernel does not keep itself.
fn reserved(path: &str) -> u64 {
    let stat = rustix::fs::statvfs(path).expect("measured");
    (stat.f_bfree - stat.f_bavail) * 100 / stat.f_blocks
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_take_effect_at_once_or_at_the_next_stage() {
    let Some(world) = World::for_test("parameters_take_effect_at_once_or_at_the_next_stage") else {
        return;
    };
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let staging = world.dir("staging");
    let mut request = create("a", 20 * MIB, writer());
    request.mutable_parameters.insert("reservedBlocksPercent".into(), "10".into());
    let id = client.create_volume(request).await.unwrap().volume.unwrap().volume_id;
    client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    assert!(reserved(&staging) > 9, "given at creation");
    let device = world.loops().pop().expect("a device");
    assert_ne!(sysfs(&device, "queue/discard_max_bytes"), "0");
    assert_eq!(sysfs(&device, "loop/dio"), "0");

    for _ in 0..2 {
        let all = [("reservedBlocksPercent", "0"), ("directIO", "true"), ("discard", "false")];
        client.controller_modify_volume(modify(&id, &all)).await.unwrap();
    }
    assert!(reserved(&staging) < 4, "under a running pod");
    assert_eq!(sysfs(&device, "loop/dio"), "1");
    assert_eq!(sysfs(&device, "queue/discard_max_bytes"), "0");
    let trimmed = std::process::Command::new("fstrim").arg(&staging).output().unwrap();
    assert!(!trimmed.status.success());

    // Only what is named changes, and the rest is still known when it is staged again.
    let late = client.controller_modify_volume(modify(&id, &[("discard", "true")])).await;
    let text = late.as_ref().map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("takes effect when the pod starts next"), "{text}");
    assert_eq!(refused(late), Code::FailedPrecondition);
    assert!(!mount_options(&world).contains("discard"));
    client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
    client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    let device = world.loops().pop().expect("a device");
    assert_eq!(sysfs(&device, "loop/dio"), "1");
    assert!(mount_options(&world).contains("discard"), "{}", mount_options(&world));
    assert!(reserved(&staging) < 4);
    client.controller_modify_volume(modify(&id, &[("discard", "true")])).await.unwrap();
    let all = [("reservedBlocksPercent", "9"), ("directIO", "true"), ("discard", "true")];
    client.controller_modify_volume(modify(&id, &all)).await.unwrap();
    assert!(reserved(&staging) > 7);

    // An empty value is the driver's default; what is not named stays.
    client.controller_modify_volume(modify(&id, &[("discard", "")])).await.unwrap();
    assert!(!mount_options(&world).contains("discard"), "{}", mount_options(&world));
    assert_eq!((sysfs(&device, "loop/dio").as_str(), reserved(&staging) > 7), ("1", true));
    let all = [("reservedBlocksPercent", ""), ("directIO", "")];
    client.controller_modify_volume(modify(&id, &all)).await.unwrap();
    assert_eq!((sysfs(&device, "loop/dio").as_str(), reserved(&staging) < 4), ("0", true));
}

#[tokio::test(flavor = "multi_thread")]
async fn discards_of_a_mounted_filesystem_are_switched_where_the_kernel_can() {
    if !able_all("discards_of_a_mounted_filesystem_are_switched_where_the_kernel_can") {
        return;
    }
    let world = World::new();
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    for (fstype, size, at_once) in [
        (FsType::Ext4, 20 * MIB, true),
        (FsType::Btrfs, 128 * MIB, true),
        (FsType::Xfs, 300 * MIB, false),
    ] {
        let access = || writer_of(fstype);
        let id = make(client, fstype.as_str(), size, access()).await;
        let staging = world.dir("staging");
        client.node_stage_volume(stage(&id, &staging, access())).await.unwrap();
        let options = || mount_options(&world).split(',').any(|one| one == "discard");
        for (value, want) in [("true", true), ("", false)] {
            let set = client.controller_modify_volume(modify(&id, &[("discard", value)])).await;
            if at_once {
                set.unwrap();
            } else {
                assert_eq!(refused(set), Code::FailedPrecondition, "{fstype}");
                client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
                client.node_stage_volume(stage(&id, &staging, access())).await.unwrap();
                let again = modify(&id, &[("discard", value)]);
                client.controller_modify_volume(again).await.unwrap();
            }
            assert_eq!(options(), want, "{fstype}, {value:?}: {}", mount_options(&world));
        }
        client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_understood_changes_nothing() {
    let Some(world) = World::for_test("what_is_not_understood_changes_nothing") else { return };
    let running = start(world.config(DriverKind::Shared, "n1")).await;
    let client = &running.client;
    let raw = make(client, "raw", MIB, block(Mode::SingleNodeWriter)).await;
    let id = make(client, "a", 4 * MIB, writer()).await;
    let record = || std::fs::read(world.pool().join(format!("{id}.json"))).unwrap();
    let before = record();
    let cases = [
        (modify(&id, &[("discard", "true"), ("iops", "100")]), Code::InvalidArgument),
        (modify(&id, &[("discard", "maybe")]), Code::InvalidArgument),
        (modify(&raw, &[("reservedBlocksPercent", "5")]), Code::InvalidArgument),
        (modify("", &[("discard", "true")]), Code::InvalidArgument),
        (modify("vol-1", &[("discard", "true")]), Code::NotFound),
    ];
    for (request, code) in cases {
        assert_eq!(refused(client.controller_modify_volume(request).await), code);
    }
    assert_eq!(record(), before);
    client.controller_modify_volume(modify(&raw, &[("discard", "false")])).await.unwrap();

    let mut request = create("b", 4 * MIB, writer());
    request.mutable_parameters.insert("iops".into(), "100".into());
    assert_eq!(refused(client.create_volume(request).await), Code::InvalidArgument);
    let validate = |value: &str| ValidateVolumeCapabilitiesRequest {
        volume_id: id.clone(),
        volume_capabilities: vec![writer()],
        mutable_parameters: [("discard".to_owned(), value.to_owned())].into(),
        ..Default::default()
    };
    let fine = client.validate_volume_capabilities(validate("true")).await.unwrap();
    assert_eq!(fine.confirmed.unwrap().mutable_parameters.len(), 1);
    let not = client.validate_volume_capabilities(validate("?")).await.unwrap();
    assert!(not.confirmed.is_none() && not.message.contains("discard"), "{not:?}");
}
