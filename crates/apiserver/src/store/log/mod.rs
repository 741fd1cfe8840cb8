//! The journal on disk: a log of changes, and snapshots that let it start over.
//!
//! A directory holds at most one snapshot, `snapshot-REVISION`, and one or more segments, `log-REVISION`,
//! each with the changes after the revision in its name. A batch is one frame in the newest segment. When
//! the log has grown as large as the state, a new segment is begun and the state is written beside it, on a
//! thread of its own; then the older files go. New files get their names when they are complete.
//!
//! Nothing that does not check out is served: see [`replay`].

mod format;
mod marker;
mod replay;
mod segment;
mod snapshot;

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use longshore_files::make_private_dir;

use super::journal::{Entry, Journal, JournalError, Replay, SnapshotObject};
use super::state::Key;
use format::{FRAME_HEADER, FileHeader, HeaderError, Kind, RawEntry, put_entry};
use marker::{Marker, Newest};
use replay::End;
use segment::Segment;
use snapshot::{Names, ReadError};

/// The log may always grow to this size.
const SMALLEST_LOG: u64 = 32 << 20;
/// Buffers larger than this are not kept between batches.
const KEPT_BUFFER: usize = 1 << 20;

/// The journal in a directory.
pub struct DiskJournal {
    dir: PathBuf,
    /// Held as long as the journal lives.
    _lock: File,
    marker: Option<Marker>,
    segment: Option<Segment>,
    /// Bytes in segments before the current one that no snapshot covers.
    older_bytes: u64,
    snapshot_bytes: u64,
    smallest_log: u64,
    /// After a failure: the log has to grow to this before the next snapshot.
    not_before: u64,
    /// A snapshot being written, and how many bytes of log it makes superfluous.
    checkpoint: Option<(JoinHandle<io::Result<u64>>, u64)>,
    buffer: Vec<u8>,
}

