//! Custom resource definitions: names are granted, kinds are served, and a deleted definition goes
//! after its objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::crd::definition::CLEANUP;
use crate::crd::{self, Names};
use crate::error::{ApiResult, Status};
use crate::ops::{Core, DeleteOptions, Part, Source, Target, WriteOptions};
use crate::registry::Resource;

/// Where definitions are stored.
pub(super) const STORAGE: &str = "apiextensions.k8s.io/customresourcedefinitions";

/// Brings names, served kinds and deletions in line with the stored definitions.
pub(crate) async fn settle(core: &Core) -> ApiResult<()> {
    let now = core.env.now_text();
    let all: Vec<Value> =
        core.store.list(STORAGE, None).objects.iter().map(|o| o.value()).collect();
    let mut names: BTreeMap<String, Names> = BTreeMap::new();
    for definition in &all {
        names.entry(group(definition)).or_default().take(definition);
    }
    let mut settled = Vec::with_capacity(all.len());
    for definition in &all {
        let taken = names.entry(group(definition)).or_default();
        let new = crd::settle(definition, taken, &now);
        taken.take(&new);
        settled.push(new);
    }
    // Served first: who waits for the condition finds the kind there.
    core.serve(settled.iter().filter(|d| crd::is_established(d)));
    for (old, new) in all.iter().zip(&settled) {
        if old["status"] != new["status"] {
            write_status(core, new).await?;
        }
        if !new["metadata"]["deletionTimestamp"].is_null() {
            clean(core, new).await?;
        }
    }
    Ok(())
}

fn group(definition: &Value) -> String {
    definition["spec"]["group"].as_str().unwrap_or_default().to_owned()
}

fn target(core: &Core, definition: &Value) -> Option<Target> {
    let registry = core.registry();
    let resource = registry.find("apiextensions.k8s.io", "v1", "customresourcedefinitions")?;
    Some(Target {
        resource: Arc::clone(resource),
        namespace: String::new(),
        name: definition["metadata"]["name"].as_str()?.to_owned(),
    })
}

async fn write_status(core: &Core, definition: &Value) -> ApiResult<()> {
    let Some(target) = target(core, definition) else { return Ok(()) };
    let source = Source::Whole { body: definition.clone(), duplicate_fields: Vec::new() };
    done(core.update(&target, Part::Status, &source, WriteOptions::default()).await.map(drop))
}

/// Deletes what is left of a definition that is going, then lets it go.
async fn clean(core: &Core, definition: &Value) -> ApiResult<()> {
    let holds = definition["metadata"]["finalizers"].as_array();
    if !holds.is_some_and(|list| list.iter().any(|f| f == CLEANUP)) {
        return Ok(());
    }
    if delete_objects(core, definition).await? > 0 {
        // Each removal is a change, which brings us back here.
        return Ok(());
    }
    let rest: Vec<&Value> = holds.into_iter().flatten().filter(|f| *f != CLEANUP).collect();
    let Some(target) = target(core, definition) else { return Ok(()) };
    let patch = json!({"metadata": {
        "resourceVersion": definition["metadata"]["resourceVersion"], "finalizers": rest,
    }});
    let source = Source::Patch(crate::patch::Patch::Merge(patch));
    done(core.update(&target, Part::Main, &source, WriteOptions::default()).await.map(drop))
}

async fn delete_objects(core: &Core, definition: &Value) -> ApiResult<usize> {
    let plural = definition["spec"]["names"]["plural"].as_str().unwrap_or_default();
    // A definition from before such names were refused has no objects of its own.
    if core.registry().is_builtin(&group(definition), plural) {
        return Ok(0);
    }
    // Objects of a definition without a served version go too.
    let unserved = || crd::unserved(definition, &CancellationToken::new());
    let Some(resource) = served(core, definition).or_else(unserved) else { return Ok(0) };
    let objects = core.store.list(&resource.storage, None).objects;
    for object in objects.iter().filter(|object| !object.deleting) {
        let target = Target {
            resource: Arc::clone(&resource),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
        };
        done(core.delete(&target, &DeleteOptions::default()).await.map(drop))?;
    }
    Ok(core.store.list(&resource.storage, None).objects.len())
}

/// The entry that stands for the definition's objects.
fn served(core: &Core, definition: &Value) -> Option<Arc<Resource>> {
    let plural = definition["spec"]["names"]["plural"].as_str()?;
    let group = group(definition);
    let registry = core.registry();
    registry
        .stored()
        .find(|r| r.custom.is_some() && r.group == group && r.plural == plural)
        .cloned()
}

/// What is gone needs no more work; a conflict comes back with the change that caused it.
fn done(result: Result<(), Status>) -> ApiResult<()> {
    match result {
        Err(status) if matches!(status.code, 404 | 409) => Ok(()),
        other => other,
    }
}
