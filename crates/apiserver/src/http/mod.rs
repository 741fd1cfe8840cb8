//! The HTTP face of the server: a tower service that needs no socket.

pub mod body;
mod deletion;
mod discovery;
mod guarded;
mod held;
mod impersonate;
pub mod negotiate;
mod objects;
pub(crate) mod openapi;
pub mod pieces;
mod places;
mod pods;
mod protobuf;
pub mod query;
pub mod render;
mod reviews;
pub(crate) mod route;
mod schemas;
pub(crate) mod serve;
mod table;
mod token;

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Request, header};
use longshore_core::model::go_duration::parse_duration;
use longshore_core::tree::Tree;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::Inner;
use crate::admission::Place;
use crate::auth::rbac::Action;
use crate::auth::{AUTHENTICATED, Identity};
use crate::error::{ApiResult, Status};
use crate::metrics;
use crate::registry::Registry;
use body::{Answer, Sent};
use places::Standing;
use query::Query;
use route::Route;
pub(crate) use schemas::field_type;

/// The version this server says it is: a semantic version that names its Kubernetes level.
pub const GIT_VERSION: &str = "v1.37.0+longshore";
const MAJOR: &str = "1";
const MINOR: &str = "37";

/// Marks requests that come over a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outside;

/// Answers requests; cheap to clone.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
    /// Who asks; `None` until a token says so.
    identity: Option<Identity>,
    /// Ends watches and followed logs, which would go on by themselves.
    ending: CancellationToken,
    /// With clients on the other side of a connection; the own process may take its time.
    patience: Option<Arc<held::Patience>>,
    /// What the connection is known for.
    standing: Option<Arc<Standing>>,
}

impl Service {
    pub(crate) fn new(
        inner: Arc<Inner>,
        identity: Option<Identity>,
        ending: CancellationToken,
    ) -> Self {
        Self {
            inner,
            identity: identity.map(authenticated),
            ending,
            patience: None,
            standing: None,
        }
    }

    /// For one connection: answers that are not taken are given up.
    fn patient(self, patience: Arc<held::Patience>, standing: Arc<Standing>) -> Self {
        Self { patience: Some(patience), standing: Some(standing), ..self }
    }

