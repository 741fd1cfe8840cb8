//! Hostile requests, many and seeded: every answer is one that CSI knows, and nothing changes.
//!
//! `LONGSHORE_SEED` repeats a run.

mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use common::*;
use longshore_csi::CsiError;
use longshore_csi::v1::volume_capability::access_mode::Mode;
use longshore_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use longshore_csi::v1::*;
use longshore_driver::DriverKind;
use tonic::Code;

/// A small generator: the same seed, the same requests.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).expect("small")
    }

    fn text(&mut self, world: &World) -> String {
        let inside = |name: &str| world.at(name);
        match self.roll(16) {
            0 => String::new(),
            1 => "..".into(),
            2 => "../../etc/passwd".into(),
            3 => "vol-../../../../etc/shadow0000000000".into(),
            4 => "vol-00000000000000000000000000000000".into(),
            5 => "snap-00000000000000000000000000000000".into(),
            6 => "a\u{0}b".into(),
            7 => "x".repeat(self.roll(9000)),
            8 => "/".into(),
            9 => inside("link/deep"),
            10 => inside("link"),
            11 => inside("pool"),
            12 => inside("pool/inner"),
            13 => format!("{}/../outside", inside("staging")),
            14 => "\u{202e}\u{1}\u{7f}🚢".into(),
            _ => "relative/path".into(),
        }
    }

    fn number(&mut self) -> i64 {
        [0, 1, -1, i64::MIN, i64::MAX, 4096, 1 << 62][self.roll(7)]
    }

    fn map(&mut self, world: &World) -> BTreeMap<String, String> {
        (0..self.roll(3)).map(|_| (format!("?{}", self.text(world)), self.text(world))).collect()
    }

    fn range(&mut self) -> Option<CapacityRange> {
        (self.roll(3) > 0)
            .then(|| CapacityRange { required_bytes: self.number(), limit_bytes: self.number() })
    }

    /// Never one that could be granted.
    fn capability(&mut self, world: &World) -> Option<VolumeCapability> {
        let mount = |fs_type: String, mount_flags: Vec<String>, volume_mount_group: String| {
            Some(AccessType::Mount(MountVolume { fs_type, mount_flags, volume_mount_group }))
        };
        let access_type = match self.roll(4) {
            0 => None,
            1 => mount(format!("?{}", self.text(world)), vec![], String::new()),
            2 => mount(String::new(), vec![format!("bind={}", self.text(world))], String::new()),
            _ => mount(String::new(), vec![], "5".into()),
        };
        let mode = Some(AccessMode { mode: [0, 1, 5, 99, -1][self.roll(5)] });
        (self.roll(5) > 0).then_some(VolumeCapability { access_mode: mode, access_type })
    }
}

/// Everything below the world that a request could have changed.
///
/// The image of the mounted volume counts by its size only: its kernel writes to it when it likes.
fn state(world: &World, mounted: &Path) -> Vec<String> {
    fn walk(dir: &Path, mounted: &Path, all: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).expect("read") {
            let path = entry.expect("entry").path();
            let meta = path.symlink_metadata().expect("looked at");
            let read = meta.is_file() && path != mounted;
            let content = if read { std::fs::read(&path).expect("read") } else { vec![] };
            let sum = content.iter().fold(0u64, |sum, b| sum.rotate_left(5) ^ u64::from(*b));
            let bytes = if meta.is_file() { meta.len() } else { 0 };
            all.push(format!("{} {:o} {bytes} {sum}", path.display(), meta.mode()));
            if meta.is_dir() {
                walk(&path, mounted, all);
            }
        }
    }
    let mut all = Vec::new();
    walk(&world.path(), mounted, &mut all);
    all.sort();
    all.extend(world.mounts().iter().map(|path| path.display().to_string()));
    all.extend(world.loops().iter().map(|path| path.display().to_string()));
    all
}

