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

/// An identity for one of several programs of a host, which with host networking have one name: the host's name and what
/// begins the pod's UID, or something random. It stays the same when the container is restarted.
#[must_use]
pub fn pod_identity(pod_uid: Option<&str>) -> String {
    let uid = pod_uid.map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
    let hex: String = uid.chars().filter(char::is_ascii_hexdigit).take(8).collect();
    format!("{}-{hex}", host_identity())
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

    // case: sidecars/A19
    #[test]
    fn pods_of_one_host_differ_from_each_other_and_from_the_host() {
        let (one, other) = ("0a1b2c3d-4e5f-6071", "9a1b2c3d-4e5f-6071");
        let host = host_identity();
        assert_eq!(pod_identity(Some(one)), format!("{host}-0a1b2c3d"));
        assert_eq!(pod_identity(Some(one)), pod_identity(Some(one)), "after a restart");
        assert_ne!(pod_identity(Some(one)), pod_identity(Some(other)));
        assert_ne!(pod_identity(None), pod_identity(None));
        assert_eq!(pod_identity(None).len(), host.len() + 9);
    }
}
