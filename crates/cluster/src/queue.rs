//! A work queue with the semantics of client-go's `workqueue`.
//!
//! Guarantees: a key is worked on by one worker at a time; adding a key that already waits does
//! nothing, so 10,000 adds of one key cost one pass; keys are handed out in the order they came. A
//! key that is added while it is worked on gets one more pass afterwards. A worker that panics or
//! is dropped mid-work gives its key back.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use longshore_core::backoff::Backoff;
use longshore_core::words;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::awaited::Wake;
use crate::bucket::TokenBucket;
use crate::controller::Vitals;
use crate::telemetry::{Metrics, QueueMetrics, QueueStats};

/// The result of one pass over a key.
#[derive(Debug)]
pub enum Outcome {
    /// Done: past failures of this key are forgotten.
    Done,
    /// Failed: the key returns after its backoff.
    Retry(Box<dyn std::error::Error + Send + Sync>),
    /// Nothing to do before this much time has passed; not a failure.
    After(Duration),
    /// The object changed meanwhile (a conflict): requeue the key without backoff.
    Again,
}

impl Outcome {
    /// A failure from any error or text.
    pub fn retry(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Retry(error.into())
    }
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<Result<(), E>> for Outcome {
    fn from(result: Result<(), E>) -> Self {
        result.map_or_else(Self::retry, |()| Self::Done)
    }
}

/// Backoff and limits of a queue.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// The delay of a key that failed.
    pub backoff: Backoff,
    /// Limits retries of all keys together: (per second, burst).
    pub bucket: Option<(f64, u32)>,
    /// Where the queue reports its depth, adds, retries and durations.
    pub metrics: Option<Metrics>,
    /// Where it reports panics and how long its passes run.
    pub vitals: Option<Vitals>,
}

impl Default for QueueOptions {
    /// The sidecars' defaults: 1 s doubling up to 5 min.
    fn default() -> Self {
        Self {
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(300)),
            bucket: None,
            metrics: None,
            vitals: None,
        }
    }
}

impl QueueOptions {
    /// Backoff from `first` up to `longest`, no bucket, no metrics.
    #[must_use]
    pub fn backoff(first: Duration, longest: Duration) -> Self {
        Self { backoff: Backoff::new(first, longest), ..Self::default() }
    }

    /// The in-tree controllers' defaults: 5 ms doubling up to 1000 s, 10 retries a second with
    /// bursts of 100.
    #[must_use]
    pub fn controller() -> Self {
        Self {
            bucket: Some((10.0, 100)),
            ..Self::backoff(Duration::from_millis(5), Duration::from_secs(1000))
        }
    }

    #[must_use]
    pub fn with_metrics(mut self, metrics: &Metrics) -> Self {
        self.metrics = Some(metrics.clone());
        self
    }
}

/// Bounds on the key of a queue.
pub trait QueueKey: Clone + Eq + Hash + Debug + Send + Sync + 'static {}
impl<K: Clone + Eq + Hash + Debug + Send + Sync + 'static> QueueKey for K {}

