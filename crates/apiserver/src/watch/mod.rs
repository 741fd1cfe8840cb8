//! Watches: streams of events, read from the store's history.
//!
//! A watcher holds a position, not a buffer: it reads the history from there whenever the client
//! takes more. A client that is too slow falls behind the history and is told so (410), which is
//! what bounds the memory of a watch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::Status;
use crate::http::render::Renderer;
use crate::metrics::EventCount;
use crate::ops::ListOptions;
use crate::registry::Resource;
use crate::store::{Change, Event, Store, Stored};

/// Idle streams show this often that they live, and how far they are.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// A stream with an end sends its last bookmark this long before.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// Events rendered in one go.
const MAX_CHUNK: usize = 256;
/// No more are rendered in one go when they are this long.
const CHUNK_BYTES: usize = 256 << 10;

/// Where a stream starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the current objects, then changes. The end of the objects is marked if asked for.
    Initial {
        /// Send the annotated bookmark after the objects.
        mark_end: bool,
    },
    /// With the changes after a revision.
    After(u64),
    /// With the changes from now on.
    Now,
}

/// What to watch, and how.
pub struct WatchOptions {
    /// Selectors.
    pub select: ListOptions,
    /// Where to start.
    pub start: Start,
    /// Whether the client understands bookmarks.
    pub bookmarks: bool,
    /// When the stream ends.
    pub timeout: Duration,
}

/// One open watch.
struct Watcher {
    store: Store,
    resource: Arc<Resource>,
    namespace: Option<String>,
    options: WatchOptions,
    renderer: Renderer,
    counted: EventCount,
    changed: watch::Receiver<u64>,
    position: u64,
    initial: Option<VecDeque<Arc<Stored>>>,
    ends: Instant,
    next_bookmark: Instant,
    last_bookmark_sent: bool,
    finished: bool,
}

/// Opens a watch; the stream ends by itself after the timeout.
pub fn open(
    store: &Store,
    resource: &Arc<Resource>,
    namespace: Option<&str>,
    options: WatchOptions,
    renderer: Renderer,
    counted: EventCount,
) -> impl Stream<Item = Bytes> + Send + 'static {
    // Subscribe before looking, so that no change falls between.
    let changed = store.subscribe(&resource.storage);
    let (position, initial) = match options.start {
        Start::After(revision) => (revision, None),
        Start::Now => (store.revision(), None),
        Start::Initial { .. } => {
            let page = store.list(&resource.storage, namespace);
            (page.revision, Some(page.objects.into()))
        }
    };
    let now = Instant::now();
    let watcher = Watcher {
        store: store.clone(),
        resource: Arc::clone(resource),
        namespace: namespace.map(str::to_owned),
        ends: now + options.timeout,
        next_bookmark: now + BOOKMARK_EVERY,
        options,
        renderer,
        counted,
        changed,
        position,
        initial,
        last_bookmark_sent: false,
        finished: false,
    };
    futures::stream::unfold(watcher, |mut watcher| async move {
        let chunk = watcher.next().await?;
        Some((chunk, watcher))
    })
}

