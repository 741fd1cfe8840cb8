//! What a pod asks for and this node does not have.

use longshore_core::model::kinds::{Container, Pod};

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

/// What the pod asks for and does not get, in words; `None` when there is nothing.
pub(crate) fn not_enforced(pod: &Pod) -> Option<String> {
    let has_limits = |one: &Container| {
        let resources = one.resources.as_ref().and_then(serde_json::Value::as_object);
        resources.is_some_and(|resources| !resources.is_empty())
    };
    let has_probes = |one: &Container| {
        one.liveness_probe.is_some() || one.readiness_probe.is_some() || one.startup_probe.is_some()
    };
    let parts: Vec<&str> = [
        ("ports", all(pod).any(|one| !one.ports.is_empty())),
        ("resource requests and limits", all(pod).any(has_limits)),
        ("probes", all(pod).any(has_probes)),
    ]
    .into_iter()
    .filter_map(|(name, present)| present.then_some(name))
    .collect();
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
        assert_eq!(not_enforced(&pod(json!({"name": "c", "resources": {}}))), None);
        let asked = json!({"name": "c", "ports": [{"containerPort": 80}], "livenessProbe": {},
            "resources": {"limits": {"cpu": "1"}}});
        assert_eq!(
            not_enforced(&pod(asked)).as_deref(),
            Some("ports, resource requests and limits, probes")
        );
    }
}
