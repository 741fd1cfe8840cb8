//! Sweeps over many runs: a fault at every call, and seeds with several.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::{Fault, Line, Report, Run, Scenario, Tally, Tweak};

/// Calls beyond those of a calm run that are tried too: a fault makes a run longer.
const BEYOND: u64 = 3;
/// Failures kept; more of them say nothing new.
const KEPT: usize = 5;

/// Whether the long form of all tests is asked for.
#[must_use]
pub fn long() -> bool {
    std::env::var("LONGSHORE_LONG").is_ok_and(|value| value == "1")
}

/// The first seed of a sweep: `LONGSHORE_SEED`, else 0.
///
/// # Panics
/// `LONGSHORE_SEED` is not a number: a typing error would repeat the usual seeds.
#[must_use]
pub fn first_seed() -> u64 {
    match std::env::var("LONGSHORE_SEED") {
        Ok(text) => {
            text.parse().unwrap_or_else(|_| panic!("LONGSHORE_SEED={text:?} is not a number"))
        }
        Err(_) => 0,
    }
}

/// The runs of a sweep.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    runs: Vec<Run>,
    until_failure: bool,
}

impl Plan {
    /// Each kind of fault at every call of a scenario.
    #[must_use]
    pub fn every_call(base: &Run) -> Self {
        Self::thinned(base, 1)
    }

    /// Each kind of fault at every call that changes something, and at every `step`-th of the
    /// others, with a user who waits and, where something may be half done, with one who gives up. Each
    /// kind of fault begins at another one, so that together they meet them all.
    #[must_use]
    pub fn thinned(base: &Run, step: usize) -> Self {
        let calm = base.play();
        assert!(calm.failure.is_none(), "without any fault:\n{calm}");
        let calls = calm.lines.len() as u64 + BEYOND;
        let changes = |number: u64| calm.lines.get(number as usize - 1).is_some_and(is_change);
        let mut runs = Vec::new();
        for (offset, fault) in Fault::ALL.into_iter().enumerate() {
            let mut others = offset;
            for number in 1..=calls {
                others += usize::from(!changes(number));
                // A read meets no conflict.
                let possible = fault != Fault::Conflict || changes(number);
                let chosen = possible && (changes(number) || others.is_multiple_of(step));
                // A user who stays sees whether the work goes on; one who gives up sees whether
                // what was begun is also undone, which needs something begun.
                let begun = changes(number) && fault.is_without_verdict();
                let moods = [(false, chosen), (true, begun || (long() && chosen))];
                for (gives_up, _) in moods.into_iter().filter(|(_, wanted)| *wanted) {
                    let faults = vec![(number, fault)];
                    runs.push(Run { faults, gives_up, ..base.clone() });
                }
            }
        }
        Self { runs, until_failure: false }
    }

    /// A few runs, `count` for each kind of fault, spread over the calls of a scenario.
    #[must_use]
    pub fn some(base: &Run, count: usize) -> Self {
        let Self { runs, .. } = Self::every_call(base);
        let step = (runs.len() / Fault::ALL.len() / count).max(1);
        Self { runs: runs.into_iter().step_by(step).collect(), until_failure: false }
    }

    /// The same runs, and each kind of fault at the first call of this name.
    #[must_use]
    pub fn and_at(mut self, base: &Run, point: &str) -> Self {
        let calm = base.play();
        let first = calm.lines.iter().position(|line| line.point == point);
        let at = |number: usize, fault| {
            let faults = vec![(number as u64 + 1, fault)];
            Run { faults, ..base.clone() }
        };
        let runs = first.into_iter().flat_map(|number| Fault::ALL.map(|fault| at(number, fault)));
        self.runs.extend(runs);
        self
    }

    /// Several faults in each run, and a user who does not always wait, all from seeds.
    #[must_use]
    pub fn seeds(seeds: impl IntoIterator<Item = u64>) -> Self {
        Self { runs: seeds.into_iter().map(from_seed).collect(), until_failure: false }
    }

    /// Workloads with several faults in each, all from seeds, with these controllers.
    #[must_use]
    pub fn workloads(seeds: impl IntoIterator<Item = u64>, tweak: Tweak) -> Self {
        let workload = |seed| Run { tweak, ..troubled(Scenario::Workload, seed, 15..=150) };
        Self { runs: seeds.into_iter().map(workload).collect(), until_failure: false }
    }

    /// Claims that change, with several faults in each, all from seeds, with these controllers.
    #[must_use]
    pub fn changes(seeds: impl IntoIterator<Item = u64>, tweak: Tweak) -> Self {
        let changed = |seed| Run { tweak, ..troubled(Scenario::Changed, seed, 40..=180) };
        Self { runs: seeds.into_iter().map(changed).collect(), until_failure: false }
    }

