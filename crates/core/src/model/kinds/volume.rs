//! Volumes.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    AwsSource, AzureDiskSource, AzureFileSource, GceSource, IdSource, Meta, ObjectRef, Requirement,
    VsphereSource, meta::nullable,
};
use crate::model::{
    AccessMode, DriverName, Quantity, ReclaimPolicy, VolumeHandle, VolumeMode, VolumeName,
    VolumePhase, keys::annotations,
};
use crate::names::UniqueName;

/// A reference to a secret with its namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize, serde::Serialize)]
#[serde(default)]
pub struct SecretRef {
    /// Secret name.
    pub name: String,
    /// Secret namespace; empty where the kind has none.
    pub namespace: String,
}

/// The CSI source of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiSource {
    pub driver: DriverName,
    pub volume_handle: VolumeHandle,
    /// Read-only attach.
    pub read_only: bool,
    /// Filesystem type; empty means the driver's default.
    #[serde(deserialize_with = "nullable")]
    pub fs_type: String,
    /// What the driver wants to hear again.
    #[serde(deserialize_with = "nullable")]
    pub volume_attributes: BTreeMap<String, String>,
    /// Secret for attach and detach.
    pub controller_publish_secret_ref: Option<SecretRef>,
    pub node_stage_secret_ref: Option<SecretRef>,
    pub node_publish_secret_ref: Option<SecretRef>,
    /// Secret for controller expansion.
    pub controller_expand_secret_ref: Option<SecretRef>,
    /// Secret for node expansion.
    pub node_expand_secret_ref: Option<SecretRef>,
}

impl CsiSource {
    /// The name under which nodes report the volume.
    #[must_use]
    pub fn unique_name(&self) -> UniqueName {
        UniqueName::new(&self.driver, &self.volume_handle)
    }
}

/// A directory on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HostPathSource {
    /// The directory.
    pub path: String,
    /// What is expected there.
    #[serde(rename = "type")]
    pub kind: Option<String>,
}

/// A directory of an NFS server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NfsSource {
    pub server: String,
    /// The exported directory.
    pub path: String,
    /// Mounted read-only everywhere.
    #[serde(rename = "readOnly")]
    pub read_only: bool,
}

/// A directory or a disk of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalSource {
    /// The directory or the device.
    pub path: String,
    /// Filesystem type of a device; absent means ext4.
    pub fs_type: Option<String>,
}

/// One term of a node selector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorTerm {
    /// Requirements on labels.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
    /// Requirements on fields (`metadata.name`).
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub match_fields: Vec<Requirement>,
}

/// A node selector: one term must match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelector {
    #[serde(deserialize_with = "nullable")]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

impl NodeSelector {
    /// Whether a node of this name and these labels matches. An empty term matches nothing.
    #[must_use]
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let fields = BTreeMap::from([("metadata.name".to_owned(), name.to_owned())]);
        self.node_selector_terms.iter().any(|term| {
            !(term.match_expressions.is_empty() && term.match_fields.is_empty())
                && term.match_expressions.iter().all(|one| one.matches(labels))
                && term.match_fields.iter().all(|one| one.matches(&fields))
        })
    }
}

/// From where a volume can be reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeNodeAffinity {
    /// Absent means everywhere.
    pub required: Option<NodeSelector>,
}

/// What a volume is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    /// Its size under `storage`.
    #[serde(deserialize_with = "nullable")]
    pub capacity: BTreeMap<String, Quantity>,
    /// How it may be used.
    #[serde(deserialize_with = "nullable")]
    pub access_modes: Vec<AccessMode>,
    /// The claim it is bound to or kept for.
    pub claim_ref: Option<ObjectRef>,
    #[serde(deserialize_with = "nullable")]
    pub persistent_volume_reclaim_policy: ReclaimPolicy,
    #[serde(deserialize_with = "nullable")]
    pub storage_class_name: String,
    #[serde(deserialize_with = "nullable")]
    pub mount_options: Vec<String>,
    pub volume_mode: Option<VolumeMode>,
    /// From where it can be reached.
    #[serde(deserialize_with = "nullable")]
    pub node_affinity: VolumeNodeAffinity,
    pub volume_attributes_class_name: Option<String>,
    pub csi: Option<CsiSource>,
    /// Host directory source.
    pub host_path: Option<HostPathSource>,
    pub nfs: Option<NfsSource>,
    /// A directory or disk of one node.
    pub local: Option<LocalSource>,
    /// In-tree source of AWS disks.
    pub aws_elastic_block_store: Option<Box<AwsSource>>,
    /// In-tree source of Google disks.
    pub gce_persistent_disk: Option<Box<GceSource>>,
    /// In-tree source of OpenStack disks.
    pub cinder: Option<Box<IdSource>>,
    /// In-tree source of Azure disks.
    pub azure_disk: Option<Box<AzureDiskSource>>,
    /// In-tree source of Azure shares.
    pub azure_file: Option<Box<AzureFileSource>>,
    /// In-tree source of vSphere disks.
    pub vsphere_volume: Option<Box<VsphereSource>>,
    /// In-tree source of Portworx volumes.
    pub portworx_volume: Option<Box<IdSource>>,
}

/// How a volume stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeStatus {
    #[serde(deserialize_with = "nullable")]
    pub phase: VolumePhase,
    /// Why.
    #[serde(deserialize_with = "nullable")]
    pub message: String,
    /// Why, in one word.
    #[serde(deserialize_with = "nullable")]
    pub reason: String,
}

/// A `PersistentVolume`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Volume {
    pub metadata: Meta,
    /// What it is.
    pub spec: VolumeSpec,
    /// How it stands.
    #[serde(deserialize_with = "nullable")]
    pub status: VolumeStatus,
}

impl Volume {
    /// The volume's size; zero when it says nothing.
    #[must_use]
    pub fn capacity(&self) -> Quantity {
        self.spec.capacity.get("storage").copied().unwrap_or(Quantity::ZERO)
    }

    /// The class, the old annotation first; empty when none.
    #[must_use]
    pub fn class_name(&self) -> &str {
        self.metadata
            .annotation(annotations::BETA_STORAGE_CLASS)
            .unwrap_or(&self.spec.storage_class_name)
    }

    /// The volume mode, defaulted.
    #[must_use]
    pub fn volume_mode(&self) -> &VolumeMode {
        self.spec.volume_mode.as_ref().unwrap_or(&VolumeMode::Filesystem)
    }

    /// The volume's name, with its type.
    #[must_use]
    pub fn name(&self) -> VolumeName {
        (&self.metadata.name).into()
    }

    /// Whether a node can reach the volume.
    #[must_use]
    pub fn reachable_from(&self, node: &str, labels: &BTreeMap<String, String>) -> bool {
        self.spec.node_affinity.required.as_ref().is_none_or(|terms| terms.matches(node, labels))
    }
}
