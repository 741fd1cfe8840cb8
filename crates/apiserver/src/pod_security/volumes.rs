//! Checks of what a pod mounts.

use super::Violation;
use super::view::{Pod, Set, name, named, plural, quoted};

/// Kinds of volumes that are no way out of the pod.
const ALLOWED: &[&str] = &[
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

const OTHERS: &[&str] = &[
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
];

/// Directories of the node.
pub(super) fn host_path(pod: &Pod<'_>) -> Option<Violation> {
    let volumes = pod.spec()["volumes"].as_array()?;
    let bad = volumes.iter().filter(|volume| !volume["hostPath"].is_null());
    let bad: Vec<&str> = bad.map(name).collect();
    if bad.is_empty() { None } else { Violation::new("hostPath volumes", named("volume", &bad)) }
}

/// Everything but the kinds that are allowed.
pub(super) fn restricted(pod: &Pod<'_>) -> Option<Violation> {
    let volumes = pod.spec()["volumes"].as_array()?;
    let (mut bad, mut kinds) = (Vec::new(), Set::new());
    for volume in volumes {
        let set = |kind: &&&str| !volume[**kind].is_null();
        if ALLOWED.iter().any(|kind| set(&kind)) {
            continue;
        }
        bad.push(name(volume));
        kinds.insert(OTHERS.iter().find(set).map_or("unknown", |kind| *kind).to_owned());
    }
    if bad.is_empty() {
        return None;
    }
    let uses = if bad.len() == 1 { "uses" } else { "use" };
    let what = plural("restricted volume type", kinds.len());
    let detail = format!("{} {uses} {what} {}", named("volume", &bad), quoted(&kinds));
    Violation::new("restricted volume types", detail)
}
