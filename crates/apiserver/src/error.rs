//! Errors as the API reports them: Kubernetes `Status` objects.

mod cause;

use serde_json::{Map, Value, json};

pub use cause::{Cause, Causes, brief, cut, start};

use crate::registry::Resource;

/// A failed request, in the form that clients parse.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    pub code: u16,
    /// Machine-readable reason, e.g. `NotFound`.
    pub reason: &'static str,
    /// Text for people; scripts match some of them exactly.
    pub message: String,
    /// `details` of the Status object, absent for some errors.
    pub details: Option<Value>,
    /// `metadata.continue` of an expired list.
    pub continue_token: Option<String>,
    /// Whether the response is a text page, as for paths that are not served.
    pub plain: bool,
}

/// Longest text of an error.
const MAX_MESSAGE: usize = 32 * 1024;

/// Result of an API operation.
pub type ApiResult<T> = Result<T, Status>;

impl Status {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        // What is quoted in it is the client's, and can be as long as its request.
        if message.len() > MAX_MESSAGE {
            message.truncate(cause::start(&message, MAX_MESSAGE).len());
            message.push('…');
        }
        Self { code, reason, message, details: None, continue_token: None, plain: false }
    }

    fn with_details(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }

    /// 400: the request itself is wrong.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 401: no or wrong credentials.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403 for an object.
    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let subject = if name.is_empty() {
            resource.qualified()
        } else {
            format!("{} {name:?}", resource.qualified())
        };
        Self::new(403, "Forbidden", format!("{subject} is forbidden: {why}"))
            .with_details(object_details(&resource.group, &resource.plural, name))
    }

    /// 403 for an object of a resource given by name.
    pub fn forbidden_named(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let resource = if group.is_empty() { plural.into() } else { format!("{plural}.{group}") };
        let subject = if name.is_empty() { resource } else { format!("{resource} {name:?}") };
        Self::new(403, "Forbidden", format!("{subject} is forbidden: {why}"))
            .with_details(object_details(group, plural, name))
    }

    /// 403 for a path that is no resource.
    pub fn forbidden_path(user: &str, verb: &str, path: &str) -> Self {
        let message = format!("forbidden: User {user:?} cannot {verb} path {path:?}");
        Self::new(403, "Forbidden", message).with_details(json!({}))
    }

    /// 403: the namespace is being deleted.
    pub fn namespace_terminating(resource: &Resource, name: &str, namespace: &str) -> Self {
        let why = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        let mut status = Self::forbidden(resource, name, &why);
        if let Some(details) = &mut status.details {
            details["causes"] = json!([{
                "reason": "NamespaceTerminating",
                "message": format!("namespace {namespace} is being terminated"),
                "field": "metadata.namespace",
            }]);
        }
        status
    }

    /// 404 for an object.
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        Self::not_found_named(&resource.group, &resource.plural, name)
    }

    /// 404 for an object of a resource given by name.
    pub fn not_found_named(group: &str, plural: &str, name: &str) -> Self {
        let qualified =
            if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        Self::new(404, "NotFound", format!("{qualified} {name:?} not found"))
            .with_details(object_details(group, plural, name))
    }

    /// 404 for a resource, version or subresource that is not served.
    pub fn no_such_resource() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
            .with_details(json!({}))
    }

    /// 404 for a part of Kubernetes that this server does not have.
    pub fn not_served(why: String) -> Self {
        Self::new(404, "NotFound", why).with_details(json!({}))
    }

    /// 404 for a path that is not served.
    pub fn no_such_page() -> Self {
        Self { plain: true, ..Self::no_such_resource() }
    }

    /// 405.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message).with_details(json!({}))
    }

    /// 406.
    pub fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json, \
                       application/yaml, application/vnd.kubernetes.protobuf";
        Self::new(406, "NotAcceptable", message)
    }

    /// 406 for a media type that nothing is served in.
    pub fn no_representation(list: bool) -> Self {
        let watch = if list {
            ", application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
        } else {
            ""
        };
        let message = format!(
            "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf{watch}"
        );
        Self::new(406, "NotAcceptable", message).with_details(json!({}))
    }

    /// 415 for a patch of an unknown type.
    pub fn no_such_patch() -> Self {
        Self::new(415, "UnsupportedMediaType", "415: Unsupported Media Type")
            .with_details(json!({}))
    }

    /// 415 naming what would have been accepted.
    pub fn unsupported_media_type(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 409: the name is taken.
    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self::new(409, "AlreadyExists", message).with_details(object_details(
            &resource.group,
            &resource.plural,
            name,
        ))
    }

    /// 409 with a reason.
    pub fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified());
        Self::new(409, "Conflict", message).with_details(object_details(
            &resource.group,
            &resource.plural,
            name,
        ))
    }

    /// 409: the object is another one than the client thinks.
    pub fn other_uid(
        resource: &Resource,
        namespace: &str,
        name: &str,
        wanted: &str,
        is: &str,
    ) -> Self {
        // Where the object would be in etcd; custom resources are there under their group.
        let place = match (&resource.custom, resource.plural.as_str()) {
            (Some(_), plural) => format!("{}/{plural}", resource.group),
            (None, "nodes") => "minions".into(),
            (None, plural) => plural.to_owned(),
        };
        let place = [place.as_str(), namespace, name];
        let key: String =
            place.iter().filter(|part| !part.is_empty()).map(|part| format!("/{part}")).collect();
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: /registry{key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {is}"
        );
        Self::conflict(resource, name, &why)
    }

    /// 409 that names the kind instead of the resource, as deletions do.
    pub fn conflict_kind(resource: &Resource, name: &str, why: &str) -> Self {
        Self::conflict_named(&resource.group, &resource.kind, name, why)
    }

    /// The same for a kind given by name.
    pub fn conflict_named(group: &str, kind: &str, name: &str, why: &str) -> Self {
        let subject = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let message = format!("Operation cannot be fulfilled on {subject} {name:?}: {why}");
        Self::new(409, "Conflict", message).with_details(object_details(group, kind, name))
    }

    /// 409: the client's resourceVersion is stale.
    pub fn modified(resource: &Resource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    /// 409: fields of an apply belong to others.
    pub fn apply_conflict(message: String, causes: Vec<Value>) -> Self {
        const MAX_TEXT: usize = 20 * 1024;
        let mut text = 0;
        let shown = causes.into_iter().take_while(|cause| {
            text += cause["field"].as_str().map_or(0, str::len) + 64;
            text <= MAX_TEXT
        });
        let shown: Vec<Value> = shown.collect();
        Self::new(409, "Conflict", message).with_details(json!({"causes": shown}))
    }

    /// 410: the asked version is no longer kept.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 413.
    pub fn too_large(limit_bytes: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit_bytes}");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// 422 for an object.
    pub fn invalid(resource: &Resource, name: &str, causes: impl Into<Causes>) -> Self {
        Self::invalid_kind(&resource.group, &resource.kind, name, causes)
    }

    /// 422 for an object of a kind given by name, e.g. `ListOptions`.
    pub fn invalid_kind(group: &str, kind: &str, name: &str, causes: impl Into<Causes>) -> Self {
        let causes: Causes = causes.into();
        let subject = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let mut texts: Vec<String> =
            causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        if causes.more() > 0 {
            texts.push(format!("and {} more errors", causes.more()));
        }
        let text = match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let mut details = object_details(group, kind, name);
        details["causes"] = causes
            .into_iter()
            .map(|c| json!({"reason": c.reason, "message": c.message, "field": c.field}))
            .collect();
        Self::new(422, "Invalid", format!("{subject} {:?} is invalid: {text}", cut(name)))
            .with_details(details)
    }

    /// 422: a JSON patch that does not apply.
    pub fn unprocessable(why: &str) -> Self {
        tracing::debug!(why, "patch does not apply");
        let message = "the server rejected our request due to an error in our request";
        Self::new(422, "Invalid", message).with_details(json!({}))
    }

    /// 429.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::new(429, "TooManyRequests", message)
            .with_details(json!({"retryAfterSeconds": retry_after_seconds}))
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "InternalError", message)
    }

    /// 503.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    /// 507: the objects take as much as they may.
    pub fn store_full(used: usize, limit: usize) -> Self {
        let message = format!(
            "the store is full: its objects take {used} bytes, and {limit} are allowed (--store-limit); delete \
             objects that are not needed (the metric longshore_apiserver_store_resource_bytes says which \
             kinds take most), or start the server with a higher limit"
        );
        Self::new(507, "StoreFull", message).with_details(json!({}))
    }

    /// 504: the client took too long to send its request.
    pub fn request_timeout() -> Self {
        Self::new(504, "Timeout", "Timeout: request did not complete within the allotted timeout")
            .with_details(json!({}))
    }

    /// 413 for a patch of too many steps.
    pub fn too_many_steps(limit: usize, found: usize) -> Self {
        let message =
            format!("The allowed maximum operations in a JSON patch is {limit}, got {found}");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// 413 for an object of so many parts that it takes many times its length in memory.
    pub fn too_many_parts(bytes: usize, limit: usize) -> Self {
        let message = format!(
            "Request entity too large: the object has so many parts that it would take about {bytes} bytes \
             in memory, limit is {limit}"
        );
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// 413 for a patch that adds and removes at the front of long lists.
    pub fn too_many_moves(limit: usize) -> Self {
        let message = format!(
            "The steps of the JSON patch move more than {limit} list elements; replace the whole list instead"
        );
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// 504: a version from the future did not come in time.
    pub fn too_large_version(asked: u64, current: u64) -> Self {
        let why = format!("Too large resource version: {asked}, current: {current}");
        Self::new(504, "Timeout", format!("Timeout: {why}")).with_details(json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        }))
    }

    /// Seconds for the `Retry-After` header.
    pub fn retry_after(&self) -> Option<u64> {
        self.details.as_ref()?.get("retryAfterSeconds")?.as_u64()
    }

    /// The `Status` object.
    pub fn to_value(&self) -> Value {
        let mut meta = Map::new();
        if let Some(token) = &self.continue_token {
            meta.insert("continue".into(), json!(token));
        }
        let mut object = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": meta, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some(details) = &self.details {
            object["details"] = details.clone();
        }
        object
    }
}

/// `details` naming an object; the group is left out for core, the name when there is none.
pub(crate) fn object_details(group: &str, kind: &str, name: &str) -> Value {
    let mut details = json!({});
    if !kind.is_empty() {
        details["kind"] = json!(kind);
    }
    if !name.is_empty() {
        details["name"] = json!(cut(name));
    }
    if !group.is_empty() {
        details["group"] = json!(group);
    }
    details
}
