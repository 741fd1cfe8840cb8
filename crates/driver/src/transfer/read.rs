//! The reading half.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::fs::FileExt as _;

use sha2::{Digest as _, Sha256};

use super::{FORM, LINE_BYTES, MAGIC, PART_BYTES, TransferError, io};
use crate::pool::record::VERSION;
use crate::pool::snapshots::SnapshotRecord;

/// A file whose first lines were read and compared.
pub(super) struct Reader<'a, R: Read> {
    input: BufReader<&'a mut R>,
    /// Of all that was read, the line at hand left out.
    sum: Sha256,
    bytes: u64,
}

/// A line that begins a part.
enum Part {
    Data { at: u64, length: usize },
    End { sum: String },
}

impl<'a, R: Read> Reader<'a, R> {
    /// Reads up to the first part.
    pub(super) fn begin(input: &'a mut R) -> Result<(Self, SnapshotRecord), TransferError> {
        let input = BufReader::with_capacity(256 << 10, input);
        let mut reader = Self { input, sum: Sha256::new(), bytes: 0 };
        let first = match reader.line() {
            Err(TransferError::Short(_) | TransferError::Damaged(_)) => {
                return Err(TransferError::NotOurs);
            }
            line => line?,
        };
        let form = first.strip_prefix(MAGIC).ok_or(TransferError::NotOurs)?;
        if form.parse() != Ok(FORM) {
            return Err(TransferError::Newer(form.to_owned()));
        }
        reader.passed(&first);
        let record = reader.line()?;
        reader.passed(&record);
        let sum = reader.line()?;
        if sum.strip_prefix("sum ") != Some(&*reader.sum()) {
            return Err(TransferError::Damaged("the sum of its record does not fit"));
        }
        reader.passed(&sum);
        let bad = TransferError::Damaged("its record cannot be read");
        let record: SnapshotRecord = serde_json::from_str(&record).map_err(|_| bad)?;
        if record.version > VERSION {
            return Err(TransferError::Newer(format!("{form}, record {}", record.version)));
        }
        Ok((reader, record))
    }

    /// Writes all parts into an empty file of this size, and compares the sum; returns the bytes that were read.
    pub(super) fn fill(&mut self, to: &File, size_bytes: u64) -> Result<u64, TransferError> {
        to.set_len(size_bytes).map_err(io("size the image"))?;
        self.parts(|at, bytes| {
            let end = at.checked_add(bytes.len() as u64).filter(|end| *end <= size_bytes);
            end.ok_or(TransferError::Damaged("it has data beyond the end of its volume"))?;
            to.write_all_at(bytes, at).map_err(io("write the image"))
        })
    }

    /// Compares the sum, and writes nothing.
    pub(super) fn skip_to_end(&mut self) -> Result<u64, TransferError> {
        self.parts(|_, _| Ok(()))
    }

    fn parts(
        &mut self,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), TransferError>,
    ) -> Result<u64, TransferError> {
        let mut buffer = vec![0; PART_BYTES];
        loop {
            let line = self.line()?;
            match part(&line)? {
                Part::Data { at, length } => {
                    self.passed(&line);
                    let bytes = &mut buffer[..length];
                    self.exact(bytes)?;
                    each(at, bytes)?;
                }
                Part::End { sum } if sum != self.sum() => {
                    return Err(TransferError::Damaged("its checksum does not fit"));
                }
                Part::End { .. } => break,
            }
        }
        match self.input.fill_buf().map_err(io("read it"))? {
            [] => Ok(self.bytes),
            _ => Err(TransferError::Damaged("something follows its end")),
        }
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<String, TransferError> {
        let mut line = Vec::new();
        let read = (&mut self.input).take(LINE_BYTES).read_until(b'\n', &mut line);
        self.bytes += read.map_err(io("read it"))? as u64;
        match line.pop() {
            Some(b'\n') => {
                String::from_utf8(line).map_err(|_| TransferError::Damaged("a line is no text"))
            }
            Some(_) if line.len() as u64 + 1 == LINE_BYTES => {
                Err(TransferError::Damaged("a line has no end"))
            }
            _ => Err(TransferError::Short(self.bytes)),
        }
    }

    fn exact(&mut self, bytes: &mut [u8]) -> Result<(), TransferError> {
        let mut done = 0;
        while done < bytes.len() {
            match self.input.read(&mut bytes[done..]).map_err(io("read it"))? {
                0 => return Err(TransferError::Short(self.bytes + done as u64)),
                more => done += more,
            }
        }
        self.bytes += done as u64;
        self.sum.update(bytes);
        Ok(())
    }

    fn passed(&mut self, line: &str) {
        self.sum.update(line.as_bytes());
        self.sum.update(b"\n");
    }

    fn sum(&self) -> String {
        hex::encode(self.sum.clone().finalize())
    }
}

fn part(line: &str) -> Result<Part, TransferError> {
    let unknown = || TransferError::Damaged("it has a part that is neither data nor the end");
    if let Some(sum) = line.strip_prefix("end ") {
        return Ok(Part::End { sum: sum.to_owned() });
    }
    let (at, length) =
        line.strip_prefix("data ").and_then(|rest| rest.split_once(' ')).ok_or_else(unknown)?;
    let length = length.parse().ok().filter(|length| (1..=PART_BYTES).contains(length));
    let at = at.parse().ok();
    at.zip(length).map(|(at, length)| Part::Data { at, length }).ok_or_else(unknown)
}
