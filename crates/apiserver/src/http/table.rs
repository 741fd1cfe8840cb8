//! Tables: what `kubectl get` prints.

use jiff::Timestamp;
use serde_json::{Value, json};

use longshore_core::model::keys::annotations::{BETA_IS_DEFAULT_CLASS, IS_DEFAULT_CLASS};

use crate::registry::Resource;

/// Name, type, format, priority.
type Column = (&'static str, &'static str, &'static str, u8);

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

fn layout(resource: &Resource) -> &'static [Column] {
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
        (_, "rolebindings" | "clusterrolebindings") => BINDING,
        ("apiextensions.k8s.io", _) => DEFINITION,
        _ => CREATED,
    }
}

/// The column definitions of a kind.
pub fn columns(resource: &Resource) -> Value {
    if let Some(custom) = &resource.custom {
        let name = json!({
            "name": "Name", "type": "string", "format": "name", "priority": 0,
            "description": format!("Name of the {}.", resource.kind),
        });
        let rest = custom.columns.iter().map(|column| {
            json!({
                "name": column.name, "type": column.kind, "format": column.format,
                "priority": column.priority, "description": column.description,
            })
        });
        return std::iter::once(name).chain(rest).collect();
    }
    layout(resource)
        .iter()
        .map(|(name, kind, format, priority)| {
            json!({
                "name": name, "type": kind, "format": format, "priority": priority,
                "description": format!("{name} of the {}.", resource.kind),
            })
        })
        .collect()
}

/// A table; null columns stand for "as before" in a watch.
pub fn table(columns: Value, rows: Vec<Value>, metadata: Value) -> Value {
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": columns, "rows": rows,
    })
}

fn at<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn or<'a>(value: &'a str, default: &'a str) -> &'a str {
    if value.is_empty() { default } else { value }
}

fn age_since(time: &str, now: Timestamp) -> String {
    match time.parse::<Timestamp>() {
        Ok(then) => short_duration(now.duration_since(then).as_secs()),
        Err(_) => "<unknown>".into(),
    }
}

/// A duration as short as people read it: `5s`, `3m20s`, `2h`, `4d`.
fn short_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |big: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{small_unit}"),
    };
    match seconds {
        s if s < -1 => "<invalid>".into(),
        s if s < 0 => "0s".into(),
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => two(s / MINUTE, "m", s % MINUTE, "s"),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => two(s / HOUR, "h", s % HOUR / MINUTE, "m"),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two(s / DAY, "d", s % DAY / HOUR, "h"),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        s if s < 8 * YEAR => two(s / YEAR, "y", s % YEAR / DAY, "d"),
        s => format!("{}y", s / YEAR),
    }
}

