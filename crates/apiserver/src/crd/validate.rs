//! Judges a value by a schema.

use serde_json::Value;

use super::schema::{Checks, ListKind, Schema, Type, join};
use crate::error::Cause;

/// Judges a value. Where an earlier value is given, what has not changed since is not judged again:
/// a schema that became stricter must not lock the objects that are there.
pub fn validate(schema: &Schema, value: &Value, old: Option<&Value>, path: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    walk(schema, value, old, path, &mut causes);
    causes
}

fn walk(schema: &Schema, value: &Value, old: Option<&Value>, path: &str, causes: &mut Vec<Cause>) {
    if old == Some(value) || (value.is_null() && schema.nullable) {
        return;
    }
    if !fits(schema, value) {
        causes.push(Cause::wrong_type(path, type_of(value), &wanted(schema)));
    }
    if schema.kind == Some(Type::Integer)
        && let Value::Number(number) = value
    {
        range(&schema.checks, number, path, causes);
    }
    if !fits(schema, value) {
        return;
    }
    limits(&schema.checks, value, path, causes);
    combinations(&schema.checks, value, path, causes);
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if let Some(field) = schema.field(name) {
                    let old = old.and_then(|o| o.get(name));
                    let path = match schema.properties.contains_key(name) {
                        true => join(path, name),
                        false => format!("{path}.{name}"),
                    };
                    walk(field, value, old, &path, causes);
                }
            }
        }
        Value::Array(list) => elements(schema, list, old, path, causes),
        _ => {}
    }
}

fn elements(
    schema: &Schema,
    list: &[Value],
    old: Option<&Value>,
    path: &str,
    causes: &mut Vec<Cause>,
) {
    if let Some(items) = &schema.items {
        for (index, item) in list.iter().enumerate() {
            let old = earlier(&schema.list, item, old);
            walk(items, item, old, &format!("{path}[{index}]"), causes);
        }
    }
    let key = |item: &Value| -> Option<Value> {
        match &schema.list {
            ListKind::Atomic => None,
            ListKind::Set => Some(item.clone()),
            ListKind::Map(keys) => Some(keys.iter().map(|k| item[k].clone()).collect()),
        }
    };
    let mut seen: Vec<Value> = Vec::new();
    for (index, item) in list.iter().enumerate() {
        let Some(key) = key(item) else { return };
        if seen.contains(&key) {
            causes.push(Cause::duplicate(format!("{path}[{index}]"), item));
        }
        seen.push(key);
    }
}

/// The element that was there before under the same keys.
fn earlier<'a>(list: &ListKind, item: &Value, old: Option<&'a Value>) -> Option<&'a Value> {
    let ListKind::Map(keys) = list else { return None };
    old?.as_array()?.iter().find(|other| keys.iter().all(|k| item.get(k) == other.get(k)))
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if is_integer(n) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_integer(number: &serde_json::Number) -> bool {
    number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|f| f.fract() == 0.0)
}

fn fits(schema: &Schema, value: &Value) -> bool {
    if schema.int_or_string {
        return matches!(type_of(value), "integer" | "string");
    }
    match schema.kind {
        None => true,
        Some(Type::Number) => value.is_number(),
        Some(kind) => type_of(value) == kind.name(),
    }
}

fn wanted(schema: &Schema) -> String {
    match schema.kind {
        _ if schema.int_or_string => "integer,string".into(),
        Some(kind) => kind.name().into(),
        None => String::new(),
    }
}

/// A number has to be whole, and of the size its format says.
fn range(checks: &Checks, number: &serde_json::Number, path: &str, causes: &mut Vec<Cause>) {
    let whole = number.as_i64().or_else(|| {
        number.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9e18).map(|f| f as i64)
    });
    let format = checks.format.as_deref().unwrap_or_default();
    let fits = match format {
        "int32" => whole.is_some_and(|n| i32::try_from(n).is_ok()),
        _ => whole.is_some(),
    };
    if !fits {
        let format = match format {
            "" => "(default format)".to_owned(),
            name => format!("with format {name}"),
        };
        let why = format!("Checked value must be of type integer {format} in {path}");
        causes.push(Cause::invalid("<nil>", &"".into(), &why));
    }
}

