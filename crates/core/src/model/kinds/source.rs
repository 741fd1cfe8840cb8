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
    pub metadata: Meta,
    /// What it is.
    pub spec: VolumeSnapshotContentSpec,
    /// How it stands.
    pub status: Option<VolumeSnapshotContentStatus>,
}

/// A snapshot of several volumes at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeGroupSnapshot {
    pub metadata: Meta,
    /// Only its presence matters.
    pub status: Option<IgnoredStatus>,
}

/// What a driver has of a group snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeGroupSnapshotContent {
    pub metadata: Meta,
    pub spec: VolumeGroupSnapshotContentSpec,
    /// Only its presence matters.
    pub status: Option<IgnoredStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeGroupSnapshotContentSpec {
    pub driver: String,
}

/// A status of which no field is read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct IgnoredStatus {}

/// A `VolumeAttributesClass`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeAttributesClass {
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
    pub kind: String,
    pub namespace: String,
}

/// What may be referred to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GrantTo {
    /// API group; empty for core.
    pub group: String,
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
    pub metadata: Meta,
    /// What it allows.
    pub spec: ReferenceGrantSpec,
}