fn modes(object: &Value, pointer: &str) -> String {
    const SHORT: &[(&str, &str)] = &[
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = list(object, pointer);
    let short = SHORT.iter().filter(|(mode, _)| has.iter().any(|m| m == mode));
    short.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

fn phase(object: &Value) -> &str {
    if object["metadata"]["deletionTimestamp"].is_null() {
        at(object, "/status/phase")
    } else {
        "Terminating"
    }
}

/// The cells of one row.
pub fn cells(resource: &Resource, object: &Value, now: Timestamp) -> Value {
    let name = at(object, "/metadata/name");
    let age = age_since(at(object, "/metadata/creationTimestamp"), now);
    if let Some(custom) = &resource.custom {
        let rest = custom.columns.iter().map(|c| c.cell(object, |time| age_since(time, now)));
        return std::iter::once(json!(name)).chain(rest).collect();
    }
    let size = |field: &str| object[field].as_object().map_or(0, serde_json::Map::len);
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "persistentvolumes") => volume(object, name, age),
        ("", "persistentvolumeclaims") => claim(object, name, age),
        ("", "pods") => pod(object, name, age, now),
        ("", "nodes") => node(object, name, age),
        ("", "namespaces") => json!([name, at(object, "/status/phase"), age]),
        ("", "secrets") => json!([name, at(object, "/type"), size("data"), age]),
        ("", "configmaps") => json!([name, size("data") + size("binaryData"), age]),
        ("", "serviceaccounts") => json!([name, age]),
        ("", "events") => event(object, name, age, now, CORE_EVENT),
        (_, "events") => event(object, name, age, now, NEW_EVENT),
        (_, "storageclasses") => class(object, name, age),
        (_, "volumeattachments") => json!([
            name,
            at(object, "/spec/attacher"),
            at(object, "/spec/source/persistentVolumeName"),
            at(object, "/spec/nodeName"),
            object["status"]["attached"] == true,
            age,
        ]),
        (_, "csidrivers") => driver(object, name, age),
        (_, "csinodes") => json!([name, list(object, "/spec/drivers").len(), age]),
        (_, "volumeattributesclasses") => json!([name, at(object, "/driverName"), age]),
        ("apiextensions.k8s.io", _) => definition(object, name),
        (_, "rolebindings" | "clusterrolebindings") => binding(object, name, age),
        (_, "leases") => json!([name, at(object, "/spec/holderIdentity"), age]),
        _ => json!([name, at(object, "/metadata/creationTimestamp")]),
    }
}

fn binding(object: &Value, name: &str, age: String) -> Value {
    let role = format!("{}/{}", at(object, "/roleRef/kind"), at(object, "/roleRef/name"));
    let subjects = |kind: &str| -> String {
        let found = list(object, "/subjects").iter().filter(|s| at(s, "/kind") == kind);
        let names: Vec<String> = found
            .map(|subject| match at(subject, "/namespace") {
                "" => at(subject, "/name").to_owned(),
                namespace => format!("{namespace}/{}", at(subject, "/name")),
            })
            .collect();
        names.join(", ")
    };
    json!([name, role, age, subjects("User"), subjects("Group"), subjects("ServiceAccount")])
}

fn definition(object: &Value, name: &str) -> Value {
    let versions = list(object, "/spec/versions").iter().map(|version| {
        let mut marks = Vec::new();
        if version["storage"] == true {
            marks.push("storage");
        }
        if version["served"] != true {
            marks.push("unserved");
        }
        if version["deprecated"] == true {
            marks.push("deprecated");
        }
        let name = at(version, "/name");
        if marks.is_empty() { name.to_owned() } else { format!("{name}({})", marks.join(",")) }
    });
    let short: Vec<&str> =
        list(object, "/spec/names/shortNames").iter().filter_map(Value::as_str).collect();
    json!([
        name,
        at(object, "/spec/scope"),
        versions.collect::<Vec<_>>().join(","),
        at(object, "/metadata/creationTimestamp"),
        at(object, "/spec/group"),
        at(object, "/spec/names/kind"),
        short.join(","),
        crate::crd::is_established(object),
    ])
}

fn volume(object: &Value, name: &str, age: String) -> Value {
    let claim = match (at(object, "/spec/claimRef/namespace"), at(object, "/spec/claimRef/name")) {
        ("", "") => String::new(),
        (namespace, name) => format!("{namespace}/{name}"),
    };
    json!([
        name,
        at(object, "/spec/capacity/storage"),
        modes(object, "/spec/accessModes"),
        at(object, "/spec/persistentVolumeReclaimPolicy"),
        phase(object),
        claim,
        at(object, "/spec/storageClassName"),
        or(at(object, "/spec/volumeAttributesClassName"), "<unset>"),
        at(object, "/status/reason"),
        age,
        or(at(object, "/spec/volumeMode"), "<unset>"),
    ])
}

