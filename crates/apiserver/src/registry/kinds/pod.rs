//! `Pod`.

use std::collections::HashSet;

use super::health;
use super::pod_account;
use super::pod_files;
use super::pod_spec;
use super::prelude::*;

pub(super) static POD: BuiltinKind = BuiltinKind {
    group_version: CORE,
    names: Names::new("Pod", "pods", &["po"], &["all"]),
    scope: Scope::Namespaced,
    verbs: ALL,
    subresources: &[
        Subresource::new("attach", ("", "", "PodAttachOptions"), &["create", "get"]),
        Subresource::new("binding", ("", "", "Binding"), &["create"]),
        Subresource::new("eviction", ("policy", "v1", "Eviction"), &["create"]),
        Subresource::new("exec", ("", "", "PodExecOptions"), &["create", "get"]),
        Subresource::new("log", ("", "", "Pod"), &["get"]),
    ],
    storage: Storage::Own,
    typed: of::<core::Pod>,
    traits: Traits { generation: Generation::FromOne, ..Traits::WITH_STATUS },
    rules: || Arc::new(Pod),
    table: Table {
        columns: &[
            NAME,
            column("Ready"),
            column("Status"),
            column("Restarts"),
            AGE,
            wide("IP"),
            wide("Node"),
            wide("Nominated Node"),
            wide("Readiness Gates"),
        ],
        cells,
    },
    selectors: &[
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ],
    quantities: &[
        "spec.containers.*.resources.*.*",
        "spec.initContainers.*.resources.*.*",
        "spec.volumes.*.emptyDir.sizeLimit",
        "spec.volumes.*.ephemeral.volumeClaimTemplate.spec.resources.*.*",
        "spec.overhead.*",
        "spec.resources.*.*",
        "spec.ephemeralContainers.*.resources.*.*",
        "spec.containers.*.env.*.valueFrom.resourceFieldRef.divisor",
        "spec.initContainers.*.env.*.valueFrom.resourceFieldRef.divisor",
        "spec.volumes.*.downwardAPI.items.*.resourceFieldRef.divisor",
        "spec.volumes.*.projected.sources.*.downwardAPI.items.*.resourceFieldRef.divisor",
        "status.containerStatuses.*.allocatedResources.*",
        "status.containerStatuses.*.resources.*.*",
        "status.initContainerStatuses.*.allocatedResources.*",
        "status.initContainerStatuses.*.resources.*.*",
    ],
    patch_keys: &[
        ("spec.containers", "name"),
        ("spec.initContainers", "name"),
        ("spec.ephemeralContainers", "name"),
        ("spec.volumes", "name"),
        ("spec.imagePullSecrets", "name"),
        ("spec.schedulingGates", "name"),
        ("spec.resourceClaims", "name"),
        ("spec.hostAliases", "ip"),
        ("spec.topologySpreadConstraints", "topologyKey"),
        ("spec.containers.env", "name"),
        ("spec.containers.ports", "containerPort"),
        ("spec.containers.volumeMounts", "mountPath"),
        ("spec.containers.volumeDevices", "devicePath"),
        ("spec.initContainers.env", "name"),
        ("spec.initContainers.ports", "containerPort"),
        ("spec.initContainers.volumeMounts", "mountPath"),
        ("spec.initContainers.volumeDevices", "devicePath"),
        ("status.conditions", "type"),
        ("status.podIPs", "ip"),
        ("status.hostIPs", "ip"),
    ],
    facts: &[include_str!("pod_facts.txt")],
    protobuf: &[include_str!("pod_protobuf.txt")],
};

fn cells(row: &Row<'_>) -> Value {
    let Row { object, name, age, .. } = row;
    let statuses = items(object, "/status/containerStatuses");
    let total = items(object, "/spec/containers").len();
    let ready = statuses.iter().filter(|s| s["ready"] == true).count();
    let restarts: i64 = statuses.iter().filter_map(|s| s["restartCount"].as_i64()).sum();
    let last = statuses.iter().map(|s| text(s, "/lastState/terminated/finishedAt")).max();
    let restarts = match last {
        Some(time) if restarts > 0 && !time.is_empty() => {
            format!("{restarts} ({} ago)", row.since(time))
        }
        _ => restarts.to_string(),
    };
    json!([
        name,
        format!("{ready}/{total}"),
        pod_status(object, statuses),
        restarts,
        age,
        or(text(object, "/status/podIP"), "<none>"),
        or(text(object, "/spec/nodeName"), "<none>"),
        or(text(object, "/status/nominatedNodeName"), "<none>"),
        "<none>",
    ])
}

