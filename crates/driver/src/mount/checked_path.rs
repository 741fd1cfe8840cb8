//! Paths from outside, made safe to act on.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Why a path is not acted on.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// The text itself is no good.
    #[error("path {path:?} {why}")]
    Bad {
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The directory that should hold it is not there.
    #[error("the parent directory of {0:?} does not exist")]
    NoParent(String),
    #[error("cannot {what} {path:?}: {source}")]
    Io { what: &'static str, path: String, source: std::io::Error },
}

/// A name in an open directory: what is done here is done in that directory, whatever happens to
/// the path meanwhile.
#[derive(Debug)]
pub struct CheckedPath {
    parent: OwnedFd,
    leaf: OsString,
    path: PathBuf,
    given: String,
}

impl CheckedPath {
    /// Resolves the parent of an absolute path. The last part may not exist yet, and is never
    /// followed if it is a link; `..` is not accepted anywhere.
    pub fn resolve(given: &str) -> Result<Self, PathError> {
        let bad = |why| PathError::Bad { path: given.to_owned(), why };
        if given.contains('\0') || given.len() >= 4096 {
            return Err(bad("is not a usable path"));
        }
        let path = Path::new(given);
        if !path.is_absolute() {
            return Err(bad("is not absolute"));
        }
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(bad("contains \"..\""));
        }
        let (Some(parent), Some(leaf)) = (path.parent(), path.file_name()) else {
            return Err(bad("is the root directory"));
        };
        let io = |what| move |source| PathError::Io { what, path: given.to_owned(), source };
        let parent = match parent.canonicalize() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(PathError::NoParent(given.to_owned()));
            }
            resolved => resolved.map_err(io("resolve"))?,
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, &parent, flags, Mode::empty());
        // A link of the kernel's leads wherever a process stands, not where the text says.
        let direct = rustix::fs::openat2(
            CWD,
            path.parent().unwrap_or(path),
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
            rustix::fs::ResolveFlags::NO_MAGICLINKS,
        );
        if matches!(direct, Err(Errno::LOOP)) {
            return Err(bad("leads through a link of the kernel's, such as /proc/self/root"));
        }
        Ok(Self {
            parent: fd.map_err(|e| io("open the parent of")(e.into()))?,
            leaf: leaf.to_owned(),
            path: parent.join(leaf),
            given: given.to_owned(),
        })
    }

    /// The path with its parent resolved, as the mount table shows it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What stands there; `None` when nothing does. A symbolic link is refused.
    pub fn kind(&self) -> Result<Option<FileType>, PathError> {
        match rustix::fs::statat(&self.parent, &self.leaf, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::Symlink => {
                    Err(PathError::Bad { path: self.given.clone(), why: "is a symbolic link" })
                }
                kind => Ok(Some(kind)),
            },
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.io("look at", error)),
        }
    }

    /// Opens what stands there, to mount onto it or from it.
    pub fn open(&self) -> Result<OwnedFd, PathError> {
        self.kind()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.parent, &self.leaf, flags, Mode::empty());
        opened.map_err(|error| self.io("open", error))
    }

    /// Refuses a directory that holds something: a mount would hide it.
    pub fn must_be_empty(&self) -> Result<(), PathError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.parent, &self.leaf, flags, Mode::empty());
        let opened = opened.map_err(|error| self.io("open", error))?;
        let names = rustix::fs::Dir::new(opened).map_err(|error| self.io("read", error))?;
        for name in names {
            let name = name.map_err(|error| self.io("read", error))?;
            if !matches!(name.file_name().to_bytes(), b"." | b"..") {
                return Err(self.bad("is not empty: a mount there would hide what is in it"));
            }
        }
        Ok(())
    }

    /// Makes an empty directory, unless there is one. True when it was made now.
    pub fn make_dir(&self) -> Result<bool, PathError> {
        match self.kind()? {
            Some(FileType::Directory) => return Ok(false),
            Some(_) => return Err(self.bad("is not a directory")),
            None => {}
        }
        let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP;
        let made = rustix::fs::mkdirat(&self.parent, &self.leaf, mode);
        made.map(|()| true).map_err(|error| self.io("make", error))
    }

    /// Makes an empty file, unless there is one. True when it was made now.
    pub fn make_file(&self) -> Result<bool, PathError> {
        match self.kind()? {
            Some(FileType::RegularFile) => return Ok(false),
            Some(_) => return Err(self.bad("is not a regular file")),
            None => {}
        }
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.parent, &self.leaf, flags, Mode::RUSR | Mode::WUSR);
        made.map(|_| true).map_err(|error| self.io("make", error))
    }

    /// Removes the empty directory or empty file; one that is not there is as good.
    pub fn remove(&self) -> Result<(), PathError> {
        let flags = match self.kind()? {
            None => return Ok(()),
            Some(FileType::Directory) => AtFlags::REMOVEDIR,
            Some(FileType::RegularFile) if self.is_empty_file()? => AtFlags::empty(),
            Some(_) => return Err(self.bad("holds something that this driver did not put there")),
        };
        match rustix::fs::unlinkat(&self.parent, &self.leaf, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.io("remove", error)),
        }
    }

    fn is_empty_file(&self) -> Result<bool, PathError> {
        let stat = rustix::fs::statat(&self.parent, &self.leaf, AtFlags::SYMLINK_NOFOLLOW);
        stat.map(|stat| stat.st_size == 0).map_err(|error| self.io("look at", error))
    }

    fn bad(&self, why: &'static str) -> PathError {
        PathError::Bad { path: self.given.clone(), why }
    }

    fn io(&self, what: &'static str, error: Errno) -> PathError {
        PathError::Io { what, path: self.given.clone(), source: error.into() }
    }
}

