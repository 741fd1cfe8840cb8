//! `PersistentVolume`.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

use longshore_core::model::keys::finalizers::PV_PROTECTION;

use super::in_tree_sources;
use crate::error::{ApiResult, Cause, Causes};
use crate::registry::builtin::{ALL, BuiltinKind, CORE, Names, Scope, Storage};
use crate::registry::codec::of;
use crate::registry::rules::{
    access_modes, at, driver_name, node_selector, one_of, quantity, same, set_default, subdomain,
    text, unset,
};
use crate::registry::strategy::{Context, Strategy, Traits};
use crate::registry::table::{AGE, NAME, Row, Table, column, or, phase, short_modes, wide};
use crate::registry::{go_values, names};

pub(super) static VOLUME: BuiltinKind = BuiltinKind {
    group_version: CORE,
    names: Names {
        kind: "PersistentVolume",
        plural: "persistentvolumes",
        short: &["pv"],
        categories: &[],
    },
    scope: Scope::Cluster,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<core::PersistentVolume>,
    rules: || Arc::new(Volume),
    table: Table {
        columns: &[
            NAME,
            column("Capacity"),
            column("Access Modes"),
            column("Reclaim Policy"),
            column("Status"),
            column("Claim"),
            column("StorageClass"),
            column("VolumeAttributesClass"),
            column("Reason"),
            AGE,
            wide("VolumeMode"),
        ],
        cells,
    },
    selectors: &[],
    quantities: &["spec.capacity.*"],
    patch_keys: &[],
    facts: &[
        "atomic core.v1.SecretReference",
        "granular core.v1.PersistentVolumeSpec.claimRef",
        "enum core.v1.PersistentVolumeSpec.accessModes ReadOnlyMany ReadWriteMany ReadWriteOnce \
         ReadWriteOncePod",
        "enum core.v1.PersistentVolumeSpec.persistentVolumeReclaimPolicy Delete Recycle Retain",
        "enum core.v1.PersistentVolumeSpec.volumeMode Block Filesystem",
        "enum core.v1.PersistentVolumeStatus.phase Available Bound Failed Pending Released",
        "type core.v1.PersistentVolumeSpec.accessModes []v1.PersistentVolumeAccessMode",
        "type core.v1.PersistentVolumeSpec.capacity v1.ResourceList",
        "type core.v1.PersistentVolumeSpec.persistentVolumeReclaimPolicy \
         v1.PersistentVolumeReclaimPolicy",
        "type core.v1.PersistentVolumeSpec.volumeMode v1.PersistentVolumeMode",
    ],
    protobuf: &[include_str!("volume_protobuf.txt")],
};

fn cells(row: &Row<'_>) -> Value {
    let Row { object, name, age, .. } = row;
    let claim =
        match (text(object, "/spec/claimRef/namespace"), text(object, "/spec/claimRef/name")) {
            ("", "") => String::new(),
            (namespace, name) => format!("{namespace}/{name}"),
        };
    json!([
        name,
        text(object, "/spec/capacity/storage"),
        short_modes(object, "/spec/accessModes"),
        text(object, "/spec/persistentVolumeReclaimPolicy"),
        phase(object),
        claim,
        text(object, "/spec/storageClassName"),
        or(text(object, "/spec/volumeAttributesClassName"), "<unset>"),
        text(object, "/status/reason"),
        age,
        or(text(object, "/spec/volumeMode"), "<unset>"),
    ])
}

/// The rules of volumes.
pub(super) struct Volume;

