//! Rings of tests: which target belongs to which, how long each may take, and how long it took.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
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
const FILE: &str = "LONGSHORE_RINGS";

/// What each ring took, by the clock on the wall: parts of a ring that run side by side count once.
#[derive(Debug, Default)]
pub struct Ledger {
    took: Mutex<BTreeMap<Ring, Duration>>,
    /// Parts that run now, and since when there is one.
    running: Mutex<BTreeMap<Ring, (usize, Instant)>>,
}

impl Ledger {
    /// Runs a part of a ring and counts its time, also when it fails.
    pub fn time<T>(&self, ring: Ring, part: impl FnOnce() -> Result<T>) -> Result<T> {
        let now = Instant::now();
        self.running().entry(ring).or_insert((0, now)).0 += 1;
        let result = part();
        let mut running = self.running();
        if let Some((parts, since)) = running.get_mut(&ring) {
            *parts -= 1;
            if *parts == 0 {
                self.add(ring, since.elapsed());
                running.remove(&ring);
            }
        }
        result
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<Ring, (usize, Instant)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, ring: Ring, took: Duration) {
        let mut all = self.took.lock().unwrap_or_else(PoisonError::into_inner);
        *all.entry(ring).or_default() += took;
    }

    /// Where a child process writes what its rings took, as a variable for its environment.
    pub fn file() -> (&'static str, PathBuf) {
        (FILE, crate::run::root().join("target/rings.json"))
    }

    /// Adds what a child process has written.
    pub fn read(&self, file: &Path) -> Result<()> {
        let text = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let took: BTreeMap<Ring, Duration> = serde_json::from_slice(&text)?;
        for (ring, time) in took {
            self.add(ring, time);
        }
        Ok(())
    }

    /// Writes what the rings took for the parent process, or judges it where there is none.
    pub fn close(&self) -> Result<()> {
        let took = self.took.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = std::env::var_os(FILE) {
            return Ok(std::fs::write(file, serde_json::to_vec(&*took)?)?);
        }
        let (table, over) = judge(&took);
        eprint!("{table}");
        // A machine that does other work meanwhile may be slow.
        let judged = std::env::var("LONGSHORE_SHARES").is_ok_and(|value| value == "1");
        match over.is_empty() || !judged {
            true => Ok(()),
            false => bail!("over their share of the time: {}", over.join(", ")),
        }
    }
}

/// The table of the rings, and those that took longer than their share.
fn judge(took: &BTreeMap<Ring, Duration>) -> (String, Vec<&'static str>) {
    let mut table = "ring                     seconds   share\n".to_owned();
    let mut over = Vec::new();
    for (ring, time) in took {
        let seconds = time.as_secs();
        let share = ring.share().map(|minutes| minutes * 60);
        let shown = share.map_or_else(|| "-".to_owned(), |share| share.to_string());
        _ = writeln!(table, "{:<24} {seconds:>7} {shown:>7}", ring.name());
        if share.is_some_and(|share| seconds > share) {
            over.push(ring.name());
        }
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

    #[test]
    fn parts_side_by_side_count_once() {
        let ledger = Ledger::default();
        let part = || {
            ledger.time(Ring::Unit, || {
                std::thread::sleep(Duration::from_millis(50));
                Ok(())
            })
        };
        std::thread::scope(|scope| {
            (0..8).for_each(|_| drop(scope.spawn(part)));
        });
        let took = ledger.took.lock().unwrap_or_else(PoisonError::into_inner)[&Ring::Unit];
        assert!(took < Duration::from_millis(8 * 50), "{took:?}");
    }

    #[test]
    fn a_ring_over_its_share_is_named() {
        let took = [
            (Ring::Demo, Duration::from_secs(61)),
            (Ring::Golden, Duration::from_secs(480)),
            (Ring::Release, Duration::from_secs(5000)),
        ];
        let (table, over) = judge(&took.into_iter().collect());
        assert_eq!(over, ["demo"]);
        assert!(table.contains("golden                       480     480"), "{table}");
    }
}
