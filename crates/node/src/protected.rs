//! The instance's own directories, and what shows them to a pod.
//!
//! A directory can be seen by other paths than its own: through a bind mount of it, or of a directory
//! above or below it. So it is judged by what it is, a path inside a filesystem, never by its name.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use longshore_files::mounts::{Mount, MountTable};
use rustix::fs::{CWD, Mode, OFlags, openat};

/// Where a file is: in its filesystem, and for this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    pub device: (u32, u32),
    /// The path inside the filesystem.
    pub root: PathBuf,
    pub path: PathBuf,
}

impl From<&Mount> for Location {
    fn from(mount: &Mount) -> Self {
        Self { device: mount.device, root: mount.root.clone(), path: mount.path.clone() }
    }
}

/// How a directory of the host stands to the instance's own ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Relation {
    /// It shows nothing of them.
    Apart,
    /// It is one of them, or lies in one.
    Inside(PathBuf),
    /// They are seen below it, at these relative paths.
    Above(Vec<PathBuf>),
}

/// Opens a path of the host as it is now, links followed, for looking and for binding.
pub(crate) fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Judges an open file or directory of the host.
pub(crate) fn relation(file: impl AsFd, protected: &[PathBuf]) -> io::Result<Relation> {
    let table = MountTable::read()?;
    let shown = locate(&table, file)?;
    let mounts: Vec<Location> = table.mounts.iter().map(Location::from).collect();
    let mut below = Vec::new();
    for dir in protected {
        let Ok(dir) = open(dir).and_then(|opened| locate(&table, opened)) else { continue };
        if is_within(&dir, &shown) {
            return Ok(Relation::Inside(dir.path));
        }
        below.extend(seen_below(&mounts, &shown, &dir));
    }
    below.sort();
    below.dedup();
    Ok(if below.is_empty() { Relation::Apart } else { Relation::Above(below) })
}

/// Why a directory of the instance is not given to a pod.
pub(crate) fn refusal(dir: &Path) -> io::Error {
    let text = format!(
        "it lies in {}, which belongs to this instance and is not given to pods; only a privileged \
         container may have it",
        dir.display()
    );
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Locates an open file.
pub(crate) fn locate(table: &MountTable, file: impl AsFd) -> io::Result<Location> {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))?;
    let mount = table
        .of_file(file)?
        .ok_or_else(|| io::Error::other(format!("{} has no mount", path.display())))?;
    let below = path.strip_prefix(&mount.path).map_err(io::Error::other)?;
    let root =
        if below.as_os_str().is_empty() { mount.root.clone() } else { mount.root.join(below) };
    Ok(Location { device: mount.device, root, path })
}

/// Whether `one` is `dir`, or lies in it.
fn is_within(dir: &Location, one: &Location) -> bool {
    one.device == dir.device && one.root.starts_with(&dir.root)
}

/// Where `dir`, or a part of it, is seen below `shown`, as paths relative to it.
fn seen_below(mounts: &[Location], shown: &Location, dir: &Location) -> Vec<PathBuf> {
    let through = mounts
        .iter()
        .filter(|mount| mount.path != shown.path && mount.path.starts_with(&shown.path))
        .chain([shown]);
    let place = |mount: &Location| {
        let at = mount.path.strip_prefix(&shown.path).ok()?;
        if is_within(dir, mount) {
            // A mount of a part of it.
            return Some(at.to_owned());
        }
        let inside = dir.root.strip_prefix(&mount.root).ok()?;
        (mount.device == dir.device).then(|| at.join(inside))
    };
    // What is mounted inside it goes with it.
    let nested = |path: &PathBuf| shown.path.join(path).starts_with(&dir.path);
    let mut places: Vec<PathBuf> = through.filter_map(place).collect();
    let own = dir.path.strip_prefix(&shown.path).ok().map(Path::to_owned);
    places.retain(|path| own.as_ref() == Some(path) || !nested(path));
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_testing::{Need, need};
    use rustix::mount::{UnmountFlags, mount_bind, unmount};

    fn on(device: (u32, u32), root: &str, path: &str) -> Location {
        Location { device, root: root.into(), path: path.into() }
    }

    #[test]
    fn directories_are_judged_by_their_place_in_their_filesystem() {
        let data = on((8, 1), "/srv/real/data", "/data");
        for (shown, inside, below) in [
            (on((8, 1), "/srv/real/data", "/data"), true, &[][..]),
            (on((8, 1), "/srv/real/data/api", "/elsewhere"), true, &[]),
            (on((8, 1), "/srv/real/database", "/elsewhere"), false, &[]),
            (on((8, 1), "/srv", "/mnt"), false, &["real/data"]),
            (on((8, 1), "/", "/"), false, &["data", "srv/real/data"]),
            (on((8, 2), "/", "/other"), false, &[]),
        ] {
            let table = [on((8, 1), "/", "/"), on((8, 1), "/srv/real/data", "/data")];
            assert_eq!(is_within(&data, &shown), inside, "{shown:?}");
            let mut seen = seen_below(&table, &shown, &data);
            seen.sort();
            let wanted: Vec<PathBuf> = below.iter().map(PathBuf::from).collect();
            if !inside {
                assert_eq!(seen, wanted, "{shown:?}");
            }
        }
    }

    #[test]
    fn a_mount_of_a_part_of_the_data_directory_is_seen_elsewhere_too() {
        let data = on((8, 1), "/data", "/data");
        let table =
            [on((8, 1), "/", "/"), on((8, 1), "/data/api", "/mnt/x"), on((7, 0), "/", "/data/v")];
        let mut seen = seen_below(&table, &table[0], &data);
        seen.sort();
        assert_eq!(seen, ["data", "mnt/x"].map(PathBuf::from));
    }

    #[test]
    fn real_directories_links_and_binds_are_judged() {
        if !need("real_directories_links_and_binds_are_judged", &[Need::Root]) {
            return;
        }
        let dir = tempfile::Builder::new().prefix("longshore-protected").tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let data = top.join("data");
        for name in ["data/api", "apart", "bind"] {
            fs::create_dir_all(top.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(data.join("api"), top.join("link")).unwrap();
        let judge =
            |path: &Path| relation(open(path).unwrap(), std::slice::from_ref(&data)).unwrap();
        let inside = Relation::Inside(data.clone());
        assert_eq!(judge(&data), inside);
        assert_eq!(judge(&top.join("link")), inside);
        assert_eq!(judge(&top.join("apart")), Relation::Apart);
        assert_eq!(judge(&top), Relation::Above(vec!["data".into()]));
        mount_bind(data.join("api"), top.join("bind")).unwrap();
        let found = (judge(&top.join("bind")), judge(&top));
        unmount(top.join("bind"), UnmountFlags::empty()).unwrap();
        assert_eq!(found, (inside, Relation::Above(vec!["bind".into(), "data".into()])));
    }
}
