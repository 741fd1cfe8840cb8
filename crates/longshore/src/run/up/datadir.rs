//! The data directory: one owner at a time, and where everything in it lives.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Why a data directory could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Somebody else holds it.
    #[error(
        "the data directory {dir} is in use by process {holder}; stop that process or choose another --data-dir"
    )]
    Held {
        /// The directory.
        dir: String,
        /// The process that holds it, as it wrote itself down.
        holder: String,
    },
    /// It cannot be made or opened.
    #[error("cannot {step} the data directory {dir}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// The directory.
        dir: String,
        /// Why not.
        source: std::io::Error,
    },
}

/// How long the lock of a process that is gone may outlive it.
const LEFTOVER_PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// A locked data directory. Dropping it gives the lock back.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    // The kernel drops the lock with the descriptor, also after `kill -9`.
    _lock: File,
}

impl DataDir {
    /// Makes the directory if needed and takes its lock.
    pub fn lock(path: &Path) -> Result<Self, DataDirError> {
        let io =
            |step| move |source| DataDirError::Io { step, dir: path.display().to_string(), source };
        make_private(path).map_err(io("make"))?;
        let path = path.canonicalize().map_err(io("find"))?;
        let file = path.join("lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&file)
            .map_err(io("lock"))?;
        if let Some(holder) = take(&mut lock).map_err(io("lock"))? {
            return Err(DataDirError::Held { dir: path.display().to_string(), holder });
        }
        lock.set_len(0).and_then(|()| lock.rewind()).map_err(io("lock"))?;
        writeln!(lock, "{}", std::process::id()).map_err(io("lock"))?;
        longshore_node::hide_from_pods(&path);
        Ok(Self { path, _lock: lock })
    }

    /// The directory, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the API server keeps its store and keys.
    pub fn api(&self) -> PathBuf {
        self.path.join("api")
    }

    /// The kubeconfig that `up` writes.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path.join("kubeconfig")
    }

    /// One node's kubelet-style root.
    pub fn node(&self, node: &str) -> PathBuf {
        self.path.join("nodes").join(node)
    }

    /// One node's own pool.
    pub fn pool(&self, node: &str) -> PathBuf {
        self.path.join("pool").join(node)
    }
}

/// Takes the lock; `Some` names the living process that has it.
fn take(lock: &mut File) -> std::io::Result<Option<String>> {
    let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    let began = std::time::Instant::now();
    loop {
        match rustix::fs::flock(&*lock, operation) {
            Ok(()) => return Ok(None),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error.into()),
        }
        let mut holder = String::new();
        lock.rewind()?;
        lock.read_to_string(&mut holder)?;
        let holder = holder.trim();
        // A child that a killed holder had just forked keeps the lock until its own exec.
        let dead = !holder.is_empty() && !Path::new("/proc").join(holder).exists();
        if !dead || began.elapsed() > LEFTOVER_PATIENCE {
            let unknown = if holder.is_empty() { "(unknown)" } else { holder };
            return Ok(Some(unknown.to_owned()));
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Makes a directory that only its owner can enter.
pub fn make_private(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a file that only its owner can read, whole or not at all.
pub fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let fresh = path.with_extension("new");
    // A leftover of a crash may have other rights: start from nothing.
    if let Err(error) = fs::remove_file(&fresh)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_is_refused_and_told_who_holds_it() {
        let dir = tempfile::Builder::new().prefix("longshore-lock").tempdir().unwrap();
        let path = dir.path().join("data");
        let first = DataDir::lock(&path).unwrap();
        let text = DataDir::lock(&path).unwrap_err().to_string();
        assert!(text.contains(&std::process::id().to_string()), "{text}");
        drop(first);
        DataDir::lock(&path).unwrap();
    }

    #[test]
    fn private_files_are_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::Builder::new().prefix("longshore-private").tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        for text in ["one", "two"] {
            write_private(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}
