//! Checks that several kinds share.

use serde_json::Value;

use longshore_core::model::Quantity;

use super::names;
use crate::error::{Cause, Causes};

/// A string field, empty when absent.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    find(value, pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Follows a pointer of plain field names and indexes; [`Value::pointer`] would unescape every step again.
fn find<'a>(value: &'a Value, pointer: &str) -> Option<&'a Value> {
    debug_assert!(!pointer.contains('~'), "{pointer} is not plain");
    pointer.split('/').skip(1).try_fold(value, |value, step| match value {
        Value::Object(map) => map.get(step),
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        _ => None,
    })
}

/// Whether a field is absent or null.
pub(crate) fn unset(value: &Value, pointer: &str) -> bool {
    find(value, pointer).is_none_or(Value::is_null)
}

/// The elements of a list field.
pub(crate) fn items<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    find(value, pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Sets a field unless the client did.
pub(crate) fn set_default(object: &mut Value, field: &str, value: impl Into<Value>) {
    if object.get(field).is_none_or(Value::is_null) {
        object[field] = value.into();
    }
}

/// Removes fields that are empty lists or maps, as Go's encoding does with `omitempty`.
pub(crate) fn drop_empty(object: &mut Value, fields: &[&str]) {
    let Some(map) = object.as_object_mut() else { return };
    for field in fields {
        let empty = |value: &Value| match value {
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        if map.get(*field).is_some_and(empty) {
            map.remove(*field);
        }
    }
}

/// Equal, where absent, null, `{}` and `[]` are the same.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    fn empty(v: &Value) -> bool {
        match v {
            Value::Null => true,
            Value::Object(map) => map.values().all(empty),
            Value::Array(items) => items.is_empty(),
            _ => false,
        }
    }
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            x.iter().all(|(k, v)| y.get(k).map_or_else(|| empty(v), |w| same(v, w)))
                && y.iter().all(|(k, w)| x.contains_key(k) || empty(w))
        }
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(v, w)| same(v, w))
        }
        (x, y) => x == y || (empty(x) && empty(y)),
    }
}

/// The value without what [`same`] takes for absent: of two that are the same this is equal.
pub(crate) fn without_empty(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().map(|(key, value)| (key.clone(), without_empty(value)));
            let kept: serde_json::Map<_, _> = kept.filter(|(_, value)| !value.is_null()).collect();
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        Value::Array(items) if items.is_empty() => Value::Null,
        Value::Array(items) => items.iter().map(without_empty).collect(),
        other => other.clone(),
    }
}

/// The value of a field, null when absent.
pub(crate) fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    static NULL: Value = Value::Null;
    find(value, pointer).unwrap_or(&NULL)
}

pub(crate) fn quantity(value: &Value, pointer: &str) -> Option<Quantity> {
    find(value, pointer)?.as_str()?.parse().ok()
}

/// A value must be one of a few; empty counts as missing unless allowed.
pub(crate) fn one_of(causes: &mut Causes, field: &str, value: &str, known: &[&str]) {
    if !known.contains(&value) {
        causes.push(Cause::not_supported(field, value, known));
    }
}

/// An optional name must be a DNS subdomain.
pub(crate) fn subdomain(causes: &mut Causes, field: &str, value: &str) {
    causes.extend(Cause::each(field, value, names::subdomain(value)));
}

/// A CSI driver's name.
pub(crate) fn driver_name(causes: &mut Causes, field: &str, value: &str) {
    if value.is_empty() {
        causes.push(Cause::required(field, ""));
        return;
    }
    if value.len() > 63 {
        causes.push(Cause::too_long(field, 63));
    }
    causes.extend(Cause::each(field, value, names::subdomain(&value.to_lowercase())));
}

/// A provisioner's name: qualified, and compared without case.
pub(crate) fn provisioner(causes: &mut Causes, field: &str, value: &str) {
    if value.is_empty() {
        causes.push(Cause::required(field, ""));
    } else {
        let value = value.to_lowercase();
        causes.extend(Cause::each(field, &value, names::qualified(&value)));
    }
}

/// Words of an access mode, as errors list them.
pub(crate) const ACCESS_MODES: &[&str] =
    &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// Access modes of volumes and claims; `missing` is said when there are none.
pub(crate) fn access_modes(causes: &mut Causes, spec: &Value, field: &str, missing: &str) {
    let modes = items(spec, "/accessModes");
    if modes.is_empty() {
        causes.push(Cause::required(field, missing));
    }
    let modes: Vec<&str> = modes.iter().filter_map(Value::as_str).collect();
    for mode in &modes {
        one_of(causes, field, mode, ACCESS_MODES);
    }
    let known = |mode: &&&str| ACCESS_MODES.contains(mode) && **mode != "ReadWriteOncePod";
    let others = modes.iter().filter(known);
    if modes.contains(&"ReadWriteOncePod") && others.count() > 0 {
        let why = "may not use ReadWriteOncePod with other access modes";
        causes.push(Cause::forbidden(field, why));
    }
}

