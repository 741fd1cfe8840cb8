//! Volume sources of plugins that once were part of Kubernetes. CSI drivers serve them by now; see
//! [`crate::provision::migration`].

use serde::Deserialize;

use super::meta::nullable;

/// `awsElasticBlockStore`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AwsSource {
    /// The id, bare or as `aws://zone/id`.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// Filesystem type.
    #[serde(deserialize_with = "nullable")]
    pub fs_type: String,
    /// Partition; 0 means the whole disk.
    pub partition: i32,
    /// Read-only attach.
    pub read_only: bool,
}

/// `gcePersistentDisk`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GceSource {
    /// The disk's name.
    pub pd_name: String,
    /// Filesystem type.
    #[serde(deserialize_with = "nullable")]
    pub fs_type: String,
    /// Partition; 0 means the whole disk.
    pub partition: i32,
    /// Read-only attach.
    pub read_only: bool,
}

/// `cinder`, and with the same fields `portworxVolume`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IdSource {
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// Filesystem type.
    #[serde(deserialize_with = "nullable")]
    pub fs_type: String,
    /// Read-only attach.
    pub read_only: bool,
}

/// `azureDisk`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AzureDiskSource {
    /// Where the disk is.
    #[serde(rename = "diskURI")]
    pub disk_uri: String,
    /// `None`, `ReadOnly`, `ReadWrite`.
    pub caching_mode: Option<String>,
    /// Filesystem type.
    pub fs_type: Option<String>,
    /// Read-only attach.
    pub read_only: Option<bool>,
    /// `Managed`, or one of the kinds that no driver serves.
    pub kind: Option<String>,
}

/// `azureFile`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AzureFileSource {
    /// The secret with the account's key.
    pub secret_name: String,
    pub share_name: String,
    /// The secret's namespace; absent means the claim's.
    pub secret_namespace: Option<String>,
    pub read_only: bool,
}

/// `vsphereVolume`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VsphereSource {
    /// The disk's path.
    pub volume_path: String,
    /// Filesystem type.
    #[serde(deserialize_with = "nullable")]
    pub fs_type: String,
    #[serde(deserialize_with = "nullable")]
    pub storage_policy_name: String,
}
