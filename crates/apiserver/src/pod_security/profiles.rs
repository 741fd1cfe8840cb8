//! Checks of the kernel's guards around a pod.

use serde_json::Value;

use super::Violation;
use super::view::{Pod, Set, name, named, plural, quoted, setters};

const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// The types of profiles that keep a guard up.
const PROFILES: &[&str] = &["RuntimeDefault", "Localhost"];

/// Who sets a profile of another type, and which.
struct Profiles<'a> {
    pod: bool,
    containers: Vec<&'a str>,
    types: Set,
}

impl<'a> Profiles<'a> {
    fn bad(pod: &Pod<'a>, field: &str) -> Self {
        let mut types = Set::new();
        let mut bad = |security: &Value| {
            let profile = &security[field];
            let kind = profile["type"].as_str().unwrap_or_default();
            let bad = profile.is_object() && !PROFILES.contains(&kind);
            if bad {
                types.insert(kind.to_owned());
            }
            bad
        };
        let whole = bad(pod.security());
        let containers = pod.containers_where(|c| bad(&c["securityContext"]));
        Self { pod: whole, containers, types }
    }

    fn setters(&self) -> Vec<String> {
        setters(self.pod, &self.containers)
    }
}

/// AppArmor profiles that lift its guard.
pub(super) fn app_armor(pod: &Pod<'_>) -> Option<Violation> {
    let bad = Profiles::bad(pod, "appArmorProfile");
    let mut who = bad.setters();
    let mut values: Vec<String> = bad.types.into_iter().collect();
    let annotations: Set = pod
        .annotations()
        .into_iter()
        .flatten()
        .map(|(key, value)| (key, value.as_str().unwrap_or_default()))
        .filter(|(key, value)| {
            let kept = matches!(*value, "" | "runtime/default") || value.starts_with("localhost/");
            key.starts_with(APP_ARMOR) && !kept
        })
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    if !annotations.is_empty() {
        who.push(plural("annotation", annotations.len()));
        values.extend(annotations);
    }
    if who.is_empty() {
        return None;
    }
    let who = who.join(" and ");
    let detail = format!("{who} must not set AppArmor profile type to {}", quoted(&values));
    Violation::new(plural("forbidden AppArmor profile", values.len()), detail)
}

/// Before 1.19 seccomp profiles were annotations.
pub(super) fn seccomp_annotations(pod: &Pod<'_>) -> Option<Violation> {
    let get = |key: &str| pod.annotations().and_then(|map| map.get(key)).and_then(Value::as_str);
    let containers = pod.containers().map(|c| format!("{SECCOMP_CONTAINER}{}", name(c)));
    let forbidden: Set = std::iter::once(SECCOMP_POD.to_owned())
        .chain(containers)
        .filter_map(|key| get(&key).map(|value| (key, value)))
        .filter(|(_, value)| {
            !matches!(*value, "runtime/default" | "docker/default")
                && !value.starts_with("localhost/")
        })
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    if forbidden.is_empty() {
        return None;
    }
    let list: Vec<String> = forbidden.into_iter().collect();
    let what = plural("annotation", list.len());
    Violation::new("seccompProfile", format!("forbidden {what} {}", list.join(", ")))
}

/// Seccomp profiles that lift its guard.
pub(super) fn seccomp_baseline(pod: &Pod<'_>) -> Option<Violation> {
    let bad = Profiles::bad(pod, "seccompProfile");
    let who = bad.setters();
    if who.is_empty() {
        return None;
    }
    let (who, types) = (who.join(" and "), quoted(&bad.types));
    let what = "must not set securityContext.seccompProfile.type to";
    Violation::new("seccompProfile", format!("{who} {what} {types}"))
}

/// Containers without a seccomp profile, too.
pub(super) fn seccomp_restricted(pod: &Pod<'_>) -> Option<Violation> {
    let bad = seccomp_baseline(pod);
    if bad.is_some() {
        return bad;
    }
    let set = |security: &Value| security["seccompProfile"].is_object();
    let whole = set(pod.security());
    let silent = pod.containers_where(|c| !whole && !set(&c["securityContext"]));
    if silent.is_empty() {
        return None;
    }
    let what =
        "must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"";
    Violation::new("seccompProfile", format!("pod or {} {what}", named("container", &silent)))
}

