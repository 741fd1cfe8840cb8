//! The schemas in the OpenAPI documents, from the Rust types of built-in kinds and from definitions.
//!
//! The types know names, fields and texts; how lists merge comes from the facts that server-side
//! apply uses too.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::registry::{Resource, facts};

const COMPONENTS: &str = "#/components/schemas/";

/// The schemas of some kinds and of all they refer to, by name.
pub(super) fn of<'a>(resources: impl Iterator<Item = &'a Arc<Resource>>) -> Map<String, Value> {
    let mut generator = SchemaGenerator::default();
    let mut custom = Map::new();
    let mut kinds: Vec<(String, Value)> = Vec::new();
    for resource in resources {
        let kind = json!({
            "group": resource.group, "kind": resource.kind, "version": resource.version,
        });
        if let Some((_, typed)) = &resource.builtin {
            (typed.describe)(&mut generator);
            kinds.push((typed.name.clone(), kind));
        } else if let Some(found) = &resource.custom {
            generator.subschema_for::<ObjectMeta>();
            let name = custom_name(resource);
            custom.insert(name.clone(), custom_schema(&found.source));
            kinds.push((name, kind));
        }
    }
    let mut schemas = generator.take_definitions(true);
    for (name, schema) in &mut schemas {
        finish(name, schema);
    }
    schemas.extend(custom);
    for (name, kind) in kinds {
        let Some(schema) = schemas.get_mut(&name) else { continue };
        match schema.get_mut("x-kubernetes-group-version-kind").and_then(Value::as_array_mut) {
            Some(list) => list.push(kind),
            None => schema["x-kubernetes-group-version-kind"] = json!([kind]),
        }
    }
    schemas
}

/// `com.example.g.v1.Widget`.
fn custom_name(resource: &Resource) -> String {
    let mut parts: Vec<&str> = resource.group.split('.').rev().collect();
    parts.extend([resource.version.as_str(), resource.kind.as_str()]);
    parts.join(".")
}

fn custom_schema(source: &Value) -> Value {
    let mut schema = source.clone();
    if !schema["properties"].is_object() {
        schema["properties"] = json!({});
    }
    let text = |what: &str| json!({"type": "string", "description": what});
    schema["properties"]["apiVersion"] = text("The group and version this object is written in.");
    schema["properties"]["kind"] = text("What the object is.");
    schema["properties"]["metadata"] = json!({
        "description": "Standard object's metadata.",
        "allOf": [{"$ref": format!("{COMPONENTS}{}", ObjectMeta::schema_name())}],
    });
    schema
}

/// Turns a generated schema into a published one.
fn finish(name: &str, schema: &mut Value) {
    match name.rsplit('.').next().unwrap_or_default() {
        "Quantity" => {
            if let Some(map) = schema.as_object_mut() {
                map.remove("type");
            }
            schema["oneOf"] = json!([{"type": "string"}, {"type": "number"}]);
        }
        "IntOrString" => {
            let text = schema["description"].clone();
            *schema = json!({"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"});
            if text.is_string() {
                schema["description"] = text;
            }
        }
        _ => {}
    }
    if facts::is_atomic(name) {
        schema["x-kubernetes-map-type"] = json!("atomic");
    }
    require(name, schema);
    references(schema, true);
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (field, property) in fields.into_iter().flatten() {
        describe_list(name, field, property);
        if let Some(values) = facts::values(name, field) {
            let whole = ["items", "additionalProperties"].iter().all(|n| property.get(n).is_none());
            let at = if whole {
                ""
            } else if property["type"] == "array" {
                "/items"
            } else {
                "/additionalProperties"
            };
            if let Some(place) = property.pointer_mut(at) {
                place["enum"] = json!(values);
            }
        }
    }
}

/// The path says what the object is, and metadata is always there.
fn require(name: &str, schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    let required: Vec<Value> = match facts::required(name) {
        Some(fields) => fields.iter().map(|field| json!(field)).collect(),
        None => {
            let known = map.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
            let implied =
                |field: &Value| field == "metadata" || field == "kind" || field == "apiVersion";
            known.into_iter().filter(|field| !implied(field)).collect()
        }
    };
    if required.is_empty() {
        map.remove("required");
    } else {
        map.insert("required".into(), json!(required));
    }
}

fn describe_list(owner: &str, field: &str, property: &mut Value) {
    if facts::is_atomic_field(owner, field) {
        property["x-kubernetes-map-type"] = json!("atomic");
    }
    if facts::is_granular(owner, field) {
        property["x-kubernetes-map-type"] = json!("granular");
    }
    if property["type"] == "array" {
        match facts::list(owner, field) {
            None => property["x-kubernetes-list-type"] = json!("atomic"),
            Some([]) => property["x-kubernetes-list-type"] = json!("set"),
            Some(keys) => {
                property["x-kubernetes-list-type"] = json!("map");
                property["x-kubernetes-list-map-keys"] = json!(keys);
            }
        }
        if let Some((strategy, key)) = facts::patch(owner, field) {
            property["x-kubernetes-patch-strategy"] = json!(strategy);
            if let Some(key) = key {
                property["x-kubernetes-patch-merge-key"] = json!(key);
            }
        }
    }
}

