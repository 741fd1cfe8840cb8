//! A directory of directories, and a handle on it that nothing leads out of.
//!
//! Everything goes through the handle that was opened at the start, component by component, and no
//! symbolic link is followed. What is removed is first moved to a trash directory: it is gone for
//! everybody at once, and a removal that was interrupted goes on at the next start. Removal moves
//! nested directories up instead of descending, so that neither their depth nor a change meanwhile
//! leads anywhere, and it stops at mount points.

use std::{
    ffi::CString,
    fmt,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt as _},
    path::{Path, PathBuf},
};

use longshore_files::{fresh_name, names, remove_within};

use rustix::{
    fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags},
    io::{Errno, Result},
};

const TRASH: &str = ".longshore-trash";
/// Directories of this name are what `onDelete: archive` leaves of earlier claims.
pub(super) const ARCHIVED: &str = "archived-";
const DIR: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const WITHIN: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// A path that cannot be that of a directory below a base.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DirectoryError {
    /// It is not a list of plain names.
    #[error("the directory {path:?} {why}")]
    Malformed { path: String, why: &'static str },
    /// It is kept for directories of deleted claims.
    #[error(
        "the directory \"{0}\" begins with \"{ARCHIVED}\", which is kept for directories of deleted claims"
    )]
    Archived(Directory),
}

/// The path of a directory below a base: plain names only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directory(Vec<String>);

impl Directory {
    /// Reads a path such as `team/data`.
    ///
    /// # Errors
    /// Says why this path is not a plain one below the base.
    pub(crate) fn new(path: &str) -> std::result::Result<Self, DirectoryError> {
        let wrong = |why| Err(DirectoryError::Malformed { path: path.to_owned(), why });
        if path.is_empty() {
            return wrong("has no name");
        }
        if path.starts_with('/') {
            return wrong("begins with /");
        }
        let names: Vec<String> = path.trim_end_matches('/').split('/').map(str::to_owned).collect();
        for name in &names {
            match name.as_str() {
                "" => return wrong("has an empty part"),
                "." | ".." => return wrong("has . or .. in it"),
                TRASH => return wrong("is where removed directories go"),
                name if name.len() > 255 => return wrong("has a part of more than 255 bytes"),
                name if name.contains(char::is_control) => {
                    return wrong("has a control character in it");
                }
                _ => {}
            }
        }
        Ok(Self(names))
    }

    /// Refuses names that archived directories have: a claim that could choose one would read what
    /// another tenant's claim left.
    ///
    /// # Errors
    /// The first part begins like that of an archived directory.
    pub(super) fn not_archived(self) -> std::result::Result<Self, DirectoryError> {
        match self.0.first().is_some_and(|first| first.starts_with(ARCHIVED)) {
            true => Err(DirectoryError::Archived(self)),
            false => Ok(self),
        }
    }

    /// The last part.
    #[must_use]
    pub(crate) fn name(&self) -> &str {
        self.0.last().map_or("", String::as_str)
    }

    fn parents(&self) -> &[String] {
        &self.0[..self.0.len() - 1]
    }
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("/"))
    }
}

/// Why something could not be done with a directory.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}: {why}", .path.display())]
pub(crate) struct BaseError {
    what: &'static str,
    path: PathBuf,
    why: String,
}

/// The directory that all others are in.
#[derive(Debug)]
pub(crate) struct Base {
    path: PathBuf,
    handle: OwnedFd,
}

impl Base {
    /// Opens the directory at an absolute path; makes it, for its owner only, if it is not there.
    ///
    /// # Errors
    /// When it is not a directory or cannot be opened.
    pub(crate) fn make(path: &Path) -> std::result::Result<Self, BaseError> {
        let failed = |error: std::io::Error| fault("make", path, error);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        Self::open(path)
    }

    /// Opens the directory at an absolute path.
    ///
    /// # Errors
    /// When it is not a directory or cannot be opened.
    pub(crate) fn open(path: &Path) -> std::result::Result<Self, BaseError> {
        let failed = |error: std::io::Error| fault("open", path, error);
        // The way to the base is the operator's; what is below it is not.
        let real = path.canonicalize().map_err(failed)?;
        let handle = fs::open(&real, DIR, Mode::empty()).map_err(|error| failed(error.into()))?;
        Ok(Self { path: path.to_owned(), handle })
    }

    /// Where a directory is, for those who mount it.
    #[must_use]
    pub(crate) fn path_of(&self, directory: &Directory) -> PathBuf {
        self.path.join(directory.to_string())
    }

