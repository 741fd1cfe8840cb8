//! Reading a segment again, and telling a torn tail from damage.
//!
//! A frame is written only when all before it is durable, and its receipt only when it is durable itself.
//! So a frame that does not check out was never acknowledged if nothing after it says otherwise: it was
//! being written when the process or the machine stopped, and is cut off. If anything later is there, or its
//! receipt is, acknowledged data was damaged, and nothing may be served.

use super::super::journal::Unreadable;
use super::format::{FILE_HEADER, FRAME_HEADER, FileHeader, RECEIPT, RawEntry, take_entry};
use super::segment::RESERVE;

/// How a segment ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With zeros after the last frame, which ends here.
    Clean(usize),
    /// With the remains of a write that was never acknowledged.
    Torn(usize),
}

/// Where a file is damaged.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Damage {
    pub offset: usize,
    pub why: String,
}

/// Hands out every entry after `last` in order; returns how the segment ends and the newest revision.
pub(super) fn segment(
    header: &FileHeader,
    data: &[u8],
    mut visit: impl FnMut(RawEntry<'_>) -> Result<(), Unreadable>,
) -> Result<(End, u64), Damage> {
    let mut at = FILE_HEADER;
    let mut last = header.base;
    loop {
        let damaged = |why: &str| Damage { offset: at, why: why.to_owned() };
        let rest = data.get(at..).unwrap_or_default();
        if rest.len() < RESERVE {
            return Err(damaged("the file is cut short"));
        }
        let Some(frame) = header.frame(rest) else {
            return unfinished(header, data, at, last).map(|end| (end, last));
        };
        let payload_end = FRAME_HEADER.saturating_add(frame.length);
        let end = payload_end.saturating_add(RECEIPT);
        let Some(payload) = rest.get(FRAME_HEADER..payload_end) else {
            return Err(damaged("the file is cut short"));
        };
        if !header.is_intact(&frame, payload) {
            return unfinished(header, data, at, last).map(|end| (end, last));
        }
        if frame.last != last + u64::from(frame.count) {
            return Err(damaged("a batch of changes does not follow the one before it"));
        }
        let mut payload = payload;
        for _ in 0..frame.count {
            let entry = take_entry(&mut payload).map_err(|why| damaged(&why.to_string()))?;
            last += 1;
            if entry.revision != last {
                return Err(damaged("a change does not follow the one before it"));
            }
            visit(entry).map_err(|why| damaged(&why.to_string()))?;
        }
        at += end;
    }
}

/// Judges what stands after the last good frame.
fn unfinished(header: &FileHeader, data: &[u8], at: usize, last: u64) -> Result<End, Damage> {
    // The frame here is the one in doubt, so its own header is no sign.
    if header.evidence(&data[at + 1..], last).is_some() {
        let why = "the checksum of acknowledged data does not match".to_owned();
        return Err(Damage { offset: at, why });
    }
    let blank = data[at..].iter().all(|byte| *byte == 0);
    Ok(if blank { End::Clean(at) } else { End::Torn(at) })
}
