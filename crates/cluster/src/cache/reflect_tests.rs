use std::collections::VecDeque;
use std::sync::Arc;

use longshore_core::model::kinds::ConfigMap;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;

use super::super::{Change, Scope, Subscription};
use super::*;
use crate::testing::{self, eventually, failure, respond, settle, stream};

fn object(name: &str, version: u64) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "resourceVersion": version.to_string()}})
}

fn event(kind: &str, object: &Value) -> Value {
    json!({"type": kind, "object": object})
}

fn list_end(version: u64) -> Value {
    let annotations = json!({INITIAL_EVENTS_END: "true"});
    let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
    event("BOOKMARK", &json!({"metadata": metadata}))
}

/// What the server does with the next request.
enum Play {
    /// Responds with a watch that the test feeds.
    Stream(http::Response<testing::AnyBody>),
    Refuse(u16),
    Respond(Value),
}

/// A server that plays its script in order and notes the queries it got.
#[derive(Clone, Default)]
struct Server {
    script: Arc<Mutex<VecDeque<Play>>>,
    queries: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn stream(&self) -> UnboundedSender<Value> {
        let (sender, response) = stream();
        self.script.lock().push_back(Play::Stream(response));
        sender
    }

    fn then(&self, play: Play) {
        self.script.lock().push_back(play);
    }

    fn start(&self) -> (Cache<ConfigMap>, Log) {
        let server = self.clone();
        let client = testing::client(move |request| {
            let server = server.clone();
            async move {
                server.queries.lock().push(request.query);
                let next = server.script.lock().pop_front();
                match next {
                    Some(Play::Stream(response)) => response,
                    Some(Play::Refuse(code)) => failure(code, "no"),
                    Some(Play::Respond(body)) => respond(200, &body),
                    None => std::future::pending().await,
                }
            }
        });
        let api = Api::new(client);
        let (cache, _task) =
            Cache::<ConfigMap>::start(&api, Scope::all(), &CancellationToken::new());
        let log = Log::default();
        let notified = log.clone();
        let kept = cache.subscribe(move |change: &Change<ConfigMap>| {
            notified.0.lock().push(format!("{change:?}"));
        });
        log.1.lock().push(kept);
        (cache, log)
    }

    fn query(&self, at: usize) -> String {
        self.queries.lock().get(at).cloned().unwrap_or_default()
    }
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>, Arc<Mutex<Vec<Subscription>>>);

