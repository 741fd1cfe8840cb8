//! Workloads: users, binder, provisioner, scheduler, attach-detach controller and attacher at once, with
//! crashes of either process, lost responses, nodes that are partitioned, switched off, removed or said to
//! be out of service.
//!
//! No volume is bound to two claims and no claim to two volumes, no bound volume is reclaimed, nothing
//! is made twice, no two nodes have a volume mounted, everything settles once the faults stop, and
//! nothing is left: no volume, no attachment, no object.
//!
//! `LONGSHORE_LONG=1` plays thousands of them, `LONGSHORE_SEED=N` begins elsewhere.

use std::io::Write as _;

use longshore_controllers::planted::Planted;
use longshore_sim::{Fault, Plan, Tweak, first_seed, long, sweep};

fn show(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[test]
fn nothing_unsafe_happens_and_nothing_is_left() {
    let first = first_seed();
    let count = if long() { 2_500 } else { 300 };
    let swept = sweep(&Plan::workloads(first..first + count, |_| {}));
    show(&format!("\nworkloads, from seed {first}\n{}", swept.tally.table()));
    assert!(swept.failures.is_empty(), "{}", swept.failures_text());
    let points = [
        "csi CreateVolume",
        "csi ControllerPublishVolume",
        "csi ControllerUnpublishVolume",
        "api create persistentvolumes",
        "api update persistentvolumes",
        "api update persistentvolumeclaims",
        "api create volumeattachments",
    ];
    for point in points {
        let count: u64 = Fault::ALL.map(|fault| swept.tally.count(point, fault)).iter().sum();
        assert!(count > 0, "nothing ever struck {point}");
    }
}

/// Tests the simulator itself: each of these defects must be caught, and for what it does.
#[test]
fn a_planted_defect_is_found() {
    // From which seed on it is looked for, with steps of three: workloads with volumes made by hand are
    // among every third from 1 on, those with pods that move from 2 on.
    let defects: [(&str, u64, &str, Tweak); 7] = [
        ("one volume for two claims", 1, "is bound to two claims", |all| {
            all.bind.planted = Some(Planted::TwoClaims);
        }),
        ("two volumes for one claim", 1, "is bound to two volumes", |all| {
            all.bind.planted = Some(Planted::TwoVolumes);
        }),
        ("a bound volume reclaimed", 65, "while claim", |all| {
            all.bind.planted = Some(Planted::EarlyReclaim);
        }),
        ("a binder that gives up", 589, "the workload settles", |all| {
            all.bind.planted = Some(Planted::GivesUp);
            all.bind.resync = std::time::Duration::from_secs(24 * 3600);
        }),
        ("a double attach", 2, "is sent to", |all| {
            all.attach.planted = Some(Planted::DoubleAttach);
        }),
        ("a detach of what is mounted", 2, "is still used on", |all| {
            all.attach.planted = Some(Planted::EarlyDetach);
        }),
        ("a leaked attachment", 74, "attachment csi-", |all| {
            all.attach.planted = Some(Planted::ForgetsAttachments);
        }),
    ];
    for (title, first, sign, tweak) in defects {
        let found = (first..first + 1_000).step_by(3).find_map(|seed| caught(seed, sign, tweak));
        let found = found.unwrap_or_else(|| panic!("{title} is not caught from seed {first} on"));
        show(&format!("planted: {title}\n  caught: {}\n", &found[..found.len().min(300)]));
    }
}

/// The line that says what the defect did in this workload, which passes without it.
fn caught(seed: u64, sign: &str, tweak: Tweak) -> Option<String> {
    let text = sweep(&Plan::workloads(seed..=seed, tweak)).failures_text();
    let found = text.lines().find(|line| line.contains(sign))?.to_owned();
    sweep(&Plan::workloads(seed..=seed, |_| {})).failures.is_empty().then_some(found)
}
