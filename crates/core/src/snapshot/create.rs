//! The content that asks a driver for a snapshot.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    class::{self, SourceError},
    dynamic_content_name,
    params::{self, Role},
};
use crate::model::{
    NodeName,
    keys::{annotations, finalizers, labels},
    kinds::{Claim, Node, ObjectRef, Volume, VolumeSnapshot, VolumeSnapshotClass},
};

/// Why no content can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    #[error(
        "snapshot controller failed to update {0} on API server: cannot get claim from snapshot"
    )]
    NoClaim(String),
    #[error(
        "snapshot controller failed to update {claim} on API server: cannot add finalizer on claim [{namespace}/{claim}] for snapshot [{namespace}/{snapshot}]: claim is being deleted"
    )]
    ClaimDeleting { namespace: String, claim: String, snapshot: String },
    /// The cause is quoted, as in Go.
    #[error("failed to get input parameters to create snapshot {snapshot}: {cause:?}")]
    Input { snapshot: String, cause: String },
    #[error("cannot find CSI PersistentVolumeSource for volume {0}")]
    NotCsi(String),
}

/// Whether the claim must be given its finalizer before a content is made.
///
/// # Errors
/// When there is no claim, or it is going and nothing keeps it.
pub fn claim_lacks_finalizer(
    snapshot: &VolumeSnapshot,
    claim: Option<&Claim>,
) -> Result<bool, CreateError> {
    let name = &snapshot.metadata.name;
    let claim = claim.ok_or_else(|| CreateError::NoClaim(name.clone()))?;
    let meta = &claim.metadata;
    match (meta.has_finalizer(finalizers::CLAIM_AS_SOURCE), meta.deleting()) {
        (true, _) => Ok(false),
        (false, false) => Ok(true),
        (false, true) => Err(CreateError::ClaimDeleting {
            namespace: meta.namespace.clone(),
            claim: meta.name.clone(),
            snapshot: name.clone(),
        }),
    }
}

/// What a content is made of.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    pub snapshot: &'a VolumeSnapshot,
    pub claim: &'a Claim,
    pub volume: Option<&'a Volume>,
    pub class: Option<&'a VolumeSnapshotClass>,
    /// Note how the volume is used, so that it is not restored in another way.
    pub keep_mode: bool,
    /// The node whose snapshotter shall serve it.
    pub node: Option<&'a NodeName>,
}

/// Builds the content.
///
/// # Errors
/// When its parts do not fit.
pub fn content(input: &Input<'_>) -> Result<Value, CreateError> {
    let meta = &input.snapshot.metadata;
    let name = dynamic_content_name(&meta.uid);
    let bad = |cause: String| CreateError::Input { snapshot: meta.name.clone(), cause };
    let class = input.class.ok_or_else(|| {
        bad(format!("failed to take snapshot {} without a snapshot class", meta.name))
    })?;
    let volume = class::volume_of(input.claim, input.volume);
    let volume = volume.map_err(|error: SourceError| bad(error.to_string()))?;
    let secret = params::secret(Role::Snapshotter, &class.parameters, &name, Some(meta));
    let secret = secret.map_err(|error| bad(error.to_string()))?;
    let csi = volume.spec.csi.as_ref();
    let csi = csi.ok_or_else(|| CreateError::NotCsi(volume.metadata.name.clone()))?;
    let mut content = json!({
        "metadata": {"name": name},
        "spec": {
            "volumeSnapshotRef": ObjectRef::of::<VolumeSnapshot>(meta),
            "source": {"volumeHandle": csi.volume_handle},
            "volumeSnapshotClassName": class.metadata.name,
            "deletionPolicy": class.deletion_policy,
            "driver": class.driver,
        },
    });
    if let Some(mode) = volume.spec.volume_mode.as_ref().filter(|_| input.keep_mode) {
        content["spec"]["sourceVolumeMode"] = json!(mode);
    }
    if let Some(node) = input.node {
        content["metadata"]["labels"] = json!({labels::SNAPSHOT_MANAGED_BY: node});
    }
    if let Some(secret) = secret {
        content["metadata"]["annotations"] = json!({
            annotations::SNAPSHOT_SECRET_NAME: secret.name,
            annotations::SNAPSHOT_SECRET_NAMESPACE: secret.namespace,
        });
    }
    Ok(content)
}

/// The first node, by name, that can reach the volume; none when all can.
#[must_use]
pub fn managing_node<'a>(
    volume: &Volume,
    nodes: impl IntoIterator<Item = &'a Node>,
) -> Option<NodeName> {
    let required = volume.spec.node_affinity.required.as_ref()?;
    let reaches = |node: &&Node| required.matches(&node.metadata.name, &node.metadata.labels);
    let named: BTreeMap<&str, &Node> =
        nodes.into_iter().filter(reaches).map(|node| (node.metadata.name.as_str(), node)).collect();
    named.into_values().next().map(Node::name)
}