fn check<T: std::fmt::Debug>(what: &str, answer: Result<T, CsiError>) {
    use Code::{
        Aborted, AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, OutOfRange,
        ResourceExhausted, Unimplemented,
    };
    const KNOWN: [Code; 8] = [
        Aborted,
        AlreadyExists,
        FailedPrecondition,
        InvalidArgument,
        NotFound,
        OutOfRange,
        ResourceExhausted,
        Unimplemented,
    ];
    if let Err(error) = answer {
        assert!(KNOWN.contains(&error.code()), "{what}: {error}");
    }
}

async fn one(running: &Running, world: &World, dice: &mut Dice) {
    let client = &running.client;
    let (text, other, third) = (dice.text(world), dice.text(world), dice.text(world));
    let volume_capability = dice.capability(world);
    match dice.roll(19) {
        0 => {
            let request = CreateVolumeRequest {
                name: text,
                capacity_range: dice.range(),
                volume_capabilities: volume_capability.into_iter().collect(),
                parameters: dice.map(world),
                ..Default::default()
            };
            check("create", client.create_volume(request).await);
        }
        1 => check("delete", client.delete_volume(delete(&text)).await),
        2 => {
            let request = ControllerPublishVolumeRequest {
                volume_id: text,
                node_id: other,
                volume_capability,
                ..Default::default()
            };
            check("attach", client.controller_publish_volume(request).await);
        }
        3 => check("detach", client.controller_unpublish_volume(detach(&text, &other)).await),
        4 => {
            let request = ValidateVolumeCapabilitiesRequest {
                volume_id: text,
                volume_capabilities: volume_capability.into_iter().collect(),
                ..Default::default()
            };
            check("validate", client.validate_volume_capabilities(request).await);
        }
        5 => {
            let max_entries = i32::try_from(dice.number()).unwrap_or(-7);
            let request = ListVolumesRequest { max_entries, starting_token: text };
            check("list", client.list_volumes(request).await);
        }
        6 => {
            let request = GetCapacityRequest { parameters: dice.map(world), ..Default::default() };
            check("capacity", client.get_capacity(request).await);
        }
        7 => check("snapshot", client.create_snapshot(snapshot(&other, &text)).await),
        8 => check("unsnapshot", client.delete_snapshot(delete_snapshot(&text)).await),
        9 => {
            let request = ListSnapshotsRequest {
                max_entries: -1,
                starting_token: text,
                source_volume_id: other,
                snapshot_id: third,
                ..Default::default()
            };
            check("list snapshots", client.list_snapshots(request).await);
        }
        10 => {
            let request = ControllerExpandVolumeRequest {
                volume_id: text,
                capacity_range: dice.range(),
                volume_capability,
                ..Default::default()
            };
            check("expand", client.controller_expand_volume(request).await);
        }
        11 => {
            let request = ControllerGetVolumeRequest { volume_id: text };
            check("get", client.controller_get_volume(request).await);
        }
        12 => {
            let request = ControllerModifyVolumeRequest {
                volume_id: text,
                mutable_parameters: dice.map(world),
                ..Default::default()
            };
            check("modify", client.controller_modify_volume(request).await);
        }
        13 => {
            let request = NodeStageVolumeRequest {
                volume_id: text,
                staging_target_path: other,
                volume_capability,
                ..Default::default()
            };
            check("stage", client.node_stage_volume(request).await);
        }
        14 => check("unstage", client.node_unstage_volume(unstage(&text, &other)).await),
        15 => {
            let mut request = NodePublishVolumeRequest {
                volume_id: text,
                staging_target_path: other,
                target_path: third,
                volume_capability,
                volume_context: dice.map(world),
                ..Default::default()
            };
            if dice.roll(2) == 0 {
                let key = "csi.storage.k8s.io/ephemeral".to_owned();
                request.volume_context.insert(key, "true".to_owned());
            }
            check("publish", client.node_publish_volume(request).await);
        }
        16 => check("unpublish", client.node_unpublish_volume(unpublish(&text, &other)).await),
        17 => {
            let request = NodeGetVolumeStatsRequest {
                volume_id: text,
                volume_path: other,
                ..Default::default()
            };
            check("stats", client.node_get_volume_stats(request).await);
        }
        _ => {
            let request = NodeExpandVolumeRequest {
                volume_id: text,
                volume_path: other,
                capacity_range: dice.range(),
                ..Default::default()
            };
            check("expand on node", client.node_expand_volume(request).await);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_requests_change_nothing() {
    if !able("hostile_requests_change_nothing") {
        return;
    }
    let given = std::env::var("LONGSHORE_SEED").ok().and_then(|text| text.parse().ok());
    let long = std::env::var("LONGSHORE_LONG").is_ok_and(|value| value == "1");
    let rounds = if long { 20_000 } else { 1_000 };
    let seed = given.unwrap_or(0x1040_5404_e5ea_u64);
    println!("LONGSHORE_SEED={seed}");
    for kind in [DriverKind::Local, DriverKind::Shared] {
        let world = World::new();
        let running = start(world.config(kind, "n1")).await;
        // Something to lose: a staged volume, and a way out through a link.
        let id = make(&running.client, "kept", 4 * MIB, writer()).await;
        let staging = world.dir("staging");
        if kind == DriverKind::Shared {
            running.client.controller_publish_volume(attach(&id, "n1", writer())).await.unwrap();
        }
        running.client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
        std::fs::write(Path::new(&staging).join("f"), "x").unwrap();
        run("sync", &["-f", &staging]);
        let outside = world.dir("outside");
        std::fs::write(Path::new(&outside).join("f"), "x").unwrap();
        std::os::unix::fs::symlink(&outside, world.at("link")).unwrap();
        let still = make(&running.client, "still", MIB, block(Mode::SingleNodeWriter)).await;
        std::fs::write(image(&world, &still), vec![3; 1 << 20]).unwrap();
        let mounted = image(&world, &id);
        let before = state(&world, &mounted);
        let mut dice = Dice(seed | 1);
        for round in 0..rounds {
            one(&running, &world, &mut dice).await;
            if round % 250 == 249 {
                assert_eq!(
                    state(&world, &mounted),
                    before,
                    "seed {seed}, {kind}, by round {round}"
                );
            }
        }
    }
}

/// The modes of what a driver makes.
#[tokio::test(flavor = "multi_thread")]
async fn what_it_makes_is_closed_to_others() {
    if !able("what_it_makes_is_closed_to_others") {
        return;
    }
    let world = World::new();
    // A pool that somebody left open is closed.
    let pool = world.dir("pool");
    std::fs::set_permissions(&pool, std::fs::Permissions::from_mode(0o777)).unwrap();
    let driver = longshore_driver::Driver::open(world.config(DriverKind::Local, "n1")).unwrap();
    let socket = world.path().join("s/csi.sock");
    let stop = tokio_util::sync::CancellationToken::new();
    let (token, path) = (stop.clone(), socket.clone());
    let served = driver.clone();
    let server = tokio::spawn(async move { longshore_driver::serve(&served, &path, token).await });
    let text = socket.display().to_string();
    let client = longshore_csi::Client::connect(text.into()).await.unwrap();
    let id = make(&client, "a", 4 * MIB, mount(Mode::SingleNodeWriter)).await;
    client.node_stage_volume(stage(&id, &world.dir("staging"), writer())).await.unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&world.pool()), 0o700);
    assert_eq!(mode(&socket), 0o600);
    for name in world.files() {
        assert_eq!(mode(&world.pool().join(&name)), 0o600, "{name}");
    }
    // One pool cannot be had through a link, nor as somebody else's directory.
    let link = world.at("link-to-pool");
    std::os::unix::fs::symlink(world.pool(), &link).unwrap();
    let mut config = world.config(DriverKind::Local, "n2");
    config.pools[0].dir = link.into();
    assert!(longshore_driver::Driver::open(config).is_err());
    stop.cancel();
    server.await.unwrap().unwrap();
}
