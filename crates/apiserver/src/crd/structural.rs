//! Whether a schema is structural: every field has a type, and combinations only add checks.

use serde_json::{Value, json};

use super::columns::Path;
use super::cost::{self, Occurs};
use super::pattern;
use super::schema::{Schema, prune};
use super::typing::{self, Wanted};
use super::validate::validate;
use crate::error::{Cause, Causes, start};
use crate::registry::go_values;

const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];
const COMBINATIONS: &[&str] = &["allOf", "anyOf", "oneOf"];
/// Keywords that say what a value is; inside combinations they have no place.
const NOT_IN_COMBINATIONS: &[&str] = &[
    "type",
    "title",
    "description",
    "default",
    "additionalProperties",
    "nullable",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
];
/// Deeper schemas are refused: no author writes them by hand, and every walk here is recursive.
const MAX_DEPTH: usize = 100;

/// Judges the schema of a version.
pub(super) fn check(schema: &Value, path: &str) -> Causes {
    let mut causes = Causes::new();
    root(schema, path, &mut causes);
    if pattern::weigh_all(schema) > pattern::MAX_TOGETHER {
        let why = format!(
            "the patterns are too large together: compiled they may have {} bytes; use shorter \
             repetitions, or maxLength beside a simpler pattern",
            pattern::MAX_TOGETHER
        );
        causes.push(Cause::forbidden(path, &why));
        return causes;
    }
    node(schema, path, 0, &mut causes);
    if causes.is_empty() && super::rules::source_bytes(schema) > super::cel::MAX_TOGETHER {
        causes.push(Cause::forbidden(path, &super::rules::RulesError::TooLong.to_string()));
    }
    if causes.is_empty() {
        let mut costs = Vec::new();
        rules(
            schema,
            path,
            SchemaPosition { root: true, occurs: Occurs::Times(1) },
            &mut costs,
            &mut causes,
        );
        too_much_together(costs, path, &mut causes);
    }
    causes
}

fn root(schema: &Value, path: &str, causes: &mut Causes) {
    match schema["type"].as_str().unwrap_or_default() {
        "object" => {}
        "" => causes.push(Cause::required(format!("{path}.type"), "must not be empty at the root")),
        other => {
            let value = json!(other);
            causes.push(Cause::invalid(
                format!("{path}.type"),
                &value,
                "must be object at the root",
            ));
        }
    }
    if !matches!(schema["additionalProperties"], Value::Null | Value::Bool(false)) {
        let why = "must not be used at the root";
        causes.push(Cause::forbidden(format!("{path}.additionalProperties"), why));
    }
    if schema["nullable"] == true {
        causes.push(Cause::forbidden(
            format!("{path}.nullable"),
            "nullable cannot be true at the root",
        ));
    }
    let named = schema["properties"]["metadata"]["properties"].as_object();
    let only_names = named
        .is_none_or(|map| map.keys().all(|name| matches!(name.as_str(), "name" | "generateName")));
    if !only_names {
        let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        causes.push(Cause::forbidden(format!("{path}.properties[metadata]"), why));
    }
}

/// Judges one node that says what a value is.
fn node(schema: &Value, path: &str, depth: usize, causes: &mut Causes) {
    if depth > MAX_DEPTH {
        causes.push(Cause::forbidden(path, "the schema is nested too deeply"));
        return;
    }
    unsupported(schema, path, causes);
    let kind = schema["type"].as_str().unwrap_or_default();
    if !kind.is_empty() && !TYPES.contains(&kind) {
        causes.push(Cause::not_supported(format!("{path}.type"), kind, TYPES));
    }
    let free = schema["x-kubernetes-int-or-string"] == true
        || schema["x-kubernetes-preserve-unknown-fields"] == true;
    if kind.is_empty() && !free && depth > 0 && schema["$ref"].is_null() {
        let why = "must not be empty for specified object fields";
        causes.push(Cause::required(format!("{path}.type"), why));
    }
    let some = schema["properties"].as_object().is_some_and(|map| !map.is_empty());
    if some && schema["additionalProperties"].is_object() {
        let why = "additionalProperties and properties are mutual exclusive";
        causes.push(Cause::forbidden(format!("{path}.additionalProperties"), why));
    }
    if kind == "array" && !schema["items"].is_object() {
        causes.push(Cause::required(format!("{path}.items"), "must be specified"));
    }
    if let Some(kind) = schema["x-kubernetes-map-type"].as_str()
        && !matches!(kind, "atomic" | "granular")
    {
        let field = format!("{path}.x-kubernetes-map-type");
        causes.push(Cause::not_supported(field, kind, &["atomic", "granular"]));
    }
    lists(schema, path, causes);
    for name in COMBINATIONS {
        for (i, part) in schema[*name].as_array().into_iter().flatten().enumerate() {
            combination(part, schema, &format!("{path}.{name}[{i}]"), depth + 1, causes);
        }
    }
    if schema["not"].is_object() {
        combination(&schema["not"], schema, &format!("{path}.not"), depth + 1, causes);
    }
    for (child, path) in children(schema, path) {
        node(child, &path, depth + 1, causes);
    }
    default_value(schema, path, causes);
}