/// What a person wants to know first: a container's trouble before the pod's phase.
fn pod_status(object: &Value, statuses: &[Value]) -> String {
    if !object["metadata"]["deletionTimestamp"].is_null() {
        return "Terminating".into();
    }
    for (i, status) in items(object, "/status/initContainerStatuses").iter().enumerate() {
        let terminated = &status["state"]["terminated"];
        if terminated["exitCode"] == 0 {
            continue;
        }
        let reason = or(text(status, "/state/waiting/reason"), text(terminated, "/reason"));
        if !reason.is_empty() && reason != "PodInitializing" {
            return format!("Init:{reason}");
        }
        return format!("Init:{i}/{}", items(object, "/spec/initContainers").len());
    }
    let mut status_text =
        or(text(object, "/status/reason"), text(object, "/status/phase")).to_owned();
    for status in statuses.iter().rev() {
        let state = &status["state"];
        let waiting = text(state, "/waiting/reason");
        let terminated = text(state, "/terminated/reason");
        if !waiting.is_empty() {
            status_text = waiting.into();
        } else if !terminated.is_empty() {
            status_text = terminated.into();
        } else if let Some(code) = state["terminated"]["exitCode"].as_i64() {
            status_text = format!("ExitCode:{code}");
        }
    }
    status_text
}

pub(super) struct Pod;

/// Every way a pod's volume can be backed, in the order in which they are checked.
const SOURCES: &[&str] = &[
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "persistentVolumeClaim",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "downwardAPI",
    "fc",
    "azureFile",
    "configMap",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "projected",
    "portworxVolume",
    "scaleIO",
    "storageos",
    "csi",
    "ephemeral",
    "image",
];

const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Pods leave a node that is gone after this long, unless they say otherwise.
const EVICTION_SECONDS: i64 = 300;

impl Strategy for Pod {
    fn default(&self, object: &mut Value) {
        let spec = &mut object["spec"];
        set_default(spec, "restartPolicy", "Always");
        set_default(spec, "terminationGracePeriodSeconds", 30);
        set_default(spec, "dnsPolicy", "ClusterFirst");
        set_default(spec, "securityContext", json!({}));
        set_default(spec, "schedulerName", "default-scheduler");
        set_default(spec, "enableServiceLinks", true);
        for list in ["containers", "initContainers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                default_container(container);
            }
        }
        for volume in spec["volumes"].as_array_mut().into_iter().flatten() {
            default_volume(volume);
        }
        if let Some(map) = spec.as_object_mut() {
            map.retain(|_, value| !value.is_null());
        }
    }

    fn prepare_create(&self, object: &mut Value, _cx: &Context<'_>) {
        object["status"] = json!({"phase": "Pending", "qosClass": qos_class(&object["spec"])});
        settle_app_armor(object);
    }

    fn admit_create(&self, object: &mut Value, cx: &Context<'_>) -> ApiResult<()> {
        let name = text(object, "/metadata/name").to_owned();
        if cx.settings.default_accounts {
            pod_account::admit(object, cx)?;
        }
        let spec = &mut object["spec"];
        if spec["serviceAccountName"].is_string() {
            spec["serviceAccount"] = spec["serviceAccountName"].clone();
        }
        settle_priority(spec, &name, cx)?;
        set_default(spec, "preemptionPolicy", "PreemptLowerPriority");
        for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
            let tolerated = items(spec, "/tolerations").iter().any(|t| {
                matches!(text(t, "/key"), k if k == key || k.is_empty())
                    && matches!(text(t, "/effect"), "" | "NoExecute")
            });
            if tolerated {
                continue;
            }
            let toleration = json!({
                "key": key, "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": EVICTION_SECONDS,
            });
            match spec["tolerations"].as_array_mut() {
                Some(list) => list.push(toleration),
                None => spec["tolerations"] = json!([toleration]),
            }
        }
        Ok(())
    }

    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = validate(object);
        if !items(object, "/spec/ephemeralContainers").is_empty() {
            causes.push(Cause::forbidden("spec.ephemeralContainers", "cannot be set on create"));
        }
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = validate(new);
        let mut allowed = new["spec"].clone();
        let old_spec = &old["spec"];
        for list in ["containers", "initContainers"] {
            let was = items(old_spec, &format!("/{list}"));
            let is = allowed[list].as_array_mut();
            for (is, was) in is.into_iter().flatten().zip(was) {
                is["image"] = was["image"].clone();
            }
        }
        allowed["activeDeadlineSeconds"] = old_spec["activeDeadlineSeconds"].clone();
        let tolerated: HashSet<&Value> = items(&allowed, "/tolerations").iter().collect();
        if items(old_spec, "/tolerations").iter().all(|t| tolerated.contains(t)) {
            allowed["tolerations"] = old_spec["tolerations"].clone();
        }
        let was_negative =
            old_spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|grace| grace < 0);
        if was_negative && allowed["terminationGracePeriodSeconds"] == 1 {
            allowed["terminationGracePeriodSeconds"] =
                old_spec["terminationGracePeriodSeconds"].clone();
        }
        if !same(&allowed, old_spec) {
            causes.push(Cause::forbidden(
                "spec",
                "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
            ));
        }
        causes
    }

    fn prepare_status(&self, new: &mut Value, old: &Value, cx: &Context<'_>) {
        health::drop_disabled(new, old, "volumeHealth", cx);
    }

    fn validate_status(&self, new: &Value, _old: &Value) -> Causes {
        let mut causes = Causes::new();
        health::validate_pod(&mut causes, new);
        causes
    }
}

