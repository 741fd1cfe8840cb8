//! What a pool does first: finish or undo whatever a crash cut short.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{OFlags, RenameFlags, SeekFrom, seek};
use rustix::io::Errno;

use super::accounts::Promise;
use super::names::{self, Entry};
use super::{Pool, PoolError, Role};
use crate::id::VolumeId;

impl Pool {
    /// Settles half-done changes as far as `role` allows, and counts the volumes.
    ///
    /// A file is removed only when its name says that this driver made it and that no volume
    /// owns it; an image without any record is left alone, because an administrator may have put it there.
    pub(super) fn settle(&self, role: Role<'_>) -> Result<(), PoolError> {
        let names = self.io("list it", self.dir.names())?;
        for name in &names {
            match names::parse(name) {
                Entry::Deleting(id) if role.controller => self.finish_delete(&id)?,
                Entry::NewRecord(id) if role.controller => self.settle_create(&id)?,
                Entry::Record(id) if role.controller => self.settle_empty(&id)?,
                Entry::Staged(id)
                    if role.exclusive && *name != names::staged(&id, role.node_id) =>
                {
                    // Left under an earlier name of this node.
                    self.io("tidy", self.dir.remove(name))?;
                }
                Entry::Temporary(_) if role.exclusive => self.io("tidy", self.dir.remove(name))?,
                Entry::Formatting(id) if self.may_drop_scratch(&id, role) => {
                    self.io("tidy", self.dir.remove(name))?;
                }
                _ => {}
            }
        }
        self.settle_templates(&names, role)?;
        // A new image is needed by `settle_create`, so images go second.
        for name in &names {
            if let Entry::NewImage(_) = names::parse(name)
                && role.controller
            {
                self.io("tidy", self.dir.remove(name))?;
            }
        }
        self.io("flush it", self.dir.sync())?;
        if role.controller {
            self.settle_snapshots()?;
            self.count()?;
        }
        Ok(())
    }

    /// An image that already has its final name only lacks the commit; anything less is undone.
    fn settle_create(&self, id: &VolumeId) -> Result<(), PoolError> {
        let has = |name: String| self.io("look for leftovers", self.dir.has_file(&name));
        let (record, image) = (has(names::record(id))?, has(names::image(id))?);
        let whole = self.new_record_is_whole(id)?;
        if !record && image && whole {
            let (from, to) = (names::new_record(id), names::record(id));
            return self.io("finish a volume", self.dir.rename(&from, &to, RenameFlags::NOREPLACE));
        }
        self.io("tidy", self.dir.remove(&names::new_record(id)))
    }

    /// An empty record was named but not flushed when the power failed: no caller knows of the
    /// volume, and its image is blank. An image with data in it shows that the record was damaged
    /// instead: then both stay, and the volume is out of service until the record is restored.
    fn settle_empty(&self, id: &VolumeId) -> Result<(), PoolError> {
        let stat = self.io("look at a record", self.dir.stat(&names::record(id)))?;
        if stat.is_none_or(|stat| stat.st_size != 0) {
            return Ok(());
        }
        match self.image(id, OFlags::RDONLY) {
            Ok(image) if self.io("look at an image", is_blank(&image))? => {
                self.io("tidy", self.dir.remove(&names::image(id)))?;
            }
            Err(PoolError::ImageMissing(_)) => {}
            Ok(_) | Err(_) => return Ok(()),
        }
        self.io("tidy", self.dir.remove(&names::record(id)))
    }

    fn new_record_is_whole(&self, id: &VolumeId) -> Result<bool, PoolError> {
        let read = self.dir.read(&names::new_record(id), super::RECORD_LIMIT_BYTES);
        let bytes = self.io("read a record", read)?;
        Ok(bytes.is_some_and(|bytes| super::parse_record(id, &bytes).is_ok()))
    }

    /// A scratch file belongs to whoever stages the volume; on a shared pool that may be another
    /// node, at this very moment.
    fn may_drop_scratch(&self, id: &VolumeId, role: Role<'_>) -> bool {
        role.exclusive || self.is_staged(id, role.node_id).unwrap_or(false)
    }

    fn count(&self) -> Result<(), PoolError> {
        self.accounts.lock().reserved = self.promises()?;
        Ok(())
    }

    /// What each volume and snapshot may occupy, by its record.
    pub(super) fn promises(&self) -> Result<HashMap<String, Promise>, PoolError> {
        let mut promises = HashMap::new();
        for id in self.list()? {
            let promise = match self.read(&id) {
                Ok(Some(record)) => {
                    Promise { shares: record.shares, ..Promise::to_volume(record.capacity_bytes) }
                }
                Ok(None) => continue,
                // Its bytes are still there and still belong to a claim.
                Err(error) => {
                    tracing::error!(pool = %self.name, volume = %id, %error, "unusable volume left alone");
                    let stat = self.io("look at an image", self.dir.stat(&names::image(&id)))?;
                    Promise::to_volume(stat.map_or(0, |stat| stat.st_size.max(0).cast_unsigned()))
                }
            };
            promises.insert(id.into(), promise);
        }
        self.snapshot_promises(&mut promises)?;
        Ok(promises)
    }
}

/// Whether nothing but zeros was ever written to an image.
fn is_blank(image: &File) -> io::Result<bool> {
    let mut buffer = vec![0; 1 << 16];
    let mut at = 0;
    loop {
        at = match seek(image, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        let read = image.read_at(&mut buffer, at)?;
        if read == 0 {
            return Ok(true);
        }
        if buffer[..read].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += read as u64;
    }
}