/// Every way a volume can be backed, in the order in which they are checked.
pub(super) const SOURCES: &[&str] = &[
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

/// Adds a finalizer unless it is there.
pub(super) fn add_finalizer(object: &mut Value, name: &str) {
    let finalizers = &mut object["metadata"]["finalizers"];
    if !finalizers.is_array() {
        *finalizers = json!([]);
    }
    if let Some(list) = finalizers.as_array_mut()
        && !list.iter().any(|f| f == name)
    {
        list.push(json!(name));
    }
}

impl Strategy for Volume {
    fn traits(&self) -> Traits {
        Traits::WITH_STATUS
    }

    fn default(&self, object: &mut Value) {
        let spec = &mut object["spec"];
        set_default(spec, "persistentVolumeReclaimPolicy", "Retain");
        set_default(spec, "volumeMode", "Filesystem");
        if let Some(host) = spec.get_mut("hostPath").filter(|h| h.is_object()) {
            set_default(host, "type", "");
        }
        if let Some(disk) = spec.get_mut("azureDisk").filter(|d| d.is_object()) {
            set_default(disk, "cachingMode", "ReadWrite");
            set_default(disk, "kind", "Shared");
            set_default(disk, "fsType", "ext4");
            set_default(disk, "readOnly", false);
        }
        if !object["status"].is_null() {
            set_default(&mut object["status"], "phase", "Pending");
        }
    }

    fn prepare_create(&self, object: &mut Value, cx: &Context<'_>) {
        object["status"] =
            json!({"phase": "Pending", "lastPhaseTransitionTime": cx.env.now_text()});
    }

    fn admit_create(&self, object: &mut Value, _cx: &Context<'_>) -> ApiResult<()> {
        add_finalizer(object, PV_PROTECTION);
        Ok(())
    }

    fn warnings(&self, object: &Value) -> Vec<String> {
        let spec = &object["spec"];
        let mut warnings = deprecated_labels(spec);
        for (name, since) in DEPRECATED_ANNOTATIONS {
            if object["metadata"]["annotations"][*name].is_string() {
                warnings.push(format!("metadata.annotations[{name}]: deprecated since {since}"));
            }
        }
        if spec["persistentVolumeReclaimPolicy"] == "Recycle" {
            warnings.push(
                "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. \
                 Instead, the recommended approach is to use dynamic provisioning."
                    .into(),
            );
        }
        warnings.extend(in_tree_sources::warnings(spec));
        warnings
    }

    fn validate_create(&self, object: &Value) -> Causes {
        validate(object)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = validate(new);
        let (new, old) = (&new["spec"], &old["spec"]);
        if !same_source(new, old) {
            let why = "spec.persistentvolumesource is immutable after creation";
            let changes = go_values::difference(go_values::VOLUME_SOURCE, old, new);
            causes.push(Cause::forbidden(
                "spec.persistentvolumesource",
                &format!("{why}\n{changes}"),
            ));
        }
        if !same(&new["volumeMode"], &old["volumeMode"]) {
            causes.push(Cause::invalid("volumeMode", &new["volumeMode"], "field is immutable"));
        }
        let moved = same(&with_current_labels(&old["nodeAffinity"]), &new["nodeAffinity"]);
        if !unset(old, "/nodeAffinity")
            && !same(&new["nodeAffinity"], &old["nodeAffinity"])
            && !moved
        {
            let why = "field is immutable, except for updating from beta label to GA";
            let affinity = go_values::compact(go_values::AFFINITY, &new["nodeAffinity"]);
            causes.push(Cause::invalid_shown("nodeAffinity", &affinity, why));
        }
        if !unset(old, "/volumeAttributesClassName") && unset(new, "/volumeAttributesClassName") {
            let why = "update from non-nil value to nil is forbidden";
            causes.push(Cause::forbidden("spec.volumeAttributesClassName", why));
        }
        causes
    }

    fn prepare_status(&self, new: &mut Value, old: &Value, cx: &Context<'_>) {
        let was = &old["status"];
        let status = &mut new["status"];
        let phase_changed = !same(&status["phase"], &was["phase"]);
        let given = &status["lastPhaseTransitionTime"];
        if !phase_changed && given.is_null() {
            status["lastPhaseTransitionTime"] = was["lastPhaseTransitionTime"].clone();
        } else if phase_changed && (given.is_null() || *given == was["lastPhaseTransitionTime"]) {
            status["lastPhaseTransitionTime"] = json!(cx.env.now_text());
        }
        if status["lastPhaseTransitionTime"].is_null()
            && let Some(map) = status.as_object_mut()
        {
            map.remove("lastPhaseTransitionTime");
        }
    }
}

/// The affinity with current names of node labels.
fn with_current_labels(affinity: &Value) -> Value {
    let mut affinity = affinity.clone();
    let terms = affinity.pointer_mut("/required/nodeSelectorTerms").and_then(Value::as_array_mut);
    for term in terms.into_iter().flatten() {
        let expressions = term.get_mut("matchExpressions").and_then(Value::as_array_mut);
        for expression in expressions.into_iter().flatten() {
            let renamed = RENAMED_LABELS.iter().find(|(old, ..)| expression["key"] == *old);
            if let Some((.., new)) = renamed {
                expression["key"] = json!(new);
            }
        }
    }
    affinity
}

/// The source may not change, but the secret for expansion may be added once.
fn same_source(new: &Value, old: &Value) -> bool {
    SOURCES.iter().all(|source| {
        let (new, mut old) = (new[source].clone(), old[source].clone());
        if *source == "csi" && unset(&old, "/controllerExpandSecretRef") && old.is_object() {
            old["controllerExpandSecretRef"] = at(&new, "/controllerExpandSecretRef").clone();
        }
        same(&new, &old)
    })
}

fn validate(object: &Value) -> Causes {
    let spec = &object["spec"];
    let mut causes = Causes::new();
    access_modes(&mut causes, spec, "spec.accessModes", "");
    validate_capacity(&mut causes, spec);
    validate_sources(&mut causes, spec);
    let policy = text(spec, "/persistentVolumeReclaimPolicy");
    let field = "spec.persistentVolumeReclaimPolicy";
    one_of(&mut causes, field, policy, &["Delete", "Recycle", "Retain"]);
    if policy == "Recycle" && text(spec, "/hostPath/path") == "/" {
        causes.push(Cause::forbidden(field, "may not be 'recycle' for a hostPath mount of '/'"));
    }
    let class = text(spec, "/storageClassName");
    if !class.is_empty() {
        subdomain(&mut causes, "spec.storageClassName", class);
    }
    one_of(&mut causes, "spec.volumeMode", text(spec, "/volumeMode"), &["Block", "Filesystem"]);
    validate_affinity(&mut causes, spec);
    validate_attributes_class(&mut causes, spec);
    causes
}

fn validate_capacity(causes: &mut Causes, spec: &Value) {
    let capacity = spec["capacity"].as_object();
    if capacity.is_none_or(serde_json::Map::is_empty) {
        causes.push(Cause::required("spec.capacity", ""));
    }
    let only_storage = capacity.is_some_and(|map| map.len() == 1 && map.contains_key("storage"));
    if !only_storage {
        let known = ["storage".into()];
        causes.push(Cause::not_one_of("spec.capacity", at(spec, "/capacity"), &known));
    }
    let Some(size) = quantity(spec, "/capacity/storage") else { return };
    let (field, value) = ("spec.capacity[storage]", &spec["capacity"]["storage"]);
    if size.is_negative() {
        let bytes = size.bytes().into();
        causes.push(Cause::invalid(field, &bytes, "must be a valid resource quantity"));
    }
    if size.is_negative() || size.is_zero() {
        causes.push(Cause::invalid(field, value, "must be greater than zero"));
    }
}

fn validate_sources(causes: &mut Causes, spec: &Value) {
    let mut found = 0;
    for source in SOURCES.iter().filter(|s| !unset(spec, &format!("/{s}"))) {
        found += 1;
        if found > 1 {
            let why = "may not specify more than 1 volume type";
            causes.push(Cause::forbidden(format!("spec.{source}"), why));
            continue;
        }
        match *source {
            "csi" => validate_csi(causes, "spec.csi", &spec["csi"]),
            "hostPath" | "local" => {
                let field = format!("spec.{source}.path");
                validate_path(causes, &field, text(&spec[source], "/path"));
                if *source == "hostPath" {
                    let kind = text(&spec[source], "/type");
                    one_of(causes, "spec.hostPath.type", kind, HOST_PATH_TYPES);
                }
            }
            "nfs" => validate_nfs(causes, "spec.nfs", &spec["nfs"]),
            other => in_tree_sources::validate(causes, other, &spec[other]),
        }
    }
    if found == 0 {
        causes.push(Cause::required("spec", "must specify a volume type"));
    }
}

/// Annotations with a field in their place.
const DEPRECATED_ANNOTATIONS: &[(&str, &str)] = &[
    ("volume.beta.kubernetes.io/storage-class", "v1.8; use \"storageClassName\" attribute instead"),
    ("volume.beta.kubernetes.io/mount-options", "v1.31; use \"mountOptions\" attribute instead"),
];

/// Node labels that were renamed when they left beta: since when, and what they are now.
const RENAMED_LABELS: &[(&str, &str, &str)] = &[
    ("beta.kubernetes.io/arch", "v1.14", "kubernetes.io/arch"),
    ("beta.kubernetes.io/os", "v1.14", "kubernetes.io/os"),
    ("failure-domain.beta.kubernetes.io/region", "v1.17", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "v1.17", "topology.kubernetes.io/zone"),
    ("beta.kubernetes.io/instance-type", "v1.17", "node.kubernetes.io/instance-type"),
];

/// Where the node affinity uses labels that have newer names.
fn deprecated_labels(spec: &Value) -> Vec<String> {
    let base = "spec.nodeAffinity.required.nodeSelectorTerms";
    let terms = spec["nodeAffinity"]["required"]["nodeSelectorTerms"].as_array();
    let mut found = Vec::new();
    for (t, term) in terms.into_iter().flatten().enumerate() {
        for (e, one) in term["matchExpressions"].as_array().into_iter().flatten().enumerate() {
            let known = RENAMED_LABELS.iter().find(|(old, ..)| one["key"] == *old);
            found.extend(known.map(|(old, since, new)| {
                format!(
                    "{base}[{t}].matchExpressions[{e}].key: {old} is deprecated since {since}; \
                     use \"{new}\" instead"
                )
            }));
        }
    }
    found
}

/// What a host path can be.
pub(super) const HOST_PATH_TYPES: &[&str] = &[
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];

/// A directory of an NFS server.
pub(super) fn validate_nfs(causes: &mut Causes, field: &str, nfs: &Value) {
    for part in ["server", "path"] {
        if text(nfs, &format!("/{part}")).is_empty() {
            causes.push(Cause::required(format!("{field}.{part}"), ""));
        }
    }
    let path = text(nfs, "/path");
    if !path.starts_with('/') {
        let why = "must be an absolute path";
        causes.push(Cause::invalid(format!("{field}.path"), &path.into(), why));
    }
}

/// A path on a node.
pub(super) fn validate_path(causes: &mut Causes, field: &str, path: &str) {
    if path.is_empty() {
        causes.push(Cause::required(field, ""));
    } else if path.split('/').any(|part| part == "..") {
        causes.push(Cause::invalid(field, &path.into(), "must not contain '..'"));
    }
}

/// The CSI source of a volume, here or inline in an attachment.
pub(super) fn validate_csi(causes: &mut Causes, field: &str, csi: &Value) {
    driver_name(causes, &format!("{field}.driver"), text(csi, "/driver"));
    if text(csi, "/volumeHandle").is_empty() {
        causes.push(Cause::required(format!("{field}.volumeHandle"), ""));
    }
    // The stage secret is not checked: upstream never did, so objects without a namespace exist.
    for secret in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ] {
        let reference = &csi[secret];
        if reference.is_null() {
            continue;
        }
        let (name, namespace) = (text(reference, "/name"), text(reference, "/namespace"));
        if name.is_empty() {
            causes.push(Cause::required(format!("{field}.{secret}.name"), ""));
        } else {
            subdomain(causes, &format!("{field}.{secret}.name"), name);
        }
        let field = format!("{field}.{secret}.namespace");
        if namespace.is_empty() {
            causes.push(Cause::required(field, ""));
        } else {
            causes.extend(Cause::each(&field, namespace, names::label(namespace)));
        }
    }
}

