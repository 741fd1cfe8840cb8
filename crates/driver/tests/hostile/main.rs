//! Hostile requests, many and seeded, to every call of the protocol: every answer is one that CSI
//! knows, and nothing changes. So it is with what is no request at all.
//!
//! `LONGSHORE_SEED` repeats a run.

#[path = "../common/mod.rs"]
mod common;
mod dice;
mod requests;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use bytes::{Buf, BufMut};
use common::*;
use dice::Dice;
use longshore_csi::Call;
use longshore_csi::client::channel;
use longshore_csi::v1::volume_capability::access_mode::Mode;
use longshore_csi::v1::*;
use longshore_driver::DriverKind;
use prost::Message;
use requests::Kept;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};

#[test]
fn freeze_holder() {
    hold_freeze();
}

/// Everything below the world that a request could have changed: names, modes, and of files what
/// `look` says.
///
/// The image of the mounted volume counts by its size only: its kernel writes to it when it likes.
fn state(world: &World, mounted: &Path, show: fn(&Path) -> String) -> Vec<String> {
    fn walk(dir: &Path, mounted: &Path, show: fn(&Path) -> String, all: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).expect("read") {
            let path = entry.expect("entry").path();
            let meta = path.symlink_metadata().expect("looked at");
            let read = meta.is_file() && path != mounted;
            let seen = if read { show(&path) } else { String::new() };
            let bytes = if meta.is_file() { meta.len() } else { 0 };
            all.push(format!("{} {:o} {bytes} {seen}", path.display(), meta.mode()));
            if meta.is_dir() {
                walk(&path, mounted, show, all);
            }
        }
    }
    let mut all = Vec::new();
    walk(&world.path(), mounted, show, &mut all);
    all.sort();
    all.extend(world.mounts().iter().map(|path| path.display().to_string()));
    all.extend(world.loops().iter().map(|path| path.display().to_string()));
    all
}

/// Cheap: a file that was written or replaced has another time or another inode.
fn identity(path: &Path) -> String {
    let meta = path.metadata().expect("looked at");
    format!("{} {}.{}", meta.ino(), meta.mtime(), meta.mtime_nsec())
}

/// Sure: what is in it.
fn content(path: &Path) -> String {
    let bytes = std::fs::read(path).expect("read");
    bytes.iter().fold(0u64, |sum, b| sum.rotate_left(5) ^ u64::from(*b)).to_string()
}

const KNOWN: [Code; 8] = [
    Code::Aborted,
    Code::AlreadyExists,
    Code::FailedPrecondition,
    Code::InvalidArgument,
    Code::NotFound,
    Code::OutOfRange,
    Code::ResourceExhausted,
    Code::Unimplemented,
];

/// A driver with something to lose: a staged volume, a volume with a snapshot, a group, and a way
/// out through a link.
async fn something_to_lose(world: &World, running: &Running, kind: DriverKind) -> Kept {
    let client = &running.client;
    let staged = make(client, "kept", 4 * MIB, writer()).await;
    let staging = world.dir("staging");
    if kind == DriverKind::Shared {
        client.controller_publish_volume(attach(&staged, "n1", writer())).await.expect("set up");
    }
    client.node_stage_volume(stage(&staged, &staging, writer())).await.expect("set up");
    std::fs::write(Path::new(&staging).join("f"), "x").expect("set up");
    run("sync", &["-f", &staging]);
    let outside = world.dir("outside");
    std::fs::write(Path::new(&outside).join("f"), "x").expect("set up");
    std::os::unix::fs::symlink(&outside, world.at("link")).expect("set up");
    let still = make(client, "still", MIB, block(Mode::SingleNodeWriter)).await;
    std::fs::write(image(world, &still), vec![3; 1 << 20]).expect("set up");
    let snapshot = cut(client, "s", &still).await.snapshot_id;
    let made =
        client.create_volume_group_snapshot(group("g", &[&staged, &still])).await.expect("set up");
    let made = made.group_snapshot.expect("set up");
    let members = made.snapshots.into_iter().map(|one| one.snapshot_id).collect();
    Kept { staged, still, snapshot, group: made.group_snapshot_id, members, staging }
}