impl DiskJournal {
    /// Opens or creates the directory.
    ///
    /// # Errors
    /// When another process has it open, or it cannot be used.
    pub fn open(dir: &Path) -> Result<Self, JournalError> {
        let failed = |source| JournalError::io("opening", dir, source);
        if !dir.is_dir() {
            make_private_dir(dir).map_err(failed)?;
            if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                sync_dir(parent).map_err(failed)?;
            }
        }
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join("lock"))
            .map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => JournalError::Locked { path: dir.into() },
            TryLockError::Error(source) => failed(source),
        })?;
        Ok(Self {
            dir: dir.into(),
            _lock: lock,
            marker: None,
            segment: None,
            older_bytes: 0,
            snapshot_bytes: 0,
            smallest_log: SMALLEST_LOG,
            not_before: 0,
            checkpoint: None,
            buffer: Vec::new(),
        })
    }

    /// Keeps the name of the newest log in a file elsewhere, so that a log that is gone is missed.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn with_marker(mut self, path: PathBuf) -> Result<Self, JournalError> {
        let failed = |source| JournalError::io("reading", &path, source);
        self.marker = Some(Marker::read(&path).map_err(failed)?);
        Ok(self)
    }

    /// Lets the log grow to so many bytes before a snapshot replaces it; for tests.
    #[must_use]
    pub fn with_smallest_log(mut self, bytes: u64) -> Self {
        self.smallest_log = bytes;
        self
    }

    /// Names in the directory: snapshots and segments by revision, and what is left over.
    fn files(&self) -> io::Result<Files> {
        let mut files = Files::default();
        for entry in std::fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.ends_with(".tmp") {
                files.leftovers.push(self.dir.join(name));
            } else if let Some(revision) = name.strip_prefix("log-").and_then(|r| r.parse().ok()) {
                files.segments.push(revision);
            } else if let Some(revision) =
                name.strip_prefix("snapshot-").and_then(|r| r.parse().ok())
            {
                files.snapshots.push(revision);
            }
        }
        files.segments.sort_unstable();
        files.snapshots.sort_unstable();
        Ok(files)
    }

    /// Reads the newest snapshot; what it makes superfluous is left over.
    fn load_snapshot(
        &mut self,
        files: &mut Files,
        names: &mut Names,
        state: &mut dyn Replay,
    ) -> Result<u64, JournalError> {
        let Some(newest) = files.snapshots.pop() else { return Ok(0) };
        let path = self.dir.join(snapshot_name(newest));
        let read = snapshot::read(&path, |entry| {
            state.object(key(names, &entry), entry.revision, entry.body)
        });
        let (revision, size) = read.map_err(|error| match error {
            ReadError::Io(source) => JournalError::io("reading", &path, source),
            ReadError::Damaged(damage) => damaged(&path, damage),
            ReadError::Format(found) => other_format(&path, found),
        })?;
        if revision != newest {
            return Err(self.missing(&path, newest));
        }
        self.snapshot_bytes = size;
        files.leftovers.extend(files.snapshots.drain(..).map(|r| self.dir.join(snapshot_name(r))));
        let old = files.segments.partition_point(|base| *base < newest);
        files.leftovers.extend(files.segments.drain(..old).map(|r| self.dir.join(segment_name(r))));
        Ok(newest)
    }

    fn load_segment(
        &mut self,
        base: u64,
        names: &mut Names,
        state: &mut dyn Replay,
    ) -> Result<u64, JournalError> {
        let path = self.dir.join(segment_name(base));
        let failed = |source| JournalError::io("reading", &path, source);
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
        let data = std::fs::read(&path).map_err(failed)?;
        let header = FileHeader::decode(&data, Kind::Segment).map_err(|error| match error {
            HeaderError::Damaged(why) => {
                damaged(&path, replay::Damage { offset: 0, why: why.into() })
            }
            HeaderError::Format(found) => other_format(&path, found),
        })?;
        if header.base != base {
            return Err(self.missing(&path, base));
        }
        let (end, last) = replay::segment(&header, &data, |entry| {
            state.change(key(names, &entry), entry.change, entry.revision, entry.body)
        })
        .map_err(|damage| damaged(&path, damage))?;
        let at = match end {
            End::Clean(at) => at,
            End::Torn(at) => {
                cut(&path, &file, &data, at).map_err(failed)?;
                at
            }
        };
        if let Some(before) = self.segment.take() {
            self.older_bytes += before.used();
        }
        let size = data.len() as u64;
        self.segment = Some(Segment::resume(path, file, header, at as u64, size));
        Ok(last)
    }

    /// A store whose newest log is gone must not be served as it was before that log.
    fn refuse_missing_log(&self, files: &Files) -> Result<(), JournalError> {
        match self.marker.as_ref().map_or(Newest::Unknown, Marker::newest) {
            Newest::After(base) if files.segments.last().is_none_or(|newest| *newest < base) => {
                Err(self.missing(&self.dir.join(segment_name(base)), base))
            }
            _ => Ok(()),
        }
    }

    /// Writes down which log is the newest. Where that fails, a full disk for instance, the old record
    /// still holds: it names a log that this one follows.
    fn record_newest(&mut self) {
        let (Some(marker), Some(segment)) = (&mut self.marker, &self.segment) else { return };
        if let Err(error) = marker.write(segment.header.base) {
            tracing::warn!(dir = %self.dir.display(), %error, "the newest log is not written down");
        }
    }

    fn missing(&self, path: &Path, revision: u64) -> JournalError {
        JournalError::Missing { path: path.into(), dir: self.dir.clone(), revision }
    }

    /// Looks after a snapshot that may have been finished meanwhile.
    fn reap(&mut self, wait: bool) {
        let Some((thread, covers)) =
            self.checkpoint.take_if(|(thread, _)| wait || thread.is_finished())
        else {
            return;
        };
        match thread.join() {
            Ok(Ok(size)) => {
                self.snapshot_bytes = size;
                self.not_before = 0;
                self.older_bytes = self.older_bytes.saturating_sub(covers);
            }
            Ok(Err(error)) => {
                tracing::warn!(
                    dir = %self.dir.display(), %error,
                    "the state could not be written beside its log; the log stays and grows, \
                     and this is tried again later: make room in the directory",
                );
                self.not_before = self.log_bytes() + self.smallest_log;
            }
            Err(_) => tracing::error!("the thread that writes snapshots panicked"),
        }
    }

    fn log_bytes(&self) -> u64 {
        self.older_bytes + self.segment.as_ref().map_or(0, Segment::used)
    }
}

