//! Container output: one line of the log file per line of output, with time and stream.
//!
//! The format is the one container runtimes write: `<time> <stream> <F|P> <text>`, where `P` marks
//! a piece of a line that was too long to wait for its end. A file that is full is put aside as
//! `NAME.log.1`, older ones move on, and the oldest goes, so a container cannot fill the disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::protocol::LogLimit;

/// Longest piece of a line.
const MAX_PIECE: usize = 16 * 1024;
/// As much as a pipe can hold at most.
const MAX_PIECES_AT_ONCE: usize = 64;

/// Where the log of the run before the current one is kept.
#[must_use]
pub fn previous(log: &Path) -> PathBuf {
    log.with_extension("prev.log")
}

/// Where a full file of the log is put; 1 is the newest.
fn rotated(log: &Path, number: u32) -> PathBuf {
    log.with_extension(format!("log.{number}"))
}

/// A run's log on disk.
pub(super) struct Log {
    path: PathBuf,
    file: File,
    size: u64,
    limit: LogLimit,
}

impl Log {
    /// Opens a run's log; the newest file of the run before is kept beside it.
    ///
    /// # Errors
    /// The file cannot be made.
    pub(super) fn open(path: &Path, attempt: u32, limit: LogLimit) -> io::Result<Self> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        if attempt > 0 && path.exists() {
            fs::rename(path, previous(path))?;
            for number in 1..limit.max_files {
                remove_if_there(&rotated(path, number))?;
            }
        }
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let size = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, size, limit })
    }

    /// Appends whole lines. A full disk must not stop the container; its output is what gets lost.
    fn write(&mut self, lines: &[u8]) {
        if let Err(error) = self.try_write(lines) {
            eprintln!("cannot write the log: {error}");
        }
    }

    fn try_write(&mut self, mut lines: &[u8]) -> io::Result<()> {
        while !lines.is_empty() {
            let room = self.limit.max_size.saturating_sub(self.size);
            let fits = fitting(lines, usize::try_from(room).unwrap_or(usize::MAX));
            let count = match (fits, self.size) {
                // One line that is longer than a file may be.
                (0, 0) => {
                    lines.iter().position(|byte| *byte == b'\n').map_or(lines.len(), |at| at + 1)
                }
                (0, _) => {
                    self.rotate()?;
                    continue;
                }
                (count, _) => count,
            };
            self.file.write_all(&lines[..count])?;
            self.size += count as u64;
            lines = &lines[count..];
        }
        Ok(())
    }

    /// Begins a new file. Where the full one cannot be put aside, its content goes: the bound holds.
    fn rotate(&mut self) -> io::Result<()> {
        if let Err(error) = self.put_aside() {
            eprintln!("cannot put the log {} aside: {error}", self.path.display());
            self.file.set_len(0)?;
        }
        self.size = 0;
        Ok(())
    }

    /// A reader finds a file under the log's name at every moment.
    fn put_aside(&mut self) -> io::Result<()> {
        let oldest = self.limit.max_files.saturating_sub(1).max(1);
        remove_if_there(&rotated(&self.path, oldest))?;
        for number in (1..oldest).rev() {
            match fs::rename(rotated(&self.path, number), rotated(&self.path, number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let newest = rotated(&self.path, 1);
        // Not every filesystem has links; without them the name is missing for a moment.
        fs::hard_link(&self.path, &newest).or_else(|_| fs::rename(&self.path, &newest))?;
        let fresh = self.path.with_extension("log.new");
        remove_if_there(&fresh)?;
        self.file = OpenOptions::new().create_new(true).append(true).open(&fresh)?;
        fs::rename(&fresh, &self.path)
    }
}

/// How many bytes of whole lines fit.
fn fitting(lines: &[u8], room: usize) -> usize {
    if lines.len() <= room {
        return lines.len();
    }
    lines[..room].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
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

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Copies what is there to the log and to `also`, which returns whether it can take more. Returns false at
    /// the end of the stream, which a terminal reports as an error.
    pub(super) fn copy(&mut self, log: &mut Log, mut also: impl FnMut(&[u8]) -> bool) -> bool {
        let mut buffer = [0; MAX_PIECE];
        // One container must not keep the shim from the others.
        for _ in 0..MAX_PIECES_AT_ONCE {
            match self.pipe.read(&mut buffer) {
                Ok(count) if count > 0 => {
                    self.pending.extend_from_slice(&buffer[..count]);
                    self.write_lines(log);
                    if !also(&buffer[..count]) {
                        return true;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => {
                    self.flush(log);
                    return false;
                }
            }
        }
        true
    }

    fn write_lines(&mut self, log: &mut Log) {
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
        log.write(&out);
    }

    fn flush(&mut self, log: &mut Log) {
        if self.pending.is_empty() {
            return;
        }
        let mut out = Vec::new();
        entry(&mut out, self.name, 'F', &self.pending);
        self.pending.clear();
        log.write(&out);
    }
}

fn entry(out: &mut Vec<u8>, stream: &str, tag: char, text: &[u8]) {
    let now = jiff::Timestamp::now();
    out.extend_from_slice(format!("{now:.9} {stream} {tag} ").as_bytes());
    out.extend_from_slice(text);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_full_log_is_put_aside_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("main.log");
        let limit = LogLimit { max_size: 100, max_files: 3 };
        let mut log = Log::open(&path, 0, limit).unwrap();
        for number in 0..100 {
            log.write(format!("line {number:03} of it\n").as_bytes());
        }
        // Many lines at once are divided at line ends.
        log.write("x\n".repeat(200).as_bytes());
        assert_eq!(names(dir.path()), ["main.log", "main.log.1", "main.log.2"]);
        for name in names(dir.path()) {
            let text = fs::read_to_string(dir.path().join(&name)).unwrap();
            assert!(text.len() <= 100 && text.ends_with('\n'), "{name}: {text:?}");
        }
        drop(log);
        let log = Log::open(&path, 1, limit).unwrap();
        assert_eq!(
            (log.size, names(dir.path())),
            (0, vec!["main.log".into(), "main.prev.log".into()])
        );
    }

    #[test]
    fn a_log_that_cannot_be_put_aside_is_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("main.log");
        let mut log = Log::open(&path, 0, LogLimit { max_size: 10, max_files: 2 }).unwrap();
        // Something that is no file is in the way.
        fs::create_dir(rotated(&path, 1)).unwrap();
        for _ in 0..100 {
            log.write(b"lines\n");
        }
        assert!(fs::metadata(&path).unwrap().len() <= 10);
    }

    #[test]
    fn a_line_that_is_longer_than_a_file_has_one_for_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("main.log");
        let mut log = Log::open(&path, 0, LogLimit { max_size: 10, max_files: 2 }).unwrap();
        log.write(b"short\n");
        log.write(b"a line of more than ten bytes\nand\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "and\n");
        let aside = fs::read_to_string(rotated(&path, 1)).unwrap();
        assert_eq!(aside, "a line of more than ten bytes\n");
    }
}
