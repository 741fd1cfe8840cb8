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
pub mod names;
mod notes;
pub mod record;
mod scan;
pub mod snapshots;
mod templates;
mod thick;

use std::fs::File;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags, RenameFlags};

use crate::config::PoolConfig;
use crate::copy::Method;
use crate::fault::Faults;
use crate::id::VolumeId;
use accounts::{Accounts, Promise};
use dir::Dir;
use record::{Content, Record};

/// Records are small; a larger file is not ours to read.
const RECORD_LIMIT_BYTES: u64 = 1 << 20;

/// Why a pool could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The directory or a file in it could not be used.
    #[error("pool {pool}: cannot {what}: {source}")]
    Io {
        /// Name of the pool.
        pool: String,
        /// The step that failed.
        what: String,
        /// Why.
        source: std::io::Error,
    },
    /// Another process owns the pool.
    #[error("pool {pool} ({}) is in use by another driver process", dir.display())]
    Busy {
        /// Name of the pool.
        pool: String,
        /// Its directory.
        dir: PathBuf,
    },
    /// There is no such volume.
    #[error("volume {0} does not exist")]
    NotFound(VolumeId),
    /// The record cannot be understood; nothing is done with its volume.
    #[error("volume {id}: its record is unusable: {why}")]
    BadRecord {
        /// The volume.
        id: VolumeId,
        /// What is wrong.
        why: String,
    },
    /// A snapshot or group that cannot be used; nothing is done with it.
    #[error("{id} is unusable: {why}")]
    BadSnapshot {
        /// The snapshot or group.
        id: String,
        /// What is wrong.
        why: String,
    },
    /// The image of an existing volume is not there.
    #[error("volume {0}: its image file is missing")]
    ImageMissing(VolumeId),
    /// A file that is no volume of ours is in the way.
    #[error("volume {0}: an image file without a record is in the way")]
    InTheWay(VolumeId),
    /// So little is left that those who have volumes need it.
    #[error(
        "pool {pool} is nearly full ({free_bytes} of {total_bytes} bytes are free): it takes no new work until something is deleted or its filesystem grows"
    )]
    NearlyFull {
        /// Name of the pool.
        pool: String,
        /// What is free.
        free_bytes: u64,
        /// Of how much.
        total_bytes: u64,
    },
    /// The pool cannot promise that many bytes.
    #[error("pool {pool} has {allocatable_bytes} bytes left, {wanted_bytes} are needed")]
    Full {
        /// Name of the pool.
        pool: String,
        /// What it could still promise.
        allocatable_bytes: u64,
        /// What was asked for.
        wanted_bytes: u64,
    },
}

/// What a process may do with a pool.
#[derive(Debug, Clone, Copy)]
pub struct Role<'a> {
    /// Creates and deletes volumes; at most one process at a time.
    pub controller: bool,
    /// No other process touches the pool at all (`local` driver with its controller).
    pub alone: bool,
    /// The node this process runs on.
    pub node_id: &'a str,
    /// How often free space may be promised.
    pub overcommit: f64,
    /// What tests do between the steps of a change.
    pub faults: &'a Faults,
}

/// An image file, as it is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageState {
    /// It is not there.
    Missing,
    /// It is there.
    Has {
        /// Its length.
        bytes: u64,
        /// What it occupies.
        allocated_bytes: u64,
    },
}