/// A queue of keys. Cheap to clone; all clones are the same queue.
///
/// ```
/// use longshore_cluster::{Outcome, QueueOptions, WorkQueue};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let queue = WorkQueue::new("claims", QueueOptions::default());
/// queue.add("default/data");
/// queue.add("default/data");
/// let item = queue.next().await.expect("the queue is open");
/// assert_eq!((*item.key(), queue.depth()), ("default/data", 0));
/// item.finish(Outcome::retry("conflict"));
/// assert_eq!(queue.requeues(&"default/data"), 1);
/// # }
/// ```
pub struct WorkQueue<K> {
    inner: Arc<Inner<K>>,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

struct Inner<K> {
    name: String,
    backoff: Backoff,
    state: Mutex<State<K>>,
    /// Notified whenever a key becomes ready, an earlier deadline appears, or the queue closes.
    wake: Notify,
    metrics: Option<QueueMetrics>,
    vitals: Option<Vitals>,
}

struct State<K> {
    /// Keys that are ready for a worker, in order. Each is in `dirty` too.
    ready: VecDeque<K>,
    /// Keys that need a pass, with the time they were added.
    dirty: HashMap<K, Instant>,
    /// Keys being worked on, with the start of their pass.
    running: HashMap<K, Instant>,
    /// Keys that become dirty later, by time and then by order of adding.
    waiting: BTreeMap<(Instant, u64), K>,
    waiting_keys: HashMap<K, (Instant, u64)>,
    failures: HashMap<K, u32>,
    bucket: Option<TokenBucket>,
    sequence: u64,
    closed: bool,
}

impl<K: QueueKey> WorkQueue<K> {
    /// Makes an empty queue. `name` labels its metrics and log lines.
    #[must_use]
    pub fn new(name: &str, options: QueueOptions) -> Self {
        let state = State {
            ready: VecDeque::new(),
            dirty: HashMap::new(),
            running: HashMap::new(),
            waiting: BTreeMap::new(),
            waiting_keys: HashMap::new(),
            failures: HashMap::new(),
            bucket: options.bucket.map(|(rate, burst)| TokenBucket::new(rate, burst)),
            sequence: 0,
            closed: false,
        };
        let inner = Arc::new(Inner {
            name: name.to_owned(),
            backoff: options.backoff,
            state: Mutex::new(state),
            wake: Notify::new(),
            metrics: options.metrics.as_ref().map(|m| m.queue(name)),
            vitals: options.vitals,
        });
        if let Some(vitals) = &inner.vitals {
            let weak = Arc::downgrade(&inner);
            vitals.watch_queue(weak);
        }
        if let Some(metrics) = &options.metrics {
            let weak = Arc::downgrade(&inner);
            metrics.watch_queue(name, weak);
        }
        Self { inner }
    }

    /// Enqueues the key, unless it already waits.
    pub fn add(&self, key: K) {
        let mut state = self.inner.state.lock();
        if state.closed {
            return;
        }
        if state.add(key)
            && let Some(m) = &self.inner.metrics
        {
            m.adds.inc();
        }
        drop(state);
        self.inner.wake.notify_one();
    }

    /// Enqueues the key after `delay`. Of two delays for one key the earlier counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let mut state = self.inner.state.lock();
        if !state.closed {
            state.add_at(key, Instant::now() + delay);
            drop(state);
            self.inner.wake.notify_one();
        }
    }

    /// Requeues the key after its backoff, and counts a failure. Returns the delay.
    pub fn add_rate_limited(&self, key: K) -> Duration {
        let delay = {
            let mut state = self.inner.state.lock();
            let failures = state.failures.entry(key.clone()).or_default();
            let delay = self.inner.backoff.after(*failures);
            *failures = failures.saturating_add(1);
            let bucket = state.bucket.as_mut().map_or(Duration::ZERO, TokenBucket::reserve);
            delay.max(bucket)
        };
        if let Some(m) = &self.inner.metrics {
            m.retries.inc();
        }
        self.add_after(key, delay);
        delay
    }

    /// Forgets the key's failures: its next backoff starts at the base again.
    pub fn forget(&self, key: &K) {
        self.inner.state.lock().failures.remove(key);
    }

    /// What starts a pass over the key again, without its backoff.
    pub(crate) fn wake(&self, key: &K) -> Wake {
        let (queue, again) = (self.clone(), key.clone());
        Wake::new((Arc::as_ptr(&self.inner).addr(), key), move || {
            queue.forget(&again);
            queue.add(again.clone());
        })
    }

    /// How often the key failed in a row.
    #[must_use]
    pub fn requeues(&self, key: &K) -> u32 {
        self.inner.state.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// Keys that wait for a worker now, without those in backoff.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.inner.state.lock().ready.len()
    }

    /// Keys that are being worked on, wait for a worker, or wait for their backoff.
    #[must_use]
    pub fn pending(&self) -> usize {
        let state = self.inner.state.lock();
        state.ready.len() + state.running.len() + state.waiting.len()
    }

