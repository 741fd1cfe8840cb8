//! Sources of volumes from before there were CSI drivers.

use serde_json::{Value, json};

use crate::error::{Cause, Causes};
use crate::registry::names;
use crate::registry::rules::{one_of, text, unset};

/// What a source cannot do without.
const NEEDED: &[(&str, &[&str])] = &[
    ("iscsi", &["targetPortal", "iqn"]),
    ("rbd", &["monitors", "image"]),
    ("cephfs", &["monitors"]),
    ("flexVolume", &["driver"]),
    ("glusterfs", &["endpoints", "path"]),
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("cinder", &["volumeID"]),
    ("azureFile", &["secretName", "shareName"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("storageos", &["volumeName"]),
];

/// Sources that no longer work: what warnings call them, since when they were deprecated, and when
/// they were removed.
const GONE: &[(&str, &str, &str, &str)] = &[
    ("photonPersistentDisk", "photonPersistentDisk", "v1.11", "v1.16+"),
    ("scaleIO", "scaleIO", "v1.16", "v1.22+"),
    ("storageos", "storageOS", "v1.22", "v1.25+"),
    ("glusterfs", "glusterfs", "v1.25", "v1.26+"),
    ("cephfs", "cephfs", "v1.28", "v1.31+"),
    ("rbd", "rbd", "v1.28", "v1.31+"),
];

/// Says that a source no longer works.
pub(super) fn warnings(spec: &Value) -> impl Iterator<Item = String> {
    GONE.iter().filter(|(source, ..)| spec[*source].is_object()).map(|(_, shown, since, gone)| {
        format!("spec.{shown}: deprecated in {since}, non-functional in {gone}")
    })
}

/// Judges a source by its name.
pub(super) fn validate(causes: &mut Causes, source: &str, spec: &Value) {
    let field = match source {
        // Upstream has another name for it here.
        "gcePersistentDisk" => "spec.persistentDisk".to_owned(),
        other => format!("spec.{other}"),
    };
    let needed = NEEDED.iter().find(|(name, _)| *name == source);
    for part in needed.map_or(&[][..], |(_, parts)| parts) {
        let value = &spec[*part];
        if value.is_null() || *value == "" || value.as_array().is_some_and(Vec::is_empty) {
            causes.push(Cause::required(format!("{field}.{part}"), ""));
        }
    }
    match source {
        "gcePersistentDisk" | "awsElasticBlockStore" => {
            let why = "must be between 1 and 255, inclusive";
            within(causes, &format!("{field}.partition"), &spec["partition"], why);
        }
        "azureFile" if spec["secretNamespace"] == "" => {
            causes.push(Cause::required(format!("{field}.secretNamespace"), ""));
        }
        "glusterfs" => glusterfs(causes, &field, spec),
        "cinder" | "storageos" => {
            secret(causes, &field, &spec["secretRef"], &["name", "namespace"])
        }
        "azureDisk" => azure_disk(causes, &field, spec),
        "fc" => fc(causes, &field, spec),
        "flocker" => flocker(causes, &field, spec),
        "iscsi" => iscsi(causes, &field, spec),
        "quobyte" => quobyte(causes, &field, spec),
        _ => {}
    }
}

fn within(causes: &mut Causes, field: &str, value: &Value, why: &str) {
    if value.as_i64().is_some_and(|number| !(0..=255).contains(&number)) {
        causes.push(Cause::invalid(field, value, why));
    }
}

fn secret(causes: &mut Causes, field: &str, reference: &Value, parts: &[&str]) {
    if !reference.is_object() {
        return;
    }
    for part in parts.iter().filter(|part| text(reference, &format!("/{part}")).is_empty()) {
        causes.push(Cause::required(format!("{field}.secretRef.{part}"), ""));
    }
}

fn glusterfs(causes: &mut Causes, field: &str, spec: &Value) {
    let namespace = &spec["endpointsNamespace"];
    if namespace.as_str().is_some_and(|name| !names::label(name).is_empty()) {
        let why = "if the endpointnamespace is set, it must be a valid namespace name";
        causes.push(Cause::invalid(format!("{field}.endpointsNamespace"), namespace, why));
    }
}

/// A device behind fibre channel: found by target and number, or by name.
fn fc(causes: &mut Causes, field: &str, fc: &Value) {
    let some = |name: &str| fc[name].as_array().is_some_and(|list| !list.is_empty());
    let targets = format!("{field}.targetWWNs");
    match (some("targetWWNs"), some("wwids")) {
        (false, false) => {
            let why = "must specify either targetWWNs or wwids, but not both";
            causes.push(Cause::required(&targets, why));
        }
        (true, true) => {
            let why = "targetWWNs and wwids can not be specified simultaneously";
            causes.push(Cause::invalid(&targets, &fc["targetWWNs"], why));
        }
        _ => {}
    }
    let lun = format!("{field}.lun");
    if some("targetWWNs") && fc["lun"].is_null() {
        causes.push(Cause::required(lun, "lun is required if targetWWNs is specified"));
    } else if some("targetWWNs") {
        within(causes, &lun, &fc["lun"], "must be between 0 and 255, inclusive");
    }
}

fn flocker(causes: &mut Causes, field: &str, spec: &Value) {
    let (name, uuid) = (text(spec, "/datasetName"), text(spec, "/datasetUUID"));
    if name.is_empty() && uuid.is_empty() {
        causes.push(Cause::required(field, "one of datasetName and datasetUUID is required"));
    }
    if !name.is_empty() && !uuid.is_empty() {
        let why = "datasetName and datasetUUID can not be specified simultaneously";
        causes.push(Cause::invalid(field, &json!("resource"), why));
    }
    if name.contains('/') {
        let why = "must not contain '/'";
        causes.push(Cause::invalid(format!("{field}.datasetName"), &json!(name), why));
    }
}

fn iscsi(causes: &mut Causes, field: &str, spec: &Value) {
    let why = "must be valid format";
    for (part, shown) in [("iqn", "iqn"), ("initiatorName", "initiatorname")] {
        let name = text(spec, &format!("/{part}"));
        if !name.is_empty() && !is_qualified(name) {
            causes.push(Cause::invalid(format!("{field}.{shown}"), &json!(name), why));
        }
    }
    let range = "must be between 0 and 255, inclusive";
    within(causes, &format!("{field}.lun"), &spec["lun"], range);
    let authenticates = spec["chapAuthSession"] == true || spec["chapAuthDiscovery"] == true;
    if authenticates && spec["secretRef"].is_null() {
        causes.push(Cause::required(format!("{field}.secretRef"), ""));
    }
    secret(causes, field, &spec["secretRef"], &["name"]);
}

/// `iqn.2001-04.com.example:disk`, `eui.` with 16 hexadecimal digits, or `naa.` with 32.
fn is_qualified(name: &str) -> bool {
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let Some(number) = name.strip_prefix("eui.") {
        return number.len() == 16 && hex(number);
    }
    if let Some(number) = name.strip_prefix("naa.") {
        return number.len() == 32 && hex(number);
    }
    let Some((date, owner)) = name.strip_prefix("iqn.").and_then(|rest| rest.split_at_checked(7))
    else {
        return false;
    };
    let dated = date.bytes().enumerate().all(|(at, byte)| match at {
        4 => byte == b'-',
        _ => byte.is_ascii_digit(),
    });
    dated && owner.starts_with('.') && owner.len() > 1
}

fn quobyte(causes: &mut Causes, field: &str, spec: &Value) {
    let why = "must be a host:port pair or multiple pairs separated by commas";
    let registry = text(spec, "/registry");
    if registry.is_empty() {
        causes.push(Cause::required(format!("{field}.registry"), why));
    } else if registry.split(',').any(|pair| !pair.contains(':')) {
        causes.push(Cause::invalid(format!("{field}.registry"), &json!(registry), why));
    }
    if text(spec, "/volume").is_empty() {
        causes.push(Cause::required(format!("{field}.volume"), ""));
    }
}

/// The parts of an Azure disk that have few values.
fn azure_disk(causes: &mut Causes, field: &str, disk: &Value) {
    const CACHING: &[&str] = &["None", "ReadOnly", "ReadWrite"];
    const KINDS: &[&str] = &["Dedicated", "Managed", "Shared"];
    const MANAGED: &str = "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
    const BLOB: &str =
        "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
    for (name, known) in [("cachingMode", CACHING), ("kind", KINDS)] {
        if !unset(disk, &format!("/{name}")) {
            one_of(causes, &format!("{field}.{name}"), text(disk, &format!("/{name}")), known);
        }
    }
    let uri = text(disk, "/diskURI");
    let (fits, wanted) = match text(disk, "/kind") {
        "Managed" => (uri.starts_with("/subscriptions"), MANAGED),
        _ => (uri.starts_with("https://"), BLOB),
    };
    if !fits {
        causes.push(Cause::not_supported(format!("{field}.diskURI"), uri, &[wanted]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a real server said, but for the order of two rows.
    #[test]
    fn sources_need_their_parts() {
        let blob = "Unsupported value: \"d\": supported values: \"https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd\"";
        let pairs = "must be a host:port pair or multiple pairs separated by commas";
        let rows = [
            ("fc", json!({"targetWWNs": ["a"], "lun": 3}), vec![]),
            ("fc", json!({"wwids": ["a"]}), vec![]),
            ("fc", json!({}), vec!["spec.fc.targetWWNs: Required value: must specify either targetWWNs or wwids, but not both".to_owned()]),
            ("fc", json!({"targetWWNs": ["a"], "wwids": ["b"]}), vec![
                "spec.fc.targetWWNs: Invalid value: [\"a\"]: targetWWNs and wwids can not be specified simultaneously".into(),
                "spec.fc.lun: Required value: lun is required if targetWWNs is specified".into(),
            ]),
            ("fc", json!({"targetWWNs": ["a"], "lun": 300}), vec!["spec.fc.lun: Invalid value: 300: must be between 0 and 255, inclusive".into()]),
            ("azureDisk", json!({"diskURI": "d"}), vec!["spec.azureDisk.diskName: Required value".into(), format!("spec.azureDisk.diskURI: {blob}")]),
            ("azureDisk", json!({"diskName": "a", "diskURI": "https://a/b", "cachingMode": "Odd", "kind": "Odd"}), vec![
                "spec.azureDisk.cachingMode: Unsupported value: \"Odd\": supported values: \"None\", \"ReadOnly\", \"ReadWrite\"".into(),
                "spec.azureDisk.kind: Unsupported value: \"Odd\": supported values: \"Dedicated\", \"Managed\", \"Shared\"".into(),
            ]),
            ("azureDisk", json!({"diskName": "a", "diskURI": "/subscriptions/x", "kind": "Managed"}), vec![]),
            ("cinder", json!({}), vec!["spec.cinder.volumeID: Required value".into()]),
            ("cinder", json!({"volumeID": "a", "secretRef": {}}), vec!["spec.cinder.secretRef.name: Required value".into(), "spec.cinder.secretRef.namespace: Required value".into()]),
            ("gcePersistentDisk", json!({}), vec!["spec.persistentDisk.pdName: Required value".into()]),
            ("gcePersistentDisk", json!({"pdName": "a", "partition": 300}), vec!["spec.persistentDisk.partition: Invalid value: 300: must be between 1 and 255, inclusive".into()]),
            ("awsElasticBlockStore", json!({"volumeID": "a", "partition": -1}), vec!["spec.awsElasticBlockStore.partition: Invalid value: -1: must be between 1 and 255, inclusive".into()]),
            ("quobyte", json!({}), vec![format!("spec.quobyte.registry: Required value: {pairs}"), "spec.quobyte.volume: Required value".into()]),
            ("quobyte", json!({"registry": "a:1,b", "volume": "v"}), vec![format!("spec.quobyte.registry: Invalid value: \"a:1,b\": {pairs}")]),
            ("flocker", json!({}), vec!["spec.flocker: Required value: one of datasetName and datasetUUID is required".into()]),
            ("flocker", json!({"datasetName": "a/b", "datasetUUID": "c"}), vec![
                "spec.flocker: Invalid value: \"resource\": datasetName and datasetUUID can not be specified simultaneously".into(),
                "spec.flocker.datasetName: Invalid value: \"a/b\": must not contain '/'".into(),
            ]),
            ("iscsi", json!({"targetPortal": "a", "iqn": "eui.x", "initiatorName": "bad", "lun": 1}), vec![
                "spec.iscsi.iqn: Invalid value: \"eui.x\": must be valid format".into(),
                "spec.iscsi.initiatorname: Invalid value: \"bad\": must be valid format".into(),
            ]),
            ("iscsi", json!({"targetPortal": "a", "iqn": "iqn.2001-04.com.example:x", "lun": 300, "chapAuthSession": true}), vec![
                "spec.iscsi.lun: Invalid value: 300: must be between 0 and 255, inclusive".into(),
                "spec.iscsi.secretRef: Required value".into(),
            ]),
            ("iscsi", json!({"targetPortal": "a", "iqn": "eui.0123456789ABCDEF", "chapAuthDiscovery": true, "secretRef": {}}), vec!["spec.iscsi.secretRef.name: Required value".into()]),
            ("glusterfs", json!({"endpoints": "a", "path": "b", "endpointsNamespace": ""}), vec!["spec.glusterfs.endpointsNamespace: Invalid value: \"\": if the endpointnamespace is set, it must be a valid namespace name".into()]),
            ("azureFile", json!({"secretName": "a", "shareName": "b", "secretNamespace": ""}), vec!["spec.azureFile.secretNamespace: Required value".into()]),
            ("storageos", json!({"volumeName": "v", "secretRef": {"name": "n"}}), vec!["spec.storageos.secretRef.namespace: Required value".into()]),
            ("vsphereVolume", json!({"volumePath": "v"}), vec![]),
        ];
        for (source, spec, wanted) in rows {
            let mut causes = Causes::new();
            validate(&mut causes, source, &spec);
            let found: Vec<String> =
                causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
            assert_eq!(found, wanted, "{source} {spec}");
        }
    }
}
