//! Volumes in memory: scratch space with `medium: Memory`, and secrets and tokens, which must not reach a disk.

use std::ffi::CString;
use std::io;
use std::path::Path;

use longshore_files::mounts::{is_mount_point, mounts_below};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Mounts a filesystem in memory on a directory, unless one is there. `bytes` limits it; without, the
/// kernel does, to half of the machine's memory.
pub(super) fn mount_memory(dir: &Path, mode: u32, bytes: Option<u64>) -> io::Result<()> {
    if is_mount_point(dir)? {
        return Ok(());
    }
    let size = bytes.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
    let options = CString::new(format!("mode={mode:04o}{size}"))?;
    Ok(mount("longshore", dir, "tmpfs", MountFlags::empty(), options.as_c_str())?)
}

/// Unmounts what [`mount_memory`] mounted below a pod's directory. Nothing runs in the pod any more.
pub(crate) fn unmount_memory(pod_dir: &Path) -> io::Result<()> {
    let volumes = pod_dir.join("volumes");
    let ours = ["empty-dir", "secret", "projected"];
    let ours = ours.map(|plugin| volumes.join(format!("kubernetes.io~{plugin}")));
    for point in mounts_below(&volumes)? {
        if point.parent().is_some_and(|parent| ours.iter().any(|dir| dir == parent)) {
            unmount(&point, UnmountFlags::NOFOLLOW)?;
        }
    }
    Ok(())
}
