//! Running the programs that make, check and change filesystems.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::FormatError;
use crate::config::FsType;

/// A program and the Debian package that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tool {
    pub name: &'static str,
    pub package: &'static str,
}

pub(super) const MKFS_EXT4: Tool = Tool { name: "mkfs.ext4", package: "e2fsprogs" };
pub(super) const MKFS_XFS: Tool = Tool { name: "mkfs.xfs", package: "xfsprogs" };
pub(super) const MKFS_BTRFS: Tool = Tool { name: "mkfs.btrfs", package: "btrfs-progs" };
pub(super) const TUNE2FS: Tool = Tool { name: "tune2fs", package: "e2fsprogs" };
pub(super) const XFS_DB: Tool = Tool { name: "xfs_db", package: "xfsprogs" };

pub(super) const E2FSCK: Tool = Tool { name: "e2fsck", package: "e2fsprogs" };
pub(super) const RESIZE2FS: Tool = Tool { name: "resize2fs", package: "e2fsprogs" };
pub(super) const XFS_GROWFS: Tool = Tool { name: "xfs_growfs", package: "xfsprogs" };
pub(super) const BTRFS: Tool = Tool { name: "btrfs", package: "btrfs-progs" };

/// A program that volumes of a filesystem need, and whether it is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolState {
    pub fstype: FsType,
    pub name: &'static str,
    /// The Debian package that has it.
    pub package: &'static str,
    pub installed: bool,
}

/// Looks for all programs that the drivers run.
#[must_use]
pub fn tools() -> Vec<ToolState> {
    let all = [
        (FsType::Ext4, &[MKFS_EXT4, E2FSCK, RESIZE2FS, TUNE2FS][..]),
        (FsType::Xfs, &[MKFS_XFS, XFS_DB, XFS_GROWFS]),
        (FsType::Btrfs, &[MKFS_BTRFS, BTRFS]),
    ];
    let state = |fstype: FsType, tool: &Tool| ToolState {
        fstype,
        name: tool.name,
        package: tool.package,
        installed: find_tool(tool.name).is_some(),
    };
    all.iter().flat_map(|(fstype, tools)| tools.iter().map(|tool| state(*fstype, tool))).collect()
}

/// The path under which a program finds the image: a descriptor, so no name that could come to
/// mean something else.
pub(super) const IMAGE: &str = "/proc/self/fd/0";

/// Runs a program on an image (see [`IMAGE`]) and waits for it. An exit code that is not in
/// `fine` is a failure.
pub(super) fn run(
    tool: Tool,
    args: &[&str],
    image: &File,
    fine: &[i32],
) -> Result<(), FormatError> {
    let stdin = image.try_clone().map_err(|source| FormatError::Run { tool: tool.name, source })?;
    run_with(tool, args, stdin.into(), fine)
}

/// As [`run`], without an image.
pub(super) fn run_with(
    tool: Tool,
    args: &[&str],
    stdin: Stdio,
    fine: &[i32],
) -> Result<(), FormatError> {
    let program = find_tool(tool.name)
        .ok_or(FormatError::ToolMissing { tool: tool.name, package: tool.package })?;
    let output = Command::new(program)
        .args(args)
        .stdin(stdin)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .env_clear()
        .env("PATH", TOOL_DIRS.join(":"))
        .env("LC_ALL", "C")
        .output()
        .map_err(|source| FormatError::Run { tool: tool.name, source })?;
    if !output.status.code().is_some_and(|code| fine.contains(&code)) {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        return Err(FormatError::Failed { tool: tool.name, status: output.status, stderr });
    }
    Ok(())
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

    #[test]
    fn a_missing_tool_is_not_found() {
        let empty = tempfile::tempdir().unwrap();
        let dirs = || std::iter::once(empty.path().to_owned());
        assert_eq!(find_in(dirs(), "mkfs.ext4".as_ref()), None);
        std::fs::write(empty.path().join("mkfs.ext4"), "").unwrap();
        assert_eq!(find_in(dirs(), "mkfs.ext4".as_ref()), None, "not executable");
    }

    #[test]
    fn a_failure_says_what_the_program_said() {
        let image = tempfile::tempfile().unwrap();
        let sh = Tool { name: "sh", package: "dash" };
        let error = run(sh, &["-c", "echo why >&2; exit 3"], &image, &[0]).expect_err("fails");
        assert!(error.to_string().contains("why"), "{error}");
        run(sh, &["-c", "exit 3"], &image, &[0, 3]).unwrap();
        let missing = Tool { name: "no-such-program", package: "nothing" };
        let error = run(missing, &[], &image, &[0]).expect_err("missing").to_string();
        assert!(error.contains("not installed") && error.contains("(nothing)"), "{error}");
    }
}
