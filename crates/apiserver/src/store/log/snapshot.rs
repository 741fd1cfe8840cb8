//! Snapshots: all objects at one revision, in frames, closed by a frame that counts them.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;

use super::super::journal::{SnapshotObject, Unreadable};
use super::super::state::Change;
use super::format::{
    FILE_HEADER, FRAME_HEADER, FileHeader, HeaderError, Kind, RawEntry, put_parts, take_entry,
};
use super::replay::Damage;

/// A frame is closed when it holds so much.
const FRAME_BYTES: usize = 1 << 20;
/// No frame can be larger: one object beyond [`FRAME_BYTES`], and no object is near this.
const LARGEST_FRAME: usize = 1 << 30;

/// Writes a snapshot under its final name; it is on disk when this returns. Gives its size.
pub(super) fn write(dir: &Path, revision: u64, objects: &[SnapshotObject]) -> io::Result<u64> {
    let path = dir.join(super::snapshot_name(revision));
    let temporary = path.with_extension("tmp");
    let written = (|| {
        let mut file = super::private_file(&temporary)?;
        let size = write_to(&mut file, revision, objects)?;
        file.sync_all()?;
        std::fs::rename(&temporary, &path)?;
        super::sync_dir(dir)?;
        Ok(size)
    })();
    if written.is_err() {
        // What is left over is removed at the next start.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn write_to(out: &mut impl Write, revision: u64, objects: &[SnapshotObject]) -> io::Result<u64> {
    let header = FileHeader::new(Kind::Snapshot, revision);
    out.write_all(&header.encode())?;
    let mut size = FILE_HEADER as u64;
    let mut total = 0;
    let mut count = 0;
    let mut frame = vec![0; FRAME_HEADER];
    for (resource, object) in objects {
        let key = [&**resource, &*object.namespace, &*object.name];
        put_parts(&mut frame, Change::Put, object.revision, key, &object.body);
        total += 1;
        count += 1;
        if frame.len() >= FRAME_BYTES {
            size += close_frame(out, &header, &mut frame, total, count)?;
            count = 0;
        }
    }
    if count > 0 {
        size += close_frame(out, &header, &mut frame, total, count)?;
    }
    // The end: without it the snapshot is not whole.
    size += close_frame(out, &header, &mut frame, total, 0)?;
    Ok(size)
}

fn close_frame(
    out: &mut impl Write,
    header: &FileHeader,
    frame: &mut Vec<u8>,
    total: u64,
    count: u32,
) -> io::Result<u64> {
    header.seal(frame, total, count);
    out.write_all(frame)?;
    let written = frame.len() as u64;
    frame.truncate(FRAME_HEADER);
    Ok(written)
}

/// Why a snapshot could not be read.
#[derive(Debug)]
pub(super) enum ReadError {
    Io(io::Error),
    Damaged(Damage),
    Format(u32),
}

fn damaged(offset: usize, why: &str) -> ReadError {
    ReadError::Damaged(Damage { offset, why: why.to_owned() })
}

/// Hands out every object; returns the snapshot's revision and size.
pub(super) fn read(
    path: &Path,
    mut visit: impl FnMut(RawEntry<'_>) -> Result<(), Unreadable>,
) -> Result<(u64, u64), ReadError> {
    let file = File::open(path).map_err(ReadError::Io)?;
    let mut file = BufReader::with_capacity(FRAME_BYTES, file);
    let mut head = [0; FILE_HEADER];
    fill(&mut file, &mut head, 0)?;
    let header = FileHeader::decode(&head, Kind::Snapshot).map_err(|error| match error {
        HeaderError::Damaged(why) => damaged(0, why),
        HeaderError::Format(found) => ReadError::Format(found),
    })?;
    let (mut at, mut total) = (FILE_HEADER, 0);
    let mut payload = Vec::new();
    loop {
        let mut head = [0; FRAME_HEADER];
        fill(&mut file, &mut head, at)?;
        let frame = header
            .frame(&head)
            .filter(|frame| frame.length <= LARGEST_FRAME)
            .ok_or_else(|| damaged(at, "the header of a frame is not what was written"))?;
        payload.resize(frame.length, 0);
        fill(&mut file, &mut payload, at)?;
        if !header.is_intact(&frame, &payload) {
            return Err(damaged(at, "the checksum does not match"));
        }
        total += u64::from(frame.count);
        if frame.last != total {
            return Err(damaged(at, "objects are missing"));
        }
        let mut rest = payload.as_slice();
        for _ in 0..frame.count {
            let entry = take_entry(&mut rest).map_err(|why| damaged(at, &why.to_string()))?;
            if entry.revision > header.base {
                return Err(damaged(at, "an object is newer than the snapshot"));
            }
            visit(entry).map_err(|why| damaged(at, &why.to_string()))?;
        }
        at += FRAME_HEADER + frame.length;
        if frame.count == 0 {
            return Ok((header.base, at as u64));
        }
    }
}

fn fill(file: &mut impl Read, buffer: &mut [u8], at: usize) -> Result<(), ReadError> {
    file.read_exact(buffer).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged(at, "the file is cut short"),
        _ => ReadError::Io(error),
    })
}

/// The resource names of a file are few: each is kept once.
#[derive(Default)]
pub(super) struct Names(Vec<Arc<str>>);

impl Names {
    pub(super) fn get(&mut self, name: &str) -> Arc<str> {
        // Entries of one resource mostly stand together.
        if let Some(at) = self.0.iter().rposition(|known| **known == *name) {
            let last = self.0.len() - 1;
            self.0.swap(at, last);
            return Arc::clone(&self.0[last]);
        }
        let name: Arc<str> = Arc::from(name);
        self.0.push(Arc::clone(&name));
        name
    }
}
