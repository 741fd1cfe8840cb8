//! Thirty-two clients at once with calls on the same few names, repeated and cut off at any
//! moment: whatever they did, what is there afterwards is exactly what is said to be there.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use longshore_csi::v1::*;
use longshore_csi::{Client, CsiError};
use longshore_driver::DriverKind;
use longshore_driver::id::{SnapshotId, VolumeId};
use parking_lot::Mutex;
use tonic::Code;

#[test]
fn freeze_holder() {
    hold_freeze();
}

const CLIENTS: u64 = 32;
const VOLUMES: [&str; 8] = ["v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7"];
const SNAPSHOTS: [&str; 5] = ["s0", "s1", "s2", "s3", "s4"];
const OPS: [&str; 11] = [
    "create",
    "clone",
    "restore",
    "snapshot",
    "expand",
    "delete",
    "drop-snapshot",
    "stage",
    "publish",
    "unpublish",
    "unstage",
];

fn volume_id(name: &str) -> String {
    VolumeId::for_name("n1", name).to_string()
}

fn snapshot_id(name: &str) -> String {
    SnapshotId::for_name("n1", name).to_string()
}

fn staging(world: &Path, name: &str) -> String {
    world.join(format!("staging-{name}")).to_str().expect("text").to_owned()
}

fn target(world: &Path, name: &str) -> String {
    world.join(format!("target-{name}")).to_str().expect("text").to_owned()
}

/// One call. `name` is the volume, the other two are what it may be made from or into.
async fn call(
    client: &Client,
    world: &Path,
    op: &str,
    name: &str,
    other: &str,
    snap: &str,
) -> Result<(), CsiError> {
    let (id, at, to) = (volume_id(name), staging(world, name), target(world, name));
    match op {
        "create" => client.create_volume(create(name, 4 * MIB, writer())).await.map(drop),
        "clone" => {
            let source = from_volume(&volume_id(other));
            client.create_volume(copy_of(source, name, 4 * MIB, writer())).await.map(drop)
        }
        "restore" => {
            let source = from_snapshot(&snapshot_id(snap));
            client.create_volume(copy_of(source, name, 4 * MIB, writer())).await.map(drop)
        }
        "snapshot" => client.create_snapshot(snapshot(snap, &id)).await.map(drop),
        "expand" => client.node_expand_volume(grow_on_node(&id, &to, 8 * MIB)).await.map(drop),
        "delete" => client.delete_volume(delete(&id)).await.map(drop),
        "drop-snapshot" => {
            client.delete_snapshot(delete_snapshot(&snapshot_id(snap))).await.map(drop)
        }
        "stage" => client.node_stage_volume(stage(&id, &at, writer())).await.map(drop),
        "publish" => client.node_publish_volume(publish(&id, &at, &to, writer())).await.map(drop),
        "unpublish" => client.node_unpublish_volume(unpublish(&id, &to)).await.map(drop),
        "unstage" => client.node_unstage_volume(unstage(&id, &at)).await.map(drop),
        other => panic!("no call {other}"),
    }
}

/// Status codes that mean "not now" or "not like this". Everything else is a fault of the driver.
const EXPECTED: [Code; 5] = [
    Code::Aborted,
    Code::NotFound,
    Code::AlreadyExists,
    Code::FailedPrecondition,
    Code::OutOfRange,
];

type Counts = Arc<Mutex<BTreeMap<(&'static str, String), u64>>>;

async fn client_loop(client: Client, world: Arc<Path>, seed: u64, end: Instant, counts: Counts) {
    let mut random = fastrand::Rng::with_seed(seed);
    // A slow machine goes on until every kind of call has succeeded.
    let patience = end + Duration::from_secs(120);
    while Instant::now() < end || (missing(&counts).is_some() && Instant::now() < patience) {
        let op = OPS[random.usize(..OPS.len())];
        let name = VOLUMES[random.usize(..VOLUMES.len())];
        let other = VOLUMES[random.usize(..VOLUMES.len())];
        let snap = SNAPSHOTS[random.usize(..SNAPSHOTS.len())];
        let one = call(&client, &world, op, name, other, snap);
        let response = match random.u8(..4) {
            // Hung up on; the driver goes on.
            0 => {
                let wait = Duration::from_micros(random.u64(..3_000));
                tokio::time::timeout(wait, one).await.ok()
            }
            // Twice at once.
            1 => {
                let again = call(&client, &world, op, name, other, snap);
                let (first, second) = tokio::join!(one, again);
                count(&counts, op, Some(second));
                Some(first)
            }
            _ => Some(one.await),
        };
        count(&counts, op, response);
    }
}

/// A kind of call that never succeeded.
fn missing(counts: &Counts) -> Option<&'static str> {
    let counts = counts.lock();
    OPS.into_iter().find(|op| !counts.contains_key(&(*op, "ok".to_owned())))
}

