//! From stored objects to bytes, in the form the client asked for.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::negotiate::{Form, Include};
use super::table;
use crate::clock::Environment;
use crate::error::Status;
use crate::ops::{Listed, Written};
use crate::registry::Resource;
use crate::store::Stored;
use crate::watch::bookmark_object;

/// Writes objects of one kind in one form.
pub struct Renderer {
    resource: Arc<Resource>,
    form: Form,
    env: Environment,
    /// `"kind":…,"apiVersion":…,` to be put in front of a stored body; made when one is written.
    prefix: OnceLock<String>,
    /// Table columns are sent with the first event of a watch only.
    columns_sent: bool,
}

impl Renderer {
    /// A renderer for the kind.
    pub fn new(resource: &Arc<Resource>, form: Form, env: &Environment) -> Self {
        let (resource, env) = (Arc::clone(resource), env.clone());
        Self { resource, form, env, prefix: OnceLock::new(), columns_sent: false }
    }

    fn prefix(&self) -> &str {
        self.prefix.get_or_init(|| {
            let (kind, version) = (json!(self.resource.kind), json!(self.resource.api_version()));
            format!("{{\"kind\":{kind},\"apiVersion\":{version},")
        })
    }

    /// Whether objects are written whole and as themselves.
    pub fn is_whole(&self) -> bool {
        matches!(self.form, Form::Object)
    }

    fn now(&self) -> Timestamp {
        self.env.now()
    }

    /// One object as an answer.
    pub fn object(&self, written: &Written) -> Bytes {
        match written {
            Written::Stored(stored) => self.stored(stored),
            Written::Dry(value) => self.tree(self.resource.show(value.clone())),
        }
    }

    fn stored(&self, stored: &Stored) -> Bytes {
        match self.form {
            Form::Object => self.whole(stored).into(),
            _ => self.tree(self.resource.show(stored.value())),
        }
    }

    /// The object with its kind in front.
    fn whole(&self, stored: &Stored) -> Vec<u8> {
        let body = self.body(stored);
        let mut out = Vec::with_capacity(self.prefix().len() + body.len());
        out.extend_from_slice(self.prefix().as_bytes());
        out.extend_from_slice(&body[1..]);
        out
    }

    /// The object without its kind: as it is stored, when it is shown so.
    fn body<'a>(&self, stored: &'a Stored) -> Cow<'a, [u8]> {
        if self.resource.shows_otherwise() {
            return self.resource.show(stored.value()).to_string().into_bytes().into();
        }
        Cow::Borrowed(&stored.body)
    }

    fn tree(&self, object: Value) -> Bytes {
        let answer = match self.form {
            Form::Object => typed(&self.resource, object),
            Form::Partial => partial(&object),
            Form::Table(include) => {
                let meta = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                let row = self.row(object, include);
                table::table(table::columns(&self.resource), vec![row], meta)
            }
        };
        answer.to_string().into()
    }

    fn row(&self, object: Value, include: Include) -> Value {
        let cells = table::cells(&self.resource, &object, self.now());
        let mut row = json!({"cells": cells});
        match include {
            Include::None => {}
            Include::Metadata => row["object"] = partial(&object),
            Include::Object => row["object"] = typed(&self.resource, object),
        }
        row
    }

    /// A list as an answer.
    pub fn list(&self, listed: &Listed) -> Bytes {
        let mut meta = json!({"resourceVersion": listed.revision.to_string()});
        if let Some(token) = &listed.continue_token {
            meta["continue"] = json!(token);
        } else if self.resource.custom.is_some() && self.form == Form::Object {
            // Lists of custom resources always say where they would go on.
            meta["continue"] = json!("");
        }
        if let Some(remaining) = listed.remaining {
            meta["remainingItemCount"] = json!(remaining);
        }
        let show = |o: &Arc<Stored>| self.resource.show(o.value());
        match self.form {
            Form::Object => self.plain_list(listed, &meta),
            Form::Partial => {
                let items: Vec<Value> = listed.objects.iter().map(|o| partial(&show(o))).collect();
                let list = json!({
                    "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                    "metadata": meta, "items": items,
                });
                list.to_string().into()
            }
            Form::Table(include) => {
                let rows = listed.objects.iter().map(|o| self.row(show(o), include)).collect();
                table::table(table::columns(&self.resource), rows, meta).to_string().into()
            }
        }
    }

    fn plain_list(&self, listed: &Listed, meta: &Value) -> Bytes {
        let size: usize = listed.objects.iter().map(|o| o.body.len() + 1).sum();
        let mut out = Vec::with_capacity(size + 256);
        let head = format!(
            "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{meta},\"items\":[",
            json!(self.resource.list_kind),
            json!(self.resource.api_version()),
        );
        out.extend_from_slice(head.as_bytes());
        for (i, object) in listed.objects.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            let body = self.body(object);
            if self.resource.custom.is_some() {
                // Their items say what they are, unlike those of built-in kinds.
                out.extend_from_slice(self.prefix().as_bytes());
                out.extend_from_slice(&body[1..]);
            } else {
                out.extend_from_slice(&body);
            }
        }
        out.extend_from_slice(b"]}");
        out.into()
    }

    /// Appends one event of a watch, with its line end.
    pub fn event(&mut self, out: &mut Vec<u8>, kind: &str, stored: &Stored) {
        match self.form {
            Form::Object => {
                let body = self.body(stored);
                out.reserve(self.prefix().len() + body.len() + 40);
                begin_line(out, kind);
                out.extend_from_slice(self.prefix().as_bytes());
                out.extend_from_slice(&body[1..]);
                out.extend_from_slice(b"}\n");
            }
            Form::Partial => {
                let object = partial(&self.resource.show(stored.value())).to_string();
                out.extend(line(kind, object.as_bytes()));
            }
            Form::Table(include) => {
                let object = self.table_event(stored, include);
                out.extend(line(kind, &object));
            }
        }
    }

    fn table_event(&mut self, stored: &Stored, include: Include) -> Vec<u8> {
        let object = self.resource.show(stored.value());
        let meta = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
        let row = self.row(object, include);
        let columns = if self.columns_sent { Value::Null } else { table::columns(&self.resource) };
        self.columns_sent = true;
        table::table(columns, vec![row], meta).to_string().into_bytes()
    }

    /// A bookmark; the one after the initial objects is annotated.
    pub fn bookmark(&self, revision: u64, initial_end: bool) -> Bytes {
        let mut object = bookmark_object(&self.resource, revision, initial_end);
        match self.form {
            Form::Object => {}
            Form::Partial => {
                object["kind"] = json!("PartialObjectMetadata");
                object["apiVersion"] = json!("meta.k8s.io/v1");
            }
            Form::Table(_) => {
                let meta = json!({"resourceVersion": revision.to_string()});
                let row = json!({"cells": [], "object": partial(&object)});
                object = table::table(Value::Null, vec![row], meta);
            }
        }
        line("BOOKMARK", object.to_string().as_bytes()).into()
    }

    /// An error inside a watch.
    pub fn error_event(&self, status: &Status) -> Bytes {
        line("ERROR", status.to_value().to_string().as_bytes()).into()
    }
}

fn begin_line(out: &mut Vec<u8>, kind: &str) {
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
}

fn line(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(object.len() + 40);
    begin_line(&mut out, kind);
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
    out
}

/// The object with kind and apiVersion.
pub fn typed(resource: &Resource, mut object: Value) -> Value {
    object["kind"] = json!(resource.kind);
    object["apiVersion"] = json!(resource.api_version());
    object
}

fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}
