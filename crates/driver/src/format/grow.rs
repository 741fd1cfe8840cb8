//! Growing filesystems, and telling whether they have grown.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Stdio;

use super::{FormatError, superblock, tool};
use crate::config::FsType;

fn superblock_error(source: std::io::Error) -> FormatError {
    FormatError::Superblock { what: "read the superblock", source }
}

/// Whether the filesystem on an image that is not mounted spans `bytes`.
pub fn fills(image: &File, fstype: FsType, bytes: u64) -> Result<bool, FormatError> {
    let has = superblock::size_bytes(image, fstype).map_err(superblock_error)?;
    let slack = superblock::slack_bytes(image, fstype).map_err(superblock_error)?;
    Ok(has.saturating_add(slack) >= bytes)
}

/// Whether the mounted filesystem spans `bytes`, by its own account and not by a tool's.
pub fn mounted_fills(
    device: &File,
    mounted: impl AsFd,
    fstype: FsType,
    bytes: u64,
) -> Result<bool, FormatError> {
    let statfs = || {
        let stat =
            rustix::fs::fstatvfs(&mounted).map_err(|error| superblock_error(error.into()))?;
        Ok::<u64, FormatError>(stat.f_blocks.saturating_mul(stat.f_frsize))
    };
    let has = match fstype {
        // `statfs` leaves its tables out; the superblock in the device's cache is the one in use.
        FsType::Ext4 => superblock::size_bytes(device, fstype).map_err(superblock_error)?,
        FsType::Xfs => statfs()? + superblock::xfs_log_bytes(device).map_err(superblock_error)?,
        FsType::Btrfs => statfs()?,
    };
    let slack = superblock::slack_bytes(device, fstype).map_err(superblock_error)?;
    Ok(has.saturating_add(slack) >= bytes)
}

/// Whether a filesystem of this type is grown before it is mounted, or can only grow after.
#[must_use]
pub fn grows_unmounted(fstype: FsType) -> bool {
    fstype == FsType::Ext4
}

/// Grows an ext4 that is not mounted to the size of its image. It is checked first, as its tools
/// demand: growing a damaged one would spread the damage.
pub fn grow_unmounted(image: &File) -> Result<(), FormatError> {
    // 1: something was put right.
    tool::run(tool::E2FSCK, &["-f", "-p", tool::IMAGE], image, &[0, 1])?;
    tool::run(tool::RESIZE2FS, &[tool::IMAGE], image, &[0])
}

/// Grows a mounted filesystem to the size of its device.
pub fn grow_mounted(device: &Path, mounted: &Path, fstype: FsType) -> Result<(), FormatError> {
    let text = |path: &Path| path.display().to_string();
    let (tool, args) = match fstype {
        FsType::Ext4 => (tool::RESIZE2FS, vec![text(device)]),
        FsType::Xfs => (tool::XFS_GROWFS, vec!["-d".to_owned(), text(mounted)]),
        FsType::Btrfs => {
            let words = ["filesystem", "resize", "max"].map(str::to_owned);
            (tool::BTRFS, words.into_iter().chain([text(mounted)]).collect())
        }
    };
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    tool::run_with(tool, &args, Stdio::null(), &[0])
}
