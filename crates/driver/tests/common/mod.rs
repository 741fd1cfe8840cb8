//! A driver on a real socket over a pool in a temporary directory, and everything it may leave
//! taken away again, also when a test fails.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod process;

use std::path::{Path, PathBuf};

use longshore_csi::v1::volume_capability::access_mode::Mode;
use longshore_csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use longshore_csi::v1::*;
use longshore_csi::{Client, CsiError};
use longshore_driver::freeze::{HolderProgram, holder};
use longshore_driver::id::VolumeId;
use longshore_driver::{Driver, DriverConfig, DriverKind, FsType, PoolConfig};
use longshore_testing::{Need, need};
use tokio_util::sync::CancellationToken;
use tonic::Code;

pub const MIB: i64 = 1 << 20;

/// True when the machine can run these tests; says so otherwise.
pub fn able(test: &str) -> bool {
    need(test, &[Need::Root, Need::LoopDevices, Need::Tool("mkfs.ext4")])
}

/// As [`able`], with every filesystem.
pub fn able_all(test: &str) -> bool {
    let tools = [Need::Tool("mkfs.xfs"), Need::Tool("xfs_db"), Need::Tool("mkfs.btrfs")];
    able(test) && need(test, &tools)
}

fn temporary() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("longshore-driver-").tempdir();
    dir.expect("a temporary directory")
}

/// A directory whose mounts and loop devices are gone when it is dropped.
pub struct World {
    dir: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        Self { dir: temporary() }
    }

    /// A world for a test that needs root and loop devices; `None` where they are missing.
    pub fn for_test(test: &str) -> Option<Self> {
        able(test).then(Self::new)
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().canonicalize().expect("resolved")
    }

    pub fn pool(&self) -> PathBuf {
        self.path().join("pool")
    }

    /// A path below the world whose parent exists.
    pub fn at(&self, name: &str) -> String {
        self.path().join(name).to_str().expect("text").to_owned()
    }

    /// An existing directory below the world.
    pub fn dir(&self, name: &str) -> String {
        let path = self.at(name);
        std::fs::create_dir_all(&path).expect("made");
        path
    }

    /// Puts the pool on a filesystem of its own, of `mib` MiB.
    pub fn own_pool(&self, fstype: FsType, mib: u64) {
        let (image, pool) = (self.at("pool.img"), self.dir("pool"));
        let file = std::fs::File::create_new(&image).expect("an image");
        file.set_len(mib << 20).expect("sized");
        run(&format!("mkfs.{fstype}"), &["-q", &image]);
        run("mount", &["-o", "loop", &image, &pool]);
    }

    /// Loop devices of volumes, as opposed to the one that the pool may lie on.
    pub fn volume_loops(&self) -> Vec<PathBuf> {
        let of_pool = |device: &PathBuf| {
            let name = device.file_name().expect("a name");
            let file = Path::new("/sys/block").join(name).join("loop/backing_file");
            std::fs::read_to_string(file).is_ok_and(|text| text.trim().ends_with("/pool.img"))
        };
        self.loops().into_iter().filter(|device| !of_pool(device)).collect()
    }

    /// Mount points below the world, innermost and newest first.
    pub fn mounts(&self) -> Vec<PathBuf> {
        let mut points = longshore_files::mounts::mounts_below(&self.path()).expect("mount table");
        points.reverse();
        points
    }

    /// Loop devices whose backing file lies below the world.
    pub fn loops(&self) -> Vec<PathBuf> {
        let mut loops = Vec::new();
        for entry in std::fs::read_dir("/sys/block").expect("sysfs") {
            let entry = entry.expect("entry");
            let backing = std::fs::read_to_string(entry.path().join("loop/backing_file"));
            if backing.is_ok_and(|path| Path::new(&path).starts_with(self.path())) {
                loops.push(Path::new("/dev").join(entry.file_name()));
            }
        }
        loops
    }

    /// Names in the pool, without those that belong to no volume.
    pub fn files(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.pool())
            .expect("pool")
            .map(|entry| entry.expect("entry").file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().expect("text")).collect();
        names.retain(|name| {
            name != ".lock"
                && name != ".reserve"
                && !name.starts_with(".tpl-")
                && !name.starts_with(".node-")
                && !name.starts_with(".ask-")
        });
        names.sort();
        names
    }

    /// What a reboot does: no mounts, no loop devices.
    pub fn reboot(&self) {
        for point in self.mounts() {
            let _ = rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH);
        }
        for device in self.loops() {
            let _ = std::process::Command::new("blockdev").arg("--setrw").arg(&device).status();
            let _ = std::process::Command::new("losetup").arg("-d").arg(&device).status();
        }
    }

    /// Nothing but the pool's own files is left.
    pub fn assert_clean(&self) {
        assert_eq!(self.mounts(), Vec::<PathBuf>::new(), "mounts are left");
        assert_eq!(self.loops(), Vec::<PathBuf>::new(), "loop devices are left");
    }

    pub fn config(&self, kind: DriverKind, node: &str) -> DriverConfig {
        let mut config = DriverConfig::new(kind, node);
        config.pools.push(PoolConfig::new("default", self.pool()));
        config.freeze_holder = Some(freeze_holder());
        // No test is about how fast a loaded machine is.
        config.copy_budget = std::time::Duration::from_secs(60);
        config
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What a failed test left frozen would hang whoever tidies up.
            for point in self.mounts() {
                let _ = std::process::Command::new("fsfreeze").arg("-u").arg(point).output();
            }
        }
        self.reboot();
    }
}

