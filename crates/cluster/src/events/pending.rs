//! Happenings that wait to be written; equal ones add up.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use longshore_core::backoff::Backoff;
use tokio::time::Instant;

use super::{Happening, ObjectRef};

/// Most different happenings that wait at once; more are dropped rather than kept without bound.
const CAPACITY: usize = 1000;
/// Pauses between two writes of one Event object grow from the first to the second.
const PAUSE_MAX: Duration = Duration::from_secs(10);
const PACE: Backoff = Backoff::new(Duration::from_secs(1), PAUSE_MAX);

/// Equal happenings to be written at once.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) happening: Happening,
    pub(super) count: u64,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

struct Waiting {
    count: u64,
    first: Timestamp,
    last: Timestamp,
    /// Version of the object when it first happened.
    version: String,
}

/// When a happening was last written, and how long to wait before the next write.
struct Pace {
    written: Instant,
    pause: Duration,
}

pub(super) struct Pending {
    waiting: HashMap<Happening, Waiting>,
    /// Order of arrival of what is in `waiting`.
    order: VecDeque<Happening>,
    paces: HashMap<Happening, Pace>,
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

    /// Adds a happening; true if the writer should look.
    pub(super) fn add(&mut self, mut happening: Happening, at: Timestamp) -> bool {
        if self.closed {
            return false;
        }
        // The same thing at two versions is one thing.
        let version = std::mem::take(&mut happening.object.resource_version);
        if let Some(waiting) = self.waiting.get_mut(&happening) {
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
        self.order.push_back(happening.clone());
        self.waiting.insert(happening, Waiting { count: 1, first: at, last: at, version });
        true
    }

    /// The first happening whose pause is over, or the time when one will be.
    pub(super) fn take_due(&mut self, now: Instant) -> Result<Batch, Option<Instant>> {
        let mut earliest: Option<Instant> = None;
        for place in 0..self.order.len() {
            let due = self.paces.get(&self.order[place]).map(|pace| pace.written + pace.pause);
            match due {
                Some(at) if at > now => earliest = Some(earliest.map_or(at, |e| e.min(at))),
                _ => return self.take(place, now).ok_or(None),
            }
        }
        Err(earliest)
    }

    /// Whatever waits, due or not.
    pub(super) fn take_any(&mut self) -> Option<Batch> {
        self.take(0, Instant::now())
    }

    fn take(&mut self, place: usize, now: Instant) -> Option<Batch> {
        let happening = self.order.remove(place)?;
        let Waiting { count, first, last, version } = self.waiting.remove(&happening)?;
        self.paced(&happening, now);
        let object = ObjectRef { resource_version: version, ..happening.object };
        let happening = Happening { object, ..happening };
        Some(Batch { happening, count, first, last })
    }

    fn paced(&mut self, happening: &Happening, now: Instant) {
        // Those that were quiet for a while start anew.
        self.paces.retain(|_, pace| now < pace.written + 6 * PAUSE_MAX);
        let pace = self.paces.entry(happening.clone());
        pace.and_modify(|pace| {
            pace.pause = PACE.following(Some(pace.pause));
            pace.written = now;
        })
        .or_insert(Pace { written: now, pause: PACE.following(None) });
    }
}
