//! The objects that a server starts with: namespaces, roles, and the kinds for snapshots.

use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::error::{ApiResult, Status};
use crate::housekeeping;
use crate::ops::{Core, Part, Source, Target, WriteOptions};
use crate::patch::Patch;
use crate::registry::Resource;

/// Namespaces that are always there.
const NAMESPACES: &[&str] = &["default", "kube-system", "kube-public", "kube-node-lease"];
/// Says on a definition which of our texts it was made from, and its generation after that.
const MADE_FROM: &str = "longshore.dev/made-from";

macro_rules! definitions {
    ($($name:literal),* $(,)?) => {
        &[$(include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds/", $name, ".yaml"
        ))),*]
    };
}

/// The kinds for snapshots: ordinary definitions, the same files that are for real clusters.
const DEFINITIONS: &[&str] = definitions![
    "volumesnapshotclasses.snapshot.storage.k8s.io",
    "volumesnapshots.snapshot.storage.k8s.io",
    "volumesnapshotcontents.snapshot.storage.k8s.io",
    "volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io",
    "volumegroupsnapshots.groupsnapshot.storage.k8s.io",
    "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io",
];

/// Writes what is missing.
///
/// # Errors
/// When the store refuses.
pub(crate) async fn write(core: &Core, snapshot_kinds: bool) -> ApiResult<()> {
    let registry = core.registry();
    let namespaces = registry.core("namespaces");
    for name in NAMESPACES {
        create_missing(core, namespaces, json!({"metadata": {"name": name}})).await?;
    }
    for (plural, body) in housekeeping::first_roles() {
        if let Some(resource) = registry.find("rbac.authorization.k8s.io", "v1", plural) {
            create_missing(core, resource, body).await?;
        }
    }
    if snapshot_kinds {
        write_definitions(core).await?;
    }
    Ok(())
}

async fn create_missing(core: &Core, resource: &Arc<Resource>, body: Value) -> ApiResult<()> {
    let name = body["metadata"]["name"].as_str().unwrap_or_default();
    if core.store.get(&resource.key("", name)).is_none() {
        let target = Target {
            resource: Arc::clone(resource),
            namespace: String::new(),
            name: String::new(),
        };
        core.create(&target, body, &[], WriteOptions::default()).await?;
    }
    Ok(())
}

async fn write_definitions(core: &Core) -> ApiResult<()> {
    let registry = core.registry();
    let found = registry.find("apiextensions.k8s.io", "v1", "customresourcedefinitions");
    let Some(resource) = found else { return Ok(()) };
    for text in DEFINITIONS {
        write_definition(core, resource, text).await?;
    }
    // Served before the first request.
    housekeeping::settle_definitions(core).await
}

/// Makes a definition, or brings one that an earlier release made up to date. One that a user
/// changed or brought is theirs.
async fn write_definition(core: &Core, resource: &Arc<Resource>, text: &str) -> ApiResult<()> {
    let mut body: Value = serde_saphyr::from_str(text)
        .map_err(|error| Status::internal(format!("a built-in definition: {error}")))?;
    let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let hash = hex::encode(&Sha256::digest(text.as_bytes())[..8]);
    let Some(stored) = core.store.get(&resource.key("", &name)) else {
        body["metadata"]["annotations"][MADE_FROM] = json!(made_from(&hash, 1));
        return create_missing(core, resource, body).await;
    };
    let old = stored.value();
    let generation = old["metadata"]["generation"].as_i64().unwrap_or_default();
    let note = old["metadata"]["annotations"][MADE_FROM].as_str().unwrap_or_default();
    let (from, at) = note.split_once('/').unwrap_or_default();
    if from == hash || from.is_empty() || at != generation.to_string() {
        return Ok(());
    }
    let patch = json!({
        "metadata": {"annotations": {MADE_FROM: made_from(&hash, generation + 1)}},
        "spec": body["spec"],
    });
    let target = Target { resource: Arc::clone(resource), namespace: String::new(), name };
    let source = Source::Patch(Patch::Merge(patch));
    core.update(&target, Part::Main, &source, WriteOptions::default()).await.map(drop)
}

fn made_from(hash: &str, generation: i64) -> String {
    format!("{hash}/{generation}")
}
