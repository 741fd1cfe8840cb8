//! How the lists and objects of built-in types merge: facts that their Rust types do not carry.
//!
//! Types are named without `io.k8s.api.` in front. Lists that are not here are owned as a whole.

/// Keys of a list, or none for a set, by type and field.
const LISTS: &[(&str, &str, &[&str])] = &[
    ("core.v1.Container", "env", &["name"]),
    ("core.v1.Container", "ports", &["containerPort", "protocol"]),
    ("core.v1.Container", "volumeDevices", &["devicePath"]),
    ("core.v1.Container", "volumeMounts", &["mountPath"]),
    ("core.v1.ContainerRestartRuleOnExitCodes", "values", &[]),
    ("core.v1.EphemeralContainer", "env", &["name"]),
    ("core.v1.EphemeralContainer", "ports", &["containerPort", "protocol"]),
    ("core.v1.EphemeralContainer", "volumeDevices", &["devicePath"]),
    ("core.v1.EphemeralContainer", "volumeMounts", &["mountPath"]),
    ("core.v1.NamespaceStatus", "conditions", &["type"]),
    ("core.v1.NodeSpec", "podCIDRs", &[]),
    ("core.v1.NodeStatus", "addresses", &["type"]),
    ("core.v1.NodeStatus", "conditions", &["type"]),
    ("core.v1.PersistentVolumeClaimStatus", "conditions", &["type"]),
    ("core.v1.PodSpec", "containers", &["name"]),
    ("core.v1.PodSpec", "ephemeralContainers", &["name"]),
    ("core.v1.PodSpec", "evictionResponders", &["name"]),
    ("core.v1.PodSpec", "hostAliases", &["ip"]),
    ("core.v1.PodSpec", "imagePullSecrets", &["name"]),
    ("core.v1.PodSpec", "initContainers", &["name"]),
    ("core.v1.PodSpec", "resourceClaims", &["name"]),
    ("core.v1.PodSpec", "schedulingGates", &["name"]),
    ("core.v1.PodSpec", "topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
    ("core.v1.PodSpec", "volumes", &["name"]),
    ("core.v1.PodStatus", "conditions", &["type"]),
    ("core.v1.PodStatus", "nodeAllocatableResourceClaimStatuses", &["resourceClaimName"]),
    ("core.v1.PodStatus", "podIPs", &["ip"]),
    ("core.v1.PodStatus", "resourceClaimStatuses", &["name"]),
    ("core.v1.PodStatus", "volumeHealth", &["name"]),
    ("core.v1.PodVolumeHealth", "healthConditions", &["status", "reason"]),
    ("core.v1.ResourceRequirements", "claims", &["name"]),
    ("core.v1.ServiceAccount", "secrets", &["name"]),
    ("core.v1.VolumeHealthStatus", "healthConditions", &["status", "reason"]),
    ("core.v1.VolumeMount", "bindMountOptions", &[]),
    ("storage.v1.CSIDriverSpec", "volumeLifecycleModes", &[]),
    ("storage.v1.CSINodeSpec", "drivers", &["name"]),
    ("storage.v1.CSINodeStatus", "storageHealth", &["name"]),
    ("CustomResourceDefinitionStatus", "conditions", &["type"]),
    ("ObjectMeta", "finalizers", &[]),
    ("ObjectMeta", "ownerReferences", &["uid"]),
];

/// Types whose objects are owned as a whole.
const ATOMIC: &[&str] = &[
    "core.v1.ConfigMapKeySelector",
    "core.v1.EvictionResponder",
    "core.v1.FileKeySelector",
    "core.v1.LocalObjectReference",
    "core.v1.NodeSelector",
    "core.v1.NodeSelectorTerm",
    "core.v1.ObjectFieldSelector",
    "core.v1.ObjectReference",
    "core.v1.ResourceFieldSelector",
    "core.v1.SecretKeySelector",
    "core.v1.SecretReference",
    "core.v1.TopologySelectorTerm",
    "core.v1.TypedLocalObjectReference",
    "rbac.v1.RoleRef",
    "rbac.v1.Subject",
    "LabelSelector",
    "OwnerReference",
];

/// Fields that are there from the start, beside metadata, spec and status.
const STANDING: &[(&str, &str)] = &[
    ("core.v1.Container", "resources"),
    ("core.v1.EphemeralContainer", "resources"),
    ("core.v1.Event", "involvedObject"),
    ("core.v1.Event", "source"),
    ("core.v1.NamespaceCondition", "lastTransitionTime"),
    ("core.v1.NodeCondition", "lastHeartbeatTime"),
    ("core.v1.NodeCondition", "lastTransitionTime"),
    ("core.v1.NodeDaemonEndpoints", "kubeletEndpoint"),
    ("core.v1.NodeStatus", "daemonEndpoints"),
    ("core.v1.NodeStatus", "nodeInfo"),
    ("core.v1.PersistentVolumeClaimCondition", "lastProbeTime"),
    ("core.v1.PersistentVolumeClaimCondition", "lastTransitionTime"),
    ("core.v1.PersistentVolumeClaimSpec", "resources"),
    ("core.v1.PodCondition", "lastProbeTime"),
    ("core.v1.PodCondition", "lastTransitionTime"),
    ("core.v1.PodSpec", "containers"),
    ("events.v1.Event", "deprecatedSource"),
    ("events.v1.Event", "regarding"),
    ("storage.v1.CSINodeSpec", "drivers"),
    ("storage.v1.VolumeAttachmentSpec", "source"),
    ("CustomResourceDefinitionSpec", "names"),
    ("CustomResourceDefinitionStatus", "acceptedNames"),
    ("CustomResourceDefinitionStatus", "conditions"),
];

/// How strategic merge patches treat a list: its key, empty for sets, and whether `$retainKeys`
/// goes with it. Lists that merge by key in general do so here by their first one.
const PATCH_ONLY: &[(&str, &str, &str)] = &[("core.v1.PodStatus", "hostIPs", "ip")];
const RETAIN_KEYS: &[(&str, &str)] = &[
    ("core.v1.PodSpec", "volumes"),
    ("core.v1.PodSpec", "resourceClaims"),
    ("core.v1.PodStatus", "resourceClaimStatuses"),
];
/// Sets and keyed lists that strategic merge patches replace.
const PATCH_REPLACES: &[(&str, &str)] = &[
    ("core.v1.ContainerRestartRuleOnExitCodes", "values"),
    ("core.v1.ResourceRequirements", "claims"),
    ("core.v1.PodStatus", "volumeHealth"),
    ("core.v1.VolumeMount", "bindMountOptions"),
    ("storage.v1.CSIDriverSpec", "volumeLifecycleModes"),
    ("CustomResourceDefinitionStatus", "conditions"),
];

/// The name as the tables have it: types of other modules by their last part alone.
fn short(name: &str) -> &str {
    match name.strip_prefix("io.k8s.api.") {
        Some(short) => short,
        None => name.rsplit('.').next().unwrap_or(name),
    }
}

/// The keys of a list that merges, none for a set.
pub fn list(owner: &str, field: &str) -> Option<&'static [&'static str]> {
    list_of(short(owner), field)
}

