//! Plans one CreateVolume call from a claim and its class.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    name::volume_name,
    params::{Role, Tokens, fs_type, secret, strip},
    source::{self, Content, SNAPSHOT_GROUP, Source, SourceKind},
    topology::{Requirement, TopologyError},
};
use crate::access_mode;
use crate::model::{
    AccessMode, NodeName, ObjectKey, ReclaimPolicy, Uid, VolumeMode, VolumeName,
    kinds::{Claim, ReferenceGrant, SecretRef, StorageClass},
};

/// What the driver can do, as far as provisioning asks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DriverCapabilities {
    /// Plugin capability `CONTROLLER_SERVICE`.
    pub controller_service: bool,
    /// Plugin capability `VOLUME_ACCESSIBILITY_CONSTRAINTS`.
    pub topology: bool,
    /// Controller capability `CREATE_DELETE_VOLUME`.
    pub create_delete_volume: bool,
    /// Controller capability `PUBLISH_UNPUBLISH_VOLUME`.
    pub publish: bool,
    /// Controller capability `SINGLE_NODE_MULTI_WRITER`.
    pub single_node_multi_writer: bool,
    /// Controller capability `CREATE_DELETE_SNAPSHOT`.
    pub create_delete_snapshot: bool,
    /// Controller capability `CLONE_VOLUME`.
    pub clone_volume: bool,
    /// Controller capability `MODIFY_VOLUME`.
    pub modify_volume: bool,
}

impl DriverCapabilities {
    /// What stands in the way of any dynamic provisioning.
    #[must_use]
    pub fn missing(&self) -> Option<&'static str> {
        if !self.controller_service {
            Some(
                "CSI driver does not support dynamic provisioning: plugin CONTROLLER_SERVICE capability is not reported",
            )
        } else if !self.create_delete_volume {
            Some(
                "CSI driver does not support dynamic provisioning: controller CREATE_DELETE_VOLUME capability is not reported",
            )
        } else {
            None
        }
    }

    /// What stands in the way of this volume.
    fn missing_for(&self, source: Option<SourceKind>, tuned: bool) -> Option<&'static str> {
        if let Some(missing) = self.missing() {
            return Some(missing);
        }
        match source {
            Some(SourceKind::Snapshot) if !self.create_delete_snapshot => Some(
                "CSI driver does not support snapshot restore: controller CREATE_DELETE_SNAPSHOT capability is not reported",
            ),
            Some(SourceKind::Claim) if !self.clone_volume => Some(
                "CSI driver does not support clone operations: controller CLONE_VOLUME capability is not reported",
            ),
            _ if tuned && !self.modify_volume => Some(
                "CSI driver does not support VolumeAttributesClass: controller MODIFY_VOLUME capability is not reported",
            ),
            _ => None,
        }
    }
}

/// How provisioning is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanSettings {
    /// First part of volume names.
    pub name_prefix: String,
    /// Characters of the claim's UID in volume names; all of it when absent.
    pub name_uuid_length: Option<usize>,
    /// Filesystem type where the class gives none.
    pub default_fs_type: String,
    /// Tell the driver the names of claim and volume.
    pub extra_create_metadata: bool,
    /// Mark volumes of read-only claims read-only.
    pub publish_read_only: bool,
    /// Claims may name a VolumeAttributesClass; the name is passed over otherwise.
    pub attributes_classes: bool,
    /// Restored volumes keep the mode of the volume that the snapshot was taken of.
    pub guard_volume_mode: bool,
}

impl Default for PlanSettings {
    fn default() -> Self {
        Self {
            name_prefix: "pvc".into(),
            name_uuid_length: None,
            default_fs_type: String::new(),
            extra_create_metadata: false,
            publish_read_only: false,
            attributes_classes: true,
            guard_volume_mode: true,
        }
    }
}

