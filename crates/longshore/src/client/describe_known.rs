//! Descriptions of the kinds that people look at most; every other kind is shown as a tree.

use serde_json::Value;

use super::describe::{Lines, scalar};
use super::discovery::{array, text};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Everything between the name and the events.
pub(super) fn body(lines: &mut Lines, kind: &str, object: &Value) {
    match kind {
        "PersistentVolumeClaim" => claim(lines, object),
        "PersistentVolume" => volume(lines, object),
        "StorageClass" => class(lines, object),
        "Pod" => pod(lines, object),
        "Secret" => secret(lines, object),
        _ => any(lines, object),
    }
}

fn claim(lines: &mut Lines, object: &Value) {
    let (spec, status) = (&object["spec"], &object["status"]);
    lines.field(0, "StorageClass", &text(&spec["storageClassName"]));
    lines.field(0, "Status", &phase(object));
    lines.field(0, "Volume", &text(&spec["volumeName"]));
    common(lines, object);
    lines.field(0, "Requested", &text(&spec["resources"]["requests"]["storage"]));
    lines.field(0, "Capacity", &text(&status["capacity"]["storage"]));
    lines.field(0, "Access Modes", &modes(&spec["accessModes"]));
    lines.field(0, "VolumeMode", &text(&spec["volumeMode"]));
    source(lines, "DataSource", &spec["dataSource"]);
    conditions(lines, &status["conditions"]);
}

fn volume(lines: &mut Lines, object: &Value) {
    let (spec, status) = (&object["spec"], &object["status"]);
    common(lines, object);
    lines.field(0, "StorageClass", &text(&spec["storageClassName"]));
    lines.field(0, "Status", &phase(object));
    let claim = match &spec["claimRef"] {
        Value::Null => String::new(),
        claim => format!("{}/{}", text(&claim["namespace"]), text(&claim["name"])),
    };
    lines.field(0, "Claim", &claim);
    lines.field(0, "Reclaim Policy", &text(&spec["persistentVolumeReclaimPolicy"]));
    lines.field(0, "Access Modes", &modes(&spec["accessModes"]));
    lines.field(0, "VolumeMode", &text(&spec["volumeMode"]));
    lines.field(0, "Capacity", &text(&spec["capacity"]["storage"]));
    lines.field(0, "Message", &text(&status["message"]));
    affinity(lines, &spec["nodeAffinity"]["required"]);
    // What remains of the spec is where the volume comes from.
    let told = [
        "storageClassName",
        "claimRef",
        "persistentVolumeReclaimPolicy",
        "accessModes",
        "volumeMode",
        "capacity",
        "nodeAffinity",
    ];
    lines.section(0, "Source");
    for (key, value) in spec.as_object().into_iter().flatten() {
        if !told.contains(&key.as_str()) {
            lines.tree(1, if key == "csi" { "CSI" } else { key }, value);
        }
    }
}

fn affinity(lines: &mut Lines, required: &Value) {
    let terms: Vec<String> = array(&required["nodeSelectorTerms"])
        .iter()
        .map(|term| {
            let parts = array(&term["matchExpressions"]).iter().map(|part| {
                let values: Vec<String> = array(&part["values"]).iter().map(text).collect();
                let operator = text(&part["operator"]).to_lowercase();
                format!("{} {operator} [{}]", text(&part["key"]), values.join(", "))
            });
            parts.collect::<Vec<_>>().join(" and ")
        })
        .collect();
    lines.many(0, "Node Affinity", &terms);
}

