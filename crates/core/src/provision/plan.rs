//! What a CSI driver is asked for, and the volume that its answer becomes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    name::volume_name,
    params::{Role, Tokens, fs_type, secret, strip},
    topology::{self, Requirement, Term, TopologyError},
};
use crate::model::{
    Quantity,
    keys::annotations,
    kinds::{Claim, SecretRef, StorageClass},
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
}

impl Default for PlanSettings {
    fn default() -> Self {
        Self {
            name_prefix: "pvc".into(),
            name_uuid_length: None,
            default_fs_type: String::new(),
            extra_create_metadata: false,
            publish_read_only: false,
        }
    }
}

/// All that the plan depends on.
#[derive(Debug)]
pub struct PlanView<'a> {
    /// The claim.
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
    pub selected_node: Option<&'a str>,
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
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID: a later claim of that name is another one.
    pub uid: String,
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
    /// The driver.
    pub driver: String,
    /// Whom it is for.
    pub claim: ClaimId,
    /// The volume's name, here and with the driver.
    pub volume: String,
    /// The node the scheduler had chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected_node: Option<String>,
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
    pub access_modes: Vec<String>,
    /// The volume's mode, where the claim gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
    /// The volume's filesystem type; empty for block volumes.
    pub fs_type: String,
    /// The volume's mount options.
    pub mount_options: Vec<String>,
    /// The volume's reclaim policy, where the class gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_policy: Option<String>,
    /// The volume is for reading only.
    pub read_only: bool,
    /// The volume is saved in its in-tree form.
    #[serde(default)]
    pub in_tree: bool,
}

