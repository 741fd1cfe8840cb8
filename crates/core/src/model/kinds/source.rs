//! What lets a claim be filled from another namespace, and what it can be tuned with: grants and
//! attribute classes.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Meta, meta::nullable};

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