/// Judges what holds for new and for changed pods.
fn validate(object: &Value) -> Causes {
    let mut causes = Causes::new();
    let spec = &object["spec"];
    validate_volumes(&mut causes, spec);
    if items(spec, "/containers").is_empty() {
        causes.push(Cause::required("spec.containers", ""));
    }
    let mut seen = HashSet::new();
    let volumes = items(spec, "/volumes").iter().map(|volume| &volume["name"]).collect();
    for list in ["containers", "initContainers"] {
        for (i, container) in items(spec, &format!("/{list}")).iter().enumerate() {
            let field = format!("spec.{list}[{i}]");
            validate_container(&mut causes, &field, container, &volumes);
            if !seen.insert(&container["name"]) {
                causes.push(Cause::duplicate(format!("{field}.name"), &container["name"]));
            }
        }
    }
    let policies = ["Always", "OnFailure", "Never"];
    one_of(&mut causes, "spec.restartPolicy", text(spec, "/restartPolicy"), &policies);
    pod_spec::validate_spec(&mut causes, spec);
    causes
}

/// AppArmor profiles that come as annotations, as they did before 1.30, become fields.
fn settle_app_armor(pod: &mut Value) {
    let (notes, spec) = (pod["metadata"]["annotations"].clone(), &mut pod["spec"]);
    if !notes.is_object() || text(spec, "/os/name") == "windows" {
        return;
    }
    let whole = spec["securityContext"]["appArmorProfile"].clone();
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let key = format!("{APP_ARMOR}{}", text(container, "/name"));
            let profile = match notes[key].as_str() {
                Some("unconfined") => json!({"type": "Unconfined"}),
                Some("runtime/default") => json!({"type": "RuntimeDefault"}),
                Some(other) => match other.strip_prefix("localhost/") {
                    Some(name) if !name.trim().is_empty() => {
                        json!({"type": "Localhost", "localhostProfile": name})
                    }
                    _ => continue,
                },
                None => continue,
            };
            let said = !container["securityContext"]["appArmorProfile"].is_null();
            if !said && profile != whole {
                container["securityContext"]["appArmorProfile"] = profile;
            }
        }
    }
}

