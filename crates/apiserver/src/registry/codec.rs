//! From a client's JSON to the stored form.
//!
//! Built-in kinds pass through their Rust types: that checks every field's type, drops fields the
//! kind does not have, and shows which were dropped by comparing what went in with what came out.

use std::sync::Arc;

use schemars::{JsonSchema, SchemaGenerator};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use longshore_core::model::Quantity;

use crate::crd::Custom;
use crate::field_path::FieldPath;

/// Why a value does not fit the type of its kind.
#[derive(Debug, thiserror::Error)]
pub enum Misfit {
    #[error(transparent)]
    Type(#[from] serde_json::Error),
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Quantity,
    /// In the words of Go.
    #[error("{0}")]
    Time(String),
}

/// Checks and cleans an object of a built-in kind.
pub(crate) type TypedCodec = fn(&Value) -> Result<Value, Misfit>;

/// Adds the schema of a type, and of all it refers to.
pub(crate) type Describe = fn(&mut SchemaGenerator) -> schemars::Schema;

/// A Rust type that stands for a kind.
#[derive(Clone)]
pub struct Typed {
    pub codec: TypedCodec,
    /// The name of the type in published schemas.
    pub name: String,
    pub describe: Describe,
}

/// A Rust type as a kind.
pub(crate) fn of<T: Serialize + DeserializeOwned + JsonSchema>() -> Typed {
    let name = T::schema_name().into_owned();
    Typed { codec: typed::<T>, name, describe: SchemaGenerator::subschema_for::<T> }
}

impl Typed {
    /// The same with checks of its own.
    pub fn checked_by(self, codec: TypedCodec) -> Self {
        Self { codec, ..self }
    }
}

/// How objects of a kind are checked and cleaned.
#[derive(Clone)]
pub enum Codec {
    /// By the Rust type of a built-in kind, after its quantities were made canonical.
    Typed { check: TypedCodec, quantities: &'static [&'static str] },
    /// By the schema of a definition.
    Custom(Arc<Custom>),
}

/// The codec of a built-in kind.
pub(crate) fn typed<T: Serialize + DeserializeOwned>(object: &Value) -> Result<Value, Misfit> {
    Ok(serde_json::to_value(T::deserialize(object)?)?)
}

/// A decoded object and the fields that were dropped.
#[derive(Debug)]
pub struct Decoded {
    /// The object, without kind and apiVersion.
    pub object: Value,
    /// Paths of unknown fields.
    pub unknown: Vec<String>,
}

/// Why an object could not be decoded.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct Undecodable {
    pub why: String,
    /// The object, when it is one of its types that does not fit.
    pub input: Option<Value>,
    /// Whether it would be too large.
    pub too_large: bool,
}

impl From<Misfit> for Undecodable {
    fn from(misfit: Misfit) -> Self {
        Self { why: misfit.to_string(), input: None, too_large: false }
    }
}

/// Runs the codec over an object; `defaults` fills in those that the codec itself knows.
/// The error is what is wrong when a field has the wrong type.
pub(crate) fn decode(
    codec: &Codec,
    mut input: Value,
    defaults: bool,
) -> Result<Decoded, Undecodable> {
    if let Some(map) = input.as_object_mut() {
        map.remove("kind");
        map.remove("apiVersion");
    }
    let (check, quantities) = match codec {
        Codec::Typed { check, quantities } => (check, *quantities),
        Codec::Custom(custom) => return custom.decode(input, defaults),
    };
    for pattern in quantities {
        let parts: Vec<&str> = pattern.split('.').collect();
        canonical(&mut input, &parts)?;
    }
    let mut object = match check(&input) {
        Ok(object) => object,
        Err(misfit) => return Err(Undecodable { input: Some(input), ..misfit.into() }),
    };
    if let Some(map) = object.as_object_mut() {
        map.remove("kind");
        map.remove("apiVersion");
    }
    let mut unknown = Vec::new();
    dropped(&input, &object, FieldPath::Top(""), &mut unknown);
    Ok(Decoded { object, unknown })
}

/// Rewrites the quantities at a pattern such as `spec.containers.*.resources.*.*`.
fn canonical(value: &mut Value, parts: &[&str]) -> Result<(), Misfit> {
    let Some((first, rest)) = parts.split_first() else {
        return canonical_quantity(value);
    };
    match value {
        Value::Object(map) if *first == "*" => {
            map.values_mut().try_for_each(|v| canonical(v, rest))
        }
        Value::Array(items) if *first == "*" => {
            items.iter_mut().try_for_each(|v| canonical(v, rest))
        }
        Value::Object(map) => map.get_mut(*first).map_or(Ok(()), |v| canonical(v, rest)),
        _ => Ok(()),
    }
}

fn canonical_quantity(value: &mut Value) -> Result<(), Misfit> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Null => return Ok(()),
        _ => String::new(),
    };
    let quantity: Quantity = text.parse().map_err(|_| Misfit::Quantity)?;
    *value = Value::String(quantity.to_string());
    Ok(())
}

/// Collects what the codec dropped. Nulls mean "not set" and may go silently.
pub(crate) fn dropped(
    input: &Value,
    output: &Value,
    path: FieldPath<'_>,
    unknown: &mut Vec<String>,
) {
    match (input, output) {
        (Value::Object(input), Value::Object(output)) => {
            for (key, value) in input {
                let path = FieldPath::Field(&path, key);
                match output.get(key) {
                    Some(kept) => dropped(value, kept, path, unknown),
                    None if value.is_null() => {}
                    None => path.report_to(unknown),
                }
            }
        }
        (Value::Array(input), Value::Array(output)) => {
            for (index, (value, kept)) in input.iter().zip(output).enumerate() {
                dropped(value, kept, FieldPath::Element(&path, index), unknown);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use serde_json::json;

    fn codec() -> Codec {
        Codec::Typed { check: typed::<PersistentVolumeClaim>, quantities: &["spec.resources.*.*"] }
    }

    #[test]
    fn unknown_fields_are_found_at_any_depth() {
        let claim = json!({
            "kind": "PersistentVolumeClaim", "apiVersion": "v1",
            "metadata": {"name": "a", "nope": 1, "labels": null},
            "spec": {"resources": {"requests": {"storage": 1_073_741_824}, "claims2": 1}},
        });
        let decoded = decode(&codec(), claim, true).unwrap();
        assert_eq!(decoded.unknown, ["metadata.nope", "spec.resources.claims2"]);
        assert_eq!(decoded.object["spec"]["resources"]["requests"]["storage"], "1073741824");
        assert!(decoded.object.get("kind").is_none());
    }

    #[test]
    fn wrong_types_and_quantities_are_refused() {
        let run = |spec| decode(&codec(), json!({"spec": spec}), true);
        assert!(run(json!({"accessModes": "ReadWriteOnce"})).is_err());
        let why = run(json!({"resources": {"requests": {"storage": "lots"}}})).unwrap_err().why;
        assert!(why.starts_with("quantities must match"), "{why}");
        let rewritten = run(json!({"resources": {"requests": {"storage": "1024Mi"}}})).unwrap();
        assert_eq!(rewritten.object["spec"]["resources"]["requests"]["storage"], "1Gi");
    }
}