fn list_of(owner: &str, field: &str) -> Option<&'static [&'static str]> {
    LISTS.iter().find(|(o, f, _)| *o == owner && *f == field).map(|(_, _, keys)| *keys)
}

/// Whether objects of the type are owned as a whole.
pub fn is_atomic(name: &str) -> bool {
    ATOMIC.contains(&short(name))
}

/// Whether the map in this field is owned as a whole.
pub fn is_atomic_field(owner: &str, field: &str) -> bool {
    (short(owner), field) == ("core.v1.PodSpec", "nodeSelector")
}

/// Whether this field is owned by parts although its type is atomic elsewhere.
pub fn is_split(owner: &str, field: &str) -> bool {
    (short(owner), field) == ("core.v1.PersistentVolumeSpec", "claimRef")
}

/// Whether the field is there from the start.
pub fn is_standing(owner: &str, field: &str) -> bool {
    let owner = short(owner);
    matches!(field, "metadata" | "spec" | "status") || STANDING.contains(&(owner, field))
}

/// Strategy and key of a list in strategic merge patches.
pub fn patch(owner: &str, field: &str) -> Option<(&'static str, Option<&'static str>)> {
    let owner = short(owner);
    if let Some((_, _, key)) = PATCH_ONLY.iter().find(|(o, f, _)| *o == owner && *f == field) {
        return Some(("merge", Some(key)));
    }
    if PATCH_REPLACES.contains(&(owner, field)) {
        return None;
    }
    let keys = list_of(owner, field)?;
    let retain = RETAIN_KEYS.contains(&(owner, field));
    Some((if retain { "merge,retainKeys" } else { "merge" }, keys.first().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_their_published_names() {
        let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
        assert_eq!(list(meta, "ownerReferences"), Some(&["uid"][..]));
        assert_eq!(list(meta, "finalizers"), Some(&[][..]));
        assert_eq!(list("io.k8s.api.core.v1.PodSpec", "tolerations"), None);
        assert!(is_atomic("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"));
        assert_eq!(patch(meta, "finalizers"), Some(("merge", None)));
        let volumes = patch("io.k8s.api.core.v1.PodSpec", "volumes");
        assert_eq!(volumes, Some(("merge,retainKeys", Some("name"))));
    }
}
