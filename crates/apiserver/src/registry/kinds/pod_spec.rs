//! What of a pod's spec can be wrong beside its containers' names and mounts.

use longshore_core::model::Quantity;

use super::pod_files;
use super::prelude::*;
use super::volume::{HOST_PATH_TYPES, validate_nfs, validate_path};

const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Judges the parts of a spec that are not containers or volumes.
pub(super) fn validate_spec(causes: &mut Causes, spec: &Value) {
    let dns = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    one_of(causes, "spec.dnsPolicy", text(spec, "/dnsPolicy"), &dns);
    for (key, value) in spec["nodeSelector"].as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        causes.extend(Cause::each("spec.nodeSelector", key, names::qualified(key)));
        causes.extend(Cause::each("spec.nodeSelector", value, names::label_value(value)));
    }
    for field in ["serviceAccountName", "nodeName"] {
        let name = text(spec, &format!("/{field}"));
        if !name.is_empty() {
            subdomain(causes, &format!("spec.{field}"), name);
        }
    }
    for field in ["hostname", "subdomain"] {
        let name = text(spec, &format!("/{field}"));
        if !name.is_empty() {
            causes.extend(Cause::each(&format!("spec.{field}"), name, names::label(name)));
        }
    }
    bounded(
        causes,
        "spec.activeDeadlineSeconds",
        &spec["activeDeadlineSeconds"],
        1,
        i64::from(i32::MAX),
    );
    let security = &spec["securityContext"];
    for field in ["runAsUser", "runAsGroup", "fsGroup"] {
        let name = format!("spec.securityContext.{field}");
        bounded(causes, &name, &security[field], 0, i64::from(i32::MAX));
    }
    if let Some(policy) = security["fsGroupChangePolicy"].as_str() {
        let field = "spec.securityContext.fsGroupChangePolicy";
        one_of(causes, field, policy, &["Always", "OnRootMismatch"]);
    }
    let required = spec
        .pointer("/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution")
        .filter(|required| required.is_object());
    if let Some(required) = required {
        let field = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution";
        node_selector(causes, field, required);
    }
    for (i, toleration) in items(spec, "/tolerations").iter().enumerate() {
        validate_toleration(causes, &format!("spec.tolerations[{i}]"), toleration);
    }
    for (i, gate) in items(spec, "/schedulingGates").iter().enumerate() {
        let name = text(gate, "/name");
        let field = format!("spec.schedulingGates[{i}]");
        causes.extend(Cause::each(&field, name, names::qualified(name)));
    }
}

fn bounded(causes: &mut Causes, field: &str, value: &Value, least: i64, most: i64) {
    if value.as_i64().is_some_and(|number| number < least || number > most) {
        let why = format!("must be between {least} and {most}, inclusive");
        causes.push(Cause::invalid(field, value, &why));
    }
}

fn validate_toleration(causes: &mut Causes, field: &str, toleration: &Value) {
    let get = |name: &str| text(toleration, &format!("/{name}"));
    let (key, value, effect) = (get("key"), get("value"), get("effect"));
    let place = format!("{field}.operator");
    if !key.is_empty() {
        causes.extend(Cause::each(&format!("{field}.key"), key, names::qualified(key)));
    }
    if key.is_empty() && get("operator") != "Exists" {
        let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        causes.push(Cause::invalid(place.clone(), &get("operator").into(), why));
    }
    if !toleration["tolerationSeconds"].is_null() && effect != "NoExecute" {
        let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        causes.push(Cause::invalid(format!("{field}.effect"), &effect.into(), why));
    }
    match get("operator") {
        "Equal" | "" => causes.extend(Cause::each(&place, value, names::label_value(value))),
        "Exists" if !value.is_empty() => {
            let why = "value must be empty when `operator` is 'Exists'";
            causes.push(Cause::invalid(place, &value.into(), why));
        }
        "Exists" => {}
        other => causes.push(Cause::not_supported(place, other, &["Equal", "Exists"])),
    }
    if !effect.is_empty() {
        one_of(causes, &format!("{field}.effect"), effect, EFFECTS);
    }
}

