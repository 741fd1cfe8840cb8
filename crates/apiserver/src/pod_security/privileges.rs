//! Checks of what the processes of a pod may do, and as whom.

use serde_json::Value;

use super::Violation;
use super::view::{Pod, Set, named, quoted, setters};

/// Capabilities that container runtimes give anyway.
const DEFAULT_CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Containers with all rights of the node's root.
pub(super) fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let bad = pod.containers_where(|c| c["securityContext"]["privileged"] == true);
    if bad.is_empty() {
        return None;
    }
    let what = "must not set securityContext.privileged=true";
    Violation::new("privileged", format!("{} {what}", named("container", &bad)))
}

/// Programs that give their user more rights.
pub(super) fn escalation(pod: &Pod<'_>) -> Option<Violation> {
    let bad = pod.containers_where(|c| c["securityContext"]["allowPrivilegeEscalation"] != false);
    if bad.is_empty() {
        return None;
    }
    let what = "must set securityContext.allowPrivilegeEscalation=false";
    let detail = format!("{} {what}", named("container", &bad));
    Violation::new("allowPrivilegeEscalation != false", detail)
}

/// From 1.25 on, Windows knows no such programs.
pub(super) fn escalation_25(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_for_windows() { None } else { escalation(pod) }
}

fn capabilities<'a>(container: &'a Value, list: &str) -> impl Iterator<Item = &'a str> {
    let list = &container["securityContext"]["capabilities"][list];
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// The containers that add capabilities beyond some, and which.
fn adding<'a>(pod: &Pod<'a>, allowed: &[&str]) -> (Vec<&'a str>, Set) {
    let mut added = Set::new();
    let bad = pod.containers_where(|container| {
        let beyond: Vec<String> = capabilities(container, "add")
            .filter(|capability| !allowed.contains(capability))
            .map(str::to_owned)
            .collect();
        added.extend(beyond.iter().cloned());
        !beyond.is_empty()
    });
    (bad, added)
}

fn added(bad: &[&str], capabilities: &Set) -> String {
    let (who, what) = (named("container", bad), quoted(capabilities));
    format!("{who} must not include {what} in securityContext.capabilities.add")
}

/// Capabilities beyond the default ones.
pub(super) fn capabilities_baseline(pod: &Pod<'_>) -> Option<Violation> {
    let (bad, beyond) = adding(pod, DEFAULT_CAPABILITIES);
    if bad.is_empty() {
        return None;
    }
    Violation::new("non-default capabilities", added(&bad, &beyond))
}

/// Any capability but the one for low ports.
pub(super) fn capabilities_restricted(pod: &Pod<'_>) -> Option<Violation> {
    let keeping = pod.containers_where(|c| !capabilities(c, "drop").any(|name| name == "ALL"));
    let (bad, beyond) = adding(pod, &["NET_BIND_SERVICE"]);
    let mut details = Vec::new();
    if !keeping.is_empty() {
        let what = "must set securityContext.capabilities.drop=[\"ALL\"]";
        details.push(format!("{} {what}", named("container", &keeping)));
    }
    if !bad.is_empty() {
        details.push(added(&bad, &beyond));
    }
    if details.is_empty() {
        return None;
    }
    Violation::new("unrestricted capabilities", details.join("; "))
}

/// From 1.25 on, Windows knows no capabilities.
pub(super) fn capabilities_restricted_25(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_for_windows() { None } else { capabilities_restricted(pod) }
}

/// Containers that may run as root.
pub(super) fn non_root(pod: &Pod<'_>) -> Option<Violation> {
    const REASON: &str = "runAsNonRoot != true";
    let of = |security: &Value| security["runAsNonRoot"].as_bool();
    let whole = of(pod.security());
    let said = pod.containers_where(|c| of(&c["securityContext"]) == Some(false));
    let who = setters(whole == Some(false), &said);
    if !who.is_empty() {
        let what = "must not set securityContext.runAsNonRoot=false";
        return Violation::new(REASON, format!("{} {what}", who.join(" and ")));
    }
    let silent =
        pod.containers_where(|c| of(&c["securityContext"]).is_none() && whole != Some(true));
    if silent.is_empty() {
        return None;
    }
    let what = "must set securityContext.runAsNonRoot=true";
    Violation::new(REASON, format!("pod or {} {what}", named("container", &silent)))
}

/// From 1.35 on, root within a pod that has users of its own is not root.
pub(super) fn non_root_35(pod: &Pod<'_>) -> Option<Violation> {
    if pod.has_own_users() { None } else { non_root(pod) }
}

/// Containers that run as root.
pub(super) fn user(pod: &Pod<'_>) -> Option<Violation> {
    let root = |security: &Value| security["runAsUser"].as_i64() == Some(0);
    let bad = pod.containers_where(|c| root(&c["securityContext"]));
    let who = setters(root(pod.security()), &bad);
    if who.is_empty() {
        return None;
    }
    Violation::new("runAsUser=0", format!("{} must not set runAsUser=0", who.join(" and ")))
}

/// As [`non_root_35`].
pub(super) fn user_35(pod: &Pod<'_>) -> Option<Violation> {
    if pod.has_own_users() { None } else { user(pod) }
}
