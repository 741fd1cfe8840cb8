//! Judges a value by a schema.
//!
//! The work is counted: a schema and an object of a few megabytes each could otherwise ask for the product
//! of the two. Parts of combinations are judged once, and only the first tells what is wrong.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::schema::{Checks, ListKind, Schema, Type};
use crate::error::{Cause, Causes};
use crate::field_path::FieldPath;

/// Steps that the judgement of one object may take: about a second.
const MAX_STEPS: usize = 10_000_000;
/// A step in a text is about so many bytes.
const STEP_BYTES: usize = 64;

/// Judges a value. Where an earlier value is given, what has not changed since is not judged again:
/// a schema that became stricter must not lock the objects that are there.
pub(super) fn validate(schema: &Schema, value: &Value, old: Option<&Value>, path: &str) -> Causes {
    let mut judge = Judge::new();
    judge.walk(schema, value, old, FieldPath::Top(path));
    if judge.steps == 0 {
        let why = "the schema and the object are too large together: judging one by the other takes too many steps";
        judge.causes.push(Cause::forbidden(path, why));
    }
    judge.causes
}

struct Judge {
    causes: Causes,
    /// Steps that are left; at zero nothing more is judged, and the object is refused.
    steps: usize,
    /// Whether the first cause is enough.
    quick: bool,
}

impl Judge {
    fn new() -> Self {
        Self { causes: Causes::new(), steps: MAX_STEPS, quick: false }
    }

    /// Counts work; false when there was enough of it, or when enough is known.
    fn goes_on(&mut self, steps: usize) -> bool {
        self.steps = self.steps.saturating_sub(steps);
        self.steps > 0 && !self.causes.is_full() && (!self.quick || self.causes.is_empty())
    }

