//! Values as errors quote them.
//!
//! Kubernetes quotes a refused value in the form its own program has it in: field names with
//! capital letters, in the order of their declaration, absent ones included. People and scripts
//! know these texts, so the few values that occur in errors are shown the same way.

use serde_json::Value;

/// How a field is written.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    /// A text, empty when absent.
    Text,
    /// A flag, false when absent.
    Flag,
    /// As it is, null when absent.
    Any,
    /// A list of records, null when absent.
    List(Record),
    /// A record, all fields of it even when absent.
    Whole(Record),
    /// A record, null when absent.
    Maybe(Record),
    /// A list of records without absent fields; null when absent.
    SparseList(Record),
    /// A record under its own names, without absent fields; null when absent.
    Sparse(Record),
}

/// Field names, as shown and as in the object, and their forms.
pub(crate) type Record = &'static [(&'static str, &'static str, Form)];

use Form::{Any, Flag, List, Maybe, Sparse, SparseList, Text, Whole};

const SECRET: Record = &[("Name", "name", Text), ("Namespace", "namespace", Text)];
const REQUIREMENT: Record =
    &[("Key", "key", Text), ("Operator", "operator", Text), ("Values", "values", Any)];
const TERM: Record = &[
    ("MatchExpressions", "matchExpressions", List(REQUIREMENT)),
    ("MatchFields", "matchFields", List(REQUIREMENT)),
];
const NODE_SELECTOR: Record = &[("NodeSelectorTerms", "nodeSelectorTerms", List(TERM))];
/// `nodeAffinity` of a volume.
pub(crate) const AFFINITY: Record = &[("Required", "required", Maybe(NODE_SELECTOR))];
const LABEL_SELECTOR: Record =
    &[("matchLabels", "matchLabels", Any), ("matchExpressions", "matchExpressions", Any)];
const RESOURCES: Record = &[("Limits", "limits", Any), ("Requests", "requests", Any)];
const SOURCE: Record =
    &[("APIGroup", "apiGroup", Any), ("Kind", "kind", Text), ("Name", "name", Text)];
const SOURCE_REF: Record = &[
    ("APIGroup", "apiGroup", Any),
    ("Kind", "kind", Text),
    ("Name", "name", Text),
    ("Namespace", "namespace", Any),
];
/// `spec` of a claim.
pub(crate) const CLAIM: Record = &[
    ("AccessModes", "accessModes", Any),
    ("Selector", "selector", Sparse(LABEL_SELECTOR)),
    ("Resources", "resources", Whole(RESOURCES)),
    ("VolumeName", "volumeName", Text),
    ("StorageClassName", "storageClassName", Any),
    ("VolumeMode", "volumeMode", Any),
    ("DataSource", "dataSource", Maybe(SOURCE)),
    ("DataSourceRef", "dataSourceRef", Maybe(SOURCE_REF)),
    ("VolumeAttributesClassName", "volumeAttributesClassName", Any),
];
const CSI: Record = &[
    ("Driver", "driver", Text),
    ("VolumeHandle", "volumeHandle", Text),
    ("ReadOnly", "readOnly", Flag),
    ("FSType", "fsType", Text),
    ("VolumeAttributes", "volumeAttributes", Any),
    ("ControllerPublishSecretRef", "controllerPublishSecretRef", Maybe(SECRET)),
    ("NodeStageSecretRef", "nodeStageSecretRef", Maybe(SECRET)),
    ("NodePublishSecretRef", "nodePublishSecretRef", Maybe(SECRET)),
    ("ControllerExpandSecretRef", "controllerExpandSecretRef", Maybe(SECRET)),
    ("NodeExpandSecretRef", "nodeExpandSecretRef", Maybe(SECRET)),
];
const HOST_PATH: Record = &[("Path", "path", Text), ("Type", "type", Any)];
const LOCAL: Record = &[("Path", "path", Text), ("FSType", "fsType", Any)];
const NFS: Record =
    &[("Server", "server", Text), ("Path", "path", Text), ("ReadOnly", "readOnly", Flag)];
