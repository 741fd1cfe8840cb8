//! What a pod asks for and this node does not have.

use longshore_core::model::kinds::{Container, Pod};

use crate::shim::protocol::Seccomp;

fn all(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.init_containers.iter().chain(&pod.spec.containers)
}

/// Why an image cannot be run; `None` when all are the host itself.
pub(crate) fn foreign_image(pod: &Pod) -> Option<String> {
    let image = all(pod).map(|one| one.image.as_str()).find(|image| *image != "host")?;
    Some(format!(
        "image \"{image}\" is not run: containers on this node are host processes; write \"image: host\", \
         or start with --run-any-image-on-host to run the command on the host anyway"
    ))
}

/// Why a pod is not run at all.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The pod's `status.reason`, the kubelet's word where it has one.
    pub reason: &'static str,
    pub text: String,
}

/// The one kernel setting that belongs to a pod's own namespaces here and that the kubelet counts
/// as safe.
const SAFE_SYSCTL: &str = "kernel.shm_rmid_forced";

/// Refuses what would weaken or change a pod's isolation and cannot be done here: to run such a pod
/// as if it had not asked would be wrong in either direction.
pub(crate) fn refusal(pod: &Pod) -> Option<Refusal> {
    shared_namespaces(pod)
        .or_else(|| foreign_runtime(pod))
        .or_else(|| sysctls(pod))
        .or_else(|| app_armor(pod))
        .or_else(|| containers(pod))
}

fn refused(reason: &'static str, field: &str, why: &str) -> Refusal {
    Refusal { reason, text: format!("{field} is not supported on this node: {why}") }
}

const UNSUPPORTED: &str = "UnsupportedPodSpec";

fn shared_namespaces(pod: &Pod) -> Option<Refusal> {
    let spec = &pod.spec;
    let own = "each container has a process namespace of its own";
    [
        (spec.host_pid, "spec.hostPID", own),
        (spec.share_process_namespace == Some(true), "spec.shareProcessNamespace", own),
        (spec.host_ipc, "spec.hostIPC", "pods have IPC namespaces of their own"),
        (spec.host_users == Some(false), "spec.hostUsers: false", "there are no user namespaces"),
    ]
    .into_iter()
    .find_map(|(asked, field, why)| asked.then(|| refused(UNSUPPORTED, field, why)))
}

fn foreign_runtime(pod: &Pod) -> Option<Refusal> {
    let os = pod.spec.os.as_ref().and_then(|os| os["name"].as_str());
    if let Some(os) = os.filter(|os| *os != "linux") {
        let why = format!("it says {os:?}, the node runs Linux");
        return Some(refused("PodOSNotSupported", "spec.os.name", &why));
    }
    let class = pod.spec.runtime_class_name.as_deref().filter(|class| !class.is_empty());
    class.map(|_| refused(UNSUPPORTED, "spec.runtimeClassName", "there is one runtime only"))
}

fn sysctls(pod: &Pod) -> Option<Refusal> {
    let dotted = |name: &str| name.replace('/', ".");
    let mut all = pod.spec.security_context.sysctls.iter();
    let other = all.find(|one| dotted(&one.name) != SAFE_SYSCTL)?;
    let why = if dotted(&other.name).starts_with("net.") {
        "pods share the network of the node, so it would hold for all"
    } else {
        "it is not among those that are safe to give to a pod"
    };
    let text = format!(
        "forbidden sysctl: {:?} not allowlisted in spec.securityContext.sysctls: {why}",
        other.name
    );
    Some(Refusal { reason: "SysctlForbidden", text })
}

fn app_armor(pod: &Pod) -> Option<Refusal> {
    let confines = |profile: &Option<serde_json::Value>| {
        profile
            .as_ref()
            .is_some_and(|profile| !profile.is_null() && profile["type"] != "Unconfined")
    };
    let annotated = pod.metadata.annotations.iter().any(|(key, value)| {
        key.starts_with("container.apparmor.security.beta.kubernetes.io/") && value != "unconfined"
    });
    let asked = annotated
        || confines(&pod.spec.security_context.app_armor_profile)
        || all(pod).any(|one| confines(&one.security_context.app_armor_profile));
    let why = "it would not be enforced";
    asked.then(|| refused("AppArmor", "securityContext.appArmorProfile", why))
}

