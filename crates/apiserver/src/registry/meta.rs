//! `metadata`: what the server sets, what clients may change, and what is valid.

use serde_json::{Value, json};

use super::rules::text;
use super::{Resource, names, strategy::Generation};
use crate::clock::Environment;
use crate::crd::definition::CLEANUP;
use crate::error::Cause;

const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// Fields that belong to the server; whatever a client sends in them is dropped.
const SERVER_FIELDS: &[&str] = &[
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "resourceVersion",
    "generation",
    "selfLink",
    "managedFields",
];

/// Readies the metadata of a new object; the name is made up if asked for.
pub fn prepare_create(object: &mut Value, resource: &Resource, namespace: &str, env: &Environment) {
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    let meta = &mut object["metadata"];
    let generation = meta.get("generation").filter(|g| !g.is_null()).cloned();
    if let Some(map) = meta.as_object_mut() {
        SERVER_FIELDS.iter().for_each(|field| drop(map.remove(*field)));
    }
    if text(meta, "/name").is_empty() && !text(meta, "/generateName").is_empty() {
        meta["name"] = json!(env.name(text(meta, "/generateName")));
    }
    meta["uid"] = json!(env.uid());
    meta["creationTimestamp"] = json!(env.now_text());
    if resource.namespaced {
        meta["namespace"] = json!(namespace);
    }
    match (resource.traits().generation, generation) {
        (Generation::FromOne, _) => meta["generation"] = json!(1),
        // Where the server does not count, the number is the client's own business.
        (_, Some(generation)) => meta["generation"] = generation,
        (_, None) => {}
    }
}

/// Puts back what the server owns after a client sent a whole object.
pub fn restore(new: &mut Value, old: &Value) {
    let (old, new) = (&old["metadata"], &mut new["metadata"]);
    for field in SERVER_FIELDS.iter().copied().chain(["name", "namespace"]) {
        match old.get(field) {
            Some(value) => new[field] = value.clone(),
            None => {
                if let Some(map) = new.as_object_mut() {
                    map.remove(field);
                }
            }
        }
    }
}

/// Counts a new generation when the counted part changed.
pub fn count_generation(new: &mut Value, old: &Value, resource: &Resource) {
    let strategy = &resource.strategy;
    if strategy.traits().generation == Generation::Absent || !strategy.is_new_generation(new, old) {
        return;
    }
    let next = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
    new["metadata"]["generation"] = json!(next);
}

/// Judges the metadata of a new object.
pub fn validate_create(object: &Value, resource: &Resource) -> Vec<Cause> {
    let meta = &object["metadata"];
    let mut causes = Vec::new();
    let name = text(meta, "/name");
    let problems = if resource.traits().path_names {
        names::path_segment(name)
    } else if resource.traits().label_names {
        names::label(name)
    } else {
        names::subdomain(name)
    };
    if name.is_empty() {
        causes.push(Cause::required("metadata.name", "name or generateName is required"));
    } else {
        causes.extend(Cause::each("metadata.name", name, problems));
    }
    validate_common(meta, &mut causes);
    causes
}

/// Judges the metadata of a changed object.
pub fn validate_update(new: &Value, old: &Value) -> Vec<Cause> {
    let (new, old) = (&new["metadata"], &old["metadata"]);
    let mut causes = Vec::new();
    if !old["deletionTimestamp"].is_null() {
        let had = old["finalizers"].as_array().map_or(&[][..], Vec::as_slice);
        let has = new["finalizers"].as_array().map_or(&[][..], Vec::as_slice);
        let added: Vec<String> =
            has.iter().filter(|f| !had.contains(f)).map(Value::to_string).collect();
        if !added.is_empty() {
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            causes.push(Cause::forbidden("metadata.finalizers", &why));
        }
    }
    validate_common(new, &mut causes);
    causes
}

fn validate_common(meta: &Value, causes: &mut Vec<Cause>) {
    for (key, value) in meta["labels"].as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        causes.extend(Cause::each("metadata.labels", key, names::qualified(key)));
        causes.extend(Cause::each("metadata.labels", value, names::label_value(value)));
    }
    let mut size = 0;
    for (key, value) in meta["annotations"].as_object().into_iter().flatten() {
        let problems = names::qualified(&key.to_lowercase());
        causes.extend(Cause::each("metadata.annotations", key, problems));
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > MAX_ANNOTATION_BYTES {
        causes.push(Cause::too_long("metadata.annotations", MAX_ANNOTATION_BYTES));
    }
    for (i, finalizer) in meta["finalizers"].as_array().into_iter().flatten().enumerate() {
        validate_finalizer(i, finalizer, causes);
    }
    validate_owners(meta, causes);
}

fn validate_finalizer(index: usize, finalizer: &Value, causes: &mut Vec<Cause>) {
    const SHORT: &[&str] = &["orphan", "foregroundDeletion", "kubernetes", CLEANUP];
    let name = finalizer.as_str().unwrap_or_default();
    let field = format!("metadata.finalizers[{index}]");
    let problems = names::qualified(name);
    if !problems.is_empty() {
        causes.extend(Cause::each(&field, name, problems));
    } else if !name.contains('/') && !SHORT.contains(&name) {
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        causes.push(Cause::invalid(field, finalizer, why));
    }
}

fn validate_owners(meta: &Value, causes: &mut Vec<Cause>) {
    let owners = meta["ownerReferences"].as_array().map_or(&[][..], Vec::as_slice);
    for (i, owner) in owners.iter().enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, &format!("/{field}")).is_empty() {
                let path = format!("metadata.ownerReferences[{i}].{field}");
                causes.push(Cause::invalid(path, &owner[field], "must not be empty"));
            }
        }
    }
    if owners.iter().filter(|o| o["controller"] == true).count() > 1 {
        let why = "Only one reference can have Controller set to true";
        causes.push(Cause::invalid("metadata.ownerReferences", &json!(owners), why));
    }
}
