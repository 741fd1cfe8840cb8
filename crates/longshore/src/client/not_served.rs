//! Kinds of Kubernetes that `longshore up` does not have, by the names that people have for them.
//!
//! The server says the same of their paths; these are for words that never become a path.

use longshore_apiserver::http::not_served::resource;

/// Kind, plural, group and short names.
const KINDS: &[(&str, &str, &str, &[&str])] = &[
    ("DaemonSet", "daemonsets", "apps", &["ds"]),
    ("Deployment", "deployments", "apps", &["deploy"]),
    ("ReplicaSet", "replicasets", "apps", &["rs"]),
    ("StatefulSet", "statefulsets", "apps", &["sts"]),
    ("CronJob", "cronjobs", "batch", &["cj"]),
    ("Job", "jobs", "batch", &[]),
    ("Endpoints", "endpoints", "", &["ep"]),
    ("LimitRange", "limitranges", "", &["limits"]),
    ("ReplicationController", "replicationcontrollers", "", &["rc"]),
    ("ResourceQuota", "resourcequotas", "", &["quota"]),
    ("Service", "services", "", &["svc"]),
    ("EndpointSlice", "endpointslices", "discovery.k8s.io", &[]),
    ("HorizontalPodAutoscaler", "horizontalpodautoscalers", "autoscaling", &["hpa"]),
    ("Ingress", "ingresses", "networking.k8s.io", &["ing"]),
    ("NetworkPolicy", "networkpolicies", "networking.k8s.io", &["netpol"]),
    ("PodDisruptionBudget", "poddisruptionbudgets", "policy", &["pdb"]),
    ("PriorityClass", "priorityclasses", "scheduling.k8s.io", &["pc"]),
    ("ResourceClaim", "resourceclaims", "resource.k8s.io", &[]),
    ("RuntimeClass", "runtimeclasses", "node.k8s.io", &[]),
];

/// Why the kind that a person calls so is not there; `group` may begin with a version.
pub(super) fn named(name: &str, group: Option<&str>) -> Option<String> {
    let is_called = |kind: &str, plural: &str, short: &[&str]| {
        name == plural || name == kind.to_lowercase() || short.contains(&name)
    };
    let in_group = |own: &str| match group {
        None => true,
        Some(group) => group == own || group.split_once('.').is_some_and(|(_, group)| group == own),
    };
    let found = KINDS
        .iter()
        .find(|(kind, plural, group, short)| is_called(kind, plural, short) && in_group(group));
    found.and_then(|(_, plural, group, _)| resource(group, plural))
}

/// The same for the kind of a manifest.
pub(super) fn of_manifest(api_version: &str, kind: &str) -> Option<String> {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let found = KINDS.iter().find(|(own, _, of, _)| *own == kind && *of == group);
    found.and_then(|(_, plural, group, _)| resource(group, plural))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_does_not_serve_any_of_them() {
        for (kind, plural, group, _) in KINDS {
            assert!(resource(group, plural).is_some(), "{kind}");
        }
    }
}
