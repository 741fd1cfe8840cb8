//! `CustomResourceDefinition`.

use std::collections::{HashMap, HashSet};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use super::columns::{Column, Path};
use super::naming::{self, is_established, is_protected};
use super::structural;
use crate::error::{ApiResult, Cause, Causes, Status};
use crate::registry::codec::{Misfit, typed};
use crate::registry::names;
use crate::registry::rules::{immutable, items, one_of, same, text};
use crate::registry::strategy::{Context, Strategy};

/// Holds a deleted definition until its objects are gone.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Checks the types of a definition. Bounds stay the whole numbers they were.
///
/// # Errors
/// A field has the wrong type.
pub(crate) fn codec(object: &Value) -> Result<Value, Misfit> {
    let mut object = typed::<CustomResourceDefinition>(object)?;
    whole_numbers(&mut object["spec"]["versions"]);
    Ok(object)
}

fn whole_numbers(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, value) in map.iter_mut() {
                let bound = matches!(name.as_str(), "minimum" | "maximum" | "multipleOf");
                match value.as_f64().filter(|f| bound && f.fract() == 0.0 && f.abs() < 9e15) {
                    Some(number) => *value = json!(number as i64),
                    None => whole_numbers(value),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(whole_numbers),
        _ => {}
    }
}

/// The rules of definitions.
pub(crate) struct Definition;

impl Strategy for Definition {
    fn default(&self, object: &mut Value) {
        let spec = &mut object["spec"];
        if spec["conversion"]["strategy"].as_str().unwrap_or_default().is_empty() {
            spec["conversion"] = json!({"strategy": "None"});
        }
        let names = &mut spec["names"];
        let kind = text(names, "/kind").to_owned();
        if kind.is_empty() {
            return;
        }
        if text(names, "/singular").is_empty() {
            names["singular"] = json!(kind.to_lowercase());
        }
        if text(names, "/listKind").is_empty() {
            names["listKind"] = json!(format!("{kind}List"));
        }
    }

    fn prepare_create(&self, object: &mut Value, _cx: &Context<'_>) {
        let stored: Vec<Value> = storage_versions(object);
        object["status"] = json!({
            "conditions": null, "acceptedNames": {"plural": "", "kind": ""},
            "storedVersions": stored.first().into_iter().collect::<Vec<_>>(),
        });
    }

    /// Objects of a definition are stored by group and plural, as those of built-in kinds are.
    fn admit_create(&self, object: &mut Value, cx: &Context<'_>) -> ApiResult<()> {
        let (group, plural) = (text(object, "/spec/group"), text(object, "/spec/names/plural"));
        if !cx.registry.is_builtin(group, plural) {
            return Ok(());
        }
        let why = format!("{plural}.{group} is built in and cannot be defined again");
        let cause = Cause::invalid("spec.names.plural", &plural.into(), &why);
        let (group, kind) = ("apiextensions.k8s.io", "CustomResourceDefinition");
        Err(Status::invalid_kind(group, kind, text(object, "/metadata/name"), vec![cause]))
    }

    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = check_spec(object);
        let stored = &object["status"]["storedVersions"];
        if items(object, "/status/storedVersions").is_empty() {
            let why = "must have at least one stored version";
            causes.push(Cause::invalid("status.storedVersions", &Value::Null, why));
        } else if let Some(last) = storage_versions(object).last()
            && !items(object, "/status/storedVersions").contains(last)
        {
            let why =
                format!("must have the storage version {}", last.as_str().unwrap_or_default());
            causes.push(Cause::invalid("status.storedVersions", stored, &why));
        }
        causes
    }

    fn prepare_update(&self, new: &mut Value, _old: &Value, _cx: &Context<'_>) {
        for version in storage_versions(new) {
            let stored = &mut new["status"]["storedVersions"];
            match stored.as_array_mut() {
                Some(list) if list.contains(&version) => {}
                Some(list) => list.push(version),
                None => *stored = json!([version]),
            }
        }
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes =
            if same(&new["spec"], &old["spec"]) { Causes::new() } else { check_spec(new) };
        if is_established(old) {
            let fixed = ["spec.scope", "spec.names.plural", "spec.names.kind"];
            immutable(&mut causes, new, old, &fixed);
        }
        immutable(&mut causes, new, old, &["spec.group"]);
        let known: HashSet<&Value> =
            items(new, "/spec/versions").iter().map(|v| &v["name"]).collect();
        for (i, version) in items(new, "/status/storedVersions").iter().enumerate() {
            if !known.contains(version) {
                let why = "missing from spec.versions; it was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in it and removes it from status.storedVersions";
                let field = format!("status.storedVersions[{i}]");
                causes.push(Cause::invalid(field, version, why));
            }
        }
        causes
    }

    fn prepare_delete(&self, object: &mut Value, cx: &Context<'_>) {
        let finalizers = &mut object["metadata"]["finalizers"];
        match finalizers.as_array_mut() {
            Some(list) if list.iter().any(|f| f == CLEANUP) => {}
            Some(list) => list.push(json!(CLEANUP)),
            None => *finalizers = json!([CLEANUP]),
        }
        let why =
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
        let now = cx.env.now_text();
        naming::set(object, "Terminating", "True", "InstanceDeletionPending", why, &now);
    }
}

