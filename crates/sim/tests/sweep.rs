//! A fault at every call in a claim's life, and many at once from seeds: nothing is ever left
//! behind, and nothing unsafe ever happens.
//!
//! `LONGSHORE_LONG=1` runs every call of every scenario and thousands of seeds; `LONGSHORE_SEED=N`
//! takes other seeds.

use std::io::Write as _;

use longshore_controllers::provision::Planted;
use longshore_sim::{Fault, Plan, Run, Scenario, Swept, Tweak, first_seed, long, sweep};

/// Shows the table also when the test passes, which the harness would hide.
fn show(title: &str, swept: &Swept) {
    let text = format!("\n{title}\n{}", swept.tally.table());
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn check(title: &str, swept: &Swept) {
    show(title, swept);
    assert!(swept.failures.is_empty(), "{}", swept.failures_text());
}

#[test]
fn a_fault_at_every_call_of_an_immediate_claim() {
    let swept = sweep(&Plan::every_call(&Run::calm(Scenario::Immediate)));
    check("a claim that is bound at once, a fault at every call", &swept);
    for fault in Fault::ALL {
        for point in ["csi CreateVolume", "csi DeleteVolume", "api create persistentvolumes"] {
            assert!(swept.tally.count(point, fault) > 0, "{fault} never struck {point}");
        }
    }
}

#[test]
fn a_fault_while_a_snapshot_is_restored() {
    let run = Run::calm(Scenario::Restored);
    let plan = if long() { Plan::every_call(&run) } else { Plan::some(&run, 20) };
    let swept = sweep(&plan);
    check("a snapshot that is restored", &swept);
    assert!(swept.tally.points().any(|point| point == "api update volumesnapshots"));
}

/// Tests the simulator itself: each of these provisioners must be caught, and for what it does.
#[test]
fn a_planted_defect_is_found() {
    let defects: [(&str, Scenario, &str, Tweak); 6] = [
        ("forgets calls without a verdict", Scenario::DeletedAfterMade, "in the driver", |all| {
            all.provision.planted = Some(Planted::Leak);
        }),
        ("writes no intents", Scenario::DeletedAfterMade, "in the driver", |all| {
            all.provision.leak_guard = None;
        }),
        ("takes a new name for every attempt", Scenario::Immediate, "2 volumes were made", |all| {
            all.provision.planted = Some(Planted::NewNames);
        }),
        ("saves volumes without a finalizer", Scenario::VolumeFirst, "in the driver", |all| {
            all.provision.planted = Some(Planted::NoFinalizer);
        }),
        ("leaves a finalizer on", Scenario::Cloned, "cloning-protection", |all| {
            all.provision.clone_threads = 0;
        }),
        ("deletes too early", Scenario::FirstConsumer, "has it", |all| {
            all.provision.planted = Some(Planted::EarlyDelete);
        }),
    ];
    for (title, scenario, sign, tweak) in defects {
        let run = Run { tweak, ..Run::calm(scenario) };
        let calm = run.play();
        let text = match calm.failure {
            Some(_) => calm.to_string(),
            None => sweep(&Plan::every_call(&run).until_failure()).failures_text(),
        };
        assert!(text.contains(sign), "a provisioner that {title} is not caught:\n{text}");
        let found = text.lines().find(|line| line.contains(sign)).unwrap_or_default();
        let line = format!("planted: a provisioner that {title}\n  caught: {found}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// Every call with `LONGSHORE_LONG=1`, else every change and some of the rest.
fn plan(scenario: Scenario) -> Plan {
    Plan::thinned(&Run::calm(scenario), if long() { 1 } else { 5 })
}

#[test]
fn a_fault_in_the_life_of_a_claim_that_waits_for_its_pod() {
    let swept = sweep(&plan(Scenario::FirstConsumer));
    check("a claim that waits for its pod", &swept);
}

#[test]
fn a_fault_while_a_claim_is_deleted_that_is_being_provisioned() {
    let mut swept = Swept::default();
    for scenario in [Scenario::DeletedBeforeMade, Scenario::DeletedAfterMade, Scenario::Recreated] {
        swept.merge(sweep(&plan(scenario)));
    }
    check("a claim that is deleted while its volume is made", &swept);
}

#[test]
fn a_fault_while_a_volume_moves_from_node_to_node() {
    let swept = sweep(&plan(Scenario::Attached));
    check("a volume that is attached to one node and then to another", &swept);
    for fault in Fault::ALL {
        for point in ["csi ControllerPublishVolume", "csi ControllerUnpublishVolume"] {
            assert!(swept.tally.count(point, fault) > 0, "{fault} never struck {point}");
        }
    }
}

#[test]
fn a_fault_while_a_claim_is_cloned() {
    let run = Run::calm(Scenario::Cloned);
    let marked = "api update persistentvolumeclaims";
    let some = || Plan::some(&run, 20).and_at(&run, marked);
    let plan = if long() { Plan::every_call(&run) } else { some() };
    let swept = sweep(&plan);
    check("a claim that is cloned", &swept);
    for fault in Fault::ALL {
        assert!(swept.tally.count(marked, fault) > 0, "{fault} never struck {marked}");
    }
}

/// A slow driver and late watches, and on top of that a fault at every call.
#[test]
fn a_fault_with_a_slow_driver_and_late_watches() {
    let seeds = if long() { 1..=6 } else { 1..=1 };
    let mut swept = Swept::default();
    for seed in seeds {
        for scenario in Scenario::ALL {
            let run = Run { seed, slow: true, ..Run::calm(scenario) };
            let plan = if long() { Plan::every_call(&run) } else { Plan::some(&run, 5) };
            swept.merge(sweep(&plan));
        }
    }
    check("a slow driver and late watches", &swept);
}

#[test]
fn many_faults_and_a_hasty_user() {
    let seeds = if long() { 2_500 } else { 300 };
    let first = first_seed();
    let swept = sweep(&Plan::seeds(first..first + seeds));
    check(&format!("seeds, from seed {first}"), &swept);
}
