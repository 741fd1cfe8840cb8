//! Types as values: what `type` gives, and the names it is compared with.

use std::sync::Arc;

use kube_cel::cel::Value;
use kube_cel::cel::objects::Opaque;

/// Types that expressions can name.
const NAMES: &[&str] =
    &["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];

/// A type, by its name.
#[derive(Debug, PartialEq, Eq)]
struct Type(String);

impl Opaque for Type {
    fn runtime_type_name(&self) -> &'static str {
        "type"
    }
}

fn value(name: &str) -> Value {
    Value::Opaque(Arc::new(Type(name.to_owned())))
}

/// The type that a name stands for.
pub(super) fn named(name: &str) -> Option<Value> {
    NAMES.contains(&name).then(|| value(name))
}

/// The type of a value.
pub(super) fn of(of: &Value) -> Value {
    value(match of {
        Value::Bool(_) => "bool",
        Value::Bytes(_) => "bytes",
        Value::Float(_) => "double",
        Value::Int(_) => "int",
        Value::List(_) => "list",
        Value::Map(_) => "map",
        Value::Null => "null_type",
        Value::String(_) => "string",
        Value::UInt(_) => "uint",
        Value::Timestamp(_) => "google.protobuf.Timestamp",
        Value::Duration(_) => "google.protobuf.Duration",
        Value::Opaque(other) => other.runtime_type_name(),
        _ => "function",
    })
}
