//! Requests to the API, typed by [`Kind`] and otherwise raw JSON.
//!
//! Reads decode into slim records. Writes take and return [`Value`], so that fields this program
//! does not know survive a read-modify-write.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, header};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use kube::client::Body;
use longshore_core::model::{Kind, ObjectKey, Tree, TreeWelcome};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::awaited::Awaited;
use crate::error::{ApiError, OptionalExt as _, Target};
use crate::in_flight::InFlight;
use crate::lines::Lines;
use crate::managed_fields::WithoutManagedFields;

/// Managed fields are up to half of an object, and no loop reads them. Servers that cannot leave them out
/// ignore the parameter.
const ACCEPT: &str = "application/json;drop=metadata.managedFields";
/// Servers cut requests at one minute; waiting longer than that means the connection is dead.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(70);
/// Bounds a request with all its waiting for limits and its retries.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);

/// Page size of lists, as the Go clients use.
const PAGE_SIZE: u32 = 500;

/// Sends requests to the API. Cheap to clone.
///
/// ```
/// use longshore_cluster::{Api, ObjectKey, Patch};
/// use longshore_core::model::kinds::ConfigMap;
/// use serde_json::json;
///
/// # use longshore_apiserver::{ApiServer, Config};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = ApiServer::open(Config::deterministic(1)).await?;
/// let api = Api::new(server.client());
/// let map = json!({"metadata": {"name": "settings", "namespace": "default"}});
/// api.create::<ConfigMap>(&map).await?;
/// let key = ObjectKey::new("default", "settings");
/// api.patch::<ConfigMap>(&key, Patch::Merge(&json!({"data": {"color": "blue"}}))).await?;
/// let map = api.get::<ConfigMap>(&key).await?.expect("it was created");
/// assert_eq!(map.data["color"], "blue");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
    /// The embedded API server, called without a client in between.
    server: Option<Server>,
    /// Shared by all clones.
    in_flight: Arc<InFlight>,
    awaited: Arc<Awaited>,
    low_priority: bool,
}

/// The body of a response, streamed.
pub type ResponseBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// Handles requests in this process.
type Server =
    Arc<dyn Fn(Request<Body>) -> BoxFuture<'static, Response<ResponseBody>> + Send + Sync>;

/// A change to a part of an object.
#[derive(Debug, Clone, Copy)]
pub enum Patch<'a> {
    /// RFC 7386: objects merge, lists are replaced.
    Merge(&'a Value),
    /// Kubernetes' merge that knows the keys of lists.
    Strategic(&'a Value),
    /// RFC 6902: a list of operations.
    Json(&'a Value),
}

impl Patch<'_> {
    fn content_type(&self) -> &'static str {
        match self {
            Patch::Merge(_) => "application/merge-patch+json",
            Patch::Strategic(_) => "application/strategic-merge-patch+json",
            Patch::Json(_) => "application/json-patch+json",
        }
    }

    fn body(&self) -> &Value {
        match self {
            Patch::Merge(v) | Patch::Strategic(v) | Patch::Json(v) => v,
        }
    }
}

/// Preconditions and manner of a delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteParams {
    /// Precondition: the object has this uid.
    pub uid: Option<String>,
    /// Precondition: the object has this version.
    pub resource_version: Option<String>,
    /// Seconds a pod gets to stop; 0 deletes at once.
    pub grace_period_seconds: Option<i64>,
    /// `Background`, `Foreground` or `Orphan`.
    pub propagation: Option<String>,
}

impl DeleteParams {
    /// Deletes only the object with this uid.
    #[must_use]
    pub fn uid(uid: impl Into<String>) -> Self {
        Self { uid: Some(uid.into()), ..Self::default() }
    }

