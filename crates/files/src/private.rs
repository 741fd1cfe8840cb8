//! Private files: keys, credentials, records that only root may read.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Ends the name of a file that is being written.
const UNFINISHED: &str = ".longshore-new";

/// Writes a file that only its owner may read: the old content or the new, never a part, on disk
/// when this returns.
///
/// The mode is 0600 under any umask. What an interrupted write left is removed.
///
/// # Errors
/// The file cannot be written; the old content stays.
pub fn write_private(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    let unfinished = unfinished(path)?;
    let result = fill(&unfinished, content.as_ref()).and_then(|()| fs::rename(&unfinished, path));
    if let Err(error) = result {
        // The disk may be full of it.
        let _ = fs::remove_file(&unfinished);
        return Err(error);
    }
    sync_dir(path)
}

/// Creates a private file that must not be there yet, or opens the one that is.
///
/// # Errors
/// The file cannot be opened, or its mode cannot be set.
pub fn open_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(NOFOLLOW).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Makes a directory that only its owner may enter, with its parents; one that is there gets that
/// mode.
///
/// # Errors
/// It cannot be made, or is something else.
pub fn make_private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mode = fs::metadata(dir)?.permissions().mode() & 0o7777;
    if mode != 0o700 {
        fs::set_permissions(dir, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

const NOFOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;

fn unfinished(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(UNFINISHED);
    Ok(path.with_file_name(hidden))
}

fn fill(unfinished: &Path, content: &[u8]) -> io::Result<()> {
    match fs::remove_file(unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(unfinished)?;
    // A umask may have taken the owner's own bits.
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(content)?;
    file.sync_all()
}

fn sync_dir(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_private_file_is_replaced_whole_and_leftovers_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(dir.path().join(".key.longshore-new"), "half of an earlier write").unwrap();
        write_private(&path, b"one").unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"one".to_vec(), 0o600));
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        write_private(&path, b"two").unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"two".to_vec(), 0o600));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("taken");
        fs::create_dir_all(path.join("full")).unwrap();
        write_private(&path, b"one").unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        make_private_dir(&path).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o700, 0o700));
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        make_private_dir(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
    }
}