    fn walk(&mut self, schema: &Schema, value: &Value, old: Option<&Value>, place: FieldPath<'_>) {
        if !self.goes_on(1) || old == Some(value) || (value.is_null() && schema.nullable) {
            return;
        }
        if !fits(schema, value) {
            self.causes.push(Cause::wrong_type(&place.text(), type_of(value), &wanted(schema)));
        }
        if schema.kind == Some(Type::Integer)
            && let Value::Number(number) = value
        {
            range(&schema.checks, number, place, &mut self.causes);
        }
        if !fits(schema, value) {
            return;
        }
        self.limits(&schema.checks, value, place);
        self.combinations(&schema.checks, value, place);
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    if let Some(field) = schema.field(name) {
                        let old = old.and_then(|o| o.get(name));
                        self.walk(field, value, old, FieldPath::Field(&place, name));
                    }
                }
            }
            Value::Array(list) => self.elements(schema, list, old, place),
            _ => {}
        }
    }

    fn elements(
        &mut self,
        schema: &Schema,
        list: &[Value],
        old: Option<&Value>,
        place: FieldPath<'_>,
    ) {
        if let Some(items) = &schema.items {
            let before = earlier(&schema.list, old);
            for (index, item) in list.iter().enumerate() {
                let old = key(&schema.list, item).and_then(|key| before.get(&key).copied());
                self.walk(items, item, old, FieldPath::Element(&place, index));
            }
        }
        let mut seen = HashSet::with_capacity(list.len());
        for (index, item) in list.iter().enumerate() {
            let key = match &schema.list {
                ListKind::Atomic => return,
                ListKind::Set => vec![item],
                ListKind::Map(keys) => keys.iter().map(|key| &item[key]).collect(),
            };
            if !seen.insert(key) {
                let path = FieldPath::Element(&place, index).text();
                self.causes.push(Cause::duplicate(path, item));
            }
        }
    }

    fn limits(&mut self, checks: &Checks, value: &Value, place: FieldPath<'_>) {
        let bad = |causes: &mut Causes, why: String| {
            let path = place.text();
            causes.push(Cause::invalid(&path, value, &format!("{path} in body {why}")));
        };
        if let Some(allowed) = &checks.allowed
            && !allowed.known.contains(value)
        {
            self.causes.push(Cause::not_one_of(&place.text(), value, &allowed.listed));
        }
        match value {
            Value::String(text) => self.text(checks, value, text, place),
            Value::Number(number) => {
                numbers(checks, number.as_f64().unwrap_or_default(), &mut |why| {
                    bad(&mut self.causes, why);
                });
            }
            Value::Array(list) => {
                if let Some(min) = checks.items.0.filter(|min| (list.len() as u64) < *min) {
                    bad(&mut self.causes, format!("should have at least {min} items"));
                }
                if let Some(max) = checks.items.1.filter(|max| list.len() as u64 > *max) {
                    let max = usize::try_from(max).unwrap_or(usize::MAX);
                    self.causes.push(Cause::too_many(place.text(), list.len(), max));
                }
            }
            Value::Object(map) => {
                for name in &checks.required {
                    if !self.goes_on(1) {
                        return;
                    }
                    if !map.contains_key(name) {
                        let path = FieldPath::Field(&place, name).text();
                        self.causes.push(Cause::required(path, ""));
                    }
                }
                if let Some(min) = checks.properties.0.filter(|min| (map.len() as u64) < *min) {
                    bad(&mut self.causes, format!("should have at least {min} properties"));
                }
                if let Some(max) = checks.properties.1.filter(|max| map.len() as u64 > *max) {
                    let max = usize::try_from(max).unwrap_or(usize::MAX);
                    self.causes.push(Cause::too_many(place.text(), map.len(), max));
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// One fault of a text is reported at a time.
    fn text(&mut self, checks: &Checks, value: &Value, text: &str, place: FieldPath<'_>) {
        if !self.goes_on(text.len() / STEP_BYTES) {
            return;
        }
        let bad = |why: String| {
            let path = place.text();
            Cause::invalid(&path, value, &format!("{path} in body {why}"))
        };
        let length = text.chars().count() as u64;
        if let Some(max) = checks.length.1.filter(|max| length > *max) {
            let max = usize::try_from(max).unwrap_or(usize::MAX);
            self.causes.push(Cause::too_long(place.text(), max));
        } else if let Some(min) = checks.length.0.filter(|min| length < *min) {
            self.causes.push(bad(format!("should be at least {min} chars long")));
        } else if let Some(pattern) = &checks.pattern
            && !pattern.is_match(text)
        {
            self.causes.push(bad(format!("should match '{}'", pattern.source())));
        }
        if let Some(format) = &checks.format
            && !format_holds(format, text)
        {
            self.causes.push(Cause::wrong_format(&place.text(), value, format));
        }
    }

    /// What is wrong by one part of a combination; such parts name only what they look at.
    fn by(&mut self, schema: &Schema, value: &Value, place: FieldPath<'_>, quick: bool) -> Causes {
        let mut part = Self { causes: Causes::new(), steps: self.steps, quick };
        part.walk(schema, value, None, place);
        self.steps = part.steps;
        part.causes
    }

    /// Judges by the first part in full and by the others as far as it takes to know whether they hold:
    /// how many do, and what the first says.
    fn parts(&mut self, parts: &[Schema], value: &Value, place: FieldPath<'_>) -> (usize, Causes) {
        let (mut holding, mut first) = (0, Causes::new());
        for (index, part) in parts.iter().enumerate() {
            let causes = self.by(part, value, place, self.quick || index > 0);
            holding += usize::from(causes.is_empty());
            if index == 0 {
                first = causes;
            }
            if self.steps == 0 {
                break;
            }
        }
        (holding, first)
    }

    fn combinations(&mut self, checks: &Checks, value: &Value, place: FieldPath<'_>) {
        let nowhere = |causes: &mut Causes, why: &str| {
            let why = format!("{:?} {why}", place.text());
            causes.push(Cause::invalid("<nil>", &"".into(), &why));
        };
        for schema in &checks.all_of {
            if !self.goes_on(1) {
                return;
            }
            let causes = self.by(schema, value, place, self.quick);
            self.causes.extend(causes);
        }
        if !checks.any_of.is_empty() {
            let (holding, first) = self.parts(&checks.any_of, value, place);
            if holding == 0 {
                nowhere(&mut self.causes, "must validate at least one schema (anyOf)");
                self.causes.extend(first);
            }
        }
        if !checks.one_of.is_empty() {
            const ONE: &str = "must validate one and only one schema (oneOf). Found";
            match self.parts(&checks.one_of, value, place) {
                (1, _) => {}
                (0, first) => {
                    nowhere(&mut self.causes, &format!("{ONE} none valid"));
                    self.causes.extend(first);
                }
                (many, _) => {
                    nowhere(&mut self.causes, &format!("{ONE} {many} valid alternatives"));
                }
            }
        }
        if let Some(schema) = &checks.not
            && self.by(schema, value, place, true).is_empty()
        {
            nowhere(&mut self.causes, "must not validate the schema (not)");
        }
    }
}

/// What tells an element of a keyed list from the others; absent fields count as such.
fn key<'a>(list: &ListKind, item: &'a Value) -> Option<Vec<Option<&'a Value>>> {
    let ListKind::Map(keys) = list else { return None };
    Some(keys.iter().map(|key| item.get(key)).collect())
}

/// The elements that were there before, by their keys; the first of each.
fn earlier<'a>(
    list: &ListKind,
    old: Option<&'a Value>,
) -> HashMap<Vec<Option<&'a Value>>, &'a Value> {
    let mut before = HashMap::new();
    for item in old.and_then(Value::as_array).into_iter().flatten() {
        if let Some(key) = key(list, item) {
            before.entry(key).or_insert(item);
        }
    }
    before
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
fn range(checks: &Checks, number: &serde_json::Number, place: FieldPath<'_>, causes: &mut Causes) {
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
        let path = place.text();
        let why = format!("Checked value must be of type integer {format} in {path}");
        causes.push(Cause::invalid("<nil>", &"".into(), &why));
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

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

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
    fn numbers_that_are_not_whole_or_too_large_are_refused() {
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
    fn values_that_fit_the_schema_pass() {
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
    fn unchanged_values_are_not_validated_again() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "a": {"type": "string", "maxLength": 1}, "b": {"type": "integer"}}}));
        let old = json!({"a": "long", "b": 1});
        assert!(validate(&schema, &json!({"a": "long", "b": 2}), Some(&old), "").is_empty());
        assert_eq!(validate(&schema, &json!({"a": "longer", "b": 1}), Some(&old), "").len(), 1);
    }

    /// Steps that the judgement of a value takes.
    fn steps(schema: &Value, value: &Value) -> usize {
        let mut judge = Judge::new();
        judge.walk(&Schema::parse(schema), value, None, FieldPath::Top(""));
        MAX_STEPS - judge.steps
    }

    #[test]
    fn nested_combinations_take_steps_in_proportion_to_the_schema() {
        const DEPTH: usize = 45;
        for name in ["anyOf", "oneOf", "allOf"] {
            let leaf = json!({"required": ["never"]});
            let mut schema =
                (0..DEPTH).fold(leaf, |inner, _| json!({name: [inner, {"required": ["nor"]}]}));
            schema["type"] = json!("object");
            let steps = steps(&schema, &json!({}));
            assert!(steps < 20 * DEPTH, "{name}: {steps}");
            assert!(!reasons(schema, json!({})).is_empty(), "{name}");
        }
        let not = (0..DEPTH).fold(json!({"required": ["x"]}), |inner, _| json!({"not": inner}));
        let steps = steps(&not, &json!({}));
        assert!(steps < 20 * DEPTH, "not: {steps}");
    }

    #[test]
    fn too_many_alternatives_for_too_many_elements_are_refused() {
        let choices: Vec<Value> =
            (0..20_000).map(|i| json!({"required": [i.to_string()]})).collect();
        let items = json!({"type": "array", "items": {"type": "object", "anyOf": choices}});
        let found = reasons(items, json!(vec![json!({"19999": 1}); 20_000]));
        assert_eq!(found.last().map(|(reason, _)| *reason), Some("FieldValueForbidden"));
    }

    /// CPU time of this thread, which a loaded machine does not stretch. A minute is far more than
    /// the comparison takes, and far less than one of each element with all others would.
    #[test]
    fn elements_of_long_lists_are_told_apart_without_comparing_all_pairs() {
        let many: Vec<i32> = (0..300_000).collect();
        let set =
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "integer"}});
        assert_eq!(reasons(set, json!(many)), []);
        let keyed = json!({"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object",
            "properties": {"k": {"type": "integer"}, "v": {"type": "integer"}}}});
        let objects = |v: i32| -> Value { many.iter().map(|k| json!({"k": k, "v": v})).collect() };
        let changed = validate(&Schema::parse(&keyed), &objects(1), Some(&objects(2)), "");
        assert!(changed.is_empty());
        let used = clock_gettime(ClockId::ThreadCPUTime);
        assert!(used.tv_sec < 60, "{used:?}");
    }
}
