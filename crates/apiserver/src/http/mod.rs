//! The HTTP face of the server: a tower service that needs no socket.

pub mod body;
mod connection_limits;
mod deletion;
mod discovery;
mod held_response;
mod impersonate;
pub mod negotiate;
pub mod not_served;
mod objects;
pub(crate) mod openapi;
pub mod pieces;
mod pods;
mod protobuf;
pub mod query;
pub mod render;
mod reviews;
pub(crate) mod route;
mod schemas;
pub(crate) mod serve;
mod streams;
mod table;
mod timeout_stream;
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
use longshore_core::model::Tree;
use longshore_core::model::go_duration::parse_duration;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::Inner;
use crate::admission::Permit;
use crate::auth::rbac::Action;
use crate::auth::{AUTHENTICATED, Identity};
use crate::error::{ApiResult, Status};
use crate::metrics;
use crate::registry::Registry;
use body::{ApiResponse, Sent};
use connection_limits::ConnectionSlot;
use query::Query;
use route::Route;
use streams::Afterwards;

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
    unread_limit: Option<Arc<held_response::UnreadLimit>>,
    /// What the connection is known for.
    slot: Option<Arc<ConnectionSlot>>,
    /// What the connection does after it has changed its protocol.
    afterwards: Afterwards,
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
            unread_limit: None,
            slot: None,
            afterwards: Afterwards::default(),
        }
    }

    /// For one connection: responses that are not read are given up.
    fn for_connection(
        self,
        unread_limit: Arc<held_response::UnreadLimit>,
        slot: Arc<ConnectionSlot>,
        afterwards: Afterwards,
    ) -> Self {
        Self { unread_limit: Some(unread_limit), slot: Some(slot), afterwards, ..self }
    }

    /// Answers one request.
    pub async fn handle<B>(&self, request: Request<B>) -> ApiResponse
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let (mut parts, text) = request.into_parts();
        if self.unread_limit.is_some() {
            parts.extensions.insert(Outside);
        }
        let tree = parts.extensions.remove::<Tree>().map(|Tree(object)| object);
        let body = Sent { text, tree };
        let path = parts.uri.path().to_owned();
        let query = Query::parse(parts.uri.query());
        let route = route::parse(&path);
        let verb = match &route {
            Route::Object(object) => objects::verb(&parts.method, object, &query),
            _ => "",
        };
        let labels = self.labels(&parts, &route, &query, verb);
        let head = parts.method == Method::HEAD;
        let long_running = is_long_running(&parts.method, &route, verb);
        let began = tokio::time::Instant::now();
        let (parts, path, query) = (&parts, &path, &query);
        let asked = Incoming { parts, path, query, verb, labels: &labels, long_running };
        let mut response = match self.dispatch(asked, route, body).await {
            Ok(response) => response,
            Err(status) => body::error(&status),
        };
        let took = (!long_running).then(|| began.elapsed());
        self.inner.metrics.responded(labels, response.status().as_u16(), took);
        if head {
            *response.body_mut() = body::response(200, "text/plain", Bytes::new()).into_body();
        }
        response
    }

    /// What the request is counted as.
    fn labels(
        &self,
        parts: &Parts,
        route: &Route<'_>,
        query: &Query,
        verb: &'static str,
    ) -> metrics::Request {
        let verb = verb_for_roles(&parts.method, verb);
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
    ) -> ApiResult<ApiResponse>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let Incoming { parts, path, query, verb, labels, long_running } = asked;
        if let Route::Health(check) = route {
            // Anonymous requests are served here, but credentials that are sent must be valid.
            if self.identity.is_none() && bearer(&parts.headers).is_some() {
                self.authenticate(parts, || action(&asked, &route))?;
            }
            only_get(&parts.method)?;
            return self.health(path, check, query);
        }
        let identity = self.authenticate(parts, || action(&asked, &route))?;
        let permit = self.admit(&parts.method, long_running, identity.is_master())?;
        if !identity.is_master() {
            self.check_access(&identity, &asked, &route)?;
        }
        let mut response = if let Route::Object(object) = route {
            let asked = objects::Asked { identity: &identity, parts, query, verb };
            let handling = objects::handle(&self.inner, &self.ending, object, asked, body);
            match self.allotted(query, long_running)? {
                None => handling.await?,
                Some(time) => tokio::time::timeout(time, handling)
                    .await
                    .map_err(|_| Status::request_timeout())??,
            }
        } else {
            only_get(&parts.method)?;
            self.document(route, &parts.headers)?
        };
        // The permit is held until the client has its response, or leaves.
        let guard = long_running.then(|| self.inner.metrics.begin(labels));
        if let Some(work) = response.extensions_mut().remove().and_then(|it: Afterwards| it.take())
        {
            self.afterwards.set(async move {
                let _held = (permit, guard);
                work.await;
            });
            return Ok(response);
        }
        Ok(held_response::hold(response, (permit, guard), self.unread_limit.clone()))
    }

    /// Fails with 403 when the rules do not allow the request.
    fn check_access(
        &self,
        identity: &Identity,
        asked: &Incoming<'_>,
        route: &Route<'_>,
    ) -> ApiResult<()> {
        let mut action = action(asked, route);
        self.inner.access.check(identity, &action)?;
        if let (true, Action::Object { verb, .. }) = (streams::is_stream(route), &mut action) {
            // WebSocket comes as GET, and must not do more than its right to read says.
            *verb = "create".into();
            self.inner.access.check(identity, &action)?;
        }
        Ok(())
    }

    /// How long a request from outside may take, unless it is long-running by its nature.
    fn allotted(&self, query: &Query, long_running: bool) -> ApiResult<Option<Duration>> {
        if long_running || self.unread_limit.is_none() {
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

    /// Takes a permit for a request.
    fn admit(&self, method: &Method, long_running: bool, is_master: bool) -> ApiResult<Permit> {
        let gates = &self.inner.gates;
        let mutating = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        let gate = match (long_running, mutating) {
            (true, _) => &gates.long,
            (false, true) => &gates.writes,
            (false, false) => &gates.reads,
        };
        gate.enter(is_master).inspect_err(|_| self.inner.metrics.dropped(mutating))
    }

    /// Answers that do not depend on objects.
    fn document(&self, route: Route<'_>, headers: &http::HeaderMap) -> ApiResult<ApiResponse> {
        let registry = &*self.inner.core.registry();
        match route {
            Route::Version => Ok(body::json(200, &version())),
            Route::Metrics => {
                let kind = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
                let inner = &self.inner;
                let text = inner.metrics.text(&inner.core.store, &inner.gates);
                Ok(body::response(200, kind, text))
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
                Ok(body::response(200, "text/plain; charset=utf-8", index))
            }
            Route::OpenApi(path) => {
                let document =
                    openapi::document(registry, path).ok_or_else(Status::no_such_page)?;
                let mut response = body::response(200, "application/json", document.text.clone());
                if let Ok(value) = HeaderValue::from_str(&format!("\"{}\"", document.hash)) {
                    response.headers_mut().insert(header::ETAG, value);
                }
                let forever = HeaderValue::from_static("public, immutable");
                response.headers_mut().insert(header::CACHE_CONTROL, forever);
                Ok(response)
            }
            Route::OpenApiV2 if negotiate::wants_protobuf_openapi(headers) => {
                Ok(body::response(200, openapi::PROTOBUF, openapi::v2_as_protobuf()))
            }
            Route::OpenApiV2 => {
                let text = self.shared("v2", |registry| openapi::v2(registry).to_string());
                Ok(body::response(200, "application/json", text))
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

    fn aggregated(&self, core: bool, headers: &http::HeaderMap) -> ApiResponse {
        let name = if core { "core" } else { "groups" };
        let text = self.shared(name, |registry| discovery::aggregated(registry, core).to_string());
        let etag = quoted_hash(&text);
        let kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let known = headers.get(header::IF_NONE_MATCH).is_some_and(|v| v == etag.as_str());
        let mut response = match known {
            true => body::response(304, kind, Bytes::new()),
            false => body::response(200, kind, text),
        };
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
        headers.insert(header::VARY, HeaderValue::from_static("Accept"));
        if let Ok(value) = HeaderValue::from_str(&etag) {
            headers.insert(header::ETAG, value);
        }
        response
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

    fn health(&self, path: &str, check: Option<&str>, query: &Query) -> ApiResult<ApiResponse> {
        const TEXT: &str = "text/plain; charset=utf-8";
        const CHECKS: &[&str] = &["ping", "store"];
        let kind = path.split('/').nth(1).unwrap_or("healthz");
        let healthy = self.inner.is_healthy();
        match check {
            Some(check) if !CHECKS.contains(&check) => {
                return Ok(body::response(404, TEXT, "404 page not found\n"));
            }
            Some("store") if !healthy => return Ok(body::response(500, TEXT, "store failed\n")),
            Some(_) => return Ok(body::response(200, TEXT, "ok")),
            None => {}
        }
        let code = if healthy { 200 } else { 500 };
        if healthy && !query.flag("verbose") {
            return Ok(body::response(200, TEXT, "ok"));
        }
        let store =
            if healthy { "[+]store ok" } else { "[-]store failed: it takes no more writes" };
        let end = if healthy { "passed" } else { "failed" };
        Ok(body::response(code, TEXT, format!("[+]ping ok\n{store}\n{kind} check {end}\n")))
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
                Cow::Owned(authenticated(found.map_err(|_| Status::unauthorized())?.0))
            }
            (None, None) => return Err(Status::unauthorized()),
        };
        if let Some(slot) = &self.slot {
            slot.show_credentials();
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
    /// Of a request for objects; see [`objects::verb`].
    verb: &'static str,
    labels: &'a metrics::Request,
    long_running: bool,
}

/// Whether the response goes on by itself: watches, logs and streams.
fn is_long_running(method: &Method, route: &Route<'_>, verb: &str) -> bool {
    let Route::Object(object) = route else { return false };
    let log = *method == Method::GET && object.plural == "pods" && object.subresource == "log";
    log || verb == "watch" || streams::is_stream(route)
}

/// The verb that roles must allow; methods that objects do not have count as another.
fn verb_for_roles(method: &Method, verb: &'static str) -> &'static str {
    match verb {
        "" if *method == Method::POST => "create",
        "" => "get",
        verb => verb,
    }
}

/// What a request wants to do, as roles name it.
fn action(asked: &Incoming<'_>, route: &Route<'_>) -> Action {
    let Incoming { parts, path, query, .. } = *asked;
    let Route::Object(object) = route else {
        let verb = parts.method.as_str().to_lowercase();
        return Action::Path { verb, path: path.to_owned() };
    };
    let verb = verb_for_roles(&parts.method, asked.verb);
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
    type Response = ApiResponse;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<ApiResponse, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.handle(request).await) })
    }
}
