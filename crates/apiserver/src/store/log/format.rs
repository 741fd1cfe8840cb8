//! The bytes of log segments and snapshots.
//!
//! ```text
//! file      header (64) | frame | frame | … | zeros
//! header    "LNGSHORE" | format u32 | kind u32 | base revision u64 | salt (16) | zeros | crc u32
//! frame     mark u32 | length u32 | last u64 | count u32 | payload crc u32 | 0 u32 | crc u32
//!           payload | receipt (16, in segments only)
//! receipt   !mark u32 | last u64 | crc u32
//! entry     op u8 | revision u64 | four lengths u32 | resource, namespace, name, body
//! ```
//!
//! Numbers are little-endian. Every checksum starts with the file's random salt, and the mark is a part
//! of it, so that nothing a client stores can look like a frame.

use super::super::state::{Change, Key};

/// Version of the format.
pub(super) const FORMAT: u32 = 1;
/// Bytes before the first frame.
pub(super) const FILE_HEADER: usize = 64;
/// Bytes before a frame's payload.
pub(super) const FRAME_HEADER: usize = 32;
/// Bytes after it: written when the frame is known to be durable.
pub(super) const RECEIPT: usize = 16;
const MAGIC: &[u8; 8] = b"LNGSHORE";
const ENTRY_HEADER: usize = 25;

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Changes, in order.
    Segment = 1,
    /// All objects at one revision.
    Snapshot = 2,
}

/// The first bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub kind: Kind,
    /// Segment: the revision before its first change. Snapshot: its revision.
    pub base: u64,
    pub salt: [u8; 16],
}

/// What is wrong with one entry of a frame.
#[derive(Debug, thiserror::Error)]
pub(super) enum EntryError {
    #[error("an entry is cut short")]
    CutShort,
    #[error("an entry says it is of kind {0}")]
    Kind(u8),
    #[error(transparent)]
    Text(#[from] std::str::Utf8Error),
}

/// Why a header could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderError {
    /// Not what was written.
    Damaged(&'static str),
    /// Written by another version.
    Format(u32),
}

impl FileHeader {
    pub(super) fn new(kind: Kind, base: u64) -> Self {
        let mut salt = [0; 16];
        salt[..8].copy_from_slice(&fastrand::u64(..).to_le_bytes());
        salt[8..].copy_from_slice(&fastrand::u64(..).to_le_bytes());
        // The mark must not be found in the zeros after the last frame.
        salt[0] |= 1;
        salt[1] &= 0xfe;
        Self { kind, base, salt }
    }