fn claim(object: &Value, name: &str, age: String) -> Value {
    let bound = !at(object, "/spec/volumeName").is_empty();
    let capacity = if bound { at(object, "/status/capacity/storage") } else { "" };
    let access = if bound { modes(object, "/status/accessModes") } else { String::new() };
    json!([
        name,
        phase(object),
        at(object, "/spec/volumeName"),
        capacity,
        access,
        at(object, "/spec/storageClassName"),
        or(at(object, "/spec/volumeAttributesClassName"), "<unset>"),
        age,
        or(at(object, "/spec/volumeMode"), "<unset>"),
    ])
}

fn class(object: &Value, name: &str, age: String) -> Value {
    let is_default = [IS_DEFAULT_CLASS, BETA_IS_DEFAULT_CLASS]
        .iter()
        .any(|key| object["metadata"]["annotations"][*key] == "true");
    let name = if is_default { format!("{name} (default)") } else { name.to_owned() };
    json!([
        name,
        at(object, "/provisioner"),
        at(object, "/reclaimPolicy"),
        at(object, "/volumeBindingMode"),
        object["allowVolumeExpansion"] == true,
        age,
    ])
}

fn driver(object: &Value, name: &str, age: String) -> Value {
    let audiences: Vec<&str> =
        list(object, "/spec/tokenRequests").iter().map(|t| at(t, "/audience")).collect();
    let tokens = if audiences.is_empty() { "<unset>".into() } else { audiences.join(",") };
    let modes: Vec<&str> =
        list(object, "/spec/volumeLifecycleModes").iter().filter_map(Value::as_str).collect();
    let spec = &object["spec"];
    json!([
        name,
        spec["attachRequired"] == true,
        spec["podInfoOnMount"] == true,
        spec["storageCapacity"] == true,
        tokens,
        spec["requiresRepublish"] == true,
        or(&modes.join(","), "<none>"),
        age,
    ])
}

fn pod(object: &Value, name: &str, age: String, now: Timestamp) -> Value {
    let statuses = list(object, "/status/containerStatuses");
    let total = list(object, "/spec/containers").len();
    let ready = statuses.iter().filter(|s| s["ready"] == true).count();
    let restarts: i64 = statuses.iter().filter_map(|s| s["restartCount"].as_i64()).sum();
    let last = statuses.iter().map(|s| at(s, "/lastState/terminated/finishedAt")).max();
    let restarts = match last {
        Some(time) if restarts > 0 && !time.is_empty() => {
            format!("{restarts} ({} ago)", age_since(time, now))
        }
        _ => restarts.to_string(),
    };
    json!([
        name,
        format!("{ready}/{total}"),
        pod_status(object, statuses),
        restarts,
        age,
        or(at(object, "/status/podIP"), "<none>"),
        or(at(object, "/spec/nodeName"), "<none>"),
        or(at(object, "/status/nominatedNodeName"), "<none>"),
        "<none>",
    ])
}

/// What a person wants to know first: a container's trouble before the pod's phase.
fn pod_status(object: &Value, statuses: &[Value]) -> String {
    if !object["metadata"]["deletionTimestamp"].is_null() {
        return "Terminating".into();
    }
    for (i, status) in list(object, "/status/initContainerStatuses").iter().enumerate() {
        let terminated = &status["state"]["terminated"];
        if terminated["exitCode"] == 0 {
            continue;
        }
        let reason = or(at(status, "/state/waiting/reason"), at(terminated, "/reason"));
        if !reason.is_empty() && reason != "PodInitializing" {
            return format!("Init:{reason}");
        }
        return format!("Init:{i}/{}", list(object, "/spec/initContainers").len());
    }
    let mut text = or(at(object, "/status/reason"), at(object, "/status/phase")).to_owned();
    for status in statuses.iter().rev() {
        let state = &status["state"];
        let waiting = at(state, "/waiting/reason");
        let terminated = at(state, "/terminated/reason");
        if !waiting.is_empty() {
            text = waiting.into();
        } else if !terminated.is_empty() {
            text = terminated.into();
        } else if let Some(code) = state["terminated"]["exitCode"].as_i64() {
            text = format!("ExitCode:{code}");
        }
    }
    text
}

