//! Events about objects, written in the background.
//!
//! [`Recorder::event`] never waits and never fails: occurrences go into bounded tables where equal
//! ones add up, and a task writes them as core/v1 Events, Warnings first. 1,000 equal failures are one Event
//! object with a count of 1,000 and a handful of writes.

mod correlate;
mod pending;

use std::sync::Arc;
use std::time::Duration;

use longshore_core::model::kinds::Event;
use longshore_core::model::{HasMeta, Kind, ObjectKey, ObjectRef};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::{Api, Patch};
use crate::clock;
use crate::error::ApiError;
use correlate::{Correlator, Decision, Written};
use pending::{Batch, Pending};

/// How often a write without verdict is tried, and how long between the tries.
const TRIES: u32 = 12;
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// One occurrence of an event about an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Occurrence {
    object: ObjectRef,
    kind: EventType,
    reason: String,
    message: String,
}

impl Occurrence {
    /// The object without its version: events about two versions of an object are equal.
    fn identity(&self) -> ObjectRef {
        ObjectRef { resource_version: String::new(), ..self.object.clone() }
    }
}

/// Writes events. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    inner: Arc<Inner>,
}

struct Inner {
    pending: Mutex<Pending>,
    wake: Notify,
}

impl Recorder {
    /// Starts a recorder whose events come from `component` (for example
    /// `persistentvolume-controller`) on `instance` (host or pod name, may be empty). When
    /// `shutdown` is cancelled the task writes what is pending, within five seconds, and ends.
    #[must_use]
    pub fn start(
        api: &Api,
        component: &str,
        instance: &str,
        shutdown: &CancellationToken,
    ) -> (Self, JoinHandle<()>) {
        let inner = Arc::new(Inner { pending: Mutex::new(Pending::new()), wake: Notify::new() });
        let recorder = Self { inner: inner.clone() };
        let writer = Writer {
            inner,
            api: api.clone(),
            background: api.low_priority(),
            component: component.to_owned(),
            instance: instance.to_owned(),
            correlator: Correlator::default(),
        };
        (recorder, tokio::spawn(writer.run(shutdown.clone())))
    }

    /// A recorder that writes nothing, for programs that must not write events.
    #[must_use]
    pub fn none() -> Self {
        Self {
            inner: Arc::new(Inner { pending: Mutex::new(Pending::closed()), wake: Notify::new() }),
        }
    }

    /// Records a normal event about an object. Never waits.
    pub fn normal<T: Kind + HasMeta>(&self, object: &T, reason: &str, message: impl Into<String>) {
        self.event(&ObjectRef::of::<T>(object.meta()), EventType::Normal, reason, message);
    }

    /// Records a warning about an object. Never waits.
    pub fn warning<T: Kind + HasMeta>(&self, object: &T, reason: &str, message: impl Into<String>) {
        self.event(&ObjectRef::of::<T>(object.meta()), EventType::Warning, reason, message);
    }

    /// Records that something happened to an object. Never waits.
    pub fn event(
        &self,
        object: &ObjectRef,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        let occurrence = Occurrence {
            object: object.clone(),
            kind,
            reason: reason.to_owned(),
            message: message.into(),
        };
        tracing::debug!(
            kind = object.kind,
            object = %ObjectKey::new(&object.namespace, &object.name),
            r#type = kind.as_str(),
            reason,
            text = occurrence.message,
            "event"
        );
        let added = self.inner.pending.lock().add(occurrence, clock::now());
        if added {
            self.inner.wake.notify_one();
        }
    }
}

struct Writer {
    inner: Arc<Inner>,
    /// For Warnings.
    api: Api,
    /// For what may wait while other requests are in flight.
    background: Api,
    component: String,
    instance: String,
    correlator: Correlator,
}

