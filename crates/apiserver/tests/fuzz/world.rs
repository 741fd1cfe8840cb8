//! A server in memory with one object of every kind, and what must hold for each answer.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use futures::FutureExt;
use http_body_util::BodyExt;
use longshore_apiserver::auth::Identity;
use longshore_apiserver::{ApiServer, Config, Limits};
use serde_json::Value;

use crate::input::Input;
use crate::samples;
use crate::soup::Soup;
use crate::walk::{Caller, Route, call, resource_routes};

/// One input may take this long, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);

/// Panics with the threads they were in; everything of one test runs in one thread.
static PANICS: Mutex<Vec<(ThreadId, String)>> = Mutex::new(Vec::new());
static HOOK: Once = Once::new();

/// From here on a panic anywhere in the process, housekeeping included, is remembered.
pub fn catch_panics() {
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let inside = panic.location().is_none_or(|at| !at.file().contains("tests/fuzz"));
            if inside {
                let here = std::thread::current().id();
                panics().push((here, panic.to_string()));
            }
            before(panic);
        }));
    });
}

fn panics() -> MutexGuard<'static, Vec<(ThreadId, String)>> {
    PANICS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes what this test has to answer for.
fn panicked() -> Option<String> {
    let here = std::thread::current().id();
    let mut all = panics();
    let at = all.iter().position(|(thread, _)| *thread == here)?;
    Some(all.remove(at).1)
}

/// An answer, as far as it is judged.
pub struct Answer {
    pub code: u16,
    pub message: String,
}

pub struct World {
    server: ApiServer,
    routes: Vec<Route>,
    /// The samples as they were made, by path.
    pub objects: BTreeMap<String, Value>,
    pub continue_token: String,
}

impl World {
    /// With one object of every kind.
    pub async fn new() -> Self {
        let mut world = Self::bare().await;
        let admin = world.server.client();
        samples::create_all(&admin).await;
        world.routes = resource_routes(&admin).await;
        let caller = Caller { client: admin, authorization: None };
        for route in world.routes.iter().filter(|r| r.verb == "get") {
            let (code, object) = call(&caller, "GET", &route.path).await;
            if code == 200 && object.is_object() {
                world.objects.insert(route.path.clone(), object);
            }
        }
        for name in ["p", "q", "r"] {
            let body = serde_json::json!({"metadata": {"name": name, "labels": {"app": "demo"}}});
            crate::walk::create(&caller.client, "/api/v1/namespaces/default/configmaps", &body)
                .await;
        }
        let (_, list) = call(&caller, "GET", "/api/v1/configmaps?limit=1").await;
        world.continue_token = list["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        world
    }

    /// With nothing but what is always there.
    pub async fn bare() -> Self {
        let limits = Limits { history_events: 100, ..Limits::default() };
        let server = ApiServer::open(Config { limits, ..Config::deterministic(1) }).await.unwrap();
        Self { server, routes: Vec::new(), objects: BTreeMap::new(), continue_token: String::new() }
    }

    /// The path of some route with this verb, without its query.
    pub fn target(&self, soup: &mut Soup, verb: &str) -> String {
        let fitting: Vec<&Route> = self.routes.iter().filter(|r| r.verb == verb).collect();
        let path = &soup.pick(&fitting).path;
        path.split('?').next().unwrap_or_default().to_owned()
    }

    /// Sends a request and judges the answer.
    pub async fn send(&mut self, input: &Input) -> Result<Answer, String> {
        let mut request =
            http::Request::builder().method(input.method.as_str()).uri(input.path.as_str());
        for (name, value) in [("Content-Type", &input.content_type), ("Accept", &input.accept)] {
            if !value.is_empty() {
                request = request.header(name, value.as_str());
            }
        }
        // What the HTTP layer refuses never reaches the server.
        let Ok(request) = request.body(http_body_util::Full::from(input.body.clone())) else {
            return Ok(Answer { code: 0, message: String::new() });
        };
        let service = self.server.service_as(Identity::new("fuzz", ["system:masters"]));
        let began = Instant::now();
        let answered = std::panic::AssertUnwindSafe(read(service, request)).catch_unwind().await;
        let took = began.elapsed();
        if let Some(why) = panicked() {
            return Err(format!("a panic: {why}"));
        }
        let (code, headers, body) = answered.map_err(|_| "a panic".to_owned())?;
        if took > PATIENCE {
            return Err(format!("the answer took {took:?}"));
        }
        judge(input, code, &headers, body.as_deref())
    }

    /// Whether the server still answers, and all it holds can be read.
    pub async fn check(&mut self) -> Result<(), String> {
        let client = self.server.client();
        let caller = Caller { client: client.clone(), authorization: None };
        let (code, _) = call(&caller, "GET", "/readyz").await;
        if code != 200 {
            return Err(format!("/readyz says {code}"));
        }
        for route in resource_routes(&client).await {
            if route.verb != "list" || route.namespace.is_some() {
                continue;
            }
            let (code, list) = call(&caller, "GET", &route.path).await;
            let Some(items) = list["items"].as_array().filter(|_| code == 200) else {
                return Err(format!("{} says {code}: {list}", route.path));
            };
            for item in items {
                read_back(&caller, &route, item).await?;
            }
        }
        panicked().map_or(Ok(()), |why| Err(format!("a panic: {why}")))
    }
}

/// An object of a list can be read by itself, and is the same.
async fn read_back(caller: &Caller, route: &Route, item: &Value) -> Result<(), String> {
    let name = item["metadata"]["name"].as_str().unwrap_or_default();
    let (base, plural) = route.path.rsplit_once('/').unwrap_or_default();
    let path = match item["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{base}/namespaces/{namespace}/{plural}/{name}"),
        None => format!("{base}/{plural}/{name}"),
    };
    let (code, one) = call(caller, "GET", &path).await;
    if code != 200 || one["metadata"] != item["metadata"] {
        return Err(format!("{path} says {code}: {one}\nthe list has {item}"));
    }
    Ok(())
}

