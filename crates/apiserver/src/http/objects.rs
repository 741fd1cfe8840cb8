//! Requests for objects and collections.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::Method;
use http::request::Parts;
use longshore_core::model::{Tree, TreeWelcome};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::body::{self, ApiResponse, Sent};
use super::negotiate::{self, Shape};
use super::pieces::Pieces;
use super::query::Query;
use super::render::{Renderer, typed};
use super::route::Object;
use super::{Outside, held_response, not_served, reviews, token};
use crate::Inner;
use crate::access::Author;
use crate::auth::Identity;
use crate::error::{ApiResult, Cause, Status};
use crate::field_manager;
use crate::heavy;
use crate::ops::{Outcome, Part, Source, Target, WriteOptions, Written, decode};
use crate::patch::Patch;
use crate::watch;

/// A watch without a timeout of its own ends somewhere in the second half of this.
const MAX_WATCH: Duration = Duration::from_secs(3600);

/// The verb of a request; empty for methods that objects do not have.
pub(super) fn verb(method: &Method, object: &Object<'_>, query: &Query) -> &'static str {
    let collection = object.name.is_empty();
    match *method {
        Method::GET if object.watch || (collection && query.flag("watch")) => "watch",
        Method::GET if collection => "list",
        Method::GET => "get",
        // Subresources are created below a name, objects are not.
        Method::POST if collection || !object.subresource.is_empty() => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if collection => "deletecollection",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// What is known of a request before its body is read.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub identity: &'a Identity,
    /// Method, path and headers.
    pub parts: &'a Parts,
    pub query: &'a Query,
    pub verb: &'static str,
}

/// One request for objects.
pub(super) struct Call<'a> {
    pub(super) inner: &'a Arc<Inner>,
    pub(super) ending: &'a CancellationToken,
    pub(super) identity: &'a Identity,
    pub(super) target: Target,
    pub(super) parts: &'a Parts,
    pub(super) query: &'a Query,
    pub(super) body: Bytes,
    /// The name of the program that asks.
    program: String,
    /// The object instead of a body; taken by who reads it.
    tree: Mutex<Option<Value>>,
}

/// Answers a request for an object or a collection.
pub(super) async fn handle<B>(
    inner: &Arc<Inner>,
    ending: &CancellationToken,
    object: Object<'_>,
    asked: Asked<'_>,
    sent: Sent<B>,
) -> ApiResult<ApiResponse>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let Asked { identity, parts, query, verb } = asked;
    let target = find_target(inner, &object)?;
    let resource = &target.resource;
    let named_watch = object.watch && !object.name.is_empty();
    let needs_name = matches!(verb, "update" | "patch") && object.name.is_empty();
    let verbs = match object.subresource {
        "" => resource.verbs.as_slice(),
        name => {
            let missing = || {
                let known = not_served::subresource(object.group, object.plural, name);
                known.map_or_else(Status::no_such_resource, Status::not_served)
            };
            resource.subresource(name).ok_or_else(missing)?.verbs
        }
    };
    if !verbs.contains(&verb) || needs_name || (object.watch && verb != "watch") {
        return Err(Status::method_not_allowed());
    }
    if resource.namespaced && target.namespace.is_empty() && !matches!(verb, "list" | "watch") {
        return Err(Status::method_not_allowed());
    }
    let mut room = inner.core.heavy.reserve(identity.is_master());
    let body = match &sent.tree {
        Some(_) => Bytes::new(),
        None => {
            let reading = body::read(sent.text, inner.limits.body_bytes, &mut room);
            tokio::time::timeout(inner.limits.request_timeout, reading)
                .await
                .map_err(|_| Status::request_timeout())??
        }
    };
    let tree = Mutex::new(sent.tree);
    let program = field_manager::of_agent(&parts.headers);
    let call = Call { inner, ending, identity, target, parts, query, body, program, tree };
    if verb == "watch" {
        return call.watch(named_watch).map(|response| call.warn_of_deprecation(response));
    }
    let response = if call.is_heavy(verb) {
        call.elsewhere(verb, object.subresource).await?
    } else {
        let response = call.respond(verb, object.subresource).await?;
        call.warn_of_deprecation(response)
    };
    // What a large request left behind stays until its response is taken.
    Ok(match room.into_held() {
        Some(room) => held_response::hold(response, room, None),
        None => response,
    })
}

/// In groups of our own a Status says what is missing; elsewhere no kind is served that could say it.
fn missing(builtin: bool) -> Status {
    if builtin { Status::no_such_resource() } else { Status::no_such_page() }
}

