//! Rings of tests: which target belongs to which, how long each may take, and how long it took.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

/// A part of CI that has its own share of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Ring {
    /// Building, lints, and every test that is in no other ring.
    Unit,
    Golden,
    Attacks,
    /// Leases, standbys and what a network does to them.
    Leases,
    /// Our programs with the real Kubernetes.
    RealCluster,
    Docs,
    Demo,
    /// The release build that the demo runs; it runs beside the others, at the lowest priority.
    Release,
}

impl Ring {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unit => "build, check and unit",
            Self::Golden => "golden",
            Self::Attacks => "attacks",
            Self::Leases => "leases and network",
            Self::RealCluster => "real cluster",
            Self::Docs => "docs",
            Self::Demo => "demo",
            Self::Release => "release build",
        }
    }

    /// How many minutes the ring may take, from nothing but with the Go tools in the cache.
    const fn share(self) -> Option<u64> {
        match self {
            Self::Unit => Some(20),
            Self::Golden | Self::RealCluster => Some(8),
            Self::Attacks => Some(5),
            Self::Leases | Self::Docs => Some(4),
            Self::Demo => Some(1),
            Self::Release => None,
        }
    }

    /// The ring of a test target.
    pub fn of(package: &str, target: &str) -> Self {
        if ATTACKS.contains(&(package, target)) {
            return Self::Attacks;
        }
        match (package, target) {
            ("longshore", "control_plane" | "leaders" | "leases" | "network") => Self::Leases,
            ("longshore", "docs") => Self::Docs,
            ("longshore-real-kube", _) => Self::RealCluster,
            _ => Self::Unit,
        }
    }
}

/// The attack ring: each target attacks the real programs and prints what it tried and what held.
pub const ATTACKS: [(&str, &str); 8] = [
    ("longshore-apiserver", "attack_roles"),
    ("longshore-apiserver", "attack_bombs"),
    ("longshore-apiserver", "pod_security"),
    ("longshore-apiserver", "differential"),
    ("longshore", "attack_pods"),
    ("longshore", "attack_volumes"),
    ("longshore", "attack_secrets"),
    ("longshore", "attack_damage"),
];

/// Names the file through which `cargo xtask test` tells `cargo xtask ci` what its rings took.
pub const FILE: &str = "LONGSHORE_RINGS";

/// With `1` a ring over its share fails the run; without, the table only says so, for a machine that
/// does other work meanwhile.
const SHARES: &str = "LONGSHORE_SHARES";

/// What a ring took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Took {
    /// By the clock on the wall: parts of a ring that run side by side count once.
    wall: Duration,
    /// Its part of the machine: a moment in which three rings run counts a third to each.
    /// This is what the share limits. A ring beside others is slower than alone, and how much
    /// slower depends on them, so the wall clock would fail one ring for the work of another.
    /// Alone the ring would have taken at least this long, so no ring is failed wrongly for it.
    counted: Duration,
    failed: bool,
}

/// What the rings took and which of them run now.
#[derive(Debug)]
struct Clock {
    took: BTreeMap<Ring, Took>,
    /// How many parts of each ring run.
    running: BTreeMap<Ring, u32>,
    /// Up to when the time is counted.
    until: Instant,
}

impl Clock {
    /// Counts the time up to `now` for the rings that run.
    fn settle(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.until);
        self.until = now;
        // The release build runs at the lowest priority, so it takes nothing from the others.
        let sharing = self.running.keys().filter(|ring| **ring != Ring::Release).count();
        let part = passed / u32::try_from(sharing.max(1)).unwrap_or(u32::MAX);
        for ring in self.running.keys() {
            let took = self.took.entry(*ring).or_default();
            took.wall += passed;
            took.counted += part;
        }
    }

    fn begin(&mut self, ring: Ring, now: Instant) {
        self.settle(now);
        *self.running.entry(ring).or_default() += 1;
    }

    fn end(&mut self, ring: Ring, now: Instant, failed: bool) {
        self.settle(now);
        if let Some(parts) = self.running.get_mut(&ring) {
            *parts -= 1;
            if *parts == 0 {
                self.running.remove(&ring);
            }
        }
        self.took.entry(ring).or_default().failed |= failed;
    }
}

/// Measures the rings and judges them at the end.
#[derive(Debug)]
pub struct Ledger(Mutex<Clock>);

impl Default for Ledger {
    fn default() -> Self {
        let (took, running) = (BTreeMap::new(), BTreeMap::new());
        Self(Mutex::new(Clock { took, running, until: Instant::now() }))
    }
}

