//! An API server of a few lines: it starts with many objects at no cost, and knows only what the loops
//! need of the real one.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::{StreamExt as _, stream};
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::bytes::Bytes;

type AnyBody = UnsyncBoxBody<Bytes, kube::Error>;

/// Plural, namespace and name.
type Key = (String, String, String);

#[derive(Clone, Default)]
pub(super) struct Store {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    objects: BTreeMap<Key, Value>,
    watchers: Vec<(String, UnboundedSender<Bytes>)>,
    version: u64,
    /// Every write that was asked for.
    writes: Vec<String>,
}

impl Store {
    pub(super) fn client(&self) -> kube::Client {
        let store = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let store = store.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let query = parts.uri.query().unwrap_or_default();
                let json_patch = parts.headers.get("content-type").is_some_and(|kind| {
                    kind.to_str().is_ok_and(|kind| kind.contains("json-patch"))
                });
                Ok::<_, kube::Error>(store.respond(
                    &parts.method,
                    parts.uri.path(),
                    query,
                    body,
                    json_patch,
                ))
            }
        });
        kube::Client::new(service, "default")
    }

    /// Puts an object, and shows it to whoever watches.
    pub(super) fn put(&self, plural: &str, mut object: Value) {
        let mut inner = self.inner.lock();
        let key = key_of(plural, &object);
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{}-{}", key.0, key.2));
        }
        inner.save(key, object);
    }

    pub(super) fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        self.inner.lock().objects.get(&key).cloned()
    }

    pub(super) fn change(
        &self,
        plural: &str,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) {
        let mut object = self.get(plural, namespace, name).expect("there is such an object");
        change(&mut object);
        self.put(plural, object);
    }

    pub(super) fn delete(&self, plural: &str, namespace: &str, name: &str) {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        self.inner.lock().delete(&key);
    }

    /// The writes since the last call.
    pub(super) fn take_writes(&self) -> Vec<String> {
        std::mem::take(&mut self.inner.lock().writes)
    }

    fn respond(
        &self,
        method: &Method,
        path: &str,
        query: &str,
        body: Value,
        json_patch: bool,
    ) -> Response<AnyBody> {
        let (key, named) = key_in(path);
        let mut inner = self.inner.lock();
        if method == Method::GET && query.contains("watch=") {
            return inner.watch(&key.0);
        }
        if method == Method::GET && !named {
            return inner.list(&key);
        }
        if method != Method::GET {
            inner.writes.push(format!("{method} {path}"));
        }
        match (method.as_str(), inner.objects.get(&key).cloned()) {
            ("POST", _) => inner.create(key, body),
            (_, None) => status(404, "NotFound"),
            ("GET", Some(object)) => answer(200, &object),
            ("DELETE", Some(_)) => {
                inner.delete(&key);
                status(200, "Success")
            }
            (_, Some(mut object)) => {
                match (method.as_str(), json_patch) {
                    ("PUT", _) => object = body,
                    (_, true) if !holds(&object, &body) => return status(422, "Invalid"),
                    (_, true) => apply(&mut object, &body),
                    (_, false) => merge(&mut object, &body),
                }
                answer(200, &inner.save(key, object))
            }
        }
    }
}

impl Inner {
    fn save(&mut self, key: Key, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let free = object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        if free && !object["metadata"]["deletionTimestamp"].is_null() {
            self.objects.remove(&key);
            self.show(&key.0, "DELETED", &object);
            return object;
        }
        let kind = if self.objects.contains_key(&key) { "MODIFIED" } else { "ADDED" };
        self.show(&key.0, kind, &object);
        self.objects.insert(key, object.clone());
        object
    }

    fn show(&mut self, plural: &str, kind: &str, object: &Value) {
        let line = line(kind, object);
        self.watchers
            .retain(|(of, watcher)| of != plural || watcher.unbounded_send(line.clone()).is_ok());
    }

    fn delete(&mut self, key: &Key) {
        let Some(mut object) = self.objects.get(key).cloned() else { return };
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        self.save(key.clone(), object);
    }

