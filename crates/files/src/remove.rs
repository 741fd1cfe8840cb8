//! Removes directory trees that others filled.

use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, openat2, renameat, unlinkat};
use rustix::io::{Errno, Result};

use crate::walk::{WITHIN, names};

/// How often a directory that others still write to is emptied again.
const ROUNDS: u32 = 100;
const DIR: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes a directory with everything in it; nothing happens when it is not there.
///
/// Links are removed, never followed. A mount point is an error: what is mounted belongs to another.
///
/// # Errors
/// The root is not a directory, the tree has a mount point in it, or the filesystem refuses.
pub fn remove_tree(root: &Path) -> std::io::Result<()> {
    let top = match openat(CWD, root, DIR, Mode::empty()) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    for _ in 0..ROUNDS {
        for name in names(&top)?.collect::<Result<Vec<_>>>()? {
            remove_within(&top, &name)?;
        }
        match rustix::fs::rmdir(root) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // Filled again meanwhile.
            Err(Errno::NOTEMPTY) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::NOTEMPTY.into())
}

/// Removes one name of a directory and everything below it.
///
/// A nested directory is moved up to `top` and emptied there, so that neither the stack nor the
/// number of descriptors grows with the depth of the tree, and a change meanwhile leads nowhere. What
/// an interruption leaves in `top` is removed like any other name.
///
/// # Errors
/// There is a mount point in it, or the filesystem refuses.
pub fn remove_within(top: &OwnedFd, first: &CStr) -> Result<()> {
    let mut todo = vec![first.to_owned()];
    let mut rounds = 0;
    while let Some(name) = todo.pop() {
        let inside = match openat2(top, &*name, DIR, Mode::empty(), WITHIN) {
            Ok(inside) => inside,
            Err(Errno::NOENT) => continue,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                unlinkat(top, &*name, AtFlags::empty())?;
                continue;
            }
            Err(error) => return Err(error),
        };
        for child in names(&inside)?.collect::<Result<Vec<_>>>()? {
            match unlinkat(&inside, &*child, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR | Errno::PERM) => todo.push(lift(&inside, &child, top)?),
                Err(error) => return Err(error),
            }
        }
        match unlinkat(top, &*name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY) if rounds < ROUNDS => {
                rounds += 1;
                todo.push(name);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Moves a directory up and returns its new name.
fn lift(inside: impl AsFd, child: &CStr, top: &OwnedFd) -> Result<CString> {
    let moved = CString::new(fresh_name()).map_err(|_| Errno::INVAL)?;
    renameat(inside, child, top, &*moved)?;
    Ok(moved)
}

/// A name that no other removal uses.
#[must_use]
pub fn fresh_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{now}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_tree_is_removed_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "x").unwrap();
        let root = dir.path().join("v");
        for path in ["a/b/c", "a/d", "e"] {
            fs::create_dir_all(root.join(path)).unwrap();
            fs::write(root.join(path).join("file"), "x").unwrap();
        }
        symlink(outside.path(), root.join("a/b/link")).unwrap();
        symlink(outside.path().join("kept"), root.join("kept")).unwrap();
        remove_tree(&root).unwrap();
        assert!(!root.exists());
        assert!(outside.path().join("kept").exists());
        remove_tree(&root).unwrap();
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_removed_with_few_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("v");
        fs::create_dir(&root).unwrap();
        let mut at = openat(CWD, &root, OFlags::PATH, Mode::empty()).unwrap();
        for _ in 0..5_000 {
            rustix::fs::mkdirat(&at, "a-rather-long-name", Mode::from_raw_mode(0o755)).unwrap();
            at = openat(&at, "a-rather-long-name", OFlags::PATH, Mode::empty()).unwrap();
        }
        remove_tree(&root).unwrap();
        assert!(!root.exists());
    }

    #[test]
    fn a_file_in_place_of_the_root_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("v"), "x").unwrap();
        remove_tree(&dir.path().join("v")).unwrap_err();
        symlink("/etc", dir.path().join("l")).unwrap();
        remove_tree(&dir.path().join("l")).unwrap_err();
    }
}
