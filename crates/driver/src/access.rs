//! Volume capabilities: what a caller wants to do with a volume, checked and in our own words.

use longshore_csi::v1::VolumeCapability;
use longshore_csi::v1::volume_capability::AccessType;
use longshore_csi::v1::volume_capability::access_mode::Mode;

use crate::config::{DriverKind, FsType};
use crate::mount::options::{Options, UnsupportedFlag};
use crate::pool::record::Record;
use crate::refusal::Refusal;

/// A capability this driver can give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Access {
    pub kind: AccessKind,
    /// Who may use it, and how.
    pub mode: Mode,
}

/// How a volume appears to its user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AccessKind {
    /// As a block device.
    Block,
    /// As a directory.
    Mount {
        /// The filesystem, if the caller cares.
        fstype: Option<FsType>,
        /// Mount flags, each known to the filesystem (to some, when the caller names none).
        flags: Vec<String>,
    },
}

impl Access {
    /// Checks one capability of a request.
    pub(crate) fn parse(
        capability: Option<&VolumeCapability>,
        kind: DriverKind,
    ) -> Result<Self, Refusal> {
        let invalid = |text: String| Refusal::Invalid(format!("volume_capability: {text}"));
        let capability = capability.ok_or_else(|| invalid("it is missing".to_owned()))?;
        let mode = capability.access_mode.as_ref().map_or(0, |mode| mode.mode);
        let mode =
            Mode::try_from(mode).map_err(|_| invalid(format!("access mode {mode} is unknown")))?;
        if !mode_allowed(mode, kind)? {
            let name = mode.as_str_name();
            let claims = match kind {
                DriverKind::Local => "ReadWriteOnce or ReadWriteOncePod",
                DriverKind::Shared => "ReadWriteOnce, ReadWriteOncePod or ReadOnlyMany",
            };
            return Err(invalid(format!(
                "access mode {name} is not supported by a {kind} driver; claims can ask for {claims}"
            )));
        }
        let access = match &capability.access_type {
            None => return Err(invalid("neither block nor mount is set".to_owned())),
            Some(AccessType::Block(_)) => AccessKind::Block,
            Some(AccessType::Mount(mount)) => {
                if !mount.volume_mount_group.is_empty() {
                    return Err(invalid("volume_mount_group is not supported".to_owned()));
                }
                if mount.mount_flags.iter().map(String::len).sum::<usize>() > 4096 {
                    return Err(invalid("mount_flags are longer than 4096 bytes".to_owned()));
                }
                let fstype = match mount.fs_type.as_str() {
                    "" => None,
                    name => Some(name.parse::<FsType>().map_err(invalid)?),
                };
                let flags = check_flags(&mount.mount_flags, fstype);
                flags.map_err(|error| invalid(error.to_string()))?;
                AccessKind::Mount { fstype, flags: mount.mount_flags.clone() }
            }
        };
        Ok(Self { kind: access, mode })
    }

    /// Checks all capabilities of a request; there must be one.
    pub(crate) fn parse_all(
        all: &[VolumeCapability],
        kind: DriverKind,
    ) -> Result<Vec<Self>, Refusal> {
        if all.is_empty() {
            return Err(Refusal::Invalid("volume_capabilities are missing".to_owned()));
        }
        all.iter().map(|one| Self::parse(Some(one), kind)).collect()
    }

    /// Handed out as a raw device.
    #[must_use]
    pub(crate) fn is_block(&self) -> bool {
        self.kind == AccessKind::Block
    }

    /// Only reading is allowed, whatever else is asked for.
    #[must_use]
    pub(crate) fn reads_only(&self) -> bool {
        matches!(self.mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly)
    }

    /// The mount flags say read-only.
    #[must_use]
    pub(crate) fn mounts_read_only(&self) -> bool {
        let AccessKind::Mount { flags, .. } = &self.kind else { return false };
        flags.iter().flat_map(|flag| flag.split(',')).any(|flag| flag.trim() == "ro")
    }

    /// Several nodes may have the volume at once.
    #[must_use]
    pub(crate) fn many_nodes(&self) -> bool {
        matches!(self.mode, Mode::MultiNodeReaderOnly)
    }

    /// Several targets on one node may have the volume at once (CSI, table at NodePublishVolume).
    #[must_use]
    pub(crate) fn many_targets(&self) -> bool {
        matches!(self.mode, Mode::MultiNodeReaderOnly | Mode::SingleNodeMultiWriter)
    }