    pub(super) fn encode(&self) -> [u8; FILE_HEADER] {
        let mut out = [0; FILE_HEADER];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        out[12..16].copy_from_slice(&(self.kind as u32).to_le_bytes());
        out[16..24].copy_from_slice(&self.base.to_le_bytes());
        out[24..40].copy_from_slice(&self.salt);
        let sum = crc32fast::hash(&out[..60]);
        out[60..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    pub(super) fn decode(data: &[u8], kind: Kind) -> Result<Self, HeaderError> {
        let Some(data) = data.get(..FILE_HEADER) else {
            return Err(HeaderError::Damaged("the file is cut short"));
        };
        if &data[..8] != MAGIC || crc32fast::hash(&data[..60]) != u32_at(data, 60) {
            return Err(HeaderError::Damaged("the file's header is not what was written"));
        }
        let format = u32_at(data, 8);
        if format != FORMAT {
            return Err(HeaderError::Format(format));
        }
        if u32_at(data, 12) != kind as u32 {
            return Err(HeaderError::Damaged("the file is of another kind"));
        }
        let mut salt = [0; 16];
        salt.copy_from_slice(&data[24..40]);
        Ok(Self { kind, base: u64_at(data, 16), salt })
    }

    pub(super) fn mark(&self) -> [u8; 4] {
        [self.salt[0], self.salt[1], self.salt[2], self.salt[3]]
    }

    fn counter_mark(&self) -> [u8; 4] {
        self.mark().map(|byte| !byte)
    }

    fn sum(&self, data: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.salt);
        hasher.update(data);
        hasher.finalize()
    }

    /// Fills in the header of a frame whose payload stands after it in `frame`.
    pub(super) fn seal(&self, frame: &mut [u8], last: u64, count: u32) {
        let (head, payload) = frame.split_at_mut(FRAME_HEADER);
        let length = u32::try_from(payload.len()).expect("batches are far smaller than 4 GiB");
        head[..4].copy_from_slice(&self.mark());
        head[4..8].copy_from_slice(&length.to_le_bytes());
        head[8..16].copy_from_slice(&last.to_le_bytes());
        head[16..20].copy_from_slice(&count.to_le_bytes());
        head[20..24].copy_from_slice(&self.sum(payload).to_le_bytes());
        head[24..28].copy_from_slice(&[0; 4]);
        let sum = self.sum(&head[..28]);
        head[28..].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads a frame's header, if it is one.
    pub(super) fn frame(&self, data: &[u8]) -> Option<FrameHeader> {
        let head = data.get(..FRAME_HEADER)?;
        if head[..4] != self.mark() || self.sum(&head[..28]) != u32_at(head, 28) {
            return None;
        }
        Some(FrameHeader {
            length: usize::try_from(u32_at(head, 4)).ok()?,
            last: u64_at(head, 8),
            count: u32_at(head, 16),
            sum: u32_at(head, 20),
        })
    }

    pub(super) fn is_intact(&self, frame: &FrameHeader, payload: &[u8]) -> bool {
        self.sum(payload) == frame.sum
    }

    /// Says that all up to `last` was durable.
    pub(super) fn receipt(&self, last: u64) -> [u8; RECEIPT] {
        let mut out = [0; RECEIPT];
        out[..4].copy_from_slice(&self.counter_mark());
        out[4..12].copy_from_slice(&last.to_le_bytes());
        let sum = self.sum(&out[..12]);
        out[12..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// The first sign, in these bytes, that something after `revision` was once durable: a receipt for
    /// it, or a frame, which is only ever written when all before it is durable.
    pub(super) fn evidence(&self, data: &[u8], revision: u64) -> Option<usize> {
        let (mark, counter) = (self.mark(), self.counter_mark());
        (0..data.len().saturating_sub(RECEIPT - 1)).find(|&at| {
            let here = &data[at..];
            if here[0] == counter[0] && here[..4] == counter {
                self.sum(&here[..12]) == u32_at(here, 12) && u64_at(here, 4) > revision
            } else if here[0] == mark[0] && here[..4] == mark {
                self.frame(here).is_some_and(|frame| frame.last > revision)
            } else {
                false
            }
        })
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameHeader {
    pub length: usize,
    /// Segment: revision of the last change. Snapshot: number of objects so far.
    pub last: u64,
    pub count: u32,
    sum: u32,
}

/// Appends one entry to a payload.
pub(super) fn put_entry(out: &mut Vec<u8>, change: Change, revision: u64, key: &Key, body: &[u8]) {
    put_parts(out, change, revision, [&key.resource, &key.namespace, &key.name], body);
}

/// Appends one entry given by its parts.
pub(super) fn put_parts(
    out: &mut Vec<u8>,
    change: Change,
    revision: u64,
    key: [&str; 3],
    body: &[u8],
) {
    out.push(match change {
        Change::Put => 1,
        Change::Delete => 2,
    });
    out.extend_from_slice(&revision.to_le_bytes());
    for length in [key[0].len(), key[1].len(), key[2].len(), body.len()] {
        let length = u32::try_from(length).expect("requests are far smaller than 4 GiB");
        out.extend_from_slice(&length.to_le_bytes());
    }
    for part in key {
        out.extend_from_slice(part.as_bytes());
    }
    out.extend_from_slice(body);
}

/// One entry, as it stands in a payload.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RawEntry<'a> {
    pub change: Change,
    pub revision: u64,
    pub resource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub body: &'a [u8],
}

/// Takes the next entry off a payload.
pub(super) fn take_entry<'a>(payload: &mut &'a [u8]) -> Result<RawEntry<'a>, EntryError> {
    let head = payload.get(..ENTRY_HEADER).ok_or(EntryError::CutShort)?;
    let change = match head[0] {
        1 => Change::Put,
        2 => Change::Delete,
        other => return Err(EntryError::Kind(other)),
    };
    let revision = u64_at(head, 1);
    let [resource, namespace, name, body] = [9, 13, 17, 21].map(|at| u32_at(head, at) as usize);
    let mut rest = &payload[ENTRY_HEADER..];
    let mut take = |length: usize| {
        let (part, after) = rest.split_at_checked(length).ok_or(EntryError::CutShort)?;
        rest = after;
        Ok::<_, EntryError>(part)
    };
    let text = |part: &'a [u8]| std::str::from_utf8(part);
    let (resource, namespace, name) =
        (text(take(resource)?)?, text(take(namespace)?)?, text(take(name)?)?);
    let body = take(body)?;
    *payload = rest;
    Ok(RawEntry { change, revision, resource, namespace, name, body })
}

fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

fn u64_at(data: &[u8], at: usize) -> u64 {
    u64::from(u32_at(data, at)) | (u64::from(u32_at(data, at + 4)) << 32)
}
