//! Parts of Kubernetes that this server does not serve, for refusals that say so.

/// Groups of Kubernetes of which nothing is served.
const GROUPS: [&str; 14] = [
    "admissionregistration.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "discovery.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "resource.k8s.io",
    "scheduling.k8s.io",
];

/// Resources of the core group.
const CORE: [&str; 7] = [
    "componentstatuses",
    "endpoints",
    "limitranges",
    "podtemplates",
    "replicationcontrollers",
    "resourcequotas",
    "services",
];

/// What is below objects that are served.
const SUBRESOURCES: [(&str, &str); 5] = [
    ("nodes", "proxy"),
    ("pods", "ephemeralcontainers"),
    ("pods", "portforward"),
    ("pods", "proxy"),
    ("pods", "resize"),
];

/// Says that a resource of Kubernetes is not served; `None` for what Kubernetes does not have either.
#[must_use]
pub fn resource(group: &str, plural: &str) -> Option<String> {
    match group {
        "" if CORE.contains(&plural) => Some(sentence(plural)),
        group if GROUPS.contains(&group) => Some(sentence(&format!("{plural}.{group}"))),
        _ => None,
    }
}

fn sentence(what: &str) -> String {
    format!(
        "longshore up does not serve {what}: it runs pods with their volumes, without workload controllers and services"
    )
}

/// The same for a subresource of the core group.
pub(super) fn subresource(group: &str, plural: &str, name: &str) -> Option<String> {
    if !group.is_empty() || !SUBRESOURCES.contains(&(plural, name)) {
        return None;
    }
    let advice = match name {
        "portforward" => "; pods share the network of their node, so their ports are open there",
        _ => "",
    };
    Some(format!("longshore up does not serve {plural}/{name}{advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_kubernetes_has_is_named() {
        for (group, plural, named) in [
            ("", "services", true),
            ("apps", "statefulsets", true),
            ("batch", "jobs", true),
            ("", "pots", false),
            ("example.com", "deployments", false),
        ] {
            assert_eq!(resource(group, plural).is_some(), named, "{plural}.{group}");
        }
        assert!(resource("apps", "statefulsets").unwrap().contains("statefulsets.apps"));
        assert!(subresource("", "pods", "portforward").is_some());
        assert_eq!(subresource("", "pods", "portfoward"), None);
        assert_eq!(subresource("example.com", "pods", "portforward"), None);
    }
}