/// What single containers ask for.
fn containers(pod: &Pod) -> Option<Refusal> {
    let windows = |options: &Option<serde_json::Value>| {
        options.as_ref().is_some_and(|options| !options.is_null())
    };
    let why = "the node runs Linux";
    if windows(&pod.spec.security_context.windows_options) {
        return Some(refused(UNSUPPORTED, "spec.securityContext.windowsOptions", why));
    }
    all(pod).find_map(|one| {
        // Names are parts of paths here; the API refuses such ones too.
        if !is_label(&one.name) {
            let text = format!("container name {:?} is not a DNS label", one.name);
            return Some(Refusal { reason: "InvalidContainerName", text });
        }
        let own = &one.security_context;
        let field = |name: &str| format!("securityContext.{name} of container {:?}", one.name);
        if windows(&own.windows_options) {
            return Some(refused(UNSUPPORTED, &field("windowsOptions"), why));
        }
        if own.proc_mount.as_deref().is_some_and(|kind| !matches!(kind, "" | "Default")) {
            let why = "it needs a user namespace, and there are none";
            return Some(refused(UNSUPPORTED, &field("procMount"), why));
        }
        seccomp(pod, one).err().map(|UnsupportedProfile(kind)| {
            refused(UNSUPPORTED, &field("seccompProfile"), &format!("type {kind:?}"))
        })
    })
}

fn is_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.len() <= 63 && name.bytes().all(inner) && !name.starts_with('-')
}

/// A type of seccomp profile that containers of this node cannot have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("seccompProfile of type {0:?} is not supported")]
pub(crate) struct UnsupportedProfile(String);

/// Which system calls a container may make.
pub(crate) fn seccomp(pod: &Pod, container: &Container) -> Result<Seccomp, UnsupportedProfile> {
    let own = container.security_context.seccomp_profile.as_ref();
    let profile = own.or(pod.spec.security_context.seccomp_profile.as_ref());
    match profile.map_or("", |profile| profile.kind.as_str()) {
        _ if container.security_context.privileged == Some(true) => Ok(Seccomp::Unconfined),
        "" | "RuntimeDefault" => Ok(Seccomp::RuntimeDefault),
        "Unconfined" => Ok(Seccomp::Unconfined),
        other => Err(UnsupportedProfile(other.to_owned())),
    }
}

