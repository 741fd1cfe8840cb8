//! Nodes, namespaces, secrets, config maps, events, leases.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

use super::{Meta, ObjectRef, meta::nullable};
use crate::model::{NodeName, Quantity};
use crate::names::UniqueName;

/// A taint on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: String,
    #[serde(deserialize_with = "nullable")]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule`, `NoExecute`.
    pub effect: String,
}

/// What a node is told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// Cordoned.
    pub unschedulable: bool,
    #[serde(deserialize_with = "nullable")]
    pub taints: Vec<Taint>,
}

/// A condition of any object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// `Ready`, `PodScheduled` …
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False`, `Unknown`.
    pub status: String,
    /// One word.
    #[serde(deserialize_with = "nullable")]
    pub reason: String,
    /// A sentence.
    #[serde(deserialize_with = "nullable")]
    pub message: String,
    /// When it last changed.
    pub last_transition_time: Option<Timestamp>,
}

/// A volume that the controller has attached to the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachedVolume {
    pub name: UniqueName,
    /// Device, where the plugin knows one.
    pub device_path: String,
}

/// How a node stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<Condition>,
    /// Unique names of volumes that the node uses.
    #[serde(deserialize_with = "nullable")]
    pub volumes_in_use: Vec<UniqueName>,
    /// What the controller has attached.
    #[serde(deserialize_with = "nullable")]
    pub volumes_attached: Vec<AttachedVolume>,
    /// What pods may use.
    #[serde(deserialize_with = "nullable")]
    pub allocatable: BTreeMap<String, Quantity>,
}

/// A `Node`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    pub metadata: Meta,
    /// What it is told.
    #[serde(deserialize_with = "nullable")]
    pub spec: NodeSpec,
    /// How it stands.
    #[serde(deserialize_with = "nullable")]
    pub status: NodeStatus,
}

impl Node {
    /// The node's name, with its type.
    #[must_use]
    pub fn name(&self) -> NodeName {
        (&self.metadata.name).into()
    }

    /// Whether the node says that it is ready.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.status.conditions.iter().any(|one| one.kind == "Ready" && one.status == "True")
    }
}

/// A `Namespace`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    pub metadata: Meta,
}

/// A `ServiceAccount`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServiceAccount {
    pub metadata: Meta,
}

/// A `Secret`, values still in base64.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Secret {
    pub metadata: Meta,
    /// Values in base64.
    #[serde(deserialize_with = "nullable")]
    pub data: BTreeMap<String, String>,
}

// By hand, so that a stray debug line cannot print a secret.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret").field("metadata", &self.metadata).finish_non_exhaustive()
    }
}

/// A `ConfigMap`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigMap {
    pub metadata: Meta,
    /// Values.
    #[serde(deserialize_with = "nullable")]
    pub data: BTreeMap<String, String>,
    /// Values that are no text, in base64.
    #[serde(deserialize_with = "nullable")]
    pub binary_data: BTreeMap<String, String>,
}

/// Who sent an event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EventSource {
    #[serde(deserialize_with = "nullable")]
    pub component: String,
    #[serde(deserialize_with = "nullable")]
    pub host: String,
}

/// An `Event`, in its core form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Event {
    pub metadata: Meta,
    /// What it is about.
    pub involved_object: ObjectRef,
    /// One word.
    #[serde(deserialize_with = "nullable")]
    pub reason: String,
    /// A sentence.
    #[serde(deserialize_with = "nullable")]
    pub message: String,
    /// `Normal` or `Warning`.
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    /// How often.
    pub count: Option<i32>,
    /// Who.
    #[serde(deserialize_with = "nullable")]
    pub source: EventSource,
    /// First time.
    pub first_timestamp: Option<Timestamp>,
    /// Last time.
    pub last_timestamp: Option<Timestamp>,
}

/// Who holds a lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// The holder; empty when released.
    #[serde(deserialize_with = "nullable")]
    pub holder_identity: String,
    /// How long it holds without renewal.
    pub lease_duration_seconds: Option<i32>,
    /// Since when.
    pub acquire_time: Option<Timestamp>,
    /// Last renewal.
    pub renew_time: Option<Timestamp>,
    /// How often it changed hands.
    pub lease_transitions: Option<i32>,
}

/// A `Lease`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Lease {
    pub metadata: Meta,
    /// Who holds it.
    #[serde(deserialize_with = "nullable")]
    pub spec: LeaseSpec,
}