impl Journal for DiskJournal {
    fn load(&mut self, state: &mut dyn Replay) -> Result<u64, JournalError> {
        let mut files =
            self.files().map_err(|source| JournalError::io("reading", &self.dir, source))?;
        self.refuse_missing_log(&files)?;
        let mut names = Names::default();
        let snapshot = self.load_snapshot(&mut files, &mut names, state)?;
        state.history_begins(snapshot);
        let mut revision = snapshot;
        for base in &files.segments {
            if *base != revision {
                let path = self.dir.join(segment_name(*base));
                return Err(self.missing(&path, revision));
            }
            revision = self.load_segment(*base, &mut names, state)?;
        }
        if self.segment.is_none() {
            if snapshot > 0 {
                return Err(self.missing(&self.dir.join(segment_name(snapshot)), snapshot));
            }
            let made = Segment::create(&self.dir, 0);
            let failed = |source| JournalError::io("making a log in", &self.dir, source);
            self.segment = Some(made.map_err(failed)?);
        }
        self.record_newest();
        for path in files.leftovers {
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "a superfluous file stays");
            }
        }
        Ok(revision)
    }

    fn commit(&mut self, batch: &[Entry<'_>]) -> Result<(), JournalError> {
        let (Some(segment), Some(last)) = (&mut self.segment, batch.last()) else {
            return Ok(());
        };
        self.buffer.clear();
        self.buffer.resize(FRAME_HEADER, 0);
        for entry in batch {
            put_entry(&mut self.buffer, entry.change, entry.revision, entry.key, entry.body);
        }
        let count = u32::try_from(batch.len()).unwrap_or(u32::MAX);
        let result = segment.append(&mut self.buffer, last.revision, count);
        if self.buffer.capacity() > KEPT_BUFFER {
            self.buffer = Vec::new();
        }
        result.map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                JournalError::Full { path: self.dir.clone(), source }
            }
            _ => JournalError::io("writing", &segment.path, source),
        })
    }

    fn blocks(&self) -> bool {
        true
    }

    fn wants_checkpoint(&mut self) -> bool {
        self.reap(false);
        let enough = self.smallest_log.max(self.snapshot_bytes).max(self.not_before);
        self.checkpoint.is_none() && self.log_bytes() > enough
    }

    fn checkpoint(&mut self, revision: u64, objects: Vec<SnapshotObject>) {
        match Segment::create(&self.dir, revision) {
            Ok(next) => {
                if let Some(before) = self.segment.replace(next) {
                    self.older_bytes += before.used();
                }
                self.record_newest();
            }
            Err(error) => {
                tracing::warn!(dir = %self.dir.display(), %error, "no new log could be begun");
                self.not_before = self.log_bytes() + self.smallest_log;
                return;
            }
        }
        let dir = self.dir.clone();
        let covers = self.older_bytes;
        let thread = std::thread::Builder::new().name("store-snapshot".into()).spawn(move || {
            let size = snapshot::write(&dir, revision, &objects)?;
            drop(objects);
            remove_older(&dir, revision)?;
            Ok(size)
        });
        match thread {
            Ok(thread) => self.checkpoint = Some((thread, covers)),
            Err(error) => tracing::warn!(%error, "the thread that writes snapshots did not start"),
        }
    }
}

impl Drop for DiskJournal {
    /// The directory must not change any more once its lock is gone.
    fn drop(&mut self) {
        self.reap(true);
    }
}

#[derive(Default)]
struct Files {
    segments: Vec<u64>,
    snapshots: Vec<u64>,
    leftovers: Vec<PathBuf>,
}

/// Removes what a snapshot at `revision` replaces.
fn remove_older(dir: &Path, revision: u64) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str() else { continue };
        let of = name.strip_prefix("log-").or_else(|| name.strip_prefix("snapshot-"));
        if of.and_then(|r| r.parse::<u64>().ok()).is_some_and(|r| r < revision) {
            std::fs::remove_file(dir.join(name))?;
        }
    }
    sync_dir(dir)
}

/// Removes the remains of a write that was never acknowledged.
fn cut(path: &Path, file: &File, data: &[u8], at: usize) -> io::Result<()> {
    let torn = data[at..].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    tracing::warn!(
        path = %path.display(), offset = at, bytes = torn,
        "the log ends in a write that was interrupted before it was acknowledged; it is cut off, \
         nothing is lost and nothing has to be done",
    );
    file.write_all_at(&vec![0; torn], at as u64)?;
    file.sync_all()
}

fn damaged(path: &Path, damage: replay::Damage) -> JournalError {
    JournalError::Damaged { path: path.into(), offset: damage.offset, why: damage.why }
}

fn other_format(path: &Path, found: u32) -> JournalError {
    JournalError::Format { path: path.into(), found, expected: format::FORMAT }
}

fn key(names: &mut Names, entry: &RawEntry<'_>) -> Key {
    Key {
        resource: names.get(entry.resource),
        namespace: entry.namespace.into(),
        name: entry.name.into(),
    }
}

fn segment_name(base: u64) -> String {
    format!("log-{base:020}")
}

fn snapshot_name(revision: u64) -> String {
    format!("snapshot-{revision:020}")
}

/// A new, empty file that only its owner reads: secrets are in there.
fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests;
