//! `kill -9` of a real driver process in the middle of every call: the next process finishes the
//! job, the data is there, and nothing is left.

mod common;

use std::path::Path;
use std::time::Duration;

use common::process::{Process, Spec, serve_if_asked};
use common::*;
use longshore_csi::{Client, CsiError};
use longshore_driver::DriverKind;
use longshore_driver::id::VolumeId;
use tonic::Code;

#[test]
fn driver_process() {
    serve_if_asked();
}

const STEPS: [&str; 6] = ["create", "stage", "publish", "unpublish", "unstage", "delete"];

/// Where the volume is shown.
#[derive(Clone)]
struct Paths {
    staging: String,
    target: String,
}

/// Does one step; the id follows from the name, so it is known even when an response is lost.
async fn step(client: &Client, paths: &Paths, id: &str, step: &str) -> Result<(), CsiError> {
    let Paths { staging, target } = paths;
    match step {
        "create" => client.create_volume(create("a", 4 * MIB, writer())).await.map(|_| ()),
        "stage" => client.node_stage_volume(stage(id, staging, writer())).await.map(|_| ()),
        "publish" => {
            client.node_publish_volume(publish(id, staging, target, writer())).await.map(|_| ())
        }
        "unpublish" => client.node_unpublish_volume(unpublish(id, target)).await.map(|_| ()),
        "unstage" => client.node_unstage_volume(unstage(id, staging)).await.map(|_| ()),
        "delete" => client.delete_volume(delete(id)).await.map(|_| ()),
        other => panic!("no step {other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_during_every_call_loses_and_leaks_nothing() {
    let Some(world) = World::for_test("a_kill_during_every_call_loses_and_leaks_nothing") else {
        return;
    };
    let mut kills = 0;
    for name in STEPS {
        for delay_us in [0, 1_500, 6_000] {
            for then in [Then::DoItAgain, Then::GiveUp] {
                kill_in(&world, name, Duration::from_micros(delay_us), then).await;
                kills += 1;
            }
        }
    }
    assert_eq!(kills, 6 * STEPS.len());
}

/// What the caller wants of the next process.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Then {
    /// The pod is still wanted.
    DoItAgain,
    /// It is not: whatever there is has to go.
    GiveUp,
}

async fn kill_in(world: &World, name: &'static str, delay: Duration, then: Then) {
    let case = format!("killed {delay:?} into {name}, then {then:?}");
    let id = VolumeId::for_name("n1", "a").to_string();
    let paths = Paths { staging: world.dir("staging"), target: world.at("target") };
    let data = Path::new(&paths.target).join("data");

    let process = Process::start(Spec::new(world, DriverKind::Local, "n1")).await;
    for done in STEPS.iter().take_while(|done| **done != name) {
        step(&process.client, &paths, &id, done).await.expect(&case);
        if *done == "publish" {
            std::fs::write(&data, &case).expect("written");
            std::fs::File::open(&data).expect("open").sync_all().expect("flushed");
        }
    }
    let (client, to, volume) = (process.client.clone(), paths.clone(), id.clone());
    let call = tokio::spawn(async move { step(&client, &to, &volume, name).await });
    tokio::time::sleep(delay).await;
    drop(process);
    // Whether an response made it out before the kill does not matter.
    let _ = call.await.expect("the call ended");

    let process = Process::start(Spec::new(world, DriverKind::Local, "n1")).await;
    let again = |next: &'static str| {
        let (client, paths, id, case) = (&process.client, &paths, &id, &case);
        async move {
            match step(client, paths, id, next).await {
                Ok(()) => {}
                // Never made, or already gone: then there is nothing to take away.
                Err(error) if then == Then::GiveUp && error.code() == Code::NotFound => {}
                Err(error) => panic!("{case}: {next}: {error}"),
            }
        }
    };
    if then == Then::DoItAgain {
        for next in ["create", "stage", "publish"] {
            again(next).await;
        }
        if ["unpublish", "unstage"].contains(&name) {
            assert_eq!(std::fs::read_to_string(&data).expect(&case), case);
        }
    }
    for next in ["unpublish", "unstage", "delete"] {
        again(next).await;
    }
    world.assert_clean();
    assert_eq!(world.files(), Vec::<String>::new(), "{case}");
    assert!(!Path::new(&paths.target).exists(), "{case}");
}