/// An open driver and a client of it. Dropping it is like killing the process.
pub struct Running {
    pub driver: Driver,
    pub client: Client,
    pub socket: PathBuf,
    _stop: tokio_util::sync::DropGuard,
}

pub async fn start(config: DriverConfig) -> Running {
    let driver = Driver::open(config).expect("the driver opens");
    let socket = temporary();
    let path = socket.path().join("csi.sock");
    let stop = CancellationToken::new();
    let (serving, token, bound) = (driver.clone(), stop.clone(), path.clone());
    tokio::spawn(async move {
        let served = longshore_driver::serve(&serving, &bound, token).await;
        drop(socket);
        served.expect("served");
    });
    let client = Client::connect(path.display().to_string().into()).await.expect("connected");
    Running { driver, client, socket: path, _stop: stop.drop_guard() }
}

/// Ends a driver so that its pools can be opened again.
pub async fn stop(running: Running) {
    let Running { driver, client, _stop, .. } = running;
    drop((client, _stop));
    let pool = driver.config().pools[0].dir.clone();
    drop(driver);
    // The server lets go of its handle a moment later.
    for _ in 0..500 {
        let lock = std::fs::File::open(pool.join(".lock")).expect("lock file");
        if lock.try_lock().is_ok() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the driver still holds its pool");
}

/// Runs a program that must succeed.
pub fn run(program: &str, args: &[&str]) {
    let run = || std::process::Command::new(program).args(args).output().expect(program);
    let mut output = run();
    // A loop device that was free may be gone before `mount` comes to use it.
    for _ in 0..5 {
        if output.status.success() || program != "mount" {
            break;
        }
        output = run();
    }
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
}

pub fn mount(mode: Mode) -> VolumeCapability {
    let mount = MountVolume { fs_type: "ext4".into(), ..Default::default() };
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode as i32 }),
        access_type: Some(AccessType::Mount(mount)),
    }
}

/// A single writer that does not care about the filesystem.
pub fn mount_any() -> VolumeCapability {
    VolumeCapability { access_type: Some(AccessType::Mount(MountVolume::default())), ..writer() }
}

/// A single writer of a filesystem of this type.
pub fn writer_of(fstype: FsType) -> VolumeCapability {
    let mount = MountVolume { fs_type: fstype.to_string(), ..Default::default() };
    VolumeCapability { access_type: Some(AccessType::Mount(mount)), ..writer() }
}

pub fn block(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode as i32 }),
        access_type: Some(AccessType::Block(BlockVolume {})),
    }
}

pub fn writer() -> VolumeCapability {
    mount(Mode::SingleNodeWriter)
}

pub fn create(name: &str, bytes: i64, capability: VolumeCapability) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        volume_capabilities: vec![capability],
        ..Default::default()
    }
}

pub async fn make(client: &Client, name: &str, bytes: i64, capability: VolumeCapability) -> String {
    let made = client.create_volume(create(name, bytes, capability)).await.expect("created");
    made.volume.expect("a volume").volume_id
}

/// As [`make`], and staged at a directory of the volume's name.
pub async fn make_staged(
    world: &World,
    client: &Client,
    name: &str,
    bytes: i64,
    capability: VolumeCapability,
) -> (String, String) {
    let id = make(client, name, bytes, capability.clone()).await;
    let staging = world.dir(&format!("staging-{name}"));
    client.node_stage_volume(stage(&id, &staging, capability)).await.expect("staged");
    (id, staging)
}

pub fn stage(id: &str, path: &str, capability: VolumeCapability) -> NodeStageVolumeRequest {
    NodeStageVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: path.to_owned(),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

pub fn unstage(id: &str, path: &str) -> NodeUnstageVolumeRequest {
    NodeUnstageVolumeRequest { volume_id: id.to_owned(), staging_target_path: path.to_owned() }
}

pub fn publish(
    id: &str,
    staging: &str,
    target: &str,
    capability: VolumeCapability,
) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: staging.to_owned(),
        target_path: target.to_owned(),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

pub fn unpublish(id: &str, target: &str) -> NodeUnpublishVolumeRequest {
    NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: target.to_owned() }
}