/// An open pool.
#[derive(Debug)]
pub struct Pool {
    name: String,
    path: PathBuf,
    file_id: (u64, u64),
    dir: Dir,
    limit_bytes: Option<u64>,
    overcommit: f64,
    /// No other process touches the pool.
    alone: bool,
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
        let lock = if role.controller { Some(own(&dir, config, &fail)?) } else { None };
        let mut pool = Self {
            name: config.name.clone(),
            path: path.canonicalize().map_err(|e| fail("resolve", e))?,
            file_id: dir.file_id().map_err(|e| fail("look at", e))?,
            dir,
            limit_bytes: config.limit_bytes,
            overcommit: role.overcommit,
            alone: role.alone,
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

    /// Makes a volume: its image, then its record. Space is set aside before anything else.
    pub fn create(&self, record: &Record) -> Result<(), PoolError> {
        self.create_from(&mut record.clone(), |_| Ok::<_, PoolError>(None))
    }

    /// As [`Pool::create`], with an image that `fill` copies something into. `fill` gets an empty
    /// file and says how it was filled, or that it was not.
    pub fn create_from<E: From<PoolError>>(
        &self,
        record: &mut Record,
        fill: impl FnOnce(&File) -> Result<Option<Method>, E>,
    ) -> Result<(), E> {
        let id = &record.id.clone();
        self.finish_delete(id)?;
        let promise = Promise::to_volume(record.capacity_bytes);
        self.reserve(id.as_str(), promise, record.overcommit())?;
        self.faults.at("create.reserved");
        let made = self.write_volume(record, fill);
        if made.is_err() {
            self.release(id.as_str());
            // Leave nothing that a later look could take for a volume on its way.
            let _ = self.dir.remove(&names::new_record(id));
            let _ = self.dir.remove(&names::new_image(id));
        }
        made
    }

    fn write_volume<E: From<PoolError>>(
        &self,
        record: &mut Record,
        fill: impl FnOnce(&File) -> Result<Option<Method>, E>,
    ) -> Result<(), E> {
        let new_image = names::new_image(&record.id);
        let image = self.io("make an image", self.dir.create_file(&new_image))?;
        self.faults.at("create.image-made");
        if record.is_thick() {
            self.keep_reserve()?;
            self.before_thick(&image)?;
        }
        let filled = fill(&image)?;
        // Not flushed: a blank image that a power failure shortened is stretched when it is used.
        self.io("size an image", image.set_len(record.capacity_bytes))?;
        if record.is_thick() {
            self.set_aside(&image, record.capacity_bytes)?;
        }
        if filled.is_some() || !record.is_blank() {
            self.io("flush an image", image.sync_all())?;
        }
        self.faults.at("create.image-filled");
        record.shares = filled == Some(Method::Shared);
        self.commit_volume(record)?;
        if record.shares {
            let promise = Promise { shares: true, ..Promise::to_volume(record.capacity_bytes) };
            self.set_reserved(record.id.as_str(), promise);
        }
        Ok(())
    }

    fn commit_volume(&self, record: &Record) -> Result<(), PoolError> {
        let id = &record.id;
        let (new_image, new_record) = (names::new_image(id), names::new_record(id));
        let written =
            self.io("write a record", self.dir.write_unflushed(&new_record, &render(record)))?;
        if record.source.is_some() || !record.is_blank() {
            // An empty record is undone only where the image is blank, which this one is not.
            self.io("flush a record", written.sync_all())?;
        }
        self.faults.at("create.record-written");
        match self.dir.rename(&new_image, &names::image(id), RenameFlags::NOREPLACE) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(PoolError::InTheWay(id.clone()));
            }
            renamed => self.io("name an image", renamed)?,
        }
        self.faults.at("create.image-named");
        // The commit: from here on the volume exists. Flushing it after naming it costs one
        // journal commit instead of two; a power failure in between leaves an empty record,
        // which nobody was told about and which the next start removes.
        let named = self.dir.rename(&new_record, &names::record(id), RenameFlags::NOREPLACE);
        if named.is_err() {
            let _ = self.dir.remove(&names::image(id));
        }
        self.io("name a record", named)?;
        self.faults.at("create.record-named");
        self.io("flush a record", written.sync_all())?;
        self.io("flush it", self.dir.sync())
    }

    /// Removes a volume; one that is not there is as good. `check` sees the record as it is on
    /// disk at that moment, and nothing happens when it refuses.
    pub fn delete<E: From<PoolError>>(
        &self,
        id: &VolumeId,
        check: impl FnOnce(&Record) -> Result<(), E>,
    ) -> Result<(), E> {
        // Without an image there is nobody to take turns with.
        let _turn = match self.take_turn(id) {
            Ok(turn) => Some(turn),
            Err(PoolError::ImageMissing(_)) => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(record) = self.read(id)? {
            check(&record)?;
            let (from, to) = (names::record(id), names::deleting(id));
            self.io("retire a record", self.dir.rename(&from, &to, RenameFlags::empty()))?;
            // Durable before the bytes go, or a crash could show a volume without an image.
            self.io("flush it", self.dir.sync())?;
            self.faults.at("delete.retired");
        }
        Ok(self.finish_delete(id)?)
    }

    /// Removes what a committed deletion still has to remove.
    fn finish_delete(&self, id: &VolumeId) -> Result<(), PoolError> {
        if !self.io("look for leftovers", self.dir.has_file(&names::deleting(id)))? {
            return Ok(());
        }
        self.io("remove an image", self.dir.remove(&names::image(id)))?;
        self.faults.at("delete.image-removed");
        self.io("remove an image", self.dir.remove(&names::formatting(id)))?;
        self.io("remove a record", self.dir.remove(&names::temporary(id)))?;
        // Not flushed: what a power failure brings back is marked as deleted all the same.
        self.io("remove a record", self.dir.remove(&names::deleting(id)))?;
        self.release(id.as_str());
        Ok(())
    }

    /// Changes a record. `change` sees what is on disk now; nothing is written when it refuses
    /// or leaves everything as it was. Returns the record as it stands afterwards.
    pub fn update<E: From<PoolError>>(
        &self,
        id: &VolumeId,
        change: impl FnOnce(&mut Record) -> Result<(), E>,
    ) -> Result<Record, E> {
        let _turn = self.take_turn(id)?;
        let before = self.read(id)?.ok_or_else(|| PoolError::NotFound(id.clone()))?;
        let mut after = before.clone();
        change(&mut after)?;
        if after != before {
            let (temporary, name, bytes) =
                (names::temporary(id), names::record(id), render(&after));
            self.write_small("write a record", || self.dir.write_new(&temporary, &bytes))?;
            self.faults.at("record.temporary-written");
            self.io("name a record", self.dir.rename(&temporary, &name, RenameFlags::empty()))?;
            self.faults.at("record.named");
            self.io("flush it", self.dir.sync())?;
        }
        Ok(after)
    }

    /// Gives a volume more room: promised, then written down, then there. A crash after the second
    /// step leaves an image that [`Pool::stretch`] brings up to its record.
    pub fn grow(&self, id: &VolumeId, bytes: u64) -> Result<Record, PoolError> {
        let record = self.read(id)?.ok_or_else(|| PoolError::NotFound(id.clone()))?;
        let before = self.reserve_more(id.as_str(), bytes, record.overcommit())?;
        self.faults.at("expand.reserved");
        let room = if record.is_thick() { self.set_more_aside(&record, bytes) } else { Ok(()) };
        let grown = room.and_then(|()| {
            self.update(id, |record| {
                record.capacity_bytes = record.capacity_bytes.max(bytes);
                Ok::<_, PoolError>(())
            })
        });
        match grown {
            Ok(record) => {
                self.faults.at("expand.recorded");
                self.stretch(&record)?;
                self.faults.at("expand.stretched");
                Ok(record)
            }
            Err(error) => {
                self.set_reserved(id.as_str(), before);
                Err(error)
            }
        }
    }

    /// Waits until no other process is changing the volume's record; held until dropped.
    pub fn take_turn(&self, id: &VolumeId) -> Result<File, PoolError> {
        loop {
            let image = self.image(id, OFlags::RDONLY)?;
            self.io("lock an image", rustix::fs::flock(&image, FlockOperation::LockExclusive))?;
            // A fresh filesystem may have taken the image's place while we waited.
            if self.image_id(id)?
                == file_id(&image).map_err(|e| self.fail("look at an image", e))?
            {
                return Ok(image);
            }
        }
    }

    /// Opens the image of a volume.
    pub fn image(&self, id: &VolumeId, access: OFlags) -> Result<File, PoolError> {
        match self.dir.open_file(&names::image(id), access) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(PoolError::ImageMissing(id.clone()))
            }
            opened => self.io("open an image", opened),
        }
    }

    /// (device, inode) of the image.
    pub fn image_id(&self, id: &VolumeId) -> Result<(u64, u64), PoolError> {
        let stat = self.io("look at an image", self.dir.stat(&names::image(id)))?;
        stat.map(|s| (s.st_dev, s.st_ino)).ok_or_else(|| PoolError::ImageMissing(id.clone()))
    }

    /// How the image of a volume is.
    pub fn image_state(&self, record: &Record) -> Result<ImageState, PoolError> {
        let stat = self.io("look at an image", self.dir.stat(&names::image(&record.id)))?;
        Ok(stat.map_or(ImageState::Missing, |stat| ImageState::Has {
            bytes: stat.st_size.max(0).cast_unsigned(),
            allocated_bytes: stat.st_blocks.max(0).cast_unsigned() * 512,
        }))
    }

    /// What an image occupies now.
    pub fn data_bytes(&self, id: &VolumeId) -> Result<u64, PoolError> {
        self.allocated_bytes(&names::image(id))
    }

    /// Gives an image its full size again, should a power failure have cost it some.
    pub fn stretch(&self, record: &Record) -> Result<(), PoolError> {
        let image = self.image(&record.id, OFlags::RDWR)?;
        let length = self.io("measure an image", image.metadata())?.len();
        if length < record.capacity_bytes {
            self.io("size an image", image.set_len(record.capacity_bytes))?;
        }
        if record.is_thick() {
            self.set_aside(&image, record.capacity_bytes)?;
        }
        Ok(())
    }

    /// A scratch file of the volume's size in which a filesystem is made.
    pub fn scratch(&self, record: &Record) -> Result<File, PoolError> {
        let file =
            self.io("make an image", self.dir.create_file(&names::formatting(&record.id)))?;
        self.io("size an image", file.set_len(record.capacity_bytes))?;
        Ok(file)
    }

    /// Puts the finished scratch file in the place of the volume's blank image, and notes that
    /// there is a filesystem. Both become durable together, the image never after the note.
    pub fn adopt_scratch(&self, id: &VolumeId, scratch: &File) -> Result<(), PoolError> {
        let _turn = self.take_turn(id)?;
        let mut record = self.read(id)?.ok_or_else(|| PoolError::NotFound(id.clone()))?;
        record.content = Content::Filesystem;
        let temporary = names::temporary(id);
        self.io("flush an image", scratch.sync_all())?;
        self.io("write a record", self.dir.write_new(&temporary, &render(&record)))?;
        self.faults.at("stage.scratch-flushed");
        let rename = |from: String, to: String| self.dir.rename(&from, &to, RenameFlags::empty());
        self.io("name an image", rename(names::formatting(id), names::image(id)))?;
        self.faults.at("stage.image-replaced");
        self.io("name a record", rename(temporary, names::record(id)))?;
        self.faults.at("stage.record-replaced");
        self.io("flush it", self.dir.sync())
    }

    /// Throws a scratch file away.
    pub fn drop_scratch(&self, id: &VolumeId) -> Result<(), PoolError> {
        self.io("remove an image", self.dir.remove(&names::formatting(id)))
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
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(PoolError::Busy { pool: config.name.clone(), dir: config.dir.clone() })
        }
        Err(error) => Err(fail("lock", error.into())),
    }
}

fn render(record: &Record) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(record).expect("a record holds only plain data");
    bytes.push(b'\n');
    bytes
}

fn parse_record(id: &VolumeId, bytes: &[u8]) -> Result<Record, PoolError> {
    let bad = |why: String| PoolError::BadRecord { id: id.clone(), why };
    let record: Record = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
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