fn node(object: &Value, name: &str, age: String) -> Value {
    let ready = list(object, "/status/conditions")
        .iter()
        .find(|c| c["type"] == "Ready")
        .map_or("Unknown", |c| if c["status"] == "True" { "Ready" } else { "NotReady" });
    let status = if object["spec"]["unschedulable"] == true {
        format!("{ready},SchedulingDisabled")
    } else {
        ready.to_owned()
    };
    let roles: Vec<&str> = object["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
        .collect();
    let address = |kind: &str| {
        let found = list(object, "/status/addresses").iter().find(|a| a["type"] == kind);
        found.map_or("<none>", |a| at(a, "/address")).to_owned()
    };
    let info = &object["status"]["nodeInfo"];
    json!([
        name,
        status,
        or(&roles.join(","), "<none>"),
        age,
        at(info, "/kubeletVersion"),
        address("InternalIP"),
        address("ExternalIP"),
        or(at(info, "/osImage"), "<unknown>"),
        or(at(info, "/kernelVersion"), "<unknown>"),
        or(at(info, "/containerRuntimeVersion"), "<unknown>"),
    ])
}

/// Names of the same fields in the two versions of events.
struct EventFields {
    object: &'static str,
    message: &'static str,
    source: &'static str,
    first: &'static str,
    last: &'static str,
    count: &'static str,
    controller: &'static str,
}

const CORE_EVENT: EventFields = EventFields {
    object: "/involvedObject",
    message: "/message",
    source: "/source",
    first: "/firstTimestamp",
    last: "/lastTimestamp",
    count: "/count",
    controller: "/reportingComponent",
};
const NEW_EVENT: EventFields = EventFields {
    object: "/regarding",
    message: "/note",
    source: "/deprecatedSource",
    first: "/deprecatedFirstTimestamp",
    last: "/deprecatedLastTimestamp",
    count: "/deprecatedCount",
    controller: "/reportingController",
};

fn event(object: &Value, name: &str, age: String, now: Timestamp, fields: EventFields) -> Value {
    let part = |base: &str, rest: &str| at(object, &format!("{base}{rest}")).to_owned();
    let time = |pointer: &str, other: &str| match (at(object, pointer), at(object, other)) {
        ("", "") => age.clone(),
        ("", other) => age_since(other, now),
        (first, _) => age_since(first, now),
    };
    let last_observed = at(object, "/series/lastObservedTime");
    let last = if last_observed.is_empty() {
        time(fields.last, "/eventTime")
    } else {
        age_since(last_observed, now)
    };
    let source = match (part(fields.source, "/component"), part(fields.source, "/host")) {
        (component, _) if component.is_empty() => at(object, fields.controller).to_owned(),
        (component, host) if host.is_empty() => component,
        (component, host) => format!("{component}, {host}"),
    };
    let count = object["series"]["count"].as_i64();
    let count = count.or_else(|| object.pointer(fields.count)?.as_i64()).unwrap_or(1);
    let about =
        format!("{}/{}", part(fields.object, "/kind").to_lowercase(), part(fields.object, "/name"));
    json!([
        last,
        at(object, "/type"),
        at(object, "/reason"),
        about,
        part(fields.object, "/fieldPath"),
        source,
        at(object, fields.message).trim(),
        time(fields.first, "/eventTime"),
        count.to_string(),
        name,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let rows = [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (600, "10m"),
            (7200, "120m"),
            (10800, "3h"),
            (12_000, "3h20m"),
            (86_400, "24h"),
            (2 * 86_400, "2d"),
            (2 * 86_400 + 3600, "2d1h"),
            (9 * 86_400, "9d"),
            (800 * 86_400, "2y70d"),
        ];
        for (seconds, wanted) in rows {
            assert_eq!(short_duration(seconds), wanted, "{seconds}");
        }
    }
}