    /// Answers one request.
    pub async fn handle<B>(&self, request: Request<B>) -> Answer
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let (mut parts, text) = request.into_parts();
        if self.patience.is_some() {
            parts.extensions.insert(Outside);
        }
        let tree = parts.extensions.remove::<Tree>().map(|Tree(object)| object);
        let body = Sent { text, tree };
        let path = parts.uri.path().to_owned();
        let query = Query::parse(parts.uri.query());
        let route = route::parse(&path);
        let labels = self.labels(&parts, &route, &query);
        let head = parts.method == Method::HEAD;
        let lasts = lasts(&parts.method, &route, &query);
        let began = tokio::time::Instant::now();
        let asked = Incoming { parts: &parts, path: &path, query: &query, labels: &labels, lasts };
        let mut answer = match self.dispatch(asked, route, body).await {
            Ok(answer) => answer,
            Err(status) => body::error(&status),
        };
        let took = (!lasts).then(|| began.elapsed());
        self.inner.metrics.answered(labels, answer.status().as_u16(), took);
        if head {
            *answer.body_mut() = body::answer(200, "text/plain", Bytes::new()).into_body();
        }
        answer
    }

    /// What the request is counted as.
    fn labels(&self, parts: &Parts, route: &Route<'_>, query: &Query) -> metrics::Request {
        let verb = match route {
            Route::Object(object) => verb(&parts.method, object, query),
            _ => "",
        };
        let apply = negotiate::content_type(&parts.headers) == "application/apply-patch+yaml";
        let dry = query.get("dryRun").is_some();
        let labels = metrics::Request::of(&parts.method, route, verb, apply, dry);
        match route {
            Route::Object(object) => labels.about(&self.inner.core.registry(), object),
            _ => labels,
        }
    }

    async fn dispatch<B>(
        &self,
        asked: Incoming<'_>,
        route: Route<'_>,
        body: Sent<B>,
    ) -> ApiResult<Answer>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let Incoming { parts, path, query, labels, lasts } = asked;
        if let Route::Health(check) = route {
            // Anybody may ask, but who shows credentials must have good ones.
            if self.identity.is_none() && bearer(&parts.headers).is_some() {
                self.authenticate(parts, || action(&parts.method, path, &route, query))?;
            }
            only_get(&parts.method)?;
            return self.health(path, check, query);
        }
        let identity = self.authenticate(parts, || action(&parts.method, path, &route, query))?;
        let place = self.admit(&parts.method, lasts, identity.is_master())?;
        if !identity.is_master() {
            let action = action(&parts.method, path, &route, query);
            self.inner.access.check(&identity, &action)?;
        }
        let answer = if let Route::Object(object) = route {
            let asked = objects::Asked { identity: &identity, parts, query };
            let handling = objects::handle(&self.inner, &self.ending, object, asked, body);
            match self.allotted(query, lasts)? {
                None => handling.await?,
                Some(time) => tokio::time::timeout(time, handling)
                    .await
                    .map_err(|_| Status::request_timeout())??,
            }
        } else {
            only_get(&parts.method)?;
            self.document(route, &parts.headers)?
        };
        // The place is taken until the client has its answer, or leaves.
        let lasting = lasts.then(|| self.inner.metrics.begin(labels));
        Ok(held::hold(answer, (place, lasting), self.patience.clone()))
    }

    /// How long a request from outside may take, unless it lasts by its nature.
    fn allotted(&self, query: &Query, lasts: bool) -> ApiResult<Option<Duration>> {
        if lasts || self.patience.is_none() {
            return Ok(None);
        }
        let most = self.inner.limits.request_timeout;
        let Some(asked) = query.get("timeout") else { return Ok(Some(most)) };
        let asked = parse_duration(asked).map_err(|_| {
            let what = "invalid timeout specified in the request URL";
            let number = asked.parse::<f64>().is_ok();
            let why = if number { "missing unit in" } else { "invalid" };
            Status::bad_request(format!("{what} - time: {why} duration {asked:?}"))
        })?;
        // Zero is what clients send who do not care.
        Ok(Some(if asked.is_zero() { most } else { asked.min(most) }))
    }

    /// Takes a place among the requests that are answered at the same time.
    fn admit(&self, method: &Method, lasts: bool, is_master: bool) -> ApiResult<Place> {
        let gates = &self.inner.gates;
        let mutating = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        let gate = match (lasts, mutating) {
            (true, _) => &gates.long,
            (false, true) => &gates.writes,
            (false, false) => &gates.reads,
        };
        gate.enter(is_master).inspect_err(|_| self.inner.metrics.dropped(mutating))
    }

    /// Answers that do not depend on objects.
    fn document(&self, route: Route<'_>, headers: &http::HeaderMap) -> ApiResult<Answer> {
        let registry = &*self.inner.core.registry();
        match route {
            Route::Version => Ok(body::json(200, &version())),
            Route::Metrics => {
                let kind = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
                let inner = &self.inner;
                let text = inner.metrics.text(&inner.core.store, &inner.gates);
                Ok(body::answer(200, kind, text))
            }
            Route::Root => Ok(body::json(200, &self.paths())),
            Route::CoreVersions | Route::Groups => {
                let core = route == Route::CoreVersions;
                if negotiate::wants_aggregated(headers)? {
                    return Ok(self.aggregated(core, headers));
                }
                let plain = if core {
                    discovery::core_versions(&self.inner.address())
                } else {
                    discovery::groups(registry)
                };
                Ok(body::json(200, &plain))
            }
            Route::Group(name) => {
                let group = discovery::group(registry, name);
                group.map(|g| body::json(200, &g)).ok_or_else(Status::no_such_page)
            }
            Route::Resources(group, version) => {
                let list = discovery::resources(registry, group, version);
                list.map(|l| body::json(200, &l)).ok_or_else(Status::no_such_resource)
            }
            Route::OpenApiIndex => {
                let index = openapi::index(registry).to_string();
                Ok(body::answer(200, "text/plain; charset=utf-8", index))
            }
            Route::OpenApi(path) => {
                let document =
                    openapi::document(registry, path).ok_or_else(Status::no_such_page)?;
                let mut answer = body::answer(200, "application/json", document.text.clone());
                if let Ok(value) = HeaderValue::from_str(&format!("\"{}\"", document.hash)) {
                    answer.headers_mut().insert(header::ETAG, value);
                }
                let forever = HeaderValue::from_static("public, immutable");
                answer.headers_mut().insert(header::CACHE_CONTROL, forever);
                Ok(answer)
            }
            Route::OpenApiSecond if negotiate::wants_protobuf_openapi(headers) => {
                Ok(body::answer(200, openapi::PROTOBUF, openapi::second_as_protobuf()))
            }
            Route::OpenApiSecond => {
                let text = self.shared("second", |registry| openapi::second(registry).to_string());
                Ok(body::answer(200, "application/json", text))
            }
            Route::Unknown | Route::Health(_) => Err(Status::no_such_page()),
            Route::Object(_) => unreachable!("objects are answered elsewhere"),
        }
    }

    /// A document about all kinds: made once for all who ask, until the kinds change. It is large, and
    /// many can leave it unread.
    fn shared(&self, name: &'static str, make: impl FnOnce(&Registry) -> String) -> Bytes {
        let registry = self.inner.core.registry();
        let mut kept = self.inner.documents.lock();
        match kept.get(name) {
            Some((of, text)) if Arc::ptr_eq(of, &registry) => text.clone(),
            _ => {
                let text = Bytes::from(make(&registry));
                kept.insert(name, (registry, text.clone()));
                text
            }
        }
    }

    fn aggregated(&self, core: bool, headers: &http::HeaderMap) -> Answer {
        let name = if core { "core" } else { "groups" };
        let text = self.shared(name, |registry| discovery::aggregated(registry, core).to_string());
        let etag = quoted_hash(&text);
        let kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let known = headers.get(header::IF_NONE_MATCH).is_some_and(|v| v == etag.as_str());
        let mut answer = match known {
            true => body::answer(304, kind, Bytes::new()),
            false => body::answer(200, kind, text),
        };
        let headers = answer.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
        headers.insert(header::VARY, HeaderValue::from_static("Accept"));
        if let Ok(value) = HeaderValue::from_str(&etag) {
            headers.insert(header::ETAG, value);
        }
        answer
    }

    fn paths(&self) -> serde_json::Value {
        let mut paths = vec!["/api".to_owned(), "/api/v1".into(), "/apis".into()];
        for (group, version) in self.inner.core.registry().group_versions() {
            if !group.is_empty() {
                paths.push(format!("/apis/{group}"));
                paths.push(format!("/apis/{group}/{version}"));
            }
        }
        let rest =
            ["/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"];
        paths.extend(rest.map(str::to_owned));
        json!({"paths": paths})
    }

    fn health(&self, path: &str, check: Option<&str>, query: &Query) -> ApiResult<Answer> {
        const TEXT: &str = "text/plain; charset=utf-8";
        const CHECKS: &[&str] = &["ping", "store"];
        let kind = path.split('/').nth(1).unwrap_or("healthz");
        let healthy = self.inner.is_healthy();
        match check {
            Some(check) if !CHECKS.contains(&check) => {
                return Ok(body::answer(404, TEXT, "404 page not found\n"));
            }
            Some("store") if !healthy => return Ok(body::answer(500, TEXT, "store failed\n")),
            Some(_) => return Ok(body::answer(200, TEXT, "ok")),
            None => {}
        }
        let code = if healthy { 200 } else { 500 };
        if healthy && !query.flag("verbose") {
            return Ok(body::answer(200, TEXT, "ok"));
        }
        let store =
            if healthy { "[+]store ok" } else { "[-]store failed: it takes no more writes" };
        let end = if healthy { "passed" } else { "failed" };
        Ok(body::answer(code, TEXT, format!("[+]ping ok\n{store}\n{kind} check {end}\n")))
    }

    /// Who asks: the sender, or whom the sender may impersonate for this action.
    fn authenticate(
        &self,
        parts: &Parts,
        action: impl FnOnce() -> Action,
    ) -> ApiResult<Cow<'_, Identity>> {
        let identity = match (&self.identity, bearer(&parts.headers)) {
            (Some(identity), _) => Cow::Borrowed(identity),
            (None, Some(token)) => {
                let found = self.inner.identify_token(token, &[]);
                Cow::Owned(authenticated(found.ok_or_else(Status::unauthorized)?.0))
            }
            (None, None) => return Err(Status::unauthorized()),
        };
        if let Some(standing) = &self.standing {
            standing.show_credentials();
        }
        impersonate::impersonate(&self.inner.access, identity, &parts.headers, action)
    }
}

