//! Namespaces on their way out.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::error::ApiResult;
use crate::ops::{Core, DeleteOptions, Part, Source, Target, WriteOptions};
use crate::patch::Patch;

/// Deletes what is left in a terminating namespace, then lets the namespace go.
pub(super) async fn empty(core: &Core, name: &str) -> ApiResult<()> {
    let mut left = 0;
    let registry = core.registry();
    for resource in registry.stored().filter(|r| r.namespaced) {
        for object in core.store.list(&resource.storage, Some(name)).objects {
            left += 1;
            if object.deleting {
                continue;
            }
            let target = Target {
                resource: Arc::clone(resource),
                namespace: name.to_owned(),
                name: object.name.clone(),
            };
            match core.delete(&target, &DeleteOptions::default()).await {
                Ok(_) => {}
                Err(status) if status.code == 404 => {}
                Err(status) => return Err(status),
            }
        }
    }
    if left > 0 {
        // Each removal is a change, which brings us back here.
        return Ok(());
    }
    release(core, name).await
}

async fn release(core: &Core, name: &str) -> ApiResult<()> {
    let registry = core.registry();
    let namespaces = registry.core("namespaces");
    let Some(found) = core.store.get(&namespaces.key("", name)) else { return Ok(()) };
    let rest: Vec<Value> = found.value()["spec"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|f| *f != "kubernetes")
        .cloned()
        .collect();
    let target =
        Target { resource: Arc::clone(namespaces), namespace: String::new(), name: name.into() };
    // The version makes sure that we release the namespace we found empty.
    let patch = json!({
        "metadata": {"resourceVersion": found.revision.to_string()},
        "spec": {"finalizers": rest},
    });
    let source = Source::Patch(Patch::Merge(patch));
    match core.update(&target, Part::Finalize, &source, WriteOptions::default()).await {
        Ok(_) => Ok(()),
        Err(status) if status.code == 404 => Ok(()),
        Err(status) => Err(status),
    }
}
