//! The verbs: what happens to the store when a request comes in.

mod apply;
mod binding;
mod create;
mod delete;
mod kinds;
mod list;
mod scale;
mod security;
mod update;

use std::sync::Arc;

use serde_json::Value;

use crate::access::Author;
use crate::clock::Environment;
use crate::error::{ApiResult, Cause, Causes, Status};
use crate::heavy::Heavy;
use crate::metrics::Metrics;
use crate::registry::codec;
use crate::registry::strategy::{Context, Settings};
use crate::registry::{Registry, Resource, is_builtin_kind};
use crate::store::{Expect, Key, Room, Store, Stored, Write, WriteError};

pub(crate) use delete::{DeleteOptions, Deleted, Propagation};
use kinds::Kinds;
pub(crate) use list::invalid_options;
pub(crate) use list::{ListOptions, Listed, VersionMatch};
pub(crate) use update::copy_field;
pub(crate) use update::{Part, Source};

/// How often a write is tried again when others write the same object.
const MAX_ATTEMPTS: usize = 64;

/// What all verbs work on.
pub(crate) struct Core {
    pub store: Store,
    /// Time and randomness.
    pub env: Environment,
    /// What differs from server to server.
    pub settings: Settings,
    /// Room for large requests, and for what else works on large objects.
    pub heavy: Heavy,
    metrics: Arc<Metrics>,
    kinds: Kinds,
}

impl Core {
    /// Verbs over a store, with the built-in kinds.
    pub(crate) fn new(
        store: Store,
        env: Environment,
        settings: Settings,
        metrics: Arc<Metrics>,
    ) -> Self {
        let heavy = Heavy::default();
        Self { store, env, settings, heavy, metrics, kinds: Kinds::default() }
    }

    /// Writes to the store and measures how long that takes.
    async fn write(&self, mut write: Write) -> Result<Arc<Stored>, WriteError> {
        self.write_kept(&mut write).await
    }

    /// The same; the object stays in `write`.
    async fn write_kept(&self, write: &mut Write) -> Result<Arc<Stored>, WriteError> {
        let operation = match (write.delete, write.expect) {
            (true, _) => "delete",
            (false, Expect::Absent) => "create",
            (false, Expect::Revision(_)) => "update",
        };
        let resource = Arc::clone(&write.key.resource);
        let began = tokio::time::Instant::now();
        let written = self.store.write_kept(write).await;
        self.metrics.stored(operation, &resource, began.elapsed());
        written
    }

    /// The result, once readers see what it was decided on. Writers are checked against writes that are not
    /// on disk yet: a client that is refused for one of them and reads the object again must find it, or it
    /// is refused again and again for as long as the disk takes.
    async fn visible<T>(&self, key: &Key, result: ApiResult<T>) -> ApiResult<T> {
        if result.is_err() {
            self.store.settled(key).await;
        }
        result
    }

    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.kinds.registry()
    }

    /// Serves the kinds of these definitions, and of no others.
    pub(crate) fn serve<'a>(&self, definitions: impl Iterator<Item = &'a Value>) {
        self.kinds.serve(definitions);
    }

    fn context(&self) -> Context<'_> {
        let (registry, settings) = (self.registry(), self.settings);
        Context { store: &self.store, registry, env: &self.env, settings }
    }
}

/// An object, or the place for one.
#[derive(Clone)]
pub struct Target {
    pub resource: Arc<Resource>,
    /// Its namespace, empty for cluster-scoped kinds.
    pub namespace: String,
    /// Its name, empty for collections.
    pub name: String,
}

impl Target {
    fn key(&self) -> Key {
        self.resource.key(&self.namespace, &self.name)
    }

    fn not_found(&self) -> Status {
        Status::not_found(&self.resource, &self.name)
    }
}

/// What to do about unknown fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Drop them silently.
    Ignore,
    /// Drop them and warn.
    #[default]
    Warn,
    Strict,
}

#[derive(Debug, Clone, Copy)]
pub struct WriteOptions<'a> {
    /// Do everything but store.
    pub dry_run: bool,
    /// What to do about unknown fields.
    pub validation: FieldValidation,
    /// Who manages the fields that are written.
    pub manager: &'a str,
    /// Whose rights the object itself is judged by; `None` for the server's own writes.
    pub author: Option<Author<'a>>,
    /// Whether it comes from outside this process.
    pub outside: bool,
}

impl WriteOptions<'_> {
    /// What of the store's room a write may use.
    fn room(self, resource: &str, part: Part) -> Room {
        match resource {
            "coordination.k8s.io/leases" => Room::Reserve,
            "events" => Room::Spare,
            _ if !self.outside || part != Part::Main => Room::Reserve,
            _ => Room::Plain,
        }
    }
}

impl Default for WriteOptions<'_> {
    fn default() -> Self {
        let validation = FieldValidation::default();
        Self { dry_run: false, validation, manager: "longshore", author: None, outside: false }
    }
}

/// The object a write leads to.
pub enum Written {
    Stored(Arc<Stored>),
    /// It would have been stored, were it not a dry run; in the stored form.
    Dry(Value),
}

impl Written {
    /// The object as a tree, in the stored form.
    pub fn value(&self) -> Value {
        match self {
            Self::Stored(stored) => stored.value(),
            Self::Dry(value) => value.clone(),
        }
    }
}

pub(crate) struct Outcome {
    pub written: Written,
    /// The same as a tree without its managers, if there is one at hand.
    pub tree: Option<Value>,
    /// Texts for the `Warning` header.
    pub warnings: Vec<String>,
    /// Whether an update or apply made the object.
    pub created: bool,
}

