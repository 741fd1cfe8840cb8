//! What a claim is filled from: whether it may be, and what the driver is told.
//!
//! The order of the checks and their words are those of the specification (§2.9): a source with
//! several faults is told of the same one as by upstream.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::model::{
    ClaimPhase, Meta, ObjectKey, VolumeMode, VolumePhase,
    keys::{annotations, finalizers},
    kinds::{
        Claim, DataSource, ReferenceGrant, StorageClass, Volume, VolumeSnapshot,
        VolumeSnapshotContent,
    },
};

/// The API group of snapshots.
pub const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";

/// The kinds of sources that a provisioner fills claims from by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SourceKind {
    /// A snapshot is restored.
    Snapshot,
    /// Another claim's volume is cloned.
    Claim,
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Snapshot => "VolumeSnapshot",
            Self::Claim => "PersistentVolumeClaim",
        })
    }
}

/// What a claim shall be filled from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its kind.
    pub kind: SourceKind,
    /// Where it is.
    pub key: ObjectKey,
}

/// What the driver is told to fill a volume from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Content {
    /// Its kind.
    pub kind: SourceKind,
    /// Namespace of the object it was found through.
    pub namespace: String,
    /// Name of that object.
    pub name: String,
    /// The driver's id of the snapshot or volume.
    pub handle: String,
}

/// Why a claim cannot be filled from its source, for now or for good.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Sources of other namespaces are not allowed at all.
    #[error(
        "dataSourceRef namespace specified but the CrossNamespaceVolumeDataSource feature is disabled"
    )]
    CrossNamespaceOff,
    /// No grant lets this claim refer to that source.
    #[error("accessing {namespace}/{name} of {kind} dataSource from {claim} isn't allowed")]
    NotGranted { namespace: String, name: String, kind: String, claim: ObjectKey },
    /// The snapshot cannot be read.
    #[error("error getting snapshot {name} from api server: {why}")]
    SnapshotMissing { name: String, why: String },
    /// The snapshot goes, and nothing was begun with it.
    #[error("snapshot {0} is being deleted")]
    SnapshotGoing(String),
    /// The snapshot has no content.
    #[error("snapshot {0} not bound")]
    SnapshotNotBound(String),
    /// The content cannot be read.
    #[error("error getting snapshotcontent {content} for snapshot {snapshot}")]
    ContentMissing { content: String, snapshot: String },
    /// The content belongs to another snapshot.
    #[error("snapshotcontent {content} for snapshot {snapshot} is bound to a different snapshot")]
    ContentOfAnother { content: String, snapshot: String },
    /// The content is with another driver.
    #[error(
        "snapshotcontent {content} for snapshot {snapshot} is not handled by CSI driver of StorageClass {class}"
    )]
    ContentOfAnotherDriver { content: String, snapshot: String, class: String },
    /// The snapshot is still being taken.
    #[error("snapshot {0} is not Ready")]
    SnapshotNotReady(String),
    /// The driver has not named the snapshot.
    #[error("snapshot handle {0} is not available")]
    NoHandle(String),
    /// The claim does not say how much it wants.
    #[error("error getting capacity for PVC {claim} when creating snapshot {snapshot}")]
    NoRequest { claim: String, snapshot: String },
    /// The claim wants less than the snapshot holds.
    #[error(
        "requested volume size {requested} is less than the size {size} for the source snapshot {snapshot}"
    )]
    SmallerThanSnapshot { requested: i64, size: i64, snapshot: String },
    /// The claim wants another volume mode, and nobody allowed that.
    #[error(
        "requested volume {claim} modifies the mode of the source volume but does not have permission to do so. {why}"
    )]
    OtherMode { claim: ObjectKey, why: String },
    /// The source claim is not there.
    #[error("error getting PVC {name} (namespace {namespace:?}) from api server: {why}")]
    ClaimMissing { name: String, namespace: String, why: String },
    /// The source claim has no volume.
    #[error("the PVC DataSource {name} must have a status of Bound.  Got {phase}")]
    ClaimNotBound { name: String, phase: ClaimPhase },
    /// The source claim goes.
    #[error("the PVC DataSource {0} is currently being deleted")]
    ClaimGoing(String),
    /// The source claim names no class.
    #[error("the source PVC ({0}) storageclass cannot be empty")]
    SourceWithoutClass(String),
    /// The new claim names no class.
    #[error("the requested PVC ({0}) storageclass cannot be empty")]
    ClaimWithoutClass(String),
    /// The claim wants less than its source.
    #[error(
        "error, new PVC request must be greater than or equal in size to the specified PVC data source, requested {requested} but source is {size}"
    )]
    SmallerThanClaim { requested: i64, size: i64 },
    /// The source claim does not name its volume.
    #[error("volume name is empty in source PVC {0}")]
    NoVolume(String),
    /// The source's volume is missing, not bound to it, or of another driver.
    #[error("claim in dataSource not bound or invalid")]
    VolumeUnfit,
    /// The claim wants another volume mode than its source has.
    #[error(
        "the source PVC and destination PVCs must have the same volume mode for cloning.  Source is {have}, but new PVC requested {wanted}"
    )]
    CloneMode { have: &'static str, wanted: &'static str },
}

