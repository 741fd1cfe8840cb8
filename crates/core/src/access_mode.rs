//! From Kubernetes access modes to the CSI access mode of a request.
//!
//! Kubernetes has three rules, one per caller, and drivers see the difference, so each is kept:
//!
//! * the provisioner asks for **every** mode of the claim, one capability each ([`for_create`]): the
//!   driver shall refuse a volume that cannot do one of them;
//! * the attacher asks for **the one** mode that covers all of the volume's modes ([`for_attach`]),
//!   and refuses a combination that no single mode covers;
//! * the node asks for the volume's **first** mode ([`for_node`]), as the kubelet does.
//!
//! All three ask for a finer single-node mode where the driver has SINGLE_NODE_MULTI_WRITER.

use std::collections::BTreeSet;

use crate::model::AccessMode;

/// CSI access mode; the number is the one on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum CsiAccessMode {
    SingleNodeWriter = 1,
    MultiNodeReaderOnly = 3,
    MultiNodeMultiWriter = 5,
    SingleNodeSingleWriter = 6,
    SingleNodeMultiWriter = 7,
}

impl CsiAccessMode {
    /// The name in the protocol.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SingleNodeWriter => "SINGLE_NODE_WRITER",
            Self::MultiNodeReaderOnly => "MULTI_NODE_READER_ONLY",
            Self::MultiNodeMultiWriter => "MULTI_NODE_MULTI_WRITER",
            Self::SingleNodeSingleWriter => "SINGLE_NODE_SINGLE_WRITER",
            Self::SingleNodeMultiWriter => "SINGLE_NODE_MULTI_WRITER",
        }
    }
}

/// Why access modes have no counterpart in CSI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessModeError {
    /// ReadWriteOncePod excludes all others.
    #[error("ReadWriteOncePod cannot be combined with other access modes: {0:?}")]
    OncePodNotAlone(Vec<AccessMode>),
    /// No single CSI mode covers both.
    #[error("CSI does not support ReadOnlyMany and ReadWriteOnce on the same PersistentVolume")]
    ReadOnlyManyWithOnce,
    /// Nothing in the list is known.
    #[error("unsupported AccessMode combination: {0:?}")]
    Unsupported(Vec<AccessMode>),
}

/// The CSI mode for one Kubernetes mode; `None` for one that Kubernetes does not have.
#[must_use]
pub fn for_create(mode: &AccessMode, multi_writer: bool) -> Option<CsiAccessMode> {
    Some(match (mode, multi_writer) {
        (AccessMode::ReadWriteMany, _) => CsiAccessMode::MultiNodeMultiWriter,
        (AccessMode::ReadOnlyMany, _) => CsiAccessMode::MultiNodeReaderOnly,
        (AccessMode::ReadWriteOnce, true) => CsiAccessMode::SingleNodeMultiWriter,
        (AccessMode::ReadWriteOncePod, true) => CsiAccessMode::SingleNodeSingleWriter,
        (AccessMode::ReadWriteOnce | AccessMode::ReadWriteOncePod, false) => {
            CsiAccessMode::SingleNodeWriter
        }
        (AccessMode::Other(_), _) => return None,
    })
}

/// The CSI mode that covers all modes of a volume. Duplicates are ignored.
pub fn for_attach(
    modes: &[AccessMode],
    multi_writer: bool,
) -> Result<CsiAccessMode, AccessModeError> {
    use AccessMode::{ReadOnlyMany, ReadWriteMany, ReadWriteOnce, ReadWriteOncePod};
    let set: BTreeSet<&AccessMode> = modes.iter().collect();
    let widest = [ReadWriteOncePod, ReadWriteMany, ReadOnlyMany, ReadWriteOnce];
    let widest = widest.into_iter().find(|mode| set.contains(mode));
    match &widest {
        Some(ReadWriteOncePod) if set.len() > 1 => {
            Err(AccessModeError::OncePodNotAlone(modes.to_vec()))
        }
        Some(ReadOnlyMany) if set.contains(&ReadWriteOnce) => {
            Err(AccessModeError::ReadOnlyManyWithOnce)
        }
        Some(mode) => for_create(mode, multi_writer)
            .ok_or_else(|| AccessModeError::Unsupported(modes.to_vec())),
        None => Err(AccessModeError::Unsupported(modes.to_vec())),
    }
}