fn limits(checks: &Checks, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    let bad = |causes: &mut Vec<Cause>, why: String| {
        causes.push(Cause::invalid(path, value, &format!("{path} in body {why}")));
    };
    if let Some(allowed) = &checks.allowed
        && !allowed.contains(value)
    {
        causes.push(Cause::not_one_of(path, value, allowed));
    }
    match value {
        Value::String(text) => {
            // One fault of a text is told at a time.
            let length = text.chars().count() as u64;
            if let Some(max) = checks.length.1.filter(|max| length > *max) {
                causes.push(Cause::too_long(path, usize::try_from(max).unwrap_or(usize::MAX)));
            } else if let Some(min) = checks.length.0.filter(|min| length < *min) {
                bad(causes, format!("should be at least {min} chars long"));
            } else if let Some((source, pattern)) = &checks.pattern
                && !pattern.is_match(text)
            {
                bad(causes, format!("should match '{source}'"));
            }
            if let Some(format) = &checks.format
                && !format_holds(format, text)
            {
                causes.push(Cause::wrong_format(path, value, format));
            }
        }
        Value::Number(number) => numbers(checks, number.as_f64().unwrap_or_default(), &mut |why| {
            bad(causes, why);
        }),
        Value::Array(list) => {
            if let Some(min) = checks.items.0.filter(|min| (list.len() as u64) < *min) {
                bad(causes, format!("should have at least {min} items"));
            }
            if let Some(max) = checks.items.1.filter(|max| list.len() as u64 > *max) {
                let max = usize::try_from(max).unwrap_or(usize::MAX);
                causes.push(Cause::too_many(path, list.len(), max));
            }
        }
        Value::Object(map) => {
            for name in checks.required.iter().filter(|name| !map.contains_key(*name)) {
                causes.push(Cause::required(join(path, name), ""));
            }
            if let Some(min) = checks.properties.0.filter(|min| (map.len() as u64) < *min) {
                bad(causes, format!("should have at least {min} properties"));
            }
            if let Some(max) = checks.properties.1.filter(|max| map.len() as u64 > *max) {
                let max = usize::try_from(max).unwrap_or(usize::MAX);
                causes.push(Cause::too_many(path, map.len(), max));
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn numbers(checks: &Checks, number: f64, bad: &mut dyn FnMut(String)) {
    if let Some((min, exclusive)) = checks.minimum
        && (number < min || (exclusive && number <= min))
    {
        let than = if exclusive { "than" } else { "than or equal to" };
        bad(format!("should be greater {than} {min}"));
    }
    if let Some((max, exclusive)) = checks.maximum
        && (number > max || (exclusive && number >= max))
    {
        let than = if exclusive { "than" } else { "than or equal to" };
        bad(format!("should be less {than} {max}"));
    }
    if let Some(step) = checks.multiple_of
        && step > 0.0
        && (number / step).fract() != 0.0
    {
        bad(format!("should be a multiple of {step}"));
    }
}

/// Formats that are checked; all others are only remarks.
fn format_holds(format: &str, text: &str) -> bool {
    use std::net::{Ipv4Addr, Ipv6Addr};
    match format {
        "date-time" | "datetime" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10,
        "duration" => is_duration(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => text.split_once('/').is_some_and(|(address, bits)| {
            let max = if address.contains(':') { 128 } else { 32 };
            address.parse::<std::net::IpAddr>().is_ok()
                && bits.parse::<u8>().is_ok_and(|b| b <= max)
        }),
        "uuid" | "uuid3" | "uuid4" | "uuid5" => uuid::Uuid::parse_str(text).is_ok(),
        "byte" => {
            use base64::Engine;
            base64::engine::general_purpose::STANDARD.decode(text).is_ok()
        }
        _ => true,
    }
}

/// `1h30m`, `1.5s`, `-2ms`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        if rest[..digits].parse::<f64>().is_err() {
            return false;
        }
        rest = &rest[digits..];
        let units = ["ns", "us", "µs", "ms", "s", "m", "h"];
        let Some(unit) = units.iter().find(|unit| rest.starts_with(**unit)) else { return false };
        rest = &rest[unit.len()..];
    }
    true
}

fn combinations(checks: &Checks, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    let nowhere = |causes: &mut Vec<Cause>, why: String| {
        causes.push(Cause::invalid("<nil>", &"".into(), &why));
    };
    let holds = |schema: &Schema| check_only(schema, value, path).is_empty();
    for schema in &checks.all_of {
        causes.extend(check_only(schema, value, path));
    }
    if !checks.any_of.is_empty() && !checks.any_of.iter().any(holds) {
        nowhere(causes, format!("{path:?} must validate at least one schema (anyOf)"));
        causes.extend(check_only(&checks.any_of[0], value, path));
    }
    if !checks.one_of.is_empty() {
        match checks.one_of.iter().filter(|schema| holds(schema)).count() {
            1 => {}
            0 => {
                let why = "must validate one and only one schema (oneOf). Found none valid";
                nowhere(causes, format!("{path:?} {why}"));
                causes.extend(check_only(&checks.one_of[0], value, path));
            }
            many => {
                let why = "must validate one and only one schema (oneOf). Found";
                nowhere(causes, format!("{path:?} {why} {many} valid alternatives"));
            }
        }
    }
    if checks.not.as_ref().is_some_and(|schema| holds(schema)) {
        nowhere(causes, format!("{path:?} must not validate the schema (not)"));
    }
}

/// Judges by one part of a combination; such parts name only what they look at.
fn check_only(schema: &Schema, value: &Value, path: &str) -> Vec<Cause> {
    validate(schema, value, None, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reasons(schema: Value, value: Value) -> Vec<(&'static str, String)> {
        let found = validate(&Schema::parse(&schema), &value, None, "spec.x");
        found.into_iter().map(|c| (c.reason, c.field)).collect()
    }

    #[test]
    fn every_keyword_has_its_cause() {
        let rows = [
            (json!({"type": "string", "minLength": 2}), json!("a"), "FieldValueInvalid"),
            (json!({"type": "string", "maxLength": 2}), json!("abc"), "FieldValueTooLong"),
            (json!({"type": "string", "pattern": "^a$"}), json!("b"), "FieldValueInvalid"),
            (json!({"type": "string", "enum": ["A"]}), json!("B"), "FieldValueNotSupported"),
            (json!({"type": "string", "format": "date-time"}), json!("x"), "FieldValueTypeInvalid"),
            (json!({"type": "integer", "minimum": 1}), json!(0), "FieldValueInvalid"),
            (
                json!({"type": "integer", "maximum": 1, "exclusiveMaximum": true}),
                json!(1),
                "FieldValueInvalid",
            ),
            (json!({"type": "integer", "multipleOf": 2}), json!(3), "FieldValueInvalid"),
            (json!({"type": "integer"}), json!("1"), "FieldValueTypeInvalid"),
            (json!({"type": "string"}), json!(null), "FieldValueTypeInvalid"),
            (json!({"type": "array", "maxItems": 1}), json!([1, 2]), "FieldValueTooMany"),
            (json!({"type": "array", "minItems": 1}), json!([]), "FieldValueInvalid"),
            (json!({"type": "object", "maxProperties": 0}), json!({"a": 1}), "FieldValueTooMany"),
            (json!({"x-kubernetes-int-or-string": true}), json!(true), "FieldValueTypeInvalid"),
            (json!({"not": {"required": ["a"]}}), json!({"a": 1}), "FieldValueInvalid"),
        ];
        for (schema, value, wanted) in rows {
            let found = reasons(schema.clone(), value.clone());
            assert_eq!(found.first().map(|(r, _)| *r), Some(wanted), "{schema} {value}");
            assert_eq!(found.len(), 1, "{schema} {value}: {found:?}");
        }
    }

    #[test]
    fn numbers_that_are_not_whole_or_too_large_are_told() {
        let int = |format: Value, value: Value| {
            reasons(json!({"type": "integer", "format": format}), value)
        };
        let both = int(Value::Null, json!(1.5));
        let nowhere = ("FieldValueInvalid", "<nil>".to_owned());
        assert_eq!(both, [("FieldValueTypeInvalid", "spec.x".into()), nowhere.clone()]);
        assert_eq!(int(json!("int32"), json!(3_000_000_000_i64)), [nowhere]);
        assert_eq!(int(json!("int64"), json!(3_000_000_000_i64)), []);
    }

    #[test]
    fn good_values_pass() {
        let rows = [
            (json!({"type": "string", "nullable": true}), json!(null)),
            (json!({"type": "number"}), json!(1)),
            (json!({"type": "integer"}), json!(2.0)),
            (
                json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
                json!("1Gi"),
            ),
            (json!({"type": "string", "format": "duration"}), json!("1h30m")),
            (json!({"type": "string", "format": "unheard-of"}), json!("x")),
            (json!({}), json!([{"any": 1}])),
        ];
        for (schema, value) in rows {
            assert_eq!(reasons(schema.clone(), value.clone()), [], "{schema} {value}");
        }
    }

    #[test]
    fn combinations_and_required_fields() {
        let one = json!({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]});
        assert_eq!(reasons(one.clone(), json!({"a": 1})), []);
        let both = reasons(one.clone(), json!({"a": 1, "b": 1}));
        assert_eq!(both, [("FieldValueInvalid", "<nil>".into())]);
        let none = reasons(one, json!({}));
        assert_eq!(none[1], ("FieldValueRequired", "spec.x.a".into()));
        let set = json!({"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object"}});
        let twice = reasons(set, json!([{"k": 1}, {"k": 2}, {"k": 1}]));
        assert_eq!(twice, [("FieldValueDuplicate", "spec.x[2]".into())]);
    }

    #[test]
    fn what_did_not_change_is_not_judged_again() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "a": {"type": "string", "maxLength": 1}, "b": {"type": "integer"}}}));
        let old = json!({"a": "long", "b": 1});
        assert!(validate(&schema, &json!({"a": "long", "b": 2}), Some(&old), "").is_empty());
        assert_eq!(validate(&schema, &json!({"a": "longer", "b": 1}), Some(&old), "").len(), 1);
    }
}