    /// Makes a directory and those on the way to it; one that is there already is fine.
    ///
    /// # Errors
    /// Also when something on the way is not a directory, for instance a symbolic link.
    pub(crate) fn create(&self, directory: &Directory) -> std::result::Result<(), BaseError> {
        let make = || -> Result<()> {
            let mut at = self.handle.try_clone().map_err(|_| Errno::MFILE)?;
            for name in &directory.0 {
                match fs::mkdirat(&at, name.as_str(), Mode::from_raw_mode(0o777)) {
                    // On disk before the API hears of it.
                    Ok(()) => fs::fsync(&at)?,
                    Err(Errno::EXIST) => {}
                    Err(error) => return Err(error),
                }
                at = enter(&at, name, WITHIN)?;
            }
            Ok(())
        };
        make().map_err(|error| self.fault("make", directory, error))
    }

    /// Gives a directory another name below the base. False when it was not there.
    ///
    /// # Errors
    /// When it cannot be renamed, or the new name is taken.
    pub(crate) fn rename(
        &self,
        directory: &Directory,
        to: &Directory,
    ) -> std::result::Result<bool, BaseError> {
        let rename = || -> Result<bool> {
            let Some(from) = self.parent_of(directory)? else { return Ok(false) };
            if kind_of(&from, directory.name())?.is_none() {
                return Ok(false);
            }
            let Some(into) = self.parent_of(to)? else { return Err(Errno::NOENT) };
            // Not with a flag of rename, which network file systems do not have.
            if kind_of(&into, to.name())?.is_some() {
                return Err(Errno::EXIST);
            }
            fs::renameat(&from, directory.name(), &into, to.name())?;
            Ok(true)
        };
        rename().map_err(|error| self.fault("rename", directory, error))
    }

    /// Whether there is something of this name.
    ///
    /// # Errors
    /// When the path cannot be examined.
    pub(crate) fn has(&self, directory: &Directory) -> std::result::Result<bool, BaseError> {
        let look = || match self.parent_of(directory)? {
            Some(parent) => Ok(kind_of(&parent, directory.name())?.is_some()),
            None => Ok(false),
        };
        look().map_err(|error| self.fault("look for", directory, error))
    }

    /// Removes a directory with all that is in it; one that is gone already is fine.
    ///
    /// # Errors
    /// When it is not a directory, or something in it cannot be removed.
    pub(crate) fn remove(&self, directory: &Directory) -> std::result::Result<(), BaseError> {
        let remove = || -> Result<()> {
            let Some(parent) = self.parent_of(directory)? else { return Ok(()) };
            let trash = self.trash()?;
            let moved = CString::new(fresh_name()).map_err(|_| Errno::INVAL)?;
            match kind_of(&parent, directory.name())? {
                None => return Ok(()),
                Some(FileType::Directory) => {}
                Some(_) => return Err(Errno::NOTDIR),
            }
            fs::renameat(&parent, directory.name(), &trash, &*moved)?;
            remove_within(&trash, &moved)
        };
        remove().map_err(|error| self.fault("remove", directory, error))
    }

    /// Removes what earlier removals left in the trash.
    ///
    /// # Errors
    /// When something in it cannot be removed; the rest stays for the next time.
    pub(crate) fn sweep(&self) -> std::result::Result<(), BaseError> {
        let sweep = || -> Result<()> {
            let trash = match enter(&self.handle, TRASH, WITHIN) {
                Err(Errno::NOENT) => return Ok(()),
                other => other?,
            };
            for name in names(&trash)?.collect::<Result<Vec<_>>>()? {
                remove_within(&trash, &name)?;
            }
            Ok(())
        };
        sweep().map_err(|error| fault("empty", &self.path.join(TRASH), error.into()))
    }

    fn trash(&self) -> Result<OwnedFd> {
        match fs::mkdirat(&self.handle, TRASH, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => enter(&self.handle, TRASH, WITHIN),
            Err(error) => Err(error),
        }
    }

    /// The directory that another one is in; none when it is not there.
    fn parent_of(&self, directory: &Directory) -> Result<Option<OwnedFd>> {
        let mut at = self.handle.try_clone().map_err(|_| Errno::MFILE)?;
        for name in directory.parents() {
            at = match enter(&at, name, WITHIN) {
                Err(Errno::NOENT) => return Ok(None),
                other => other?,
            };
        }
        Ok(Some(at))
    }

    fn fault(&self, what: &'static str, directory: &Directory, error: Errno) -> BaseError {
        fault(what, &self.path_of(directory), error.into())
    }
}

fn fault(what: &'static str, path: &Path, error: std::io::Error) -> BaseError {
    let why = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOTDIR | Errno::LOOP) => {
            "a part of it is not a directory (symbolic links are not followed)".to_owned()
        }
        Some(Errno::BUSY | Errno::XDEV) => format!("something is mounted on or in it ({error})"),
        _ => error.to_string(),
    };
    BaseError { what, path: path.to_owned(), why }
}

fn enter(at: &OwnedFd, name: &str, how: ResolveFlags) -> Result<OwnedFd> {
    fs::openat2(at, name, DIR, Mode::empty(), how)
}

fn kind_of(parent: &OwnedFd, name: &str) -> Result<Option<FileType>> {
    match fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[path = "base_tests.rs"]
mod tests;