/// From 1.25 on, Windows knows no seccomp.
pub(super) fn seccomp_restricted_25(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_for_windows() { None } else { seccomp_restricted(pod) }
}

/// A `/proc` without its masks.
pub(super) fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    let mut kinds = Set::new();
    let bad = pod.containers_where(|container| {
        let kind = container["securityContext"]["procMount"].as_str();
        let other = kind.filter(|kind| *kind != "Default");
        kinds.extend(other.map(str::to_owned));
        other.is_some()
    });
    if bad.is_empty() {
        return None;
    }
    let who = named("container", &bad);
    let detail = format!("{who} must not set securityContext.procMount to {}", quoted(&kinds));
    Violation::new("procMount", detail)
}

/// From 1.35 on, a pod that has users of its own may see all of it.
pub(super) fn proc_mount_own_users(pod: &Pod<'_>) -> Option<Violation> {
    if pod.has_own_users() { None } else { proc_mount(pod) }
}

const SE_LINUX_TYPES: &[&str] =
    &["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

/// SELinux users, roles, and types of other than containers.
pub(super) fn se_linux(pod: &Pod<'_>) -> Option<Violation> {
    se_linux_with(pod, &SE_LINUX_TYPES[..4])
}

/// From 1.31 on, container engines have a type of their own.
pub(super) fn se_linux_31(pod: &Pod<'_>) -> Option<Violation> {
    se_linux_with(pod, SE_LINUX_TYPES)
}

fn se_linux_with(pod: &Pod<'_>, allowed: &[&str]) -> Option<Violation> {
    let (mut types, mut user, mut role) = (Set::new(), false, false);
    let mut bad = |security: &Value| {
        let options = &security["seLinuxOptions"];
        let get = |field: &str| options[field].as_str().unwrap_or_default();
        let wrong = !allowed.contains(&get("type"));
        if wrong {
            types.insert(get("type").to_owned());
        }
        user |= !get("user").is_empty();
        role |= !get("role").is_empty();
        wrong || !get("user").is_empty() || !get("role").is_empty()
    };
    let whole = bad(pod.security());
    let containers = pod.containers_where(|c| bad(&c["securityContext"]));
    let who = setters(whole, &containers);
    if who.is_empty() {
        return None;
    }
    let mut what = Vec::new();
    if !types.is_empty() {
        what.push(format!("{} {}", plural("type", types.len()), quoted(&types)));
    }
    what.extend(user.then(|| "user may not be set".to_owned()));
    what.extend(role.then(|| "role may not be set".to_owned()));
    let who = who.join(" and ");
    let detail = format!("{who} set forbidden securityContext.seLinuxOptions: {}", what.join("; "));
    Violation::new("seLinuxOptions", detail)
}

/// Kernel settings that concern the pod alone, in the order in which they became allowed.
const SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_notsent_lowat",
];

fn sysctls_but(pod: &Pod<'_>, allowed: &[&str]) -> Option<Violation> {
    let all = pod.security()["sysctls"].as_array()?;
    let bad: Vec<&str> = all.iter().map(name).filter(|name| !allowed.contains(name)).collect();
    if bad.is_empty() { None } else { Violation::new("forbidden sysctls", bad.join(", ")) }
}

/// Kernel settings that concern others.
pub(super) fn sysctls(pod: &Pod<'_>) -> Option<Violation> {
    sysctls_but(pod, &SYSCTLS[..5])
}

/// As of 1.27.
pub(super) fn sysctls_27(pod: &Pod<'_>) -> Option<Violation> {
    sysctls_but(pod, &SYSCTLS[..6])
}

/// As of 1.29.
pub(super) fn sysctls_29(pod: &Pod<'_>) -> Option<Violation> {
    sysctls_but(pod, &SYSCTLS[..10])
}

/// As of 1.32.
pub(super) fn sysctls_32(pod: &Pod<'_>) -> Option<Violation> {
    sysctls_but(pod, &SYSCTLS[..12])
}

/// As of 1.37.
pub(super) fn sysctls_37(pod: &Pod<'_>) -> Option<Violation> {
    sysctls_but(pod, SYSCTLS)
}
