//! Turns the response to CreateVolume into a PersistentVolume.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    plan::{NotPlanned, Plan},
    topology::{self, Term},
};
use crate::model::{Quantity, keys::annotations, kinds::VolumeAttributesClass};

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
    /// It says what it was filled from.
    pub has_content: bool,
}

/// Why a volume that was made is of no use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Useless {
    /// What is wrong.
    pub problem: String,
    /// How the sentence about a failed removal begins.
    pub removal: &'static str,
}

impl Plan {
    /// What the driver made is less than was asked for, or not certainly filled.
    #[must_use]
    pub fn useless(&self, created: &Created) -> Option<Useless> {
        if created.bytes > 0 && created.bytes < self.bytes {
            let problem = format!(
                "created volume capacity {} less than requested capacity {}",
                created.bytes, self.bytes
            );
            return Some(Useless { problem, removal: "Cleanup" });
        }
        (self.content_in_answer && !created.has_content).then(|| Useless {
            problem: "volume content source missing".into(),
            removal: "cleanup",
        })
    }

    /// The same with the parameters of the VolumeAttributesClass that the claim names.
    ///
    /// # Errors
    /// When the class is for another driver.
    pub fn tuned(mut self, class: &VolumeAttributesClass) -> Result<Self, NotPlanned> {
        let (name, of) = (&class.metadata.name, &class.driver_name);
        if *of != self.driver {
            let ours = &self.driver;
            return Err(NotPlanned::Final(format!(
                "VAC {name} referenced in PVC is for driver {of} which does not match driver name {ours}"
            )));
        }
        self.mutable_parameters = class.parameters.clone();
        Ok(self)
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
        set("volumeAttributesClassName", self.attributes_class.as_ref().map(|name| json!(name)));
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
            notes.insert(annotations::MODIFY_SECRET_NAME, modify.name.clone());
            notes.insert(annotations::MODIFY_SECRET_NAMESPACE, modify.namespace.clone());
        }
        notes
    }
}

/// In a volume's attributes: which provisioner made it.
const IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";
