//! When a volume's files change their group, and to which modes.

/// `CSIDriver.spec.fsGroupPolicy`.
use crate::model::AccessMode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The driver's volumes know no ownership.
    None,
    /// Always.
    File,
    /// Only for single-writer volumes with a filesystem type; also without a `CSIDriver`.
    ReadWriteOnceWithFsType,
}

impl Policy {
    /// Reads the API's word; `None` for an empty or unknown one.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "None" => Some(Self::None),
            "File" => Some(Self::File),
            "ReadWriteOnceWithFSType" => Some(Self::ReadWriteOnceWithFsType),
            _ => None,
        }
    }
}

/// What the decision may depend on.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The driver's policy.
    pub policy: Policy,
    /// The pod's `fsGroup`.
    pub fs_group: Option<u32>,
    /// The mount is read-only, by claim, pod or volume.
    pub read_only: bool,
    /// The driver mounts with the group itself (`VOLUME_MOUNT_GROUP`).
    pub driver_does_it: bool,
    /// The volume's filesystem type, empty when unset.
    pub fs_type: &'a str,
    /// The volume's access modes; `None` for an inline volume.
    pub modes: Option<&'a [AccessMode]>,
}

/// The group to give the files to, or `None` to leave them alone.
#[must_use]
pub fn group_to_apply(view: &View<'_>) -> Option<u32> {
    let group = view.fs_group.filter(|_| !view.read_only && !view.driver_does_it)?;
    let applies = match view.policy {
        Policy::None => false,
        Policy::File => true,
        Policy::ReadWriteOnceWithFsType => {
            !view.fs_type.is_empty()
                && view.modes.is_none_or(|modes| modes.iter().any(is_single_writer))
        }
    };
    applies.then_some(group)
}

fn is_single_writer(mode: &AccessMode) -> bool {
    matches!(mode, AccessMode::ReadWriteOnce | AccessMode::ReadWriteOncePod)
}

const FILE_BITS: u32 = 0o660;
const DIR_BITS: u32 = 0o110;
const SETGID: u32 = 0o2000;

/// Permission bits of a file or directory after its group was changed.
#[must_use]
pub fn mode_with_group(mode: u32, is_dir: bool) -> u32 {
    let mode = mode | FILE_BITS;
    if is_dir { mode | SETGID | DIR_BITS } else { mode }
}

/// Whether `OnRootMismatch` may skip the walk: the root already looks as the walk would leave it.
#[must_use]
pub fn root_matches(root_gid: u32, root_mode: u32, group: u32) -> bool {
    root_gid == group && mode_with_group(root_mode, true) == root_mode
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_table() {
        let rwo = &[AccessMode::ReadWriteOnce][..];
        let rwop = &[AccessMode::ReadWriteOncePod][..];
        let rwx = &[AccessMode::ReadWriteMany][..];
        let default = Policy::ReadWriteOnceWithFsType;
        for (case, policy, fs_type, modes, read_only, expected) in [
            ("case: node/N17", default, "ext4", Some(rwo), false, true),
            ("single pod", default, "ext4", Some(rwop), false, true),
            ("case: node/N18", default, "", Some(rwo), false, false),
            ("case: node/N19", default, "ext4", Some(rwx), false, false),
            ("inline needs only the type", default, "ext4", None, false, true),
            ("inline without type", default, "", None, false, false),
            ("case: node/N20", Policy::File, "ext4", Some(rwo), true, false),
            ("case: node/N21", Policy::None, "ext4", Some(rwo), false, false),
            ("file, any mode", Policy::File, "", Some(rwx), false, true),
        ] {
            let view = View {
                policy,
                fs_group: Some(3000),
                read_only,
                driver_does_it: false,
                fs_type,
                modes,
            };
            assert_eq!(group_to_apply(&view), expected.then_some(3000), "{case}");
            let by_driver = View { driver_does_it: true, ..view };
            assert_eq!(group_to_apply(&by_driver), None, "{case}: the driver did it");
            assert_eq!(group_to_apply(&View { fs_group: None, ..view }), None, "{case}: no group");
        }
    }

    #[test]
    fn modes_as_recorded() {
        // Recorded with fsGroup 3000: `/` 0755 -> 2775, file 0600 -> 0660.
        assert_eq!(mode_with_group(0o755, true), 0o2775);
        assert_eq!(mode_with_group(0o600, false), 0o660);
        assert_eq!(mode_with_group(0o755, false), 0o775);
    }

    #[test]
    fn root_mismatch() {
        assert!(root_matches(3000, 0o2775, 3000));
        assert!(!root_matches(0, 0o2775, 3000));
        assert!(!root_matches(3000, 0o775, 3000));
        assert!(!root_matches(3000, 0o2755, 3000));
    }
}
