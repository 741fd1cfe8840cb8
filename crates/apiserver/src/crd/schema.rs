//! The schema of a custom resource, read once per definition: what is pruned, what is defaulted.
//!
//! Only structural schemas get here (see `structural`), so every field that can be specified has a
//! node in the tree and `allOf`, `anyOf`, `oneOf` and `not` hold nothing but further checks.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

use super::pattern::Pattern;
use crate::size_limits::{MAX_BYTES, text_len};

use crate::field_path::FieldPath;

/// The JSON type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// `object`.
    Object,
    /// `array`.
    Array,
    /// `string`.
    String,
    /// `integer`.
    Integer,
    /// `number`.
    Number,
    /// `boolean`.
    Boolean,
}

impl Type {
    /// The type of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "object" => Self::Object,
            "array" => Self::Array,
            "string" => Self::String,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ => return None,
        })
    }

    /// The name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// Fields of an object that no property names.
#[derive(Debug, Clone)]
pub enum Additional {
    /// They may hold anything.
    Any,
    /// They have a schema of their own.
    Schema(Box<Schema>),
}

/// Limits on a value, beside its type.
#[derive(Debug, Clone, Default)]
pub struct Checks {
    pub allowed: Option<Allowed>,
    /// `format`.
    pub format: Option<String>,
    /// `pattern`.
    pub pattern: Option<Pattern>,
    /// `minLength`, `maxLength`.
    pub length: (Option<u64>, Option<u64>),
    /// `minItems`, `maxItems`.
    pub items: (Option<u64>, Option<u64>),
    /// `minProperties`, `maxProperties`.
    pub properties: (Option<u64>, Option<u64>),
    /// `minimum` and whether it is exclusive.
    pub minimum: Option<(f64, bool)>,
    /// `maximum` and whether it is exclusive.
    pub maximum: Option<(f64, bool)>,
    /// `multipleOf`.
    pub multiple_of: Option<f64>,
    /// Fields that must be there.
    pub required: Vec<String>,
    /// All of these must hold.
    pub all_of: Vec<Schema>,
    /// One or more of these must hold.
    pub any_of: Vec<Schema>,
    /// Exactly one of these must hold.
    pub one_of: Vec<Schema>,
    /// This must not hold.
    pub not: Option<Box<Schema>>,
}

/// Allowed values, in order and to look them up.
#[derive(Debug, Clone)]
pub struct Allowed {
    /// As the schema has them.
    pub listed: Vec<Value>,
    /// The same.
    pub known: HashSet<Value>,
}

/// What identifies the elements of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListKind {
    /// The list is one value.
    Atomic,
    /// Elements are scalars, each at most once.
    Set,
    /// Elements are objects, identified by these fields.
    Map(Vec<String>),
}

/// One node of a schema.
#[derive(Debug, Clone)]
pub struct Schema {
    /// Type, absent where anything goes.
    pub kind: Option<Type>,
    /// Whether integers and strings are both fine.
    pub int_or_string: bool,
    /// Whether null is a value.
    pub nullable: bool,
    /// Whether unknown fields stay.
    pub preserve: bool,
    /// Whether the object has kind, apiVersion and metadata of its own.
    pub embedded: bool,
    /// Whether a map is one value.
    pub atomic_map: bool,
    /// What identifies list elements.
    pub list: ListKind,
    pub properties: BTreeMap<String, Schema>,
    pub additional: Option<Additional>,
    pub items: Option<Box<Schema>>,
    /// What an absent value becomes.
    pub default: Option<Value>,
    /// Fields that become something when they are absent.
    pub defaulted: Vec<String>,
    pub checks: Box<Checks>,
}

