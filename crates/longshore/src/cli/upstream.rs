//! The versions of the official programs that are matched: flags, defaults, event texts, metrics and behaviour.
//!
//! Help, README and `docs/command-line.md` say the same; tests compare them with this list.

/// The Kubernetes release whose controllers, node agent and API are matched.
pub(crate) const KUBERNETES: &str = "1.37";

/// The release of the CSI specification that calls and drivers follow.
pub(crate) const CSI: &str = "1.13";

/// Official programs and their releases.
pub(crate) const MATCHED: &[(&str, &str)] = &[
    ("csi-provisioner", "6.3"),
    ("csi-attacher", "4.12"),
    ("csi-resizer", "2.2"),
    ("csi-snapshotter", "8.6"),
    ("snapshot-controller", "8.6"),
    ("csi-node-driver-registrar", "2.17"),
    ("livenessprobe", "2.19"),
    ("csi-external-health-monitor-controller", "0.18"),
];

/// Official names of programs that were announced and not released yet: there is no version to match.
#[cfg(test)]
pub(crate) const UNRELEASED: &[&str] = &["csi-sidecars"];

/// The sentence about a program in its help; none for a program of our own.
pub(super) fn sentence(official: &[&str]) -> Option<String> {
    let (name, version) = MATCHED.iter().find(|(name, _)| official.contains(name))?;
    Some(format!(
        "Flags, defaults, events and metrics are those of {name} {version} (Kubernetes {KUBERNETES}, CSI {CSI})."
    ))
}

/// All of them, as in `csi-provisioner 6.3, csi-attacher 4.12`.
pub(crate) fn list() -> String {
    longshore_core::words::list(MATCHED.iter().map(|(name, version)| format!("{name} {version}")))
}