    fn body(&self) -> Value {
        let mut body = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        if let Some(seconds) = self.grace_period_seconds {
            body["gracePeriodSeconds"] = seconds.into();
        }
        if let Some(propagation) = &self.propagation {
            body["propagationPolicy"] = propagation.as_str().into();
        }
        if let Some(uid) = &self.uid {
            body["preconditions"]["uid"] = uid.as_str().into();
        }
        if let Some(version) = &self.resource_version {
            body["preconditions"]["resourceVersion"] = version.as_str().into();
        }
        body
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListParams {
    /// Only objects whose labels match, for example `app=web,tier!=db`.
    pub label_selector: Option<String>,
    /// Only objects whose fields match, for example `spec.nodeName=a`.
    pub field_selector: Option<String>,
}

/// One page of a list.
#[derive(Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
pub(crate) struct Page<T> {
    #[serde(default)]
    pub(crate) metadata: PageMeta,
    // Go writes `null` for a nil slice.
    pub(crate) items: Option<Vec<T>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PageMeta {
    pub(crate) resource_version: String,
    #[serde(rename = "continue")]
    pub(crate) continue_: String,
}

impl Api {
    /// Wraps a client (see [`crate::config::ClientConfig`] for one with limits built in).
    #[must_use]
    pub fn new(client: kube::Client) -> Self {
        let (in_flight, awaited) = Default::default();
        Self { client, server: None, in_flight, awaited, low_priority: false }
    }

    /// Calls the embedded API server directly. The client reaches the same server; it hands each
    /// request from task to task, which takes about as long as reading an object.
    #[must_use]
    pub fn in_process(
        client: kube::Client,
        server: impl Fn(Request<Body>) -> BoxFuture<'static, Response<ResponseBody>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { server: Some(Arc::new(server)), ..Self::new(client) }
    }

    /// Returns the same API with low priority: its requests are delayed a little while others
    /// saturate the API.
    #[must_use]
    pub fn low_priority(&self) -> Self {
        Self { low_priority: true, ..self.clone() }
    }

    /// Whether so many requests are in flight that low-priority work should wait.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        self.in_flight.is_saturated()
    }

    pub(crate) fn awaited(&self) -> &Awaited {
        &self.awaited
    }

    #[must_use]
    pub fn client(&self) -> &kube::Client {
        &self.client
    }

    /// Reads one object; `None` if it does not exist.
    pub async fn get<T: Kind + DeserializeOwned>(
        &self,
        key: &ObjectKey,
    ) -> Result<Option<T>, ApiError> {
        self.get_as::<T, T>(key).await
    }

    /// Reads one object whole, unknown fields included; `None` if it does not exist. As in all
    /// responses here, only its managed fields are left out, which the server keeps by itself.
    pub async fn get_raw<T: Kind>(&self, key: &ObjectKey) -> Result<Option<Value>, ApiError> {
        Ok(self
            .get_as::<T, WithoutManagedFields>(key)
            .await?
            .map(|WithoutManagedFields(object)| object))
    }

    async fn get_as<T: Kind, R: DeserializeOwned>(
        &self,
        key: &ObjectKey,
    ) -> Result<Option<R>, ApiError> {
        let at = target::<T>("get", key);
        let response = self.send(at, Method::GET, object_path::<T>(key, ""), Content::None).await;
        response.optional()?.map(|found| found.decode()).transpose()
    }

    /// Lists objects of one namespace, or of all with `None`.
    pub async fn list<T: Kind + DeserializeOwned>(
        &self,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<Vec<T>, ApiError> {
        match self.list_paged(namespace, params, Some(PAGE_SIZE)).await {
            // The continue token expired between two pages: one unpaged read is consistent.
            Err(ApiError::Gone { .. }) => self.list_paged(namespace, params, None).await,
            other => other,
        }
    }

    async fn list_paged<T: Kind + DeserializeOwned>(
        &self,
        namespace: Option<&str>,
        params: &ListParams,
        limit: Option<u32>,
    ) -> Result<Vec<T>, ApiError> {
        let mut items = Vec::new();
        let mut token = String::new();
        loop {
            let mut page = self.list_page::<T>(namespace, params, limit, &token).await?;
            items.append(&mut page.items.take().unwrap_or_default());
            if page.metadata.continue_.is_empty() {
                return Ok(items);
            }
            token = page.metadata.continue_;
        }
    }

    pub(crate) async fn list_page<T: Kind + DeserializeOwned>(
        &self,
        namespace: Option<&str>,
        params: &ListParams,
        limit: Option<u32>,
        token: &str,
    ) -> Result<Page<T>, ApiError> {
        let mut query = Query::selectors(params);
        if let Some(limit) = limit {
            query.add("limit", &limit.to_string());
        }
        if !token.is_empty() {
            query.add("continue", token);
        }
        let at = collection_target::<T>("list", namespace);
        let path = query.onto(collection_path::<T>(namespace));
        self.send(at, Method::GET, path, Content::None).await?.decode()
    }

    /// Opens a watch and returns its lines. `extra` holds the parameters besides selectors.
    pub(crate) async fn watch<T: Kind>(
        &self,
        namespace: Option<&str>,
        params: &ListParams,
        extra: &[(&str, &str)],
    ) -> Result<Lines, ApiError> {
        let mut query = Query::selectors(params);
        query.add("watch", "true");
        for (name, value) in extra {
            query.add(name, value);
        }
        let at = collection_target::<T>("watch", namespace);
        let path = query.onto(collection_path::<T>(namespace));
        // Servers may compress each event on its own, which no decoder here undoes.
        let request = Request::get(path)
            .header(header::ACCEPT, ACCEPT)
            .header(header::ACCEPT_ENCODING, "identity")
            .body(Body::empty());
        match tokio::time::timeout(REQUEST_TIMEOUT, self.respond(&at, request)).await {
            Ok(response) => Ok(Lines::new(at, response?.into_body())),
            Err(elapsed) => Err(ApiError::Unreachable { at, source: elapsed.into() }),
        }
    }

    /// Creates an object; its namespace is taken from its metadata.
    pub async fn create<T: Kind>(&self, object: &Value) -> Result<Value, ApiError> {
        let key = key_of(object);
        let namespace = T::NAMESPACED.then_some(key.namespace.as_str());
        let path = collection_path::<T>(namespace);
        let body = Content::Object(typed::<T>(Cow::Borrowed(object)));
        self.send(target::<T>("create", &key), Method::POST, path, body).await?.object()
    }

    /// Replaces an object; its `metadata.resourceVersion` is the precondition.
    pub async fn update<T: Kind>(&self, object: &Value) -> Result<Value, ApiError> {
        self.put::<T>(Cow::Borrowed(object), "").await
    }

    /// Replaces the status of an object; its `metadata.resourceVersion` is the precondition.
    pub async fn update_status<T: Kind>(&self, object: &Value) -> Result<Value, ApiError> {
        self.put::<T>(Cow::Borrowed(object), "status").await
    }

    /// Like [`Self::update`]; takes the object, so that it need not be copied in process.
    pub async fn update_moved<T: Kind>(&self, object: Value) -> Result<Value, ApiError> {
        self.put::<T>(Cow::Owned(object), "").await
    }

    /// Like [`Self::update_status`]; takes the object.
    pub async fn update_status_moved<T: Kind>(&self, object: Value) -> Result<Value, ApiError> {
        self.put::<T>(Cow::Owned(object), "status").await
    }

    async fn put<T: Kind>(&self, object: Cow<'_, Value>, sub: &str) -> Result<Value, ApiError> {
        let key = key_of(&object);
        let path = object_path::<T>(&key, sub);
        let body = Content::Object(typed::<T>(object));
        self.send(target_sub::<T>("update", &key, sub), Method::PUT, path, body).await?.object()
    }

    /// Changes parts of an object.
    pub async fn patch<T: Kind>(
        &self,
        key: &ObjectKey,
        patch: Patch<'_>,
    ) -> Result<Value, ApiError> {
        self.patch_subresource::<T>(key, "", patch).await
    }

    /// Changes parts of an object's status.
    pub async fn patch_status<T: Kind>(
        &self,
        key: &ObjectKey,
        patch: Patch<'_>,
    ) -> Result<Value, ApiError> {
        self.patch_subresource::<T>(key, "status", patch).await
    }

    async fn patch_subresource<T: Kind>(
        &self,
        key: &ObjectKey,
        sub: &str,
        patch: Patch<'_>,
    ) -> Result<Value, ApiError> {
        let body = Content::Text(patch.content_type(), patch.body().to_string().into_bytes());
        let at = target_sub::<T>("patch", key, sub);
        self.send(at, Method::PATCH, object_path::<T>(key, sub), body).await?.object()
    }

    /// Deletes an object. One that is already gone gives [`ApiError::NotFound`].
    pub async fn delete<T: Kind>(
        &self,
        key: &ObjectKey,
        params: &DeleteParams,
    ) -> Result<(), ApiError> {
        let body = Content::Text("application/json", params.body().to_string().into_bytes());
        let at = target::<T>("delete", key);
        self.send(at, Method::DELETE, object_path::<T>(key, ""), body).await.map(drop)
    }

    /// Posts to a subresource, such as `pods/binding` or `serviceaccounts/token`.
    pub async fn create_subresource<T: Kind>(
        &self,
        key: &ObjectKey,
        sub: &str,
        body: &Value,
    ) -> Result<Value, ApiError> {
        let at = target_sub::<T>("create", key, sub);
        let body = Content::Text("application/json", body.to_string().into_bytes());
        self.send(at, Method::POST, object_path::<T>(key, sub), body).await?.object()
    }

    async fn send(
        &self,
        at: Target,
        method: Method,
        path: String,
        content: Content<'_>,
    ) -> Result<Received, ApiError> {
        let mut request =
            Request::builder().method(method).uri(path).header(header::ACCEPT, ACCEPT);
        if self.server.is_some() {
            request = request.extension(TreeWelcome);
        }
        let body = match content {
            Content::None => Body::empty(),
            Content::Text(content_type, bytes) => {
                request = request.header(header::CONTENT_TYPE, content_type);
                Body::from(bytes)
            }
            Content::Object(object) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                match self.server {
                    Some(_) => {
                        request = request.extension(Tree(object.into_owned()));
                        Body::empty()
                    }
                    None => Body::from(object.to_string().into_bytes()),
                }
            }
        };
        let request = request.body(body);
        let _counted = match self.low_priority {
            true => {
                self.in_flight.wait().await;
                None
            }
            false => Some(self.in_flight.enter()),
        };
        let exchange = async {
            let mut response = self.respond(&at, request).await?;
            match response.extensions_mut().remove::<Tree>() {
                Some(Tree(object)) => Ok(Payload::Tree(object)),
                None => collect(&at, response.into_body()).await.map(Payload::Text),
            }
        };
        match tokio::time::timeout(REQUEST_TIMEOUT, exchange).await {
            Ok(payload) => Ok(Received { payload: payload?, at }),
            Err(elapsed) => Err(ApiError::Unreachable { at, source: elapsed.into() }),
        }
    }

    /// Sends and returns the response if its status is a success.
    async fn respond(
        &self,
        at: &Target,
        request: Result<Request<Body>, http::Error>,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let request = request
            .map_err(|e| ApiError::Invalid { at: at.clone(), message: format!("bad path: {e}") })?;
        let response = match &self.server {
            Some(server) => server(request).await,
            None => self
                .client
                .send(request)
                .await
                .map_err(|e| ApiError::Unreachable { at: at.clone(), source: e.into() })?
                .map(|body| body.map_err(std::io::Error::other).boxed_unsync()),
        };
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = retry_after(response.headers());
        let body = collect(at, response.into_body()).await?;
        Err(ApiError::from_response(at.clone(), status, retry_after, &body))
    }
}

async fn collect(at: &Target, body: ResponseBody) -> Result<Bytes, ApiError> {
    match tokio::time::timeout(RESPONSE_TIMEOUT, body.collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(e)) => Err(ApiError::Unreachable { at: at.clone(), source: e.into() }),
        Err(e) => Err(ApiError::Unreachable { at: at.clone(), source: e.into() }),
    }
}

/// The body of a request.
enum Content<'a> {
    None,
    /// Content type and bytes.
    Text(&'static str, Vec<u8>),
    /// A whole object with its kind. Only what leaves the process is made text.
    Object(Cow<'a, Value>),
}

/// A successful response, not decoded yet.
struct Received {
    at: Target,
    payload: Payload,
}

enum Payload {
    Text(Bytes),
    Tree(Value),
}

impl Received {
    fn object(self) -> Result<Value, ApiError> {
        match self.payload {
            Payload::Tree(object) => Ok(object),
            Payload::Text(_) => self.decode().map(|WithoutManagedFields(object)| object),
        }
    }

    fn decode<R: DeserializeOwned>(self) -> Result<R, ApiError> {
        let at = self.at;
        let decoded = match self.payload {
            Payload::Text(body) => serde_json::from_slice(&body),
            Payload::Tree(object) => serde_json::from_value(object),
        };
        decoded.map_err(|source| ApiError::Decode { at, source })
    }
}

/// Reads `Retry-After` in seconds; the date form is not used by Kubernetes servers.
pub(crate) fn retry_after(headers: &http::HeaderMap) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

pub(crate) fn key_of(object: &Value) -> ObjectKey {
    let field = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    let name = field("name");
    let name = if name.is_empty() { field("generateName") } else { name };
    ObjectKey { namespace: field("namespace"), name }
}

/// An object with `apiVersion` and `kind` filled in where the caller left them out.
fn typed<T: Kind>(mut object: Cow<'_, Value>) -> Cow<'_, Value> {
    if object.get("apiVersion").is_none() || object.get("kind").is_none() {
        let object = object.to_mut();
        object["apiVersion"] = T::api_version().into();
        object["kind"] = T::KIND.into();
    }
    object
}

fn target<T: Kind>(verb: &'static str, key: &ObjectKey) -> Target {
    Target::new(verb, format!("{} {key}", T::KIND))
}

fn target_sub<T: Kind>(verb: &'static str, key: &ObjectKey, sub: &str) -> Target {
    if sub.is_empty() {
        return target::<T>(verb, key);
    }
    Target::new(verb, format!("{}/{sub} {key}", T::KIND))
}

fn collection_target<T: Kind>(verb: &'static str, namespace: Option<&str>) -> Target {
    match namespace {
        Some(ns) => Target::new(verb, format!("{} in {ns}", T::PLURAL)),
        None => Target::new(verb, T::PLURAL),
    }
}

fn collection_path<T: Kind>(namespace: Option<&str>) -> String {
    let root = if T::GROUP.is_empty() { "/api" } else { "/apis" };
    let version = T::api_version();
    match namespace {
        Some(ns) if T::NAMESPACED && !ns.is_empty() => {
            format!("{root}/{version}/namespaces/{ns}/{}", T::PLURAL)
        }
        _ => format!("{root}/{version}/{}", T::PLURAL),
    }
}

fn object_path<T: Kind>(key: &ObjectKey, sub: &str) -> String {
    let path = format!("{}/{}", collection_path::<T>(Some(&key.namespace)), key.name);
    if sub.is_empty() { path } else { format!("{path}/{sub}") }
}

/// A query string under construction.
struct Query(String);

/// What is encoded in a query: all but letters, digits and RFC 3986's unreserved marks.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

impl Query {
    fn selectors(params: &ListParams) -> Self {
        let mut query = Self(String::new());
        if let Some(selector) = &params.label_selector {
            query.add("labelSelector", selector);
        }
        if let Some(selector) = &params.field_selector {
            query.add("fieldSelector", selector);
        }
        query
    }

    fn add(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(name);
        self.0.push('=');
        self.0.extend(utf8_percent_encode(value, RESERVED));
    }

    fn onto(self, path: String) -> String {
        path + &self.0
    }
}

#[cfg(test)]
#[path = "api_tests.rs"]
mod tests;