impl Schema {
    pub fn parse(schema: &Value) -> Self {
        let flag = |name: &str| schema[name] == true;
        let one = |name: &str| schema.get(name).filter(|v| v.is_object()).map(Self::parse);
        let properties = schema["properties"].as_object().into_iter().flatten();
        let additional = match &schema["additionalProperties"] {
            Value::Bool(true) => Some(Additional::Any),
            object @ Value::Object(_) => Some(Additional::Schema(Box::new(Self::parse(object)))),
            _ => None,
        };
        let list = match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => ListKind::Set,
            Some("map") => ListKind::Map(strings(&schema["x-kubernetes-list-map-keys"])),
            _ => ListKind::Atomic,
        };
        let properties: BTreeMap<String, Self> =
            properties.map(|(k, v)| (k.clone(), Self::parse(v))).collect();
        let defaulted = properties.iter().filter(|(_, field)| field.default.is_some());
        Self {
            defaulted: defaulted.map(|(name, _)| name.clone()).collect(),
            kind: schema["type"].as_str().and_then(Type::parse),
            int_or_string: flag("x-kubernetes-int-or-string"),
            nullable: flag("nullable"),
            preserve: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            atomic_map: schema["x-kubernetes-map-type"] == "atomic",
            list,
            properties,
            additional,
            items: one("items").map(Box::new),
            default: schema.get("default").cloned(),
            checks: Box::new(Checks::parse(schema)),
        }
    }

    /// Whether something absent becomes a value.
    pub fn has_defaults(&self) -> bool {
        let below = self.properties.values().chain(self.items.as_deref());
        let other = match &self.additional {
            Some(Additional::Schema(schema)) => Some(&**schema),
            _ => None,
        };
        self.default.is_some() || below.chain(other).any(Self::has_defaults)
    }

    /// The schema of a field.
    pub fn field(&self, name: &str) -> Option<&Self> {
        self.properties.get(name).or(match &self.additional {
            Some(Additional::Schema(schema)) => Some(schema),
            _ => None,
        })
    }
}