/// All that the plan depends on.
#[derive(Debug)]
pub struct PlanView<'a> {
    pub claim: &'a Claim,
    /// Its class, in CSI form.
    pub class: &'a StorageClass,
    /// The class had an in-tree form, so the volume gets one too.
    pub in_tree: bool,
    /// The driver's name.
    pub driver: &'a str,
    /// What the driver can do.
    pub capabilities: DriverCapabilities,
    /// How provisioning is configured.
    pub settings: &'a PlanSettings,
    /// The node the scheduler chose.
    pub selected_node: Option<&'a NodeName>,
    /// All grants for sources of other namespaces; absent when there may be no such sources.
    pub grants: Option<&'a [Arc<ReferenceGrant>]>,
    /// What the driver is told to fill the volume from, once [`check`] has named a source.
    pub content: Option<Content>,
    /// The topology requirement, worked out beforehand; absent when topology is not in use.
    pub topology: Option<Result<Option<Requirement>, TopologyError>>,
}

/// Why there is no plan, by what that means for the claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotPlanned {
    /// The claim or its class must change first.
    Final(String),
    /// Something else must change first; whatever was begun stays as it is.
    Unchanged(String),
    /// Another node must be chosen.
    Elsewhere(String),
    /// Somebody else fills this claim: the kind that its data source names.
    Populator,
}

/// How the volume is handed out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Access {
    /// As a raw device.
    Block,
    /// As a mounted filesystem.
    #[serde(rename_all = "camelCase")]
    Mount {
        /// Filesystem type; empty means the driver's default.
        fs_type: String,
        /// Mount options.
        flags: Vec<String>,
    },
}

/// One capability that the volume must have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    /// The access mode by its name in the protocol.
    pub mode: String,
    /// How it is handed out.
    pub access: Access,
}

/// The claim that a plan serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimId {
    pub namespace: String,
    pub name: String,
    /// Its UID: a later claim of that name is another one.
    pub uid: Uid,
}

/// The secrets that a volume's calls need, by reference only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretRefs {
    /// For CreateVolume and DeleteVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioner: Option<SecretRef>,
    /// For ControllerPublishVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_publish: Option<SecretRef>,
    /// For NodeStageVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_stage: Option<SecretRef>,
    /// For NodePublishVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_publish: Option<SecretRef>,
    /// For ControllerExpandVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_expand: Option<SecretRef>,
    /// For NodeExpandVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_expand: Option<SecretRef>,
    /// For ControllerModifyVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_modify: Option<SecretRef>,
}

/// One CreateVolume call and all that its answer needs to become a volume.
///
/// A plan is complete: it can be written down, and carried out later by somebody who has neither
/// the claim nor the class. Secrets are in it by reference only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    pub driver: String,
    /// Whom it is for.
    pub claim: ClaimId,
    /// The volume's name, here and with the driver.
    pub volume: VolumeName,
    /// The node the scheduler had chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected_node: Option<NodeName>,
    /// The size asked for.
    pub bytes: i64,
    /// What the driver is told.
    pub parameters: BTreeMap<String, String>,
    /// What the volume must be good for.
    pub capabilities: Vec<Capability>,
    /// Where it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Requirement>,
    /// The driver's answer about places counts.
    pub topology_in_use: bool,
    /// Secrets, by reference.
    pub secrets: SecretRefs,
    /// The volume's access modes.
    pub access_modes: Vec<AccessMode>,
    /// The volume's mode, where the claim gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<VolumeMode>,
    /// The volume's filesystem type; empty for block volumes.
    pub fs_type: String,
    /// The volume's mount options.
    pub mount_options: Vec<String>,
    /// The volume's reclaim policy, where the class gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_policy: Option<ReclaimPolicy>,
    /// The volume is for reading only.
    pub read_only: bool,
    /// What the volume is filled from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// The driver's answer must say so.
    #[serde(default)]
    pub content_in_answer: bool,
    /// The VolumeAttributesClass that the claim names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes_class: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mutable_parameters: BTreeMap<String, String>,
    /// The volume is saved in its in-tree form.
    #[serde(default)]
    pub in_tree: bool,
}

