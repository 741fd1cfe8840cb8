//! Claims that grow and change their class: users who change their mind, sizes and classes that the driver
//! refuses, crashes at every call, lost answers, conflicts, late watches, a slow driver.
//!
//! A claim never says more than its volume has and its node shows; the driver never gets a new class
//! before the verdict on the last; in the end every claim has what it asks for, and says nothing else.
//!
//! `LONGSHORE_LONG=1` plays thousands of seeds, `LONGSHORE_SEED=N` begins elsewhere.

use std::io::Write as _;

use longshore_controllers::resize::fault::{Bug, Faults};
use longshore_sim::{Fault, Plan, Run, Scenario, Tweak, first_seed, long, sweep};

/// Where every kind of fault must strike.
const POINTS: [&str; 4] = [
    "csi ControllerExpandVolume",
    "csi ControllerModifyVolume",
    "api patch persistentvolumeclaims/status",
    "api patch persistentvolumes",
];

fn show(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[test]
fn claims_that_change_come_to_what_was_asked_for_last() {
    let first = first_seed();
    let count = if long() { 2_500 } else { 120 };
    // A few seeds do not strike everywhere.
    let calm = Run { seed: 4, ..Run::calm(Scenario::Changed) };
    let seeds = Plan::changes(first..first + count, |_| {});
    let swept = sweep(&POINTS.iter().fold(seeds, |plan, point| plan.and_at(&calm, point)));
    show(&format!("\nclaims that change, from seed {first}\n{}", swept.tally.table()));
    assert!(swept.failures.is_empty(), "{}", swept.failures_text());
    for point in POINTS {
        for fault in Fault::ALL {
            assert!(swept.tally.count(point, fault) > 0, "{fault} never struck {point}");
        }
    }
}

#[test]
fn a_fault_at_every_call_of_a_claim_that_changes() {
    for seed in [4, 7] {
        let run = Run { seed, ..Run::calm(Scenario::Changed) };
        let plan = if long() { Plan::every_call(&run) } else { Plan::some(&run, 15) };
        let swept = sweep(&plan);
        show(&format!("\na claim that changes, seed {seed}\n{}", swept.tally.table()));
        assert!(swept.failures.is_empty(), "{}", swept.failures_text());
    }
}

/// Tests the simulator itself: each of these resizers must be caught, and for what it does.
#[test]
fn a_planted_defect_is_found() {
    let defects: [(&str, &str, Tweak); 3] = [
        ("says too early that a claim has grown", "success is said too early", |all| {
            all.resize_faults = Faults::NONE.forgetting(Bug::EarlySuccess);
        }),
        ("forgets the way back to the last class", "a stage of a modification is left", |all| {
            all.resize_faults = Faults::NONE.forgetting(Bug::LostRollback);
        }),
        ("asks for two classes at once", "two classes at once", |all| {
            all.resize_faults = Faults::NONE.forgetting(Bug::TwoClasses);
        }),
    ];
    for (title, sign, tweak) in defects {
        let found = (0..400).find_map(|seed| caught(seed, sign, tweak));
        let found = found.unwrap_or_else(|| panic!("a resizer that {title} is not caught"));
        show(&format!(
            "planted: a resizer that {title}\n  caught: {}\n",
            &found[..found.len().min(300)]
        ));
    }
}

/// The line that says what the defect did in this run, which passes without it.
fn caught(seed: u64, sign: &str, tweak: Tweak) -> Option<String> {
    let text = sweep(&Plan::changes(seed..=seed, tweak)).failures_text();
    let found = text.lines().find(|line| line.contains(sign))?.to_owned();
    sweep(&Plan::changes(seed..=seed, |_| {})).failures.is_empty().then_some(found)
}
