//! The life of a volume in a pool: made, changed, grown and removed, each committed by one rename.

use std::fs::File;

use rustix::fs::RenameFlags;

use super::accounts::Promise;
use super::record::Record;
use super::{Pool, PoolError, names, render};
use crate::copy::Method;
use crate::fault::Leak;
use crate::id::VolumeId;

impl Pool {
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
            // Leave nothing that a later scan could take for a volume on its way.
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
        // What is flushed needs a name before: btrfs keeps nothing of a file without one.
        let is_blank = record.source.is_none() && record.is_blank();
        let unnamed = is_blank.then(|| self.dir.create_unnamed()).flatten();
        let named;
        let image = match &unnamed {
            Some(image) => image,
            None => {
                let new_image = names::new_image(&record.id);
                named = self.io("make an image", self.dir.create_file(&new_image))?;
                &named
            }
        };
        self.faults.at("create.image-made");
        if record.is_thick() {
            self.keep_reserve()?;
            self.before_thick(image)?;
        }
        let filled = fill(image)?;
        // Not flushed: a blank image that a power failure shortened is stretched when it is used.
        self.io("size an image", image.set_len(record.capacity_bytes))?;
        if record.is_thick() {
            self.set_aside(image, record.capacity_bytes)?;
        }
        if filled.is_some() || !record.is_blank() {
            self.io("flush an image", image.sync_all())?;
        }
        self.faults.at("create.image-filled");
        record.shares = filled == Some(Method::Shared);
        self.commit_volume(record, unnamed.as_ref())?;
        if record.shares {
            let promise = Promise { shares: true, ..Promise::to_volume(record.capacity_bytes) };
            self.set_reserved(record.id.as_str(), promise);
        }
        Ok(())
    }

    /// `unnamed` is the image if it has no name yet.
    fn commit_volume(&self, record: &Record, unnamed: Option<&File>) -> Result<(), PoolError> {
        let id = &record.id;
        let new_record = names::new_record(id);
        let written =
            self.io("write a record", self.dir.write_unflushed(&new_record, &render(record)))?;
        if record.source.is_some() || !record.is_blank() {
            // An empty record is undone only where the image is blank, which this one is not.
            self.io("flush a record", written.sync_all())?;
        }
        self.faults.at("create.record-written");
        let image = names::image(id);
        let named = match unnamed {
            Some(file) => self.dir.give_name(file, &image),
            None => self.dir.rename(&names::new_image(id), &image, RenameFlags::NOREPLACE),
        };
        match named {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(PoolError::InTheWay(id.clone()));
            }
            renamed => self.io("name an image", renamed)?,
        }
        self.faults.at("create.image-named");
        // The commit: from here on the volume exists. Flushing it after naming it costs one
        // journal commit instead of two; a power failure in between leaves an empty record,
        // which no caller knows of and which the next start removes.
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
        // Without an image there is nothing to lock.
        let _lock = match self.lock_image(id) {
            Ok(lock) => Some(lock),
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
    pub(super) fn finish_delete(&self, id: &VolumeId) -> Result<(), PoolError> {
        if !self.io("look for leftovers", self.dir.has_file(&names::deleting(id)))? {
            return Ok(());
        }
        if !self.faults.forgets(Leak::VolumeImage) {
            self.io("remove an image", self.dir.remove(&names::image(id)))?;
        }
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
        let _lock = self.lock_image(id)?;
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
}
