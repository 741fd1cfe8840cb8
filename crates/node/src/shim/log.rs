//! Container output: one line of the log file per line of output, with time and stream.
//!
//! The format is the one container runtimes write: `<time> <stream> <F|P> <text>`, where `P` marks
//! a piece of a line that was too long to wait for its end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Longest piece of a line.
const MAX_PIECE: usize = 16 * 1024;

/// Where the log of the run before the current one is kept.
#[must_use]
pub fn previous(log: &Path) -> PathBuf {
    log.with_extension("prev.log")
}

/// Opens a run's log; the log of the run before is kept beside it.
///
/// # Errors
/// The file cannot be made.
pub(super) fn open(log: &Path, attempt: u32) -> io::Result<File> {
    if let Some(dir) = log.parent() {
        std::fs::create_dir_all(dir)?;
    }
    if attempt > 0 && log.exists() {
        std::fs::rename(log, previous(log))?;
    }
    OpenOptions::new().create(true).append(true).open(log)
}

/// One of a container's two output streams.
pub(super) struct Stream {
    pipe: File,
    name: &'static str,
    pending: Vec<u8>,
}

impl Stream {
    pub(super) fn new(pipe: OwnedFd, name: &'static str) -> Self {
        Self { pipe: File::from(pipe), name, pending: Vec::new() }
    }

    pub(super) fn fd(&self) -> &File {
        &self.pipe
    }

    /// Copies what is there; false at the end of the stream.
    pub(super) fn copy(&mut self, log: &mut File) -> bool {
        let mut buffer = [0; MAX_PIECE];
        loop {
            match self.pipe.read(&mut buffer) {
                Ok(0) => {
                    self.flush(log);
                    return false;
                }
                Ok(count) => {
                    self.pending.extend_from_slice(&buffer[..count]);
                    self.write_lines(log);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    fn write_lines(&mut self, log: &mut File) {
        let mut out = Vec::new();
        let mut start = 0;
        while let Some(length) = self.pending[start..].iter().position(|byte| *byte == b'\n') {
            entry(&mut out, self.name, 'F', &self.pending[start..start + length]);
            start += length + 1;
        }
        while self.pending.len() - start >= MAX_PIECE {
            entry(&mut out, self.name, 'P', &self.pending[start..start + MAX_PIECE]);
            start += MAX_PIECE;
        }
        self.pending.drain(..start);
        write(log, &out);
    }

    fn flush(&mut self, log: &mut File) {
        if self.pending.is_empty() {
            return;
        }
        let mut out = Vec::new();
        entry(&mut out, self.name, 'F', &self.pending);
        self.pending.clear();
        write(log, &out);
    }
}

fn entry(out: &mut Vec<u8>, stream: &str, tag: char, text: &[u8]) {
    let now = jiff::Timestamp::now();
    out.extend_from_slice(format!("{now:.9} {stream} {tag} ").as_bytes());
    out.extend_from_slice(text);
    out.push(b'\n');
}

// A full disk must not stop the container; its output is what gets lost.
fn write(log: &mut File, out: &[u8]) {
    if let Err(error) = log.write_all(out) {
        eprintln!("cannot write the log: {error}");
    }
}