/// What backs a volume. Of sources that no plugin serves any more only the name is as upstream shows it.
pub(crate) const VOLUME_SOURCE: Record = &[
    ("GCEPersistentDisk", "gcePersistentDisk", Any),
    ("AWSElasticBlockStore", "awsElasticBlockStore", Any),
    ("HostPath", "hostPath", Maybe(HOST_PATH)),
    ("Glusterfs", "glusterfs", Any),
    ("NFS", "nfs", Maybe(NFS)),
    ("RBD", "rbd", Any),
    ("Quobyte", "quobyte", Any),
    ("ISCSI", "iscsi", Any),
    ("FlexVolume", "flexVolume", Any),
    ("Cinder", "cinder", Any),
    ("CephFS", "cephfs", Any),
    ("FC", "fc", Any),
    ("Flocker", "flocker", Any),
    ("AzureFile", "azureFile", Any),
    ("VsphereVolume", "vsphereVolume", Any),
    ("AzureDisk", "azureDisk", Any),
    ("PhotonPersistentDisk", "photonPersistentDisk", Any),
    ("PortworxVolume", "portworxVolume", Any),
    ("ScaleIO", "scaleIO", Any),
    ("Local", "local", Maybe(LOCAL)),
    ("StorageOS", "storageos", Any),
    ("CSI", "csi", Maybe(CSI)),
];
const ALLOCATABLE: Record = &[("Count", "count", Any)];
/// A driver of a CSINode.
pub(crate) const NODE_DRIVER: Record = &[
    ("Name", "name", Text),
    ("NodeID", "nodeID", Text),
    ("TopologyKeys", "topologyKeys", Any),
    ("Allocatable", "allocatable", Maybe(ALLOCATABLE)),
];
/// A taint of a node.
pub(crate) const TAINT: Record = &[
    ("Key", "key", Text),
    ("Value", "value", Text),
    ("Effect", "effect", Text),
    ("TimeAdded", "timeAdded", Any),
];
/// A rule of a definition.
pub(crate) const RULE: Record = &[
    ("Rule", "rule", Text),
    ("Message", "message", Text),
    ("MessageExpression", "messageExpression", Text),
    ("Reason", "reason", Any),
    ("FieldPath", "fieldPath", Text),
    ("OptionalOldSelf", "optionalOldSelf", Any),
];
/// `roleRef` of a binding.
pub(crate) const ROLE_REF: Record =
    &[("APIGroup", "apiGroup", Text), ("Kind", "kind", Text), ("Name", "name", Text)];
/// `nonResourceAttributes` of a review.
pub(crate) const PATH_ATTRIBUTES: Record = &[("Path", "path", Text), ("Verb", "verb", Text)];

const MANAGER: Record = &[
    ("manager", "manager", Any),
    ("operation", "operation", Any),
    ("apiVersion", "apiVersion", Any),
    ("time", "time", Any),
    ("fieldsType", "fieldsType", Any),
    ("fieldsV1", "fieldsV1", Any),
    ("subresource", "subresource", Any),
];
const OWNER: Record = &[
    ("apiVersion", "apiVersion", Any),
    ("kind", "kind", Any),
    ("name", "name", Any),
    ("uid", "uid", Any),
    ("controller", "controller", Any),
    ("blockOwnerDeletion", "blockOwnerDeletion", Any),
];
const METADATA: Record = &[
    ("name", "name", Any),
    ("generateName", "generateName", Any),
    ("namespace", "namespace", Any),
    ("uid", "uid", Any),
    ("resourceVersion", "resourceVersion", Any),
    ("generation", "generation", Any),
    ("creationTimestamp", "creationTimestamp", Any),
    ("deletionTimestamp", "deletionTimestamp", Any),
    ("deletionGracePeriodSeconds", "deletionGracePeriodSeconds", Any),
    ("labels", "labels", Any),
    ("annotations", "annotations", Any),
    ("ownerReferences", "ownerReferences", SparseList(OWNER)),
    ("finalizers", "finalizers", Any),
    ("managedFields", "managedFields", SparseList(MANAGER)),
];

/// What is wrong with a volume.
pub(crate) const HEALTH_CONDITION: Record =
    &[("status", "status", Any), ("reason", "reason", Any), ("message", "message", Any)];
/// What is wrong with a volume of a pod.
pub(crate) const POD_VOLUME_HEALTH: Record = &[
    ("name", "name", Any),
    ("healthConditions", "healthConditions", SparseList(HEALTH_CONDITION)),
    ("lastTransitionTime", "lastTransitionTime", Any),
];

/// A reference to an owner.
pub(crate) fn owner(value: &Value) -> String {
    sparse(OWNER, value)
}

/// A value in one line, without absent fields.
pub(crate) fn sparse(record: Record, value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, Sparse(record), value, None);
    out
}

/// A whole object in one line; `ordered` says whether its metadata stands in the order of its
/// declaration, as in an object that no rule has changed there.
pub(crate) fn object(value: &Value, ordered: bool) -> String {
    let mut out = String::new();
    let form = |name: &str| if ordered && name == "metadata" { Sparse(METADATA) } else { Any };
    let fields = value.as_object().into_iter().flatten();
    let parts = fields.map(|(name, value)| (Some(name.as_str()), form(name), value));
    group(&mut out, ('{', '}'), parts, None);
    out
}

/// A value in one line.
pub(crate) fn compact(record: Record, value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, Maybe(record), value, None);
    out
}

/// What changed between two values, line by line with a few lines around it.
pub(crate) fn difference(record: Record, old: &Value, new: &Value) -> String {
    let lines = |value: &Value| {
        let mut out = String::new();
        write(&mut out, Whole(record), value, Some(0));
        out
    };
    super::unified::diff(&lines(old), &lines(new))
}