/// Points references to where the document has its schemas. A reference that stands beside other
/// keywords, or is a field's whole schema, is wrapped: on its own it would hide them.
fn references(schema: &mut Value, root: bool) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(target)) = map.get("$ref") {
                let name = target.rsplit('/').next().unwrap_or_default();
                let reference = json!({"$ref": format!("{COMPONENTS}{name}")});
                if map.len() == 1 {
                    map.extend(reference.as_object().cloned().unwrap_or_default());
                } else {
                    map.remove("$ref");
                    map.insert("allOf".into(), json!([reference]));
                }
                return;
            }
            for (name, inner) in map.iter_mut() {
                references(inner, false);
                if root && name == "properties" {
                    wrap_fields(inner);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|inner| references(inner, false)),
        _ => {}
    }
}

fn wrap_fields(properties: &mut Value) {
    for (_, property) in properties.as_object_mut().into_iter().flatten() {
        if property["$ref"].is_string() {
            *property = json!({"allOf": [property.take()]});
        }
    }
}

/// The same schemas for a document of the second version.
pub(super) fn as_v2(schemas: &Map<String, Value>) -> Value {
    fn convert(schema: &mut Value) {
        let Some(map) = schema.as_object_mut() else { return };
        // Alternatives cannot be said there, and a lone reference stands by itself.
        for name in ["oneOf", "anyOf", "not", "nullable"] {
            map.remove(name);
        }
        if let Some(Value::Array(parts)) = map.remove("allOf")
            && let Some(Value::Object(only)) = parts.into_iter().next()
        {
            map.extend(only);
        }
        if let Some(Value::String(target)) = map.get_mut("$ref") {
            *target = target.replace(COMPONENTS, "#/definitions/");
        }
        for name in ["items", "additionalProperties"] {
            if let Some(inner) = map.get_mut(name) {
                convert(inner);
            }
        }
        if let Some(Value::Object(properties)) = map.get_mut("properties") {
            properties.values_mut().for_each(convert);
        }
    }
    let mut definitions = Value::Object(schemas.clone());
    definitions.as_object_mut().into_iter().flatten().for_each(|(_, schema)| convert(schema));
    definitions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;

    #[test]
    fn schemas_say_what_clients_look_for() {
        let registry = Registry::builtin();
        let schemas = of(registry.resources().iter());
        let claim = &schemas["io.k8s.api.core.v1.PersistentVolumeClaim"];
        assert_eq!(
            claim["x-kubernetes-group-version-kind"],
            json!([{"group": "", "kind": "PersistentVolumeClaim", "version": "v1"}])
        );
        let spec = "#/components/schemas/io.k8s.api.core.v1.PersistentVolumeClaimSpec";
        assert_eq!(claim["properties"]["spec"]["allOf"], json!([{"$ref": spec}]));
        let pod = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"];
        assert_eq!(pod["containers"]["x-kubernetes-patch-merge-key"], "name");
        assert_eq!(pod["volumes"]["x-kubernetes-patch-strategy"], "merge,retainKeys");
        assert_eq!(pod["tolerations"]["x-kubernetes-list-type"], "atomic");
        let class = &schemas["io.k8s.api.storage.v1.StorageClass"];
        assert_eq!(class["required"], json!(["provisioner"]));
        assert_eq!(class["properties"]["reclaimPolicy"]["enum"][0], "Delete");
        let modes =
            &schemas["io.k8s.api.core.v1.PersistentVolumeClaimSpec"]["properties"]["accessModes"];
        assert_eq!(modes["items"]["enum"][3], "ReadWriteOncePod");
        assert!(schemas["io.k8s.apimachinery.pkg.api.resource.Quantity"].get("type").is_none());
        for schema in schemas.values().filter_map(Value::as_object) {
            assert!(schema.values().all(|value| !value.is_null()), "{schema:?}");
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn check(value: &Value, schemas: &Map<String, Value>) {
            match value {
                Value::Object(map) => {
                    if let Some(Value::String(target)) = map.get("$ref") {
                        let name = target.strip_prefix(COMPONENTS).unwrap();
                        assert!(schemas.contains_key(name), "{target}");
                    }
                    map.values().for_each(|inner| check(inner, schemas));
                }
                Value::Array(list) => list.iter().for_each(|inner| check(inner, schemas)),
                _ => {}
            }
        }
        let registry = Registry::builtin();
        let schemas = of(registry.resources().iter());
        schemas.values().for_each(|schema| check(schema, &schemas));
        let old = as_v2(&schemas);
        let claim = &old["io.k8s.api.core.v1.PersistentVolumeClaim"]["properties"]["spec"];
        assert_eq!(claim["$ref"], "#/definitions/io.k8s.api.core.v1.PersistentVolumeClaimSpec");
        assert!(!old.to_string().contains(COMPONENTS));
    }
}
