//! Checks of what a pod shares with its node.

use serde_json::Value;

use super::Violation;
use super::view::{Pod, Set, name, named, plural, quoted, setters};

/// Network, processes and shared memory of the node.
pub(super) fn namespaces(pod: &Pod<'_>) -> Option<Violation> {
    let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|field| pod.spec()[*field] == true)
        .map(|field| format!("{field}=true"))
        .collect();
    if shared.is_empty() { None } else { Violation::new("host namespaces", shared.join(", ")) }
}

pub(super) fn ports(pod: &Pod<'_>) -> Option<Violation> {
    let mut ports = Set::new();
    let bad = pod.containers_where(|container| {
        let before = container["ports"].as_array().into_iter().flatten();
        let used = before.filter_map(|port| port["hostPort"].as_i64()).filter(|port| *port != 0);
        let used: Vec<String> = used.map(|port| port.to_string()).collect();
        ports.extend(used.iter().cloned());
        !used.is_empty()
    });
    if bad.is_empty() {
        return None;
    }
    let list: Vec<String> = ports.iter().cloned().collect();
    let detail = format!(
        "{} {} {} {}",
        named("container", &bad),
        use_of(bad.len()),
        plural("hostPort", ports.len()),
        list.join(", ")
    );
    Violation::new("hostPort", detail)
}

fn use_of(count: usize) -> &'static str {
    if count == 1 { "uses" } else { "use" }
}

/// Hosts that the kubelet would connect to on behalf of the pod.
pub(super) fn probes(pod: &Pod<'_>) -> Option<Violation> {
    let (mut bad, mut hosts) = (Set::new(), Set::new());
    for container in pod.containers() {
        let lifecycle = &container["lifecycle"];
        let handlers = [
            &container["livenessProbe"],
            &container["readinessProbe"],
            &container["startupProbe"],
            &lifecycle["postStart"],
            &lifecycle["preStop"],
        ];
        let named = handlers.into_iter().flat_map(hosts_of);
        for host in named {
            bad.insert(name(container).to_owned());
            hosts.insert(host.to_owned());
        }
    }
    if bad.is_empty() {
        return None;
    }
    let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
    let detail = format!(
        "{} {} {} {}",
        named("container", &bad),
        use_of(bad.len()),
        plural("probe or lifecycle host", hosts.len()),
        quoted(&hosts)
    );
    Violation::new("probe or lifecycle host", detail)
}

fn hosts_of(handler: &Value) -> impl Iterator<Item = &str> {
    let kinds = ["httpGet", "tcpSocket"].into_iter();
    kinds.filter_map(|kind| handler[kind]["host"].as_str()).filter(|host| !host.is_empty())
}

/// Processes of the node, on Windows.
pub(super) fn windows_process(pod: &Pod<'_>) -> Option<Violation> {
    let set = |security: &Value| security["windowsOptions"]["hostProcess"] == true;
    let bad = pod.containers_where(|container| set(&container["securityContext"]));
    let who = setters(set(pod.security()), &bad);
    if who.is_empty() {
        return None;
    }
    let what = "must not set securityContext.windowsOptions.hostProcess=true";
    Violation::new("hostProcess", format!("{} {what}", who.join(" and ")))
}