fn storage_versions(object: &Value) -> Vec<Value> {
    let versions = items(object, "/spec/versions").iter().filter(|v| v["storage"] == true);
    versions.map(|v| v["name"].clone()).collect()
}

fn label(causes: &mut Causes, field: &str, value: &str) {
    if value.is_empty() {
        causes.push(Cause::required(field, ""));
    } else {
        causes.extend(Cause::each(field, value, names::label_1035(value)));
    }
}

fn check_spec(object: &Value) -> Causes {
    let mut causes = Causes::new();
    let spec = &object["spec"];
    let (group, plural) = (text(spec, "/group"), text(spec, "/names/plural"));
    let name = text(object, "/metadata/name");
    if name != format!("{plural}.{group}") {
        let why = "must be spec.names.plural+\".\"+spec.group";
        causes.push(Cause::invalid("metadata.name", &json!(name), why));
    }
    check_group(&mut causes, object, group);
    match text(spec, "/scope") {
        "" => causes.push(Cause::required("spec.scope", "")),
        scope => one_of(&mut causes, "spec.scope", scope, &["Cluster", "Namespaced"]),
    }
    check_names(&mut causes, &spec["names"]);
    if spec["preserveUnknownFields"] == true {
        let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        causes.push(Cause::invalid("spec.preserveUnknownFields", &json!(true), why));
    }
    check_conversion(&mut causes, &spec["conversion"]);
    check_versions(&mut causes, spec);
    causes
}

fn check_group(causes: &mut Causes, object: &Value, group: &str) {
    if group.is_empty() {
        causes.push(Cause::required("spec.group", ""));
    } else if !names::is_dns_subdomain(group) {
        causes.extend(Cause::each("spec.group", group, names::subdomain(group)));
    } else if !group.contains('.') {
        let why = "should be a domain with at least one dot";
        causes.push(Cause::invalid("spec.group", &json!(group), why));
    }
    let note = &object["metadata"]["annotations"]["api-approved.kubernetes.io"];
    if is_protected(group) && note.as_str().unwrap_or_default().is_empty() {
        let field = "metadata.annotations[api-approved.kubernetes.io]";
        let why = "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111";
        causes.push(Cause::required(field, why));
    }
}

fn check_names(causes: &mut Causes, given: &Value) {
    for field in ["plural", "singular", "kind", "listKind"] {
        let value = text(given, &format!("/{field}"));
        let place = format!("spec.names.{field}");
        if matches!(field, "kind" | "listKind") && !value.is_empty() {
            for why in names::label_1035(&value.to_lowercase()) {
                let why = format!("may have mixed case, but should otherwise match: {why}");
                causes.push(Cause::invalid(place.clone(), &json!(value), &why));
            }
        } else {
            label(causes, &place, value);
        }
    }
    if !text(given, "/kind").is_empty() && text(given, "/kind") == text(given, "/listKind") {
        let why = "kind and listKind may not be the same";
        causes.push(Cause::invalid("spec.names.listKind", &given["listKind"], why));
    }
    for list in ["shortNames", "categories"] {
        for (i, name) in items(given, &format!("/{list}")).iter().enumerate() {
            let field = format!("spec.names.{list}[{i}]");
            label(causes, &field, name.as_str().unwrap_or_default());
        }
    }
}

/// Webhooks would need a call to another server for every object; only `None` is served.
fn check_conversion(causes: &mut Causes, conversion: &Value) {
    match text(conversion, "/strategy") {
        "None" => {
            if !items(conversion, "/webhook/conversionReviewVersions").is_empty() {
                let why = "should not be set when strategy is not set to Webhook";
                causes.push(Cause::forbidden("spec.conversion.conversionReviewVersions", why));
            }
            if conversion["webhook"]["clientConfig"].is_object() {
                let why = "should not be set when strategy is not set to Webhook";
                causes.push(Cause::forbidden("spec.conversion.webhookClientConfig", why));
            }
        }
        "Webhook" => {
            let why = "conversion webhooks are not served; use strategy None";
            causes.push(Cause::forbidden("spec.conversion.strategy", why));
        }
        other => {
            one_of(causes, "spec.conversion.strategy", other, &["None", "Webhook"]);
        }
    }
}

