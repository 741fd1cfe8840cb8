//! Occurrences that wait to be written; equal ones add up.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use longshore_core::backoff::Backoff;
use tokio::time::Instant;

use super::{ObjectRef, Occurrence};

/// Most different occurrences that wait at once; more are dropped rather than kept without bound.
const CAPACITY: usize = 1000;
/// Pauses between two writes of one Event object grow from the first to the second.
const PAUSE_MAX: Duration = Duration::from_secs(10);
const PACE: Backoff = Backoff::new(Duration::from_secs(1), PAUSE_MAX);

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

pub(super) struct Pending {
    waiting: HashMap<Occurrence, Waiting>,
    /// Order of arrival of what is in `waiting`.
    order: VecDeque<Occurrence>,
    paces: HashMap<Occurrence, Pace>,
    dropped: u64,
    closed: bool,
}

impl Pending {
    pub(super) fn new() -> Self {
        Self {
            waiting: HashMap::new(),
            order: VecDeque::new(),
            paces: HashMap::new(),
            dropped: 0,
            closed: false,
        }
    }

    pub(super) fn closed() -> Self {
        Self { closed: true, ..Self::new() }
    }

    pub(super) fn close(&mut self) {
        *self = Self::closed();
    }

    /// Adds an occurrence; true if the writer must be woken.
    pub(super) fn add(&mut self, mut occurrence: Occurrence, at: Timestamp) -> bool {
        if self.closed {
            return false;
        }
        // Events about two versions of an object are equal.
        let version = std::mem::take(&mut occurrence.object.resource_version);
        if let Some(waiting) = self.waiting.get_mut(&occurrence) {
            waiting.count += 1;
            waiting.last = at;
            return false;
        }
        if self.waiting.len() >= CAPACITY {
            self.dropped += 1;
            if self.dropped.is_power_of_two() {
                tracing::warn!(dropped = self.dropped, "events are dropped: too many wait");
            }
            return false;
        }
        self.order.push_back(occurrence.clone());
        self.waiting.insert(occurrence, Waiting { count: 1, first: at, last: at, version });
        true
    }

    /// The first occurrence whose pause is over, or the time when one will be.
    pub(super) fn take_due(&mut self, now: Instant) -> Result<Batch, Option<Instant>> {
        let mut earliest: Option<Instant> = None;
        for index in 0..self.order.len() {
            let due = self.paces.get(&self.order[index]).map(|pace| pace.written + pace.pause);
            match due {
                Some(at) if at > now => earliest = Some(earliest.map_or(at, |e| e.min(at))),
                _ => return self.take(index, now).ok_or(None),
            }
        }
        Err(earliest)
    }

    /// Whatever waits, due or not.
    pub(super) fn take_any(&mut self) -> Option<Batch> {
        self.take(0, Instant::now())
    }

    fn take(&mut self, index: usize, now: Instant) -> Option<Batch> {
        let occurrence = self.order.remove(index)?;
        let Waiting { count, first, last, version } = self.waiting.remove(&occurrence)?;
        self.paced(&occurrence, now);
        let object = ObjectRef { resource_version: version, ..occurrence.object };
        let occurrence = Occurrence { object, ..occurrence };
        Some(Batch { occurrence, count, first, last })
    }

    fn paced(&mut self, occurrence: &Occurrence, now: Instant) {
        // After a quiet minute the pauses start from the shortest again.
        self.paces.retain(|_, pace| now < pace.written + 6 * PAUSE_MAX);
        let pace = self.paces.entry(occurrence.clone());
        pace.and_modify(|pace| {
            pace.pause = PACE.following(Some(pace.pause));
            pace.written = now;
        })
        .or_insert(Pace { written: now, pause: PACE.following(None) });
    }
}
