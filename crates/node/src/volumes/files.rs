//! Directories and metadata files beside mounts.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use longshore_core::stage::paths::{VOL_DATA, VolData};
use longshore_files::mounts::is_mount_point;
use rustix::mount::{UnmountFlags, unmount};

/// The name of `vol_data.json` while it is being written.
pub(crate) const UNFINISHED: &str = ".vol_data.json.new";

/// Makes a directory and its parents, 0750.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(dir)
}

/// Writes `vol_data.json` into `dir`, 0644, whole or not at all.
pub(crate) fn write_vol_data(dir: &Path, data: &VolData) -> io::Result<()> {
    use std::io::Write;
    let temporary = dir.join(UNFINISHED);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .open(&temporary)?;
    file.write_all(data.to_json().as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, dir.join(VOL_DATA))
}

/// Reads `vol_data.json`; `None` when there is none.
pub(crate) fn read_vol_data(dir: &Path) -> io::Result<Option<VolData>> {
    match fs::read_to_string(dir.join(VOL_DATA)) {
        Ok(text) => Ok(Some(VolData::from_json(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a mount's directory, its metadata file and the directory of both.
///
/// Nothing here is recursive: a directory that is not empty, or is a mount point, holds data.
pub(crate) fn clean(target: &Path) -> io::Result<()> {
    if is_mount_point(target)? {
        return Err(io::Error::other(format!("{} is still a mount point", target.display())));
    }
    remove_empty(target)
}

/// As [`clean`], after a driver has said that nothing is mounted at `target`. What a driver that was
/// started anew has forgotten there is unmounted, never lazily.
pub(crate) fn clean_forgotten(target: &Path) -> io::Result<()> {
    unmount_forgotten(target)?;
    remove_empty(target)
}

/// Unmounts what is left at the target of a volume that its driver does not know any more.
pub(crate) fn unmount_forgotten(target: &Path) -> io::Result<()> {
    while is_mount_point(target)? {
        tracing::warn!(target = %target.display(), "unmounting without the driver, which does not know the mount");
        unmount(target, UnmountFlags::NOFOLLOW).map_err(|error| {
            let text = "the driver does not know this mount any more, and it cannot be unmounted";
            io::Error::new(error.kind(), format!("{text}: {error}"))
        })?;
    }
    Ok(())
}

fn remove_empty(target: &Path) -> io::Result<()> {
    let Some(dir) = target.parent() else { return Ok(()) };
    tolerate_absence(fs::remove_dir(target))?;
    tolerate_absence(fs::remove_file(dir.join(VOL_DATA)))?;
    tolerate_absence(fs::remove_dir(dir))
}

pub(crate) fn tolerate_absence(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