/// Plans the volume for one claim.
///
/// The order of the checks is the order of the specification (§2.7): a claim with several faults
/// is told of the same one as by upstream.
///
/// # Errors
/// When there is no plan; the variant says what that means.
pub fn plan(view: &PlanView<'_>) -> Result<Plan, NotPlanned> {
    let (claim, class) = (view.claim, view.class);
    let fail = |error: &dyn std::fmt::Display| NotPlanned::Final(error.to_string());
    check_source(claim)?;
    if let Some(missing) = view.capabilities.missing() {
        return Err(fail(&missing));
    }
    if claim.spec.volume_attributes_class_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return Err(fail(
            &"volumes with a VolumeAttributesClass cannot be provisioned by this version",
        ));
    }
    if claim.spec.selector.is_some() {
        return Err(fail(&"claim Selector is not supported"));
    }
    let settings = view.settings;
    let volume = volume_name(&settings.name_prefix, &claim.metadata.uid, settings.name_uuid_length)
        .map_err(|error| fail(&error))?;
    let fs_type =
        fs_type(&class.parameters, &settings.default_fs_type).map_err(|error| fail(&error))?;
    let capabilities = capabilities(view, &fs_type)?;
    let topology = match &view.topology {
        None => None,
        Some(Ok(requirement)) => requirement.clone(),
        Some(Err(error @ TopologyError::NoCsiNode { .. })) => {
            return Err(NotPlanned::Elsewhere(error.to_string()));
        }
        Some(Err(error)) => return Err(NotPlanned::Unchanged(error.to_string())),
    };
    let secrets = secrets(view, &volume)?;
    let mut parameters = strip(&class.parameters).map_err(|error| fail(&error))?;
    if settings.extra_create_metadata {
        parameters.extend(create_metadata(claim, &volume));
    }
    let block = claim.volume_mode() == "Block";
    let only = |mode: &str| matches!(&capabilities[..], [one] if one.mode == mode);
    Ok(Plan {
        driver: view.driver.into(),
        claim: ClaimId {
            namespace: claim.metadata.namespace.clone(),
            name: claim.metadata.name.clone(),
            uid: claim.metadata.uid.clone(),
        },
        selected_node: view.selected_node.map(String::from),
        bytes: claim.request().bytes(),
        topology,
        topology_in_use: view.topology.is_some(),
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

/// Snapshots and clones are not here yet, and say so; any other source is somebody else's work.
fn check_source(claim: &Claim) -> Result<(), NotPlanned> {
    let source = claim.spec.data_source.as_ref().or(claim.spec.data_source_ref.as_ref());
    let Some(source) = source else { return Ok(()) };
    if source.name.is_empty() {
        let name = &claim.metadata.name;
        return Err(NotPlanned::Final(format!("the PVC source not found for PVC {name}")));
    }
    match (source.kind.as_str(), source.api_group.as_str()) {
        ("VolumeSnapshot", "snapshot.storage.k8s.io") => Err(NotPlanned::Final(
            "restoring a VolumeSnapshot is not supported by this version".into(),
        )),
        ("VolumeSnapshot", _) => Err(NotPlanned::Final(
            "the PVC source does not belong to the right APIGroup. Expected snapshot.storage.k8s.io"
                .into(),
        )),
        ("PersistentVolumeClaim", _) => Err(NotPlanned::Final(
            "cloning a PersistentVolumeClaim is not supported by this version".into(),
        )),
        _ => Err(NotPlanned::Populator),
    }
}

fn capabilities(view: &PlanView<'_>, fs_type: &str) -> Result<Vec<Capability>, NotPlanned> {
    let fine = view.capabilities.single_node_multi_writer;
    let access = if view.claim.volume_mode() == "Block" {
        Access::Block
    } else {
        Access::Mount { fs_type: fs_type.into(), flags: view.class.mount_options.clone() }
    };
    let one = |mode: &String| {
        let name = match (mode.as_str(), fine) {
            ("ReadWriteMany", _) => "MULTI_NODE_MULTI_WRITER",
            ("ReadOnlyMany", _) => "MULTI_NODE_READER_ONLY",
            ("ReadWriteOnce", false) | ("ReadWriteOncePod", false) => "SINGLE_NODE_WRITER",
            ("ReadWriteOnce", true) => "SINGLE_NODE_MULTI_WRITER",
            ("ReadWriteOncePod", true) => "SINGLE_NODE_SINGLE_WRITER",
            (other, _) => {
                return Err(NotPlanned::Final(format!(
                    "unsupported AccessMode combination: [{other}]"
                )));
            }
        };
        Ok(Capability { mode: name.into(), access: access.clone() })
    };
    view.claim.spec.access_modes.iter().map(one).collect()
}

fn secrets(view: &PlanView<'_>, volume: &str) -> Result<SecretRefs, NotPlanned> {
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

fn create_metadata(claim: &Claim, volume: &str) -> [(String, String); 3] {
    let key = |name: &str| format!("csi.storage.k8s.io/{name}");
    [
        (key("pvc/name"), claim.metadata.name.clone()),
        (key("pvc/namespace"), claim.metadata.namespace.clone()),
        (key("pv/name"), volume.into()),
    ]
}

/// The driver's answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Created {
    /// The driver's id of the volume.
    pub handle: String,
    /// Its size; zero when the driver does not say.
    pub bytes: i64,
    /// What the driver wants to hear again.
    pub context: BTreeMap<String, String>,
    /// From where it can be reached.
    pub places: Vec<Term>,
}

impl Plan {
    /// The driver made less than was asked for.
    #[must_use]
    pub fn too_small(&self, created: &Created) -> Option<String> {
        (created.bytes > 0 && created.bytes < self.bytes).then(|| {
            format!(
                "created volume capacity {} less than requested capacity {}",
                created.bytes, self.bytes
            )
        })
    }

    /// The PersistentVolume, without what the library adds (claim, class, origin, finalizer).
    #[must_use]
    pub fn volume(&self, created: &Created, identity: &str) -> Value {
        let bytes = if created.bytes == 0 { self.bytes } else { created.bytes };
        let mut spec = json!({
            "capacity": {"storage": Quantity::from_bytes(bytes).to_string()},
            "accessModes": self.access_modes,
            "csi": self.source(created, identity),
        });
        let mut set = |field: &str, value: Option<Value>| {
            if let (Some(value), Some(spec)) = (value, spec.as_object_mut()) {
                spec.insert(field.into(), value);
            }
        };
        set("mountOptions", (!self.mount_options.is_empty()).then(|| json!(self.mount_options)));
        set("persistentVolumeReclaimPolicy", self.reclaim_policy.as_ref().map(|p| json!(p)));
        set("volumeMode", self.volume_mode.as_ref().map(|mode| json!(mode)));
        let affinity = self.topology_in_use.then(|| topology::node_affinity(&created.places));
        set("nodeAffinity", affinity.flatten());
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": self.volume, "annotations": self.annotations()},
            "spec": spec,
        })
    }

    fn source(&self, created: &Created, identity: &str) -> Value {
        let mut attributes = BTreeMap::from([(IDENTITY.to_string(), identity.to_string())]);
        attributes.extend(created.context.clone());
        let mut source = Map::new();
        source.insert("driver".into(), json!(self.driver));
        source.insert("volumeHandle".into(), json!(created.handle));
        source.insert("volumeAttributes".into(), json!(attributes));
        if !self.fs_type.is_empty() {
            source.insert("fsType".into(), json!(self.fs_type));
        }
        if self.read_only {
            source.insert("readOnly".into(), json!(true));
        }
        let references = [
            ("controllerPublishSecretRef", &self.secrets.controller_publish),
            ("nodeStageSecretRef", &self.secrets.node_stage),
            ("nodePublishSecretRef", &self.secrets.node_publish),
            ("controllerExpandSecretRef", &self.secrets.controller_expand),
            ("nodeExpandSecretRef", &self.secrets.node_expand),
        ];
        for (field, reference) in references {
            if let Some(reference) = reference {
                source.insert(field.into(), json!(reference));
            }
        }
        Value::Object(source)
    }

    fn annotations(&self) -> BTreeMap<&'static str, String> {
        let deletion = self.secrets.provisioner.clone().unwrap_or_default();
        let mut notes = BTreeMap::from([
            (annotations::DELETION_SECRET_NAME, deletion.name),
            (annotations::DELETION_SECRET_NAMESPACE, deletion.namespace),
        ]);
        if let Some(modify) = &self.secrets.controller_modify {
            notes.insert(MODIFY_SECRET_NAME, modify.name.clone());
            notes.insert(MODIFY_SECRET_NAMESPACE, modify.namespace.clone());
        }
        notes
    }
}

/// In a volume's attributes: which provisioner made it.
const IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";
/// On a volume: the modify secret's name.
const MODIFY_SECRET_NAME: &str = "volume.kubernetes.io/controller-modify-secret-name";
/// On a volume: the modify secret's namespace.
const MODIFY_SECRET_NAMESPACE: &str = "volume.kubernetes.io/controller-modify-secret-namespace";

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
