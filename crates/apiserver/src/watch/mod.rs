//! Watches: streams of events, read from the store's history.
//!
//! A watcher holds a position, not a buffer: it reads the history from there whenever the client
//! takes more. A client that is too slow falls behind the history and gets a 410, which is
//! what bounds the memory of a watch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use prometheus_client::metrics::counter::Counter;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::error::{ApiResult, Status};
use crate::heavy::Heavy;
use crate::http::pieces::{LARGE, Pieces};
use crate::http::render::Renderer;
use crate::ops::ListOptions;
use crate::registry::Resource;
use crate::store::{Change, Event, Store, Stored, Subscription};

/// Idle streams show this often that they live, and how far they are.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// A stream with an end sends its last bookmark this long before.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// Events rendered in one go.
const MAX_CHUNK: usize = 256;

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
    pub select: ListOptions,
    pub start: Start,
    /// Whether the client understands bookmarks.
    pub bookmarks: bool,
    /// When the stream ends.
    pub timeout: Duration,
}

struct Watcher {
    store: Store,
    resource: Arc<Resource>,
    namespace: Option<String>,
    options: WatchOptions,
    renderer: Renderer,
    counted: Counter,
    changed: Subscription,
    position: u64,
    initial: Option<VecDeque<Arc<Stored>>>,
    ends: Instant,
    next_bookmark: Instant,
    last_bookmark_sent: bool,
    finished: bool,
    /// Rendered, not yet asked for.
    pieces: Pieces,
    /// Held while there are initial objects.
    room: Option<OwnedSemaphorePermit>,
}

/// Opens a watch; the stream ends by itself after the timeout.
///
/// # Errors
/// 429 when there is no room for its initial objects.
pub(crate) fn open(
    store: &Store,
    resource: &Arc<Resource>,
    namespace: Option<&str>,
    options: WatchOptions,
    renderer: Renderer,
    counted: Counter,
    heavy: Option<&Heavy>,
) -> ApiResult<impl Stream<Item = Bytes> + Send + 'static> {
    // Subscribe before looking, so that no change falls between.
    let changed = store.subscribe(&resource.storage);
    let mut room = None;
    let (position, initial) = match options.start {
        Start::After(revision) => (revision, None),
        Start::Now => (store.revision(), None),
        Start::Initial { .. } => {
            let page = store.list(&resource.storage, namespace);
            if let Some(heavy) = heavy {
                room = heavy.list(page.objects.len())?;
            }
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
        pieces: Pieces::default(),
        room,
    };
    Ok(futures::stream::unfold(watcher, |mut watcher| async move {
        let chunk = watcher.next().await?;
        Some((chunk, watcher))
    }))
}

impl Watcher {
    /// The next piece of the stream: whole events, or a part of a large one.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(piece) = self.pieces.take() {
                return Some(piece);
            }
            if self.finished {
                return None;
            }
            if self.initial_chunk() {
                continue;
            }
            match self.store.events_after(&self.resource.storage, self.position, MAX_CHUNK) {
                Err(trimmed) => {
                    self.finished = true;
                    let why =
                        format!("too old resource version: {} ({})", self.position, trimmed.oldest);
                    self.renderer.error_event(&mut self.pieces, &Status::expired(why));
                    continue;
                }
                Ok((events, reached)) => {
                    self.render(&events, reached);
                    if !events.is_empty() {
                        continue;
                    }
                }
            }
            self.wait().await;
        }
    }

    /// Sleeps until something happens; renders a bookmark when it is time for one.
    async fn wait(&mut self) {
        let now = Instant::now();
        if now >= self.ends {
            self.finished = true;
            return;
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
            () = self.changed.changed() => {}
            () = tokio::time::sleep_until(wake) => self.bookmark_due(last),
        }
    }

    fn bookmark_due(&mut self, last: Instant) {
        let now = Instant::now();
        if !self.options.bookmarks || now >= self.ends {
            return;
        }
        let last_due = !self.last_bookmark_sent && now >= last;
        if !last_due && now < self.next_bookmark {
            return;
        }
        self.last_bookmark_sent |= last_due;
        self.next_bookmark = now + BOOKMARK_EVERY;
        self.renderer.bookmark(&mut self.pieces, self.position, false);
    }

    /// Current objects, then their end mark; false when all of that was rendered before.
    fn initial_chunk(&mut self) -> bool {
        let Some(objects) = self.initial.as_mut() else { return false };
        let chunk = &mut self.pieces;
        let mut count = 0;
        while count < MAX_CHUNK
            && chunk.len() < LARGE
            && let Some(object) = objects.pop_front()
        {
            if self.options.select.selects(&object, &self.resource) {
                self.renderer.event(chunk, "ADDED", &object);
                count += 1;
            }
        }
        self.counted.inc_by(count as u64);
        if objects.is_empty() {
            self.initial = None;
            self.room = None;
            if self.options.bookmarks
                && matches!(self.options.start, Start::Initial { mark_end: true })
            {
                self.renderer.bookmark(chunk, self.position, true);
            }
        }
        true
    }

    /// Renders events and moves on behind them; what would be too long waits for the next time.
    fn render(&mut self, events: &[Arc<Event>], reached: u64) {
        let chunk = &mut self.pieces;
        for event in events {
            if chunk.len() >= LARGE {
                return;
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
                (None, Some(object)) => self.renderer.event(chunk, "ADDED", object),
                (Some(_), Some(object)) => self.renderer.event(chunk, "MODIFIED", object),
                (Some(_), None) if event.change == Change::Delete => {
                    self.renderer.event(chunk, "DELETED", &event.object);
                }
                (Some(before), None) => {
                    self.renderer.event(chunk, "DELETED", &left(event, before));
                }
                (None, None) => continue,
            }
            self.counted.inc();
        }
        self.position = reached;
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