fn seed_and_rounds() -> (u64, usize) {
    let given = std::env::var("LONGSHORE_SEED").ok().and_then(|text| text.parse().ok());
    let long = std::env::var("LONGSHORE_LONG").is_ok_and(|value| value == "1");
    let seed = given.unwrap_or(0x1040_5404_e5ea_u64);
    println!("LONGSHORE_SEED={seed}");
    (seed, if long { 20_000 } else { 1_000 })
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_requests_change_nothing() {
    if !able("hostile_requests_change_nothing") {
        return;
    }
    let (seed, rounds) = seed_and_rounds();
    for kind in [DriverKind::Local, DriverKind::Shared] {
        let world = World::new();
        let running = start(world.config(kind, "n1")).await;
        let kept = something_to_lose(&world, &running, kind).await;
        let mounted = image(&world, &kept.staged);
        let now = |show| state(&world, &mounted, show);
        let (quick, before) = (now(identity), now(content));
        let mut dice = Dice::new(seed, &world);
        let mut codes: BTreeMap<Call, BTreeMap<String, u32>> = BTreeMap::new();
        for round in 0..rounds {
            // Each call in turn, so that none is left out.
            let call = Call::ALL[round % Call::ALL.len()];
            let code = requests::send(&running.client, &mut dice, &kept, call).await;
            let case = format!("seed {seed}, {kind}, round {round}, {call}: {code:?}");
            assert!(code.is_none_or(|code| KNOWN.contains(&code)), "{case}");
            assert_eq!(now(identity), quick, "{case}");
            let outcome = code.map_or("ok".to_owned(), |code| format!("{code:?}"));
            *codes.entry(call).or_default().entry(outcome).or_default() += 1;
        }
        assert_eq!(now(content), before, "seed {seed}, {kind}");
        assert_eq!(codes.len(), Call::ALL.len());
        for (call, codes) in codes {
            println!("{kind} {call}: {codes:?}");
        }
    }
}

/// Bytes as they are.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let bytes = from.remaining();
        Ok(Some(from.copy_to_bytes(bytes).to_vec()))
    }
}

/// Messages that lack what their call cannot do without, to be damaged further.
fn messages(kept: &Kept) -> Vec<Vec<u8>> {
    let volume_id = kept.staged.clone();
    vec![
        CreateVolumeRequest { name: "kept".into(), ..Default::default() }.encode_to_vec(),
        NodeStageVolumeRequest { volume_id, ..Default::default() }.encode_to_vec(),
        group("", &[&kept.still, "x"]).encode_to_vec(),
        delete(&kept.staged).encode_to_vec(),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_changes_nothing() {
    if !able("what_is_no_request_changes_nothing") {
        return;
    }
    let (seed, rounds) = seed_and_rounds();
    let world = World::new();
    let running = start(world.config(DriverKind::Shared, "n1")).await;
    let kept = something_to_lose(&world, &running, DriverKind::Shared).await;
    let mounted = image(&world, &kept.staged);
    let before = state(&world, &mounted, content);
    let mut grpc = tonic::client::Grpc::new(channel(&running.socket).await.unwrap());
    let mut dice = Dice::new(seed, &world);
    let messages = messages(&kept);
    for round in 0..rounds {
        let call = Call::ALL[round % Call::ALL.len()];
        let of = &messages[dice.roll(messages.len())];
        let bytes = dice.bytes(of);
        grpc.ready().await.expect("the driver lives");
        let path = PathAndQuery::from_static(call.path());
        if let Err(status) = grpc.unary(Request::new(bytes.clone()), path, Raw).await {
            let code = status.code();
            let case = format!("seed {seed}, round {round}, {call} {bytes:02x?}: {status}");
            // What gRPC says of a message that cannot be read.
            let unreadable = code == Code::Internal && status.message().contains("decode");
            assert!(unreadable || KNOWN.contains(&code), "{case}");
        }
    }
    assert_eq!(state(&world, &mounted, content), before, "seed {seed}");
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
