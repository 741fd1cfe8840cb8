//! Walks a directory tree whose owner may change it meanwhile.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, chmod, chownat, fstat,
    openat, openat2,
};
use rustix::io::Errno;

/// A directory tree on one filesystem, held by a descriptor of its root.
///
/// Every directory is opened again from the root with `openat2` below it: no link is followed and
/// no mount point is crossed, wherever a directory has been moved. Two descriptors are open at a
/// time, however deep the tree is; names deeper than `PATH_MAX` are an error, as for any path.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
}

/// One file of a tree, held by a descriptor: what is asked and changed is this very inode.
#[derive(Debug)]
pub struct Entry {
    file: OwnedFd,
    stat: Stat,
}

impl Tree {
    /// Opens the root, which may not be a link itself.
    ///
    /// # Errors
    /// The root is not a directory, or cannot be opened.
    pub fn open(root: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self { root: openat(CWD, root, flags, Mode::empty())? })
    }

    /// The root itself.
    ///
    /// # Errors
    /// The root cannot be looked at.
    pub fn root(&self) -> io::Result<Entry> {
        Entry::of(rustix::io::dup(&self.root)?)
    }

    /// Shows every file and directory below the root to `visit`, parents before their children.
    ///
    /// What vanishes meanwhile is passed over; so is what lies on another filesystem.
    ///
    /// # Errors
    /// A directory cannot be read, or `visit` failed.
    pub fn each(&self, mut visit: impl FnMut(&Path, &Entry) -> io::Result<()>) -> io::Result<()> {
        let mut pending = vec![PathBuf::new()];
        while let Some(relative) = pending.pop() {
            let Some(dir) = self.dir(&relative)? else { continue };
            for name in names(&dir)? {
                let name = name?;
                let Some(entry) = open_entry(&dir, &name)? else { continue };
                let path = relative.join(OsStr::from_bytes(name.as_bytes()));
                visit(&path, &entry)?;
                if entry.is_dir() {
                    pending.push(path);
                }
            }
        }
        Ok(())
    }

    fn dir(&self, relative: &Path) -> io::Result<Option<OwnedFd>> {
        let path = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        present(openat2(&self.root, path, flags, Mode::empty(), WITHIN))
    }
}

/// Resolution stays below the descriptor, on its filesystem, and follows nothing.
pub(crate) const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// The names in a directory, without `.` and `..`.
pub fn names(
    dir: &OwnedFd,
) -> rustix::io::Result<impl Iterator<Item = rustix::io::Result<CString>>> {
    let own = |name: &CStr| !matches!(name.to_bytes(), b"." | b"..");
    let listed = Dir::read_from(dir)?.map(|entry| Ok(entry?.file_name().to_owned()));
    Ok(listed.filter(move |name| name.as_ref().map_or(true, |name| own(name))))
}

/// Opens one name of a directory without following it; `None` when it is gone, or is a mount point.
fn open_entry(dir: &OwnedFd, name: &CStr) -> io::Result<Option<Entry>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // A link is opened as itself, so links in the way are refused by NO_XDEV and BENEATH alone.
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    present(openat2(dir, name, flags, Mode::empty(), within))?.map(Entry::of).transpose()
}

/// What was moved, replaced by a link or covered by a mount meanwhile is not there any more.
fn present(opened: Result<OwnedFd, Errno>) -> io::Result<Option<OwnedFd>> {
    match opened {
        Ok(file) => Ok(Some(file)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
        // A name was moved while the kernel looked: it says "again", and the next walk finds it.
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Entry {
    fn of(file: OwnedFd) -> io::Result<Self> {
        let stat = fstat(&file)?;
        Ok(Self { file, stat })
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode).is_dir()
    }

    /// Whether it is a symbolic link.
    #[must_use]
    pub fn is_link(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode).is_symlink()
    }

    /// Permission bits, set-id bits included.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.stat.st_mode & 0o7777
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> u32 {
        self.stat.st_gid
    }

    /// Bytes on disk.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.stat.st_blocks).unwrap_or(0) * 512
    }

    /// Device and inode number, and how many names the inode has.
    #[must_use]
    pub fn identity(&self) -> (u64, u64, u64) {
        #[allow(clippy::unnecessary_cast, reason = "the width differs between machines")]
        (self.stat.st_dev as u64, self.stat.st_ino as u64, self.stat.st_nlink as u64)
    }

    /// Gives this inode to a group.
    ///
    /// # Errors
    /// The filesystem refuses.
    pub fn set_group(&self, group: u32) -> io::Result<()> {
        let group = Some(Gid::from_raw(group));
        chownat(&self.file, "", None, group, AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    /// Sets the permission bits of this inode; a link has none and is left alone.
    ///
    /// # Errors
    /// The filesystem refuses.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        if self.is_link() {
            return Ok(());
        }
        // The kernel's own name of the descriptor: it leads to the inode, whatever its path is now.
        let name = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        chmod(name, Mode::from_raw_mode(mode))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn seen(root: &Path) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let tree = Tree::open(root).unwrap();
        tree.each(|path, _| {
            seen.insert(path.display().to_string());
            Ok(())
        })
        .unwrap();
        seen
    }

    #[test]
    fn links_are_shown_and_never_followed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "x").unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/file"), "x").unwrap();
        symlink(outside.path(), dir.path().join("a/link")).unwrap();
        symlink("/", dir.path().join("root")).unwrap();
        let expected = ["a", "a/b", "a/b/file", "a/link", "root"].map(str::to_owned);
        assert_eq!(seen(dir.path()), expected.into());
    }

    #[test]
    fn a_root_that_is_a_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        symlink("/etc", dir.path().join("v")).unwrap();
        Tree::open(&dir.path().join("v")).unwrap_err();
    }

    #[test]
    fn the_mode_of_a_link_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::create_dir(dir.path().join("v")).unwrap();
        symlink(&file, dir.path().join("v/link")).unwrap();
        let tree = Tree::open(&dir.path().join("v")).unwrap();
        tree.each(|_, entry| entry.set_mode(0o777)).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    }

    /// Two names that are exchanged all the time: one a file or a directory, one a link to the host.
    fn race(inside: impl Fn(&Path), target: &Path) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("v");
        fs::create_dir(&root).unwrap();
        inside(&root.join("a"));
        symlink(target, root.join("b")).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let at = openat(CWD, &root, OFlags::PATH, Mode::empty()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(&at, "a", &at, "b", flags).unwrap();
                }
            });
            for _ in 0..5_000 {
                let tree = Tree::open(&root).unwrap();
                tree.each(|_, entry| entry.set_mode(entry.mode() | 0o077)).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_file_that_is_exchanged_for_a_link_meanwhile_changes_no_other_file() {
        let host = tempfile::tempdir().unwrap();
        let file = host.path().join("host");
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        race(|path| fs::write(path, "x").unwrap(), &file);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    }

    #[test]
    fn a_directory_that_is_exchanged_for_a_link_meanwhile_opens_no_other_tree() {
        let host = tempfile::tempdir().unwrap();
        let file = host.path().join("inner");
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        race(|path| fs::create_dir(path).unwrap(), host.path());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    }
}