    /// How long the key at the front has waited.
    #[must_use]
    pub fn oldest_age(&self) -> Duration {
        self.inner.state.lock().oldest_age()
    }

    /// Closes the queue: nothing is accepted or handed out any more, workers end after their pass.
    pub fn shut_down(&self) {
        self.inner.state.lock().closed = true;
        self.inner.wake.notify_waiters();
        self.inner.wake.notify_one();
    }

    /// Waits for a key; `None` once the queue is closed. Dropping the item without
    /// [`WorkItem::finish`] gives the key back.
    pub async fn next(&self) -> Option<WorkItem<K>> {
        loop {
            // Registered before the check, so that an add in between is not missed.
            let woken = self.inner.wake.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            let deadline = {
                let mut state = self.inner.state.lock();
                if state.closed {
                    // `notify_one` wakes only one waiter, so each wakes the next.
                    self.inner.wake.notify_one();
                    return None;
                }
                let promoted = state.promote_due();
                if let Some(m) = &self.inner.metrics {
                    m.adds.inc_by(promoted);
                }
                if let Some((key, waited)) = state.take() {
                    let more = !state.ready.is_empty();
                    drop(state);
                    if more {
                        self.inner.wake.notify_one();
                    }
                    if let Some(m) = &self.inner.metrics {
                        m.queue_seconds.observe(waited.as_secs_f64());
                    }
                    return Some(WorkItem { queue: self.clone(), key: Some(key) });
                }
                state.waiting.keys().next().map(|(at, _)| *at)
            };
            match deadline {
                Some(at) => {
                    tokio::select! {
                        biased;
                        () = woken => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => woken.await,
            }
        }
    }

    /// Works with `workers` tasks until the queue is closed by [`Self::shut_down`] or `shutdown` is
    /// cancelled; passes in flight are finished then. Dropping this future aborts the workers.
    ///
    /// Each pass is inside the span that `span_of` makes of its key and the number of its attempt,
    /// counted from one.
    pub async fn run_until<S, F, Fut>(
        &self,
        workers: usize,
        shutdown: &CancellationToken,
        span_of: S,
        work: F,
    ) where
        S: Fn(&K, u32) -> Span + Send + Sync + 'static,
        F: Fn(K) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let (work, span_of) = (Arc::new(work), Arc::new(span_of));
        let mut tasks = JoinSet::new();
        for _ in 0..workers.max(1) {
            tasks.spawn(self.clone().work(work.clone(), span_of.clone()));
        }
        tokio::select! {
            biased;
            () = join(&mut tasks) => return,
            () = shutdown.cancelled() => self.shut_down(),
        }
        join(&mut tasks).await;
    }

    /// One worker. A panic in `work` is logged and counts as a failure of that key alone.
    async fn work<S, F, Fut>(self, work: Arc<F>, span_of: Arc<S>)
    where
        S: Fn(&K, u32) -> Span,
        F: Fn(K) -> Fut,
        Fut: Future<Output = Outcome>,
    {
        while let Some(item) = self.next().await {
            let key = item.key().clone();
            let span = span_of(&key, self.requeues(&key).saturating_add(1));
            let call = AssertUnwindSafe(async { work(key).await }).catch_unwind();
            let outcome = call.instrument(span.clone()).await.unwrap_or_else(|panic| {
                if let Some(vitals) = &self.inner.vitals {
                    vitals.panicked();
                }
                Outcome::retry(format!("panic: {}", panic_text(&*panic)))
            });
            span.in_scope(|| item.finish(outcome));
        }
    }

    fn done(&self, key: &K) {
        let mut state = self.inner.state.lock();
        if let Some(started) = state.running.remove(key)
            && let Some(m) = &self.inner.metrics
        {
            m.work_seconds.observe(started.elapsed().as_secs_f64());
        }
        // Added again during its pass: back to the end of the queue.
        if state.dirty.contains_key(key) {
            state.ready.push_back(key.clone());
            drop(state);
            self.inner.wake.notify_one();
        }
    }
}

impl<K: QueueKey> State<K> {
    /// Marks a key as needing a pass; false if it already did.
    fn add(&mut self, key: K) -> bool {
        // An immediate pass makes a later one pointless.
        if let Some(at) = self.waiting_keys.remove(&key) {
            self.waiting.remove(&at);
        }
        if self.dirty.contains_key(&key) {
            return false;
        }
        self.dirty.insert(key.clone(), Instant::now());
        if !self.running.contains_key(&key) {
            self.ready.push_back(key);
        }
        true
    }