fn validate_affinity(causes: &mut Causes, spec: &Value) {
    let affinity = &spec["nodeAffinity"];
    if affinity.is_null() {
        if !unset(spec, "/local") {
            let why = "Local volume requires node affinity";
            causes.push(Cause::required("spec.nodeAffinity", why));
        }
    } else if unset(affinity, "/required") {
        let why = "must specify required node constraints";
        causes.push(Cause::required("spec.nodeAffinity.required", why));
    } else {
        node_selector(causes, "spec.nodeAffinity.required", &affinity["required"]);
    }
}

fn validate_attributes_class(causes: &mut Causes, spec: &Value) {
    let Some(class) = spec["volumeAttributesClassName"].as_str() else { return };
    let field = "spec.volumeAttributesClassName";
    if class.is_empty() {
        causes.push(Cause::required(field, "an empty string is disallowed"));
        return;
    }
    subdomain(causes, field, class);
    if unset(spec, "/csi") {
        let why = "has to be specified when using volumeAttributesClassName";
        causes.push(Cause::required("spec.csi", why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a real server warned of.
    #[test]
    fn deprecated_fields_are_warned_of() {
        let os = json!({"key": "beta.kubernetes.io/os", "operator": "In", "values": ["linux"]});
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [os]}]}});
        let rows = [
            (json!({"flocker": {"datasetUUID": "c"}}), ""),
            (
                json!({"storageos": {}}),
                "spec.storageOS: deprecated in v1.22, non-functional in v1.25+",
            ),
            (json!({"rbd": {}}), "spec.rbd: deprecated in v1.28, non-functional in v1.31+"),
            (
                json!({"hostPath": {}, "persistentVolumeReclaimPolicy": "Recycle"}),
                "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
            ),
            (
                json!({"hostPath": {}, "nodeAffinity": affinity}),
                "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/os is deprecated since v1.14; use \"kubernetes.io/os\" instead",
            ),
        ];
        for (spec, wanted) in rows {
            assert_eq!(Volume.warnings(&json!({"spec": spec})).join("; "), wanted, "{spec}");
        }
    }
}