impl Log {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

#[tokio::test(start_paused = true)]
async fn a_streamed_list_then_its_watch() {
    let server = Server::default();
    let feed = server.stream();
    let (cache, log) = server.start();
    feed.send(event("ADDED", &object("a", 5))).expect("open");
    settle().await;
    assert!(!cache.is_synced());
    feed.send(list_end(7)).expect("open");
    cache.synced().await;
    assert!(server.query(0).contains("sendInitialEvents=true"), "{}", server.query(0));
    assert!(server.query(0).contains("timeoutSeconds=200"), "{}", server.query(0));
    tokio::time::advance(Duration::from_secs(5)).await;
    assert!(!cache.is_fresh(Duration::from_secs(1)), "no event for a while");
    feed.send(event("MODIFIED", &object("a", 8))).expect("open");
    feed.send(event("DELETED", &object("a", 9))).expect("open");
    settle().await;
    assert!(cache.is_fresh(Duration::from_secs(1)));
    assert_eq!(log.take(), ["Applied(ns/a @5)", "Applied(ns/a @8)", "Deleted(ns/a @8)"]);
    assert!(cache.is_empty());
    drop(feed);
    settle().await;
    assert!(!cache.is_fresh(Duration::from_secs(1)), "the watch ended");
}

#[tokio::test(start_paused = true)]
async fn a_server_without_streamed_lists_gets_pages() {
    let server = Server::default();
    server.then(Play::Refuse(422));
    server.then(Play::Respond(json!({
        "metadata": {"resourceVersion": "7", "continue": "next page"}, "items": [object("a", 5)],
    })));
    server.then(Play::Respond(json!({
        "metadata": {"resourceVersion": "7"}, "items": [object("b", 6)],
    })));
    let feed = server.stream();
    let (cache, _log) = server.start();
    cache.synced().await;
    assert_eq!(cache.len(), 2);
    assert_eq!(server.query(1), "limit=500");
    assert_eq!(server.query(2), "limit=500&continue=next%20page");
    feed.send(event("ADDED", &object("c", 8))).expect("open");
    eventually("the watch goes on", || cache.len() == 3).await;
    assert!(server.query(3).contains("resourceVersion=7"), "{}", server.query(3));
}

#[tokio::test(start_paused = true)]
async fn a_closed_watch_goes_on_from_the_last_bookmark() {
    let server = Server::default();
    let feed = server.stream();
    let (cache, _log) = server.start();
    feed.send(list_end(7)).expect("open");
    cache.synced().await;
    server.then(Play::Respond(json!({"metadata": {"resourceVersion": "42"}, "items": []})));
    let again = server.stream();
    let bookmark = json!({"metadata": {"resourceVersion": "42"}});
    feed.send(event("BOOKMARK", &bookmark)).expect("open");
    drop(feed);
    again.send(event("ADDED", &object("a", 43))).expect("open");
    eventually("the second watch is read", || cache.len() == 1).await;
    assert_eq!(server.query(1), "limit=1", "whether the server was set back");
    assert!(server.query(2).contains("resourceVersion=42"), "{}", server.query(2));
}

/// 410 as an event: list again, and notify of what vanished in between.
#[tokio::test(start_paused = true)]
async fn gone_lists_again_and_tells_deletions() {
    let server = Server::default();
    let feed = server.stream();
    let (cache, log) = server.start();
    for (name, version) in [("gone", 1), ("kept", 2), ("changed", 3)] {
        feed.send(event("ADDED", &object(name, version))).expect("open");
    }
    feed.send(list_end(3)).expect("open");
    cache.synced().await;
    log.take();
    let again = server.stream();
    feed.send(event("ERROR", &json!({"code": 410, "reason": "Expired"}))).expect("open");
    again.send(event("ADDED", &object("kept", 2))).expect("open");
    again.send(event("ADDED", &object("changed", 9))).expect("open");
    again.send(list_end(10)).expect("open");
    eventually("the list is complete", || cache.len() == 2).await;
    assert_eq!(log.take(), ["Applied(ns/changed @9)", "Deleted(ns/gone @1)"]);
    assert!(server.query(1).contains("sendInitialEvents=true"), "{}", server.query(1));
}

/// The same through pages, with 410 as the status of the watch.
#[tokio::test(start_paused = true)]
async fn gone_by_status_lists_again_by_pages() {
    let server = Server::default();
    server.then(Play::Refuse(400));
    let items = [object("a", 1), object("b", 2)];
    server.then(Play::Respond(json!({"metadata": {"resourceVersion": "2"}, "items": items})));
    server.then(Play::Refuse(410));
    server.then(Play::Refuse(400));
    server.then(Play::Respond(json!({"metadata": {"resourceVersion": "9"}, "items": null})));
    let (cache, log) = server.start();
    eventually("all are deleted", || cache.is_synced() && cache.is_empty()).await;
    let log = log.take();
    assert_eq!(log[log.len() - 2..], ["Deleted(ns/a @1)", "Deleted(ns/b @2)"]);
}

#[tokio::test(start_paused = true)]
async fn own_writes_are_read_at_once_and_notified_once() {
    let server = Server::default();
    let feed = server.stream();
    let (cache, log) = server.start();
    feed.send(event("ADDED", &object("a", 5))).expect("open");
    feed.send(list_end(5)).expect("open");
    cache.synced().await;
    log.take();
    let key = ObjectKey::new("ns", "a");
    cache.assume(&object("a", 7));
    assert_eq!(cache.get(&key).expect("there").metadata.resource_version, "7");
    feed.send(event("MODIFIED", &object("a", 6))).expect("open");
    settle().await;
    assert_eq!(cache.get(&key).expect("there").metadata.resource_version, "7");
    feed.send(event("MODIFIED", &object("a", 7))).expect("open");
    settle().await;
    assert_eq!(log.take(), ["Applied(ns/a @7)"]);
    feed.send(event("DELETED", &object("a", 8))).expect("open");
    settle().await;
    cache.assume(&object("a", 7));
    assert!(cache.get(&key).is_none(), "a late response does not bring a deleted object back");
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_server_is_tried_again_with_growing_pauses() {
    let server = Server::default();
    for _ in 0..5 {
        server.then(Play::Refuse(500));
    }
    let feed = server.stream();
    feed.send(list_end(1)).expect("open");
    let start = Instant::now();
    let (cache, _log) = server.start();
    cache.synced().await;
    let waited = start.elapsed().as_secs_f64();
    let least = 0.8 * (1.0 + 2.0 + 4.0 + 8.0 + 16.0);
    assert!((least..=2.0 * least).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_given_up() {
    let server = Server::default();
    let silent = server.stream();
    let (cache, _log) = server.start();
    silent.send(list_end(3)).expect("open");
    cache.synced().await;
    server.then(Play::Respond(json!({"metadata": {"resourceVersion": "3"}, "items": []})));
    let fresh = server.stream();
    fresh.send(event("ADDED", &object("a", 4))).expect("open");
    let start = Instant::now();
    while cache.is_empty() {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(start.elapsed().as_secs() < 240, "the dead watch was kept");
    }
    assert_eq!(server.query(1), "limit=1");
    assert!(server.query(2).contains("resourceVersion=3"), "{}", server.query(2));
    drop(silent);
}

/// Its store was restored from a backup: a watch from the version we had would say nothing for long.
#[tokio::test(start_paused = true)]
async fn a_server_that_was_set_back_is_listed_again() {
    let server = Server::default();
    let before = server.stream();
    let (cache, log) = server.start();
    for (name, version) in [("kept", 5), ("vanished", 8)] {
        before.send(event("ADDED", &object(name, version))).expect("open");
    }
    before.send(list_end(9)).expect("open");
    cache.synced().await;
    log.take();
    server.then(Play::Refuse(503));
    server.then(Play::Respond(json!({"metadata": {"resourceVersion": "6"}, "items": []})));
    let restored = server.stream();
    // The watch ends as the server does; the next one is refused while the server starts.
    drop(before);
    for (name, version) in [("kept", 4), ("back", 6)] {
        restored.send(event("ADDED", &object(name, version))).expect("open");
    }
    restored.send(list_end(6)).expect("open");
    eventually("the cache is what the server has", || log.0.lock().len() == 3).await;
    assert_eq!(
        log.take(),
        ["Applied(ns/kept @4)", "Applied(ns/back @6)", "Deleted(ns/vanished @8)"]
    );
}

/// The same where the server is back before anything is refused, and where its watch ended when its
/// time was up.
#[tokio::test(start_paused = true)]
async fn a_server_that_was_set_back_between_two_watches_is_listed_again() {
    for held in [Duration::from_secs(20), WATCH_TIMEOUT] {
        let server = Server::default();
        let before = server.stream();
        let (cache, log) = server.start();
        for (name, version) in [("kept", 5), ("vanished", 8)] {
            before.send(event("ADDED", &object(name, version))).expect("open");
        }
        before.send(list_end(9)).expect("open");
        cache.synced().await;
        log.take();
        server.then(Play::Respond(json!({"metadata": {"resourceVersion": "6"}, "items": []})));
        let restored = server.stream();
        tokio::time::advance(held).await;
        drop(before);
        restored.send(event("ADDED", &object("kept", 4))).expect("open");
        restored.send(list_end(6)).expect("open");
        eventually("the cache is what the server has", || log.0.lock().len() == 2).await;
        assert_eq!(log.take(), ["Applied(ns/kept @4)", "Deleted(ns/vanished @8)"], "{held:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_subscriber_hears_of_what_is_there() {
    let server = Server::default();
    let feed = server.stream();
    let (cache, _log) = server.start();
    feed.send(event("ADDED", &object("a", 1))).expect("open");
    feed.send(list_end(1)).expect("open");
    cache.synced().await;
    let log = Log::default();
    let notified = log.clone();
    let _kept = cache.subscribe(move |change| notified.0.lock().push(format!("{change:?}")));
    assert_eq!(log.take(), ["Applied(ns/a @1)"]);
}

#[tokio::test(start_paused = true)]
async fn loops_of_one_process_share_one_watch() {
    let server = Server::default();
    let feed = server.stream();
    let request = server.clone();
    let client = testing::client(move |_| {
        let play = request.script.lock().pop_front();
        async move {
            match play {
                Some(Play::Stream(response)) => response,
                _ => panic!("a second watch was opened"),
            }
        }
    });
    let caches = super::super::SharedCaches::new(&Api::new(client), &CancellationToken::new());
    let (one, two) = (caches.of::<ConfigMap>(), caches.of::<ConfigMap>());
    feed.send(event("ADDED", &object("a", 1))).expect("open");
    feed.send(list_end(1)).expect("open");
    caches.synced().await;
    assert_eq!((one.len(), two.len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_panicking_subscriber_does_not_stop_the_watch() {
    let server = Server::default();
    let feed = server.stream();
    let (cache, log) = server.start();
    let _panics = cache.subscribe(|_| panic!("boom"));
    let notified = Log::default();
    let seen = notified.clone();
    let _kept = cache.subscribe(move |change| seen.0.lock().push(format!("{change:?}")));
    feed.send(event("ADDED", &object("a", 1))).expect("open");
    feed.send(list_end(1)).expect("open");
    cache.synced().await;
    feed.send(event("MODIFIED", &object("a", 2))).expect("open");
    eventually("the next change is delivered", || notified.0.lock().len() == 2).await;
    assert_eq!(log.take(), notified.take());
}

#[tokio::test(start_paused = true)]
async fn a_guard_dropped_by_the_notification_itself_ends_the_subscription() {
    let server = Server::default();
    let feed = server.stream();
    let (cache, _log) = server.start();
    let guard = Arc::new(Mutex::new(None));
    let (notified, dropped) = (Log::default(), guard.clone());
    let seen = notified.clone();
    let kept = cache.subscribe(move |change| {
        seen.0.lock().push(format!("{change:?}"));
        drop(dropped.lock().take());
    });
    *guard.lock() = Some(kept);
    assert_eq!(cache.subscribers(), 2);
    feed.send(event("ADDED", &object("a", 1))).expect("open");
    feed.send(list_end(1)).expect("open");
    cache.synced().await;
    assert_eq!((notified.take(), cache.subscribers()), (vec!["Applied(ns/a @1)".to_owned()], 1));
    feed.send(event("MODIFIED", &object("a", 2))).expect("open");
    eventually("the next change is seen", || cache.list()[0].metadata.resource_version == "2")
        .await;
    assert!(notified.take().is_empty());
}
