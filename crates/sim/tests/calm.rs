//! Without faults every scenario comes to its end; one seed repeats exactly.

use longshore_sim::{Fault, Plan, Run, Scenario, Tweak, first_seed};

#[test]
fn every_scenario_without_faults_leaves_nothing_behind() {
    for scenario in Scenario::ALL {
        let report = Run::calm(scenario).play();
        assert!(report.failure.is_none(), "{report}");
    }
}

#[test]
fn one_seed_gives_the_same_trace_byte_for_byte() {
    let faults = vec![(15, Fault::LostResponse), (33, Fault::CrashAfter), (60, Fault::Refused)];
    let fixed = Scenario::ALL.into_iter().chain([Scenario::Workload]).map(|scenario| {
        let faults = faults.clone();
        Run { seed: 7, faults, hasty: true, slow: true, ..Run::calm(scenario) }
    });
    let first = first_seed();
    let runs = [Plan::seeds(first..first + 12), Plan::workloads(first..first + 12, |_| {})];
    for run in fixed.chain(runs.into_iter().flat_map(Plan::into_runs)) {
        let trace = run.play().trace();
        for _ in 0..2 {
            let again = run.play().trace();
            for (one, two) in trace.lines().zip(again.lines()) {
                assert_eq!(one, two, "{run}");
            }
            assert_eq!(trace, again, "{run}");
        }
    }
}

#[test]
fn a_failing_run_prints_its_seed_and_the_command_that_repeats_it() {
    let tweak: Tweak = |all| all.provision.clone_threads = 0;
    let report = Run { seed: 11, tweak, ..Run::calm(Scenario::Cloned) }.play();
    assert!(report.failure.is_some(), "nothing takes the finalizer off, so it stays");
    let text = report.to_string();
    for part in ["cloned seed=11: ", "--example replay -- cloned seed=11\n"] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}