impl Writer {
    async fn run(mut self, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                batch = next_batch(&self.inner) => {
                    // A batch in hand is lost if shutdown interrupts its retries; by then the
                    // server has been silent for a while anyway.
                    tokio::select! {
                        () = self.write(batch) => {}
                        () = shutdown.cancelled() => break,
                    }
                }
            }
        }
        let rest = async {
            while let Some(batch) = self.take_rest() {
                self.write(batch).await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(5), rest).await;
        self.inner.pending.lock().close();
    }

    fn take_rest(&self) -> Option<Batch> {
        self.inner.pending.lock().take_any()
    }

    async fn write(&mut self, batch: Batch) {
        let Some(decision) = self.correlator.correlate(&batch.occurrence) else {
            tracing::debug!(reason = batch.occurrence.reason, "too many events about one object");
            return;
        };
        // One name for all tries: if an earlier one was stored, the next says so.
        let name = event_name(&batch.occurrence.object.name, batch.first);
        for _ in 0..TRIES {
            match self.try_write(&decision, &batch, &name).await {
                Ok(written) => return self.correlator.remember(decision.key, written),
                Err(error) if error.is_without_verdict() || is_limit(&error) => {
                    tracing::debug!(%error, "event not written yet");
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err(error) => {
                    tracing::warn!(%error, reason = batch.occurrence.reason, "event dropped");
                    return;
                }
            }
        }
        tracing::warn!(
            reason = batch.occurrence.reason,
            "event dropped: the server does not answer"
        );
    }

    async fn try_write(
        &mut self,
        decision: &Decision,
        batch: &Batch,
        name: &str,
    ) -> Result<Written, ApiError> {
        if let Some(written) = &decision.written {
            match self.count_up(written, &decision.message, batch).await {
                // Expired meanwhile: start a new one.
                Err(ApiError::NotFound { .. }) => self.correlator.forget(&decision.key),
                other => return other,
            }
        }
        self.make(&decision.message, batch, name).await
    }

    async fn count_up(
        &self,
        written: &Written,
        message: &str,
        batch: &Batch,
    ) -> Result<Written, ApiError> {
        let count = written.count + batch.count;
        let patch = json!({
            "count": count, "message": message, "lastTimestamp": clock::seconds(batch.last),
        });
        let key = ObjectKey::new(written.namespace.clone(), written.name.clone());
        self.api_for(batch).patch::<Event>(&key, Patch::Strategic(&patch)).await?;
        Ok(Written { count, ..written.clone() })
    }

    async fn make(&self, message: &str, batch: &Batch, name: &str) -> Result<Written, ApiError> {
        let event = self.event(message, batch, name);
        match self.api_for(batch).create::<Event>(&event).await {
            Ok(_) | Err(ApiError::AlreadyExists { .. }) => {}
            Err(error) => return Err(error),
        }
        let field = |name: &str| event["metadata"][name].as_str().unwrap_or_default().to_owned();
        Ok(Written { namespace: field("namespace"), name: field("name"), count: batch.count })
    }

    fn api_for(&self, batch: &Batch) -> &Api {
        match batch.occurrence.kind {
            EventType::Warning => &self.api,
            EventType::Normal => &self.background,
        }
    }

    fn event(&self, message: &str, batch: &Batch, name: &str) -> Value {
        let Occurrence { object, kind, reason, .. } = &batch.occurrence;
        // Events about cluster-wide objects live in `default`.
        let namespace = if object.namespace.is_empty() { "default" } else { &object.namespace };
        let mut source = json!({"component": self.component});
        if !self.instance.is_empty() {
            source["host"] = self.instance.as_str().into();
        }
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": object,
            "type": kind.as_str(),
            "reason": reason,
            "message": message,
            "count": batch.count,
            "firstTimestamp": clock::seconds(batch.first),
            "lastTimestamp": clock::seconds(batch.last),
            "source": source,
            "reportingComponent": self.component,
            "reportingInstance": self.instance,
        })
    }
}

/// Waits until something is due to be written.
async fn next_batch(inner: &Inner) -> Batch {
    loop {
        let woken = inner.wake.notified();
        let due = {
            let mut pending = inner.pending.lock();
            match pending.take_due(Instant::now()) {
                Ok(batch) => return batch,
                Err(due) => due,
            }
        };
        match due {
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

fn is_limit(error: &ApiError) -> bool {
    matches!(error, ApiError::TooManyRequests { .. })
}

/// `<object>.<time in hex>`, at most 253 characters.
fn event_name(object: &str, at: jiff::Timestamp) -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    // Numbers only grow: events are written in another order than they are recorded, and one whose
    // name is taken would count as written.
    static LAST: AtomicU64 = AtomicU64::new(0);
    let nanos = u64::try_from(at.as_nanosecond()).unwrap_or(0);
    let after = |last: u64| last.wrapping_add(1).max(nanos);
    let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(after(last)));
    let unique = after(last.unwrap_or_default());
    let object: String = object.chars().take(253 - 17).collect();
    format!("{}.{unique:x}", object.trim_end_matches(['.', '-']))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