    fn add_at(&mut self, key: K, at: Instant) {
        if self.dirty.contains_key(&key) {
            return;
        }
        if let Some(old) = self.waiting_keys.get(&key).copied() {
            if old.0 <= at {
                return;
            }
            self.waiting.remove(&old);
        }
        self.sequence += 1;
        let slot = (at, self.sequence);
        self.waiting.insert(slot, key.clone());
        self.waiting_keys.insert(key, slot);
    }

    /// Enqueues the keys whose delay is over; returns how many.
    fn promote_due(&mut self) -> u64 {
        let now = Instant::now();
        let mut promoted = 0;
        while let Some(entry) = self.waiting.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.waiting_keys.remove(&key);
            promoted += u64::from(self.add(key));
        }
        promoted
    }

    fn take(&mut self) -> Option<(K, Duration)> {
        let key = self.ready.pop_front()?;
        let added = self.dirty.remove(&key);
        self.running.insert(key.clone(), Instant::now());
        Some((key, added.map_or(Duration::ZERO, |at| at.elapsed())))
    }

    fn oldest_age(&self) -> Duration {
        let front = self.ready.front().and_then(|key| self.dirty.get(key));
        front.map_or(Duration::ZERO, |at| at.elapsed())
    }
}

impl<K: QueueKey> QueueStats for Mutex<State<K>> {
    fn depth(&self) -> usize {
        self.lock().ready.len()
    }
    fn oldest_age(&self) -> Duration {
        self.lock().oldest_age()
    }
    fn running(&self) -> Vec<Duration> {
        self.lock().running.values().map(Instant::elapsed).collect()
    }
}

impl<K: QueueKey> QueueStats for Inner<K> {
    fn depth(&self) -> usize {
        self.state.depth()
    }
    fn oldest_age(&self) -> Duration {
        self.state.oldest_age()
    }
    fn running(&self) -> Vec<Duration> {
        self.state.running()
    }
}

/// A key that a worker has taken from the queue.
pub struct WorkItem<K: QueueKey> {
    queue: WorkQueue<K>,
    key: Option<K>,
}

impl<K: QueueKey> WorkItem<K> {
    /// The key to work on.
    #[must_use]
    pub fn key(&self) -> &K {
        self.key.as_ref().expect("present until finish or drop")
    }

    /// Ends the pass with its outcome.
    pub fn finish(mut self, outcome: Outcome) {
        let key = self.key.take().expect("present until finish or drop");
        let queue = &self.queue;
        match outcome {
            Outcome::Done => queue.forget(&key),
            Outcome::Retry(error) => {
                let failures = queue.requeues(&key) + 1;
                let delay = queue.add_rate_limited(key.clone());
                let name = &queue.inner.name;
                let retry_in = words::time(delay);
                let error = words::causes(error.as_ref());
                tracing::warn!(queue = %name, failures, retry_in, error, "work failed");
            }
            Outcome::After(delay) => {
                queue.forget(&key);
                queue.add_after(key.clone(), delay);
            }
            Outcome::Again => queue.add(key.clone()),
        }
        queue.done(&key);
    }
}

impl<K: QueueKey> Drop for WorkItem<K> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.queue.add(key.clone());
            self.queue.done(&key);
        }
    }
}

async fn join(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