impl Checks {
    fn parse(schema: &Value) -> Self {
        let number = |name: &str| schema[name].as_u64();
        let list = |name: &str| -> Vec<Schema> {
            schema[name].as_array().into_iter().flatten().map(Schema::parse).collect()
        };
        let bound = |name: &str, exclusive: &str| {
            schema[name].as_f64().map(|value| (value, schema[exclusive] == true))
        };
        Self {
            allowed: schema["enum"].as_array().map(|listed| Allowed {
                listed: listed.clone(),
                known: listed.iter().cloned().collect(),
            }),
            format: schema["format"].as_str().map(str::to_owned),
            pattern: schema["pattern"].as_str().map(Pattern::new),
            length: (number("minLength"), number("maxLength")),
            items: (number("minItems"), number("maxItems")),
            properties: (number("minProperties"), number("maxProperties")),
            minimum: bound("minimum", "exclusiveMinimum"),
            maximum: bound("maximum", "exclusiveMaximum"),
            multiple_of: schema["multipleOf"].as_f64(),
            required: strings(&schema["required"]),
            all_of: list("allOf"),
            any_of: list("anyOf"),
            one_of: list("oneOf"),
            not: schema.get("not").filter(|v| v.is_object()).map(|v| Box::new(Schema::parse(v))),
        }
    }
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// Drops fields the schema does not have; their paths are added to `dropped`.
pub(crate) fn prune(
    schema: &Schema,
    value: &mut Value,
    path: FieldPath<'_>,
    dropped: &mut Vec<String>,
) {
    match value {
        Value::Object(map) => {
            let known = |name: &str| {
                schema.properties.contains_key(name)
                    || schema.additional.is_some()
                    || (schema.embedded && matches!(name, "kind" | "apiVersion" | "metadata"))
            };
            if !schema.preserve {
                map.retain(|name, _| {
                    let keep = known(name);
                    if !keep {
                        FieldPath::Field(&path, name).report_to(dropped);
                    }
                    keep
                });
            }
            for (name, value) in map.iter_mut() {
                if let Some(field) = schema.field(name) {
                    prune(field, value, FieldPath::Field(&path, name), dropped);
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = &schema.items else { return };
            for (index, item) in items.iter_mut().enumerate() {
                prune(schema, item, FieldPath::Element(&path, index), dropped);
            }
        }
        _ => {}
    }
}

/// What defaults may add to one object. A default of a few kilobytes in a list of many empty elements
/// would make gigabytes of it.
const MAX_ADDED: usize = MAX_BYTES;

/// The defaults of a schema would make an object too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLarge;

/// Fills in defaults, then drops nulls that are no value of their field.
///
/// # Errors
/// When more would be added than an object can hold; some defaults are filled in then.
pub(super) fn default(schema: &Schema, value: &mut Value) -> Result<(), TooLarge> {
    fill(schema, value, &mut MAX_ADDED.clone())
}

fn fill(schema: &Schema, value: &mut Value, room: &mut usize) -> Result<(), TooLarge> {
    match value {
        Value::Object(map) => {
            for name in &schema.defaulted {
                let Some(field) = schema.properties.get(name) else { continue };
                let Some(default) = &field.default else { continue };
                match map.get(name) {
                    Some(Value::Null) if !field.nullable => {}
                    None => {}
                    Some(_) => continue,
                }
                let bytes = text_len(default) + name.len() + 4;
                *room = room.checked_sub(bytes).ok_or(TooLarge)?;
                map.insert(name.clone(), default.clone());
            }
            map.retain(|name, value| {
                !value.is_null() || schema.field(name).is_none_or(|field| field.nullable)
            });
            for (name, value) in map.iter_mut() {
                if let Some(field) = schema.field(name) {
                    fill(field, value, room)?;
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = &schema.items else { return Ok(()) };
            for item in items {
                fill(schema, item, room)?;
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn widget() -> Schema {
        Schema::parse(&json!({"type": "object", "properties": {"spec": {
            "type": "object", "default": {}, "properties": {
                "mode": {"type": "string", "default": "fast"},
                "nul": {"type": "string", "nullable": true, "default": "d"},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"strict": {"type": "object", "properties": {}}}},
                "emb": {"type": "object", "additionalProperties": {"type": "string"}},
                "raw": {"type": "object", "x-kubernetes-embedded-resource": true},
                "items": {"type": "array", "items": {"type": "object",
                    "properties": {"p": {"type": "string", "default": "TCP"}}}},
            },
        }}}))
    }

    #[test]
    fn unknown_fields_go_unless_they_are_preserved() {
        let mut value = json!({"other": 1, "spec": {
            "junk": 1, "free": {"any": [1], "strict": {"x": 1}}, "emb": {"k": "v"},
            "raw": {"kind": "A", "x": 1}, "items": [{"junk": 1}],
        }});
        let mut dropped = Vec::new();
        prune(&widget(), &mut value, FieldPath::Top(""), &mut dropped);
        dropped.sort();
        let wanted =
            ["other", "spec.free.strict.x", "spec.items[0].junk", "spec.junk", "spec.raw.x"];
        assert_eq!(dropped, wanted);
        assert_eq!(
            value,
            json!({"spec": {"free": {"any": [1], "strict": {}}, "emb": {"k": "v"},
                "raw": {"kind": "A"}, "items": [{}]}})
        );
    }

    #[test]
    fn defaults_come_and_nulls_go() {
        let rows = [
            (json!({}), json!({"spec": {"mode": "fast", "nul": "d"}})),
            (
                json!({"spec": {"mode": null, "nul": null, "emb": {"x": null}}}),
                json!({"spec": {"mode": "fast", "nul": null, "emb": {}}}),
            ),
            (
                json!({"spec": {"items": [{}, {"p": "UDP"}]}}),
                json!({"spec": {"mode": "fast", "nul": "d",
                    "items": [{"p": "TCP"}, {"p": "UDP"}]}}),
            ),
        ];
        for (mut value, wanted) in rows {
            default(&widget(), &mut value).unwrap();
            assert_eq!(value, wanted);
        }
    }

    #[test]
    fn defaults_that_would_fill_the_memory_are_refused() {
        let schema = Schema::parse(&json!({"type": "array", "items": {"type": "object",
            "properties": {"p": {"type": "string", "default": "x".repeat(20_000)}}}}));
        let mut many = json!(vec![json!({}); 400_000]);
        assert_eq!(default(&schema, &mut many), Err(TooLarge));
        assert_eq!(default(&schema, &mut json!(vec![json!({}); 100])), Ok(()));
    }
}
