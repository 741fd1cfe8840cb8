//! `kill -9` of a real driver process in the middle of every call that copies: writers go on, and
//! the next process finds everything or nothing.

mod common;

use std::path::Path;
use std::time::Duration;

use common::process::{Process, Spec, serve_if_asked};
use common::*;
use longshore_csi::v1::*;
use longshore_csi::{Client, CsiError};
use longshore_driver::DriverKind;
use longshore_driver::id::{GroupId, SnapshotId, VolumeId};
use tonic::Code;

#[test]
fn freeze_holder() {
    hold_freeze();
}

#[test]
fn driver_process() {
    serve_if_asked();
}

async fn start_process(world: &World) -> Process {
    Process::start(Spec::new(world, DriverKind::Local, "n1")).await
}

const STEPS: [&str; 7] =
    ["snapshot", "clone", "restore", "group", "delete-group", "delete-copy", "delete-snapshot"];

/// Everything's id follows from its name, so it is known even when an response is lost.
struct Ids {
    volumes: [String; 2],
    snapshot: String,
    group: String,
    members: Vec<String>,
}

impl Ids {
    fn new() -> Self {
        let volumes = ["a", "b"].map(|name| VolumeId::for_name("n1", name));
        let group = GroupId::for_name("n1", "g");
        let members = volumes.iter().map(|id| SnapshotId::in_group(&group, id).to_string());
        Self {
            members: members.collect(),
            snapshot: SnapshotId::for_name("n1", "s").to_string(),
            group: group.to_string(),
            volumes: volumes.map(|id| id.to_string()),
        }
    }
}

async fn step(client: &Client, step: &str) -> Result<(), CsiError> {
    let ids = Ids::new();
    let [a, b] = [ids.volumes[0].as_str(), ids.volumes[1].as_str()];
    let copy = |name: &str, source| copy_of(source, name, 32 * MIB, writer());
    match step {
        "snapshot" => client.create_snapshot(snapshot("s", a)).await.map(drop),
        "clone" => client.create_volume(copy("clone", from_volume(a))).await.map(drop),
        "restore" => {
            client.create_volume(copy("restored", from_snapshot(&ids.snapshot))).await.map(drop)
        }
        "group" => client.create_volume_group_snapshot(group("g", &[a, b])).await.map(drop),
        "delete-group" => {
            let request = DeleteVolumeGroupSnapshotRequest {
                group_snapshot_id: ids.group,
                snapshot_ids: ids.members,
                ..Default::default()
            };
            client.delete_volume_group_snapshot(request).await.map(drop)
        }
        "delete-copy" => {
            for name in ["clone", "restored"] {
                let id = VolumeId::for_name("n1", name).to_string();
                client.delete_volume(delete(&id)).await?;
            }
            Ok(())
        }
        "delete-snapshot" => client.delete_snapshot(delete_snapshot(&ids.snapshot)).await.map(drop),
        other => panic!("no step {other}"),
    }
}

/// Two mounted volumes that are written to all the time, through every kill.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_during_every_copy_loses_and_leaks_nothing() {
    const NAME: &str = "a_kill_during_every_copy_loses_and_leaks_nothing";
    let Some(world) = World::for_test(NAME) else { return };
    let ids = Ids::new();
    let staging = ["a", "b"].map(|name| world.dir(name));
    let process = start_process(&world).await;
    for (name, (id, at)) in ["a", "b"].iter().zip(ids.volumes.iter().zip(&staging)) {
        assert_eq!(make(&process.client, name, 32 * MIB, writer()).await, *id);
        process.client.node_stage_volume(stage(id, at, writer())).await.expect("staged");
        std::fs::write(Path::new(at).join("data"), vec![7; 8 << 20]).expect("written");
    }
    drop(process);
    let long = std::env::var_os("LONGSHORE_LONG").is_some();
    let delays: &[u64] =
        if long { &[0, 1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96] } else { &[2, 12] };
    for name in STEPS {
        for &delay in delays {
            kill_in(&world, name, Duration::from_millis(delay), &staging).await;
        }
    }
    let process = start_process(&world).await;
    for (id, at) in ids.volumes.iter().zip(&staging) {
        process.client.node_unstage_volume(unstage(id, at)).await.expect("unstaged");
        process.client.delete_volume(delete(id)).await.expect("deleted");
    }
    assert_eq!(world.files(), Vec::<String>::new());
    world.assert_clean();
}

async fn kill_in(world: &World, name: &'static str, delay: Duration, staging: &[String; 2]) {
    let case = format!("killed {delay:?} into {name}");
    let process = start_process(world).await;
    for done in STEPS.iter().take_while(|done| **done != name) {
        step(&process.client, done).await.expect(&case);
    }
    let client = process.client.clone();
    let call = tokio::spawn(async move { step(&client, name).await });
    tokio::time::sleep(delay).await;
    drop(process);
    // Whether an response made it out before the kill does not matter.
    let _ = call.await.expect("the call ended");
    // A driver that was killed must not leave anybody hanging, not even until its next start.
    for at in staging {
        writable(at).await.expect(&case);
    }

    let process = start_process(world).await;
    assert_whole(world, &process.client, &case).await;
    // The same call again succeeds, and then everything can go.
    step(&process.client, name).await.expect(&case);
    for next in ["delete-group", "delete-copy", "delete-snapshot"] {
        match step(&process.client, next).await {
            Ok(()) => {}
            Err(error) => assert_eq!(error.code(), Code::NotFound, "{case}: {next}: {error}"),
        }
    }
    let left: Vec<_> =
        world.files().into_iter().filter(|name| !name.starts_with(".stg-")).collect();
    assert_eq!(left.len(), 4, "{case}: {left:?}");
}

/// What exists is listed, and what is listed exists, image and all.
async fn assert_whole(world: &World, client: &Client, case: &str) {
    let snapshots = client.list_snapshots(ListSnapshotsRequest::default()).await.expect(case);
    let volumes = client.list_volumes(ListVolumesRequest::default()).await.expect(case);
    let snapshots = snapshots.entries.into_iter().map(|one| one.snapshot.expect("set").snapshot_id);
    let volumes = volumes.entries.into_iter().map(|one| one.volume.expect("set").volume_id);
    let mut want: Vec<String> = snapshots.chain(volumes).map(|id| format!("{id}.img")).collect();
    want.sort();
    let files = world.files();
    let images: Vec<String> = files.iter().filter(|name| name.ends_with(".img")).cloned().collect();
    assert_eq!(images, want, "{case}");
    let odd = |name: &&String| name.starts_with('.') && !name.starts_with(".stg-");
    let odd: Vec<_> = files.iter().filter(odd).collect();
    assert_eq!(odd, Vec::<&String>::new(), "{case}");
}