fn class(lines: &mut Lines, object: &Value) {
    let annotations = &object["metadata"]["annotations"];
    let default = annotations["storageclass.kubernetes.io/is-default-class"] == "true";
    lines.field(0, "IsDefaultClass", if default { "Yes" } else { "No" });
    common(lines, object);
    lines.field(0, "Provisioner", &text(&object["provisioner"]));
    lines.many(0, "Parameters", &pairs(&object["parameters"], "="));
    let expandable = object["allowVolumeExpansion"].as_bool().unwrap_or_default();
    lines.field(0, "AllowVolumeExpansion", if expandable { "True" } else { "False" });
    let options: Vec<String> = array(&object["mountOptions"]).iter().map(text).collect();
    lines.many(0, "MountOptions", &options);
    lines.field(0, "ReclaimPolicy", &text(&object["reclaimPolicy"]));
    lines.field(0, "VolumeBindingMode", &text(&object["volumeBindingMode"]));
}

fn pod(lines: &mut Lines, object: &Value) {
    let (spec, status) = (&object["spec"], &object["status"]);
    let node = text(&spec["nodeName"]);
    lines.field(0, "Node", if node.is_empty() { "<none>" } else { &node });
    lines.field(0, "Start Time", &text(&status["startTime"]));
    common(lines, object);
    lines.field(0, "Status", &phase(object));
    for (label, key) in [("Reason", "reason"), ("Message", "message")] {
        if status[key].is_string() {
            lines.field(0, label, &text(&status[key]));
        }
    }
    containers(lines, "Init Containers", &spec["initContainers"], &status["initContainerStatuses"]);
    containers(lines, "Containers", &spec["containers"], &status["containerStatuses"]);
    conditions(lines, &status["conditions"]);
    if !array(&spec["volumes"]).is_empty() {
        lines.section(0, "Volumes");
    }
    for volume in array(&spec["volumes"]) {
        lines.section(1, &text(&volume["name"]));
        for (kind, value) in volume.as_object().into_iter().flatten() {
            if kind != "name" {
                lines.field(2, "Type", kind);
                for (key, value) in value.as_object().into_iter().flatten() {
                    lines.tree(2, key, value);
                }
            }
        }
    }
    lines.many(0, "Node-Selectors", &pairs(&spec["nodeSelector"], "="));
}

fn containers(lines: &mut Lines, label: &str, specs: &Value, statuses: &Value) {
    if array(specs).is_empty() {
        return;
    }
    lines.section(0, label);
    for container in array(specs) {
        lines.section(1, &text(&container["name"]));
        lines.field(2, "Image", &text(&container["image"]));
        for (label, key) in [("Command", "command"), ("Args", "args")] {
            let words: Vec<String> = array(&container[key]).iter().map(text).collect();
            if !words.is_empty() {
                lines.many(2, label, &words);
            }
        }
        let status = array(statuses).iter().find(|status| status["name"] == container["name"]);
        if let Some(status) = status {
            state(lines, "State", &status["state"]);
            state(lines, "Last State", &status["lastState"]);
            lines.field(2, "Ready", if status["ready"] == true { "True" } else { "False" });
            lines.field(2, "Restart Count", &scalar(&status["restartCount"]));
        }
        let environment: Vec<String> = array(&container["env"])
            .iter()
            .map(|pair| match &pair["valueFrom"] {
                Value::Null => format!("{}={}", text(&pair["name"]), text(&pair["value"])),
                from => format!("{}=<{from}>", text(&pair["name"])),
            })
            .collect();
        lines.many(2, "Environment", &environment);
        let mounts: Vec<String> = array(&container["volumeMounts"])
            .iter()
            .map(|mount| {
                let access = if mount["readOnly"] == true { "ro" } else { "rw" };
                format!("{} from {} ({access})", text(&mount["mountPath"]), text(&mount["name"]))
            })
            .collect();
        lines.many(2, "Mounts", &mounts);
    }
}

/// `running`, `waiting` or `terminated`, with the details that are there.
fn state(lines: &mut Lines, label: &str, state: &Value) {
    for (name, details) in state.as_object().into_iter().flatten() {
        lines.field(2, label, &capital(name));
        for key in ["reason", "message", "exitCode", "startedAt", "finishedAt"] {
            if !details[key].is_null() {
                lines.field(3, &capital(key), &scalar(&details[key]));
            }
        }
    }
}

