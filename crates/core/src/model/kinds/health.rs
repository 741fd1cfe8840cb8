//! What is wrong with volumes and with the storage of nodes, as Kubernetes 1.37 keeps it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::meta::nullable;
use crate::model::{AccessMode, StorageHealthType, VolumeHealthType, VolumeMode};

/// One thing that is wrong with a volume. No two of a volume share status and reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct VolumeHealthCondition {
    #[serde(deserialize_with = "nullable")]
    pub status: VolumeHealthType,
    /// One word for programs.
    #[serde(deserialize_with = "nullable")]
    pub reason: String,
    /// Text for people.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// `status.healthStatus` of a claim. Absent and without conditions are the same: healthy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeHealthStatus {
    #[serde(deserialize_with = "nullable")]
    pub health_conditions: Vec<VolumeHealthCondition>,
    /// When the set of conditions changed last.
    pub last_transition_time: Option<Timestamp>,
}

/// One of `status.volumeHealth` of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodVolumeHealth {
    /// The volume's name within the pod.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// None after a recovery: the entry stays.
    #[serde(deserialize_with = "nullable")]
    pub health_conditions: Vec<VolumeHealthCondition>,
    /// When the set of conditions changed last.
    pub last_transition_time: Option<Timestamp>,
}

/// One thing that is wrong with the storage of a driver on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageHealthCondition {
    #[serde(deserialize_with = "nullable")]
    pub status: StorageHealthType,
    /// One word for programs.
    #[serde(deserialize_with = "nullable")]
    pub reason: String,
    /// Text for people.
    #[serde(deserialize_with = "nullable")]
    pub message: String,
    /// Volumes with this mode alone; absent, all.
    pub access_mode: Option<AccessMode>,
    /// Volumes with this mode alone; absent, both.
    pub volume_mode: Option<VolumeMode>,
    pub last_transition_time: Option<Timestamp>,
}

/// One of `status.storageHealth` of a `CSINode`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageHealth {
    /// The driver.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub health_conditions: Vec<StorageHealthCondition>,
}