/// The CSI mode for a volume on a node, from its first mode; none means ReadWriteOnce.
///
/// `None` for a mode that Kubernetes does not have.
#[must_use]
pub fn for_node(modes: &[AccessMode], multi_writer: bool) -> Option<CsiAccessMode> {
    for_create(modes.first().unwrap_or(&AccessMode::ReadWriteOnce), multi_writer)
}

/// Whether the volume may be used by one pod only.
#[must_use]
pub fn only_one_pod(modes: &[AccessMode]) -> bool {
    modes == [AccessMode::ReadWriteOncePod]
}

#[cfg(test)]
mod tests {
    use super::{CsiAccessMode::*, *};

    const RWO: AccessMode = AccessMode::ReadWriteOnce;
    const ROX: AccessMode = AccessMode::ReadOnlyMany;
    const RWX: AccessMode = AccessMode::ReadWriteMany;
    const RWOP: AccessMode = AccessMode::ReadWriteOncePod;

    #[test]
    fn the_node_asks_for_the_first_mode() {
        // case: node/N27
        for (modes, without, with) in [
            (&[RWO][..], SingleNodeWriter, SingleNodeMultiWriter),
            (&[ROX], MultiNodeReaderOnly, MultiNodeReaderOnly),
            (&[RWX], MultiNodeMultiWriter, MultiNodeMultiWriter),
            (&[RWOP], SingleNodeWriter, SingleNodeSingleWriter),
            (&[], SingleNodeWriter, SingleNodeMultiWriter),
            (&[ROX, RWO], MultiNodeReaderOnly, MultiNodeReaderOnly),
        ] {
            assert_eq!(for_node(modes, false), Some(without), "{modes:?}");
            assert_eq!(for_node(modes, true), Some(with), "{modes:?}");
        }
        assert_eq!(for_node(&["Other".into()], false), None);
    }

    /// case: csi-protocol/14.13
    #[test]
    fn the_attacher_asks_for_the_mode_that_covers_all() {
        type Expected = Result<(CsiAccessMode, CsiAccessMode), &'static str>;
        let conflict =
            "CSI does not support ReadOnlyMany and ReadWriteOnce on the same PersistentVolume";
        let rows: &[(&[AccessMode], Expected)] = &[
            (&[RWOP, RWO], Err("ReadWriteOncePod cannot be combined")),
            (&[RWX, RWOP], Err("ReadWriteOncePod cannot be combined")),
            (&[RWOP], Ok((SingleNodeWriter, SingleNodeSingleWriter))),
            (&[RWOP, RWOP], Ok((SingleNodeWriter, SingleNodeSingleWriter))),
            (&[RWX], Ok((MultiNodeMultiWriter, MultiNodeMultiWriter))),
            (&[RWX, ROX, RWO], Ok((MultiNodeMultiWriter, MultiNodeMultiWriter))),
            (&[ROX, RWO], Err(conflict)),
            (&[ROX], Ok((MultiNodeReaderOnly, MultiNodeReaderOnly))),
            (&[RWO], Ok((SingleNodeWriter, SingleNodeMultiWriter))),
            (&[RWO, RWO], Ok((SingleNodeWriter, SingleNodeMultiWriter))),
            (&[], Err("unsupported AccessMode combination: []")),
            (&["Other".into()], Err("unsupported AccessMode combination: [\"Other\"]")),
        ];
        for (modes, expected) in rows {
            match (for_attach(modes, false), for_attach(modes, true), expected) {
                (Ok(without), Ok(with), Ok(pair)) => assert_eq!((without, with), *pair),
                (Err(a), Err(b), Err(text)) => {
                    assert_eq!(a, b);
                    assert!(a.to_string().starts_with(text), "{a}");
                }
                (without, with, _) => panic!("{modes:?}: {without:?}, {with:?}"),
            }
        }
    }

    #[test]
    fn single_pod_needs_the_mode_alone() {
        assert!(only_one_pod(&[RWOP]));
        assert!(!only_one_pod(&[RWOP, RWO]));
        assert!(!only_one_pod(&[]));
    }
}
