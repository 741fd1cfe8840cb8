//! `metadata`: what the server sets, what clients may change, and what is valid.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::rules::text;
use super::{Resource, go_values, names, strategy::Generation};
use crate::clock::Environment;
use crate::crd::definition::CLEANUP;
use crate::error::{Cause, Causes, brief};

const MAX_ANNOTATION_BYTES: usize = 256 * 1024;
/// Elements of a list that a refusal names.
const MAX_NAMED: usize = 100;

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
pub(crate) fn prepare_create(
    object: &mut Value,
    resource: &Resource,
    namespace: &str,
    env: &Environment,
) {
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
pub(crate) fn restore(new: &mut Value, old: &Value) {
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
pub(crate) fn count_generation(new: &mut Value, old: &Value, resource: &Resource) {
    let strategy = &resource.strategy;
    if strategy.traits().generation == Generation::Absent || !strategy.is_new_generation(new, old) {
        return;
    }
    let next = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
    new["metadata"]["generation"] = json!(next);
}

/// Judges the metadata of a new object.
pub(crate) fn validate_create(object: &Value, resource: &Resource) -> Causes {
    let meta = &object["metadata"];
    let mut causes = Causes::new();
    let name = text(meta, "/name");
    let check = |name: &str| {
        if resource.traits().path_names {
            names::path_segment(name)
        } else if resource.traits().label_names {
            names::label(name)
        } else {
            names::subdomain(name)
        }
    };
    let prefix = text(meta, "/generateName");
    if !prefix.is_empty() {
        // A dash at the end is followed by something else.
        let whole = prefix.strip_suffix('-').map_or(prefix.to_owned(), |start| format!("{start}a"));
        causes.extend(Cause::each("metadata.generateName", prefix, check(&whole)));
    }
    if name.is_empty() {
        causes.push(Cause::required("metadata.name", "name or generateName is required"));
    } else {
        causes.extend(Cause::each("metadata.name", name, check(name)));
    }
    if meta["generation"].as_i64().is_some_and(|generation| generation < 0) {
        let why = "must be greater than or equal to 0";
        causes.push(Cause::invalid("metadata.generation", &meta["generation"], why));
    }
    validate_common(meta, &mut causes);
    causes
}

/// Judges the metadata of a changed object.
pub(crate) fn validate_update(new: &Value, old: &Value) -> Causes {
    let (new, old) = (&new["metadata"], &old["metadata"]);
    let mut causes = Causes::new();
    if !old["deletionTimestamp"].is_null() {
        let had = old["finalizers"].as_array().map_or(&[][..], Vec::as_slice);
        let has = new["finalizers"].as_array().map_or(&[][..], Vec::as_slice);
        let had: HashSet<&Value> = had.iter().collect();
        let mut added = has.iter().filter(|f| !had.contains(f)).peekable();
        if added.peek().is_some() {
            let shown: Vec<String> = added.take(MAX_NAMED).map(brief).collect();
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                shown.join(", ")
            );
            causes.push(Cause::forbidden("metadata.finalizers", &why));
        }
    }
    validate_common(new, &mut causes);
    causes
}

/// How much the annotations hold.
fn annotation_bytes(meta: &Value) -> usize {
    let all = meta["annotations"].as_object().into_iter().flatten();
    all.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum()
}

fn validate_common(meta: &Value, causes: &mut Causes) {
    for (key, value) in meta["labels"].as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        causes.extend(Cause::each("metadata.labels", key, names::qualified(key)));
        causes.extend(Cause::each("metadata.labels", value, names::label_value(value)));
    }
    for key in meta["annotations"].as_object().into_iter().flatten().map(|(key, _)| key) {
        let problems = names::qualified(&key.to_lowercase());
        causes.extend(Cause::each("metadata.annotations", key, problems));
    }
    if annotation_bytes(meta) > MAX_ANNOTATION_BYTES {
        causes.push(Cause::too_long("metadata.annotations", MAX_ANNOTATION_BYTES));
    }
    for (i, finalizer) in meta["finalizers"].as_array().into_iter().flatten().enumerate() {
        validate_finalizer(i, finalizer, causes);
    }
    validate_owners(meta, causes);
}

fn validate_finalizer(index: usize, finalizer: &Value, causes: &mut Causes) {
    const SHORT: &[&str] = &["orphan", "foregroundDeletion", "kubernetes", CLEANUP];
    let name = finalizer.as_str().unwrap_or_default();
    let field = format!("metadata.finalizers[{index}]");
    let problems = names::qualified(name);
    if !problems.is_empty() {
        causes.extend(Cause::each("metadata.finalizers", name, problems));
    } else if !name.contains('/') && !SHORT.contains(&name) {
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        causes.push(Cause::invalid(field, finalizer, why));
    }
}

fn validate_owners(meta: &Value, causes: &mut Causes) {
    let owners = meta["ownerReferences"].as_array().map_or(&[][..], Vec::as_slice);
    for (i, owner) in owners.iter().enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, &format!("/{field}")).is_empty() {
                let path = format!("metadata.ownerReferences[{i}].{field}");
                causes.push(Cause::required(path, "must not be empty"));
            }
        }
        let version = text(owner, "/apiVersion");
        if version.matches('/').count() > 1 {
            let path = format!("metadata.ownerReferences[{i}].apiVersion");
            let why = "must be <group>/<version> or <version>";
            causes.push(Cause::invalid(path, &version.into(), why));
        }
        // Events go by themselves, so nothing may hang on them.
        if version == "v1" && text(owner, "/kind") == "Event" {
            let (path, why) = (
                format!("metadata.ownerReferences[{i}]"),
                "/v1, Kind=Event is disallowed from being an owner",
            );
            causes.push(Cause::invalid_shown(path, &go_values::owner(owner), why));
        }
    }
    let mut leads = owners.iter().filter(|o| o["controller"] == true);
    if let (Some(first), Some(second)) = (leads.next(), leads.next()) {
        let name = |o: &Value| format!("{}/{}", text(o, "/kind"), text(o, "/name"));
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {} and {}",
            name(first),
            name(second)
        );
        let all: Vec<String> = owners.iter().take(MAX_NAMED).map(go_values::owner).collect();
        let shown = format!("[{}]", all.join(","));
        causes.push(Cause::invalid_shown("metadata.ownerReferences", &shown, &why));
    }
}