/// A data source with its namespace, of any kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference<'a> {
    pub(super) source: &'a DataSource,
    pub(super) namespace: &'a str,
}

/// What a claim names: `dataSource` first, `dataSourceRef` otherwise. Sources of other namespaces
/// need the feature (`grants` are given) and a grant there.
pub(super) fn reference<'a>(
    claim: &'a Claim,
    grants: Option<&[Arc<ReferenceGrant>]>,
) -> Result<Option<Reference<'a>>, SourceError> {
    let own = claim.metadata.namespace.as_str();
    if let Some(source) = &claim.spec.data_source {
        return Ok(Some(Reference { source, namespace: own }));
    }
    let Some(source) = &claim.spec.data_source_ref else { return Ok(None) };
    let named = source.namespace.as_deref().filter(|name| !name.is_empty());
    let namespace = match (named, grants) {
        (None, _) => own,
        (Some(_), None) => return Err(SourceError::CrossNamespaceOff),
        (Some(namespace), Some(grants)) => {
            if namespace != own && !grants.iter().any(|one| allows(one, claim, source, namespace)) {
                return Err(SourceError::NotGranted {
                    namespace: namespace.into(),
                    name: source.name.clone(),
                    kind: source.kind.clone(),
                    claim: claim.metadata.key(),
                });
            }
            namespace
        }
    };
    Ok(Some(Reference { source, namespace }))
}

/// One grant must name both ends.
fn allows(grant: &ReferenceGrant, claim: &Claim, source: &DataSource, namespace: &str) -> bool {
    let (from, to) = (&grant.spec.from, &grant.spec.to);
    grant.metadata.namespace == namespace
        && from.iter().any(|from| {
            from.group.is_empty()
                && from.kind == "PersistentVolumeClaim"
                && from.namespace == claim.metadata.namespace
        })
        && to.iter().any(|to| {
            let name = to.name.as_deref().unwrap_or_default();
            to.group == source.api_group
                && to.kind == source.kind
                && (name.is_empty() || name == source.name)
        })
}

/// Whether the driver's answer must say what the volume was filled from. Upstream asks for it
/// where it is certain that the driver was told: not for a bare `dataSourceRef`.
pub(super) fn wants_source_in_answer(claim: &Claim, cross_namespace: bool) -> bool {
    let elsewhere = |source: &DataSource| source.namespace.as_ref().is_some_and(|n| !n.is_empty());
    claim.spec.data_source.is_some()
        || (cross_namespace && claim.spec.data_source_ref.as_ref().is_some_and(elsewhere))
}

/// The content that a snapshot is bound to.
///
/// # Errors
/// When it is not bound, or goes and no earlier attempt of ours holds it.
pub fn content_of(snapshot: &VolumeSnapshot) -> Result<&str, SourceError> {
    let name = &snapshot.metadata.name;
    let ours = snapshot.metadata.has_finalizer(finalizers::SNAPSHOT_SOURCE_PROTECTION);
    if snapshot.metadata.deleting() && !ours {
        return Err(SourceError::SnapshotGoing(name.clone()));
    }
    let status = snapshot.status.as_ref();
    let content = status.and_then(|status| status.bound_volume_snapshot_content_name.as_deref());
    content.ok_or_else(|| SourceError::SnapshotNotBound(name.clone()))
}

