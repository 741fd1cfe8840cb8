//! Which field of an object has the wrong type.

use serde_json::{Map, Value};

use super::{base64_fault, time_fault, type_name};
use crate::registry::facts;

/// The first field whose value does not fit its type, in the words of Go's JSON decoder.
pub(crate) fn type_fault(
    schemas: &Map<String, Value>,
    name: &str,
    value: &Value,
) -> Option<String> {
    Walk { schemas }.record(name, value, &mut Vec::new())
}

struct Walk<'a> {
    schemas: &'a Map<String, Value>,
}

/// Where a value stands: the type it is a field of, and the field.
#[derive(Clone, Copy)]
struct TypedField<'a> {
    owner: &'a str,
    field: &'a str,
}

impl Walk<'_> {
    fn record(&self, name: &str, value: &Value, path: &mut Vec<String>) -> Option<String> {
        let fields = self.schemas.get(name)?.get("properties")?.as_object()?;
        for (field, value) in value.as_object()? {
            let Some(schema) = fields.get(field) else { continue };
            path.push(field.clone());
            let place = TypedField { owner: name, field };
            if let Some(fault) = self.value(schema, value, place, path) {
                return Some(fault);
            }
            path.pop();
        }
        None
    }

    fn value(
        &self,
        schema: &Value,
        value: &Value,
        place: TypedField<'_>,
        path: &mut Vec<String>,
    ) -> Option<String> {
        if value.is_null() {
            return None;
        }
        if let Some(target) = reference(schema) {
            return self.referred(target, value, place, path);
        }
        let kind = schema["type"].as_str().unwrap_or_default();
        let wrong = || Some(self.wrong(schema, value, place, path));
        match (kind, value) {
            ("string", Value::String(text)) if schema["format"] == "byte" => base64_fault(text),
            ("string", Value::String(_))
            | ("boolean", Value::Bool(_))
            | ("number", Value::Number(_)) => None,
            ("integer", Value::Number(number)) if number.is_i64() || number.is_u64() => None,
            ("array", Value::Array(items)) => {
                items.iter().find_map(|item| self.value(&schema["items"], item, place, path))
            }
            ("object", Value::Object(map)) => map.values().find_map(|item| {
                let inner = schema.get("additionalProperties")?;
                self.value(inner, item, place, path)
            }),
            ("", _) => None,
            _ => wrong(),
        }
    }

    fn referred(
        &self,
        target: &str,
        value: &Value,
        place: TypedField<'_>,
        path: &mut Vec<String>,
    ) -> Option<String> {
        match (target.rsplit('.').next().unwrap_or_default(), value) {
            ("Time", Value::String(text)) => time_fault(text, false),
            ("MicroTime", Value::String(text)) => time_fault(text, true),
            ("Quantity" | "IntOrString" | "RawExtension" | "JSON" | "FieldsV1", _) => None,
            (_, Value::Object(_)) => self.record(target, value, path),
            (name, _) if self.schemas.get(target).is_some_and(|s| s["type"] == "object") => {
                let go = facts::go_type(place.owner, place.field)
                    .map_or(format!("v1.{name}"), str::to_owned);
                Some(told(value, place.owner, path, &go))
            }
            _ => None,
        }
    }

    fn wrong(
        &self,
        schema: &Value,
        value: &Value,
        place: TypedField<'_>,
        path: &[String],
    ) -> String {
        let go = match facts::go_type(place.owner, place.field) {
            // The named type is that of the list; an element of it lacks the brackets.
            Some(named) if schema["type"] != "array" => named.trim_start_matches("[]").to_owned(),
            Some(named) => named.to_owned(),
            None => go_type(schema),
        };
        told(value, place.owner, path, &go)
    }
}

fn reference(schema: &Value) -> Option<&str> {
    let target = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str())?;
    target.rsplit('/').next()
}

/// The type of a field as Go names it.
fn go_type(schema: &Value) -> String {
    if let Some(target) = reference(schema) {
        return match target.rsplit('.').next().unwrap_or_default() {
            "Quantity" => "resource.Quantity".into(),
            name => format!("v1.{name}"),
        };
    }
    match (schema["type"].as_str(), schema["format"].as_str()) {
        (Some("string"), Some("byte")) => "[]uint8".into(),
        (Some("string"), _) => "string".into(),
        (Some("boolean"), _) => "bool".into(),
        (Some("integer"), Some(format)) => format.into(),
        (Some("integer"), None) => "int64".into(),
        (Some("number"), _) => "float64".into(),
        (Some("array"), _) => format!("[]{}", go_type(&schema["items"])),
        _ => format!("map[string]{}", go_type(&schema["additionalProperties"])),
    }
}

fn told(value: &Value, owner: &str, path: &[String], go: &str) -> String {
    let is = match value {
        Value::Number(number) if go.starts_with("int") => format!("number {number}"),
        other => type_name(other).to_owned(),
    };
    let owner = owner.rsplit('.').next().unwrap_or_default();
    let path = path.join(".");
    format!("json: cannot unmarshal {is} into Go struct field {owner}.{path} of type {go}")
}
