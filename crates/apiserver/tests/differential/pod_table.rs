//! Pods that differ from a plain and from a hardened one in one field, or a few.

use serde_json::{Value, json};

/// A pod that every level allows.
fn hardened() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [{"name": "i", "image": "i", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
        "containers": [{"name": "c", "image": "i", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}},
            {"name": "d", "image": "i", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}})
}

fn plain() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

fn set(pod: &mut Value, pointer: &str, value: Value) {
    let mut place = pod;
    for part in pointer.split('.') {
        place = match part.parse::<usize>() {
            Ok(index) => &mut place[index],
            Err(_) => &mut place[part],
        };
    }
    *place = value;
}

/// Fields of the pod with values.
fn of_pod() -> Vec<(&'static str, Value)> {
    let volume = |source: &str, value: Value| json!([{"name": "v", source: value}]);
    vec![
        ("spec.hostNetwork", json!(true)),
        ("spec.hostNetwork", json!(false)),
        ("spec.hostPID", json!(true)),
        ("spec.hostIPC", json!(true)),
        ("spec.volumes", volume("hostPath", json!({"path": "/x"}))),
        (
            "spec.volumes",
            json!([{"name": "v", "hostPath": {"path": "/x"}}, {"name": "w", "hostPath": {"path": "/y"}}, {"name": "n", "nfs": {"server": "s", "path": "/z"}}]),
        ),
        ("spec.volumes", volume("nfs", json!({"server": "s", "path": "/z"}))),
        ("spec.volumes", volume("emptyDir", json!({}))),
        ("spec.volumes", volume("configMap", json!({"name": "m"}))),
        ("spec.volumes", volume("secret", json!({"secretName": "m"}))),
        ("spec.volumes", volume("persistentVolumeClaim", json!({"claimName": "m"}))),
        ("spec.volumes", volume("projected", json!({"sources": []}))),
        ("spec.volumes", volume("downwardAPI", json!({"items": []}))),
        ("spec.volumes", volume("csi", json!({"driver": "d.example.com"}))),
        (
            "spec.volumes",
            volume(
                "iscsi",
                json!({"targetPortal": "1.2.3.4:3260", "iqn": "iqn.2001-04.com.example:x", "lun": 0}),
            ),
        ),
        ("spec.volumes", volume("gcePersistentDisk", json!({"pdName": "x"}))),
        (
            "spec.volumes",
            volume(
                "rbd",
                json!({"monitors": ["a"], "image": "i", "pool": "p", "user": "u", "keyring": "k"}),
            ),
        ),
        ("spec.volumes", volume("cephfs", json!({"monitors": ["a"]}))),
        ("spec.volumes", volume("flexVolume", json!({"driver": "a/b"}))),
        ("spec.volumes", volume("fc", json!({"targetWWNs": ["a"], "lun": 0}))),
        ("spec.securityContext.runAsNonRoot", json!(false)),
        ("spec.securityContext.runAsNonRoot", json!(null)),
        ("spec.securityContext.runAsUser", json!(0)),
        ("spec.securityContext.runAsUser", json!(1000)),
        ("spec.securityContext.runAsGroup", json!(0)),
        ("spec.securityContext.seccompProfile", json!({"type": "Unconfined"})),
        (
            "spec.securityContext.seccompProfile",
            json!({"type": "Localhost", "localhostProfile": "x"}),
        ),
        ("spec.securityContext.seccompProfile", json!(null)),
        ("spec.securityContext.appArmorProfile", json!({"type": "Unconfined"})),
        ("spec.securityContext.appArmorProfile", json!({"type": "RuntimeDefault"})),
        ("spec.securityContext.seLinuxOptions", json!({"type": "container_t"})),
        ("spec.securityContext.seLinuxOptions", json!({"type": "container_engine_t"})),
        ("spec.securityContext.seLinuxOptions", json!({"type": "spc_t"})),
        ("spec.securityContext.seLinuxOptions", json!({"user": "u"})),
        ("spec.securityContext.seLinuxOptions", json!({"role": "r", "level": "s0"})),
        ("spec.securityContext.seLinuxOptions", json!({"level": "s0"})),
        ("spec.securityContext.sysctls", json!([{"name": "kernel.shm_rmid_forced", "value": "0"}])),
        (
            "spec.securityContext.sysctls",
            json!([{"name": "kernel.msgmax", "value": "1"}, {"name": "net.core.somaxconn", "value": "1"}]),
        ),
        (
            "spec.securityContext.sysctls",
            json!([{"name": "net.ipv4.ip_local_reserved_ports", "value": "1"}]),
        ),
        (
            "spec.securityContext.sysctls",
            json!([{"name": "net.ipv4.tcp_keepalive_time", "value": "1"}]),
        ),
        ("spec.securityContext.sysctls", json!([{"name": "net.ipv4.tcp_rmem", "value": "1"}])),
        (
            "spec.securityContext.sysctls",
            json!([{"name": "net.ipv4.tcp_notsent_lowat", "value": "1"}]),
        ),
        ("spec.hostUsers", json!(false)),
        ("spec.hostUsers", json!(true)),
        ("spec.os", json!({"name": "linux"})),
        (
            "metadata.annotations",
            json!({"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}),
        ),
        (
            "metadata.annotations",
            json!({"container.apparmor.security.beta.kubernetes.io/c": "runtime/default"}),
        ),
        (
            "metadata.annotations",
            json!({"container.apparmor.security.beta.kubernetes.io/c": "localhost/x"}),
        ),
        ("metadata.annotations", json!({"seccomp.security.alpha.kubernetes.io/pod": "unconfined"})),
        (
            "metadata.annotations",
            json!({"seccomp.security.alpha.kubernetes.io/pod": "runtime/default"}),
        ),
        (
            "metadata.annotations",
            json!({"container.seccomp.security.alpha.kubernetes.io/c": "unconfined"}),
        ),
        (
            "metadata.annotations",
            json!({"container.seccomp.security.alpha.kubernetes.io/c": "localhost/x"}),
        ),
    ]
}

/// Fields of a container with values.
fn of_container() -> Vec<(&'static str, Value)> {
    let drop = json!(["ALL"]);
    vec![
        ("securityContext.privileged", json!(true)),
        ("securityContext.privileged", json!(false)),
        ("securityContext.allowPrivilegeEscalation", json!(true)),
        ("securityContext.allowPrivilegeEscalation", json!(null)),
        ("securityContext.capabilities", json!({"add": ["SYS_ADMIN"], "drop": drop})),
        ("securityContext.capabilities", json!({"add": ["NET_RAW", "CHOWN"]})),
        ("securityContext.capabilities", json!({"add": ["CHOWN"], "drop": drop})),
        ("securityContext.capabilities", json!({"add": ["NET_BIND_SERVICE"], "drop": drop})),
        ("securityContext.capabilities", json!({"drop": ["all"]})),
        ("securityContext.capabilities", json!({"add": ["ALL"]})),
        ("securityContext.capabilities", json!(null)),
        ("securityContext.runAsNonRoot", json!(false)),
        ("securityContext.runAsNonRoot", json!(true)),
        ("securityContext.runAsUser", json!(0)),
        ("securityContext.runAsUser", json!(5)),
        ("securityContext.seccompProfile", json!({"type": "Unconfined"})),
        ("securityContext.seccompProfile", json!({"type": "RuntimeDefault"})),
        ("securityContext.appArmorProfile", json!({"type": "Unconfined"})),
        ("securityContext.appArmorProfile", json!({"type": "Localhost", "localhostProfile": "x"})),
        ("securityContext.seLinuxOptions", json!({"type": "spc_t"})),
        ("securityContext.seLinuxOptions", json!({"type": "container_kvm_t", "role": "r"})),
        ("securityContext.procMount", json!("Default")),
        ("securityContext.readOnlyRootFilesystem", json!(false)),
        ("ports", json!([{"containerPort": 80, "hostPort": 8080}])),
        (
            "ports",
            json!([{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81, "hostPort": 443}]),
        ),
        ("ports", json!([{"containerPort": 80, "hostPort": 0}])),
    ]
}

/// Fields that only ordinary containers have.
fn of_main() -> Vec<(&'static str, Value)> {
    vec![
        ("livenessProbe", json!({"httpGet": {"path": "/", "port": 80, "host": "example.com"}})),
        ("livenessProbe", json!({"httpGet": {"path": "/", "port": 80}})),
        ("readinessProbe", json!({"tcpSocket": {"port": 80, "host": "10.0.0.1"}})),
        ("startupProbe", json!({"tcpSocket": {"port": 80, "host": "h"}})),
        (
            "lifecycle",
            json!({"postStart": {"httpGet": {"path": "/", "port": 80, "host": "a"}}, "preStop": {"httpGet": {"path": "/", "port": 80, "host": "b"}}}),
        ),
    ]
}

/// All pods, each with what is special about it.
pub fn all() -> Vec<(String, Value)> {
    let mut all = vec![("plain".to_owned(), plain()), ("hardened".to_owned(), hardened())];
    let mut add = |base: &str, field: String, value: Value| {
        let mut pod = if base == "plain" { plain() } else { hardened() };
        set(&mut pod, &field, value.clone());
        all.push((format!("{base} with {field} = {value}"), pod));
    };
    for (field, value) in of_pod() {
        add("hardened", field.to_owned(), value);
    }
    for (field, value) in of_container() {
        add("hardened", format!("spec.containers.0.{field}"), value.clone());
        add("hardened", format!("spec.initContainers.0.{field}"), value);
    }
    for (field, value) in of_main() {
        add("hardened", format!("spec.containers.1.{field}"), value);
    }
    for (field, value) in [
        ("spec.hostPID", json!(true)),
        ("spec.hostUsers", json!(false)),
        ("spec.containers.0.securityContext", json!({"privileged": true})),
    ] {
        add("plain", field.to_owned(), value);
    }
    all.extend(combined());
    all
}

/// Pods in which several fields play together.
fn combined() -> Vec<(String, Value)> {
    let mut own_root = plain();
    own_root["spec"]["hostUsers"] = json!(false);
    own_root["spec"]["securityContext"] = json!({"runAsUser": 0, "runAsNonRoot": false});
    let mut unmasked = hardened();
    unmasked["spec"]["hostUsers"] = json!(false);
    unmasked["spec"]["containers"][0]["securityContext"]["procMount"] = json!("Unmasked");
    let mut windows = plain();
    windows["spec"]["os"] = json!({"name": "windows"});
    windows["spec"]["securityContext"] = json!({"runAsNonRoot": true});
    let mut process = plain();
    process["spec"]["os"] = json!({"name": "windows"});
    process["spec"]["hostNetwork"] = json!(true);
    process["spec"]["securityContext"] = json!({"windowsOptions": {"hostProcess": true}});
    let mut both = hardened();
    for list in ["initContainers", "containers"] {
        both["spec"][list][0]["securityContext"] = json!({"privileged": true, "runAsUser": 0});
    }
    both["spec"]["hostIPC"] = json!(true);
    let mut generated = plain();
    generated["metadata"] = json!({"generateName": "p-"});
    generated["spec"]["hostPID"] = json!(true);
    let rows = [
        ("own root", own_root),
        ("unmasked", unmasked),
        ("windows", windows),
        ("windows process", process),
        ("many", both),
        ("generated", generated),
    ];
    rows.into_iter().map(|(name, pod)| (name.to_owned(), pod)).collect()
}
