//! From JSON to the values of expressions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use base64::Engine as _;
use kube_cel::cel::Value;
use kube_cel::cel::objects::{Key, Map};

use super::calls;
use crate::crd::typing::escaped;

/// What a place of a schema holds, as far as values are read otherwise for it.
#[derive(Debug, Default)]
pub(in super::super) struct Kind {
    /// `format`, where it makes another value of a text.
    pub(in super::super) format: Format,
    /// Fields by their names, with the names that expressions have for them.
    pub(in super::super) fields: BTreeMap<String, (Arc<String>, Kind)>,
    pub(in super::super) items: Option<Box<Kind>>,
    pub(in super::super) others: Option<Box<Kind>>,
    /// Whether the names of fields are data.
    pub(in super::super) is_map: bool,
    /// Whether it is an object with kind, apiVersion and metadata.
    pub(in super::super) embedded: bool,
}

/// Texts that stand for something else.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Format {
    #[default]
    Plain,
    Time,
    Duration,
    Bytes,
}

impl Kind {
    pub(in super::super) fn of(schema: &serde_json::Value) -> Self {
        let below = |name: &str| {
            schema
                .get(name)
                .filter(|below| below.is_object())
                .map(|below| Box::new(Self::of(below)))
        };
        let fields = schema["properties"].as_object().into_iter().flatten();
        let fields = fields
            .map(|(name, schema)| (name.clone(), (Arc::new(escaped(name)), Self::of(schema))));
        Self {
            format: match schema["format"].as_str() {
                _ if schema["x-kubernetes-int-or-string"] == true => Format::Plain,
                Some("date-time") => Format::Time,
                Some("duration") => Format::Duration,
                Some("byte") => Format::Bytes,
                _ => Format::Plain,
            },
            fields: fields.collect(),
            items: below("items"),
            others: below("additionalProperties"),
            is_map: schema["additionalProperties"].is_object()
                || schema["additionalProperties"] == true,
            embedded: schema["x-kubernetes-embedded-resource"] == true,
        }
    }

    /// The value of this place.
    pub(in super::super) fn read(&self, value: &serde_json::Value) -> Value {
        read(Some(self), value)
    }
}

fn read(kind: Option<&Kind>, value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(flag) => Value::Bool(*flag),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) => Value::Int(int),
            (None, Some(uint)) => Value::UInt(uint),
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => read_text(kind, text),
        serde_json::Value::Array(list) => {
            let items = kind.and_then(|kind| kind.items.as_deref());
            Value::List(Arc::new(list.iter().map(|item| read(items, item)).collect()))
        }
        serde_json::Value::Object(object) => {
            let mut map: HashMap<Key, Value> = HashMap::with_capacity(object.len());
            for (name, value) in object {
                let known = kind.and_then(|kind| kind.fields.get(name));
                let others = kind.and_then(|kind| kind.others.as_deref());
                let value = read(known.map(|(_, kind)| kind).or(others), value);
                let name = match known {
                    Some((name, _)) => Arc::clone(name),
                    None if kind.is_some_and(|kind| kind.is_map) => Arc::new(name.clone()),
                    None => Arc::new(escaped(name)),
                };
                map.insert(Key::String(name), value);
            }
            if kind.is_some_and(|kind| kind.embedded) {
                let key = |name: &str| Key::String(Arc::new(name.to_owned()));
                for name in ["apiVersion", "kind"] {
                    map.entry(key(name)).or_insert_with(|| Value::String(Arc::default()));
                }
                map.entry(key("metadata"))
                    .or_insert_with(|| Value::Map(Map { map: Arc::default() }));
            }
            Value::Map(Map { map: Arc::new(map) })
        }
    }
}

/// A text, or what it stands for; one that stands for nothing was refused before, or stays a text.
fn read_text(kind: Option<&Kind>, text: &str) -> Value {
    let plain = || Value::String(Arc::new(text.to_owned()));
    match kind.map_or(Format::Plain, |kind| kind.format) {
        Format::Plain => plain(),
        Format::Time => calls::native("timestamp", None, vec![plain()]).unwrap_or_else(|_| plain()),
        Format::Duration => {
            calls::native("duration", None, vec![plain()]).unwrap_or_else(|_| plain())
        }
        Format::Bytes => match base64::engine::general_purpose::STANDARD.decode(text) {
            Ok(bytes) => Value::Bytes(Arc::new(bytes)),
            Err(_) => plain(),
        },
    }
}
