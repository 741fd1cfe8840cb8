//! The content that asks a driver for a group snapshot, and the objects of its members.

use serde_json::{Value, json};

use super::super::{
    class::SourceError,
    params::{self, Role},
};
use super::{dynamic_content_name, member_names, owner};
use crate::model::{
    NodeName, VolumeHandle,
    keys::{annotations, finalizers, labels},
    kinds::{
        LabelSelector, ObjectRef, Requirement, SecretRef, Volume, VolumeGroupSnapshot,
        VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, VolumeSnapshotInfo,
    },
};

/// Why no content can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// The cause is quoted, as in Go.
    #[error("failed to get input parameters to create group snapshot {group}: {cause:?}")]
    Input { group: String, cause: String },
    #[error("label selector {0} for group snapshot not applied to any PVC")]
    NothingSelected(String),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("volume {0} is not a CSI volume")]
    NotCsi(String),
    #[error(
        "volume {volume} belongs to driver {driver}, the group snapshot class to driver {class}"
    )]
    OtherDriver { volume: String, driver: String, class: String },
}

/// A selector as the API's command lines write it.
#[must_use]
pub fn selector_text(selector: &LabelSelector) -> String {
    let equal = selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
    let further = selector.match_expressions.iter().map(requirement_text);
    equal.chain(further).collect::<Vec<_>>().join(",")
}

fn requirement_text(one: &Requirement) -> String {
    let Requirement { key, operator, values } = one;
    let values = values.join(",");
    match operator.as_str() {
        "In" => format!("{key} in ({values})"),
        "NotIn" => format!("{key} notin ({values})"),
        "Exists" => key.clone(),
        "DoesNotExist" => format!("!{key}"),
        other => format!("{key} {other} ({values})"),
    }
}

/// Builds the content for these volumes, in this order.
///
/// # Errors
/// When its parts do not fit.
pub fn content(
    group: &VolumeGroupSnapshot,
    class: &VolumeGroupSnapshotClass,
    volumes: &[Volume],
    node: Option<&NodeName>,
) -> Result<Value, GroupError> {
    let meta = &group.metadata;
    let name = dynamic_content_name(&meta.uid);
    let mut handles = Vec::new();
    for volume in volumes {
        handles.push(handle(volume, &class.driver)?);
    }
    let secret = params::secret(Role::Group, &class.parameters, &name, Some(meta));
    let secret = secret.map_err(|error| GroupError::Input {
        group: meta.name.clone(),
        cause: error.to_string(),
    })?;
    let mut content = json!({
        "metadata": {"name": name},
        "spec": {
            "volumeGroupSnapshotRef": ObjectRef::of::<VolumeGroupSnapshot>(meta),
            "source": {"volumeHandles": handles},
            "volumeGroupSnapshotClassName": class.metadata.name,
            "deletionPolicy": class.deletion_policy,
            "driver": class.driver,
        },
    });
    if let Some(node) = node {
        content["metadata"]["labels"] = json!({labels::SNAPSHOT_MANAGED_BY: node});
    }
    if let Some(secret) = secret {
        content["metadata"]["annotations"] = json!({
            annotations::GROUP_SNAPSHOT_SECRET_NAME: secret.name,
            annotations::GROUP_SNAPSHOT_SECRET_NAMESPACE: secret.namespace,
        });
    }
    Ok(content)
}

fn handle<'a>(volume: &'a Volume, driver: &str) -> Result<&'a VolumeHandle, GroupError> {
    let name = || volume.metadata.name.clone();
    let csi = volume.spec.csi.as_ref().ok_or_else(|| GroupError::NotCsi(name()))?;
    if *csi.driver != *driver {
        return Err(GroupError::OtherDriver {
            volume: name(),
            driver: csi.driver.to_string(),
            class: driver.to_owned(),
        });
    }
    Ok(&csi.volume_handle)
}

/// One member: its snapshot, its content, and what the content's status says.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    pub snapshot: Value,
    pub content: Value,
    pub status: Value,
}

/// Builds the objects of one member. `volume` is the one of its handle, where it is still there.
#[must_use]
pub fn member(
    group: &VolumeGroupSnapshot,
    content: &VolumeGroupSnapshotContent,
    info: &VolumeSnapshotInfo,
    volume: Option<&Volume>,
    secret: Option<&SecretRef>,
) -> Member {
    let (snapshot_name, content_name) = member_names(&group.metadata.uid, &info.volume_handle);
    let namespace = &group.metadata.namespace;
    let handle = content.status.as_ref();
    let handle = handle.and_then(|status| status.volume_group_snapshot_handle.as_deref());
    let claim = volume.and_then(|volume| volume.spec.claim_ref.as_ref());
    let claim = claim.map(|claim| claim.name.as_str()).unwrap_or_default();
    let snapshot = json!({
        "metadata": {"name": snapshot_name, "namespace": namespace,
            "finalizers": [finalizers::SNAPSHOT_IN_GROUP],
            "ownerReferences": [owner(&group.metadata)]},
        "spec": {"source": {"persistentVolumeClaimName": claim}},
    });
    let mut object = json!({
        "metadata": {"name": content_name,
            "annotations": {annotations::GROUP_SNAPSHOT_HANDLE: handle}},
        "spec": {
            "volumeSnapshotRef": {"kind": "VolumeSnapshot", "namespace": namespace, "name": snapshot_name},
            "source": {"volumeHandle": info.volume_handle},
            "deletionPolicy": content.spec.deletion_policy,
            "driver": content.spec.driver,
        },
    });
    if let Some(mode) = volume.and_then(|volume| volume.spec.volume_mode.as_ref()) {
        object["spec"]["sourceVolumeMode"] = json!(mode);
    }
    if let Some(node) = content.metadata.labels.get(labels::SNAPSHOT_MANAGED_BY) {
        object["metadata"]["labels"] = json!({labels::SNAPSHOT_MANAGED_BY: node});
    }
    if let Some(secret) = secret {
        let notes = &mut object["metadata"]["annotations"];
        notes[annotations::SNAPSHOT_SECRET_NAME] = secret.name.as_str().into();
        notes[annotations::SNAPSHOT_SECRET_NAMESPACE] = secret.namespace.as_str().into();
    }
    let mut status = json!({"snapshotHandle": info.snapshot_handle,
        "volumeGroupSnapshotHandle": handle, "readyToUse": info.ready_to_use.unwrap_or(false)});
    if let Some(cut) = info.creation_time {
        status["creationTime"] = cut.into();
    }
    if let Some(size) = info.restore_size {
        status["restoreSize"] = size.into();
    }
    Member { snapshot, content: object, status: json!({"status": status}) }
}
