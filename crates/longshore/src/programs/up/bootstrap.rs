//! The objects that a new instance starts with.
//!
//! They are made once and then belong to the user: a record of what was made stays in
//! `kube-system`, so a class that the user deleted does not come back at the next start.

use longshore_cluster::{Api, ApiError};
use longshore_core::model::{
    Kind, ObjectKey,
    keys::{annotations, embedded},
    kinds::{ConfigMap, CsiDriver, StorageClass, VolumeSnapshotClass},
};
use serde_json::{Value, json};

const RECORD: &str = "longshore-bootstrap";

/// Makes what was never made before.
pub(super) async fn ensure(api: &Api) -> Result<(), ApiError> {
    let record = ObjectKey::new("kube-system", RECORD);
    let made = api.get::<ConfigMap>(&record).await?;
    for (id, object) in objects() {
        if made.as_ref().is_some_and(|record| record.data.contains_key(&id)) {
            continue;
        }
        create(api, &object).await?;
    }
    let data: serde_json::Map<String, Value> =
        objects().into_iter().map(|(id, _)| (id, json!("made"))).collect();
    match made {
        Some(old) if data.keys().all(|id| old.data.contains_key(id)) => Ok(()),
        Some(_) => {
            let patch = json!({"data": data});
            api.patch::<ConfigMap>(&record, longshore_cluster::Patch::Merge(&patch)).await.map(drop)
        }
        None => {
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": RECORD, "namespace": "kube-system"}, "data": data,
            });
            api.create::<ConfigMap>(&object).await.map(drop)
        }
    }
}

async fn create(api: &Api, object: &Value) -> Result<(), ApiError> {
    let done = match object["kind"].as_str() {
        Some(CsiDriver::KIND) => api.create::<CsiDriver>(object).await,
        Some(VolumeSnapshotClass::KIND) => api.create::<VolumeSnapshotClass>(object).await,
        _ => api.create::<StorageClass>(object).await,
    };
    match done {
        // Made by the user before us, or by us before a crash: either way it is there.
        Ok(_) | Err(ApiError::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Every object with the id under which its making is recorded.
fn objects() -> Vec<(String, Value)> {
    let all = [
        driver(embedded::LOCAL_DRIVER, false),
        driver(embedded::SHARED_DRIVER, true),
        class(embedded::LOCAL_CLASS, embedded::LOCAL_DRIVER, "WaitForFirstConsumer", true),
        class(embedded::LOCAL_IMMEDIATE_CLASS, embedded::LOCAL_DRIVER, "Immediate", false),
        class(embedded::SHARED_CLASS, embedded::SHARED_DRIVER, "WaitForFirstConsumer", false),
        snapshot_class(embedded::LOCAL_SNAPSHOT_CLASS, embedded::LOCAL_DRIVER),
        snapshot_class(embedded::SHARED_SNAPSHOT_CLASS, embedded::SHARED_DRIVER),
    ];
    let id = |object: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!("{}.{}", text(&object["kind"]), text(&object["metadata"]["name"]))
    };
    all.into_iter().map(|object| (id(&object), object)).collect()
}

/// A `CSIDriver`. The local driver has inline volumes too, and knows them by what it is told about the
/// pod; and its room is published, which is different on every node.
fn driver(name: &str, attach: bool) -> Value {
    let local = !attach;
    let modes = if local { json!(["Persistent", "Ephemeral"]) } else { json!(["Persistent"]) };
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
        "metadata": {"name": name},
        "spec": {
            "attachRequired": attach, "podInfoOnMount": local, "fsGroupPolicy": "File",
            "storageCapacity": local, "volumeLifecycleModes": modes,
        },
    })
}

fn class(name: &str, provisioner: &str, mode: &str, default: bool) -> Value {
    let mut object = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner, "reclaimPolicy": "Delete", "volumeBindingMode": mode,
        "allowVolumeExpansion": true, "parameters": {"csi.storage.k8s.io/fstype": "ext4"},
    });
    if default {
        object["metadata"]["annotations"] = json!({ (annotations::IS_DEFAULT_CLASS): "true" });
    }
    object
}

/// The class of a driver's snapshots, and the default one, so that a snapshot need not name it.
fn snapshot_class(name: &str, driver: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": VolumeSnapshotClass::KIND,
        "metadata": {"name": name, "annotations": {annotations::SNAPSHOT_IS_DEFAULT_CLASS: "true"}},
        "driver": driver, "deletionPolicy": "Delete",
    })
}

/// What a foreign driver needs, if the user has not made it: its `CSIDriver` and a late-binding class.
pub(super) async fn ensure_foreign(api: &Api, name: &str, attach: bool) -> Result<(), ApiError> {
    if api.get::<CsiDriver>(&ObjectKey::cluster(name)).await?.is_none() {
        let object = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
            "metadata": {"name": name}, "spec": {"attachRequired": attach},
        });
        create(api, &object).await?;
    }
    if api.get::<StorageClass>(&ObjectKey::cluster(name)).await?.is_none() {
        let object = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": name}, "provisioner": name,
            "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer",
        });
        create(api, &object).await?;
    }
    Ok(())
}