/// What is known before anything is looked up.
struct Draft {
    source: Option<Source>,
    volume: VolumeName,
    fs_type: String,
    capabilities: Vec<Capability>,
}

/// The checks that need nothing but the claim and its class; what to look up for the rest.
///
/// They come before the source is looked at and marked as being in use.
///
/// # Errors
/// When there is no plan; the variant says what that means.
pub fn check(view: &PlanView<'_>) -> Result<Option<Source>, NotPlanned> {
    draft(view).map(|draft| draft.source)
}

fn draft(view: &PlanView<'_>) -> Result<Draft, NotPlanned> {
    let (claim, class, settings) = (view.claim, view.class, view.settings);
    let fail = |error: &dyn std::fmt::Display| NotPlanned::Final(error.to_string());
    let source = source_of(view)?;
    let tuned = attributes_class(claim, settings).is_some();
    let kind = source.as_ref().map(|source| source.kind);
    if let Some(missing) = view.capabilities.missing_for(kind, tuned) {
        return Err(fail(&missing));
    }
    if claim.spec.selector.is_some() {
        return Err(fail(&"claim Selector is not supported"));
    }
    let volume = volume_name(&settings.name_prefix, &claim.metadata.uid, settings.name_uuid_length)
        .map_err(|error| fail(&error))?;
    let fs_type =
        fs_type(&class.parameters, &settings.default_fs_type).map_err(|error| fail(&error))?;
    let capabilities = capabilities(view, &fs_type)?;
    Ok(Draft { source, volume, fs_type, capabilities })
}

/// The VolumeAttributesClass that a claim names and that counts.
#[must_use]
pub fn attributes_class<'a>(claim: &'a Claim, settings: &PlanSettings) -> Option<&'a str> {
    let name = claim.spec.volume_attributes_class_name.as_deref();
    name.filter(|name| settings.attributes_classes && !name.is_empty())
}

/// Plans the volume for one claim.
///
/// The order of the checks is the order of the specification (§2.7): a claim with several faults
/// is told of the same one as by upstream.
///
/// # Errors
/// When there is no plan; the variant says what that means.
pub fn plan(view: &PlanView<'_>) -> Result<Plan, NotPlanned> {
    let (claim, class, settings) = (view.claim, view.class, view.settings);
    let Draft { source, volume, fs_type, capabilities } = draft(view)?;
    if source.is_some() != view.content.is_some() {
        // Never a volume that looks filled and is not.
        let name = &claim.metadata.name;
        return Err(NotPlanned::Unchanged(format!("the source of PVC {name} is not known yet")));
    }
    let topology = match &view.topology {
        None => None,
        Some(Ok(requirement)) => requirement.clone(),
        Some(Err(error @ TopologyError::NoCsiNode { .. })) => {
            return Err(NotPlanned::Elsewhere(error.to_string()));
        }
        Some(Err(error)) => return Err(NotPlanned::Unchanged(error.to_string())),
    };
    let secrets = secrets(view, &volume)?;
    let mut parameters =
        strip(&class.parameters).map_err(|error| NotPlanned::Final(error.to_string()))?;
    if settings.extra_create_metadata {
        parameters.extend(create_metadata(claim, &volume));
    }
    let block = claim.volume_mode() == &VolumeMode::Block;
    let only = |mode: &str| matches!(&capabilities[..], [one] if one.mode == mode);
    Ok(Plan {
        driver: view.driver.into(),
        claim: ClaimId {
            namespace: claim.metadata.namespace.clone(),
            name: claim.metadata.name.clone(),
            uid: claim.metadata.uid.clone(),
        },
        selected_node: view.selected_node.cloned(),
        bytes: claim.request().bytes(),
        topology,
        topology_in_use: view.topology.is_some(),
        content_in_answer: source::wants_source_in_answer(claim, view.grants.is_some()),
        content: view.content.clone(),
        attributes_class: attributes_class(claim, settings).map(String::from),
        mutable_parameters: BTreeMap::new(),
        read_only: settings.publish_read_only && only("MULTI_NODE_READER_ONLY"),
        in_tree: view.in_tree,
        access_modes: claim.spec.access_modes.clone(),
        volume_mode: claim.spec.volume_mode.clone(),
        fs_type: if block { String::new() } else { fs_type },
        mount_options: class.mount_options.clone(),
        reclaim_policy: class.reclaim_policy.clone(),
        volume,
        parameters,
        capabilities,
        secrets,
    })
}