impl Watcher {
    /// The next piece of the stream, one or more whole events.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.finished {
                return None;
            }
            if let Some(chunk) = self.initial_chunk() {
                return Some(chunk);
            }
            match self.store.events_after(&self.resource.storage, self.position, MAX_CHUNK) {
                Err(trimmed) => {
                    self.finished = true;
                    let why =
                        format!("too old resource version: {} ({})", self.position, trimmed.oldest);
                    return Some(self.renderer.error_event(&Status::expired(why)));
                }
                Ok((events, reached)) => {
                    let chunk = self.render(&events, reached);
                    if !chunk.is_empty() {
                        return Some(chunk.into());
                    }
                    if !events.is_empty() {
                        continue;
                    }
                }
            }
            if let Some(chunk) = self.wait().await {
                return Some(chunk);
            }
        }
    }

    /// Sleeps until something happens; returns a bookmark when it is time for one.
    async fn wait(&mut self) -> Option<Bytes> {
        let now = Instant::now();
        if now >= self.ends {
            self.finished = true;
            return None;
        }
        let last = self.ends - LAST_BOOKMARK.min(self.options.timeout);
        let mut wake = self.ends;
        if self.options.bookmarks {
            wake = wake.min(self.next_bookmark);
            if !self.last_bookmark_sent && last > now {
                wake = wake.min(last);
            }
        }
        tokio::select! {
            biased;
            result = self.changed.changed() => {
                // The sender lives as long as the store, which we hold.
                self.finished |= result.is_err();
                None
            }
            () = tokio::time::sleep_until(wake) => self.bookmark_due(last),
        }
    }

    fn bookmark_due(&mut self, last: Instant) -> Option<Bytes> {
        let now = Instant::now();
        if !self.options.bookmarks || now >= self.ends {
            return None;
        }
        let last_due = !self.last_bookmark_sent && now >= last;
        if !last_due && now < self.next_bookmark {
            return None;
        }
        self.last_bookmark_sent |= last_due;
        self.next_bookmark = now + BOOKMARK_EVERY;
        Some(self.renderer.bookmark(self.position, false))
    }

    /// Current objects, then their end mark.
    fn initial_chunk(&mut self) -> Option<Bytes> {
        let objects = self.initial.as_mut()?;
        let mut chunk = Vec::new();
        let mut count = 0;
        while count < MAX_CHUNK
            && chunk.len() < CHUNK_BYTES
            && let Some(object) = objects.pop_front()
        {
            if self.options.select.selects(&object, &self.resource) {
                self.renderer.event(&mut chunk, "ADDED", &object);
                count += 1;
            }
        }
        self.counted.add(count);
        if objects.is_empty() {
            self.initial = None;
            if self.options.bookmarks
                && matches!(self.options.start, Start::Initial { mark_end: true })
            {
                chunk.extend(self.renderer.bookmark(self.position, true));
            }
        }
        (!chunk.is_empty()).then(|| chunk.into())
    }

    /// Renders events and moves on behind them; what would be too long waits for the next time.
    fn render(&mut self, events: &[Arc<Event>], reached: u64) -> Vec<u8> {
        let mut chunk = Vec::new();
        for event in events {
            if chunk.len() >= CHUNK_BYTES {
                return chunk;
            }
            self.position = event.revision;
            let elsewhere = self.namespace.as_ref().is_some_and(|ns| *ns != event.key.namespace);
            if elsewhere {
                continue;
            }
            let selects = |o: &Arc<Stored>| self.options.select.selects(o, &self.resource);
            let before = event.previous.as_ref().filter(|o| selects(o));
            let now =
                (event.change == Change::Put && selects(&event.object)).then_some(&event.object);
            match (before, now) {
                (None, Some(object)) => self.renderer.event(&mut chunk, "ADDED", object),
                (Some(_), Some(object)) => self.renderer.event(&mut chunk, "MODIFIED", object),
                (Some(_), None) if event.change == Change::Delete => {
                    self.renderer.event(&mut chunk, "DELETED", &event.object);
                }
                (Some(before), None) => {
                    self.renderer.event(&mut chunk, "DELETED", &left(event, before));
                }
                (None, None) => continue,
            }
            self.counted.add(1);
        }
        self.position = reached;
        chunk
    }
}

/// An object that left the selection: as it was before, at the version of the change.
fn left(event: &Event, before: &Stored) -> Stored {
    Stored::new(&event.key, event.revision, before.value())
}

/// The object of a bookmark.
pub(crate) fn bookmark_object(
    resource: &Resource,
    revision: u64,
    initial_end: bool,
) -> serde_json::Value {
    let mut object = json!({
        "kind": resource.kind,
        "apiVersion": resource.api_version(),
        "metadata": {"resourceVersion": revision.to_string()},
    });
    if initial_end {
        object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    object
}