/// A snapshot to be restored, and for whom.
#[derive(Debug, Clone, Copy)]
pub struct RestoreView<'a> {
    /// The claim that is filled.
    pub claim: &'a Claim,
    /// Its class.
    pub class: &'a StorageClass,
    /// The snapshot.
    pub snapshot: &'a VolumeSnapshot,
    /// The content that [`content_of`] names, if it is there.
    pub content: Option<&'a VolumeSnapshotContent>,
    /// A volume may not be used in another mode than the one that the snapshot was taken of.
    pub guard_volume_mode: bool,
}

/// The driver's id of the snapshot.
///
/// # Errors
/// When the snapshot cannot be restored into this claim.
pub fn restore(view: &RestoreView<'_>) -> Result<String, SourceError> {
    let RestoreView { claim, class, snapshot, .. } = *view;
    let bound = content_of(snapshot)?;
    let (name, content_name) = (|| snapshot.metadata.name.clone(), || bound.to_owned());
    let Some(content) = view.content else {
        return Err(SourceError::ContentMissing { content: content_name(), snapshot: name() });
    };
    let (owner, meta) = (&content.spec.volume_snapshot_ref, &snapshot.metadata);
    if owner.uid != meta.uid || owner.namespace != meta.namespace || owner.name != meta.name {
        return Err(SourceError::ContentOfAnother { content: content_name(), snapshot: name() });
    }
    if content.spec.driver != class.provisioner {
        return Err(SourceError::ContentOfAnotherDriver {
            content: content_name(),
            snapshot: name(),
            class: class.metadata.name.clone(),
        });
    }
    let status = snapshot.status.as_ref();
    if status.and_then(|status| status.ready_to_use) != Some(true) {
        return Err(SourceError::SnapshotNotReady(name()));
    }
    let handle = content.status.as_ref().and_then(|status| status.snapshot_handle.clone());
    let handle = handle.ok_or_else(|| SourceError::NoHandle(name()))?;
    if let Some(size) = status.and_then(|status| status.restore_size) {
        let Some(request) = claim.spec.resources.requests.get("storage") else {
            let claim = claim.metadata.name.clone();
            return Err(SourceError::NoRequest { claim, snapshot: name() });
        };
        let (requested, size) = (request.bytes(), size.bytes());
        if requested < size {
            return Err(SourceError::SmallerThanSnapshot { requested, size, snapshot: name() });
        }
    }
    if view.guard_volume_mode {
        check_restored_mode(claim, content)?;
    }
    Ok(handle)
}

fn check_restored_mode(claim: &Claim, content: &VolumeSnapshotContent) -> Result<(), SourceError> {
    let modes = (&content.spec.source_volume_mode, &claim.spec.volume_mode);
    let (Some(have), Some(wanted)) = modes else { return Ok(()) };
    if have == wanted {
        return Ok(());
    }
    const KEY: &str = annotations::ALLOW_VOLUME_MODE_CHANGE;
    let name = &content.metadata.name;
    let why = match content.metadata.annotation(KEY) {
        None => format!("{KEY} annotation is not present on snapshotcontent {name}"),
        Some(text) => match go_bool(text) {
            Some(true) => return Ok(()),
            Some(false) => format!("{KEY} is set to false on snapshotcontent {name}"),
            None => format!(
                "failed to convert {KEY} annotation value to boolean with error: strconv.ParseBool: parsing {text:?}: invalid syntax"
            ),
        },
    };
    Err(SourceError::OtherMode { claim: claim.metadata.key(), why })
}

/// As Go reads a truth value.
fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The volume of a claim that is to be cloned.
///
/// # Errors
/// When the source claim cannot be cloned into `claim`.
pub fn cloned_volume<'a>(claim: &Claim, source: &'a Claim) -> Result<&'a str, SourceError> {
    let name = || source.metadata.name.clone();
    if source.status.phase != ClaimPhase::Bound {
        let phase = source.status.phase.clone();
        return Err(SourceError::ClaimNotBound { name: name(), phase });
    }
    if source.metadata.deleting() {
        return Err(SourceError::ClaimGoing(name()));
    }
    if source.spec.storage_class_name.is_none() {
        return Err(SourceError::SourceWithoutClass(name()));
    }
    if claim.spec.storage_class_name.is_none() {
        return Err(SourceError::ClaimWithoutClass(claim.metadata.name.clone()));
    }
    let (requested, size) = (claim.request().bytes(), source.request().bytes());
    if requested < size {
        return Err(SourceError::SmallerThanClaim { requested, size });
    }
    match source.spec.volume_name.as_str() {
        "" => Err(SourceError::NoVolume(name())),
        volume => Ok(volume),
    }
}

