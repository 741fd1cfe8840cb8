//! Bad and hostile requests: the right code, and nothing changed.

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;

use common::*;
use longshore_csi::v1::volume_capability::access_mode::Mode;
use longshore_csi::v1::*;
use longshore_driver::DriverKind;
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn bad_creates_change_nothing() {
    if !able("bad_creates_change_nothing") {
        return;
    }
    let world = World::new();
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let ok = || create("a", 4 * MIB, writer());
    let with = |change: fn(&mut CreateVolumeRequest)| {
        let mut request = ok();
        change(&mut request);
        request
    };
    let cases = [
        ("no name", with(|r| r.name.clear()), Code::InvalidArgument),
        ("control character", with(|r| r.name = "a\u{1}".into()), Code::InvalidArgument),
        ("long name", with(|r| r.name = "x".repeat(129)), Code::InvalidArgument),
        ("no capabilities", with(|r| r.volume_capabilities.clear()), Code::InvalidArgument),
        (
            "writers on many nodes",
            create("a", 1, mount(Mode::MultiNodeMultiWriter)),
            Code::InvalidArgument,
        ),
        (
            "unknown parameter",
            with(|r| drop(r.parameters.insert("sise".into(), "1".into()))),
            Code::InvalidArgument,
        ),
        (
            "unknown pool",
            with(|r| drop(r.parameters.insert("pool".into(), "../x".into()))),
            Code::InvalidArgument,
        ),
        (
            "unknown filesystem",
            with(|r| drop(r.parameters.insert("csi.storage.k8s.io/fstype".into(), "zfs".into()))),
            Code::InvalidArgument,
        ),
        (
            "mutable parameter",
            with(|r| drop(r.mutable_parameters.insert("a".into(), "b".into()))),
            Code::InvalidArgument,
        ),
        ("negative size", create("a", -1, writer()), Code::InvalidArgument),
        ("larger than everything", create("a", 1 << 60, writer()), Code::ResourceExhausted),
        (
            "content source",
            with(|r| r.volume_content_source = Some(VolumeContentSource::default())),
            Code::InvalidArgument,
        ),
        (
            "limit too low",
            with(|r| {
                r.capacity_range = Some(CapacityRange { required_bytes: 1, limit_bytes: 4096 })
            }),
            Code::OutOfRange,
        ),
        (
            "elsewhere",
            with(|r| {
                let key = "topology.local.csi.longshore.dev/node".to_owned();
                let topology = Topology { segments: [(key, "n2".to_owned())].into() };
                r.accessibility_requirements =
                    Some(TopologyRequirement { requisite: vec![topology], preferred: vec![] });
            }),
            Code::ResourceExhausted,
        ),
    ];
    for (name, request, want) in cases {
        assert_eq!(refused(client.create_volume(request).await), want, "{name}");
        assert_eq!(world.files(), Vec::<String>::new(), "{name}");
    }

    // A taken name with other wishes.
    client.create_volume(ok()).await.unwrap();
    let cases = [
        ("larger", create("a", 8 * MIB, writer())),
        ("raw", create("a", 4 * MIB, block(Mode::SingleNodeWriter))),
        (
            "limited below",
            with(|r| {
                r.capacity_range = Some(CapacityRange { required_bytes: 1, limit_bytes: 3 * MIB })
            }),
        ),
    ];
    for (name, request) in cases {
        assert_eq!(refused(client.create_volume(request).await), Code::AlreadyExists, "{name}");
    }
    // A smaller request is fulfilled by what is there, as are names that the provisioner adds.
    let mut same = create("a", MIB, writer());
    same.parameters.insert("csi.storage.k8s.io/pvc/name".into(), "claim".into());
    same.parameters.insert("pool".into(), "default".into());
    client.create_volume(same).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_things_are_named() {
    if !able("missing_things_are_named") {
        return;
    }
    let world = World::new();
    let running = start(world.config(DriverKind::Shared, "n1")).await;
    let client = &running.client;
    let id = make(client, "a", 4 * MIB, writer()).await;
    let path = world.dir("p");
    let unknown = "vol-00000000000000000000000000000000";
    let no_capability = |mut request: NodeStageVolumeRequest| {
        request.volume_capability = None;
        request
    };
    use Code::{InvalidArgument, NotFound};
    for hostile in ["../../etc/passwd", "vol-../..", "a\nb", unknown] {
        client.delete_volume(delete(hostile)).await.expect("deleting nothing succeeds");
        client
            .controller_unpublish_volume(detach(hostile, "n1"))
            .await
            .expect("detaching nothing succeeds");
        assert_eq!(
            refused(client.node_stage_volume(stage(hostile, &path, writer())).await),
            NotFound
        );
        assert_eq!(
            refused(client.node_publish_volume(publish(hostile, &path, &path, writer())).await),
            NotFound
        );
        assert_eq!(refused(client.node_unstage_volume(unstage(hostile, &path)).await), NotFound);
        assert_eq!(
            refused(client.node_unpublish_volume(unpublish(hostile, &path)).await),
            NotFound
        );
        assert_eq!(
            refused(client.controller_publish_volume(attach(hostile, "n1", writer())).await),
            NotFound
        );
    }
    assert_eq!(refused(client.delete_volume(delete("")).await), InvalidArgument);
    assert_eq!(refused(client.delete_volume(delete(&"x".repeat(200))).await), InvalidArgument);
    assert_eq!(
        refused(client.node_stage_volume(stage("", &path, writer())).await),
        InvalidArgument
    );
    assert_eq!(refused(client.node_stage_volume(stage(&id, "", writer())).await), InvalidArgument);
    assert_eq!(
        refused(client.node_stage_volume(no_capability(stage(&id, &path, writer()))).await),
        InvalidArgument
    );
    assert_eq!(refused(client.node_unstage_volume(unstage(&id, "")).await), InvalidArgument);
    assert_eq!(refused(client.node_unpublish_volume(unpublish(&id, "")).await), InvalidArgument);
    assert_eq!(
        refused(client.node_publish_volume(publish(&id, &path, "", writer())).await),
        InvalidArgument
    );
    assert_eq!(
        refused(client.node_publish_volume(publish(&id, "", &path, writer())).await),
        Code::FailedPrecondition
    );
    assert_eq!(
        refused(client.controller_publish_volume(attach(&id, "", writer())).await),
        InvalidArgument
    );

    let validate = |volume_id: &str, volume_capabilities: Vec<VolumeCapability>| {
        ValidateVolumeCapabilitiesRequest {
            volume_id: volume_id.to_owned(),
            volume_capabilities,
            ..Default::default()
        }
    };
    assert_eq!(
        refused(client.validate_volume_capabilities(validate(unknown, vec![writer()])).await),
        NotFound
    );
    assert_eq!(
        refused(client.validate_volume_capabilities(validate(&id, vec![])).await),
        InvalidArgument
    );
    let fine = client.validate_volume_capabilities(validate(&id, vec![writer()])).await.unwrap();
    assert_eq!(fine.confirmed.unwrap().volume_capabilities, [writer()]);
    let not = client
        .validate_volume_capabilities(validate(&id, vec![mount(Mode::MultiNodeMultiWriter)]))
        .await
        .unwrap();
    assert!(not.confirmed.is_none() && not.message.contains("MULTI_NODE_MULTI_WRITER"), "{not:?}");
    assert_eq!(world.files().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_data_is_never_formatted_over() {
    if !able("existing_data_is_never_formatted_over") {
        return;
    }
    let world = World::new();
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let staging = world.dir("staging");
    let cases: [(&str, u64, &[u8]); 8] = [
        ("xfs", 0, b"XFSB"),
        ("btrfs", 0x10040, b"_BHRfS_M"),
        ("luks", 0, b"LUKS\xba\xbe"),
        ("lvm", 0x218, b"LVM2 001"),
        ("swap", 0xff6, b"SWAPSPACE2"),
        ("gpt", 0x200, b"EFI PART"),
        ("mbr", 0x1fe, &[0x55, 0xaa]),
        ("unknown", 3 << 20, b"somebody's bytes"),
    ];
    for (name, offset, bytes) in cases {
        let id = make(client, name, 4 * MIB, writer()).await;
        let file = std::fs::OpenOptions::new().write(true).open(image(&world, &id)).unwrap();
        file.write_all_at(bytes, offset).unwrap();
        let before = std::fs::read(image(&world, &id)).unwrap();
        let got = client.node_stage_volume(stage(&id, &staging, writer())).await;
        assert_eq!(refused(got), Code::FailedPrecondition, "{name}");
        assert_eq!(std::fs::read(image(&world, &id)).unwrap(), before, "{name}");
        world.assert_clean();
        // A refused stage leaves no claim on the volume.
        client.delete_volume(delete(&id)).await.expect(name);
    }

    // A used filesystem whose start was wiped is not blank, it is damaged.
    let id = make(client, "wiped", 4 * MIB, writer()).await;
    client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(image(&world, &id)).unwrap();
    file.set_len(0).unwrap();
    file.set_len(4 << 20).unwrap();
    let got = client.node_stage_volume(stage(&id, &staging, writer())).await;
    assert_eq!(refused(got), Code::FailedPrecondition);
    world.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_paths_are_refused() {
    if !able("hostile_paths_are_refused") {
        return;
    }
    let world = World::new();
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let id = make(client, "a", 4 * MIB, writer()).await;
    let (staging, elsewhere) = (world.dir("staging"), world.dir("elsewhere"));
    let link = world.at("link");
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    let pool = world.pool();
    let paths = [
        "relative".to_owned(),
        "/".to_owned(),
        format!("{staging}/../elsewhere"),
        link.clone(),
        pool.to_str().unwrap().to_owned(),
        pool.join("inner").to_str().unwrap().to_owned(),
        world.path().to_str().unwrap().to_owned(),
    ];
    for path in &paths {
        let got = client.node_stage_volume(stage(&id, path, writer())).await;
        assert_eq!(refused(got), Code::InvalidArgument, "stage at {path}");
    }
    client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    for path in &paths {
        let got = client.node_publish_volume(publish(&id, &staging, path, writer())).await;
        assert_eq!(refused(got), Code::InvalidArgument, "publish at {path}");
        let got = client.node_unpublish_volume(unpublish(&id, path)).await;
        assert_eq!(refused(got), Code::InvalidArgument, "unpublish at {path}");
    }
    // The staging mount is not a target to be taken away.
    let got = client.node_unpublish_volume(unpublish(&id, &staging)).await;
    assert_eq!(refused(got), Code::InvalidArgument);
    let got = client.node_publish_volume(publish(&id, &staging, &staging, writer())).await;
    assert_eq!(refused(got), Code::InvalidArgument);
    assert_eq!(world.mounts().len(), 1);
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_mounted_is_left_alone() {
    if !able("what_others_mounted_is_left_alone") {
        return;
    }
    let world = World::new();
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let id = make(client, "a", 4 * MIB, writer()).await;
    let (staging, foreign) = (world.dir("staging"), world.dir("foreign"));
    rustix::mount::mount("tmpfs", &foreign, "tmpfs", rustix::mount::MountFlags::empty(), None)
        .unwrap();
    std::fs::write(Path::new(&foreign).join("f"), "x").unwrap();

    let staged = client.node_stage_volume(stage(&id, &foreign, writer())).await;
    assert_eq!(refused(staged), Code::FailedPrecondition);
    client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    let published = client.node_publish_volume(publish(&id, &staging, &foreign, writer())).await;
    assert_eq!(refused(published), Code::FailedPrecondition);
    let taken = client.node_unpublish_volume(unpublish(&id, &foreign)).await;
    assert_eq!(refused(taken), Code::FailedPrecondition);
    client.node_unstage_volume(unstage(&id, &foreign)).await.expect("it is not staged there");
    assert_eq!(std::fs::read_to_string(Path::new(&foreign).join("f")).unwrap(), "x");

    // Files in the way of a target are not removed either.
    let full = world.dir("full");
    std::fs::write(Path::new(&full).join("f"), "x").unwrap();
    assert!(client.node_unpublish_volume(unpublish(&id, &full)).await.is_err());
    assert!(Path::new(&full).join("f").exists());

    // A volume made for a filesystem is not handed out raw.
    let raw = client.node_stage_volume(stage(&id, &staging, block(Mode::SingleNodeWriter))).await;
    assert_eq!(refused(raw), Code::FailedPrecondition);

    // A second staging path, or another way of staging, contradicts the first.
    let other = world.dir("other");
    let second = client.node_stage_volume(stage(&id, &other, writer())).await;
    assert_eq!(refused(second), Code::AlreadyExists);
    let reader =
        client.node_stage_volume(stage(&id, &staging, mount(Mode::SingleNodeReaderOnly))).await;
    assert_eq!(refused(reader), Code::AlreadyExists);
}
