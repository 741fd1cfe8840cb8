//! Claims and storage classes.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Condition, Meta, VolumeHealthStatus, meta::nullable};
use crate::model::{
    AccessMode, ClaimPhase, Quantity, ReclaimPolicy, VolumeMode, VolumeName, keys::annotations,
};

/// A label selector as objects carry it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels that must be equal.
    #[serde(deserialize_with = "nullable")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements.
    #[serde(deserialize_with = "nullable")]
    pub match_expressions: Vec<Requirement>,
}

/// One requirement of a label or node selector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(default)]
pub struct Requirement {
    /// Label key.
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, and for nodes `Gt`, `Lt`.
    pub operator: String,
    /// Values to compare with.
    #[serde(deserialize_with = "nullable")]
    pub values: Vec<String>,
}

impl Requirement {
    /// Whether `labels` fulfil this requirement. An unknown operator matches nothing.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let number = |text: &String| text.parse::<i64>().ok();
        let wanted = || self.values.first().and_then(number);
        match self.operator.as_str() {
            "In" => value.is_some_and(|value| self.values.contains(value)),
            "NotIn" => value.is_none_or(|value| !self.values.contains(value)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => value.and_then(number).zip(wanted()).is_some_and(|(have, want)| have > want),
            "Lt" => value.and_then(number).zip(wanted()).is_some_and(|(have, want)| have < want),
            _ => false,
        }
    }
}

impl LabelSelector {
    /// Whether `labels` match; an empty selector matches everything.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|one| one.matches(labels))
    }
}

/// A reference to what a claim is filled from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataSource {
    /// API group; empty for claims.
    #[serde(deserialize_with = "nullable")]
    pub api_group: String,
    pub kind: String,
    pub name: String,
    /// Namespace, when it is another one.
    pub namespace: Option<String>,
}

/// Amounts asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// At least this much.
    #[serde(deserialize_with = "nullable")]
    pub requests: BTreeMap<String, Quantity>,
    /// At most this much.
    #[serde(deserialize_with = "nullable")]
    pub limits: BTreeMap<String, Quantity>,
}

/// What a claim asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    #[serde(deserialize_with = "nullable")]
    pub access_modes: Vec<AccessMode>,
    /// Which volumes are welcome.
    pub selector: Option<LabelSelector>,
    /// How much.
    #[serde(deserialize_with = "nullable")]
    pub resources: Resources,
    /// The volume it is bound to, or wants.
    #[serde(deserialize_with = "nullable")]
    pub volume_name: VolumeName,
    /// The class; absent differs from empty.
    pub storage_class_name: Option<String>,
    pub volume_mode: Option<VolumeMode>,
    /// What it is filled from.
    pub data_source: Option<DataSource>,
    /// What it is filled from, any kind.
    pub data_source_ref: Option<DataSource>,
    pub volume_attributes_class_name: Option<String>,
}

/// How a claim stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    #[serde(deserialize_with = "nullable")]
    pub phase: ClaimPhase,
    /// The bound volume's modes.
    #[serde(deserialize_with = "nullable")]
    pub access_modes: Vec<AccessMode>,
    /// The real size.
    #[serde(deserialize_with = "nullable")]
    pub capacity: BTreeMap<String, Quantity>,
    /// The size that is being made, or was made last.
    #[serde(deserialize_with = "nullable")]
    pub allocated_resources: BTreeMap<String, Quantity>,
    /// How far a change of the size has come.
    #[serde(deserialize_with = "nullable")]
    pub allocated_resource_statuses: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<Condition>,
    /// The volume attributes class that the volume has now.
    pub current_volume_attributes_class_name: Option<String>,
    /// A change of the volume attributes class that is under way.
    pub modify_volume_status: Option<ModifyVolumeStatus>,
    /// What is wrong with the volume; written by the health monitor, never by a node.
    #[serde(deserialize_with = "nullable")]
    pub health_status: VolumeHealthStatus,
}

/// A change of the volume attributes class that is under way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModifyVolumeStatus {
    /// The class that the volume shall have.
    #[serde(deserialize_with = "nullable")]
    pub target_volume_attributes_class_name: String,
    /// `Pending`, `InProgress` or `Infeasible`.
    #[serde(deserialize_with = "nullable")]
    pub status: String,
}

/// A `PersistentVolumeClaim`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Claim {
    pub metadata: Meta,
    /// What is asked for.
    pub spec: ClaimSpec,
    /// How it stands.
    #[serde(deserialize_with = "nullable")]
    pub status: ClaimStatus,
}

impl Claim {
    /// The storage asked for; zero when the claim says nothing.
    #[must_use]
    pub fn request(&self) -> Quantity {
        self.spec.resources.requests.get("storage").copied().unwrap_or(Quantity::ZERO)
    }

    /// The class this claim names: the old annotation wins over the field; empty when none.
    #[must_use]
    pub fn class_name(&self) -> &str {
        self.metadata
            .annotation(annotations::BETA_STORAGE_CLASS)
            .or(self.spec.storage_class_name.as_deref())
            .unwrap_or_default()
    }

    /// The volume mode, defaulted.
    #[must_use]
    pub fn volume_mode(&self) -> &VolumeMode {
        self.spec.volume_mode.as_ref().unwrap_or(&VolumeMode::Filesystem)
    }
}

/// One topology term of a class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyTerm {
    /// All of these must hold.
    #[serde(deserialize_with = "nullable")]
    pub match_label_expressions: Vec<TopologyExpression>,
}

/// One key of a topology term.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TopologyExpression {
    /// Topology key.
    pub key: String,
    /// Values allowed.
    #[serde(deserialize_with = "nullable")]
    pub values: Vec<String>,
}

/// A `StorageClass`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClass {
    pub metadata: Meta,
    /// Who makes volumes of this class.
    pub provisioner: String,
    /// What the provisioner is told.
    #[serde(deserialize_with = "nullable")]
    pub parameters: BTreeMap<String, String>,
    pub reclaim_policy: Option<ReclaimPolicy>,
    /// Mount options for the volumes.
    #[serde(deserialize_with = "nullable")]
    pub mount_options: Vec<String>,
    /// Whether volumes may grow.
    pub allow_volume_expansion: Option<bool>,
    /// `Immediate` (default) or `WaitForFirstConsumer`.
    pub volume_binding_mode: Option<String>,
    /// Where volumes may be.
    #[serde(deserialize_with = "nullable")]
    pub allowed_topologies: Vec<TopologyTerm>,
}

impl StorageClass {
    /// Whether binding waits for the first pod.
    #[must_use]
    pub fn waits_for_consumer(&self) -> bool {
        self.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
    }

    /// The reclaim policy, defaulted.
    #[must_use]
    pub fn reclaim_policy(&self) -> &ReclaimPolicy {
        self.reclaim_policy.as_ref().unwrap_or(&ReclaimPolicy::Delete)
    }
}
