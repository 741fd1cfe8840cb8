//! Keeps a cache equal to the server: list, watch, and again.
//!
//! A list comes as a stream of events where the server can do that, else in pages. Either way its
//! objects go one by one into the store, and what it did not hold is deleted at its end, so no
//! second copy of the collection ever exists and subscribers are notified of deletions missed
//! between two watches.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use longshore_core::backoff::Backoff;
use longshore_core::model::ObjectKey;
use longshore_core::words;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Cache, Cacheable};
use crate::api::Api;
use crate::error::{ApiError, Status};
use crate::lines::Lines;

/// Some load balancers drop connections that are idle for 240 s; end watches before that.
const WATCH_TIMEOUT: Duration = Duration::from_secs(200);
/// How much later than promised a server may end a watch before the connection counts as dead.
const WATCH_GRACE: Duration = Duration::from_secs(20);
const PAGE_SIZE: u32 = 500;
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(30));
/// A connection that held this long was a good one: the next failure starts the backoff from the
/// beginning.
const GOOD_AFTER: Duration = Duration::from_secs(10);
/// Marks the bookmark that ends a streamed list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// The next request of the reflector.
enum Step {
    /// List by stream, or by pages if the server cannot stream.
    List { streaming: bool },
    /// Watch on from this version.
    Watch { version: String },
    /// Ask whether the server, whose watch has ended, still has this version: a restored one waits
    /// in silence until its versions have caught up, and never tells what differs.
    Confirm { version: String },
}

pub(super) async fn run<T: Cacheable>(cache: Cache<T>, api: Api, shutdown: CancellationToken) {
    let reflector = Reflector { cache, api };
    shutdown.run_until_cancelled(reflector.run()).await;
}

struct Reflector<T> {
    cache: Cache<T>,
    api: Api,
}

impl<T: Cacheable> Reflector<T> {
    async fn run(self) {
        let mut step = Step::List { streaming: true };
        let mut failures = 0;
        loop {
            let started = Instant::now();
            let (next, error) = self.step(step).await;
            // Whatever comes next, there is no watch now.
            self.cache.inner.store.write().last_event = None;
            step = next;
            self.note_refusal(error.as_ref());
            if started.elapsed() >= GOOD_AFTER {
                failures = 0;
            }
            let Some(error) = error else { continue };
            let pause = backoff(failures);
            failures += 1;
            tracing::warn!(kind = T::KIND, %error, retry_in = words::time(pause), "the cache lost its watch");
            tokio::time::sleep(pause).await;
        }
    }

    /// Any other failure says nothing about what this process may do.
    fn note_refusal(&self, error: Option<&ApiError>) {
        let refused = match error {
            Some(error @ ApiError::Forbidden { .. }) => Some(error.to_string()),
            Some(_) => return,
            None => None,
        };
        self.cache.inner.refused.send_if_modified(|before| {
            let changed = before.is_some() != refused.is_some();
            *before = refused;
            changed
        });
    }

    /// Does one step; returns the next one, and an error if it should wait.
    async fn step(&self, step: Step) -> (Step, Option<ApiError>) {
        match step {
            Step::List { streaming: true } => match self.list_streaming().await {
                Ok(Listed::Complete(lines, version)) => self.follow(lines, version).await,
                Ok(Listed::Unsupported) => (Step::List { streaming: false }, None),
                Err(e) => (Step::List { streaming: true }, Some(e)),
            },
            Step::List { streaming: false } => match self.list_paged().await {
                Ok(version) => (Step::Watch { version }, None),
                Err(e) => (Step::List { streaming: false }, Some(e)),
            },
            Step::Watch { version } => match self.open_watch(&version, &[]).await {
                Ok(lines) => self.follow(lines, version).await,
                Err(e) => after_failed_watch(version, e),
            },
            Step::Confirm { version } => self.confirm(version).await,
        }
    }

    /// Goes on if the server's version is not older than ours; else the list tells what is true now.
    async fn confirm(&self, version: String) -> (Step, Option<ApiError>) {
        let scope = &self.cache.inner.scope;
        let (namespace, params) = (scope.namespace.as_deref(), scope.params());
        match self.api.list_page::<T>(namespace, &params, Some(1), "").await {
            Ok(page) if number(&page.metadata.resource_version) < number(&version) => {
                let now = page.metadata.resource_version;
                tracing::warn!(kind = T::KIND, before = version, now, "the server was set back");
                self.cache.inner.store.write().forget_writes();
                (Step::List { streaming: true }, None)
            }
            // Who may watch and not list learns nothing here.
            Ok(_) | Err(ApiError::Forbidden { .. }) => (Step::Watch { version }, None),
            Err(e) => (Step::Confirm { version }, Some(e)),
        }
    }

