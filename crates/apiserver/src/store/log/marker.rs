//! The name of the newest log, kept beside the store's directory.
//!
//! Without it a store whose only log is missing looks like a new one and would be served empty. The
//! file is written after the log it names is on disk, so a log that is named was there.

use std::io;
use std::path::{Path, PathBuf};

use longshore_files::write_private;

/// What is known of the newest log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Newest {
    /// No log was ever made, or it was made by a version that kept no record.
    Unknown,
    /// The log after this revision was made.
    After(u64),
}

/// The record of one store.
#[derive(Debug)]
pub(super) struct Marker {
    path: PathBuf,
    written: Newest,
}

impl Marker {
    /// Reads the record. One that is damaged says nothing and is written again.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let written = match std::fs::read(path) {
            Ok(content) => decode(&content).map_or(Newest::Unknown, Newest::After),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Newest::Unknown,
            Err(error) => return Err(error),
        };
        Ok(Self { path: path.into(), written })
    }

    pub(super) fn newest(&self) -> Newest {
        self.written
    }

    /// Records that the log after `revision` is on disk.
    pub(super) fn write(&mut self, revision: u64) -> io::Result<()> {
        if self.written == Newest::After(revision) {
            return Ok(());
        }
        write_private(&self.path, encode(revision))?;
        self.written = Newest::After(revision);
        Ok(())
    }
}

fn encode(revision: u64) -> String {
    let text = revision.to_string();
    format!("{text} {:08x}\n", crc32fast::hash(text.as_bytes()))
}

fn decode(content: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(content).ok()?;
    let (revision, _) = text.split_once(' ')?;
    let revision = revision.parse().ok()?;
    (encode(revision) == text).then_some(revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_and_a_damaged_one_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.newest");
        let mut marker = Marker::read(&path).unwrap();
        assert_eq!(marker.newest(), Newest::Unknown);
        marker.write(4711).unwrap();
        assert_eq!(Marker::read(&path).unwrap().newest(), Newest::After(4711));
        let whole = std::fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(Marker::read(&path).unwrap().newest(), Newest::Unknown, "bit {bit}");
        }
    }
}