/// Whoever got this far belongs to this group, whatever their certificate says.
fn authenticated(mut identity: Identity) -> Identity {
    if !identity.groups.iter().any(|group| group == AUTHENTICATED) {
        identity.groups.push(AUTHENTICATED.into());
    }
    identity
}

/// What is known of a request before anything is done about it.
#[derive(Clone, Copy)]
struct Incoming<'a> {
    parts: &'a Parts,
    path: &'a str,
    query: &'a Query,
    labels: &'a metrics::Request,
    lasts: bool,
}

/// Whether the answer goes on by itself: watches and logs.
fn lasts(method: &Method, route: &Route<'_>, query: &Query) -> bool {
    let Route::Object(object) = route else { return false };
    let log = *method == Method::GET && object.plural == "pods" && object.subresource == "log";
    log || verb(method, object, query) == "watch"
}

/// The verb of a request for objects, as roles name it.
fn verb(method: &Method, object: &route::Object<'_>, query: &Query) -> &'static str {
    let watching = object.watch || (object.name.is_empty() && query.flag("watch"));
    match objects::verb(method, &object.name, watching) {
        "" if *method == Method::POST => "create",
        "" => "get",
        verb => verb,
    }
}

/// What a request wants to do, as roles name it.
fn action(method: &Method, path: &str, route: &Route<'_>, query: &Query) -> Action {
    let Route::Object(object) = route else {
        return Action::Path { verb: method.as_str().to_lowercase(), path: path.to_owned() };
    };
    let verb = verb(method, object, query);
    // A list of one name is allowed to who may read that name.
    let name = match (object.name.as_str(), selected_name(query)) {
        ("", Some(name)) if matches!(verb, "list" | "watch") => name,
        (name, _) => name,
    };
    // A namespace is inside itself: who has a role there may be allowed to read it.
    let namespace = match &object.namespace {
        Some(namespace) => namespace.as_str(),
        None if object.plural == "namespaces" && object.group.is_empty() => object.name.as_str(),
        None => "",
    };
    Action::Object {
        verb: verb.into(),
        group: object.group.into(),
        resource: match object.subresource {
            "" => object.plural.to_owned(),
            sub => format!("{}/{sub}", object.plural),
        },
        namespace: namespace.into(),
        name: name.into(),
    }
}

/// The only name that a field selector can select; names that no path can hold do not count.
fn selected_name(query: &Query) -> Option<&str> {
    let selector = query.get("fieldSelector").filter(|selector| !selector.contains('\\'))?;
    let named = selector.split(',').find_map(|term| term.trim().strip_prefix("metadata.name="))?;
    let name = named.strip_prefix('=').unwrap_or(named);
    (!matches!(name, "." | "..") && !name.contains(['/', '%'])).then_some(name)
}

/// The token that a request shows. The scheme may be spelled in any case.
fn bearer(headers: &http::HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn only_get(method: &Method) -> ApiResult<()> {
    if method == Method::GET { Ok(()) } else { Err(Status::method_not_allowed()) }
}

/// A hash as entity tags hold it.
fn quoted_hash(bytes: &[u8]) -> String {
    use sha2::Digest;
    format!("\"{}\"", hex::encode_upper(sha2::Sha256::digest(bytes)))
}

fn version() -> serde_json::Value {
    json!({
        "major": MAJOR, "minor": MINOR, "gitVersion": GIT_VERSION,
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, arch()),
        "emulationMajor": MAJOR, "emulationMinor": MINOR,
        "minCompatibilityMajor": MAJOR, "minCompatibilityMinor": "36",
    })
}

/// The processor's name as Kubernetes spells it.
fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl<B> tower::Service<Request<B>> for Service
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::fmt::Display,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.handle(request).await) })
    }
}
