//! A pool: a directory in which a volume is an image file and the record beside it.
//!
//! There is no central state. A volume exists exactly while `<id>.json` exists, and each change
//! of that fact is one rename; whatever a crash leaves around it is finished or undone by
//! [`Pool::open`] or by the next call for the same volume (see [`names`] for the stages).
//!
//! One controller process owns a pool (`.lock`). Node processes of a `shared` pool rewrite
//! records too; they and the controller take turns through a lock on the image file.

mod accounts;
pub mod capacity;
pub mod dir;
mod error;
mod images;
mod locking;
pub mod names;
mod notes;
pub mod record;
mod scan;
mod sealed;
pub mod snapshots;
mod templates;
mod thick;
mod volumes;

use std::fs::File;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags};

use crate::config::PoolConfig;
use crate::fault::Faults;
use crate::id::VolumeId;
use accounts::Accounts;
use dir::Dir;
use longshore_files::mounts::MountTable;
use record::Record;

pub use error::PoolError;
pub use images::ImageState;

/// Records are small; a larger file is not ours to read.
const RECORD_LIMIT_BYTES: u64 = 1 << 20;

/// What a process may do with a pool.
#[derive(Debug, Clone, Copy)]
pub struct Role<'a> {
    /// Creates and deletes volumes; at most one process at a time.
    pub controller: bool,
    /// No other process touches the pool at all (`local` driver with its controller).
    pub exclusive: bool,
    /// Processes on other machines may have the pool too (`shared` driver).
    pub elsewhere: bool,
    /// The node this process runs on.
    pub node_id: &'a str,
    /// How often free space may be promised.
    pub overcommit: f64,
    /// What tests do between the steps of a change.
    pub faults: &'a Faults,
}

#[derive(Debug)]
pub struct Pool {
    name: String,
    path: PathBuf,
    file_id: (u64, u64),
    dir: Dir,
    limit_bytes: Option<u64>,
    overcommit: f64,
    /// No other process touches the pool.
    exclusive: bool,
    /// Images can share blocks.
    shares: bool,
    accounts: Mutex<Accounts>,
    faults: Faults,
    /// Held while the template of a shape is made, so that it is made once.
    making_template: Mutex<()>,
    /// Keeps other controllers out for as long as the process lives.
    _lock: Option<File>,
}

impl Pool {
    /// Opens the directory, takes it over if `role` says so, and settles what a crash left.
    pub fn open(config: &PoolConfig, role: Role<'_>) -> Result<Self, PoolError> {
        let name = config.name.clone();
        let fail = |what: &str, source| PoolError::Io {
            pool: name.clone(),
            what: format!("{what} {}", config.dir.display()),
            source,
        };
        let path = std::path::absolute(&config.dir).map_err(|e| fail("use", e))?;
        let dir = Dir::open_private(&path).map_err(|e| fail("open", e))?;
        if role.elsewhere {
            let table = MountTable::read().map_err(|e| fail("find the mount of", e))?;
            let mount = table.of_file(dir.fd()).map_err(|e| fail("find the mount of", e))?;
            locking::check(&config.name, mount)?;
        }
        let lock = if role.controller { Some(own(&dir, config, &fail)?) } else { None };
        let mut pool = Self {
            name: config.name.clone(),
            path: path.canonicalize().map_err(|e| fail("resolve", e))?,
            file_id: dir.file_id().map_err(|e| fail("look at", e))?,
            dir,
            limit_bytes: config.limit_bytes,
            overcommit: role.overcommit,
            exclusive: role.exclusive,
            shares: false,
            accounts: Mutex::default(),
            faults: role.faults.clone(),
            making_template: Mutex::default(),
            _lock: lock,
        };
        pool.settle(role)?;
        if role.controller {
            pool.shares = pool.probe_sharing()?;
        }
        Ok(pool)
    }

    /// Opens a pool that a driver may be using, to read a snapshot or to add one: nothing is settled, and nobody
    /// is kept out.
    pub fn visit(config: &PoolConfig) -> Result<Self, PoolError> {
        let fail = |source| PoolError::Io {
            pool: config.name.clone(),
            what: format!("open {}", config.dir.display()),
            source,
        };
        let dir = Dir::open_private(&config.dir).map_err(fail)?;
        Ok(Self {
            name: config.name.clone(),
            path: config.dir.canonicalize().map_err(fail)?,
            file_id: dir.file_id().map_err(fail)?,
            dir,
            limit_bytes: config.limit_bytes,
            overcommit: 1.0,
            exclusive: false,
            shares: false,
            accounts: Mutex::default(),
            faults: Faults::NONE,
            making_template: Mutex::default(),
            _lock: None,
        })
    }

    /// The name classes choose it by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its directory, resolved.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// (device, inode) of the directory.
    #[must_use]
    pub fn file_id(&self) -> (u64, u64) {
        self.file_id
    }

    /// Whether images can share blocks. Known to the controller, who makes copies.
    #[must_use]
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// The record of a volume; `None` when there is no such volume.
    pub fn read(&self, id: &VolumeId) -> Result<Option<Record>, PoolError> {
        let bytes =
            self.io("read a record", self.dir.read(&names::record(id), RECORD_LIMIT_BYTES))?;
        bytes.map(|bytes| parse_record(id, &bytes)).transpose()
    }

    /// All volumes, in order of their ids.
    pub fn list(&self) -> Result<Vec<VolumeId>, PoolError> {
        let names = self.io("list it", self.dir.names())?;
        let volume = |name: String| match names::parse(&name) {
            names::Entry::Record(id) => Some(id),
            _ => None,
        };
        let mut ids: Vec<_> = names.into_iter().filter_map(volume).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    fn io<T, E: Into<std::io::Error>>(
        &self,
        what: &str,
        result: Result<T, E>,
    ) -> Result<T, PoolError> {
        result.map_err(|error| self.fail(what, error.into()))
    }

    fn fail(&self, what: &str, source: std::io::Error) -> PoolError {
        PoolError::Io { pool: self.name.clone(), what: what.to_owned(), source }
    }
}

/// (device, inode) of an open file.
pub fn file_id(file: &File) -> std::io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn own(
    dir: &Dir,
    config: &PoolConfig,
    fail: &impl Fn(&str, std::io::Error) -> PoolError,
) -> Result<File, PoolError> {
    let file =
        dir.open_file(names::LOCK, OFlags::RDWR | OFlags::CREATE).map_err(|e| fail("lock", e))?;
    for tries in 0.. {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            // A process that was just forked has all files of its parent, and their locks, until it
            // runs its program.
            Err(rustix::io::Errno::WOULDBLOCK) if tries < BUSY_TRIES => {
                std::thread::sleep(BUSY_PAUSE);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(PoolError::Busy { pool: config.name.clone(), dir: config.dir.clone() });
            }
            Err(error) => return Err(fail("lock", error.into())),
        }
    }
    Ok(file)
}

/// How often, and with what pauses, the lock of a pool is tried.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

fn render(record: &Record) -> Vec<u8> {
    sealed::seal(record)
}

fn parse_record(id: &VolumeId, bytes: &[u8]) -> Result<Record, PoolError> {
    let bad = |why: String| PoolError::BadRecord { id: id.clone(), why };
    let record: Record = sealed::unseal(bytes).map_err(|why| bad(why.to_string()))?;
    if record.version > record::VERSION {
        return Err(bad(format!("it has version {}, written by a newer program", record.version)));
    }
    if record.id != *id {
        return Err(bad(format!("it describes {}", record.id)));
    }
    Ok(record)
}

#[cfg(test)]
mod tests;