impl Ledger {
    /// Runs a part of a ring and counts its time, also when it fails.
    pub fn time<T>(&self, ring: Ring, part: impl FnOnce() -> Result<T>) -> Result<T> {
        self.clock().begin(ring, Instant::now());
        let result = part();
        self.clock().end(ring, Instant::now(), result.is_err());
        result
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what a child process has written.
    pub fn read(&self, file: &Path) -> Result<()> {
        let text = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let took: BTreeMap<Ring, Took> = serde_json::from_slice(&text)?;
        let mut clock = self.clock();
        for (ring, more) in took {
            let took = clock.took.entry(ring).or_default();
            took.wall += more.wall;
            took.counted += more.counted;
            took.failed |= more.failed;
        }
        Ok(())
    }

    /// Writes what the rings took for the parent process, or prints and judges it where there is
    /// none. The seconds of a run that failed are shown as well; its error comes first.
    pub fn close(&self, done: Result<()>) -> Result<()> {
        let clock = self.clock();
        if let Some(file) = std::env::var_os(FILE) {
            let written = serde_json::to_vec(&clock.took)
                .map_err(anyhow::Error::from)
                .and_then(|text| Ok(std::fs::write(file, text)?));
            return done.and(written);
        }
        let (table, over) = judge(&clock.took);
        eprint!("{table}");
        done?;
        if over.is_empty() {
            return Ok(());
        }
        let text = format!("over their share of the time: {}", over.join(", "));
        if std::env::var(SHARES).is_ok_and(|value| value == "1") {
            bail!(text);
        }
        eprintln!("{text} ({SHARES}=1 makes that a failure)");
        Ok(())
    }
}

/// The table of the rings, and those that took more than their share.
fn judge(took: &BTreeMap<Ring, Took>) -> (String, Vec<&'static str>) {
    let mut table = "ring                     seconds counted   share\n".to_owned();
    let mut over = Vec::new();
    for (ring, took) in took {
        let (seconds, counted) = (took.wall.as_secs(), took.counted.as_secs());
        let share = ring.share().map(|minutes| minutes * 60);
        let shown = share.map_or_else(|| "-".to_owned(), |share| share.to_string());
        _ = write!(table, "{:<24} {seconds:>7} {counted:>7} {shown:>7}", ring.name());
        if took.failed {
            table.push_str("  FAILED");
        }
        if share.is_some_and(|share| counted > share) {
            over.push(ring.name());
            table.push_str("  OVER ITS SHARE");
        }
        table.push('\n');
    }
    (table, over)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_belongs_to_one_ring_and_the_rest_to_unit() {
        assert_eq!(Ring::of("longshore", "attack_pods"), Ring::Attacks);
        assert_eq!(Ring::of("longshore-real-kube", "node"), Ring::RealCluster);
        assert_eq!(Ring::of("longshore", "leaders"), Ring::Leases);
        assert_eq!(Ring::of("longshore", "network"), Ring::Leases);
        assert_eq!(Ring::of("longshore", "docs"), Ring::Docs);
        assert_eq!(Ring::of("longshore-core", "longshore_core"), Ring::Unit);
    }

    /// A ledger's clock and the moment `seconds` after it started.
    fn clock() -> (Clock, impl Fn(u64) -> Instant) {
        let until = Instant::now();
        let clock = Clock { took: BTreeMap::new(), running: BTreeMap::new(), until };
        (clock, move |seconds| until + Duration::from_secs(seconds))
    }

    fn seconds(clock: &Clock, ring: Ring) -> (u64, u64) {
        let took = clock.took[&ring];
        (took.wall.as_secs(), took.counted.as_secs())
    }

    #[test]
    fn parts_of_a_ring_side_by_side_count_once() {
        let (mut clock, at) = clock();
        clock.begin(Ring::Unit, at(10));
        clock.begin(Ring::Unit, at(20));
        clock.end(Ring::Unit, at(30), false);
        clock.end(Ring::Unit, at(40), false);
        clock.begin(Ring::Unit, at(100));
        clock.end(Ring::Unit, at(105), false);
        assert_eq!(seconds(&clock, Ring::Unit), (35, 35));
    }

    #[test]
    fn rings_side_by_side_divide_the_time_between_them() {
        let (mut clock, at) = clock();
        clock.begin(Ring::Release, at(0));
        clock.begin(Ring::Golden, at(0));
        clock.begin(Ring::Docs, at(100));
        clock.end(Ring::Golden, at(140), false);
        clock.end(Ring::Docs, at(150), true);
        clock.end(Ring::Release, at(200), false);
        assert_eq!(seconds(&clock, Ring::Golden), (140, 120));
        assert_eq!(seconds(&clock, Ring::Docs), (50, 30));
        let all = |ring| (clock.took[&ring].failed, clock.took[&ring].wall.as_secs());
        assert_eq!([Ring::Docs, Ring::Release].map(all), [(true, 50), (false, 200)]);
    }

    #[test]
    fn the_time_of_a_part_that_fails_is_counted_and_passed_on() {
        let ledger = Ledger::default();
        let failed: Result<()> = ledger.time(Ring::Docs, || bail!("no"));
        assert!(failed.is_err());
        let text = serde_json::to_vec(&ledger.clock().took).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let parent = Ledger::default();
        parent.read(file.path()).unwrap();
        assert_eq!(parent.clock().took, ledger.clock().took);
        assert!(parent.clock().took[&Ring::Docs].failed);
    }

    #[test]
    fn a_ring_over_its_share_and_one_that_failed_are_marked() {
        let took = |wall, counted, failed| {
            let [wall, counted] = [wall, counted].map(Duration::from_secs);
            Took { wall, counted, failed }
        };
        let rings = [
            (Ring::Demo, took(61, 61, false)),
            (Ring::Golden, took(900, 480, true)),
            (Ring::Release, took(5000, 5000, false)),
        ];
        let (table, over) = judge(&rings.into_iter().collect());
        assert_eq!(over, ["demo"]);
        let expected = "\
ring                     seconds counted   share
golden                       900     480     480  FAILED
demo                          61      61      60  OVER ITS SHARE
release build               5000    5000       -
";
        assert_eq!(table, expected);
    }
}
