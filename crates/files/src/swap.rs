//! Files of one directory that change at one moment.
//!
//! The layout is the kubelet's: a directory `..<time>` holds the files, the link `..data` points at it, and each name
//! that pods use is a link through `..data`. One rename of `..data` therefore replaces all files.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::place::{NewFile, same, write_below};
use crate::remove::fresh_name;

const DATA: &str = "..data";
const DATA_NEW: &str = "..data_tmp";

/// Gives a directory exactly these files, all at one moment; false when it has them already.
///
/// Only the caller may write to the directory.
///
/// # Errors
/// A path is not a plain one or begins with `..`, or something cannot be written: then the old files stay.
pub fn write_together(dir: &Path, files: &BTreeMap<PathBuf, NewFile<'_>>) -> io::Result<bool> {
    let tops = files.keys().map(|path| top(path)).collect::<io::Result<BTreeSet<_>>>()?;
    let current = fs::read_link(dir.join(DATA)).ok();
    if let Some(current) = &current
        && holds(&dir.join(current), files)?
        && is_linked(dir, &tops)?
    {
        return Ok(false);
    }
    let fresh = format!("..{}", fresh_name());
    let place = dir.join(&fresh);
    fs::create_dir(&place)?;
    let written = fs::set_permissions(&place, fs::Permissions::from_mode(0o755))
        .and_then(|()| files.iter().try_for_each(|(path, file)| write_below(&place, path, file)))
        .and_then(|()| link(dir, Path::new(&fresh), OsStr::new(DATA)));
    if let Err(error) = written {
        let _ = fs::remove_dir_all(&place);
        return Err(error);
    }
    for name in &tops {
        link(dir, &Path::new(DATA).join(name), name)?;
    }
    remove_others(dir, &tops, OsStr::new(&fresh))?;
    Ok(true)
}

/// The first part of a path.
fn top(path: &Path) -> io::Result<&OsStr> {
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    let first = path.iter().next().filter(|first| !first.as_encoded_bytes().starts_with(b".."));
    first.filter(|_| plain).ok_or_else(|| {
        let text = format!("{} is not a plain relative path", path.display());
        io::Error::new(io::ErrorKind::InvalidInput, text)
    })
}

/// Makes `dir/name` a link to `target`, whatever it was before.
fn link(dir: &Path, target: &Path, name: &OsStr) -> io::Result<()> {
    let (place, new) = (dir.join(name), dir.join(DATA_NEW));
    if fs::read_link(&place).is_ok_and(|old| old == target) {
        return Ok(());
    }
    remove(&new)?;
    symlink(target, &new)?;
    if fs::symlink_metadata(&place).is_ok_and(|found| found.is_dir()) {
        fs::remove_dir_all(&place)?;
    }
    fs::rename(&new, &place)
}

fn remove(path: &Path) -> io::Result<()> {
    let gone = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match gone {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn remove_others(dir: &Path, tops: &BTreeSet<&OsStr>, fresh: &OsStr) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        if name != DATA && name != fresh && !tops.contains(name.as_os_str()) {
            remove(&dir.join(name))?;
        }
    }
    Ok(())
}

/// Whether every name leads through `..data`, and no other name is there.
fn is_linked(dir: &Path, tops: &BTreeSet<&OsStr>) -> io::Result<bool> {
    let mut found = 0;
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        if name.as_encoded_bytes().starts_with(b"..") {
            continue;
        }
        let right =
            fs::read_link(dir.join(&name)).is_ok_and(|to| to == Path::new(DATA).join(&name));
        if !right || !tops.contains(name.as_os_str()) {
            return Ok(false);
        }
        found += 1;
    }
    Ok(found == tops.len())
}

/// Whether a directory has exactly these files.
fn holds(dir: &Path, files: &BTreeMap<PathBuf, NewFile<'_>>) -> io::Result<bool> {
    let mut found = BTreeSet::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(below) = dirs.pop() {
        let entries = match fs::read_dir(dir.join(&below)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other?,
        };
        for entry in entries {
            let entry = entry?;
            let path = below.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                dirs.push(path);
            } else {
                found.insert(path);
            }
        }
    }
    if !found.iter().eq(files.keys()) {
        return Ok(false);
    }
    for (path, file) in files {
        let parent = dir.join(path.parent().unwrap_or(Path::new("")));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent: OwnedFd = openat(CWD, &parent, flags, Mode::empty())?;
        if !same(&parent, path.file_name().unwrap_or_default(), file)? {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files<'a>(all: &[(&str, &'a str)]) -> BTreeMap<PathBuf, NewFile<'a>> {
        let file = |content: &'a str| NewFile {
            content: content.as_bytes(),
            mode: 0o644,
            owner: None,
            group: None,
        };
        all.iter().map(|(path, content)| (PathBuf::from(path), file(content))).collect()
    }

    fn names(dir: &Path) -> Vec<String> {
        let all = fs::read_dir(dir).unwrap().map(|one| one.unwrap().file_name());
        let mut all: Vec<String> = all.map(|name| name.to_string_lossy().into_owned()).collect();
        all.retain(|name| !name.starts_with(".."));
        all.sort();
        all
    }

    #[test]
    fn all_files_change_with_one_rename_and_the_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert!(write_together(dir.path(), &files(&[("a", "1"), ("d/e/f", "2")])).unwrap());
        assert_eq!(fs::read_to_string(at("d/e/f")).unwrap(), "2");
        assert_eq!(fs::read_link(at("a")).unwrap(), Path::new("..data/a"));
        let first = fs::read_link(at("..data")).unwrap();
        // A reader that has the directory open sees the old files until it looks again.
        let old = at(first.to_str().unwrap());
        assert!(!write_together(dir.path(), &files(&[("a", "1"), ("d/e/f", "2")])).unwrap());
        assert_eq!(fs::read_link(at("..data")).unwrap(), first);
        assert!(write_together(dir.path(), &files(&[("a", "3"), ("b", "4")])).unwrap());
        assert_eq!(names(dir.path()), ["a", "b"]);
        assert_eq!(fs::read_to_string(at("a")).unwrap(), "3");
        assert!(!old.exists());
    }

    #[test]
    fn plain_files_of_an_earlier_version_become_links() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "old").unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("d/f"), "old").unwrap();
        fs::create_dir(dir.path().join("..left")).unwrap();
        write_together(dir.path(), &files(&[("a", "1"), ("d/f", "2")])).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("d/f")).unwrap(), "2");
        assert!(fs::symlink_metadata(dir.path().join("d")).unwrap().is_symlink());
        assert!(!dir.path().join("..left").exists());
    }

    #[test]
    fn bad_paths_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        write_together(dir.path(), &files(&[("a", "1")])).unwrap();
        for bad in ["..x", "../x", "/x", "a/../b", ""] {
            write_together(dir.path(), &files(&[("b", "2"), (bad, "3")])).unwrap_err();
        }
        // A file and a directory of the same name cannot both be.
        write_together(dir.path(), &files(&[("n", "2"), ("n/x", "3")])).unwrap_err();
        assert_eq!(names(dir.path()), ["a"]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_changed_mode_counts_as_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let mut all = files(&[("a", "1")]);
        write_together(dir.path(), &all).unwrap();
        all.values_mut().for_each(|file| file.mode = 0o600);
        assert!(write_together(dir.path(), &all).unwrap());
        let mode = fs::metadata(dir.path().join("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
