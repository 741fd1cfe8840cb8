use serde_json::Value;

use super::*;
use crate::testing::{self, eventually, failure, respond};

/// Keeps Event objects as a server does: create by POST, count up by PATCH.
#[derive(Clone, Default)]
struct Server {
    events: Arc<Mutex<Vec<Value>>>,
    names: Arc<Mutex<std::collections::HashSet<String>>>,
    writes: Arc<Mutex<usize>>,
    down: Arc<Mutex<bool>>,
    /// The next create happens, but its response is lost.
    lose_answer: Arc<Mutex<bool>>,
}

impl Server {
    fn api(&self) -> Api {
        let server = self.clone();
        Api::new(testing::client(move |request| {
            let server = server.clone();
            async move { server.respond(&request) }
        }))
    }

    fn respond(&self, request: &testing::ScriptedRequest) -> http::Response<testing::AnyBody> {
        *self.writes.lock() += 1;
        if *self.down.lock() {
            return failure(503, "down");
        }
        let mut events = self.events.lock();
        if request.method == "POST" {
            let name = request.body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if !self.names.lock().insert(name) {
                return failure(409, "AlreadyExists");
            }
            events.push(request.body.clone());
            if std::mem::take(&mut *self.lose_answer.lock()) {
                return failure(504, "Timeout");
            }
            return respond(201, &request.body);
        }
        let name = request.path.rsplit('/').next().unwrap_or_default().to_owned();
        let Some(event) = events.iter_mut().find(|e| e["metadata"]["name"] == name.as_str()) else {
            return failure(404, "NotFound");
        };
        for field in ["count", "message", "lastTimestamp"] {
            event[field] = request.body[field].clone();
        }
        respond(200, event)
    }

    fn total(&self) -> u64 {
        self.events.lock().iter().filter_map(|e| e["count"].as_u64()).sum()
    }
}

fn claim(name: &str) -> ObjectRef {
    ObjectRef {
        api_version: "v1".into(),
        kind: "PersistentVolumeClaim".into(),
        namespace: "default".into(),
        name: name.into(),
        uid: "u1".into(),
        ..ObjectRef::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_equal_failures_are_one_event_with_count_1000() {
    let server = Server::default();
    let (recorder, _task) =
        Recorder::start(&server.api(), "attacher", "node-a", &CancellationToken::new());
    for i in 0..1000u32 {
        let object = ObjectRef { resource_version: i.to_string(), ..claim("data") };
        recorder.event(&object, EventType::Warning, "AttachFailed", "no such disk");
        if i % 10 == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    eventually("all are counted", || server.total() == 1000).await;
    let events = server.events.lock();
    assert_eq!(events.len(), 1, "{events:?}");
    let event = &events[0];
    assert_eq!(event["count"], 1000);
    assert_eq!((&event["type"], &event["reason"]), (&"Warning".into(), &"AttachFailed".into()));
    assert_eq!(event["reportingComponent"], "attacher");
    assert_eq!(event["reportingInstance"], "node-a");
    assert_eq!(event["involvedObject"]["uid"], "u1");
    let name = event["metadata"]["name"].as_str().expect("named");
    let hex = name.strip_prefix("data.").expect("named after the object");
    assert!(hex.chars().all(|c| c.is_ascii_hexdigit()), "{name}");
    assert!(*server.writes.lock() < 20, "{} writes", server.writes.lock());
}

#[test]
fn no_two_events_of_a_process_have_one_name() {
    // Written in another order than they were recorded, a few nanoseconds apart, as in a burst.
    let at = |nanos: i128| jiff::Timestamp::from_nanosecond(1_800_000_000_000_000_000 + nanos);
    let times = (0..100).rev().chain(0..100);
    let names: std::collections::HashSet<String> =
        times.map(|nanos| event_name("data", at(nanos).expect("a time"))).collect();
    assert_eq!(names.len(), 200);
}

#[tokio::test(start_paused = true)]
async fn in_a_burst_every_object_gets_its_event_and_warnings_come_first() {
    let server = Server::default();
    *server.down.lock() = true;
    let (recorder, _task) = Recorder::start(&server.api(), "c", "", &CancellationToken::new());
    // The first is in the writer's hand, the others wait behind it.
    recorder.event(&claim("first"), EventType::Normal, "Started", "m");
    tokio::time::sleep(Duration::from_secs(1)).await;
    for i in 0..12_000 {
        recorder.event(&claim(&format!("c{i}")), EventType::Normal, "Provisioning", "m");
    }
    for i in 0..50 {
        recorder.event(&claim(&format!("c{i}")), EventType::Warning, "ProvisioningFailed", "m");
    }
    *server.down.lock() = false;
    // As many as fit; more than 2,000 claims with three events each.
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let events = server.events.lock();
    assert_eq!(events.len(), 10_051);
    let warnings = events.iter().skip(1).take_while(|event| event["type"] == "Warning").count();
    assert_eq!(warnings, 50, "after the one that was in hand");
}

#[tokio::test(start_paused = true)]
async fn an_expired_event_is_created_again() {
    let server = Server::default();
    let (recorder, _task) = Recorder::start(&server.api(), "c", "", &CancellationToken::new());
    let say = || recorder.event(&claim("data"), EventType::Normal, "Bound", "m");
    say();
    eventually("written", || server.total() == 1).await;
    server.events.lock().clear();
    say();
    eventually("written again", || server.total() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_down_delays_but_loses_nothing() {
    let server = Server::default();
    *server.down.lock() = true;
    let (recorder, _task) = Recorder::start(&server.api(), "c", "", &CancellationToken::new());
    for _ in 0..50 {
        recorder.event(&claim("data"), EventType::Warning, "R", "m");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    *server.down.lock() = false;
    eventually("all are counted", || server.total() == 50).await;
    assert_eq!(server.events.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_event_whose_create_response_was_lost_is_not_created_twice() {
    let server = Server::default();
    *server.lose_answer.lock() = true;
    let (recorder, _task) = Recorder::start(&server.api(), "c", "", &CancellationToken::new());
    recorder.event(&claim("data"), EventType::Warning, "R", "m");
    tokio::time::sleep(Duration::from_secs(15)).await;
    recorder.event(&claim("data"), EventType::Warning, "R", "m");
    eventually("counted up", || server.total() == 2).await;
    assert_eq!(server.events.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn shutdown_writes_what_is_pending() {
    let server = Server::default();
    let stop = CancellationToken::new();
    let (recorder, task) = Recorder::start(&server.api(), "c", "", &stop);
    for name in ["a", "b", "c"] {
        recorder.event(&claim(name), EventType::Normal, "R", "m");
    }
    stop.cancel();
    task.await.expect("ends");
    assert_eq!(server.events.lock().len(), 3);
    recorder.event(&claim("d"), EventType::Normal, "R", "late");
}

#[tokio::test(start_paused = true)]
async fn events_about_cluster_wide_objects_live_in_default() {
    let server = Server::default();
    let (recorder, _task) = Recorder::start(&server.api(), "c", "", &CancellationToken::new());
    let volume =
        ObjectRef { kind: "PersistentVolume".into(), name: "pv-1".into(), ..ObjectRef::default() };
    recorder.event(&volume, EventType::Normal, "R", "m");
    eventually("written", || server.total() == 1).await;
    assert_eq!(server.events.lock()[0]["metadata"]["namespace"], "default");
}

#[test]
fn event_names_fit_into_253_characters() {
    let at = jiff::Timestamp::MAX;
    assert!(event_name(&"x".repeat(300), at).len() <= 253);
}
