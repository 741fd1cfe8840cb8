//! Without faults: every life comes to its end, and repeats exactly.

use longshore_sim::{Fault, Run, Scenario};

#[test]
fn every_life_comes_to_its_end() {
    for scenario in Scenario::ALL {
        let report = Run::calm(scenario).play();
        assert!(report.failure.is_none(), "{report}");
    }
}

#[test]
fn a_run_repeats_exactly() {
    for scenario in Scenario::ALL {
        let faults = vec![(15, Fault::LostAnswer), (33, Fault::CrashAfter), (60, Fault::Refused)];
        let run = Run { seed: 7, faults, hasty: true, rough: true, ..Run::calm(scenario) };
        let first = run.play();
        for _ in 0..3 {
            let again = run.play();
            for (one, two) in first.lines.iter().zip(&again.lines) {
                assert_eq!(one.to_string(), two.to_string(), "{run}");
            }
            assert_eq!(first.lines.len(), again.lines.len(), "{run}");
        }
    }
}
