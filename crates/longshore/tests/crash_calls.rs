//! The provisioner as a real process with a fault at each of its calls: killed before or after it took
//! effect, its answer lost, refused, or overtaken by another; with a user who waits and one who deletes the claim at that very
//! moment. No volume is left, and none is made twice. `LONGSHORE_LONG=1` plays every kind of call.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod matrix;
mod sidecar;

use std::{collections::BTreeMap, io::Write as _};

use matrix::{Fault, Round, World};

/// The calls that change something in the life of a claim.
const CHANGES: [&str; 7] = [
    "api create configmaps",
    "csi CreateVolume",
    "api create persistentvolumes",
    "api delete configmaps",
    "csi DeleteVolume",
    "api delete persistentvolumes",
    "api patch persistentvolumes",
];
/// Those at which something may be half made.
const MAKING: [&str; 3] =
    ["api create configmaps", "csi CreateVolume", "api create persistentvolumes"];

fn long() -> bool {
    std::env::var("LONGSHORE_LONG").is_ok_and(|value| value == "1")
}

/// Every change with every fault, and a user who deletes the claim where something is half made.
fn rounds(points: &[String]) -> Vec<Round> {
    let mut rounds = Vec::new();
    for point in points {
        for fault in Fault::ALL.into_iter().filter(|fault| fault.can_strike(point)) {
            for deletes in [false, true] {
                let change = CHANGES.contains(&point.as_str());
                let unclear = !matches!(fault, Fault::Refused | Fault::Conflict);
                let half_made = MAKING.contains(&point.as_str()) && unclear;
                let saved = point == "api create persistentvolumes" && fault == Fault::Conflict;
                let wanted = long() || (change && !deletes && unclear) || saved;
                if wanted || (deletes && half_made) {
                    rounds.push(Round { point: point.clone(), fault, deletes, unguarded: false });
                }
            }
        }
    }
    rounds
}

fn show(tally: &BTreeMap<(String, Fault), u32>) {
    let mut text = String::from("\nfault points of the provisioner's process\n");
    let points: std::collections::BTreeSet<&String> =
        tally.keys().map(|(point, _)| point).collect();
    for point in points {
        let counts = Fault::ALL.map(|fault| {
            let count = tally.get(&(point.clone(), fault)).copied().unwrap_or(0);
            format!("{} {count:>3}", fault.name())
        });
        text += &format!("{point:<34} {}\n", counts.join("   "));
    }
    // Also when the test passes, which the harness would hide.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_at_each_call_of_a_claims_life() {
    let world = World::new().await;
    let calm = world.calm().await;
    for point in CHANGES {
        assert!(calm.contains_key(point), "no {point} in {calm:?}");
    }
    let points: Vec<String> = calm.into_keys().collect();
    let mut tally = BTreeMap::new();
    for round in rounds(&points) {
        let struck = world.play(&round).await.unwrap_or_else(|why| panic!("{why}"));
        *tally.entry((round.point, round.fault)).or_default() += u32::from(struck);
    }
    show(&tally);
    for point in CHANGES {
        for fault in [Fault::KillBefore, Fault::KillAfter, Fault::Lost] {
            let count = tally.get(&(point.to_owned(), fault)).copied().unwrap_or(0);
            assert!(count > 0, "{} never struck {point}", fault.name());
        }
    }
    let saved = ("api create persistentvolumes".to_owned(), Fault::Conflict);
    assert!(tally.get(&saved).is_some_and(|count| *count > 0), "no conflict ever struck");
    world.end().await;
}

/// Tries the net itself: without the leak guard a volume is lost, and that must be seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_volume_is_found() {
    let world = World::new().await;
    let point = "csi CreateVolume".to_owned();
    let round = Round { point, fault: Fault::KillAfter, deletes: true, unguarded: true };
    let why = world.play(&round).await.expect_err("no guard, and nothing is lost");
    assert!(why.contains("1 volumes in the driver, 0 claims, 0 volumes"), "{why}");
    world.end().await;
}