    async fn open_watch(&self, version: &str, extra: &[(&str, &str)]) -> Result<Lines, ApiError> {
        let scope = &self.cache.inner.scope;
        let timeout = WATCH_TIMEOUT.as_secs().to_string();
        let mut query = vec![("allowWatchBookmarks", "true"), ("timeoutSeconds", timeout.as_str())];
        if !version.is_empty() {
            query.push(("resourceVersion", version));
        }
        query.extend_from_slice(extra);
        self.api.watch::<T>(scope.namespace.as_deref(), &scope.params(), &query).await
    }

    async fn list_streaming(&self) -> Result<Listed, ApiError> {
        let extra = [("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")];
        let mut lines = match self.open_watch("", &extra).await {
            Ok(lines) => lines,
            // A server that does not know these parameters says 400 or 422.
            Err(ApiError::Invalid { .. } | ApiError::Other { code: 405 | 415 | 501, .. }) => {
                return Ok(Listed::Unsupported);
            }
            Err(e) => return Err(e),
        };
        let mut listed = BTreeSet::new();
        loop {
            let Some(line) = next_line(&mut lines).await? else {
                return Err(cut(&lines, "the stream ended before the list was complete"));
            };
            match decode::<T>(&lines, &line)? {
                Event::Applied(object) => {
                    listed.insert(object.key());
                    self.cache.change(|store| store.apply_listed(object).into_iter().collect());
                }
                Event::Deleted(object) => {
                    listed.remove(&object.key());
                    self.cache.change(|store| store.delete(&object).into_iter().collect());
                }
                Event::Bookmark { version, ends_list: true } => {
                    self.finish_list(&listed, &version);
                    return Ok(Listed::Complete(lines, version));
                }
                Event::Bookmark { .. } => {}
            }
        }
    }

    async fn list_paged(&self) -> Result<String, ApiError> {
        let scope = &self.cache.inner.scope;
        let (namespace, params) = (scope.namespace.as_deref(), scope.params());
        let mut listed = BTreeSet::new();
        let mut limit = Some(PAGE_SIZE);
        let mut token = String::new();
        loop {
            let page = match self.api.list_page::<T>(namespace, &params, limit, &token).await {
                // The token expired between two pages: read again in one piece.
                Err(ApiError::Gone { .. }) if limit.is_some() => {
                    (limit, token) = (None, String::new());
                    listed.clear();
                    continue;
                }
                page => page?,
            };
            for object in page.items.unwrap_or_default() {
                listed.insert(object.key());
                self.cache.change(|store| store.apply_listed(object).into_iter().collect());
            }
            if page.metadata.continue_.is_empty() {
                self.finish_list(&listed, &page.metadata.resource_version);
                return Ok(page.metadata.resource_version);
            }
            token = page.metadata.continue_;
        }
    }

    fn finish_list(&self, listed: &BTreeSet<ObjectKey>, version: &str) {
        let version = number(version);
        self.cache.change(|store| {
            store.listed_at(version);
            store.retain_listed(listed, version)
        });
        self.cache.inner.synced.cancel();
        self.note_refusal(None);
        tracing::debug!(kind = T::KIND, objects = listed.len(), version, "listed");
    }

    /// Follows an open watch to its end.
    async fn follow(&self, mut lines: Lines, mut version: String) -> (Step, Option<ApiError>) {
        let started = Instant::now();
        loop {
            let event = match next_line(&mut lines).await {
                Ok(Some(line)) => decode::<T>(&lines, &line),
                Ok(None) => {
                    let short = started.elapsed() < Duration::from_secs(1);
                    let error = short.then(|| cut(&lines, "the watch ended right after its start"));
                    // A server that is restored ends its watches as cleanly as one whose time is up.
                    return (Step::Confirm { version }, error);
                }
                Err(e) => Err(e),
            };
            match event {
                Ok(event) => self.apply(event, &mut version),
                Err(e) => return after_failed_watch(version, e),
            }
        }
    }

    fn apply(&self, event: Event<T>, version: &mut String) {
        match event {
            Event::Applied(object) => {
                version.clone_from(&object.meta().resource_version);
                self.cache.change(|store| {
                    store.seen_up_to(object.meta().revision());
                    store.apply(object).into_iter().collect()
                });
            }
            Event::Deleted(object) => {
                version.clone_from(&object.meta().resource_version);
                self.cache.change(|store| {
                    store.seen_up_to(object.meta().revision());
                    store.delete(&object).into_iter().collect()
                });
            }
            Event::Bookmark { version: at, .. } => {
                self.cache.inner.store.write().seen_up_to(number(&at));
                *version = at;
            }
        }
    }
}

enum Listed {
    Complete(Lines, String),
    Unsupported,
}