fn find_target(inner: &Arc<Inner>, object: &Object<'_>) -> ApiResult<Target> {
    let registry = inner.core.registry();
    let resource = registry.find(object.group, object.version, object.plural).ok_or_else(|| {
        match not_served::resource(object.group, object.plural) {
            Some(why) => Status::not_served(why),
            None => missing(registry.is_builtin_group(object.group)),
        }
    })?;
    if !resource.namespaced && object.namespace.is_some() {
        return Err(missing(resource.custom.is_none()));
    }
    Ok(Target {
        resource: Arc::clone(resource),
        namespace: object.namespace.clone().unwrap_or_default(),
        name: object.name.clone(),
    })
}

impl Call<'_> {
    /// Whether the work could hold others up: much is sent or stored, or a definition says how much is to
    /// be done. What this process asks for is done at once.
    fn is_heavy(&self, verb: &str) -> bool {
        let resource = &self.target.resource;
        if !self.is_outside() || !matches!(verb, "create" | "update" | "patch" | "delete") {
            return false;
        }
        let large = self.bytes() > heavy::LARGE;
        if verb == "delete" {
            return large;
        }
        large
            || matches!(&*resource.group, "apiextensions.k8s.io" | "rbac.authorization.k8s.io")
            || resource.custom.as_ref().is_some_and(|custom| custom.is_heavy())
    }

    /// What was sent and what is there.
    fn bytes(&self) -> usize {
        let Target { resource, namespace, name } = &self.target;
        let there = (!name.is_empty()).then(|| resource.key(namespace, name));
        let there = there.and_then(|key| self.inner.core.store.head(&key));
        self.body.len() + there.map_or(0, |there| there.body.len())
    }

    fn is_outside(&self) -> bool {
        self.parts.extensions.get::<Outside>().is_some()
    }

    /// Answers on a thread for large requests.
    async fn elsewhere(self, verb: &'static str, subresource: &str) -> ApiResult<ApiResponse> {
        let bytes = self.bytes();
        let Call { inner, ending, identity, target, parts, query, body, program, tree } = self;
        let own =
            (Arc::clone(inner), ending.clone(), identity.clone(), parts.clone(), query.clone());
        let subresource = subresource.to_owned();
        let work = async move {
            let (inner, ending, identity, parts, query) = &own;
            let call = Call { inner, ending, identity, target, parts, query, body, program, tree };
            let response = call.respond(verb, &subresource).await?;
            Ok(call.warn_of_deprecation(response))
        };
        let is_master = identity.is_master();
        inner.core.heavy.run(bytes, is_master, work).await
    }

    async fn respond(&self, verb: &str, subresource: &str) -> ApiResult<ApiResponse> {
        let part = match subresource {
            "status" => Part::Status,
            "finalize" => Part::Finalize,
            "binding" => return self.bind().await,
            "eviction" => return self.evict().await,
            "log" => return self.log().await,
            "exec" => return self.stream(true).await,
            "attach" => return self.stream(false).await,
            "scale" => return self.scale(verb).await,
            "token" => return self.token().await,
            _ => Part::Main,
        };
        match verb {
            "create" if self.target.resource.transient => self.review(),
            "get" => self.get().await,
            "list" => self.list().await,
            "create" => self.create().await,
            "update" => self.update(part).await,
            "patch" => self.patch(part).await,
            "delete" => self.delete().await,
            "deletecollection" => self.delete_collection().await,
            _ => Err(Status::method_not_allowed()),
        }
    }

    /// Clients of a deprecated version get a warning with every response.
    fn warn_of_deprecation(&self, mut response: ApiResponse) -> ApiResponse {
        let custom = self.target.resource.custom.as_ref();
        if let Some(warning) = custom.and_then(|custom| custom.deprecated.clone()) {
            body::warn(&mut response, &[warning]);
        }
        response
    }

    async fn token(&self) -> ApiResult<ApiResponse> {
        self.write_options("CreateOptions")?;
        let request = self.parse_other("TokenRequest")?.value;
        let answered = token::respond(self.inner, &self.target, request).await?;
        Ok(body::json(201, &answered))
    }

    async fn scale(&self, verb: &str) -> ApiResult<ApiResponse> {
        let core = &self.inner.core;
        let scale = match verb {
            "get" => core.scale(&self.target, self.query.version()?).await?,
            "update" => {
                let options = self.write_options("UpdateOptions")?;
                let parsed = self.parse_other("Scale")?;
                let source =
                    Source::Whole { body: parsed.value, duplicate_fields: parsed.duplicate_fields };
                core.rescale(&self.target, &source, options).await?
            }
            _ => {
                let options = self.write_options("PatchOptions")?;
                core.rescale(&self.target, &Source::Patch(self.parse_patch()?), options).await?
            }
        };
        Ok(body::json(200, &scale))
    }

    /// Options of a write; without a named manager the program that asks is one.
    pub(super) fn write_options(&self, kind: &str) -> ApiResult<WriteOptions<'_>> {
        let manager = self.query.get("fieldManager").unwrap_or(&self.program);
        let author = Some(Author { access: &self.inner.access, who: self.identity });
        let outside = self.is_outside();
        Ok(WriteOptions { manager, author, outside, ..self.query.write_options(kind)? })
    }

    fn parse_patch(&self) -> ApiResult<Patch> {
        let patch = Patch::parse(negotiate::content_type(&self.parts.headers), &self.body)?;
        if matches!(patch, Patch::Strategic(_)) && self.target.resource.custom.is_some() {
            return Err(Status::unsupported_media_type(
                "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            ));
        }
        Ok(patch)
    }

    pub(super) fn renderer(&self, shape: Shape) -> ApiResult<Renderer> {
        let form = negotiate::form(&self.parts.headers, self.query.include()?, shape)?;
        Ok(Renderer::new(&self.target.resource, form, &self.inner.core.env))
    }

    async fn get(&self) -> ApiResult<ApiResponse> {
        let renderer = self.renderer(Shape::Single)?;
        let stored = self.inner.core.get(&self.target, self.query.version()?).await?;
        Ok(whole(200, renderer.object(&Written::Stored(stored))))
    }

    async fn list(&self) -> ApiResult<ApiResponse> {
        let renderer = self.renderer(Shape::List)?;
        let options = self.query.list_options(&self.target.resource)?;
        let listed = self.inner.core.list(&self.target, &options).await?;
        let room = match self.is_outside() {
            true => self.inner.core.heavy.list(listed.objects.len())?,
            false => None,
        };
        // A table is made from whole objects, which takes long when they are large.
        let lengths = || listed.objects.iter().map(|object| object.body.len());
        let elsewhere = !renderer.is_whole() && lengths().sum::<usize>() > heavy::LARGE;
        let largest = lengths().max().unwrap_or_default();
        let mut pieces = renderer.list(listed);
        let pieces = std::iter::from_fn(move || {
            let _until_it_is_sent = &room;
            pieces.next()
        });
        Ok(match elsewhere {
            true => {
                let (inner, is_master) = (Arc::clone(self.inner), self.identity.is_master());
                body::pieces_elsewhere(pieces, move || {
                    let inner = Arc::clone(&inner);
                    async move { inner.core.heavy.turn(largest, is_master).await }
                })
            }
            false => body::pieces(200, pieces),
        })
    }

    fn watch(&self, named: bool) -> ApiResult<ApiResponse> {
        let renderer = self.renderer(Shape::Single)?;
        let env = &self.inner.core.env;
        let half = MAX_WATCH.as_secs() / 2;
        let default = Duration::from_secs(half + env.below(half));
        let mut query = Query::default();
        let query = if named {
            query.restrict(self.query, &self.target.name);
            &query
        } else {
            self.query
        };
        let options = query.watch_options(&self.target.resource, default)?;
        let namespace = Some(self.target.namespace.as_str()).filter(|ns| !ns.is_empty());
        let store = &self.inner.core.store;
        let resource = &self.target.resource;
        let counted =
            self.inner.metrics.watch_events(&resource.group, &resource.version, &resource.plural);
        let heavy = self.is_outside().then_some(&self.inner.core.heavy);
        let chunks = watch::open(store, resource, namespace, options, renderer, counted, heavy)?;
        let closed = self.ending.clone();
        let served = self.target.resource.custom.as_ref().map(|custom| custom.end.clone());
        let end = async move {
            match served {
                Some(served) => {
                    futures::future::select(
                        std::pin::pin!(closed.cancelled()),
                        std::pin::pin!(served.cancelled()),
                    )
                    .await
                    .factor_first()
                    .0
                }
                None => closed.cancelled().await,
            }
        };
        Ok(body::stream("application/json", chunks.take_until(end)))
    }

    pub(super) fn parse_body(&self) -> ApiResult<body::Parsed> {
        if let Some(value) = self.tree.lock().take() {
            return Ok(body::Parsed { value, duplicate_fields: Vec::new() });
        }
        let encoding = negotiate::encoding(&self.parts.headers)?;
        let resource = &self.target.resource;
        let parsed = body::parse(encoding, &self.body, &resource.kind)?;
        // A custom resource has to say what it is.
        let missing = [("Kind", "kind"), ("apiVersion", "apiVersion")]
            .into_iter()
            .find(|(_, field)| parsed.value[*field].as_str().unwrap_or_default().is_empty());
        match missing.filter(|_| resource.custom.is_some()) {
            Some((name, _)) => {
                let text = String::from_utf8_lossy(&self.body);
                let why = format!("Object '{name}' is missing in '{text}'");
                Err(body::unrecognized(&resource.kind, &why, &self.body))
            }
            None => Ok(parsed),
        }
    }

    /// Reads a body of another kind than that of the path.
    pub(super) fn parse_other(&self, kind: &str) -> ApiResult<body::Parsed> {
        body::parse(negotiate::encoding(&self.parts.headers)?, &self.body, kind)
    }

    async fn create(&self) -> ApiResult<ApiResponse> {
        let renderer = self.renderer(Shape::Single)?;
        let options = self.write_options("CreateOptions")?;
        let parsed = self.parse_body()?;
        let outcome = self
            .inner
            .core
            .create(&self.target, parsed.value, &parsed.duplicate_fields, options)
            .await?;
        Ok(self.written(201, &renderer, outcome))
    }

    fn review(&self) -> ApiResult<ApiResponse> {
        let resource = &self.target.resource;
        let options = self.write_options("CreateOptions")?;
        let parsed = self.parse_body()?;
        let (review, warnings) = decode(resource, parsed.value, &parsed.duplicate_fields, options)?;
        let answered = reviews::respond(self.inner, resource, self.identity, review)?;
        let mut response = body::json(201, &typed(resource, answered));
        body::warn(&mut response, &warnings);
        Ok(response)
    }

    async fn update(&self, part: Part) -> ApiResult<ApiResponse> {
        let renderer = self.renderer(Shape::Single)?;
        let options = self.write_options("UpdateOptions")?;
        let parsed = self.parse_body()?;
        let source =
            Source::Whole { body: parsed.value, duplicate_fields: parsed.duplicate_fields };
        let outcome = self.inner.core.update(&self.target, part, &source, options).await?;
        let code = if outcome.created { 201 } else { 200 };
        Ok(self.written(code, &renderer, outcome))
    }

    async fn patch(&self, part: Part) -> ApiResult<ApiResponse> {
        let renderer = self.renderer(Shape::Single)?;
        let options = self.write_options("PatchOptions")?;
        if negotiate::content_type(&self.parts.headers) == "application/apply-patch+yaml" {
            return self.apply(part, &renderer, options).await;
        }
        let patch = self.parse_patch()?;
        if self.query.get("force").is_some() {
            let cause = Cause::forbidden("force", "may not be specified for non-apply patch");
            return Err(Status::invalid_kind("meta.k8s.io", "PatchOptions", "", vec![cause]));
        }
        let source = Source::Patch(patch);
        let outcome = self.inner.core.update(&self.target, part, &source, options).await?;
        Ok(self.written(200, &renderer, outcome))
    }

    async fn apply(
        &self,
        part: Part,
        renderer: &Renderer,
        options: WriteOptions<'_>,
    ) -> ApiResult<ApiResponse> {
        if self.query.get("fieldManager").is_none() {
            let cause = Cause::required("fieldManager", "is required for apply patch");
            return Err(Status::invalid_kind("meta.k8s.io", "PatchOptions", "", vec![cause]));
        }
        let config =
            body::parse(negotiate::Encoding::Yaml, &self.body, &self.target.resource.kind)?.value;
        let force = self.query.flag("force");
        let applied = self.inner.core.apply(&self.target, part, &config, force, options);
        let (outcome, new) = applied.await?;
        Ok(self.written(if new { 201 } else { 200 }, renderer, outcome))
    }

    /// The response to a write: text, or the object itself for a client in this process.
    fn written(&self, code: u16, renderer: &Renderer, outcome: Outcome) -> ApiResponse {
        let Outcome { written, tree, warnings, created: _ } = outcome;
        let resource = &self.target.resource;
        let welcome = self.parts.extensions.get::<TreeWelcome>().is_some();
        // Trees are in the stored form.
        let as_stored = renderer.is_whole() && !resource.has_conversion();
        let mut response = match tree.filter(|_| welcome && as_stored) {
            Some(tree) => {
                let mut response = body::response(code, "application/json", Bytes::new());
                response.extensions_mut().insert(Tree(typed(resource, tree)));
                response
            }
            None => whole(code, renderer.object(&written)),
        };
        body::warn(&mut response, &warnings);
        response
    }
}

/// A response of one object.
pub(super) fn whole(code: u16, mut pieces: Pieces) -> ApiResponse {
    body::pieces(code, std::iter::from_fn(move || pieces.take()))
}

/// A Status that says so.
pub(super) fn success(details: Value, code: Option<u16>) -> Value {
    let mut status =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    if !details.is_null() {
        status["details"] = details;
    }
    if let Some(code) = code {
        status["code"] = json!(code);
    }
    status
}
