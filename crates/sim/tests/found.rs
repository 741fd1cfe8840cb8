//! Worlds in which a sweep once found something. Each stays as it was found.

use longshore_sim::{Fault, Run, Scenario};

fn check(run: &Run) {
    let report = run.play();
    assert!(report.failure.is_none(), "{report}");
}

/// The driver makes the volume, answers too late, and refuses the repeated call with a final code:
/// the "no" dropped the intent record, and the volume stayed.
#[test]
fn a_refusal_after_a_late_answer() {
    let faults = vec![(29, Fault::Refused)];
    check(&Run { seed: 4, rough: true, faults, ..Run::calm(Scenario::DeletedBeforeMade) });
}
