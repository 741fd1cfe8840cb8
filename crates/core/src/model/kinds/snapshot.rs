//! Snapshots, their contents and their classes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

use super::{Meta, ObjectRef, meta::nullable};
use crate::model::{DeletionPolicy, Quantity, VolumeHandle, VolumeMode};

/// A `VolumeSnapshotClass`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotClass {
    pub metadata: Meta,
    /// The driver that takes snapshots of this class.
    pub driver: String,
    /// What becomes of the driver's snapshot.
    pub deletion_policy: DeletionPolicy,
    /// What the driver is told.
    #[serde(deserialize_with = "nullable")]
    pub parameters: BTreeMap<String, String>,
}

/// The last failure of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SnapshotError {
    pub message: Option<String>,
    pub time: Option<Timestamp>,
}

/// What a snapshot is taken of: one of the two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotSource {
    /// A claim of the same namespace.
    pub persistent_volume_claim_name: Option<String>,
    /// A content that is there already.
    pub volume_snapshot_content_name: Option<String>,
}

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotSpec {
    pub source: VolumeSnapshotSource,
    /// Absent asks for the default class of the volume's driver.
    pub volume_snapshot_class_name: Option<String>,
}

/// How a snapshot stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotStatus {
    /// The content it is bound to.
    pub bound_volume_snapshot_content_name: Option<String>,
    /// When it was cut.
    pub creation_time: Option<Timestamp>,
    /// Volumes can be made from it.
    pub ready_to_use: Option<bool>,
    /// The least size of a volume made from it.
    pub restore_size: Option<Quantity>,
    pub error: Option<SnapshotError>,
    /// The group snapshot that it is a member of.
    pub volume_group_snapshot_name: Option<String>,
}

/// A `VolumeSnapshot`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeSnapshot {
    pub metadata: Meta,
    pub spec: VolumeSnapshotSpec,
    /// How it stands; absent until somebody has looked at it.
    pub status: Option<VolumeSnapshotStatus>,
}

impl VolumeSnapshot {
    /// Whether volumes can be made from it.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
    }

    /// The content it is bound to.
    #[must_use]
    pub fn bound_content(&self) -> Option<&str> {
        self.status.as_ref()?.bound_volume_snapshot_content_name.as_deref()
    }
}

/// What a content stands for: one of the two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotContentSource {
    /// The volume that a snapshot is taken of.
    pub volume_handle: Option<VolumeHandle>,
    /// A snapshot that the driver has already.
    pub snapshot_handle: Option<String>,
}

/// What a snapshot content is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotContentSpec {
    /// What becomes of the driver's snapshot.
    pub deletion_policy: DeletionPolicy,
    /// The driver that has it.
    pub driver: String,
    #[serde(deserialize_with = "nullable")]
    pub source: VolumeSnapshotContentSource,
    pub volume_snapshot_class_name: Option<String>,
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
    /// When it was cut, in nanoseconds since 1970.
    pub creation_time: Option<i64>,
    pub ready_to_use: Option<bool>,
    /// In bytes.
    pub restore_size: Option<i64>,
    pub error: Option<SnapshotError>,
    /// The driver's id of the group snapshot that it is a member of.
    pub volume_group_snapshot_handle: Option<String>,
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

impl VolumeSnapshotContent {
    /// Whether the driver says that volumes can be made from it.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
    }
}
