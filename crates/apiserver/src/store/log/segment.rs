//! The segment that is being written.
//!
//! Space is taken ahead, as zeros that are on disk before a frame goes there: a commit then overwrites
//! and waits for the disk once, a full disk shows before anything is changed, and a file that is shorter
//! than its frames was cut by another program.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::format::{FILE_HEADER, FRAME_HEADER, FileHeader, Kind, RECEIPT};

/// At least so many zeros stand after the last frame.
pub(super) const RESERVE: usize = 64;
/// The first bytes of a segment, and the least that it grows by.
const SMALLEST_STEP: u64 = 256 << 10;
/// The most that it grows by at once.
const LARGEST_STEP: u64 = 4 << 20;

pub(super) struct Segment {
    pub(super) path: PathBuf,
    file: File,
    pub(super) header: FileHeader,
    /// Where the next frame goes.
    at: u64,
    /// Zeros reach to here.
    size: u64,
    zeros: Vec<u8>,
}

impl Segment {
    /// Makes a new segment that is on disk, with its name, when this returns.
    pub(super) fn create(dir: &Path, base: u64) -> io::Result<Self> {
        let path = dir.join(super::segment_name(base));
        let temporary = path.with_extension("tmp");
        let file = super::private_file(&temporary)?;
        let header = FileHeader::new(Kind::Segment, base);
        let made = (|| {
            file.write_all_at(&header.encode(), 0)?;
            let mut segment =
                Self::resume(path.clone(), file.try_clone()?, header, FILE_HEADER as u64, 0);
            segment.grow(FILE_HEADER as u64 + SMALLEST_STEP)?;
            std::fs::rename(&temporary, &path)?;
            super::sync_dir(dir)?;
            Ok(segment)
        })();
        if made.is_err() {
            // What is left over is removed at the next start.
            let _ = std::fs::remove_file(&temporary);
        }
        made
    }

    /// Goes on with a segment that was read up to `at`.
    pub(super) fn resume(
        path: PathBuf,
        file: File,
        header: FileHeader,
        at: u64,
        size: u64,
    ) -> Self {
        Self { path, file, header, at, size: size.max(at), zeros: Vec::new() }
    }

    /// Bytes of all frames so far.
    pub(super) fn used(&self) -> u64 {
        self.at
    }

    /// Makes one frame durable. `frame` begins with room for the header.
    ///
    /// After an error for want of space the segment is as it was, and may be used again.
    pub(super) fn append(&mut self, frame: &mut [u8], last: u64, count: u32) -> io::Result<()> {
        self.header.seal(frame, last, count);
        let end = self.at + frame.len() as u64;
        let wanted = end + (RECEIPT + RESERVE) as u64;
        if wanted > self.size {
            let step = self.size.clamp(SMALLEST_STEP, LARGEST_STEP);
            // On a disk that is nearly full the last bit counts.
            self.grow(wanted.max(self.size + step)).or_else(|_| self.grow(wanted))?;
        }
        let written = self.file.write_all_at(frame, self.at).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // Some file systems need new room to overwrite, too. A refused frame must not come back.
            let _ = self.file.write_all_at(&[0; FRAME_HEADER], self.at);
            return Err(error);
        }
        // Not waited for, and not missed: it tells a torn frame from one that was damaged later.
        let _ = self.file.write_all_at(&self.header.receipt(last), end);
        self.at = end + RECEIPT as u64;
        Ok(())
    }

    /// Fills the file with zeros up to `size`, on disk when this returns.
    fn grow(&mut self, size: u64) -> io::Result<()> {
        let from = self.size.max(self.at);
        let length = usize::try_from(size - from).unwrap_or(usize::MAX);
        self.zeros.resize(length.min(LARGEST_STEP as usize), 0);
        let mut at = from;
        let mut result = Ok(());
        while at < size && result.is_ok() {
            let part = (size - at).min(self.zeros.len() as u64);
            result = self.file.write_all_at(&self.zeros[..part as usize], at);
            at += part;
        }
        result = result.and_then(|()| self.file.sync_all());
        match result {
            Ok(()) => self.size = size,
            Err(_) => {
                // Gives back what was taken in vain; the zeros that stay otherwise do no harm.
                let _ = self.file.set_len(from);
            }
        }
        self.zeros = Vec::new();
        result
    }
}