pub fn at_least(bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 })
}

pub fn grow_on_node(id: &str, path: &str, bytes: i64) -> NodeExpandVolumeRequest {
    NodeExpandVolumeRequest {
        volume_id: id.to_owned(),
        volume_path: path.to_owned(),
        capacity_range: at_least(bytes),
        ..Default::default()
    }
}

pub fn stats(id: &str, path: &str) -> NodeGetVolumeStatsRequest {
    NodeGetVolumeStatsRequest {
        volume_id: id.to_owned(),
        volume_path: path.to_owned(),
        ..Default::default()
    }
}

pub fn delete(id: &str) -> DeleteVolumeRequest {
    DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() }
}

pub fn attach(
    id: &str,
    node: &str,
    capability: VolumeCapability,
) -> ControllerPublishVolumeRequest {
    ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

pub fn detach(id: &str, node: &str) -> ControllerUnpublishVolumeRequest {
    ControllerUnpublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: node.to_owned(),
        ..Default::default()
    }
}

/// The code of a refused call.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(result: Result<T, CsiError>) -> Code {
    match result {
        Err(
            CsiError::Final { status, .. }
            | CsiError::Transient { status, .. }
            | CsiError::Infeasible { status, .. },
        ) => status.code(),
        Ok(answer) => panic!("expected a refusal, got {answer:?}"),
    }
}

/// Path of a volume's image.
pub fn image(world: &World, id: &str) -> PathBuf {
    assert!(VolumeId::parse(id).is_some(), "{id}");
    world.pool().join(format!("{id}.img"))
}

/// This test program as the holder of a freeze: each test file that freezes has a test
/// `freeze_holder` that calls [`hold_freeze`].
pub fn freeze_holder() -> HolderProgram {
    HolderProgram {
        program: std::env::current_exe().expect("this program"),
        args: ["--exact", "freeze_holder", "--nocapture"].map(str::to_owned).to_vec(),
    }
}

/// Does nothing in an ordinary run.
pub fn hold_freeze() {
    if std::env::var_os(holder::ENV).is_some() {
        let _ = holder::main_with(&process::holder_faults());
        std::process::exit(0);
    }
}

/// A write that does not come back is a filesystem that stayed frozen.
pub async fn writable(dir: &str) -> Result<(), String> {
    let path = Path::new(dir).join("written");
    let written = tokio::task::spawn_blocking(move || {
        std::fs::write(&path, "x")?;
        std::fs::File::open(&path)?.sync_all()
    });
    match tokio::time::timeout(std::time::Duration::from_secs(60), written).await {
        Err(_) => Err(format!("{dir} is still frozen")),
        Ok(written) => written.expect("joined").map_err(|error| format!("{dir}: {error}")),
    }
}

/// A pool directory on a filesystem of its own, on a loop device below the world.
pub fn mount_pool(world: &World, fstype: &str, bytes: u64) {
    let image = world.at("pool.disk");
    std::fs::File::create(&image).expect("made").set_len(bytes).expect("sized");
    run(&format!("mkfs.{fstype}"), &["-q", &image]);
    let pool = world.dir("pool");
    run("mount", &["-t", fstype, "-o", "loop", &image, &pool]);
}

pub fn snapshot(name: &str, source: &str) -> CreateSnapshotRequest {
    CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: source.to_owned(),
        ..Default::default()
    }
}

pub async fn cut(client: &Client, name: &str, source: &str) -> Snapshot {
    let made = client.create_snapshot(snapshot(name, source)).await.expect("cut");
    made.snapshot.expect("a snapshot")
}

pub fn delete_snapshot(id: &str) -> DeleteSnapshotRequest {
    DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() }
}

pub fn from_snapshot(id: &str) -> VolumeContentSource {
    let source = volume_content_source::SnapshotSource { snapshot_id: id.to_owned() };
    VolumeContentSource { r#type: Some(volume_content_source::Type::Snapshot(source)) }
}

pub fn from_volume(id: &str) -> VolumeContentSource {
    let source = volume_content_source::VolumeSource { volume_id: id.to_owned() };
    VolumeContentSource { r#type: Some(volume_content_source::Type::Volume(source)) }
}

/// A request for a copy.
pub fn copy_of(
    source: VolumeContentSource,
    name: &str,
    bytes: i64,
    capability: VolumeCapability,
) -> CreateVolumeRequest {
    CreateVolumeRequest { volume_content_source: Some(source), ..create(name, bytes, capability) }
}

pub fn group(name: &str, sources: &[&str]) -> CreateVolumeGroupSnapshotRequest {
    CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: sources.iter().map(|id| (*id).to_owned()).collect(),
        ..Default::default()
    }
}
