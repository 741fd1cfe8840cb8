//! Which directories no pod of this machine may see.
//!
//! Pods show the host's root, and other instances of this program keep keys and volumes there too.
//! So every instance writes down what it has to hide, and every instance hides all of it.

use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::shim::protocol::write_atomic;

/// One file per directory. Pods have a `/run` of their own.
const NOTES: &str = "/run/longshore/hidden";

/// Hides a directory or file from the pods of every instance on this machine, until it is gone.
pub fn hide_from_pods(dir: &Path) {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    if let Err(error) = note(Path::new(NOTES), &dir) {
        // Not root, or no /run: the own pods do not see it in any case.
        tracing::debug!(dir = %dir.display(), %error, "directory not noted as hidden");
    }
}

/// All directories to hide: the own ones, and what other instances wrote down.
pub(crate) fn hidden_dirs(own: &[PathBuf]) -> Vec<PathBuf> {
    let mut all = own.to_vec();
    all.extend(noted(Path::new(NOTES)));
    all.sort();
    all.dedup();
    all
}

fn note(notes: &Path, dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(notes)?;
    let name = hex::encode(&Sha256::digest(dir.as_os_str().as_bytes())[..12]);
    write_atomic(&notes.join(name), dir.as_os_str().as_bytes())
}

fn noted(notes: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(notes).into_iter().flatten().flatten().map(|entry| entry.path());
    files.filter(|file| file.extension().is_none()).filter_map(|file| still_there(&file)).collect()
}

/// The directory of a note; the note goes with the directory.
fn still_there(file: &Path) -> Option<PathBuf> {
    let dir = PathBuf::from(std::ffi::OsString::from_vec(fs::read(file).ok()?));
    if dir.exists() {
        return Some(dir);
    }
    // Another instance may have been faster.
    let _ = fs::remove_file(file);
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noted_directory_is_hidden_until_it_is_gone() {
        let home = tempfile::tempdir().unwrap();
        let (notes, dir) = (home.path().join("notes"), home.path().join("data"));
        fs::create_dir(&dir).unwrap();
        note(&notes, &dir).unwrap();
        note(&notes, &dir).unwrap();
        assert_eq!(noted(&notes), vec![dir.clone()]);
        fs::remove_dir(&dir).unwrap();
        assert_eq!(noted(&notes), Vec::<PathBuf>::new());
        assert_eq!(fs::read_dir(&notes).unwrap().count(), 0);
    }
}
