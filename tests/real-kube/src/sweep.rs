//! Removing a cluster's directory, and only that.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context as _, Result, bail};
use longshore_files::mounts::MountTable;
use rustix::mount::{UnmountFlags, unmount};

/// Unmounts what is mounted below `dir` and removes it.
///
/// # Errors
/// When something cannot be removed, or a process still uses the directory.
pub(crate) fn remove(dir: &Path) -> Result<()> {
    unmount_below(dir)?;
    // What a test ran beside the cluster may need a moment to notice that the cluster is gone.
    let mut users = processes_of(dir);
    for _ in 0..40 {
        if users.is_empty() {
            break;
        }
        thread::sleep(Duration::from_millis(50));
        users = processes_of(dir);
    }
    if !users.is_empty() {
        bail!(
            "processes still use {}: {}; end them, then run `cargo xtask real-kube down {}`",
            dir.display(),
            users.join(", "),
            dir.display()
        );
    }
    fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))
}

/// Removing files through a mount would remove what is mounted, so nothing is removed before
/// every mount is gone.
fn unmount_below(dir: &Path) -> Result<()> {
    for _ in 0..20 {
        let mounts = mounts_below(dir)?;
        if mounts.is_empty() {
            return Ok(());
        }
        for mount in mounts.iter().rev() {
            let _ = unmount(mount, UnmountFlags::empty());
        }
        if !mounts_below(dir)?.is_empty() {
            thread::sleep(Duration::from_millis(100));
        }
    }
    let left = mounts_below(dir)?;
    let left: Vec<String> = left.iter().map(|mount| mount.display().to_string()).collect();
    bail!("cannot unmount {}", left.join(", "))
}

/// Mount points at `dir` and below, in the order of mounting.
pub(crate) fn mounts_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let table = MountTable::read().context("cannot read the mounts")?;
    let points = table.mounts.into_iter().map(|mount| mount.path);
    Ok(points.filter(|point| point.starts_with(dir)).collect())
}

/// Processes whose command line names `dir`, apart from this one.
pub(crate) fn processes_of(dir: &Path) -> Vec<String> {
    let text = format!("{}/", dir.display());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if pid != std::process::id() && line.contains(&text) {
            let program = line.split(' ').next().unwrap_or_default();
            found.push(format!("{pid} {program}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_directory_in_use_stays_until_its_users_are_gone() {
        let dir = tempfile::Builder::new().prefix("longshore-rk-sweep-").tempdir().unwrap().keep();
        let name = dir.join("socket");
        let mut command = Command::new("sh");
        command.args(["-c", "read line"]).arg(&name);
        let mut user = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
        // The kernel shows a new program's arguments a moment after `spawn` has returned.
        for _ in 0..1000 {
            if !processes_of(&dir).is_empty() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let error = remove(&dir).unwrap_err().to_string();
        assert!(error.contains(&user.id().to_string()), "{error}");
        assert!(dir.exists());
        // It ends when its input does.
        drop(user.stdin.take());
        user.wait().unwrap();
        remove(&dir).unwrap();
        assert!(!dir.exists());
    }
}