fn count(counts: &Counts, op: &'static str, response: Option<Result<(), CsiError>>) {
    let outcome = match response {
        None => "cut off".to_owned(),
        Some(Ok(())) => "ok".to_owned(),
        Some(Err(error)) => {
            assert!(EXPECTED.contains(&error.code()), "{op}: {error}");
            format!("{:?}", error.code())
        }
    };
    *counts.lock().entry((op, outcome)).or_default() += 1;
}

/// Repeats a call until nothing else is under way.
async fn surely(client: &Client, world: &Path, op: &str, name: &str) -> Result<(), CsiError> {
    for _ in 0..6_000 {
        match call(client, world, op, name, name, name).await {
            Err(error) if error.code() == Code::Aborted => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            response => return response,
        }
    }
    panic!("{op} of {name}: something else is under way for ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_on_few_names() {
    const NAME: &str = "many_clients_on_few_names";
    let Some(world) = World::for_test(NAME) else { return };
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let root: Arc<Path> = world.path().into();
    for name in VOLUMES {
        std::fs::create_dir(staging(&root, name)).unwrap();
    }
    let seconds = if std::env::var_os("LONGSHORE_LONG").is_some() { 300 } else { 8 };
    let end = Instant::now() + Duration::from_secs(seconds);
    let counts = Counts::default();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let seed = fastrand::u64(..) ^ n;
            let (client, root, counts) = (running.client.clone(), root.clone(), counts.clone());
            tokio::spawn(client_loop(client, root, seed, end, counts))
        })
        .collect();
    for client in clients {
        client.await.expect("a client ends well");
    }
    assert_eq!(missing(&counts), None, "never succeeded: {:?}", counts.lock());
    println!("{:?}", counts.lock());

    // Calls that were cut off may still be at it; then the first half of the names is in use, and
    // the second half is gone.
    let client = &running.client;
    let (kept, gone) = VOLUMES.split_at(VOLUMES.len() / 2);
    for name in VOLUMES {
        for op in ["unpublish", "unstage", "delete"] {
            match surely(client, &root, op, name).await {
                Ok(()) => {}
                Err(error) => assert_eq!(error.code(), Code::NotFound, "{op} {name}: {error}"),
            }
        }
    }
    world.assert_clean();
    for name in kept {
        for op in ["create", "stage", "publish"] {
            surely(client, &root, op, name).await.expect(op);
        }
    }
    let listed = client.list_snapshots(ListSnapshotsRequest::default()).await.unwrap();
    let snapshots: BTreeSet<String> =
        listed.entries.into_iter().map(|one| one.snapshot.unwrap().snapshot_id).collect();
    let volumes: BTreeSet<String> = kept.iter().map(|name| volume_id(name)).collect();
    let want: BTreeSet<String> = snapshots
        .union(&volumes)
        .flat_map(|id| [format!("{id}.img"), format!("{id}.json")])
        .collect();
    let files = world.files().into_iter().filter(|name| !name.starts_with(".stg-"));
    assert_eq!(files.collect::<BTreeSet<_>>(), want, "images and records; gone: {gone:?}");
    let mounts: BTreeSet<_> = world.mounts().into_iter().collect();
    let want = kept.iter().flat_map(|name| [staging(&root, name), target(&root, name)]);
    assert_eq!(mounts, want.map(Into::into).collect(), "mounts");
    assert_eq!(world.loops().len(), kept.len(), "loop devices");

    // Every snapshot that is left can be restored and mounted.
    for (n, id) in snapshots.iter().enumerate() {
        let name = format!("r{n}");
        let copy = copy_of(from_snapshot(id), &name, 0, writer());
        let copy = CreateVolumeRequest { capacity_range: None, ..copy };
        let made = client.create_volume(copy).await.expect("restored").volume.unwrap().volume_id;
        let at = world.dir(&name);
        client.node_stage_volume(stage(&made, &at, writer())).await.expect("staged");
        client.node_unstage_volume(unstage(&made, &at)).await.expect("unstaged");
        client.delete_volume(delete(&made)).await.expect("deleted");
        client.delete_snapshot(delete_snapshot(id)).await.expect("deleted");
    }
    for name in kept {
        for op in ["unpublish", "unstage", "delete"] {
            surely(client, &root, op, name).await.expect(op);
        }
    }
    assert_eq!(world.files(), Vec::<String>::new());
    world.assert_clean();
}
