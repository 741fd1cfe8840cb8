//! Maps the access modes of a PersistentVolume to the one CSI mode of a request.

use std::collections::BTreeSet;

pub use crate::v1::volume_capability::access_mode::Mode;

/// Why a list of access modes has no counterpart in CSI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessModeError {
    /// ReadWriteOncePod excludes all others.
    #[error("ReadWriteOncePod cannot be combined with other access modes: {0:?}")]
    OncePodNotAlone(Vec<String>),
    /// No single CSI mode covers both.
    #[error("CSI does not support ReadOnlyMany and ReadWriteOnce on the same PersistentVolume")]
    ReadOnlyManyWithOnce,
    /// Nothing in the list is known.
    #[error("unsupported AccessMode combination: {0:?}")]
    Unsupported(Vec<String>),
}

/// Maps Kubernetes access modes (`ReadWriteOnce`, ...) to the mode for a driver that has or lacks
/// SINGLE_NODE_MULTI_WRITER. Duplicates are ignored.
pub fn map<S: AsRef<str>>(
    modes: &[S],
    single_node_multi_writer: bool,
) -> Result<Mode, AccessModeError> {
    let set: BTreeSet<&str> = modes.iter().map(AsRef::as_ref).collect();
    let all = || modes.iter().map(|mode| mode.as_ref().to_owned()).collect();
    let has = |mode: &str| set.contains(mode);
    match () {
        () if has("ReadWriteOncePod") && set.len() > 1 => {
            Err(AccessModeError::OncePodNotAlone(all()))
        }
        () if has("ReadWriteOncePod") && single_node_multi_writer => {
            Ok(Mode::SingleNodeSingleWriter)
        }
        () if has("ReadWriteOncePod") => Ok(Mode::SingleNodeWriter),
        () if has("ReadWriteMany") => Ok(Mode::MultiNodeMultiWriter),
        () if has("ReadOnlyMany") && has("ReadWriteOnce") => {
            Err(AccessModeError::ReadOnlyManyWithOnce)
        }
        () if has("ReadOnlyMany") => Ok(Mode::MultiNodeReaderOnly),
        () if has("ReadWriteOnce") && single_node_multi_writer => Ok(Mode::SingleNodeMultiWriter),
        () if has("ReadWriteOnce") => Ok(Mode::SingleNodeWriter),
        () => Err(AccessModeError::Unsupported(all())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// case: csi-protocol/14.13
    #[test]
    fn every_row_of_the_table_in_both_settings() {
        use Mode::*;
        const RWO: &str = "ReadWriteOnce";
        const ROX: &str = "ReadOnlyMany";
        const RWX: &str = "ReadWriteMany";
        const RWOP: &str = "ReadWriteOncePod";
        type Expected = Result<(Mode, Mode), &'static str>;
        let rows: &[(&[&str], Expected)] = &[
            (&[RWOP, RWO], Err("ReadWriteOncePod cannot be combined")),
            (&[RWX, RWOP], Err("ReadWriteOncePod cannot be combined")),
            (&[RWOP], Ok((SingleNodeWriter, SingleNodeSingleWriter))),
            (&[RWOP, RWOP], Ok((SingleNodeWriter, SingleNodeSingleWriter))),
            (&[RWX], Ok((MultiNodeMultiWriter, MultiNodeMultiWriter))),
            (&[RWX, ROX, RWO], Ok((MultiNodeMultiWriter, MultiNodeMultiWriter))),
            (
                &[ROX, RWO],
                Err(
                    "CSI does not support ReadOnlyMany and ReadWriteOnce on the same PersistentVolume",
                ),
            ),
            (&[ROX], Ok((MultiNodeReaderOnly, MultiNodeReaderOnly))),
            (&[RWO], Ok((SingleNodeWriter, SingleNodeMultiWriter))),
            (&[RWO, RWO], Ok((SingleNodeWriter, SingleNodeMultiWriter))),
            (&[], Err("unsupported AccessMode combination:")),
            (&["Other"], Err("unsupported AccessMode combination:")),
        ];
        for (modes, expected) in rows {
            let got = (map(modes, false), map(modes, true));
            match (got, expected) {
                ((Ok(without), Ok(with)), Ok(pair)) => assert_eq!((without, with), *pair),
                ((Err(a), Err(b)), Err(text)) => {
                    assert_eq!(a, b);
                    assert!(a.to_string().starts_with(text), "{a}");
                }
                (got, _) => panic!("{modes:?}: {got:?}"),
            }
        }
    }
}
