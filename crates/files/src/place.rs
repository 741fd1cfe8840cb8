//! Files placed in a directory that pods may see.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{
    CWD, Gid, Mode, OFlags, ResolveFlags, Uid, fchmod, fchown, mkdirat, openat, openat2, renameat,
    unlinkat,
};
use rustix::io::Errno;

use crate::walk::WITHIN;

/// A file to be written.
#[derive(Debug, Clone, Copy)]
pub struct NewFile<'a> {
    /// What it holds.
    pub content: &'a [u8],
    /// Permission bits.
    pub mode: u32,
    /// Its owner, if not the writer.
    pub owner: Option<u32>,
    /// Its group, if not the writer's.
    pub group: Option<u32>,
}

const DIR: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const UNFINISHED: &str = ".longshore-new";

/// Writes a file below a directory, with the directories on the way: whole or not at all, and never
/// through a link that was put there.
///
/// # Errors
/// The path is not a plain one, something on the way is a link, or it cannot be written.
pub fn write_below(dir: &Path, path: &Path, file: &NewFile<'_>) -> io::Result<()> {
    let mut at = openat(CWD, dir, DIR, Mode::empty())?;
    let mut parts = path.components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is not a plain one"));
        };
        if parts.peek().is_none() {
            return write_at(&at, name, file);
        }
        match mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        at = openat2(&at, name, DIR, Mode::empty(), WITHIN)?;
    }
    Err(io::ErrorKind::InvalidInput.into())
}

fn write_at(dir: &OwnedFd, name: &std::ffi::OsStr, file: &NewFile<'_>) -> io::Result<()> {
    if same(dir, name, file)? {
        return Ok(());
    }
    match unlinkat(dir, UNFINISHED, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(dir, UNFINISHED, flags, Mode::from_raw_mode(0o600))?;
    let mut opened = std::fs::File::from(opened);
    opened.write_all(file.content)?;
    if file.owner.is_some() || file.group.is_some() {
        fchown(&opened, file.owner.map(Uid::from_raw), file.group.map(Gid::from_raw))?;
    }
    fchmod(&opened, Mode::from_raw_mode(file.mode))?;
    Ok(renameat(dir, UNFINISHED, dir, name)?)
}

/// Whether the file is there as it should be: then its readers are left alone.
pub(crate) fn same(dir: &OwnedFd, name: &std::ffi::OsStr, file: &NewFile<'_>) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let Ok(opened) = openat2(dir, name, flags, Mode::empty(), how) else { return Ok(false) };
    let stat = rustix::fs::fstat(&opened)?;
    let mode = stat.st_mode & 0o7777 == file.mode;
    let group = file.group.is_none_or(|group| group == stat.st_gid)
        && file.owner.is_none_or(|owner| owner == stat.st_uid);
    let size = u64::try_from(stat.st_size).ok() == Some(file.content.len() as u64);
    if !mode || !group || !size || !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return Ok(false);
    }
    let mut content = Vec::new();
    io::Read::read_to_end(&mut std::fs::File::from(opened), &mut content)?;
    Ok(content == file.content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn files_are_written_whole_and_never_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let victim = outside.path().join("victim");
        fs::write(&victim, "host").unwrap();
        let file = NewFile { content: b"new", mode: 0o440, owner: None, group: None };
        write_below(dir.path(), Path::new("a/b/key"), &file).unwrap();
        let path = dir.path().join("a/b/key");
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o440);
        symlink(&victim, dir.path().join("key")).unwrap();
        write_below(dir.path(), Path::new("key"), &file).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"host");
        assert!(!fs::symlink_metadata(dir.path().join("key")).unwrap().is_symlink());
        symlink(outside.path(), dir.path().join("d")).unwrap();
        write_below(dir.path(), Path::new("d/victim"), &file).unwrap_err();
        for bad in ["../victim", "/victim", ""] {
            write_below(dir.path(), Path::new(bad), &file).unwrap_err();
        }
        assert_eq!(fs::read(&victim).unwrap(), b"host");
    }
}
