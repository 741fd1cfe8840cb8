//! Snapshots, as their controllers would leave them.
//!
//! The kinds are defined in a few lines: the full definitions would cost every run more than all
//! the rest, and the provisioner reads no more than this.

use longshore_cluster::{Api, ApiError, ObjectKey, Patch};
use longshore_core::model::Kind;
use longshore_core::model::kinds::{VolumeSnapshot, VolumeSnapshotContent};
use longshore_csi::v1;
use serde_json::{Value, json};

use crate::DRIVER;
use crate::user::{User, UserError};

struct Definition;

impl Kind for Definition {
    const GROUP: &'static str = "apiextensions.k8s.io";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "CustomResourceDefinition";
    const PLURAL: &'static str = "customresourcedefinitions";
    const NAMESPACED: bool = false;
}

/// Defines both kinds.
pub(crate) async fn define(api: &Api) -> Result<(), ApiError> {
    api.create::<Definition>(&definition::<VolumeSnapshot>()).await?;
    api.create::<Definition>(&definition::<VolumeSnapshotContent>()).await?;
    Ok(())
}

fn definition<T: Kind>() -> Value {
    let scope = if T::NAMESPACED { "Namespaced" } else { "Cluster" };
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "metadata": {
            "name": format!("{}.{}", T::PLURAL, T::GROUP),
            // Without it the API server refuses kinds of this group.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a simulation"},
        },
        "spec": {
            "group": T::GROUP,
            "scope": scope,
            "names": {"kind": T::KIND, "plural": T::PLURAL, "singular": T::KIND.to_lowercase()},
            "versions": [{"name": T::VERSION, "served": true, "storage": true,
                "subresources": {"status": {}}, "schema": {"openAPIV3Schema": any}}],
        },
    })
}

/// What a claim says that is to be filled from a snapshot.
pub(crate) fn source(snapshot: &str) -> Value {
    json!({"apiGroup": VolumeSnapshot::GROUP, "kind": VolumeSnapshot::KIND, "name": snapshot})
}

/// Takes a ready snapshot of a volume.
pub(crate) async fn take(
    user: &User,
    handle: &str,
    claim: &str,
    name: &str,
) -> Result<(), UserError> {
    let request = v1::CreateSnapshotRequest {
        name: name.into(),
        source_volume_id: handle.into(),
        ..Default::default()
    };
    let (api, client) = (&user.api, user.truth.driver().client());
    let response = user.until_responded(|| client.create_snapshot(request.clone())).await?;
    let id = response.snapshot.unwrap_or_default().snapshot_id;
    let snapshot = json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"source": {"persistentVolumeClaimName": claim}},
    });
    let snapshot = api.create::<VolumeSnapshot>(&snapshot).await?;
    let reference =
        json!({"namespace": "default", "name": name, "uid": snapshot["metadata"]["uid"]});
    let content = json!({
        "metadata": {"name": name},
        "spec": {"deletionPolicy": "Delete", "driver": DRIVER, "source": {"volumeHandle": handle},
            "volumeSnapshotRef": reference},
    });
    api.create::<VolumeSnapshotContent>(&content).await?;
    let status = json!({"status": {"snapshotHandle": id, "readyToUse": true}});
    let key = ObjectKey::cluster(name);
    api.patch_status::<VolumeSnapshotContent>(&key, Patch::Merge(&status)).await?;
    let status = json!({"status": {"boundVolumeSnapshotContentName": name, "readyToUse": true,
        "restoreSize": "1Gi"}});
    let key = ObjectKey::new("default", name);
    api.patch_status::<VolumeSnapshot>(&key, Patch::Merge(&status)).await?;
    Ok(())
}