fn check_versions(causes: &mut Causes, spec: &Value) {
    let versions = items(spec, "/versions");
    let mut seen = HashSet::new();
    for (i, version) in versions.iter().enumerate() {
        let name = text(version, "/name");
        label(causes, &format!("spec.versions[{i}].name"), name);
        if version["deprecated"] != true && !version["deprecationWarning"].is_null() {
            let field = format!("spec.versions[{i}].deprecationWarning");
            let why = "can only be set for deprecated versions";
            causes.push(Cause::invalid(field, &version["deprecationWarning"], why));
        }
        if !seen.insert(name) {
            let why = "must contain unique version names";
            causes.push(Cause::invalid("spec.versions", &json!(name), why));
        }
    }
    if versions.iter().filter(|v| v["storage"] == true).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        causes.push(Cause::invalid("spec.versions", &spec["versions"], why));
    }
    // What all versions share is reported once, at the place where older versions of the API had it.
    let of_all = |field: &str| versions.windows(2).all(|pair| pair[0][field] == pair[1][field]);
    let shared: HashMap<&str, bool> =
        ["schema", "additionalPrinterColumns", "selectableFields", "subresources"]
            .map(|field| (field, of_all(field)))
            .into();
    let shared = |field: &str| shared[field];
    for (i, version) in versions.iter().enumerate() {
        let place = |field: &str| match shared(field) {
            true => "spec".to_owned(),
            false => format!("spec.versions[{i}]"),
        };
        let first_or_own = |field: &str| i == 0 || !shared(field);
        if !version["schema"]["openAPIV3Schema"].is_object() {
            let field = format!("spec.versions[{i}].schema.openAPIV3Schema");
            causes.push(Cause::required(field, ""));
        } else if first_or_own("schema") {
            let path = match shared("schema") {
                true => "spec.validation.openAPIV3Schema".to_owned(),
                false => format!("spec.versions[{i}].schema.openAPIV3Schema"),
            };
            causes.extend(structural::check(&version["schema"]["openAPIV3Schema"], &path));
        }
        if first_or_own("additionalPrinterColumns") {
            check_columns(causes, version, &place("additionalPrinterColumns"));
        }
        if first_or_own("selectableFields") {
            check_selectable(causes, version, &place("selectableFields"));
        }
        if first_or_own("subresources") {
            check_scale(causes, version, &place("subresources"));
        }
    }
}

