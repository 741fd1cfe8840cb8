//! Requests that ask for more than they seem to.
//!
//! Each bomb goes off in a server process of its own, while somebody else reads an object again and again.
//! The process must stay below its ceiling, the reader must be answered, and afterwards the server must
//! end when asked to and start again on what is stored.
#![allow(clippy::unwrap_used, reason = "tests")]

mod child;
#[path = "../common/mod.rs"]
mod common;
mod kinds;
mod lists;
mod room;

use std::sync::Arc;
use std::time::{Duration, Instant};

use child::Server;
use common::client_config;
use http_body_util::BodyExt;
use kube::Client;
use longshore_testing::report;
use serde_json::{Value, json};

pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const BYSTANDERS: &str = "/api/v1/namespaces/default";
/// What the objects may take.
const STORE: usize = 128 << 20;
/// What the process may take: half as much again as the objects, and the program itself.
const CEILING: u64 = STORE as u64 * 3 / 2 + (100 << 20);
/// How much longer a bystander may wait, compared with an idle server.
const RATIO: u32 = 50;
/// How long a bystander may wait in a build that is shipped.
const MOST: Duration = Duration::from_millis(250);
/// One bomb at a time: another one's work on the same processors is not this server's doing.
static ONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A server that is about to be attacked.
pub struct Target {
    pub server: Server,
    pub client: Client,
}

impl Target {
    async fn start(dir: &std::path::Path) -> Self {
        let server = Server::start(dir, STORE).await;
        let config = client_config(&dir.join("kubeconfig")).await;
        Self { server, client: Client::try_from(config).unwrap() }
    }

    /// Sends a request; the code and the length of the answer, and what it says.
    pub async fn ask(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: String,
    ) -> (u16, usize, Value) {
        ask(&self.client, method, path, kind, body).await
    }

    /// Creates an object.
    pub async fn create(&self, path: &str, object: &Value) -> u16 {
        self.ask("POST", path, "application/json", object.to_string()).await.0
    }
}

pub async fn ask(
    client: &Client,
    method: &str,
    path: &str,
    kind: &str,
    body: String,
) -> (u16, usize, Value) {
    let request = http::Request::builder().method(method).uri(path).header("Content-Type", kind);
    let answer = client.send(request.body(body.into_bytes().into()).unwrap()).await.unwrap();
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, body.len(), serde_json::from_slice(&body).unwrap_or_default())
}

/// Reads an object again and again until told to stop; how long the answers took.
async fn look_on(client: Client, until: tokio_util::sync::CancellationToken) -> Vec<Duration> {
    let mut times = Vec::new();
    while !until.is_cancelled() {
        let began = Instant::now();
        let (code, ..) = ask(&client, "GET", BYSTANDERS, "application/json", String::new()).await;
        assert_eq!(code, 200);
        times.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    times
}

/// A bystander on a thread and a runtime of its own: what the attacker does in this process is not the
/// server's doing either.
struct Bystander {
    stop: tokio_util::sync::CancellationToken,
    thread: std::thread::JoinHandle<Vec<Duration>>,
}

impl Bystander {
    fn start(dir: &std::path::Path) -> Self {
        let stop = tokio_util::sync::CancellationToken::new();
        let (until, kubeconfig) = (stop.clone(), dir.join("kubeconfig"));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let client = Client::try_from(client_config(&kubeconfig).await).unwrap();
                // The first request makes the connection.
                ask(&client, "GET", BYSTANDERS, "application/json", String::new()).await;
                look_on(client, until).await
            })
        });
        Self { stop, thread }
    }

    async fn stop(self) -> Duration {
        self.stop.cancel();
        let times = tokio::task::spawn_blocking(|| self.thread.join().unwrap()).await.unwrap();
        p99(times)
    }
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[(times.len() * 99 / 100).min(times.len() - 1)]
}

/// Sets a bomb off and holds the server to its promises.
async fn set_off(name: &str, bomb: impl AsyncFnOnce(&Target)) {
    let _one = ONE.lock().await;
    let dir = tempfile::Builder::new().prefix("longshore-bombs-").tempdir().unwrap();
    let target = Target::start(dir.path()).await;
    let bystander = Bystander::start(dir.path());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let idle = bystander.stop().await;
    let bystander = Bystander::start(dir.path());
    let began = Instant::now();
    bomb(&target).await;
    let took = began.elapsed();
    let busy = bystander.stop().await;
    let peak = target.server.peak();
    report(&format!(
        "bomb {name}: took {took:.1?}, at most {} MiB, bystander's p99 {idle:.1?} idle and {busy:.1?} busy",
        peak >> 20
    ));
    assert!(peak <= CEILING, "{name}: {} MiB", peak >> 20);
    let most = if cfg!(debug_assertions) { idle * RATIO } else { MOST };
    assert!(busy <= most, "{name}: {idle:?} idle, {busy:?} busy");
    target.server.stop().await;
    let again = Target::start(dir.path()).await;
    assert_eq!(again.ask("GET", BYSTANDERS, "application/json", String::new()).await.0, 200);
    again.server.stop().await;
}

