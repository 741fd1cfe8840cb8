//! Runs in which a sweep once found something. Each stays as it was found.

use longshore_sim::{Fault, Plan, Run, Scenario, sweep};

fn check(run: &Run) {
    let report = run.play();
    assert!(report.failure.is_none(), "{report}");
}

/// The driver makes the volume, responds too late, and refuses the repeated call with a final code:
/// the "no" dropped the intent record, and the volume stayed.
#[test]
fn a_refusal_after_a_late_response_leaks_no_volume() {
    let faults = vec![(29, Fault::Refused)];
    check(&Run { seed: 4, slow: true, faults, ..Run::calm(Scenario::DeletedBeforeMade) });
}

/// Six workloads.
///
/// 747 and 1170: a claim's own new volume was Bound to it, the claim did not say so yet, and then a
/// volume that is reserved for it was bound to it as well.
///
/// 1103: an attach without a clear result was not taken back, because the node might be using the
/// volume that was never reported to it; the attacher sent it there while another node had it.
///
/// 1532 and 1697: the same, but the volume was still wanted on the first node.
///
/// 1696: a volume went just after its attachment was asked for, and so did the controller that had
/// asked; no controller deleted the attachment.
#[test]
fn six_workloads_that_once_failed_settle_and_leave_nothing() {
    let swept = sweep(&Plan::workloads([747, 1103, 1170, 1532, 1696, 1697], |_| {}));
    assert!(swept.failures.is_empty(), "{}", swept.failures_text());
}

/// A fault closed the driver's connection while a user made a volume by hand. The harness took the
/// missing response for a failure and ended the whole sweep.
#[test]
fn a_users_call_that_meets_a_closed_connection_is_repeated() {
    let swept = sweep(&Plan::workloads([1_001_941, 1_002_085], |_| {}));
    assert!(swept.failures.is_empty(), "{}", swept.failures_text());
}
