//! What this machine must offer before anything is changed.

use anyhow::{Result, bail};

/// Refuses with one sentence when this process is not root.
pub(crate) fn require(program: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    bail!(
        "`longshore {program}` mounts filesystems and attaches loop devices, so it needs root; run it with sudo"
    )
}

/// Refuses with one sentence when the program that makes filesystems is missing.
pub(crate) fn require_mkfs() -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let fixed = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    let found =
        std::env::split_paths(&path).chain(fixed).any(|dir| dir.join("mkfs.ext4").is_file());
    if found {
        return Ok(());
    }
    bail!("mkfs.ext4 is missing, and without it no volume can be formatted; install e2fsprogs")
}
