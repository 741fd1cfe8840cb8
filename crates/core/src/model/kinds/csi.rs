//! Attachments, drivers, and what nodes know of drivers.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{LabelSelector, Meta, StorageHealth, VolumeSpec, meta::nullable};
use crate::model::{NodeName, Quantity, VolumeName};

/// What is attached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSource {
    pub persistent_volume_name: Option<VolumeName>,
    /// A volume without an object of its own (in-tree volumes moved to CSI).
    pub inline_volume_spec: Option<Box<VolumeSpec>>,
}

/// What an attachment wants.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSpec {
    /// The driver that shall attach.
    pub attacher: String,
    /// Where to.
    pub node_name: NodeName,
    /// What.
    pub source: AttachmentSource,
}

/// A failed attach or detach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentError {
    /// When.
    pub time: Option<jiff::Timestamp>,
    /// Why.
    #[serde(deserialize_with = "nullable")]
    pub message: String,
    /// gRPC code.
    pub error_code: Option<i32>,
}

/// How an attachment stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentStatus {
    /// Whether the attach is confirmed.
    pub attached: bool,
    /// The driver's publish context.
    #[serde(deserialize_with = "nullable")]
    pub attachment_metadata: BTreeMap<String, String>,
    /// The last attach error.
    pub attach_error: Option<AttachmentError>,
    /// The last detach error.
    pub detach_error: Option<AttachmentError>,
}

/// A `VolumeAttachment`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeAttachment {
    pub metadata: Meta,
    /// What is wanted.
    pub spec: AttachmentSpec,
    /// How it stands.
    #[serde(deserialize_with = "nullable")]
    pub status: AttachmentStatus,
}

/// A token that a driver wants at publish.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenRequest {
    /// For whom.
    pub audience: String,
    /// How long.
    pub expiration_seconds: Option<i64>,
}

/// What a driver is like.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiDriverSpec {
    /// Default true.
    pub attach_required: Option<bool>,
    /// Pod facts in the publish context.
    pub pod_info_on_mount: Option<bool>,
    /// `Persistent`, `Ephemeral`.
    #[serde(deserialize_with = "nullable")]
    pub volume_lifecycle_modes: Vec<String>,
    /// Whether the scheduler looks at published capacity.
    pub storage_capacity: Option<bool>,
    /// `None`, `File`, `ReadWriteOnceWithFSType`.
    pub fs_group_policy: Option<String>,
    /// Tokens wanted at publish.
    #[serde(deserialize_with = "nullable")]
    pub token_requests: Vec<TokenRequest>,
    /// Publish is repeated.
    pub requires_republish: Option<bool>,
    /// Tokens go to the secrets instead of the volume context.
    pub service_account_token_in_secrets: Option<bool>,
    /// How often the node asks again how many volumes fit.
    pub node_allocatable_update_period_seconds: Option<i64>,
    /// The driver can mount with an SELinux context.
    #[serde(rename = "seLinuxMount")]
    pub se_linux_mount: Option<bool>,
    /// Pods stay away from nodes without the driver.
    pub prevent_pod_scheduling_if_missing: Option<bool>,
}

/// A `CSIDriver`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiDriver {
    pub metadata: Meta,
    /// What it is like.
    pub spec: CsiDriverSpec,
}

impl CsiDriver {
    /// Whether volumes are attached before use.
    #[must_use]
    pub fn attach_required(&self) -> bool {
        self.spec.attach_required.unwrap_or(true)
    }
}

/// How many volumes fit on a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiNodeAllocatable {
    /// Absent means no limit.
    pub count: Option<i32>,
}

/// One driver on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiNodeDriver {
    /// Driver name.
    pub name: String,
    /// The driver's id of the node.
    #[serde(rename = "nodeID")]
    pub node_id: String,
    #[serde(deserialize_with = "nullable")]
    pub topology_keys: Vec<String>,
    /// Limits.
    pub allocatable: Option<CsiNodeAllocatable>,
}

/// Drivers of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiNodeSpec {
    /// The drivers, in order of registration.
    #[serde(deserialize_with = "nullable")]
    pub drivers: Vec<CsiNodeDriver>,
}

/// How the storage of a node's drivers stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiNodeStatus {
    /// One entry for each driver that reports trouble.
    #[serde(deserialize_with = "nullable")]
    pub storage_health: Vec<StorageHealth>,
}

/// A `CSINode`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiNode {
    /// Metadata; the name is the node's.
    pub metadata: Meta,
    /// Drivers.
    pub spec: CsiNodeSpec,
    /// Absent before Kubernetes 1.37.
    #[serde(deserialize_with = "nullable")]
    pub status: CsiNodeStatus,
}

impl CsiNode {
    /// What this node knows of a driver.
    #[must_use]
    pub fn driver(&self, name: &str) -> Option<&CsiNodeDriver> {
        self.spec.drivers.iter().find(|driver| driver.name == name)
    }
}

/// A `CSIStorageCapacity`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiStorageCapacity {
    pub metadata: Meta,
    /// Where; absent means nowhere, empty means everywhere.
    pub node_topology: Option<LabelSelector>,
    pub storage_class_name: String,
    /// How much in all.
    pub capacity: Option<Quantity>,
    /// The largest single volume.
    pub maximum_volume_size: Option<Quantity>,
}
