//! From Kubernetes access modes to CSI access modes.

/// CSI access mode; the number is the one on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum CsiAccess {
    /// One node writes.
    SingleNodeWriter = 1,
    /// Many nodes read.
    MultiNodeReaderOnly = 3,
    /// Many nodes write.
    MultiNodeMultiWriter = 5,
    /// One workload on one node writes.
    SingleNodeSingleWriter = 6,
    /// Many workloads on one node write.
    SingleNodeMultiWriter = 7,
}

/// The capability's access mode for a volume, from its first mode (none means ReadWriteOnce).
///
/// `None` when the mode is not a Kubernetes mode.
#[must_use]
pub fn csi_access(modes: &[impl AsRef<str>], single_node_multi_writer: bool) -> Option<CsiAccess> {
    let first = modes.first().map_or("ReadWriteOnce", AsRef::as_ref);
    Some(match (first, single_node_multi_writer) {
        ("ReadWriteOnce", false) | ("ReadWriteOncePod", false) => CsiAccess::SingleNodeWriter,
        ("ReadWriteOnce", true) => CsiAccess::SingleNodeMultiWriter,
        ("ReadWriteOncePod", true) => CsiAccess::SingleNodeSingleWriter,
        ("ReadOnlyMany", _) => CsiAccess::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => CsiAccess::MultiNodeMultiWriter,
        _ => return None,
    })
}

/// Whether the volume may be used by one pod only.
#[must_use]
pub fn only_one_pod(modes: &[impl AsRef<str>]) -> bool {
    modes.len() == 1 && modes.iter().all(|mode| mode.as_ref() == "ReadWriteOncePod")
}

#[cfg(test)]
mod tests {
    use super::*;
    use CsiAccess::*;

    #[test]
    fn modes_map_as_the_table_says() {
        // case: node/N27
        for (modes, plain, multi_writer) in [
            (&["ReadWriteOnce"][..], SingleNodeWriter, SingleNodeMultiWriter),
            (&["ReadOnlyMany"], MultiNodeReaderOnly, MultiNodeReaderOnly),
            (&["ReadWriteMany"], MultiNodeMultiWriter, MultiNodeMultiWriter),
            (&["ReadWriteOncePod"], SingleNodeWriter, SingleNodeSingleWriter),
            (&[], SingleNodeWriter, SingleNodeMultiWriter),
            (&["ReadOnlyMany", "ReadWriteOnce"], MultiNodeReaderOnly, MultiNodeReaderOnly),
        ] {
            assert_eq!(csi_access(modes, false), Some(plain), "{modes:?}");
            assert_eq!(csi_access(modes, true), Some(multi_writer), "{modes:?}");
        }
        assert_eq!(csi_access(&["Other"], false), None);
    }

    #[test]
    fn single_pod_needs_the_mode_alone() {
        assert!(only_one_pod(&["ReadWriteOncePod"]));
        assert!(!only_one_pod(&["ReadWriteOncePod", "ReadWriteOnce"]));
        assert!(!only_one_pod(&[] as &[&str]));
    }
}
