//! SELinux labels of volumes that are mounted with one.

use std::collections::BTreeSet;

use crate::model::kinds::{Container, Pod, SeLinuxOptions};

/// Why a pod may not have its volume.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum Refusal {
    /// Two containers of the pod want different labels.
    #[error("multiple SELinux labels found: {0}")]
    Several(String),
    /// Another pod has it with another label.
    #[error("conflicting SELinux labels of volume {volume}: \"{first}\" and \"{second}\"")]
    Conflict {
        volume: String,
        /// The label of the pods that have it.
        first: String,
        /// The label of the new pod.
        second: String,
    },
}

/// The whole label; empty when nothing is asked for. What is left open is what containers get.
#[must_use]
pub fn file_label(options: &SeLinuxOptions) -> String {
    if *options == SeLinuxOptions::default() {
        return String::new();
    }
    let part = |value: &str, usual: &str| {
        if value.is_empty() { usual.to_owned() } else { value.to_owned() }
    };
    [
        part(&options.user, "system_u"),
        part(&options.role, "object_r"),
        part(&options.kind, "container_file_t"),
        part(&options.level, "s0"),
    ]
    .join(":")
}

/// The one label of all containers that use a volume of the pod.
///
/// # Errors
/// There are several.
pub fn label_of(pod: &Pod, volume: &str) -> Result<String, Refusal> {
    let uses = |one: &&Container| one.volume_mounts.iter().any(|mount| mount.name == volume);
    let all = pod.spec.init_containers.iter().chain(&pod.spec.containers).filter(uses);
    let own = |one: &Container| {
        let options = one.security_context.se_linux_options.as_ref();
        options.or(pod.spec.security_context.se_linux_options.as_ref()).cloned().unwrap_or_default()
    };
    let labels: BTreeSet<String> = all.map(|one| file_label(&own(one))).collect();
    if labels.len() > 1 {
        return Err(Refusal::Several(labels.into_iter().collect::<Vec<_>>().join(", ")));
    }
    Ok(labels.into_iter().next().unwrap_or_default())
}

/// The label that a volume is mounted with for a pod; empty for none.
#[must_use]
pub fn mount_label(pod: &Pod, label: &str, driver_mounts: bool) -> String {
    let recursive =
        pod.spec.security_context.se_linux_change_policy.as_deref() == Some("Recursive");
    if recursive || !driver_mounts { String::new() } else { label.to_owned() }
}

/// Whether a further pod may use a volume that others have with the label `first`.
///
/// # Errors
/// The labels differ.
pub fn admit(volume: &str, first: Option<&str>, second: &str) -> Result<(), Refusal> {
    match first {
        Some(first) if first != second => Err(Refusal::Conflict {
            volume: volume.to_owned(),
            first: first.to_owned(),
            second: second.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// The mount flag for a label.
#[must_use]
pub fn mount_flag(label: &str) -> Option<String> {
    (!label.is_empty()).then(|| format!("context=\"{label}\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(level: &str, policy: &str) -> Pod {
        let options =
            json!({"user": "system_u", "role": "object_r", "type": "container_t", "level": level});
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {
            "securityContext": {"seLinuxOptions": options, "seLinuxChangePolicy": policy},
            "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        }}))
        .unwrap()
    }

    #[test]
    fn containers_of_one_pod_must_agree_on_a_label() {
        // case: node/N64
        let full = "system_u:object_r:container_t:s0:c1,c2";
        for (policy, driver_mounts, expected) in
            [("MountOption", true, full), ("Recursive", true, ""), ("MountOption", false, "")]
        {
            let pod = pod("s0:c1,c2", policy);
            let label = label_of(&pod, "v").unwrap();
            assert_eq!(label, full);
            assert_eq!(mount_label(&pod, &label, driver_mounts), expected, "{policy}");
        }
        // case: node/N14
        assert_eq!(mount_flag(""), None);
        assert_eq!(mount_flag("s0,c0").as_deref(), Some("context=\"s0,c0\""));
    }

    #[test]
    fn pods_with_different_labels_cannot_share_a_volume() {
        // case: node/N65
        let text = admit("pv", Some("a:b:c:s0:c1"), "a:b:c:s0:c2").unwrap_err().to_string();
        assert_eq!(
            text,
            "conflicting SELinux labels of volume pv: \"a:b:c:s0:c1\" and \"a:b:c:s0:c2\""
        );
        assert!(admit("pv", Some("a:b:c:s0:c1"), "").is_err(), "Recursive counts as no label");
        assert_eq!(admit("pv", Some("a:b:c:s0:c1"), "a:b:c:s0:c1"), Ok(()));
        assert_eq!(admit("pv", None, "a:b:c:s0:c1"), Ok(()));
    }

    #[test]
    fn two_containers_with_different_labels_are_refused() {
        let mut pod = pod("s0:c1", "Recursive");
        let mut second = pod.spec.containers[0].clone();
        second.security_context.se_linux_options =
            Some(SeLinuxOptions { level: "s0:c2".into(), ..SeLinuxOptions::default() });
        pod.spec.containers.push(second);
        let text = label_of(&pod, "v").unwrap_err().to_string();
        assert!(text.starts_with("multiple SELinux labels found: "), "{text}");
        assert_eq!(label_of(&pod, "other"), Ok(String::new()));
    }
}