/// The nodes below, with their paths. Names are the client's: a long one is not copied for everything
/// that is below it.
fn children<'a>(schema: &'a Value, path: &str) -> Vec<(&'a Value, String)> {
    const LONGEST: usize = 4 << 10;
    let path = if path.len() > LONGEST { "…" } else { path };
    let mut found = Vec::new();
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        found.push((child, format!("{path}.properties[{}]", start(name, LONGEST))));
    }
    for name in ["additionalProperties", "items"] {
        if schema[name].is_object() {
            found.push((&schema[name], format!("{path}.{name}")));
        }
    }
    found
}

fn unsupported(schema: &Value, path: &str, causes: &mut Causes) {
    if schema["$ref"].is_string() {
        causes.push(Cause::forbidden(format!("{path}.$ref"), "$ref is not supported"));
    }
    if schema["uniqueItems"] == true {
        let why =
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        causes.push(Cause::forbidden(format!("{path}.uniqueItems"), why));
    }
    for name in ["definitions", "dependencies", "patternProperties", "additionalItems", "id"] {
        if !schema[name].is_null() {
            causes.push(Cause::forbidden(
                format!("{path}.{name}"),
                &format!("{name} is not supported"),
            ));
        }
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && let Err(error) = pattern::weigh(pattern)
    {
        let why = format!("must be a valid regular expression, but isn't: {error}");
        causes.push(Cause::invalid(format!("{path}.pattern"), &json!(pattern), &why));
    }
}

fn lists(schema: &Value, path: &str, causes: &mut Causes) {
    let Some(kind) = schema["x-kubernetes-list-type"].as_str() else { return };
    let keys: Vec<&str> = schema["x-kubernetes-list-map-keys"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let items = &schema["items"];
    match kind {
        "atomic" => {}
        "set" => {
            let composed = matches!(items["type"].as_str(), Some("object" | "array"));
            let atomic = items["x-kubernetes-map-type"] == "atomic"
                || items["x-kubernetes-list-type"] == "atomic";
            if composed && !atomic {
                let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
                let field = format!("{path}.items.x-kubernetes-map-type");
                causes.push(Cause::invalid(field, &Value::Null, why));
            }
        }
        "map" => {
            let field = format!("{path}.x-kubernetes-list-map-keys");
            if keys.is_empty() {
                let why = "must not be empty if x-kubernetes-list-type is map";
                causes.push(Cause::required(field, why));
                return;
            }
            if keys.iter().any(|key| !items["properties"][*key].is_object()) {
                let why = "entries must all be names of item properties";
                causes.push(Cause::invalid(field, &json!(keys), why));
                return;
            }
            for key in keys {
                let required =
                    items["required"].as_array().is_some_and(|r| r.contains(&json!(key)));
                if !required && items["properties"][key].get("default").is_none() {
                    let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                    let field = format!("{path}.items.properties[{key}].default");
                    causes.push(Cause::required(field, why));
                }
            }
        }
        other => {
            let field = format!("{path}.x-kubernetes-list-type");
            causes.push(Cause::not_supported(field, other, &["atomic", "set", "map"]));
        }
    }
}

/// Judges a node inside a combination: it may only check, and only what is specified outside.
fn combination(part: &Value, outer: &Value, path: &str, depth: usize, causes: &mut Causes) {
    if depth > MAX_DEPTH {
        causes.push(Cause::forbidden(path, "the schema is nested too deeply"));
        return;
    }
    // A quantity is written as a choice of an integer and a string.
    let choice = outer["x-kubernetes-int-or-string"] == true
        && part.as_object().is_some_and(|map| map.len() == 1)
        && matches!(part["type"].as_str(), Some("integer" | "string"));
    if choice {
        return;
    }
    for name in NOT_IN_COMBINATIONS {
        if !matches!(part[*name], Value::Null | Value::Bool(false)) {
            let why = "must be empty to be structural";
            causes.push(Cause::forbidden(format!("{path}.{name}"), why));
        }
    }
    for name in COMBINATIONS {
        for (i, inner) in part[*name].as_array().into_iter().flatten().enumerate() {
            combination(inner, outer, &format!("{path}.{name}[{i}]"), depth + 1, causes);
        }
    }
    if part["not"].is_object() {
        combination(&part["not"], outer, &format!("{path}.not"), depth + 1, causes);
    }
    for (child, path) in children(part, path) {
        combination(child, &Value::Null, &path, depth + 1, causes);
    }
}

/// A default must be a value of its own field.
fn default_value(schema: &Value, path: &str, causes: &mut Causes) {
    let Some(default) = schema.get("default") else { return };
    let field = format!("{path}.default");
    let parsed = Schema::parse(schema);
    let (mut pruned, mut dropped) = (default.clone(), Vec::new());
    prune(&parsed, &mut pruned, crate::field_path::FieldPath::Top(""), &mut dropped);
    if !dropped.is_empty() {
        causes.push(Cause::invalid(field, default, "must not have unknown fields"));
        return;
    }
    if super::schema::default(&parsed, &mut pruned).is_err() {
        causes.push(Cause::forbidden(field, "with the defaults inside it is too large"));
        return;
    }
    for mut cause in validate(&parsed, &pruned, None, "") {
        cause.field = match cause.field.as_str() {
            "" | "<nil>" => field.clone(),
            inner => format!("{field}.{inner}"),
        };
        causes.push(cause);
    }
}

/// What each rule may cost, with its place.
type Costs = Vec<(u64, String)>;

/// Names the rules that cost most when all together cost too much.
fn too_much_together(mut costs: Costs, path: &str, causes: &mut Causes) {
    const NAMED: usize = 4;
    let total = costs.iter().fold(0_u64, |sum, (cost, _)| sum.saturating_add(*cost));
    let Some(why) = cost::refusal_of_all(total) else { return };
    costs.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
    let part =
        "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
    causes.extend(costs.into_iter().take(NAMED).map(|(_, field)| Cause::forbidden(field, part)));
    causes.push(Cause::forbidden(path, &why));
}

#[derive(Clone, Copy)]
struct SchemaPosition {
    root: bool,
    occurs: Occurs,
}

/// Judges the rules: each must compile, fit the types of its place, and come to an end.
fn rules(
    schema: &Value,
    path: &str,
    place: SchemaPosition,
    costs: &mut Costs,
    causes: &mut Causes,
) {
    for (i, rule) in schema["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate()
    {
        let path = format!("{path}.x-kubernetes-validations[{i}]");
        let before = causes.len();
        one_rule(rule, schema, &path, place.root, causes);
        if causes.len() > before {
            continue;
        }
        let cost = cost::of_rule(rule["rule"].as_str().unwrap_or_default(), schema, place.occurs);
        let field = format!("{path}.rule");
        if let Some(why) = cost::refusal(cost) {
            causes.push(Cause::forbidden(&field, &why));
        }
        costs.push((cost, field));
    }
    for (child, path) in children(schema, path) {
        let occurs = if path.ends_with(".items") {
            place.occurs.inside(schema, "maxItems")
        } else if path.ends_with(".additionalProperties") {
            place.occurs.inside(schema, "maxProperties")
        } else {
            place.occurs
        };
        rules(child, &path, SchemaPosition { root: false, occurs }, costs, causes);
    }
}

fn one_rule(rule: &Value, schema: &Value, path: &str, root: bool, causes: &mut Causes) {
    const REASONS: &[&str] =
        &["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
    let text = |name: &str| rule[name].as_str().unwrap_or_default();
    let field = |name: &str| format!("{path}.{name}");
    let shown = go_values::compact(go_values::RULE, rule);
    let shown = shown.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    let (source, message) = (text("rule"), text("message"));
    if source.trim().is_empty() {
        causes.push(Cause::required(field("rule"), "rule is not specified"));
        return;
    }
    if source.contains('\n') && message.is_empty() {
        let why = "message must be specified if rule contains line breaks";
        causes.push(Cause::required(field("message"), why));
    }
    if !message.is_empty() && message.trim().is_empty() {
        let why = "must be non-empty if specified";
        causes.push(Cause::invalid(field("message"), &rule["message"], why));
    } else if message.contains('\n') {
        let why = "must not contain line breaks";
        causes.push(Cause::invalid(field("message"), &rule["message"], why));
    }
    if !text("reason").is_empty() && !REASONS.contains(&text("reason")) {
        causes.push(Cause::not_supported(field("reason"), text("reason"), REASONS));
    }
    if !text("fieldPath").is_empty() && !leads_somewhere(schema, text("fieldPath")) {
        causes.push(Cause::invalid(field("fieldPath"), &rule["fieldPath"], "must be a valid path"));
    }
    let own = rule["optionalOldSelf"] == true;
    if let Some(why) = (!own).then(|| typing::fault(source, schema, root, Wanted::Rule)).flatten() {
        causes.push(Cause::invalid_shown(field("rule"), &shown, &why));
        return;
    }
    let expression = text("messageExpression");
    if !expression.is_empty() && expression.trim().is_empty() {
        let why = "messageExpression must be non-empty if specified";
        causes.push(Cause::required(field("messageExpression"), why));
    } else if !expression.is_empty()
        && !own
        && let Some(why) = typing::fault(expression, schema, root, Wanted::Message)
    {
        causes.push(Cause::invalid_shown(field("messageExpression"), &shown, &why));
    } else if let Some((at, why)) = super::rules::refusal(rule) {
        let why = format!("compilation failed: {why}");
        causes.push(Cause::invalid_shown(field(at), &shown, &why));
    }
}

/// Whether the field that a rule speaks of is in the schema.
fn leads_somewhere(schema: &Value, path: &str) -> bool {
    let Some(path) = Path::parse(path).filter(Path::is_simple) else { return false };
    path.fields()
        .iter()
        .try_fold(schema, |at, name| {
            at["properties"]
                .get(*name)
                .or_else(|| at.get("additionalProperties").filter(|inner| inner.is_object()))
        })
        .is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(property: Value) -> Vec<(&'static str, String)> {
        let schema = json!({"type": "object", "properties": {"a": property}});
        check(&schema, "s").into_iter().map(|c| (c.reason, c.field)).collect()
    }

    #[test]
    fn schemas_that_are_not_structural_are_refused() {
        let key = json!({"type": "object", "properties": {"k": {"type": "string"}}});
        let rows = [
            (json!({}), "FieldValueRequired", "s.properties[a].type"),
            (json!({"type": "array"}), "FieldValueRequired", "s.properties[a].items"),
            (json!({"type": "strin"}), "FieldValueNotSupported", "s.properties[a].type"),
            (
                json!({"type": "object", "properties": {"b": {"type": "string"}},
                    "additionalProperties": {"type": "string"}}),
                "FieldValueForbidden",
                "s.properties[a].additionalProperties",
            ),
            (
                json!({"type": "string", "default": 1}),
                "FieldValueTypeInvalid",
                "s.properties[a].default",
            ),
            (
                json!({"type": "object", "properties": {}, "default": {"z": 1}}),
                "FieldValueInvalid",
                "s.properties[a].default",
            ),
            (
                json!({"type": "string", "anyOf": [{"type": "string"}]}),
                "FieldValueForbidden",
                "s.properties[a].anyOf[0].type",
            ),
            (
                json!({"type": "string", "pattern": "("}),
                "FieldValueInvalid",
                "s.properties[a].pattern",
            ),
            (
                json!({"type": "array", "x-kubernetes-list-type": "map", "items": key}),
                "FieldValueRequired",
                "s.properties[a].x-kubernetes-list-map-keys",
            ),
            (
                json!({"type": "array", "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["k"], "items": key}),
                "FieldValueRequired",
                "s.properties[a].items.properties[k].default",
            ),
            (
                json!({"type": "array", "x-kubernetes-list-type": "set", "items": key}),
                "FieldValueInvalid",
                "s.properties[a].items.x-kubernetes-map-type",
            ),
            (
                json!({"type": "string", "x-kubernetes-validations": [{"rule": "self =="}]}),
                "FieldValueInvalid",
                "s.properties[a].x-kubernetes-validations[0].rule",
            ),
            (
                json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.nope == 1"}]}),
                "FieldValueInvalid",
                "s.properties[a].x-kubernetes-validations[0].rule",
            ),
            (
                json!({"type": "string", "x-kubernetes-validations": [{"rule": "self == 'a'", "reason": "x"}]}),
                "FieldValueNotSupported",
                "s.properties[a].x-kubernetes-validations[0].reason",
            ),
            (
                json!({"type": "object", "x-kubernetes-map-type": "x"}),
                "FieldValueNotSupported",
                "s.properties[a].x-kubernetes-map-type",
            ),
            (
                json!({"type": "string", "x-kubernetes-validations": [{"rule": ""}]}),
                "FieldValueRequired",
                "s.properties[a].x-kubernetes-validations[0].rule",
            ),
        ];
        for (property, reason, field) in rows {
            assert_eq!(found(property.clone()), [(reason, field.to_owned())], "{property}");
        }
    }

    #[test]
    fn structural_schemas_pass() {
        let rows = [
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
            json!({"x-kubernetes-preserve-unknown-fields": true}),
            json!({"type": "object", "oneOf": [{"required": ["a"]}]}),
            json!({"type": "string", "default": "x", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}),
        ];
        for property in rows {
            assert_eq!(found(property.clone()), [], "{property}");
        }
    }

    #[test]
    fn the_root_is_an_object_without_say_over_metadata() {
        let field = |schema: Value| check(&schema, "s").iter().next().map(|c| c.field.clone());
        assert_eq!(field(json!({})).as_deref(), Some("s.type"));
        let labels = json!({"type": "object", "properties": {"metadata": {"type": "object",
            "properties": {"labels": {"type": "object"}}}}});
        assert_eq!(field(labels).as_deref(), Some("s.properties[metadata]"));
    }
}
