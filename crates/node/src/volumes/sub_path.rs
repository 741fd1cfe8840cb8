//! `subPath`: a part of a volume, bound where the volume's owner cannot swap it for a link.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use longshore_core::stage::paths::{NodePaths, escape};
use longshore_files::mounts::is_mount_point;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};

use super::files;

/// Binds `volume`/`part` to its place below the pod's directory and returns that place.
pub(crate) fn bind(volume: &Path, part: &str, place: &Path) -> io::Result<PathBuf> {
    if is_mount_point(place)? {
        return Ok(place.to_owned());
    }
    let source = open_inside(volume, part)?;
    let is_dir = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&source)?.st_mode).is_dir();
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
                mkdirat(&last, name, Mode::from_raw_mode(0o755))?;
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
