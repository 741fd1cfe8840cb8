//! The data directory: one owner at a time, and where everything in it lives.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read as _, Seek as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use longshore_files::{make_private_dir, open_private, write_private};

/// Why a data directory could not be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataDirError {
    /// Another instance holds it.
    #[error(
        "the data directory {dir} is in use by process {holder}; stop that process or choose another --data-dir"
    )]
    Held {
        dir: String,
        /// The process that holds it, as it wrote itself down.
        holder: String,
    },
    /// It cannot be made or opened.
    #[error("cannot {step} the data directory {dir}")]
    Io {
        /// What was tried.
        step: &'static str,
        dir: String,
        source: std::io::Error,
    },
}

/// How long the lock of a process that is gone may outlive it.
const LEFTOVER_PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// A locked data directory. Dropping it gives the lock back.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    // The kernel drops the lock with the descriptor, also after `kill -9`.
    _lock: File,
}

impl DataDir {
    /// Makes the directory if needed and takes its lock.
    pub(crate) fn lock(path: &Path) -> Result<Self, DataDirError> {
        let io =
            |step| move |source| DataDirError::Io { step, dir: path.display().to_string(), source };
        make_dir(path).map_err(io("make"))?;
        let path = path.canonicalize().map_err(io("find"))?;
        let file = path.join("lock");
        let mut lock = open_private(&file).map_err(io("lock"))?;
        if let Some(holder) = take(&mut lock).map_err(io("lock"))? {
            return Err(DataDirError::Held { dir: path.display().to_string(), holder });
        }
        write_holder(&mut lock).map_err(io("lock"))?;
        longshore_node::hide_from_pods(&path);
        Ok(Self { path, _lock: lock })
    }

    /// The directory, absolute.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the API server keeps its store and keys.
    pub(crate) fn api(&self) -> PathBuf {
        self.path.join("api")
    }

    /// The kubeconfig that `up` writes.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.path.join("kubeconfig")
    }

    /// One node's kubelet-style root.
    pub(crate) fn node(&self, node: &str) -> PathBuf {
        self.path.join("nodes").join(node)
    }

    /// One node's own pool.
    pub(crate) fn pool(&self, node: &str) -> PathBuf {
        self.path.join("pool").join(node)
    }
}

/// Writes this process's id over the last holder's. Nothing is freed first: on a full disk it could
/// not be had again.
fn write_holder(lock: &mut File) -> std::io::Result<()> {
    let text = format!("{}\n", std::process::id());
    lock.rewind()?;
    lock.write_all(text.as_bytes())?;
    lock.set_len(text.len() as u64)
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

/// Makes the data directory for its owner only. Of one that is there, others lose the right to write:
/// whoever can rename what is in it can replace the keys.
fn make_dir(path: &Path) -> std::io::Result<()> {
    if !path.is_dir() {
        return make_private_dir(path);
    }
    let mode = fs::metadata(path)?.permissions().mode() & 0o7777;
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        let dir = path.display();
        tracing::warn!(%dir, mode = format!("{mode:o}"), "others could write to the data directory; closed");
        fs::set_permissions(path, fs::Permissions::from_mode(mode & !0o022))?;
    }
    Ok(())
}

/// Writes the kubeconfig unless it says the same already.
///
/// A full disk does not keep the instance from starting for reading: then the old file is overwritten in place.
pub(super) fn write_kubeconfig(path: &Path, text: &str) -> std::io::Result<()> {
    if fs::read(path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    match write_private(path, text) {
        Err(error) if error.kind() == ErrorKind::StorageFull && path.is_file() => {
            let mut file = OpenOptions::new().write(true).open(path)?;
            file.write_all(text.as_bytes())?;
            file.set_len(text.len() as u64)
        }
        other => other,
    }
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

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_data_directory_that_others_may_write_to_is_closed_to_them() {
        let dir = tempfile::Builder::new().prefix("longshore-mode").tempdir().unwrap();
        for (before, after) in [(0o777, 0o755), (0o755, 0o755), (0o770, 0o750), (0o1777, 0o1777)] {
            let path = dir.path().join(format!("{before:o}"));
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(before)).unwrap();
            drop(DataDir::lock(&path).unwrap());
            assert_eq!(mode(&path), after, "{before:o}");
            assert_eq!(mode(&path.join("lock")), 0o600);
        }
    }

    #[test]
    fn a_kubeconfig_that_says_the_same_is_not_written_again() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::Builder::new().prefix("longshore-private").tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let inode = || fs::metadata(&path).unwrap().ino();
        write_kubeconfig(&path, "one").unwrap();
        let first = inode();
        write_kubeconfig(&path, "one").unwrap();
        assert_eq!(inode(), first);
        write_kubeconfig(&path, "two").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("two", 0o600));
    }
}
