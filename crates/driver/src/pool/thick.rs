//! Thick volumes: their bytes are allocated on disk before CreateVolume returns.

use std::fs::File;

use rustix::fs::{FallocateFlags, IFlags};
use rustix::io::Errno;

use super::record::Record;
use super::{Pool, PoolError, names};
use crate::extents;

/// Room for notes and records of thick volumes, so that these can be used when nothing else is
/// left. Given up when it is needed.
const RESERVE_BYTES: u64 = 4 << 20;

impl Pool {
    /// Keeps some room for notes and records; done before a thick volume is promised anything.
    pub(super) fn keep_reserve(&self) -> Result<(), PoolError> {
        if self.io("look for its reserve", self.dir.has_file(names::RESERVE))? {
            return Ok(());
        }
        let file = self.io("make its reserve", self.dir.create_file(names::RESERVE))?;
        let kept = self.set_aside(&file, RESERVE_BYTES);
        if kept.is_err() {
            self.io("tidy", self.dir.remove(names::RESERVE))?;
        }
        kept
    }

    /// Writes something small, giving the reserve up for it if need be.
    pub(super) fn write_small<T>(
        &self,
        what: &str,
        write: impl Fn() -> std::io::Result<T>,
    ) -> Result<T, PoolError> {
        match write() {
            Err(error)
                if error.kind() == std::io::ErrorKind::StorageFull
                    && self.dir.has_file(names::RESERVE).unwrap_or(false) =>
            {
                self.io("use its reserve", self.dir.remove(names::RESERVE))?;
                self.io("use its reserve", self.dir.sync())?;
                self.io(what, write())
            }
            written => self.io(what, written),
        }
    }

    /// Prepares the fresh, empty image of a thick volume. On btrfs it is exempt from copying on
    /// write: every overwrite of a shared or checksummed block would need new room, which is just
    /// what such a volume was promised never to lack.
    pub(super) fn before_thick(&self, image: &File) -> Result<(), PoolError> {
        let flags = match rustix::fs::ioctl_getflags(image) {
            Ok(flags) => flags,
            Err(Errno::NOTTY | Errno::OPNOTSUPP) => return Ok(()),
            Err(error) => return Err(self.fail("prepare an image", error.into())),
        };
        match rustix::fs::ioctl_setflags(image, flags | IFlags::NOCOW) {
            // Only btrfs knows the mark; elsewhere files are overwritten in place anyway.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL) => Ok(()),
            Err(error) => Err(self.fail("prepare an image", error.into())),
        }
    }

    /// Sets aside every byte of a thick volume that its image lacks; what is written stays.
    pub(super) fn set_aside(&self, image: &File, bytes: u64) -> Result<(), PoolError> {
        // Xfs wants as much room again before it checks whether it needs any.
        if extents::has_all(image, bytes).unwrap_or(false) {
            return Ok(());
        }
        let done = rustix::fs::fallocate(image, FallocateFlags::empty(), 0, bytes);
        self.io("set space aside for an image", done)
    }

    /// As [`Pool::set_aside`], for an existing volume that is to grow. Nothing is kept when there
    /// is no room for all of it.
    pub(super) fn set_more_aside(&self, record: &Record, bytes: u64) -> Result<(), PoolError> {
        let image = self.image(&record.id, rustix::fs::OFlags::RDWR)?;
        let done = self.set_aside(&image, bytes);
        if done.is_err() {
            let length = record.capacity_bytes;
            self.io("size an image", image.set_len(length))?;
        }
        done
    }
}