    /// Snapshots of an impatient user, with several faults in each, all from seeds, with these controllers.
    #[must_use]
    pub fn snapshots(seeds: impl IntoIterator<Item = u64>, tweak: Tweak) -> Self {
        let snapshots = |seed| Run { tweak, ..troubled(Scenario::Snapshots, seed, 40..=260) };
        Self { runs: seeds.into_iter().map(snapshots).collect(), until_failure: false }
    }

    /// The same runs, up to the first that fails.
    #[must_use]
    pub fn until_failure(self) -> Self {
        Self { until_failure: true, ..self }
    }

    pub fn into_runs(self) -> impl Iterator<Item = Run> {
        self.runs.into_iter()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

/// Whether a call changes what matters to a claim: events do not.
fn is_change(line: &Line) -> bool {
    const READS: [&str; 3] = ["api get ", "api list ", "api watch "];
    const CALLS: [&str; 10] = [
        "csi CreateSnapshot",
        "csi DeleteSnapshot",
        "csi CreateVolumeGroupSnapshot",
        "csi DeleteVolumeGroupSnapshot",
        "csi ControllerExpandVolume",
        "csi ControllerModifyVolume",
        "csi CreateVolume",
        "csi DeleteVolume",
        "csi ControllerPublishVolume",
        "csi ControllerUnpublishVolume",
    ];
    let point = line.point.as_str();
    match point.starts_with("api ") {
        true => !READS.iter().any(|read| point.starts_with(read)) && !point.ends_with(" events"),
        false => CALLS.contains(&point),
    }
}

fn from_seed(seed: u64) -> Run {
    let mut rng = fastrand::Rng::with_seed(seed);
    let scenario = Scenario::ALL[rng.usize(..Scenario::ALL.len())];
    let long = matches!(scenario, Scenario::Cloned | Scenario::Restored)
        || scenario.binding() != "Immediate";
    let reach = if long { 180 } else { 90 };
    let faults = (0..rng.u64(1..=5)).map(|_| {
        let fault = Fault::ALL[rng.usize(..Fault::ALL.len())];
        (rng.u64(1..=reach), fault)
    });
    let mut faults: Vec<_> = faults.collect();
    faults.sort_unstable();
    faults.dedup_by_key(|(number, _)| *number);
    let (hasty, slow, gives_up) = (rng.bool(), rng.bool(), rng.u8(..4) == 0);
    Run { seed, faults, hasty, gives_up, slow, ..Run::calm(scenario) }
}

/// A run with several faults among these calls.
fn troubled(scenario: Scenario, seed: u64, calls: RangeInclusive<u64>) -> Run {
    // Not the numbers that the user takes from the seed.
    let mut rng = fastrand::Rng::with_seed(!seed);
    let faults = (0..rng.u64(2..=8)).map(|_| {
        let fault = Fault::ALL[rng.usize(..Fault::ALL.len())];
        (rng.u64(calls.clone()), fault)
    });
    let mut faults: Vec<_> = faults.collect();
    faults.sort_unstable();
    faults.dedup_by_key(|(number, _)| *number);
    let (slow, apart) = (rng.u8(..3) == 0, rng.bool());
    Run { seed, faults, slow, apart, ..Run::calm(scenario) }
}

/// The result of a sweep.
#[derive(Debug, Default)]
pub struct Swept {
    pub tally: Tally,
    pub failed: usize,
    /// The first few that failed.
    pub failures: Vec<Report>,
}

impl Swept {
    pub fn merge(&mut self, other: Self) {
        self.tally.merge(&other.tally);
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.failures.truncate(KEPT);
    }

    /// All that went wrong, in words.
    #[must_use]
    pub fn failures_text(&self) -> String {
        let shown: Vec<String> = self.failures.iter().map(Report::to_string).collect();
        format!("{} runs failed; the first of them:\n{}", self.failed, shown.join("\n"))
    }
}

/// Plays all runs of a plan, in parallel on all processors.
#[must_use]
pub fn sweep(plan: &Plan) -> Swept {
    let next = AtomicUsize::new(0);
    let reports: Mutex<Vec<(usize, Report)>> = Mutex::default();
    let swept: Mutex<Swept> = Mutex::default();
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((index, run)) = take(plan, &next) {
                    let report = run.play();
                    swept.lock().tally.add(&report);
                    if report.failure.is_some() {
                        if plan.until_failure {
                            next.store(plan.len(), Ordering::Relaxed);
                        }
                        reports.lock().push((index, report));
                    }
                }
            });
        }
    });
    let mut failed = reports.into_inner();
    failed.sort_by_key(|(index, _)| *index);
    let mut swept = swept.into_inner();
    swept.failed = failed.len();
    swept.failures = failed.into_iter().map(|(_, report)| report).take(KEPT).collect();
    swept
}

fn take<'a>(plan: &'a Plan, next: &AtomicUsize) -> Option<(usize, &'a Run)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    plan.runs.get(index).map(|run| (index, run))
}