/// The values of a Secret are not shown, only their sizes.
fn secret(lines: &mut Lines, object: &Value) {
    common(lines, object);
    lines.field(0, "Type", &text(&object["type"]));
    lines.section(0, "Data");
    for (key, value) in object["data"].as_object().into_iter().flatten() {
        let encoded = value.as_str().unwrap_or_default();
        let bytes = encoded.trim_end_matches('=').len() * 3 / 4;
        lines.field(1, key, &format!("{bytes} bytes"));
    }
}

fn any(lines: &mut Lines, object: &Value) {
    common(lines, object);
    for (key, value) in object.as_object().into_iter().flatten() {
        if !["apiVersion", "kind", "metadata"].contains(&key.as_str()) {
            lines.tree(0, &capital(key), value);
        }
    }
}

/// Labels, annotations and whatever says that the object is going or kept.
fn common(lines: &mut Lines, object: &Value) {
    let metadata = &object["metadata"];
    lines.many(0, "Labels", &pairs(&metadata["labels"], "="));
    let mut annotations = metadata["annotations"].clone();
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.remove(LAST_APPLIED);
    }
    lines.many(0, "Annotations", &pairs(&annotations, ": "));
    lines.field(0, "Created", &text(&metadata["creationTimestamp"]));
    if metadata["deletionTimestamp"].is_string() {
        lines.field(0, "Terminating", &format!("since {}", text(&metadata["deletionTimestamp"])));
    }
    let finalizers: Vec<String> = array(&metadata["finalizers"]).iter().map(text).collect();
    if !finalizers.is_empty() {
        lines.field(0, "Finalizers", &format!("[{}]", finalizers.join(" ")));
    }
    let owners: Vec<String> = array(&metadata["ownerReferences"])
        .iter()
        .map(|owner| format!("{}/{}", text(&owner["kind"]), text(&owner["name"])))
        .collect();
    if !owners.is_empty() {
        lines.many(0, "Owned By", &owners);
    }
}

fn conditions(lines: &mut Lines, conditions: &Value) {
    if array(conditions).is_empty() {
        return;
    }
    lines.section(0, "Conditions");
    for condition in array(conditions) {
        let details = [text(&condition["reason"]), text(&condition["message"])];
        let details: Vec<_> = details.into_iter().filter(|text| !text.is_empty()).collect();
        let details = match details.is_empty() {
            true => String::new(),
            false => format!(" ({})", details.join(": ")),
        };
        let value = format!("{}{details}", text(&condition["status"]));
        lines.field(1, &text(&condition["type"]), &value);
    }
}

fn source(lines: &mut Lines, label: &str, source: &Value) {
    if !source.is_null() {
        lines.field(0, label, &format!("{}/{}", text(&source["kind"]), text(&source["name"])));
    }
}

/// A claim or volume that is being deleted says so, whatever its phase.
fn phase(object: &Value) -> String {
    let phase = text(&object["status"]["phase"]);
    match object["metadata"]["deletionTimestamp"].is_string() {
        true => format!("Terminating ({phase})"),
        false => phase,
    }
}

fn modes(modes: &Value) -> String {
    let short = |mode: &Value| match mode.as_str().unwrap_or_default() {
        "ReadWriteOnce" => "RWO".to_owned(),
        "ReadOnlyMany" => "ROX".to_owned(),
        "ReadWriteMany" => "RWX".to_owned(),
        "ReadWriteOncePod" => "RWOP".to_owned(),
        other => other.to_owned(),
    };
    array(modes).iter().map(short).collect::<Vec<_>>().join(",")
}

fn pairs(map: &Value, between: &str) -> Vec<String> {
    let fields = map.as_object().into_iter().flatten();
    fields.map(|(key, value)| format!("{key}{between}{}", scalar(value))).collect()
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
