//! Occurrences that wait to be written; equal ones add up.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use longshore_core::backoff::Backoff;
use tokio::time::Instant;

use super::{EventType, ObjectRef, Occurrence};

/// Most different occurrences of one type that wait at once; more are dropped rather than kept
/// without bound.
const CAPACITY: usize = 10_000;
/// Pauses between two writes of one Event object grow from the first to the second.
const PAUSE_MAX: Duration = Duration::from_secs(10);
const PACE: Backoff = Backoff::new(Duration::from_secs(1), PAUSE_MAX);
/// After this long without an occurrence the pauses start from the shortest again.
const QUIET: Duration = Duration::from_secs(60);

/// Equal occurrences to be written at once.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) occurrence: Occurrence,
    pub(super) count: u64,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

struct Waiting {
    count: u64,
    first: Timestamp,
    last: Timestamp,
    /// Version of the object at the first occurrence.
    version: String,
}

/// When an occurrence was last written, and how long to wait before the next write.
struct Pace {
    written: Instant,
    pause: Duration,
}

/// Waiting occurrences of one type.
#[derive(Default)]
struct Lane {
    waiting: HashMap<Arc<Occurrence>, Waiting>,
    /// What is in `waiting`, by the time when it may be written and the order of arrival.
    due: BTreeMap<(Instant, u64), Arc<Occurrence>>,
    dropped: u64,
}

impl Lane {
    /// The earliest occurrence, if its time has come by `now`; else that time.
    fn take_due(
        &mut self,
        now: Option<Instant>,
    ) -> Result<(Arc<Occurrence>, Waiting), Option<Instant>> {
        let Some(first) = self.due.first_entry() else { return Err(None) };
        let (at, _) = *first.key();
        if now.is_some_and(|now| at > now) {
            return Err(Some(at));
        }
        let occurrence = first.remove();
        let waiting = self.waiting.remove(&occurrence).ok_or(None)?;
        Ok((occurrence, waiting))
    }
}

pub(super) struct Pending {
    /// Written first, and never dropped for those of type Normal.
    warnings: Lane,
    normals: Lane,
    paces: HashMap<Arc<Occurrence>, Pace>,
    forget_paces: Instant,
    arrived: u64,
    closed: bool,
}

impl Pending {
    pub(super) fn new() -> Self {
        Self {
            warnings: Lane::default(),
            normals: Lane::default(),
            paces: HashMap::new(),
            forget_paces: Instant::now() + QUIET,
            arrived: 0,
            closed: false,
        }
    }

    pub(super) fn closed() -> Self {
        Self { closed: true, ..Self::new() }
    }

    pub(super) fn close(&mut self) {
        *self = Self::closed();
    }

    fn lane(&mut self, kind: EventType) -> &mut Lane {
        match kind {
            EventType::Warning => &mut self.warnings,
            EventType::Normal => &mut self.normals,
        }
    }

    /// Adds an occurrence; true if the writer must be woken.
    pub(super) fn add(&mut self, mut occurrence: Occurrence, at: Timestamp) -> bool {
        if self.closed {
            return false;
        }
        // Events about two versions of an object are equal.
        let version = std::mem::take(&mut occurrence.object.resource_version);
        let kind = occurrence.kind;
        let lane = self.lane(kind);
        if let Some(waiting) = lane.waiting.get_mut(&occurrence) {
            waiting.count += 1;
            waiting.last = at;
            return false;
        }
        if lane.waiting.len() >= CAPACITY {
            lane.dropped += 1;
            if lane.dropped.is_power_of_two() {
                let (dropped, kind) = (lane.dropped, kind.as_str());
                tracing::warn!(dropped, kind, "events are dropped: too many wait");
            }
            return false;
        }
        let due = self.paces.get(&occurrence).map(|pace| pace.written + pace.pause);
        let due = (due.unwrap_or_else(Instant::now), self.arrived);
        self.arrived += 1;
        let (lane, occurrence) = (self.lane(kind), Arc::new(occurrence));
        lane.due.insert(due, occurrence.clone());
        lane.waiting.insert(occurrence, Waiting { count: 1, first: at, last: at, version });
        true
    }

    /// The first occurrence whose pause is over, or the time when one will be.
    pub(super) fn take_due(&mut self, now: Instant) -> Result<Batch, Option<Instant>> {
        let warning = match self.warnings.take_due(Some(now)) {
            Ok(taken) => return Ok(self.batch(taken, now)),
            Err(due) => due,
        };
        match self.normals.take_due(Some(now)) {
            Ok(taken) => Ok(self.batch(taken, now)),
            Err(normal) => Err(warning.into_iter().chain(normal).min()),
        }
    }

    /// Whatever waits, due or not.
    pub(super) fn take_any(&mut self) -> Option<Batch> {
        let taken = self.warnings.take_due(None).or_else(|_| self.normals.take_due(None));
        taken.ok().map(|taken| self.batch(taken, Instant::now()))
    }

    fn batch(&mut self, (occurrence, waiting): (Arc<Occurrence>, Waiting), now: Instant) -> Batch {
        self.paced(&occurrence, now);
        let Waiting { count, first, last, version } = waiting;
        let mut occurrence = Arc::unwrap_or_clone(occurrence);
        occurrence.object = ObjectRef { resource_version: version, ..occurrence.object };
        Batch { occurrence, count, first, last }
    }

    fn paced(&mut self, occurrence: &Arc<Occurrence>, now: Instant) {
        if now >= self.forget_paces {
            self.forget_paces = now + QUIET;
            self.paces.retain(|_, pace| now < pace.written + QUIET);
        }
        let pace = self.paces.entry(occurrence.clone());
        pace.and_modify(|pace| {
            let quiet = now >= pace.written + QUIET;
            pace.pause = PACE.following((!quiet).then_some(pace.pause));
            pace.written = now;
        })
        .or_insert(Pace { written: now, pause: PACE.following(None) });
    }
}