fn check_columns(causes: &mut Causes, version: &Value, place: &str) {
    const TYPES: &[&str] = &["boolean", "date", "integer", "number", "string"];
    const FORMATS: &[&str] =
        &["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
    for (i, column) in items(version, "/additionalPrinterColumns").iter().enumerate() {
        let field = format!("{place}.additionalPrinterColumns[{i}]");
        if text(column, "/name").is_empty() {
            causes.push(Cause::required(format!("{field}.name"), ""));
        }
        match text(column, "/type") {
            "" => {
                let why = format!("must be one of {}", TYPES.join(","));
                causes.push(Cause::required(format!("{field}.type"), &why));
            }
            kind if TYPES.contains(&kind) => {}
            kind => {
                let why = format!("must be one of {}", TYPES.join(","));
                causes.push(Cause::invalid(format!("{field}.type"), &json!(kind), &why));
            }
        }
        let format = text(column, "/format");
        if !format.is_empty() && !FORMATS.contains(&format) {
            let why = format!("must be one of {}", FORMATS.join(","));
            causes.push(Cause::invalid(format!("{field}.format"), &json!(format), &why));
        }
        let path = text(column, "/jsonPath");
        let field = format!("{field}.JSONPath");
        if path.is_empty() {
            causes.push(Cause::required(field, ""));
        } else if Column::parse(column).is_none() {
            let why = "must be a simple json path starting with .";
            causes.push(Cause::invalid(field, &json!(path), why));
        }
    }
}

fn check_selectable(causes: &mut Causes, version: &Value, place: &str) {
    let schema = &version["schema"]["openAPIV3Schema"];
    for (i, selectable) in items(version, "/selectableFields").iter().enumerate() {
        let field = format!("{place}.selectableFields[{i}].jsonPath");
        let path = text(selectable, "/jsonPath");
        if path.is_empty() {
            causes.push(Cause::required(field, ""));
            continue;
        }
        let parsed = Path::parse(path).filter(Path::is_simple);
        let found = parsed.as_ref().and_then(|path| {
            path.fields().iter().try_fold(schema, |at, name| at["properties"].get(*name))
        });
        let scalar = found.and_then(|s| s["type"].as_str());
        if !matches!(scalar, Some("string" | "integer" | "boolean")) {
            let why = "is an invalid path: does not refer to a valid field";
            causes.push(Cause::invalid(field, &json!(path), why));
        }
    }
}

fn check_scale(causes: &mut Causes, version: &Value, place: &str) {
    let scale = &version["subresources"]["scale"];
    if !scale.is_object() {
        return;
    }
    for (name, under) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
        let field = format!("{place}.subresources.scale.{name}");
        let path = scale[name].as_str().unwrap_or_default();
        let simple = Path::parse(path).is_some_and(|path| path.is_simple());
        if path.is_empty() {
            causes.push(Cause::required(field, ""));
        } else if !simple {
            let why = "must be a simple json path starting with .";
            causes.push(Cause::invalid(field, &json!(path), why));
        } else if !path.starts_with(under) {
            let why = format!("should be a json path under {}", under.trim_end_matches('.'));
            causes.push(Cause::invalid(field, &json!(path), &why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> Value {
        json!({"metadata": {"name": "ws.g.example.com"}, "spec": {
            "group": "g.example.com", "scope": "Namespaced", "names": {"plural": "ws", "kind": "W"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}],
        }})
    }

    fn found(change: impl Fn(&mut Value)) -> Vec<(&'static str, String)> {
        let mut object = definition();
        change(&mut object);
        Definition.default(&mut object);
        check_spec(&object).into_iter().map(|c| (c.reason, c.field)).collect()
    }

    #[test]
    fn invalid_definitions_are_refused_field_by_field() {
        assert_eq!(found(|_| {}), []);
        type Row = (fn(&mut Value), &'static str, &'static str);
        let rows: &[Row] = &[
            (|d| d["metadata"]["name"] = json!("x"), "FieldValueInvalid", "metadata.name"),
            (
                |d| d["spec"]["versions"][0]["storage"] = json!(false),
                "FieldValueInvalid",
                "spec.versions",
            ),
            (
                |d| d["spec"]["versions"][0]["schema"] = json!(null),
                "FieldValueRequired",
                "spec.versions[0].schema.openAPIV3Schema",
            ),
            (|d| d["spec"]["scope"] = json!("X"), "FieldValueNotSupported", "spec.scope"),
            (
                |d| {
                    d["spec"]["group"] = json!("x.k8s.io");
                    d["metadata"]["name"] = json!("ws.x.k8s.io");
                },
                "FieldValueRequired",
                "metadata.annotations[api-approved.kubernetes.io]",
            ),
            (
                |d| d["spec"]["names"]["shortNames"] = json!(["W_"]),
                "FieldValueInvalid",
                "spec.names.shortNames[0]",
            ),
            (
                |d| d["spec"]["conversion"] = json!({"strategy": "Webhook"}),
                "FieldValueForbidden",
                "spec.conversion.strategy",
            ),
            (
                |d| {
                    d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["a"] =
                        json!({})
                },
                "FieldValueRequired",
                "spec.validation.openAPIV3Schema.properties[a].type",
            ),
            (
                |d| {
                    d["spec"]["versions"][0]["additionalPrinterColumns"] =
                        json!([{"name": "A", "type": "zz", "jsonPath": ".a"}])
                },
                "FieldValueInvalid",
                "spec.additionalPrinterColumns[0].type",
            ),
            (
                |d| d["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.z"}]),
                "FieldValueInvalid",
                "spec.selectableFields[0].jsonPath",
            ),
        ];
        for (change, reason, field) in rows {
            assert_eq!(found(change), [(*reason, (*field).to_owned())]);
        }
    }

    #[test]
    fn whole_number_bounds_stay_whole_numbers() {
        let mut object = definition();
        object["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] =
            json!({"n": {"type": "integer", "minimum": 1, "maximum": 2.5}});
        let decoded = codec(&object).unwrap();
        let n = &decoded["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["n"];
        assert_eq!(n.to_string(), r#"{"maximum":2.5,"minimum":1,"type":"integer"}"#);
    }
}