impl Outcome {
    fn of(written: Written, warnings: Vec<String>) -> Self {
        Self { written, tree: None, warnings, created: false }
    }

    /// What was written just now.
    fn stored(stored: Arc<Stored>, write: Write, warnings: Vec<String>) -> Self {
        // Without a text of their own the managers are in the tree.
        let tree = write.managers.is_some().then_some(write.object);
        Self { written: Written::Stored(stored), tree, warnings, created: false }
    }
}

/// Checks the kind a body claims to be; the path decides when it says nothing.
fn check_kind(resource: &Resource, body: &Value) -> ApiResult<()> {
    let kind = body["kind"].as_str().unwrap_or_default();
    let version = body["apiVersion"].as_str().unwrap_or_default();
    if resource.custom.is_some() {
        return check_custom_kind(resource, body, kind, version);
    }
    let fits = (kind.is_empty() || kind == resource.kind)
        && (version.is_empty() || version == resource.api_version());
    if fits {
        return Ok(());
    }
    let (kind, version) = match (kind, version) {
        ("", version) => (resource.kind.as_str(), version.to_owned()),
        (kind, "") => (kind, resource.api_version()),
        (kind, version) => (kind, version.to_owned()),
    };
    let last = version.rsplit('/').next().unwrap_or_default();
    let why = if is_builtin_kind(&version, kind) {
        let to = internal_package(&resource.group);
        format!("converting ({last}.{kind}) to ({to}.{}): unknown conversion", resource.kind)
    } else {
        format!(
            "no kind {kind:?} is registered for version {version:?} in scheme \"kubernetes/pkg/api/legacyscheme/scheme.go:30\""
        )
    };
    Err(Status::bad_request(format!(
        "{kind} in version {last:?} cannot be handled as a {}: {why}",
        resource.kind
    )))
}

/// Where upstream has the types of a group.
fn internal_package(group: &str) -> &str {
    if group.is_empty() { "core" } else { group.split('.').next().unwrap_or(group) }
}

/// A custom resource has to say what it is.
fn check_custom_kind(
    resource: &Resource,
    body: &Value,
    kind: &str,
    version: &str,
) -> ApiResult<()> {
    for (field, value) in [("Kind", kind), ("apiVersion", version)] {
        if value.is_empty() {
            return Err(Status::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): Object '{field}' is missing in '{body}'",
                resource.kind
            )));
        }
    }
    if version != resource.api_version() {
        return Err(Status::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({})",
            resource.api_version()
        )));
    }
    if kind != resource.kind {
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        let why = format!("must be {}", resource.kind);
        let causes = vec![Cause::invalid("kind", &body["kind"], &why)];
        return Err(Status::invalid_kind(&resource.group, kind, name, causes));
    }
    Ok(())
}

fn cannot_handle(resource: &Resource, kind: &str, why: &str) -> Status {
    Status::bad_request(format!(
        "{kind} in version {:?} cannot be handled as a {}: {why}",
        resource.version, resource.kind
    ))
}

/// Turns a client's object into one of the kind, with defaults, and judges unknown fields.
pub(crate) fn decode(
    resource: &Resource,
    body: Value,
    duplicate_fields: &[String],
    options: WriteOptions<'_>,
) -> ApiResult<(Value, Vec<String>)> {
    decode_with(resource, body, duplicate_fields, options, |_| {})
}

/// The same with a step before defaults are filled in.
fn decode_with(
    resource: &Resource,
    body: Value,
    duplicate_fields: &[String],
    options: WriteOptions<'_>,
    complete: impl FnOnce(&mut Value),
) -> ApiResult<(Value, Vec<String>)> {
    if !body.is_object() {
        return Err(cannot_handle(resource, &resource.kind, "the body is not an object"));
    }
    check_kind(resource, &body)?;
    let decoded = codec::decode(&resource.codec, body, true).map_err(|fault| {
        if fault.too_large {
            return Status::invalid(resource, "", Cause::forbidden("", &fault.why));
        }
        cannot_handle(resource, &resource.kind, &resource.explain(fault))
    })?;
    let found: Vec<String> = decoded
        .unknown
        .iter()
        .map(|path| format!("unknown field {path:?}"))
        .chain(duplicate_fields.iter().map(|path| format!("duplicate field {path:?}")))
        .collect();
    let mut object = decoded.object;
    complete(&mut object);
    resource.strategy.default(&mut object);
    match options.validation {
        FieldValidation::Ignore => Ok((object, Vec::new())),
        FieldValidation::Strict if !found.is_empty() => {
            let why = format!("strict decoding error: {}", found.join(", "));
            Err(cannot_handle(resource, &resource.kind, &why))
        }
        FieldValidation::Strict | FieldValidation::Warn => Ok((object, found)),
    }
}

fn judge(resource: &Resource, object: &Value, causes: Causes) -> ApiResult<()> {
    if causes.is_empty() {
        return Ok(());
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    // Both forms of an event are judged as the older one.
    let group = if &*resource.storage == "events" { "" } else { &resource.group };
    Err(Status::invalid_kind(group, &resource.kind, name, causes))
}

/// The store failed, or writers starved each other: neither is the client's fault.
fn write_failed(error: &WriteError) -> Status {
    match error {
        WriteError::Conflict(key) => {
            Status::too_many_requests(format!("too many writers of {key}, try again"), 1)
        }
        WriteError::NoRoom { used, limit } => Status::store_full(*used, *limit),
        WriteError::Full(why) => Status::unavailable(why.clone()),
        WriteError::Failed(why) => Status::internal(why.clone()),
    }
}