/// Classes of priority are not served; the two that every cluster has are known by name.
fn settle_priority(spec: &mut Value, pod: &str, cx: &Context<'_>) -> ApiResult<()> {
    let refuse = |why: &str| Err(Status::forbidden(cx.registry.core("pods"), pod, why));
    let priority = match text(spec, "/priorityClassName") {
        "" => 0,
        "system-cluster-critical" => 2_000_000_000,
        "system-node-critical" => 2_000_001_000,
        class => return refuse(&format!("no PriorityClass with name {class} was found")),
    };
    if let Some(asked) = spec["priority"].as_i64().filter(|asked| *asked != priority) {
        return refuse(&format!(
            "the integer value of priority ({asked}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        ));
    }
    spec["priority"] = json!(priority);
    Ok(())
}

fn default_container(container: &mut Value) {
    set_default(container, "resources", json!({}));
    set_default(container, "terminationMessagePath", "/dev/termination-log");
    set_default(container, "terminationMessagePolicy", "File");
    let image = text(container, "/image");
    let tag = image.rsplit('/').next().and_then(|last| last.split_once(':')).map(|(_, tag)| tag);
    let latest = !image.contains('@') && tag.is_none_or(|tag| tag == "latest");
    let policy = if latest { "Always" } else { "IfNotPresent" };
    set_default(container, "imagePullPolicy", policy);
    // Limits stand in for missing requests.
    let limits = container["resources"]["limits"].clone();
    for (name, limit) in limits.as_object().into_iter().flatten() {
        set_default(&mut container["resources"]["requests"], name, limit.clone());
    }
    for port in container["ports"].as_array_mut().into_iter().flatten() {
        set_default(port, "protocol", "TCP");
    }
    for variable in container["env"].as_array_mut().into_iter().flatten() {
        if variable["valueFrom"].is_object() {
            pod_files::default_reference(&mut variable["valueFrom"]);
        }
    }
    if let Some(map) = container.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
}

fn default_volume(volume: &mut Value) {
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if volume[source].is_object() {
            set_default(&mut volume[source], "defaultMode", 0o644);
        }
    }
    pod_files::default_files(volume);
    if volume["hostPath"].is_object() {
        set_default(&mut volume["hostPath"], "type", "");
    }
    if volume["ephemeral"]["volumeClaimTemplate"].is_object() {
        let spec = &mut volume["ephemeral"]["volumeClaimTemplate"]["spec"];
        set_default(spec, "volumeMode", "Filesystem");
    }
    let has_source = SOURCES.iter().any(|source| volume[*source].is_object());
    if !has_source {
        volume["emptyDir"] = json!({});
    }
    if let Some(map) = volume.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
}

/// How the kubelet would rank the pod when memory runs out.
fn qos_class(spec: &Value) -> &'static str {
    let containers = items(spec, "/containers");
    let set = |c: &Value| {
        ["requests", "limits"]
            .iter()
            .any(|kind| ["cpu", "memory"].iter().any(|r| !c["resources"][*kind][*r].is_null()))
    };
    let full = |c: &Value| {
        ["cpu", "memory"].iter().all(|r| {
            let limit = &c["resources"]["limits"][*r];
            !limit.is_null() && *limit == c["resources"]["requests"][*r]
        })
    };
    if !containers.iter().any(set) {
        "BestEffort"
    } else if containers.iter().all(full) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

fn validate_volumes(causes: &mut Causes, spec: &Value) {
    let mut seen = HashSet::new();
    for (i, volume) in items(spec, "/volumes").iter().enumerate() {
        let repeated = !seen.insert(&volume["name"]);
        let field = format!("spec.volumes[{i}]");
        match text(volume, "/name") {
            "" => causes.push(Cause::required(format!("{field}.name"), "")),
            name if !names::label(name).is_empty() => {
                causes.extend(Cause::each(&format!("{field}.name"), name, names::label(name)));
            }
            _ if repeated => {
                causes.push(Cause::duplicate(format!("{field}.name"), &volume["name"]));
            }
            _ => {}
        }
        let set = SOURCES.iter().filter(|s| !unset(volume, &format!("/{s}")));
        for (n, source) in set.enumerate() {
            if n == 0 {
                pod_spec::validate_source(causes, &field, source, &volume[*source]);
                continue;
            }
            let why = "may not specify more than 1 volume type";
            causes.push(Cause::forbidden(format!("{field}.{source}"), why));
        }
    }
}

fn validate_container(
    causes: &mut Causes,
    field: &str,
    container: &Value,
    volumes: &HashSet<&Value>,
) {
    match text(container, "/name") {
        "" => causes.push(Cause::required(format!("{field}.name"), "")),
        name => causes.extend(Cause::each(&format!("{field}.name"), name, names::label(name))),
    }
    pod_spec::validate_container(causes, field, container);
    for (list, path) in [("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")] {
        let mut paths = HashSet::new();
        for (i, mount) in items(container, &format!("/{list}")).iter().enumerate() {
            let repeated = !paths.insert(&mount[path]);
            pod_spec::validate_mount(causes, &format!("{field}.{list}"), mount);
            let field = format!("{field}.{list}[{i}]");
            if text(mount, "/name").is_empty() {
                causes.push(Cause::required(format!("{field}.name"), ""));
            }
            if !volumes.contains(&mount["name"]) {
                causes.push(Cause::not_found(format!("{field}.name"), &mount["name"]));
            }
            if text(mount, &format!("/{path}")).is_empty() {
                causes.push(Cause::required(format!("{field}.{path}"), ""));
            } else if repeated {
                let field = format!("{field}.{path}");
                causes.push(Cause::invalid(field, &mount[path], "must be unique"));
            }
        }
    }
}
