//! From stored objects to bytes, in the form the client asked for.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::negotiate::{Form, Include};
use super::pieces::{LARGE, Pieces};
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

    /// One object as a response.
    pub fn object(&self, written: &Written) -> Pieces {
        let mut out = Pieces::default();
        match written {
            Written::Stored(stored) => match self.form {
                Form::Object => self.whole(stored, &mut out),
                _ => self.tree(self.resource.to_version(stored.value()), &mut out),
            },
            Written::Dry(value) => self.tree(self.resource.to_version(value.clone()), &mut out),
        }
        out
    }

    /// The object with its kind in front.
    fn whole(&self, stored: &Stored, out: &mut Pieces) {
        let body = self.body(stored);
        out.reserve(self.prefix().len() + body.len());
        out.write(self.prefix().as_bytes());
        out.share(body.slice(1..));
    }

    /// The object without its kind: as it is stored, when it is shown so.
    fn body(&self, stored: &Stored) -> Bytes {
        if self.resource.has_conversion() {
            return self.resource.to_version(stored.value()).to_string().into_bytes().into();
        }
        stored.body.clone()
    }

    fn tree(&self, object: Value, out: &mut Pieces) {
        let response = match self.form {
            Form::Object => typed(&self.resource, object),
            Form::Partial => partial(&object),
            Form::Table(include) => {
                let meta = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                let row = self.row(object, include);
                table::table(table::columns(&self.resource), vec![row], meta)
            }
        };
        out.write(response.to_string().as_bytes());
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

    /// A list as a response: what stands before and behind its elements.
    fn frame(&self, listed: &Listed) -> (String, String) {
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
        // Fields are in the order of their names, but for plain lists.
        match self.form {
            Form::Object => {
                let (kind, version) = (&self.resource.list_kind, self.resource.api_version());
                let (kind, version) = (json!(kind), json!(version));
                let head = format!(
                    "{{\"kind\":{kind},\"apiVersion\":{version},\"metadata\":{meta},\"items\":["
                );
                (head, "]}".to_owned())
            }
            Form::Partial => (
                "{\"apiVersion\":\"meta.k8s.io/v1\",\"items\":[".to_owned(),
                format!("],\"kind\":\"PartialObjectMetadataList\",\"metadata\":{meta}}}"),
            ),
            Form::Table(_) => {
                let columns = table::columns(&self.resource);
                let head = format!(
                    "{{\"apiVersion\":\"meta.k8s.io/v1\",\"columnDefinitions\":{columns},\
                     \"kind\":\"Table\",\"metadata\":{meta},\"rows\":["
                );
                (head, "]}".to_owned())
            }
        }
    }

    fn element(&self, stored: &Stored, out: &mut Pieces) {
        let show = || self.resource.to_version(stored.value());
        match self.form {
            // Their items say what they are, unlike those of built-in kinds.
            Form::Object if self.resource.custom.is_some() => self.whole(stored, out),
            Form::Object => out.share(self.body(stored)),
            Form::Partial => out.write(partial(&show()).to_string().as_bytes()),
            Form::Table(include) => out.write(self.row(show(), include).to_string().as_bytes()),
        }
    }

    /// A list as a response, written as it is read: a client that does not read keeps no more of it
    /// in memory than one piece.
    pub fn list(self, listed: Listed) -> impl Iterator<Item = Bytes> + Send + 'static {
        let (head, tail) = self.frame(&listed);
        let mut out = Pieces::default();
        out.write(head.as_bytes());
        let mut tail = Some(tail);
        let mut objects = listed.objects.into_iter();
        let mut separator: &[u8] = b"";
        std::iter::from_fn(move || {
            while out.len() < LARGE
                && let Some(object) = objects.next()
            {
                out.write(separator);
                separator = b",";
                self.element(&object, &mut out);
            }
            if out.len() < LARGE
                && let Some(tail) = tail.take()
            {
                out.write(tail.as_bytes());
            }
            out.take()
        })
    }

    /// Appends one event of a watch, with its line end.
    pub fn event(&mut self, out: &mut Pieces, kind: &str, stored: &Stored) {
        match self.form {
            Form::Object => {
                out.reserve(self.prefix().len() + stored.body.len() + 40);
                begin_line(out, kind);
                self.whole(stored, out);
                out.write(b"}\n");
            }
            Form::Partial => {
                let object = partial(&self.resource.to_version(stored.value())).to_string();
                line(out, kind, object.as_bytes());
            }
            Form::Table(include) => {
                let object = self.table_event(stored, include);
                line(out, kind, &object);
            }
        }
    }

    fn table_event(&mut self, stored: &Stored, include: Include) -> Vec<u8> {
        let object = self.resource.to_version(stored.value());
        let meta = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
        let row = self.row(object, include);
        let columns = if self.columns_sent { Value::Null } else { table::columns(&self.resource) };
        self.columns_sent = true;
        table::table(columns, vec![row], meta).to_string().into_bytes()
    }

    /// A bookmark; the one after the initial objects is annotated.
    pub fn bookmark(&self, out: &mut Pieces, revision: u64, initial_end: bool) {
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
        line(out, "BOOKMARK", object.to_string().as_bytes());
    }

    /// An error inside a watch.
    pub fn error_event(&self, out: &mut Pieces, status: &Status) {
        line(out, "ERROR", status.to_value().to_string().as_bytes());
    }
}

fn begin_line(out: &mut Pieces, kind: &str) {
    out.write(b"{\"type\":\"");
    out.write(kind.as_bytes());
    out.write(b"\",\"object\":");
}

fn line(out: &mut Pieces, kind: &str, object: &[u8]) {
    begin_line(out, kind);
    out.write(object);
    out.write(b"}\n");
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
