//! The kit that every loop is built from.
//!
//! A loop is a [`Reconciler`]: it says which keys a change concerns ([`Reconciler::sources`]) and
//! what to do about one key ([`Reconciler::reconcile`]). [`Loop::run`] does the rest, the same for
//! all: it waits for the caches, subscribes, feeds the queue, resyncs, and runs each pass inside a
//! span with the loop, the key and the attempt. Whatever way the run ends, its subscriptions end
//! with it.
//!
//! What is absent on purpose: rules. They are functions in `longshore_core` that see a small view
//! and return what to do.

mod context;
mod sources;
mod vitals;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use tokio_util::sync::CancellationToken;
use tracing::Span;
use tracing::field::Empty;

pub use context::Context;
pub use sources::Sources;
pub use vitals::{Burst, Vitals};

use crate::awaited::with_wake;
use crate::queue::{Outcome, QueueKey, WorkQueue};

/// A loop: the keys that a change concerns, and what to do about one key.
pub trait Reconciler: Send + Sync + Sized + 'static {
    type Key: QueueKey;

    /// Names the caches that the loop needs, and for each the keys that a change concerns.
    fn sources(&self, sources: &mut Sources<Self>);

    /// Called once, when all caches of the sources have their first list and before any change
    /// enqueues a key.
    fn prepare(&self) {}

    /// Names the object of a key, for the span of its pass.
    fn subject(&self, key: &Self::Key) -> Subject;

    /// One pass over one key: look, decide, act. The queue repeats it as the outcome says.
    fn reconcile(&self, key: &Self::Key) -> impl Future<Output = Outcome> + Send;
}

/// The object of a pass, as its span shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The span's field for this kind of object, if it has one.
    field: Option<&'static str>,
    key: String,
}

impl Subject {
    /// A key that is no object's name.
    pub fn key(key: impl Display) -> Self {
        Self { field: None, key: key.to_string() }
    }

    pub fn claim(key: impl Display) -> Self {
        Self { field: Some("claim"), key: key.to_string() }
    }

    pub fn volume(name: impl Display) -> Self {
        Self { field: Some("volume"), key: name.to_string() }
    }

    pub fn node(name: impl Display) -> Self {
        Self { field: Some("node"), key: name.to_string() }
    }

    pub fn pod(key: impl Display) -> Self {
        Self { field: Some("pod"), key: key.to_string() }
    }
}

/// The span of a pass, without a parent: an operation that a pass starts is about its own key.
/// Fields that are not known yet are recorded later with [`note`].
#[must_use]
pub fn pass_span(step: &'static str, subject: &Subject, attempt: u32) -> Span {
    pass_span_in(&Span::none(), step, subject, attempt)
}

/// The span of a pass of a loop that is part of something greater, with that as its parent.
fn pass_span_in(parent: &Span, step: &'static str, subject: &Subject, attempt: u32) -> Span {
    let span = tracing::info_span!(
        parent: parent,
        "pass",
        r#loop = step,
        key = subject.key,
        attempt,
        claim = Empty,
        volume = Empty,
        node = Empty,
        pod = Empty,
        driver = Empty,
    );
    if let Some(field) = subject.field {
        span.record(field, subject.key.as_str());
    }
    span
}

/// Records a field of the pass that runs: `claim`, `volume`, `node`, `pod` or `driver`.
pub fn note(field: &'static str, value: impl Display) {
    let span = Span::current();
    if !span.is_disabled() {
        span.record(field, tracing::field::display(value));
    }
}

/// A loop, ready to run.
pub struct Loop<R: Reconciler> {
    step: &'static str,
    reconciler: Arc<R>,
    queue: WorkQueue<R::Key>,
    workers: usize,
    resync: Duration,
    beside: Vec<BoxFuture<'static, ()>>,
}

impl<R: Reconciler> Loop<R> {
    /// A loop with one worker that never resyncs. `step` is its word in log lines.
    #[must_use]
    pub fn new(step: &'static str, reconciler: Arc<R>, queue: WorkQueue<R::Key>) -> Self {
        Self { step, reconciler, queue, workers: 1, resync: Duration::ZERO, beside: Vec::new() }
    }

    /// How many passes run side by side.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Period after which every object of the sources is enqueued again; zero for never.
    #[must_use]
    pub fn resync(mut self, period: Duration) -> Self {
        self.resync = period;
        self
    }

    /// Runs `work` beside the passes: it begins when the caches have their first list and all
    /// subscriptions are made, and is dropped at shutdown.
    #[must_use]
    pub fn beside(mut self, work: impl Future<Output = ()> + Send + 'static) -> Self {
        self.beside.push(work.boxed());
        self
    }

    /// Runs until `shutdown` is cancelled; passes in flight are finished then. Dropping the future
    /// aborts them. Either way the subscriptions end and the queue is closed.
    pub async fn run(self, shutdown: &CancellationToken) {
        let _closing = Closing(self.queue.clone());
        let mut sources = Sources::new(self.reconciler.clone(), self.queue.clone());
        self.reconciler.sources(&mut sources);
        if shutdown.run_until_cancelled(sources.synced()).await.is_none() {
            tracing::debug!(r#loop = self.step, "stopped before the first list was there");
            return;
        }
        self.reconciler.prepare();
        let resyncs = sources.resyncs();
        let _subscriptions = sources.subscribe();
        let (step, spans, work) = (self.step, self.reconciler.clone(), self.reconciler);
        let queue = self.queue.clone();
        // Several controllers may share this process; a line of a pass says which of them it is from.
        let around = Span::current();
        let passes = self.queue.run_until(
            self.workers,
            shutdown,
            move |key, attempt| pass_span_in(&around, step, &spans.subject(key), attempt),
            move |key| {
                let (reconciler, wake) = (work.clone(), queue.wake(&key));
                with_wake(wake, async move { reconciler.reconcile(&key).await })
            },
        );
        let beside = shutdown.run_until_cancelled(join_all(self.beside));
        tokio::join!(passes, resync(resyncs, self.resync, shutdown), beside);
    }
}

async fn resync(all: Vec<sources::Resync>, period: Duration, shutdown: &CancellationToken) {
    if period.is_zero() || all.is_empty() {
        return;
    }
    let forever = async {
        loop {
            tokio::time::sleep(period).await;
            all.iter().for_each(|enqueue| enqueue());
        }
    };
    shutdown.run_until_cancelled(forever).await;
}

/// Closes the queue in whatever way the run ends: keys that are added later find no worker.
struct Closing<K: QueueKey>(WorkQueue<K>);

impl<K: QueueKey> Drop for Closing<K> {
    fn drop(&mut self) {
        self.0.shut_down();
    }
}