/// The source that we fill the claim from; other kinds are somebody else's work.
fn source_of(view: &PlanView<'_>) -> Result<Option<Source>, NotPlanned> {
    let fail = |text: String| NotPlanned::Final(text);
    let found = source::reference(view.claim, view.grants).map_err(|e| fail(e.to_string()))?;
    let Some(found) = found else { return Ok(None) };
    let (name, group) = (&found.source.name, &found.source.api_group);
    if name.is_empty() {
        let name = &view.claim.metadata.name;
        return Err(fail(format!("the PVC source not found for PVC {name}")));
    }
    let kind = match found.source.kind.as_str() {
        "VolumeSnapshot" if group != SNAPSHOT_GROUP => {
            return Err(fail(format!(
                "the PVC source does not belong to the right APIGroup. Expected {SNAPSHOT_GROUP}, Got {group}"
            )));
        }
        "VolumeSnapshot" => SourceKind::Snapshot,
        "PersistentVolumeClaim" => SourceKind::Claim,
        _ => return Err(NotPlanned::Populator),
    };
    Ok(Some(Source { kind, key: ObjectKey::new(found.namespace, name) }))
}

fn capabilities(view: &PlanView<'_>, fs_type: &str) -> Result<Vec<Capability>, NotPlanned> {
    let multi_writer = view.capabilities.single_node_multi_writer;
    let access = if view.claim.volume_mode() == &VolumeMode::Block {
        Access::Block
    } else {
        Access::Mount { fs_type: fs_type.into(), flags: view.class.mount_options.clone() }
    };
    let one = |mode: &AccessMode| {
        let csi = access_mode::for_create(mode, multi_writer).ok_or_else(|| {
            NotPlanned::Final(format!("unsupported AccessMode combination: [{mode}]"))
        })?;
        Ok(Capability { mode: csi.name().into(), access: access.clone() })
    };
    view.claim.spec.access_modes.iter().map(one).collect()
}

fn secrets(view: &PlanView<'_>, volume: &VolumeName) -> Result<SecretRefs, NotPlanned> {
    let tokens = Tokens {
        volume,
        claim_namespace: &view.claim.metadata.namespace,
        claim_name: &view.claim.metadata.name,
        claim_annotations: Some(&view.claim.metadata.annotations),
    };
    let of = |role| {
        secret(role, &view.class.parameters, &tokens)
            .map_err(|error| NotPlanned::Unchanged(error.to_string()))
    };
    Ok(SecretRefs {
        provisioner: of(Role::Provisioner)?,
        controller_publish: of(Role::ControllerPublish)?,
        node_stage: of(Role::NodeStage)?,
        node_publish: of(Role::NodePublish)?,
        controller_expand: of(Role::ControllerExpand)?,
        node_expand: of(Role::NodeExpand)?,
        controller_modify: of(Role::ControllerModify)?,
    })
}

fn create_metadata(claim: &Claim, volume: &VolumeName) -> [(String, String); 3] {
    let key = |name: &str| format!("csi.storage.k8s.io/{name}");
    [
        (key("pvc/name"), claim.metadata.name.clone()),
        (key("pvc/namespace"), claim.metadata.namespace.clone()),
        (key("pv/name"), volume.into()),
    ]
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
