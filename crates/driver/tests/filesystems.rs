//! Every filesystem: made, used, copied beside its source, and never made over anything.

mod common;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use common::*;
use longshore_csi::v1::{CapacityRange, CreateVolumeRequest};
use longshore_driver::format::{
    FormatOptions, make as make_filesystem, renew_uuid, uuid::read_uuid,
};
use longshore_driver::{DriverKind, FsType};
use tonic::Code;

/// (filesystem, size that it rounds a small request up to)
const SIZES: [(FsType, i64); 3] =
    [(FsType::Ext4, 2 * MIB), (FsType::Xfs, 300 * MIB), (FsType::Btrfs, 114 * MIB)];

fn by_class(fstype: FsType, bytes: i64) -> CreateVolumeRequest {
    let mut request = create(&format!("v-{fstype}"), bytes, writer());
    request.volume_capabilities = vec![writer_of(fstype)];
    request.parameters.insert("csi.storage.k8s.io/fstype".into(), fstype.to_string());
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn each_filesystem_from_create_to_delete() {
    if !able_all("each_filesystem_from_create_to_delete") {
        return;
    }
    let world = World::new();
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    for (fstype, least) in SIZES {
        // Too small is rounded up, unless the limit forbids it.
        let mut limited = by_class(fstype, MIB);
        limited.capacity_range =
            Some(CapacityRange { required_bytes: MIB, limit_bytes: least - MIB });
        assert_eq!(refused(client.create_volume(limited).await), Code::OutOfRange, "{fstype}");
        let made = client.create_volume(by_class(fstype, MIB)).await.unwrap().volume.unwrap();
        assert_eq!(made.capacity_bytes, least, "{fstype}");

        let (id, staging) = (made.volume_id, world.dir(&format!("s-{fstype}")));
        let capability = || writer_of(fstype);
        let file = Path::new(&staging).join("data");
        for round in 0..2 {
            client.node_stage_volume(stage(&id, &staging, capability())).await.unwrap();
            if round == 0 {
                std::fs::write(&file, fstype.as_str()).unwrap();
            }
            assert_eq!(std::fs::read_to_string(&file).unwrap(), fstype.as_str());
            client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
        }
        // A volume of one filesystem is not staged as another.
        let other = if fstype == FsType::Xfs { FsType::Ext4 } else { FsType::Xfs };
        let staged = client.node_stage_volume(stage(&id, &staging, writer_of(other))).await;
        assert_eq!(refused(staged), Code::FailedPrecondition);
        client.delete_volume(delete(&id)).await.unwrap();
    }
    world.assert_clean();
    assert_eq!(world.files(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn format_options_reach_the_filesystem() {
    if !able_all("format_options_reach_the_filesystem") {
        return;
    }
    let world = World::new();
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let with = |fstype, bytes, key: &str, value: &str| {
        let mut request = by_class(fstype, bytes);
        request.parameters.insert(key.to_owned(), value.to_owned());
        request
    };
    let bad = [
        (FsType::Ext4, "blockSize", "65536"),
        (FsType::Ext4, "nodeSize", "4096"),
        (FsType::Xfs, "inodeSize", "-d agcount=1"),
        (FsType::Btrfs, "metadata", "raid1"),
    ];
    for (fstype, key, value) in bad {
        let got = client.create_volume(with(fstype, 400 * MIB, key, value)).await;
        assert_eq!(refused(got), Code::InvalidArgument, "{key}={value}");
    }
    assert_eq!(world.files(), Vec::<String>::new());

    let request = with(FsType::Ext4, MIB, "blockSize", "4096");
    let made = client.create_volume(request.clone()).await.unwrap().volume.unwrap();
    assert_eq!(made.capacity_bytes, 8 * MIB, "room for a journal of such blocks");
    client.create_volume(request).await.expect("the same again");
    let differs = client.create_volume(with(FsType::Ext4, MIB, "blockSize", "2048")).await;
    assert_eq!(refused(differs), Code::AlreadyExists);
    let (id, staging) = (made.volume_id, world.dir("staging"));
    client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
    let stat = rustix::fs::statvfs(&staging).unwrap();
    assert_eq!(stat.f_bsize, 4096);
}

/// A copy of a filesystem in use, as a crash or a snapshot would take it.
struct Copied {
    world: World,
    source: String,
    copy: String,
}

impl Copied {
    /// Makes a filesystem, writes to it, and copies the image while the last write is only in the
    /// log (`frozen`: after a freeze has emptied the log as far as it does).
    fn new(fstype: FsType, bytes: u64, frozen: bool) -> Self {
        let world = World::new();
        let (source, copy, at) = (world.at("source.img"), world.at("copy.img"), world.dir("a"));
        let image = OpenOptions::new().read(true).write(true).create_new(true).open(&source);
        let image = image.expect("copied");
        image.set_len(bytes).expect("copied");
        make_filesystem(&image, fstype, &FormatOptions::default()).expect("copied");
        run("mount", &["-o", "loop", &source, &at]);
        std::fs::write(Path::new(&at).join("early"), "1").expect("copied");
        run("sync", &["-f", &at]);
        let late = File::create(Path::new(&at).join("late")).expect("copied");
        late.write_all_at(b"2", 0).expect("copied");
        late.sync_all().expect("copied");
        if frozen {
            run("fsfreeze", &["-f", &at]);
        }
        run("cp", &["--sparse=always", &source, &copy]);
        if frozen {
            run("fsfreeze", &["-u", &at]);
        }
        Self { world, source, copy }
    }

    fn open(path: &str) -> File {
        OpenOptions::new().read(true).write(true).open(path).expect("copied")
    }
}

/// Promise of DESIGN §5: renewed UUIDs are read back, and copies mount beside their source.
#[test]
fn a_copy_mounts_beside_its_source() {
    if !able_all("a_copy_mounts_beside_its_source") {
        return;
    }
    for (fstype, bytes) in SIZES.map(|(fstype, least)| (fstype, least.cast_unsigned() + (8 << 20)))
    {
        for frozen in [false, true] {
            let copied = Copied::new(fstype, bytes, frozen);
            let before = read_uuid(&Copied::open(&copied.source), fstype).unwrap();
            let image = Copied::open(&copied.copy);
            assert_eq!(read_uuid(&image, fstype).unwrap(), before);
            let after = renew_uuid(&image, fstype).unwrap();
            assert_ne!(after, before);
            assert_eq!(read_uuid(&image, fstype).unwrap(), after);
            // Once more: a call that a crash cut short is repeated.
            let after = renew_uuid(&image, fstype).unwrap();
            drop(image);

            let beside = copied.world.dir("b");
            run("mount", &["-o", "loop", &copied.copy, &beside]);
            let read = |name: &str| std::fs::read_to_string(Path::new(&beside).join(name));
            assert_eq!(read("early").unwrap(), "1", "{fstype} frozen={frozen}");
            assert_eq!(read("late").unwrap(), "2", "{fstype} frozen={frozen}");
            std::fs::write(Path::new(&beside).join("new"), "3").unwrap();
            run("sync", &["-f", &beside]);
            let blkid = Command::new("blkid")
                .args(["-p", "-o", "value", "-s", "UUID", &copied.copy])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&blkid.stdout).trim(), after.to_string());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_look_or_another_filesystem_is_never_formatted() {
    if !able_all("a_failed_look_or_another_filesystem_is_never_formatted") {
        return;
    }
    let world = World::new();
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let staging = world.dir("staging");

    // An image that cannot be read: this file exists and every read of it fails with EIO.
    let id = make(client, "failing", 4 * MIB, writer()).await;
    let path = image(&world, &id);
    run("mount", &["--bind", "/proc/self/mem", path.to_str().unwrap()]);
    let got = client.node_stage_volume(stage(&id, &staging, writer())).await;
    assert_eq!(refused(got), Code::Internal);
    assert!(!world.files().iter().any(|name| name.starts_with(".fmt-")), "{:?}", world.files());
    run("umount", &[path.to_str().unwrap()]);
    let blank = std::fs::read(&path).unwrap();
    assert!(blank.iter().all(|&byte| byte == 0), "it was written to");
    client.node_stage_volume(stage(&id, &staging, writer())).await.expect("readable again");
    client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();

    // Another filesystem than the one asked for is somebody's data.
    for (wanted, found) in [(FsType::Xfs, FsType::Ext4), (FsType::Btrfs, FsType::Xfs)] {
        let name = format!("{wanted}-{found}");
        let id = make(client, &name, 400 * MIB, writer_of(wanted)).await;
        let file = OpenOptions::new().read(true).write(true).open(image(&world, &id)).unwrap();
        make_filesystem(&file, found, &FormatOptions::default()).unwrap();
        let before = read_uuid(&file, found).unwrap();
        let got = client.node_stage_volume(stage(&id, &staging, writer_of(wanted))).await;
        assert_eq!(refused(got), Code::FailedPrecondition, "{name}");
        assert_eq!(read_uuid(&file, found).unwrap(), before, "{name}");
        client.delete_volume(delete(&id)).await.unwrap();
    }
    world.assert_clean();
}

/// The shape of a filesystem is made once; each volume of it still has an identity of its own.
#[tokio::test(flavor = "multi_thread")]
async fn volumes_of_one_shape_come_from_one_template() {
    if !able("volumes_of_one_shape_come_from_one_template") {
        return;
    }
    let world = World::new();
    let config = world.config(DriverKind::Local, "n1");
    let running = start(config.clone()).await;
    let client = &running.client;
    let templates = || {
        let names = std::fs::read_dir(world.pool()).unwrap().map(|e| e.unwrap().file_name());
        let names = names.map(|name| name.into_string().unwrap());
        names.filter(|name| name.starts_with(".tpl-")).collect::<Vec<_>>()
    };
    let mut uuids = std::collections::BTreeSet::new();
    // Sizes with no, one and several copies of the superblock.
    for (round, mib) in [4, 20, 20, 20, 100, 100, 4].into_iter().enumerate() {
        let id = make(client, &format!("v{round}"), mib * MIB, writer()).await;
        let staging = world.dir(&format!("s{round}"));
        client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
        assert!(!Path::new(&staging).join("data").exists());
        std::fs::write(Path::new(&staging).join("data"), vec![1; 100_000]).unwrap();
        client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
        let path = image(&world, &id);
        run("e2fsck", &["-f", "-n", path.to_str().unwrap()]);
        let backup = Command::new("e2fsck").args(["-n", "-b", "8193"]).arg(&path).output().unwrap();
        if mib == 20 {
            // A copy of the superblock is as good as the first.
            assert!(backup.status.code().is_some_and(|code| code < 8), "{backup:?}");
        }
        assert!(uuids.insert(read_uuid(&File::open(&path).unwrap(), FsType::Ext4).unwrap()));
    }
    assert_eq!(templates().len(), 3, "one for each size: {:?}", templates());

    // One that was damaged is not used, and made anew.
    stop(running).await;
    for name in templates() {
        let file = OpenOptions::new().write(true).open(world.pool().join(name)).unwrap();
        file.write_all_at(&[9; 100], 1024).unwrap();
    }
    std::fs::write(world.pool().join(format!("{}.x", templates()[0])), "half").unwrap();
    let running = start(config).await;
    assert_eq!(templates().len(), 3, "unfinished ones go");
    let id = make(&running.client, "again", 20 * MIB, writer()).await;
    let staging = world.dir("again");
    let first = running.client.node_stage_volume(stage(&id, &staging, writer())).await;
    assert_eq!(refused(first), Code::Internal);
    running.client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
}