/// A request in each of several connections at a time.
pub async fn at_once(
    target: &Target,
    times: usize,
    request: (&str, &str, &str, String),
) -> Vec<(u16, usize)> {
    let (method, path, kind, body) = request;
    let body = Arc::new(body);
    let all = (0..times).map(|_| {
        let body = String::clone(&body);
        async move {
            let (code, bytes, _) = target.ask(method, path, kind, body).await;
            (code, bytes)
        }
    });
    futures::future::join_all(all).await
}

const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

fn finalizers(from: usize) -> Vec<String> {
    (from..from + 40_000).map(|i| format!("a.example/{i}")).collect()
}

async fn make_map(target: &Target, meta: Value) {
    let mut object = json!({"metadata": {"name": "m"}});
    object["metadata"]["finalizers"] = meta["finalizers"].clone();
    object["metadata"]["ownerReferences"] = meta["ownerReferences"].clone();
    assert_eq!(target.create(MAPS, &object).await, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finalizers_without_number_are_merged_in_time() {
    set_off("strategic finalizers", async |target| {
        make_map(target, json!({"finalizers": finalizers(0)})).await;
        let patch = json!({"metadata": {"finalizers": finalizers(10_000)}}).to_string();
        let path = format!("{MAPS}/m");
        let codes = at_once(target, 2, ("PATCH", &path, STRATEGIC, patch)).await;
        assert!(codes.iter().all(|(code, _)| *code == 200), "{codes:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_without_number_are_merged_in_time() {
    set_off("strategic owners", async |target| {
        let owners = |from: usize| -> Vec<Value> {
            let owner =
                |i| json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": format!("u{i}")});
            (from..from + 9_000).map(owner).collect()
        };
        make_map(target, json!({"finalizers": ["a.example/x"], "ownerReferences": owners(0)}))
            .await;
        let patch = json!({"metadata": {"ownerReferences": owners(3_000)}}).to_string();
        let path = format!("{MAPS}/m");
        let codes = at_once(target, 4, ("PATCH", &path, STRATEGIC, patch)).await;
        assert!(codes.iter().all(|(code, _)| matches!(code, 200 | 404)), "{codes:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sets_without_number_are_applied_in_time() {
    set_off("apply finalizers", async |target| {
        let config = |from: usize| {
            json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "m", "finalizers": finalizers(from)}})
            .to_string()
        };
        for (manager, from) in [("a", 0), ("b", 10_000), ("a", 20_000)] {
            let path = format!("{MAPS}/m?fieldManager={manager}&force=true");
            let (code, _, answer) = target.ask("PATCH", &path, APPLY, config(from)).await;
            assert!(matches!(code, 200 | 201 | 413), "{code} {}", answer["message"]);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_at_the_front_of_a_long_list_are_bounded() {
    set_off("JSON patch", async |target| {
        make_map(target, json!({"finalizers": finalizers(0)})).await;
        let step = json!({"op": "add", "path": "/metadata/finalizers/0", "value": "a.example/y"});
        let patch = Value::Array(vec![step; 10_000]).to_string();
        let path = format!("{MAPS}/m");
        let codes =
            at_once(target, 2, ("PATCH", &path, "application/json-patch+json", patch)).await;
        assert!(codes.iter().all(|(code, _)| *code == 413), "{codes:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_of_many_parts_do_not_fill_the_memory() {
    set_off("many parts", async |target| {
        for part in [r#"{"a":1},"#, "[1],", "1,", "{},", "[],", "\"\","] {
            let list = format!("[{}1]", part.repeat(2_900_000 / part.len()));
            let body = format!(r#"{{"metadata":{{"name":"m"}},"junk":{list}}}"#);
            let answers = at_once(target, 8, ("POST", MAPS, "application/json", body)).await;
            let fine = |code: u16| matches!(code, 201 | 400 | 409 | 413 | 429);
            assert!(answers.iter().all(|(code, _)| fine(*code)), "{part} {answers:?}");
            let path = format!("{MAPS}/m");
            target.ask("DELETE", &path, "application/json", String::new()).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn countless_errors_are_reported_in_few_words() {
    set_off("bad labels", async |target| {
        let labels: serde_json::Map<String, Value> =
            (0..180_000).map(|i| (format!("-{i}"), json!("-"))).collect();
        let body = json!({"metadata": {"name": "m", "labels": labels}}).to_string();
        let answers = at_once(target, 8, ("POST", MAPS, "application/json", body)).await;
        for (code, bytes) in answers {
            assert!(code == 422 && bytes < 128 << 10, "{code} {bytes}");
        }
        let unknown: serde_json::Map<String, Value> =
            (0..180_000).map(|i| (format!("u{i}"), json!(1))).collect();
        for validation in ["Strict", "Warn"] {
            let mut body = json!({"metadata": {"name": validation.to_lowercase()}});
            body.as_object_mut().unwrap().extend(unknown.clone());
            let path = format!("{MAPS}?fieldValidation={validation}");
            let (code, bytes, _) =
                target.ask("POST", &path, "application/json", body.to_string()).await;
            assert!(matches!(code, 201 | 400) && bytes < 128 << 10, "{code} {bytes}");
        }
    })
    .await;
}
