//! Directories and metadata files beside mounts.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use longshore_core::stage::paths::{VOL_DATA, VolData};
use longshore_files::mounts::is_mount_point;

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