/// Judges what backs a volume of a pod.
pub(super) fn validate_source(causes: &mut Causes, field: &str, source: &str, value: &Value) {
    let field = format!("{field}.{source}");
    let mut needed = |name: &str| {
        if text(value, &format!("/{name}")).is_empty() {
            causes.push(Cause::required(format!("{field}.{name}"), ""));
        }
    };
    match source {
        "secret" => {
            needed("secretName");
            pod_files::validate_items(causes, &field, value);
        }
        "configMap" => {
            needed("name");
            pod_files::validate_items(causes, &field, value);
        }
        "downwardAPI" => pod_files::validate_downward(causes, &field, value),
        "projected" => pod_files::validate_projected(causes, &field, value),
        "persistentVolumeClaim" => needed("claimName"),
        "csi" => driver_name(causes, &format!("{field}.driver"), text(value, "/driver")),
        "hostPath" => {
            validate_path(causes, &format!("{field}.path"), text(value, "/path"));
            one_of(causes, &format!("{field}.type"), text(value, "/type"), HOST_PATH_TYPES);
        }
        "nfs" => validate_nfs(causes, &field, value),
        "emptyDir" if quantity(value, "/sizeLimit").is_some_and(|size| size.is_negative()) => {
            let why = "SizeLimit field must be a valid resource quantity";
            causes.push(Cause::forbidden(format!("{field}.sizeLimit"), why));
        }
        "ephemeral" if value["volumeClaimTemplate"].is_null() => {
            causes.push(Cause::required(format!("{field}.volumeClaimTemplate"), ""));
        }
        _ => {}
    }
    let mode = &value["defaultMode"];
    if mode.as_i64().is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        let why = "must be a number between 0 and 0777 (octal), both inclusive";
        causes.push(Cause::invalid(format!("{field}.defaultMode"), mode, why));
    }
}

/// Judges a container beside its name and its mounts.
pub(super) fn validate_container(causes: &mut Causes, field: &str, container: &Value) {
    let image = text(container, "/image");
    if image.is_empty() {
        causes.push(Cause::required(format!("{field}.image"), ""));
    } else if image.trim() != image {
        let why = "must not have leading or trailing whitespace";
        causes.push(Cause::invalid(format!("{field}.image"), &image.into(), why));
    }
    for (i, port) in items(container, "/ports").iter().enumerate() {
        let field = format!("{field}.ports[{i}]");
        match port["containerPort"].as_i64() {
            None | Some(0) => causes.push(Cause::required(format!("{field}.containerPort"), "")),
            _ => {
                bounded(causes, &format!("{field}.containerPort"), &port["containerPort"], 1, 65535)
            }
        }
        let known = ["SCTP", "TCP", "UDP"];
        one_of(causes, &format!("{field}.protocol"), text(port, "/protocol"), &known);
    }
    for (i, variable) in items(container, "/env").iter().enumerate() {
        let field = format!("{field}.env[{i}].name");
        let name = text(variable, "/name");
        if name.is_empty() {
            causes.push(Cause::required(field, ""));
        } else if !name.bytes().all(|b| (b.is_ascii_graphic() || b == b' ') && b != b'=') {
            let why = "a valid environment variable name must consist only of printable ASCII characters other than '='";
            causes.push(Cause::invalid(field, &name.into(), why));
        }
    }
    let policy = text(container, "/imagePullPolicy");
    let known = ["Always", "IfNotPresent", "Never"];
    one_of(causes, &format!("{field}.imagePullPolicy"), policy, &known);
    validate_resources(causes, field, &container["resources"]);
}

fn validate_resources(causes: &mut Causes, field: &str, resources: &Value) {
    for (name, request) in resources["requests"].as_object().into_iter().flatten() {
        let parse = |value: &Value| value.as_str().and_then(|text| text.parse::<Quantity>().ok());
        let limit = &resources["limits"][name];
        if let (Some(wanted), Some(most)) = (parse(request), parse(limit))
            && wanted > most
        {
            let why = format!(
                "must be less than or equal to {name} limit of {}",
                limit.as_str().unwrap_or_default()
            );
            causes.push(Cause::invalid(format!("{field}.resources.requests"), request, &why));
        }
    }
}

/// Judges where in a volume, and how, a container sees it.
pub(super) fn validate_mount(causes: &mut Causes, field: &str, mount: &Value) {
    for part in ["subPath", "subPathExpr"] {
        let path = text(mount, &format!("/{part}"));
        let why = match path {
            "" => continue,
            path if path.starts_with('/') => "must be a relative path",
            path if path.split('/').any(|part| part == "..") => "must not contain '..'",
            _ => continue,
        };
        causes.push(Cause::invalid(format!("{field}.{part}"), &path.into(), why));
    }
    if let Some(propagation) = mount["mountPropagation"].as_str() {
        let known = ["Bidirectional", "HostToContainer", "None"];
        one_of(causes, &format!("{field}.mountPropagation"), propagation, &known);
    }
}