    fn create(&mut self, mut key: Key, mut object: Value) -> Response<AnyBody> {
        let named = object["metadata"]["name"].as_str().map(str::to_owned);
        key.2 = named.unwrap_or_else(|| format!("made-{}", self.version));
        if self.objects.contains_key(&key) {
            return status(409, "AlreadyExists");
        }
        object["metadata"]["name"] = json!(key.2);
        object["metadata"]["uid"] = json!(format!("uid-{}-{}", key.0, key.2));
        if !key.1.is_empty() {
            object["metadata"]["namespace"] = json!(key.1);
        }
        answer(201, &self.save(key, object))
    }

    fn of(&self, plural: &str) -> impl Iterator<Item = &Value> {
        let from = (plural.to_owned(), String::new(), String::new());
        let all = self.objects.range(from..);
        let plural = plural.to_owned();
        all.take_while(move |(key, _)| key.0 == plural).map(|(_, object)| object)
    }

    fn list(&self, key: &Key) -> Response<AnyBody> {
        let items: Vec<&Value> = self.of(&key.0).collect();
        let version = self.version.to_string();
        answer(200, &json!({"metadata": {"resourceVersion": version}, "items": items}))
    }

    /// All that there is, the mark at its end, and what comes later.
    fn watch(&mut self, plural: &str) -> Response<AnyBody> {
        let mut first: Vec<Bytes> = self.of(plural).map(|object| line("ADDED", object)).collect();
        let end = json!({"metadata": {"resourceVersion": self.version.to_string(),
            "annotations": {"k8s.io/initial-events-end": "true"}}});
        first.push(line("BOOKMARK", &end));
        let (sender, later) = unbounded();
        self.watchers.push((plural.to_owned(), sender));
        let lines = stream::iter(first).chain(later);
        let body = StreamBody::new(lines.map(|line| Ok::<_, kube::Error>(Frame::data(line))));
        Response::new(body.boxed_unsync())
    }
}

fn line(kind: &str, object: &Value) -> Bytes {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n").into()
}

fn answer(code: u16, body: &Value) -> Response<AnyBody> {
    let body = http_body_util::Full::new(Bytes::from(body.to_string()));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).expect("a code");
    response
}

fn status(code: u16, reason: &str) -> Response<AnyBody> {
    let kind = if code < 300 { "Success" } else { "Failure" };
    answer(
        code,
        &json!({"kind": "Status", "status": kind, "reason": reason, "message": reason,
        "code": code}),
    )
}

fn key_of(plural: &str, object: &Value) -> Key {
    let part = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    (plural.to_owned(), part("namespace"), part("name"))
}

/// The object that a path names, and whether it names one.
fn key_in(path: &str) -> (Key, bool) {
    let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    parts.drain(..if parts[0] == "api" { 2 } else { 3 });
    let mut namespace = "";
    if parts[0] == "namespaces" && parts.len() > 2 {
        namespace = parts[1];
        parts.drain(..2);
    }
    let name = parts.get(1).copied().unwrap_or_default();
    ((parts[0].to_owned(), namespace.to_owned(), name.to_owned()), !name.is_empty())
}

fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (name, value) in fields {
        match value {
            Value::Null => drop(object.as_object_mut().map(|all| all.remove(name))),
            value => merge(&mut object[name], value),
        }
    }
}

/// Whether the tests of a patch are passed.
fn holds(object: &Value, patch: &Value) -> bool {
    let tests = patch.as_array().into_iter().flatten().filter(|step| step["op"] == "test");
    let mut at = tests.map(|step| (step["path"].as_str().unwrap_or_default(), &step["value"]));
    at.all(|(path, value)| object.pointer(path) == Some(value))
}

/// Removes what the patch removes from lists, and sets what it adds or replaces.
fn apply(object: &mut Value, patch: &Value) {
    for step in patch.as_array().into_iter().flatten() {
        let path = step["path"].as_str().unwrap_or_default();
        let Some((parent, last)) = path.rsplit_once('/') else { continue };
        let Some(parent) = object.pointer_mut(parent) else { continue };
        match (step["op"].as_str(), parent) {
            (Some("remove"), Value::Array(all)) => drop(all.remove(last.parse().expect("a place"))),
            (Some("remove"), Value::Object(all)) => drop(all.remove(last)),
            (Some("add" | "replace"), Value::Object(all)) => {
                all.insert(last.to_owned(), step["value"].clone());
            }
            (Some("add"), Value::Array(all)) => all.push(step["value"].clone()),
            _ => {}
        }
    }
}
