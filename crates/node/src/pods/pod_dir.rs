//! A pod's directory on disk.

use std::io;
use std::path::Path;

use longshore_core::stage::paths::NodePaths;
use longshore_core::words;

/// Removes a pod's directory, but never through a mount.
pub(crate) fn remove_pod_dir(dir: &Path) -> io::Result<()> {
    let uid = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let sub_paths = dir.join("volume-subpaths");
    let paths = NodePaths::new(dir.parent().and_then(Path::parent).unwrap_or(dir));
    for entry in std::fs::read_dir(&sub_paths).into_iter().flatten().flatten() {
        crate::volumes::remove_sub_paths(&paths, &uid, &entry.file_name().to_string_lossy())?;
    }
    super::memory::unmount_memory(dir)?;
    let mounts = longshore_files::mounts::mounts_below(dir)?;
    if !mounts.is_empty() {
        return Err(io::Error::other(format!(
            "still mounted: {}",
            words::list(mounts.iter().map(|path| path.display()))
        )));
    }
    longshore_files::remove_tree(dir)
}
