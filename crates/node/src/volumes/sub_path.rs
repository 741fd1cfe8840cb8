//! `subPath`: a part of a volume, bound where the volume's owner cannot swap it for a link.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use longshore_core::stage::paths::{NodePaths, escape};
use longshore_files::mounts::is_mount_point;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fchmod, fstat, mkdirat, openat, openat2};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};

use super::files;

/// Binds `volume`/`part` to its place below the pod's directory and returns that place.
pub(crate) fn bind(volume: &Path, part: &str, place: &Path) -> io::Result<PathBuf> {
    if is_mount_point(place)? {
        return Ok(place.to_owned());
    }
    let source = open_inside(volume, part)?;
    let is_dir = rustix::fs::FileType::from_raw_mode(fstat(&source)?.st_mode).is_dir();
    if is_dir {
        files::make_dir(place)?;
    } else {
        files::make_dir(place.parent().unwrap_or(place))?;
        fs::write(place, "")?;
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(source.as_fd(), "", flags)?;
    move_mount(tree.as_fd(), "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(place.to_owned())
}

/// Opens the part without ever leaving the volume, making missing directories on the way.
fn open_inside(volume: &Path, part: &str) -> io::Result<OwnedFd> {
    let root =
        openat(CWD, volume, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // As kubelet: a missing directory gets the mode of the volume's root.
    let mode = Mode::from_raw_mode(fstat(&root)?.st_mode & 0o2777);
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let mut current = PathBuf::new();
    let mut last = rustix::io::dup(&root)?;
    for component in Path::new(part).components() {
        let Component::Normal(name) = component else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("subPath {part:?} must be plain and relative"),
            ));
        };
        current.push(name);
        let open =
            || openat2(&root, &current, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), inside);
        last = match open() {
            Err(rustix::io::Errno::NOENT) => {
                mkdirat(&last, name, mode)?;
                // The umask cut it. By descriptor: the name may be another's by now.
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                fchmod(openat2(&root, &current, flags, Mode::empty(), inside)?, mode)?;
                open()?
            }
            other => other?,
        };
    }
    Ok(last)
}

/// Removes a pod's binds of one volume.
pub(crate) fn remove(paths: &NodePaths, uid: &str, spec_name: &str) -> io::Result<()> {
    let dir = paths.pod(uid).join("volume-subpaths").join(escape(spec_name));
    if spec_name.is_empty() || !dir.exists() {
        return Ok(());
    }
    for container in fs::read_dir(&dir)? {
        let container = container?.path();
        for place in fs::read_dir(&container)? {
            let place = place?.path();
            if is_mount_point(&place)? {
                unmount(&place, UnmountFlags::NOFOLLOW)?;
            }
            if place.is_dir() { fs::remove_dir(&place)? } else { fs::remove_file(&place)? }
        }
        fs::remove_dir(&container)?;
    }
    fs::remove_dir(&dir)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A pod that is not root writes into a new part of a volume that its fsGroup may write.
    #[test]
    fn missing_directories_get_the_mode_of_the_volumes_root() {
        let volume = tempfile::tempdir().expect("temporary directory");
        let mode = |path: &str| {
            let found = fs::metadata(volume.path().join(path)).expect("made");
            found.permissions().mode() & 0o7777
        };
        for wanted in [0o2775, 0o777, 0o700] {
            let root = fs::Permissions::from_mode(wanted);
            fs::set_permissions(volume.path(), root).expect("set");
            let part = format!("for-{wanted:o}/inner");
            open_inside(volume.path(), &part).expect("made");
            assert_eq!((mode(&format!("for-{wanted:o}")), mode(&part)), (wanted, wanted));
        }
        open_inside(volume.path(), "for-777/inner").expect("there already");
        assert_eq!(mode("for-777/inner"), 0o777, "what is there keeps its mode");
    }
}
