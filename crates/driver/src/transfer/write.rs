//! The writing half.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt as _;

use sha2::{Digest as _, Sha256};

use super::{FORM, MAGIC, PART_BYTES, TransferError, io};
use crate::copy::data_of;
use crate::pool::snapshots::SnapshotRecord;

/// Counts and sums what passes.
struct Summed<'a, W> {
    out: &'a mut W,
    sum: Sha256,
    bytes: u64,
}

impl<W: Write> Summed<'_, W> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.sum.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(io("write it"))
    }

    fn sum(&self) -> String {
        hex::encode(self.sum.clone().finalize())
    }
}

/// Writes a snapshot; returns how many bytes that were.
pub(super) fn write(
    record: &SnapshotRecord,
    image: &File,
    out: &mut impl Write,
) -> Result<u64, TransferError> {
    let mut out = Summed { out, sum: Sha256::new(), bytes: 0 };
    // In the pool that it goes to it shares nothing, and belongs to no group.
    let record = SnapshotRecord { shares: false, group: None, ..record.clone() };
    let text = serde_json::to_string(&record).expect("a record holds only plain data");
    out.put(format!("{MAGIC}{FORM}\n{text}\n").as_bytes())?;
    let sum = out.sum();
    out.put(format!("sum {sum}\n").as_bytes())?;
    let mut buffer = vec![0; PART_BYTES];
    for range in data_of(image) {
        let (mut at, end) = range?;
        while at < end {
            let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(PART_BYTES);
            let part = &mut buffer[..most];
            image.read_exact_at(part, at).map_err(io("read the snapshot's image"))?;
            if part.iter().any(|byte| *byte != 0) {
                out.put(format!("data {at} {most}\n").as_bytes())?;
                out.put(part)?;
            }
            at += most as u64;
        }
    }
    let sum = out.sum();
    out.put(format!("end {sum}\n").as_bytes())?;
    out.out.flush().map_err(io("write it"))?;
    Ok(out.bytes)
}