/// What the pod asks for or would have and does not get, in words; `None` when there is nothing.
/// `no_cgroup` is why its processes cannot be counted.
pub(crate) fn not_enforced(pod: &Pod, no_cgroup: Option<&str>) -> Option<String> {
    let has_limits = |resources: &Option<serde_json::Value>| {
        let resources = resources.as_ref().and_then(serde_json::Value::as_object);
        resources.is_some_and(|resources| !resources.is_empty())
    };
    let propagates = |one: &Container| {
        // Mounts of the host are seen in every container; those of a container stay in it.
        let mut mounts = one.volume_mounts.iter();
        mounts.any(|mount| mount.mount_propagation.as_deref() == Some("Bidirectional"))
    };
    let has_probes = |one: &Container| {
        one.liveness_probe.is_some() || one.readiness_probe.is_some() || one.startup_probe.is_some()
    };
    let spec = &pod.spec;
    let labels = spec.security_context.se_linux_options.is_some()
        || all(pod).any(|one| one.security_context.se_linux_options.is_some());
    let parts = [
        ("ports", all(pod).any(|one| !one.ports.is_empty())),
        (
            "resource requests and limits",
            has_limits(&spec.resources) || all(pod).any(|one| has_limits(&one.resources)),
        ),
        ("resourceClaims", !spec.resource_claims.is_empty()),
        ("mountPropagation: Bidirectional", all(pod).any(propagates)),
        ("probes", all(pod).any(has_probes)),
        ("lifecycle hooks", all(pod).any(|one| one.lifecycle.is_some())),
        ("SELinux labels of processes", labels),
        ("dnsConfig", spec.dns_config.is_some()),
        (
            "setHostnameAsFQDN",
            spec.set_hostname_as_fqdn == Some(true) && !spec.subdomain.is_empty(),
        ),
    ]
    .into_iter()
    .filter(|(_, present)| *present)
    .map(|(name, _)| name.to_owned());
    let unlimited = no_cgroup.map(|error| format!("the limit of processes ({error})"));
    let parts: Vec<String> = parts.chain(unlimited).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(container: serde_json::Value) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": "p"}, "spec": {"containers": [container]}}),
        )
        .unwrap()
    }

    #[test]
    fn only_the_host_image_is_run() {
        assert_eq!(foreign_image(&pod(json!({"name": "c", "image": "host"}))), None);
        let text = foreign_image(&pod(json!({"name": "c", "image": "busybox:1"}))).unwrap();
        assert!(text.starts_with("image \"busybox:1\" is not run"), "{text}");
    }

    #[test]
    fn what_is_not_enforced_is_said() {
        assert_eq!(not_enforced(&pod(json!({"name": "c", "resources": {}})), None), None);
        let asked = json!({"name": "c", "ports": [{"containerPort": 80}], "livenessProbe": {},
            "resources": {"limits": {"cpu": "1"}}});
        assert_eq!(
            not_enforced(&pod(asked), None).as_deref(),
            Some("ports, resource requests and limits, probes")
        );
        let mount = |kind: &str| {
            json!({"name": "c", "volumeMounts": [
                {"name": "v", "mountPath": "/v", "mountPropagation": kind}]})
        };
        assert_eq!(not_enforced(&pod(mount("None")), None), None);
        assert_eq!(
            not_enforced(&pod(mount("Bidirectional")), None).as_deref(),
            Some("mountPropagation: Bidirectional")
        );
        let mut devices = pod(json!({"name": "c"}));
        devices.spec.resource_claims = vec![json!({"name": "gpu"})];
        devices.spec.resources = Some(json!({"limits": {"cpu": "1"}}));
        assert_eq!(
            not_enforced(&devices, None).as_deref(),
            Some("resource requests and limits, resourceClaims")
        );
        let hooked = json!({"name": "c", "lifecycle": {"preStop": {}},
            "securityContext": {"seLinuxOptions": {"level": "s0"}}});
        assert_eq!(
            not_enforced(&pod(hooked), Some("no pids")).as_deref(),
            Some("lifecycle hooks, SELinux labels of processes, the limit of processes (no pids)")
        );
    }

    #[test]
    fn what_cannot_be_done_is_refused_and_the_field_is_named() {
        let refused = |spec: serde_json::Value, container: serde_json::Value| {
            let mut pod =
                json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}});
            for (key, value) in spec.as_object().unwrap() {
                pod["spec"][key] = value.clone();
            }
            pod["spec"]["containers"][0]["securityContext"] = container;
            refusal(&serde_json::from_value(pod).unwrap())
        };
        let pod_context = |context: serde_json::Value| json!({"securityContext": context});
        let sysctl = |name: &str| pod_context(json!({"sysctls": [{"name": name, "value": "1"}]}));
        for (spec, container, reason, part) in [
            (json!({"hostPID": true}), json!({}), UNSUPPORTED, "spec.hostPID"),
            (json!({"hostIPC": true}), json!({}), UNSUPPORTED, "spec.hostIPC"),
            (json!({"hostUsers": false}), json!({}), UNSUPPORTED, "spec.hostUsers"),
            (
                json!({"shareProcessNamespace": true}),
                json!({}),
                UNSUPPORTED,
                "shareProcessNamespace",
            ),
            (json!({"runtimeClassName": "gvisor"}), json!({}), UNSUPPORTED, "runtimeClassName"),
            (json!({"os": {"name": "windows"}}), json!({}), "PodOSNotSupported", "spec.os.name"),
            (sysctl("kernel.msgmax"), json!({}), "SysctlForbidden", "kernel.msgmax"),
            (sysctl("net.ipv4.tcp_syncookies"), json!({}), "SysctlForbidden", "share the network"),
            (pod_context(json!({"windowsOptions": {}})), json!({}), UNSUPPORTED, "windowsOptions"),
            (json!({}), json!({"windowsOptions": {}}), UNSUPPORTED, "windowsOptions"),
            (
                pod_context(json!({"appArmorProfile": {"type": "RuntimeDefault"}})),
                json!({}),
                "AppArmor",
                "appArmorProfile",
            ),
            (
                json!({}),
                json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "x"}}),
                "AppArmor",
                "appArmorProfile",
            ),
            (json!({}), json!({"procMount": "Unmasked"}), UNSUPPORTED, "procMount"),
            (
                json!({}),
                json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "x"}}),
                UNSUPPORTED,
                "seccompProfile of container \"c\"",
            ),
            (
                pod_context(json!({"seccompProfile": {"type": "Localhost"}})),
                json!({}),
                UNSUPPORTED,
                "seccompProfile",
            ),
        ] {
            let found = refused(spec.clone(), container.clone());
            let found = found.unwrap_or_else(|| panic!("{spec} {container} is refused"));
            assert_eq!(found.reason, reason, "{spec} {container}");
            assert!(found.text.contains(part), "{}", found.text);
        }
        for (spec, container) in [
            (json!({"hostNetwork": true, "hostUsers": true, "os": {"name": "linux"}}), json!({})),
            (sysctl("kernel/shm_rmid_forced"), json!({"procMount": "Default"})),
            (
                pod_context(json!({"appArmorProfile": {"type": "Unconfined"}})),
                json!({"privileged": true, "seccompProfile": {"type": "Unconfined"}}),
            ),
        ] {
            assert_eq!(refused(spec.clone(), container), None, "{spec}");
        }
    }

    #[test]
    fn a_container_name_that_is_a_path_is_refused() {
        for name in ["", "../x", "a/b", ".", "Upper", "-x"] {
            let found = refusal(&pod(json!({"name": name}))).map(|found| found.reason);
            assert_eq!(found, Some("InvalidContainerName"), "{name:?}");
        }
        assert_eq!(refusal(&pod(json!({"name": "c-1"}))), None);
    }

    #[test]
    fn init_containers_are_judged_as_containers_are() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {
            "initContainers": [{"name": "i", "securityContext": {"procMount": "Unmasked"}}],
            "containers": [{"name": "c"}]}});
        let found = refusal(&serde_json::from_value(pod).unwrap()).unwrap();
        assert!(found.text.contains("container \"i\""), "{}", found.text);
    }

    #[test]
    fn system_calls_are_limited_unless_the_pod_says_otherwise() {
        let profile = |kind: &str| json!({"seccompProfile": {"type": kind}});
        for (of_pod, own, expected) in [
            (json!({}), json!({}), Ok(Seccomp::RuntimeDefault)),
            (profile("Unconfined"), json!({}), Ok(Seccomp::Unconfined)),
            (profile("Unconfined"), profile("RuntimeDefault"), Ok(Seccomp::RuntimeDefault)),
            (profile("RuntimeDefault"), profile("Unconfined"), Ok(Seccomp::Unconfined)),
            (profile("RuntimeDefault"), json!({"privileged": true}), Ok(Seccomp::Unconfined)),
            (profile("Localhost"), json!({}), Err(UnsupportedProfile("Localhost".to_owned()))),
            (profile("Nonsense"), profile("RuntimeDefault"), Ok(Seccomp::RuntimeDefault)),
        ] {
            let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {
                "securityContext": of_pod, "containers": [{"name": "c", "securityContext": own}]}}))
            .unwrap();
            assert_eq!(seccomp(&pod, &pod.spec.containers[0]), expected, "{of_pod} {own}");
        }
    }
}
