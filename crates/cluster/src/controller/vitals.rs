//! How a controller is doing that shares its process with others: its panics, and how long its passes run.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::telemetry::QueueStats;

/// How often a controller that runs shows that it does.
const TICK: Duration = Duration::from_secs(5);

/// The vitals of one controller, across its restarts. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Vitals {
    inner: Arc<Inner>,
}

struct Inner {
    panics: AtomicU64,
    /// Counts the moments at which panics had become too many.
    floods: watch::Sender<u64>,
    recent: Mutex<Burst>,
    queues: Mutex<Vec<Weak<dyn QueueStats>>>,
    /// The last sign of life while it runs.
    ticked: Mutex<Option<Instant>>,
}

impl fmt::Debug for Vitals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vitals").field("panics", &self.panics()).finish_non_exhaustive()
    }
}

impl Vitals {
    /// Those of a controller that has not run yet. `flood` says how many panics are too many.
    #[must_use]
    pub fn new(flood: Burst) -> Self {
        let inner = Inner {
            panics: AtomicU64::new(0),
            floods: watch::Sender::new(0),
            recent: Mutex::new(flood),
            queues: Mutex::default(),
            ticked: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Notes a panic.
    pub fn panicked(&self) {
        self.inner.panics.fetch_add(1, Ordering::Relaxed);
        if self.inner.recent.lock().add(Instant::now()) {
            self.inner.floods.send_modify(|floods| *floods += 1);
        }
    }

    /// How many panics there have been.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.inner.panics.load(Ordering::Relaxed)
    }

    /// Follows how often panics were too many.
    #[must_use]
    pub fn floods(&self) -> watch::Receiver<u64> {
        self.inner.floods.subscribe()
    }

    pub(crate) fn watch_queue(&self, queue: Weak<dyn QueueStats>) {
        let mut queues = self.inner.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(queue);
    }

    /// How long the pass runs that has run longest.
    #[must_use]
    pub fn oldest_pass(&self) -> Duration {
        let queues: Vec<_> = self.inner.queues.lock().iter().filter_map(Weak::upgrade).collect();
        let passes = queues.iter().flat_map(|queue| queue.running());
        passes.max().unwrap_or_default()
    }

    /// How long ago the controller showed that its loops get to run; zero while it does not run.
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.inner.ticked.lock().map_or(Duration::ZERO, |at| at.elapsed())
    }

    /// Runs `work` and notes that it gets to run. A loop that blocks its thread stops the signs of life, too: both are
    /// one task.
    pub async fn alive<T>(&self, work: impl Future<Output = T>) -> T {
        let _running = Running(self);
        let ticking = async {
            loop {
                *self.inner.ticked.lock() = Some(Instant::now());
                tokio::time::sleep(TICK).await;
            }
        };
        tokio::select! {
            done = work => done,
            () = ticking => unreachable!("it ticks for ever"),
        }
    }
}

struct Running<'a>(&'a Vitals);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self.0.inner.ticked.lock() = None;
    }
}

/// So many events within so long are too many.
#[derive(Debug, Clone)]
pub struct Burst {
    limit: usize,
    within: Duration,
    recent: VecDeque<Instant>,
}

impl Burst {
    #[must_use]
    pub fn new(limit: usize, within: Duration) -> Self {
        Self { limit, within, recent: VecDeque::with_capacity(limit) }
    }

    /// Counts an event; true if they are too many with it. The count begins anew then.
    pub fn add(&mut self, at: Instant) -> bool {
        self.recent.retain(|before| at.duration_since(*before) < self.within);
        self.recent.push_back(at);
        let too_many = self.recent.len() >= self.limit;
        if too_many {
            self.recent.clear();
        }
        too_many
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_so_many_events_within_so_long() {
        let start = Instant::now();
        let minute = Duration::from_secs(60);
        for (name, seconds, want) in [
            ("far apart", &[0, 30, 61, 91, 122][..], &[false; 5][..]),
            ("three at once", &[0, 0, 0], &[false, false, true]),
            (
                "three in a minute, then anew",
                &[0, 20, 59, 60, 61],
                &[false, false, true, false, false],
            ),
        ] {
            let mut burst = Burst::new(3, minute);
            let got: Vec<bool> =
                seconds.iter().map(|at| burst.add(start + Duration::from_secs(*at))).collect();
            assert_eq!(got, want, "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_that_of_a_task_that_runs() {
        let vitals = Vitals::new(Burst::new(5, Duration::from_secs(60)));
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(vitals.silence(), Duration::ZERO, "it does not run yet");
        let seen = vitals.alive(async {
            tokio::time::sleep(Duration::from_secs(61)).await;
            let while_ticking = vitals.silence();
            // What a blocked thread looks like: time passes and the task is not polled.
            tokio::time::advance(Duration::from_secs(31)).await;
            (while_ticking, vitals.silence())
        });
        let (ticking, blocked) = seen.await;
        assert!(ticking <= TICK, "{ticking:?}");
        assert!(blocked >= Duration::from_secs(30) || blocked <= TICK, "{blocked:?}");
        assert_eq!(vitals.silence(), Duration::ZERO, "it runs no more");
    }
}
