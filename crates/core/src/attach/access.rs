//! From a volume's access modes to the one mode a sidecar tells the driver.

/// A CSI access mode; the number is the one on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum CsiMode {
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

/// Access modes that CSI cannot express as one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// One pod only, and more than that.
    #[error(
        "CSI does not support ReadWriteOncePod together with another access mode on the same PersistentVolume"
    )]
    OncePodNotAlone,
    /// Read by many and written by one are two modes in CSI.
    #[error("CSI does not support ReadOnlyMany and ReadWriteOnce on the same PersistentVolume")]
    ReadersAndWriter,
    /// No known mode at all.
    #[error("unsupported AccessMode combination: {0:?}")]
    Unsupported(Vec<String>),
}

/// The access mode for the driver. `multi_writer` is the SINGLE_NODE_MULTI_WRITER capability.
pub fn csi_mode(modes: &[String], multi_writer: bool) -> Result<CsiMode, AccessError> {
    let has = |mode: &str| modes.iter().any(|one| one == mode);
    let once_pod = has("ReadWriteOncePod");
    if once_pod && modes.iter().any(|mode| mode != "ReadWriteOncePod") {
        return Err(AccessError::OncePodNotAlone);
    }
    let by = |plain, with_multi_writer| if multi_writer { with_multi_writer } else { plain };
    match (once_pod, has("ReadWriteMany"), has("ReadOnlyMany"), has("ReadWriteOnce")) {
        (true, ..) => Ok(by(CsiMode::SingleNodeWriter, CsiMode::SingleNodeSingleWriter)),
        (_, true, ..) => Ok(CsiMode::MultiNodeMultiWriter),
        (_, _, true, true) => Err(AccessError::ReadersAndWriter),
        (_, _, true, false) => Ok(CsiMode::MultiNodeReaderOnly),
        (_, _, false, true) => Ok(by(CsiMode::SingleNodeWriter, CsiMode::SingleNodeMultiWriter)),
        (false, false, false, false) => Err(AccessError::Unsupported(modes.to_vec())),
    }
}

#[cfg(test)]
mod tests {
    use super::{CsiMode::*, *};

    /// The mode without and with the capability, or how the refusal begins.
    type Want = Result<(CsiMode, CsiMode), &'static str>;

    #[test]
    fn modes() {
        let (rwo, rox, rwx, rwop) =
            ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod");
        let cases: [(&[&str], Want); 9] = [
            (&[rwo], Ok((SingleNodeWriter, SingleNodeMultiWriter))),
            (&[rwo, rwo], Ok((SingleNodeWriter, SingleNodeMultiWriter))),
            (&[rwop], Ok((SingleNodeWriter, SingleNodeSingleWriter))),
            (&[rwx, rwo, rox], Ok((MultiNodeMultiWriter, MultiNodeMultiWriter))),
            (&[rox], Ok((MultiNodeReaderOnly, MultiNodeReaderOnly))),
            (&[rwop, rwo], Err("CSI does not support ReadWriteOncePod")),
            (&[rox, rwo], Err("CSI does not support ReadOnlyMany and ReadWriteOnce on the same")),
            (&["Other"], Err("unsupported AccessMode combination:")),
            (&[], Err("unsupported AccessMode combination:")),
        ];
        for (modes, want) in cases {
            let modes: Vec<String> = modes.iter().map(|&mode| mode.to_owned()).collect();
            let got = (csi_mode(&modes, false), csi_mode(&modes, true));
            match (got, want) {
                ((Ok(plain), Ok(multi)), Ok(want)) => assert_eq!((plain, multi), want, "{modes:?}"),
                ((Err(plain), Err(multi)), Err(want)) => {
                    assert_eq!(plain, multi);
                    assert!(plain.to_string().starts_with(want), "{modes:?}: {plain}");
                }
                (got, want) => panic!("{modes:?}: {got:?}, not {want:?}"),
            }
        }
    }
}
