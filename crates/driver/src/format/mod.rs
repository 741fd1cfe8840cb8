//! Making filesystems: once for each volume, and never over anything.
//!
//! The filesystem is made in a scratch file that takes the image's place when it is complete, so
//! an interrupted mkfs leaves the image as blank as it was, and a finished one is never repeated.

pub mod probe;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::config::FsType;
use probe::Found;

/// Why there is no filesystem.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The program is not installed.
    #[error("{tool} is not installed; install the package that provides it ({package})")]
    ToolMissing {
        /// The program.
        tool: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// The program could not be run.
    #[error("cannot run {tool}: {source}")]
    Run {
        /// The program.
        tool: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The program failed.
    #[error("{tool} failed ({status}): {stderr}")]
    Failed {
        /// The program.
        tool: &'static str,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it said.
        stderr: String,
    },
    /// The image could not be read, so nothing is known about it and it is not touched.
    #[error("cannot look at what is on the image: {0}")]
    Probe(#[source] io::Error),
    /// Something else is on it.
    #[error("the image holds {found}, not {wanted}; it is not formatted over")]
    Foreign {
        /// What was found.
        found: &'static str,
        /// What was asked for.
        wanted: FsType,
    },
    /// mkfs said it was done, and it is not.
    #[error("{tool} reported success but made no {wanted} filesystem")]
    NotMade {
        /// The program.
        tool: &'static str,
        /// What was asked for.
        wanted: FsType,
    },
}

/// What to do with an image before it is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// The filesystem is there.
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
        // Zeros may be somebody's data, and a filesystem that lost its start is not blank.
        (Found::Nothing, false) => Err(FormatError::Foreign { found: "no filesystem", wanted }),
    }
}

/// Looks at an image and decides.
pub fn plan(image: &File, never_used: bool, wanted: FsType) -> Result<Plan, FormatError> {
    decide(probe::probe(image).map_err(FormatError::Probe)?, never_used, wanted)
}

/// Makes a filesystem in a scratch file full of zeros, and checks that it is there.
pub fn make(scratch: &File, fstype: FsType) -> Result<(), FormatError> {
    let (tool, package) = match fstype {
        FsType::Ext4 => ("mkfs.ext4", "e2fsprogs"),
    };
    let program = find_tool(tool).ok_or(FormatError::ToolMissing { tool, package })?;
    let run = |source| FormatError::Run { tool, source };
    let output = Command::new(program)
        .args(mkfs_args(fstype))
        // The file arrives as a descriptor: no path that could come to mean something else.
        .arg("/proc/self/fd/0")
        .stdin(scratch.try_clone().map_err(run)?)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .env_clear()
        .env("PATH", TOOL_DIRS.join(":"))
        .env("LC_ALL", "C")
        .output()
        .map_err(run)?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        return Err(FormatError::Failed { tool, status: output.status, stderr });
    }
    match probe::probe(scratch).map_err(FormatError::Probe)? {
        Found::Signature(name) if name == fstype.as_str() => Ok(()),
        _ => Err(FormatError::NotMade { tool, wanted: fstype }),
    }
}

/// The scratch file is known to be zero, so the journal needs no wiping, and the inode tables are
/// marked as done, or the kernel would fill them with zeros later and take the space for it.
fn mkfs_args(fstype: FsType) -> &'static [&'static str] {
    match fstype {
        FsType::Ext4 => {
            &["-q", "-F", "-t", "ext4", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=1"]
        }
    }
}

const TOOL_DIRS: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

fn find_tool(tool: &str) -> Option<PathBuf> {
    let given = std::env::var_os("PATH").unwrap_or_default();
    let given = std::env::split_paths(&given).filter(|dir| dir.is_absolute());
    find_in(given.chain(TOOL_DIRS.iter().map(PathBuf::from)), tool.as_ref())
}

fn find_in(dirs: impl Iterator<Item = PathBuf>, tool: &OsStr) -> Option<PathBuf> {
    let runs = |path: &Path| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    dirs.map(|dir| dir.join(tool)).find(|path| runs(path))
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

    #[test]
    fn a_missing_tool_is_not_found() {
        let empty = tempfile::tempdir().unwrap();
        let dirs = || std::iter::once(empty.path().to_owned());
        assert_eq!(find_in(dirs(), "mkfs.ext4".as_ref()), None);
        std::fs::write(empty.path().join("mkfs.ext4"), "").unwrap();
        assert_eq!(find_in(dirs(), "mkfs.ext4".as_ref()), None, "not executable");
    }
}