fn write(out: &mut String, form: Form, value: &Value, depth: Option<usize>) {
    let deeper = depth.map(|depth| depth + 1);
    match form {
        Text => out.push_str(&Value::from(value.as_str().unwrap_or_default()).to_string()),
        Flag => out.push_str(if *value == true { "true" } else { "false" }),
        Any => any(out, value, depth),
        Maybe(_) | Sparse(_) | List(_) | SparseList(_) if value.is_null() => out.push_str("null"),
        Whole(fields) | Maybe(fields) => {
            let parts = fields.iter().map(|(name, key, form)| (Some(*name), *form, &value[*key]));
            group(out, ('{', '}'), parts, deeper);
        }
        Sparse(fields) => {
            let fields = fields.iter().filter(|(_, key, _)| !value[*key].is_null());
            let parts = fields.map(|(name, key, form)| (Some(*name), *form, &value[*key]));
            group(out, ('{', '}'), parts, deeper);
        }
        SparseList(fields) => {
            let items = value.as_array().into_iter().flatten();
            group(out, ('[', ']'), items.map(|item| (None, Sparse(fields), item)), deeper);
        }
        List(fields) => {
            let items = value.as_array().into_iter().flatten();
            group(out, ('[', ']'), items.map(|item| (None, Whole(fields), item)), deeper);
        }
    }
}

/// A value under its own names, sorted.
fn any(out: &mut String, value: &Value, depth: Option<usize>) {
    let deeper = depth.map(|depth| depth + 1);
    match value {
        Value::Object(map) => {
            let parts = map.iter().map(|(name, value)| (Some(name.as_str()), Any, value));
            group(out, ('{', '}'), parts, deeper);
        }
        Value::Array(list) => {
            group(out, ('[', ']'), list.iter().map(|value| (None, Any, value)), deeper);
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

fn group<'a>(
    out: &mut String,
    (open, close): (char, char),
    parts: impl Iterator<Item = (Option<&'a str>, Form, &'a Value)>,
    depth: Option<usize>,
) {
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.push_str(&" ".repeat(depth));
    };
    out.push(open);
    let mut empty = true;
    for (name, form, value) in parts {
        if !empty {
            out.push(',');
        }
        empty = false;
        if let Some(depth) = depth {
            line(out, depth);
        }
        if let Some(name) = name {
            out.push_str(&Value::from(name).to_string());
            out.push_str(if depth.is_some() { ": " } else { ":" });
        }
        write(out, form, value, depth);
    }
    if let Some(depth) = depth.filter(|_| !empty) {
        line(out, depth - 1);
    }
    out.push(close);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn records_show_every_field() {
        let driver = json!({"name": "d", "nodeID": "n", "topologyKeys": ["k"]});
        assert_eq!(
            compact(NODE_DRIVER, &driver),
            r#"{"Name":"d","NodeID":"n","TopologyKeys":["k"],"Allocatable":null}"#
        );
        let affinity = json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "z", "operator": "In", "values": ["2"]}]}]}});
        assert_eq!(
            compact(AFFINITY, &affinity),
            r#"{"Required":{"NodeSelectorTerms":[{"MatchExpressions":[{"Key":"z","Operator":"In","Values":["2"]}],"MatchFields":null}]}}"#
        );
    }

    #[test]
    fn changes_stand_among_their_neighbours() {
        let old = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        let mut new = old.clone();
        new["accessModes"] = json!(["ReadWriteMany"]);
        let wanted = "@@ -1,6 +1,6 @@\n {\n  \"AccessModes\": [\n-  \"ReadWriteOnce\"\n+  \"ReadWriteMany\"\n  ],\n  \"Selector\": null,\n  \"Resources\": {\n";
        assert_eq!(difference(CLAIM, &old, &new), wanted);
        let mut new = old.clone();
        new["selector"] = json!({"matchLabels": {"a": "b"}});
        let wanted = "@@ -2,7 +2,11 @@\n  \"AccessModes\": [\n   \"ReadWriteOnce\"\n  ],\n- \"Selector\": null,\n+ \"Selector\": {\n+  \"matchLabels\": {\n+   \"a\": \"b\"\n+  }\n+ },\n  \"Resources\": {\n   \"Limits\": null,\n   \"Requests\": {\n";
        assert_eq!(difference(CLAIM, &old, &new), wanted);
    }

    #[test]
    fn objects_keep_the_order_of_their_metadata() {
        let object = json!({"kind": "A", "data": {"k": 1}, "metadata": {
            "uid": "u", "name": "n", "managedFields": [{"operation": "Update", "manager": "m"}]}});
        assert_eq!(
            super::object(&object, true),
            r#"{"data":{"k":1},"kind":"A","metadata":{"name":"n","uid":"u","managedFields":[{"manager":"m","operation":"Update"}]}}"#
        );
        assert!(super::object(&object, false).ends_with(r#""name":"n","uid":"u"}}"#));
    }

    #[test]
    fn a_changed_source_shows_both_versions_in_the_diff() {
        let old = json!({"csi": {"driver": "d", "volumeHandle": "h"}});
        let new = json!({"hostPath": {"path": "/x", "type": ""}});
        let text = difference(VOLUME_SOURCE, &old, &new);
        assert!(text.starts_with("@@ -1,7 +1,10 @@\n {\n  \"GCEPersistentDisk\": null,"), "{text}");
        assert!(text.contains("\n@@ -20,16 +23,5 @@\n  \"ScaleIO\": null,"), "{text}");
    }
}
