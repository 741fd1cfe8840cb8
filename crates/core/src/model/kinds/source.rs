//! What a claim can be filled from, and what it can be tuned with: snapshots, the grants that let a
//! source cross namespaces, and attribute classes.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Meta, ObjectRef, meta::nullable};
use crate::model::{Quantity, VolumeMode};

/// How a snapshot stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotStatus {
    /// The content it is bound to.
    pub bound_volume_snapshot_content_name: Option<String>,
    /// Volumes can be made from it.
    pub ready_to_use: Option<bool>,
    /// The least size of a volume made from it.
    pub restore_size: Option<Quantity>,
}

/// A `VolumeSnapshot`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeSnapshot {
    /// Metadata.
    pub metadata: Meta,
    /// How it stands; absent until somebody has looked at it.
    pub status: Option<VolumeSnapshotStatus>,
}

/// What a snapshot content is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotContentSpec {
    /// The driver that has it.
    pub driver: String,
    /// The snapshot it is bound to.
    #[serde(deserialize_with = "nullable")]
    pub volume_snapshot_ref: ObjectRef,
    /// How the volume was used that it was taken of.
    pub source_volume_mode: Option<VolumeMode>,
}

/// How a snapshot content stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotContentStatus {
    /// The driver's id of the snapshot.
    pub snapshot_handle: Option<String>,
}

/// A `VolumeSnapshotContent`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeSnapshotContent {
    /// Metadata.
    pub metadata: Meta,
    /// What it is.
    pub spec: VolumeSnapshotContentSpec,
    /// How it stands.
    pub status: Option<VolumeSnapshotContentStatus>,
}

/// A `VolumeAttributesClass`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeAttributesClass {
    /// Metadata.
    pub metadata: Meta,
    /// The driver it is for.
    pub driver_name: String,
    /// What the driver is told.
    #[serde(deserialize_with = "nullable")]
    pub parameters: BTreeMap<String, String>,
}

/// Who may refer to something.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GrantFrom {
    /// API group; empty for core.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
}

/// What may be referred to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GrantTo {
    /// API group; empty for core.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name; absent or empty means all.
    pub name: Option<String>,
}

/// What a grant allows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReferenceGrantSpec {
    /// Who may refer.
    #[serde(deserialize_with = "nullable")]
    pub from: Vec<GrantFrom>,
    /// To what.
    #[serde(deserialize_with = "nullable")]
    pub to: Vec<GrantTo>,
}

/// A `ReferenceGrant`: objects of its namespace may be referred to from others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReferenceGrant {
    /// Metadata.
    pub metadata: Meta,
    /// What it allows.
    pub spec: ReferenceGrantSpec,
}