/// Whether two spellings name one place; used for paths remembered as text.
#[must_use]
pub fn same_text(a: &str, b: &str) -> bool {
    let trim = |text: &str| OsStr::from_bytes(text.trim_end_matches('/').as_bytes()).to_owned();
    trim(a) == trim(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_paths_are_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let base = tmp.path().to_str().unwrap();
        let long = format!("/{}", "a".repeat(5000));
        let cases = [
            ("", "not absolute"),
            ("relative/path", "not absolute"),
            ("/", "root directory"),
            ("/a/../etc", "\"..\""),
            ("/..", "\"..\""),
            ("/a\0b", "usable"),
            (&long, "usable"),
            (&format!("{base}/missing/leaf"), "parent directory"),
        ];
        for (path, want) in cases {
            let error = CheckedPath::resolve(path).expect_err(path).to_string();
            assert!(error.contains(want), "{path:?}: {error}");
        }
    }

    #[test]
    fn a_link_at_the_end_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let link = tmp.path().join("link");
        std::os::unix::fs::symlink("/etc", &link).unwrap();
        let place = CheckedPath::resolve(link.to_str().unwrap()).unwrap();
        for error in [place.make_dir(), place.make_file(), place.remove().map(|()| false)] {
            assert!(error.expect_err("refused").to_string().contains("symbolic link"));
        }
        assert!(place.open().is_err());
        assert!(link.symlink_metadata().is_ok());
    }

    #[test]
    fn nothing_is_hidden_and_no_link_of_the_kernel_is_followed() {
        let tmp = tempfile::tempdir().unwrap();
        let at =
            |name: &str| CheckedPath::resolve(tmp.path().join(name).to_str().unwrap()).unwrap();
        std::fs::create_dir_all(tmp.path().join("full/inner")).unwrap();
        std::fs::create_dir(tmp.path().join("empty")).unwrap();
        at("empty").must_be_empty().unwrap();
        let error = at("full").must_be_empty().unwrap_err().to_string();
        assert!(error.contains("not empty"), "{error}");
        for way in ["/proc/self/root", "/proc/self/cwd"] {
            let path = format!("{way}{}/empty", tmp.path().display());
            let error = CheckedPath::resolve(&path).unwrap_err().to_string();
            assert!(error.contains("link of the kernel") || error.contains("parent"), "{error}");
        }
    }

    #[test]
    fn only_empty_things_are_removed() {
        let tmp = tempfile::tempdir().unwrap();
        let at =
            |name: &str| CheckedPath::resolve(tmp.path().join(name).to_str().unwrap()).unwrap();
        assert!(at("dir").make_dir().unwrap());
        assert!(!at("dir").make_dir().unwrap());
        assert!(at("dir").make_file().is_err());
        assert!(at("file").make_file().unwrap());
        assert!(at("file").make_dir().is_err());
        std::fs::write(tmp.path().join("full"), "x").unwrap();
        std::fs::create_dir_all(tmp.path().join("tree/inner")).unwrap();
        assert!(at("full").remove().is_err());
        assert!(at("tree").remove().is_err());
        for name in ["dir", "file", "dir"] {
            at(name).remove().unwrap();
            assert!(!tmp.path().join(name).exists());
        }
        assert!(tmp.path().join("tree/inner").exists());
    }
}
