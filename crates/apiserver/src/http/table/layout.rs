//! Which columns each built-in kind has.

use crate::registry::Resource;

/// Name, type, format, priority.
pub(super) type Column = (&'static str, &'static str, &'static str, u8);

const NAME: Column = ("Name", "string", "name", 0);
const AGE: Column = ("Age", "string", "", 0);

const fn text(name: &'static str) -> Column {
    (name, "string", "", 0)
}

const fn wide(name: &'static str) -> Column {
    (name, "string", "", 1)
}

const VOLUME: &[Column] = &[
    NAME,
    text("Capacity"),
    text("Access Modes"),
    text("Reclaim Policy"),
    text("Status"),
    text("Claim"),
    text("StorageClass"),
    text("VolumeAttributesClass"),
    text("Reason"),
    AGE,
    wide("VolumeMode"),
];
const CLAIM: &[Column] = &[
    NAME,
    text("Status"),
    text("Volume"),
    text("Capacity"),
    text("Access Modes"),
    text("StorageClass"),
    text("VolumeAttributesClass"),
    AGE,
    wide("VolumeMode"),
];
const CLASS: &[Column] = &[
    NAME,
    text("Provisioner"),
    text("ReclaimPolicy"),
    text("VolumeBindingMode"),
    text("AllowVolumeExpansion"),
    AGE,
];
const ATTACHMENT: &[Column] = &[
    NAME,
    ("Attacher", "string", "name", 0),
    text("PV"),
    text("Node"),
    ("Attached", "boolean", "", 0),
    AGE,
];
const DRIVER: &[Column] = &[
    NAME,
    ("AttachRequired", "boolean", "", 0),
    ("PodInfoOnMount", "boolean", "", 0),
    ("StorageCapacity", "boolean", "", 0),
    text("TokenRequests"),
    ("RequiresRepublish", "boolean", "", 0),
    text("Modes"),
    AGE,
];
const CSI_NODE: &[Column] = &[NAME, ("Drivers", "integer", "", 0), AGE];
const ATTRIBUTES_CLASS: &[Column] = &[NAME, text("DriverName"), AGE];
const CREATED: &[Column] = &[NAME, ("Created At", "date", "", 0)];
const BINDING: &[Column] =
    &[NAME, text("Role"), AGE, wide("Users"), wide("Groups"), wide("ServiceAccounts")];
const MIGRATION: &[Column] = &[NAME, text("Resource"), text("Status")];
const DEFINITION: &[Column] = &[
    NAME,
    text("Scope"),
    text("Versions"),
    ("Created At", "date", "", 0),
    wide("Group"),
    wide("Kind"),
    wide("ShortNames"),
    ("Established", "boolean", "", 1),
];
const LEASE: &[Column] = &[NAME, text("Holder"), AGE];
const POD: &[Column] = &[
    NAME,
    text("Ready"),
    text("Status"),
    text("Restarts"),
    AGE,
    wide("IP"),
    wide("Node"),
    wide("Nominated Node"),
    wide("Readiness Gates"),
];
const NODE: &[Column] = &[
    NAME,
    text("Status"),
    text("Roles"),
    AGE,
    text("Version"),
    wide("Internal-IP"),
    wide("External-IP"),
    wide("OS-Image"),
    wide("Kernel-Version"),
    wide("Container-Runtime"),
];
const NAMESPACE: &[Column] = &[NAME, text("Status"), AGE];
const SECRET: &[Column] = &[NAME, text("Type"), ("Data", "string", "", 0), AGE];
const CONFIG_MAP: &[Column] = &[NAME, ("Data", "string", "", 0), AGE];
const ACCOUNT: &[Column] = &[NAME, AGE];
const EVENT: &[Column] = &[
    text("Last Seen"),
    text("Type"),
    text("Reason"),
    text("Object"),
    wide("Subobject"),
    wide("Source"),
    text("Message"),
    wide("First Seen"),
    wide("Count"),
    ("Name", "string", "name", 1),
];

/// The columns of a built-in kind.
pub(super) fn layout(resource: &Resource) -> &'static [Column] {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "persistentvolumes") => VOLUME,
        ("", "persistentvolumeclaims") => CLAIM,
        ("", "pods") => POD,
        ("", "nodes") => NODE,
        ("", "namespaces") => NAMESPACE,
        ("", "secrets") => SECRET,
        ("", "configmaps") => CONFIG_MAP,
        ("", "serviceaccounts") => ACCOUNT,
        (_, "events") => EVENT,
        (_, "storageclasses") => CLASS,
        (_, "volumeattachments") => ATTACHMENT,
        (_, "csidrivers") => DRIVER,
        (_, "csinodes") => CSI_NODE,
        (_, "volumeattributesclasses") => ATTRIBUTES_CLASS,
        (_, "leases") => LEASE,
        (_, "storageversionmigrations") => MIGRATION,
        (_, "rolebindings" | "clusterrolebindings") => BINDING,
        ("apiextensions.k8s.io", _) => DEFINITION,
        _ => CREATED,
    }
}
