//! Snapshots of several volumes at one moment.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

use super::{LabelSelector, Meta, ObjectRef, SnapshotError, meta::nullable};
use crate::model::{DeletionPolicy, VolumeHandle};

/// A `VolumeGroupSnapshotClass`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeGroupSnapshotClass {
    pub metadata: Meta,
    /// The driver that takes group snapshots of this class.
    pub driver: String,
    /// What becomes of the driver's snapshots.
    pub deletion_policy: DeletionPolicy,
    /// What the driver is told.
    #[serde(deserialize_with = "nullable")]
    pub parameters: BTreeMap<String, String>,
}

/// What a group snapshot is taken of: one of the two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeGroupSnapshotSource {
    /// Claims of the same namespace.
    pub selector: Option<LabelSelector>,
    /// A content that is there already.
    pub volume_group_snapshot_content_name: Option<String>,
}

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeGroupSnapshotSpec {
    pub source: VolumeGroupSnapshotSource,
    /// Absent asks for the default class of the volumes' driver.
    pub volume_group_snapshot_class_name: Option<String>,
}

/// How a group snapshot stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeGroupSnapshotStatus {
    /// The content it is bound to.
    pub bound_volume_group_snapshot_content_name: Option<String>,
    pub creation_time: Option<Timestamp>,
    pub ready_to_use: Option<bool>,
    pub error: Option<SnapshotError>,
}

/// A `VolumeGroupSnapshot`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeGroupSnapshot {
    pub metadata: Meta,
    pub spec: VolumeGroupSnapshotSpec,
    pub status: Option<VolumeGroupSnapshotStatus>,
}

/// A group snapshot that the driver has already.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupSnapshotHandles {
    pub volume_group_snapshot_handle: String,
    #[serde(deserialize_with = "nullable")]
    pub volume_snapshot_handles: Vec<String>,
}

/// What a group content stands for: one of the two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeGroupSnapshotContentSource {
    /// The volumes that snapshots are taken of.
    pub volume_handles: Option<Vec<VolumeHandle>>,
    pub group_snapshot_handles: Option<GroupSnapshotHandles>,
}

/// What a group content is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeGroupSnapshotContentSpec {
    /// What becomes of the driver's snapshots.
    pub deletion_policy: DeletionPolicy,
    pub driver: String,
    #[serde(deserialize_with = "nullable")]
    pub source: VolumeGroupSnapshotContentSource,
    pub volume_group_snapshot_class_name: Option<String>,
    /// The group snapshot it is bound to.
    #[serde(deserialize_with = "nullable")]
    pub volume_group_snapshot_ref: ObjectRef,
}

/// One member of a group snapshot, as the driver has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotInfo {
    pub volume_handle: VolumeHandle,
    pub snapshot_handle: String,
    /// When it was cut, in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// In bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<i64>,
}

/// How a group content stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeGroupSnapshotContentStatus {
    /// The driver's id of the group snapshot.
    pub volume_group_snapshot_handle: Option<String>,
    pub creation_time: Option<Timestamp>,
    pub ready_to_use: Option<bool>,
    pub error: Option<SnapshotError>,
    #[serde(deserialize_with = "nullable")]
    pub volume_snapshot_info_list: Vec<VolumeSnapshotInfo>,
}

/// What a driver has of a group snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeGroupSnapshotContent {
    pub metadata: Meta,
    pub spec: VolumeGroupSnapshotContentSpec,
    pub status: Option<VolumeGroupSnapshotContentStatus>,
}