/// A claim to be cloned, and for whom.
#[derive(Debug, Clone, Copy)]
pub struct CloneView<'a> {
    /// The claim that is filled.
    pub claim: &'a Claim,
    /// Its class.
    pub class: &'a StorageClass,
    /// The claim it is filled from.
    pub source: &'a Claim,
    /// The volume that [`cloned_volume`] names, if it is there.
    pub volume: Option<&'a Volume>,
}

/// The driver's id of the volume that is cloned.
///
/// # Errors
/// When the source cannot be cloned into this claim.
pub fn clone(view: &CloneView<'_>) -> Result<String, SourceError> {
    cloned_volume(view.claim, view.source)?;
    let volume = view.volume.ok_or(SourceError::VolumeUnfit)?;
    let (csi, owner) = (volume.spec.csi.as_ref(), volume.spec.claim_ref.as_ref());
    let meta = &view.source.metadata;
    let ours = |owner: &crate::model::ObjectRef| {
        owner.uid == meta.uid && owner.namespace == meta.namespace && owner.name == meta.name
    };
    let csi = csi
        .filter(|csi| csi.driver == view.class.provisioner)
        .filter(|_| owner.is_some_and(ours) && volume.status.phase == VolumePhase::Bound)
        .ok_or(SourceError::VolumeUnfit)?;
    let mode = |mode: &Option<VolumeMode>| match mode {
        None | Some(VolumeMode::Filesystem) => "Filesystem",
        Some(_) => "Block",
    };
    let (have, wanted) = (mode(&volume.spec.volume_mode), mode(&view.claim.spec.volume_mode));
    match have == wanted {
        true => Ok(csi.volume_handle.clone()),
        false => Err(SourceError::CloneMode { have, wanted }),
    }
}

/// A claim whose clone of `source` is not there yet.
pub fn cloning<'a>(
    source: &Meta,
    claims: impl IntoIterator<Item = &'a Claim>,
) -> Option<&'a Claim> {
    claims.into_iter().find(|claim| {
        claim.metadata.namespace == source.namespace
            && claim.status.phase == ClaimPhase::Pending
            && clone_source(claim) == Some(source.name.as_str())
    })
}

/// The claim of its own namespace that a claim is a clone of.
#[must_use]
pub fn clone_source(claim: &Claim) -> Option<&str> {
    let source = claim.spec.data_source.as_ref()?;
    (source.kind == "PersistentVolumeClaim").then_some(source.name.as_str())
}

/// The snapshot that a claim waits to be filled from.
#[must_use]
pub fn awaited_snapshot(claim: &Claim) -> Option<ObjectKey> {
    let phase = &claim.status.phase;
    let waits = phase.is_empty() || *phase == ClaimPhase::Pending;
    waits.then(|| snapshot_source(claim)).flatten()
}

/// The snapshot that a claim is filled from, in whichever namespace it is.
#[must_use]
pub fn snapshot_source(claim: &Claim) -> Option<ObjectKey> {
    let is_snapshot = |source: &&DataSource| {
        let group = source.api_group.as_str();
        source.kind == "VolumeSnapshot" && (group.is_empty() || group == SNAPSHOT_GROUP)
    };
    let own = &claim.metadata.namespace;
    if let Some(source) = claim.spec.data_source.as_ref().filter(is_snapshot) {
        return Some(ObjectKey::new(own, &source.name));
    }
    let source = claim.spec.data_source_ref.as_ref().filter(is_snapshot)?;
    let namespace = source.namespace.as_ref().filter(|name| !name.is_empty()).unwrap_or(own);
    Some(ObjectKey::new(namespace, &source.name))
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