    /// Why an existing volume cannot be used this way; `None` when it can.
    #[must_use]
    pub(crate) fn conflict_with(&self, record: &Record) -> Option<String> {
        match (&self.kind, record.fstype) {
            (AccessKind::Mount { fstype: Some(wanted), .. }, Some(has)) if *wanted != has => {
                Some(format!("volume {} was made for {has}, not {wanted}", record.id))
            }
            (AccessKind::Mount { .. }, None) => {
                Some(format!("volume {} was made for raw block access only", record.id))
            }
            (AccessKind::Block, _) if !record.block => {
                Some(format!("volume {} was made for a filesystem only", record.id))
            }
            (AccessKind::Mount { .. }, Some(_)) | (AccessKind::Block, _) => None,
        }
    }
}

/// Refuses flags that the filesystem, or every filesystem, does not know.
fn check_flags(flags: &[String], fstype: Option<FsType>) -> Result<(), UnsupportedFlag> {
    if let Some(fstype) = fstype {
        return Options::parse(flags, fstype).map(drop);
    }
    let mut first = None;
    for fstype in FsType::ALL {
        match Options::parse(flags, fstype) {
            Ok(_) => return Ok(()),
            Err(error) => first = first.or(Some(error)),
        }
    }
    first.map_or(Ok(()), Err)
}

fn mode_allowed(mode: Mode, kind: DriverKind) -> Result<bool, Refusal> {
    match mode {
        Mode::Unknown => {
            Err(Refusal::Invalid("volume_capability: access_mode is missing".to_owned()))
        }
        Mode::SingleNodeWriter
        | Mode::SingleNodeReaderOnly
        | Mode::SingleNodeSingleWriter
        | Mode::SingleNodeMultiWriter => Ok(true),
        Mode::MultiNodeReaderOnly => Ok(kind == DriverKind::Shared),
        // Two kernels writing to one image through their own page caches would destroy it.
        Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use longshore_csi::v1::volume_capability::{AccessMode, BlockVolume, MountVolume};

    use super::*;

    fn capability(mode: Mode, mount: Option<MountVolume>) -> VolumeCapability {
        VolumeCapability {
            access_mode: Some(AccessMode { mode: mode as i32 }),
            access_type: Some(match mount {
                Some(mount) => AccessType::Mount(mount),
                None => AccessType::Block(BlockVolume {}),
            }),
        }
    }

    #[test]
    fn each_driver_kind_accepts_its_access_modes() {
        use DriverKind::{Local, Shared};
        let cases = [
            (Mode::Unknown, false, false),
            (Mode::SingleNodeWriter, true, true),
            (Mode::SingleNodeReaderOnly, true, true),
            (Mode::SingleNodeSingleWriter, true, true),
            (Mode::SingleNodeMultiWriter, true, true),
            (Mode::MultiNodeReaderOnly, false, true),
            (Mode::MultiNodeSingleWriter, false, false),
            (Mode::MultiNodeMultiWriter, false, false),
        ];
        for (mode, local, shared) in cases {
            let fine = |kind| Access::parse(Some(&capability(mode, None)), kind).is_ok();
            assert_eq!((fine(Local), fine(Shared)), (local, shared), "{mode:?}");
        }
    }

    #[test]
    fn bad_capabilities_are_named() {
        let mount = |change: fn(&mut MountVolume)| {
            let mut mount = MountVolume::default();
            change(&mut mount);
            Some(capability(Mode::SingleNodeWriter, Some(mount)))
        };
        let untyped =
            VolumeCapability { access_type: None, ..capability(Mode::SingleNodeWriter, None) };
        let cases = [
            (None, "missing"),
            (Some(untyped), "neither block nor mount"),
            (mount(|m| m.fs_type = "zfs".into()), "\"zfs\" is not supported"),
            (mount(|m| m.mount_flags = vec!["loop".into()]), "mount flag"),
            (mount(|m| m.mount_flags = vec!["x".repeat(5000)]), "4096"),
            (mount(|m| m.volume_mount_group = "5".into()), "volume_mount_group"),
        ];
        for (capability, want) in cases {
            let refusal = Access::parse(capability.as_ref(), DriverKind::Local).expect_err(want);
            assert_eq!(refusal.code(), tonic::Code::InvalidArgument);
            assert!(refusal.to_string().contains(want), "{refusal}");
        }
    }
}