pub(crate) fn label_selector(causes: &mut Causes, field: &str, selector: &Value) {
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        let field = format!("{field}.matchLabels");
        let value = value.as_str().unwrap_or_default();
        causes.extend(Cause::each(&field, key, names::qualified(key)));
        causes.extend(Cause::each(&field, value, names::label_value(value)));
    }
    for (i, term) in items(selector, "/matchExpressions").iter().enumerate() {
        let field = format!("{field}.matchExpressions[{i}]");
        let count = items(term, "/values").len();
        match text(term, "/operator") {
            "In" | "NotIn" if count == 0 => {
                causes.push(Cause::required(
                    format!("{field}.values"),
                    "must be specified when `operator` is 'In' or 'NotIn'",
                ));
            }
            "Exists" | "DoesNotExist" if count > 0 => {
                causes.push(Cause::forbidden(
                    format!("{field}.values"),
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                ));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                causes.push(Cause::invalid(
                    format!("{field}.operator"),
                    &other.into(),
                    "not a valid selector operator",
                ));
            }
        }
        let key = text(term, "/key");
        causes.extend(Cause::each(&format!("{field}.key"), key, names::qualified(key)));
    }
}

/// A node selector: terms with expressions over node labels.
pub(crate) fn node_selector(causes: &mut Causes, field: &str, selector: &Value) {
    let terms = items(selector, "/nodeSelectorTerms");
    if terms.is_empty() {
        causes.push(Cause::required(
            format!("{field}.nodeSelectorTerms"),
            "must have at least one node selector term",
        ));
    }
    for (t, term) in terms.iter().enumerate() {
        for (e, expression) in items(term, "/matchExpressions").iter().enumerate() {
            let field = format!("{field}.nodeSelectorTerms[{t}].matchExpressions[{e}]");
            node_expression(causes, &field, expression);
        }
        for (e, expression) in items(term, "/matchFields").iter().enumerate() {
            let field = format!("{field}.nodeSelectorTerms[{t}].matchFields[{e}]");
            node_field(causes, &field, expression);
        }
    }
}

/// A requirement on a node's fields: only its name can be asked for.
fn node_field(causes: &mut Causes, field: &str, expression: &Value) {
    match text(expression, "/operator") {
        "In" | "NotIn" => {
            if items(expression, "/values").len() != 1 {
                let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                causes.push(Cause::required(format!("{field}.values"), why));
            }
        }
        other => {
            let why = "not a valid selector operator";
            causes.push(Cause::invalid(format!("{field}.operator"), &other.into(), why));
        }
    }
    if text(expression, "/key") != "metadata.name" {
        let why = "not a valid field selector key";
        causes.push(Cause::invalid(format!("{field}.key"), &expression["key"], why));
    }
}

fn node_expression(causes: &mut Causes, field: &str, expression: &Value) {
    let count = items(expression, "/values").len();
    let values = format!("{field}.values");
    match text(expression, "/operator") {
        "In" | "NotIn" if count == 0 => {
            causes.push(Cause::required(
                values,
                "must be specified when `operator` is 'In' or 'NotIn'",
            ));
        }
        "Exists" | "DoesNotExist" if count > 0 => {
            causes.push(Cause::forbidden(
                values,
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ));
        }
        "Gt" | "Lt" if count != 1 => {
            causes.push(Cause::required(
                values,
                "must be specified single value when `operator` is 'Lt' or 'Gt'",
            ));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => {
            causes.push(Cause::invalid(
                format!("{field}.operator"),
                &other.into(),
                "not a valid selector operator",
            ));
        }
    }
    let key = text(expression, "/key");
    causes.extend(Cause::each(&format!("{field}.key"), key, names::qualified(key)));
}

/// Parameters of classes: few, small, and with names.
pub(crate) fn parameters(causes: &mut Causes, parameters: &Value) {
    const MAX_ENTRIES: usize = 512;
    const MAX_BYTES: usize = 256 * 1024;
    let Some(map) = parameters.as_object() else { return };
    if map.len() > MAX_ENTRIES {
        causes.push(Cause::too_long("parameters", MAX_ENTRIES));
        return;
    }
    if map.contains_key("") {
        causes.push(Cause::invalid("parameters", &"".into(), "field can not be empty."));
    }
    let size: usize = map.iter().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    if size > MAX_BYTES {
        causes.push(Cause::too_long("parameters", MAX_BYTES));
    }
}

/// One cause per field that changed although it may not.
pub(crate) fn immutable(causes: &mut Causes, new: &Value, old: &Value, fields: &[&str]) {
    for field in fields {
        let pointer = format!("/{}", field.replace('.', "/"));
        if !same(at(new, &pointer), at(old, &pointer)) {
            causes.push(Cause::invalid(*field, at(new, &pointer), "field is immutable"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn empties_are_the_same_as_absent() {
        assert!(same(&json!({"a": null, "b": []}), &json!({})));
        assert!(same(&json!({"a": {"b": {}}}), &json!({})));
        assert!(!same(&json!({"a": ""}), &json!({})));
        assert!(!same(&json!([1]), &json!([2])));
    }
}