/// The answer; of a stream that goes on only what is there at once.
async fn read(
    service: longshore_apiserver::http::Service,
    request: http::Request<http_body_util::Full<bytes::Bytes>>,
) -> (u16, http::HeaderMap, Option<Vec<u8>>) {
    let (parts, mut body) = service.handle(request).await.into_parts();
    let whole = http_body::Body::size_hint(&body).exact().is_some();
    let mut all = Vec::new();
    while let Ok(Some(Ok(frame))) =
        tokio::time::timeout(Duration::from_millis(10), body.frame()).await
    {
        all.extend_from_slice(&frame.into_data().unwrap_or_default());
        if !whole && all.len() > 1 << 20 {
            break;
        }
    }
    (parts.status.as_u16(), parts.headers, whole.then_some(all))
}

fn judge(
    input: &Input,
    code: u16,
    headers: &http::HeaderMap,
    body: Option<&[u8]>,
) -> Result<Answer, String> {
    let Some(body) = body else { return Ok(Answer { code, message: String::new() }) };
    let kind = headers.get("content-type").and_then(|v| v.to_str().ok()).unwrap_or_default();
    let json = kind.starts_with("application/json");
    let text = String::from_utf8_lossy(body);
    let value: Option<Value> = serde_json::from_slice(body).ok();
    let empty = input.method == "HEAD" || code == 304;
    if json && !empty && value.is_none() {
        return Err(format!("{code} with a body that is no JSON: {text}"));
    }
    let value = value.unwrap_or_default();
    let message = value["message"].as_str().unwrap_or_default().to_owned();
    if code >= 400 && !empty {
        let page = code == 404 && text == "404 page not found\n";
        let proper = value["kind"] == "Status"
            && value["status"] == "Failure"
            && value["code"] == code
            && value["reason"].as_str().is_some_and(|reason| !reason.is_empty())
            && !message.is_empty();
        if !proper && !page {
            return Err(format!("{code} without a proper Status: {text}"));
        }
    }
    // A version from the future is waited for in vain; logs need a node.
    let excused = (code == 504 && message.contains("Too large resource version"))
        || (code == 503 && input.path.contains("/log"));
    if code >= 500 && !excused {
        return Err(format!("{code} for a mistake of the client: {text}"));
    }
    Ok(Answer { code, message })
}

/// Which sorts of answers there were.
#[derive(Default)]
pub struct Tally {
    codes: BTreeMap<u16, usize>,
    sorts: std::collections::BTreeSet<String>,
}

impl Tally {
    /// Counts an answer; true when nothing like it was seen before.
    pub fn is_new(&mut self, input: &Input, answer: &Answer) -> bool {
        *self.codes.entry(answer.code).or_default() += 1;
        let mut quoted = false;
        let plain: String = answer
            .message
            .chars()
            .filter(|c| {
                quoted ^= *c == '"';
                !quoted && !c.is_ascii_digit()
            })
            .take(60)
            .collect();
        let place = input.path.split('?').next().unwrap_or_default();
        let place: Vec<&str> = place.split('/').take(6).collect();
        let sort = format!("{} {} {} {plain}", input.method, place.join("/"), answer.code);
        self.sorts.len() < 20_000 && self.sorts.insert(sort)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sorts of answers, codes {:?}", self.sorts.len(), self.codes)
    }
}
