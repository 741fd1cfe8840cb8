//! Hides the data directory, the pools and single files with secrets wherever a container's root
//! would show them.
//!
//! A directory can be seen by other paths than its own: through a bind mount of it or of a
//! directory above it. So it is judged by what it is, a path inside a filesystem, and covered at
//! every place where the root shows that part of that filesystem.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use longshore_files::mounts::MountTable;
use rustix::mount::{MountFlags, mount, mount_bind};

use crate::protected::{Location, locate, open};

use super::root::{SYSTEM_DIRS, SetupError, Step, is_separate_filesystem};

/// Covers the directories in the container's root, which is not mounted on yet; files with `null`.
pub(super) fn hide(dirs: &[PathBuf], root: &Path, null: &Path) -> Result<(), SetupError> {
    let table = MountTable::read().step("read the mount table")?;
    let mut shown = vec![shown_mount(&table, Path::new("/"))];
    shown.extend(
        SYSTEM_DIRS
            .iter()
            .map(Path::new)
            .filter(|dir| is_separate_filesystem(dir))
            .map(|dir| shown_mount(&table, dir)),
    );
    let shown: Vec<Location> =
        shown.into_iter().collect::<io::Result<_>>().step("look at the root")?;
    for dir in dirs {
        let mut places = vec![dir.clone()];
        if let Ok(mount) = shown_mount(&table, dir) {
            places.extend(shown.iter().filter_map(|one| place_in(one, &mount)));
        }
        places.sort();
        places.dedup();
        for place in places {
            cover(&root.join(place.strip_prefix("/").unwrap_or(&place)), null)
                .step(format!("hide {}", place.display()))?;
        }
    }
    Ok(())
}

pub(super) fn cover(inside: &Path, null: &Path) -> io::Result<()> {
    let Ok(kind) = fs::symlink_metadata(inside) else { return Ok(()) };
    if !kind.is_dir() {
        return Ok(mount_bind(null, inside)?);
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RDONLY;
    Ok(mount("hidden", inside, "tmpfs", flags, c"mode=0755,size=4k")?)
}

/// Where a directory is, and its place inside its filesystem.
fn shown_mount(table: &MountTable, dir: &Path) -> io::Result<Location> {
    locate(table, open(dir)?)
}

/// Where a directory is seen through what is shown of its filesystem.
fn place_in(shown: &Location, dir: &Location) -> Option<PathBuf> {
    if shown.device != dir.device {
        return None;
    }
    let below = dir.root.strip_prefix(&shown.root).ok()?;
    Some(shown.path.join(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(device: (u32, u32), root: &str, path: &str) -> Location {
        Location { device, root: root.into(), path: path.into() }
    }

    #[test]
    fn a_directory_is_found_wherever_its_filesystem_shows_it() {
        let data = on((8, 1), "/srv/real/data", "/data");
        for (shown, place) in [
            (on((8, 1), "/", "/"), Some("/srv/real/data")),
            (on((8, 1), "/srv", "/opt"), Some("/opt/real/data")),
            (on((8, 1), "/srv/real/data", "/home"), Some("/home")),
            (on((8, 1), "/var", "/var"), None),
            (on((8, 2), "/", "/"), None),
        ] {
            assert_eq!(place_in(&shown, &data), place.map(PathBuf::from), "{shown:?}");
        }
    }
}
