//! Making filesystems: once for each volume, and never over anything.
//!
//! The filesystem is made in a scratch file that takes the image's place when it is complete, so
//! an interrupted mkfs leaves the image as blank as it was, and a finished one is never repeated.

pub mod grow;
pub mod options;
pub mod probe;
mod superblock;
pub mod template;
mod tool;
pub mod uuid;

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Stdio;

use crate::config::FsType;
use crate::loopdev::LoopError;
use crate::mount::MountError;
pub use options::{FormatOptions, OptionError};
use probe::Found;
pub use tool::{ToolState, tools};
pub use uuid::renew_uuid;

/// Why there is no filesystem.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The program is not installed.
    #[error("{tool} is not installed; install the package that provides it ({package})")]
    ToolMissing {
        tool: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// The program could not be run.
    #[error("cannot run {tool}: {source}")]
    Run { tool: &'static str, source: io::Error },
    #[error("{tool} failed ({status}): {stderr}")]
    Failed { tool: &'static str, status: std::process::ExitStatus, stderr: String },
    /// The image could not be read, so nothing is known about it and it is not touched.
    #[error("cannot look at what is on the image: {0}")]
    Probe(#[source] io::Error),
    /// Something else is on it.
    #[error("the image holds {found}, not {wanted}; it is not formatted over")]
    Foreign { found: &'static str, wanted: FsType },
    /// The superblock could not be read or written.
    #[error("cannot {what}: {source}")]
    Superblock { what: &'static str, source: io::Error },
    /// The log of a copy could not be replayed, because it could not be had as a device.
    #[error("cannot replay the log of the copy: {0}")]
    Attach(#[from] LoopError),
    /// The log of a copy could not be replayed, because it could not be mounted.
    #[error("cannot replay the log of the copy: {0}")]
    Mount(#[from] MountError),
    /// A program said that the UUID is new, and it is not.
    #[error(
        "{tool} reported success but the UUID of the {fstype} filesystem is {found}, not {wanted}"
    )]
    NotRenewed { tool: &'static str, fstype: FsType, found: ::uuid::Uuid, wanted: ::uuid::Uuid },
    /// mkfs said it was done, and it is not.
    #[error("{tool} reported success but made no {wanted} filesystem")]
    NotMade { tool: &'static str, wanted: FsType },
}

/// What to do with an image before it is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    Mount,
    /// It is blank and was never anything else: make the filesystem first.
    Make,
}

/// Decides from what was found and whether anybody ever had access to the bytes.
pub fn decide(found: Found, never_used: bool, wanted: FsType) -> Result<Plan, FormatError> {
    match (found, never_used) {
        (Found::Signature(name), _) if name == wanted.as_str() => Ok(Plan::Mount),
        (Found::Signature(found), _) => Err(FormatError::Foreign { found, wanted }),
        (Found::Unknown, _) => Err(FormatError::Foreign { found: "data of unknown kind", wanted }),
        (Found::Nothing, true) => Ok(Plan::Make),
        // Zeros may be a pod's data, and a filesystem that lost its start is not blank.
        (Found::Nothing, false) => Err(FormatError::Foreign { found: "no filesystem", wanted }),
    }
}

/// Looks at an image and decides.
pub fn plan(image: &File, never_used: bool, wanted: FsType) -> Result<Plan, FormatError> {
    decide(probe::probe(image).map_err(FormatError::Probe)?, never_used, wanted)
}

/// Makes a filesystem in a scratch file full of zeros, and checks that it is there.
pub fn make(scratch: &File, fstype: FsType, options: &FormatOptions) -> Result<(), FormatError> {
    let tool = match fstype {
        FsType::Ext4 => tool::MKFS_EXT4,
        FsType::Xfs => tool::MKFS_XFS,
        FsType::Btrfs => tool::MKFS_BTRFS,
    };
    let args = options.mkfs_args(fstype);
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    args.push(tool::IMAGE);
    tool::run(tool, &args, scratch, &[0])?;
    match probe::probe(scratch).map_err(FormatError::Probe)? {
        Found::Signature(name) if name == fstype.as_str() => Ok(()),
        _ => Err(FormatError::NotMade { tool: tool.name, wanted: fstype }),
    }
}

/// Keeps a share of the blocks of an ext4 that is not mounted for root.
pub fn reserve_blocks(image: &File, percent: u8) -> Result<(), FormatError> {
    tool::run(tool::TUNE2FS, &["-m", &percent.to_string(), tool::IMAGE], image, &[0])
}

/// As [`reserve_blocks`], for a mounted one.
pub fn reserve_blocks_mounted(device: &Path, percent: u8) -> Result<(), FormatError> {
    let device = device.display().to_string();
    tool::run_with(tool::TUNE2FS, &["-m", &percent.to_string(), &device], Stdio::null(), &[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise 6: existing data is never formatted over.
    #[test]
    fn only_a_blank_unused_image_is_formatted() {
        let cases = [
            (Found::Nothing, true, Ok(Plan::Make)),
            (Found::Nothing, false, Err("no filesystem")),
            (Found::Unknown, true, Err("unknown kind")),
            (Found::Unknown, false, Err("unknown kind")),
            (Found::Signature("ext4"), true, Ok(Plan::Mount)),
            (Found::Signature("ext4"), false, Ok(Plan::Mount)),
            (Found::Signature("xfs"), true, Err("holds xfs")),
            (Found::Signature("luks"), false, Err("holds luks")),
        ];
        for (found, never_used, want) in cases {
            let got = decide(found, never_used, FsType::Ext4);
            match want {
                Ok(plan) => assert_eq!(got.expect("a plan"), plan, "{found:?} {never_used}"),
                Err(text) => {
                    let error = got.expect_err("a refusal").to_string();
                    assert!(error.contains(text), "{found:?} {never_used}: {error}");
                }
            }
        }
    }
}
