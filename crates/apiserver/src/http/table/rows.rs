//! The cells of each built-in kind.

use jiff::Timestamp;
use serde_json::{Value, json};

use longshore_core::model::age::since as age_since;
use longshore_core::model::keys::annotations::{BETA_IS_DEFAULT_CLASS, IS_DEFAULT_CLASS};

use crate::registry::Resource;

fn at<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn or<'a>(value: &'a str, default: &'a str) -> &'a str {
    if value.is_empty() { default } else { value }
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
        (_, "storageversionmigrations") => migration(object, name),
        _ => json!([name, at(object, "/metadata/creationTimestamp")]),
    }
}

fn migration(object: &Value, name: &str) -> Value {
    let resource = match (at(object, "/spec/resource/resource"), at(object, "/spec/resource/group"))
    {
        (resource, "") => resource.to_owned(),
        (resource, group) => format!("{resource}.{group}"),
    };
    let conditions = list(object, "/status/conditions").iter();
    let holds = conditions.filter(|c| c["status"] == "True").map(|c| at(c, "/type")).next_back();
    json!([name, resource, holds.unwrap_or("Unknown")])
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
