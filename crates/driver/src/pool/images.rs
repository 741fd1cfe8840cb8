//! The image files of volumes: their locks, their state, and filesystems in the making.

use std::fs::File;

use rustix::fs::{FlockOperation, OFlags, RenameFlags};

use super::record::{Content, Record};
use super::{Pool, PoolError, file_id, names, render};
use crate::id::VolumeId;

/// An image file, as it is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageState {
    Missing,
    Has { bytes: u64, allocated_bytes: u64 },
}

impl Pool {
    /// Waits until no other process is changing the volume's record; held until dropped.
    pub fn lock_image(&self, id: &VolumeId) -> Result<File, PoolError> {
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
        let _lock = self.lock_image(id)?;
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
}
