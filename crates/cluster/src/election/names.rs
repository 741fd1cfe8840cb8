//! Names of leases, candidates and their namespace.

/// The name of a component's lease: characters outside `[a-zA-Z0-9-]` become `-`, and a name that
/// would end in `-` gets an `X`.
#[must_use]
pub fn lease_name(lock: &str) -> String {
    let mut name: String =
        lock.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    if name.ends_with('-') {
        name.push('X');
    }
    name
}

/// The sidecars' identity: the host's name (in a pod, the pod's), made fit like a lease name.
#[must_use]
pub fn host_identity() -> String {
    lease_name(&host_name())
}

/// An identity that no other process shares: host name and a random part.
#[must_use]
pub fn unique_identity() -> String {
    format!("{}_{}", host_name(), uuid::Uuid::new_v4())
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

/// The namespace of leases when no flag names one: `POD_NAMESPACE`, else the service account's,
/// else `default`.
#[must_use]
pub fn default_namespace() -> String {
    const FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
    let from_file = || std::fs::read_to_string(FILE).ok().map(|text| text.trim().to_owned());
    std::env::var("POD_NAMESPACE")
        .ok()
        .filter(|ns| !ns.is_empty())
        .or_else(|| from_file().filter(|ns| !ns.is_empty()))
        .unwrap_or_else(|| "default".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    // case: csi-protocol/14.14
    #[test]
    fn lease_names_keep_letters_digits_and_dashes() {
        for (lock, name) in [
            ("hostpath.csi.k8s.io", "hostpath-csi-k8s-io"),
            ("external-attacher-leader-a/b", "external-attacher-leader-a-b"),
            ("a.b/c", "a-b-c"),
            ("driver.", "driver-X"),
            ("Größe", "Gr--e"),
        ] {
            assert_eq!(lease_name(lock), name);
        }
    }

    #[test]
    fn two_candidates_never_share_an_identity() {
        assert_ne!(unique_identity(), unique_identity());
        assert!(!host_identity().is_empty());
    }
}
