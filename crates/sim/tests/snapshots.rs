//! Snapshots, groups of them and restores, with the shipped programs: an impatient user, crashes at every call, lost
//! answers, conflicts, late watches, a slow driver; the controller and the sidecar as one process or as two.
//!
//! Nothing is lost: what somebody has is never deleted, and what is wanted is ready in the end. Nothing leaks: when
//! everything is deleted the driver has no snapshot.
//!
//! `LONGSHORE_LONG=1` plays thousands of seeds, `LONGSHORE_SEED=N` begins elsewhere.

use std::io::Write as _;

use longshore_controllers::snapshotter::Planted;
use longshore_sim::{Fault, Plan, Run, Scenario, Tweak, first_seed, long, sweep};

fn show(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[test]
fn snapshots_of_impatient_users_are_neither_lost_nor_leaked() {
    let first = first_seed();
    let count = if long() { 2_500 } else { 120 };
    let swept = sweep(&Plan::snapshots(first..first + count, |_| {}));
    show(&format!("\nsnapshots, from seed {first}\n{}", swept.tally.table()));
    assert!(swept.failures.is_empty(), "{}", swept.failures_text());
    for point in ["csi CreateSnapshot", "csi DeleteSnapshot", "csi CreateVolumeGroupSnapshot"] {
        assert!(swept.tally.points().any(|seen| seen == point), "no fault ever struck {point}");
    }
}

/// A restart between any two calls, and an answer that is lost or refused at each.
#[test]
fn a_fault_at_every_call_of_a_snapshot() {
    for seed in [3, 5] {
        let run = Run { seed, apart: true, ..Run::calm(Scenario::Snapshots) };
        let plan = if long() { Plan::every_call(&run) } else { Plan::some(&run, 15) };
        let swept = sweep(&plan);
        show(&format!("\nsnapshots, seed {seed}\n{}", swept.tally.table()));
        assert!(swept.failures.is_empty(), "{}", swept.failures_text());
    }
}

/// Tests the simulator itself: each of these snapshotters must be caught, and for what it does.
#[test]
fn a_planted_defect_is_found() {
    const SINGLE: &str = "csi CreateSnapshot";
    const GROUP: &str = "csi CreateVolumeGroupSnapshot";
    let defects: [(&str, &str, Tweak); 4] = [
        ("forgets calls without a verdict", SINGLE, |all| {
            all.snapshotter.planted = Some(Planted::ForgetsCalls);
        }),
        ("forgets calls for groups without a verdict", GROUP, |all| {
            all.snapshotter.planted = Some(Planted::ForgetsGroups);
        }),
        ("takes a new name for every attempt", SINGLE, |all| {
            all.snapshotter.planted = Some(Planted::NewNames);
        }),
        ("lets contents go without a word to the driver", SINGLE, |all| {
            all.snapshotter.planted = Some(Planted::ReleasesEarly);
        }),
    ];
    for (title, point, tweak) in defects {
        let found = (0..40).find_map(|seed| caught(seed, point, tweak));
        let found = found.unwrap_or_else(|| panic!("a snapshotter that {title} is not caught"));
        let found = &found[..found.len().min(300)];
        show(&format!("planted: a snapshotter that {title}\n  caught: {found}\n"));
    }
}

/// What the defect left behind when the user gave up; without the defect nothing is left.
fn caught(seed: u64, point: &str, tweak: Tweak) -> Option<String> {
    let found = struck(seed, point, tweak)?.play().failure?;
    let sound = struck(seed, point, |_| {})?.play().failure.is_none();
    (sound && found.contains("in the driver")).then_some(found)
}

/// A run in which the answer to this call gets lost, the user gives up, and the next such call is refused.
fn struck(seed: u64, point: &str, tweak: Tweak) -> Option<Run> {
    let mut run = Run { seed, gives_up: true, tweak, ..Run::calm(Scenario::Snapshots) };
    for fault in [Fault::LostResponse, Fault::Refused] {
        let done = run.faults.last().map_or(0, |(number, _)| *number);
        let lines = run.play().lines;
        let next = lines.iter().find(|line| line.point == point && line.number > done);
        match next {
            Some(line) => run.faults.push((line.number, fault)),
            None if run.faults.is_empty() => return None,
            None => {}
        }
    }
    Some(run)
}