/// A watch failed: go on from where it was, or list again if that version is gone.
fn after_failed_watch(version: String, error: ApiError) -> (Step, Option<ApiError>) {
    match error {
        ApiError::Gone { .. } => {
            tracing::debug!(%error, "listing again");
            (Step::List { streaming: true }, None)
        }
        // The server may have come back with other data, or cannot read what it sends: a list
        // settles both.
        ApiError::Decode { .. } | ApiError::Invalid { .. } => {
            (Step::List { streaming: true }, Some(error))
        }
        error => (Step::Confirm { version }, Some(error)),
    }
}

/// Doubles from 0.8 s to 30 s and spreads by up to as much again, so that many watchers do not
/// come back in step.
fn backoff(failures: u32) -> Duration {
    BACKOFF.after(failures).mul_f64(1.0 + fastrand::f64())
}

/// The next line; an error if the server stays silent longer than it promised to.
async fn next_line(lines: &mut Lines) -> Result<Option<bytes::Bytes>, ApiError> {
    match tokio::time::timeout(WATCH_TIMEOUT + WATCH_GRACE, lines.next()).await {
        Ok(line) => line,
        Err(_) => Err(cut(lines, "the server went silent")),
    }
}

fn cut(lines: &Lines, why: &str) -> ApiError {
    ApiError::Unreachable { at: lines.at().clone(), source: why.into() }
}

fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

enum Event<T> {
    Applied(T),
    Deleted(T),
    Bookmark { version: String, ends_list: bool },
}

/// An event as it stands in a line.
enum Line<'a, T> {
    Applied(T),
    Deleted(T),
    /// Anything else: its type and its object.
    Other(Cow<'a, str>, &'a RawValue),
}

impl<'de: 'a, 'a, T: DeserializeOwned> Deserialize<'de> for Line<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(LineVisitor(PhantomData))
    }
}

/// Reads a line in one go if it begins with the type of the event, as all servers write it.
struct LineVisitor<'a, T>(PhantomData<(&'a (), T)>);

impl<'de: 'a, 'a, T: DeserializeOwned> Visitor<'de> for LineVisitor<'a, T> {
    type Value = Line<'a, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a watch event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Line<'a, T>, A::Error> {
        let (mut kind, mut object) = (None::<Text<'a>>, None::<&'a RawValue>);
        let mut read = None;
        while let Some(Text(name)) = map.next_key()? {
            match (name.as_ref(), kind.as_ref().map(|kind| kind.0.as_ref())) {
                ("type", _) => kind = Some(map.next_value()?),
                ("object", Some("ADDED" | "MODIFIED")) => {
                    read = Some(Line::Applied(map.next_value()?));
                }
                ("object", Some("DELETED")) => read = Some(Line::Deleted(map.next_value()?)),
                ("object", _) => object = Some(map.next_value()?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if let Some(read) = read {
            return Ok(read);
        }
        let Text(kind) = kind.ok_or_else(|| A::Error::missing_field("type"))?;
        let object = object.ok_or_else(|| A::Error::missing_field("object"))?;
        let read = |object: &RawValue| serde_json::from_str(object.get()).map_err(A::Error::custom);
        match kind.as_ref() {
            "ADDED" | "MODIFIED" => read(object).map(Line::Applied),
            "DELETED" => read(object).map(Line::Deleted),
            _ => Ok(Line::Other(kind, object)),
        }
    }
}

/// A text that is borrowed where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct BookmarkObject {
    metadata: BookmarkMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMeta {
    resource_version: String,
    annotations: Option<BTreeMap<String, String>>,
}

fn decode<T: DeserializeOwned>(lines: &Lines, line: &[u8]) -> Result<Event<T>, ApiError> {
    let unreadable = |source| ApiError::Decode { at: lines.at().clone(), source };
    let (kind, object) = match serde_json::from_slice(line).map_err(unreadable)? {
        Line::Applied(object) => return Ok(Event::Applied(object)),
        Line::Deleted(object) => return Ok(Event::Deleted(object)),
        Line::Other(kind, object) => (kind, object.get()),
    };
    match kind.as_ref() {
        "BOOKMARK" => {
            let BookmarkObject { metadata } = serde_json::from_str(object).map_err(unreadable)?;
            let mark = metadata.annotations.unwrap_or_default().remove(INITIAL_EVENTS_END);
            let ends_list = mark.as_deref() == Some("true");
            Ok(Event::Bookmark { version: metadata.resource_version, ends_list })
        }
        "ERROR" => {
            let status: Status = serde_json::from_str(object).map_err(unreadable)?;
            Err(ApiError::from_status(lines.at().clone(), status))
        }
        other => {
            let message = format!("unknown watch event {other}");
            Err(ApiError::Other { at: lines.at().clone(), code: 0, message })
        }
    }
}

#[cfg(test)]
#[path = "reflect_tests.rs"]
mod tests;
