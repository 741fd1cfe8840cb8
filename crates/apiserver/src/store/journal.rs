//! The narrow interface to durable storage.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::state::{Change, Event, Key, Stored};

/// One change on its way to storage.
#[derive(Debug)]
pub struct Entry<'a> {
    pub revision: u64,
    pub key: &'a Key,
    pub change: Change,
    /// The object's new content; when it goes away, its last.
    pub body: &'a [u8],
}

impl<'a> Entry<'a> {
    pub(super) fn of(event: &'a Event) -> Self {
        let Event { revision, key, change, object, .. } = event;
        Self { revision: *revision, key, change: *change, body: &object.body }
    }
}

/// One object of a snapshot, with its resource.
pub type SnapshotObject = (Arc<str>, Arc<Stored>);

/// Takes in what a journal holds, in this order: objects, where history begins, changes.
pub trait Replay {
    /// An object as it was when the log began.
    fn object(&mut self, key: Key, revision: u64, body: &[u8]) -> Result<(), Unreadable>;

    /// Everything up to this revision has been handed over; how it came about is not known.
    fn history_begins(&mut self, revision: u64);

    /// A change after that.
    fn change(
        &mut self,
        key: Key,
        change: Change,
        revision: u64,
        body: &[u8],
    ) -> Result<(), Unreadable>;
}

/// An object in a journal is no JSON object with metadata.
#[derive(Debug, thiserror::Error)]
#[error("{key} cannot be read: {source}")]
pub struct Unreadable {
    pub key: Key,
    pub source: serde_json::Error,
}

/// Why storage failed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process has the store open.
    #[error("{} is in use by another process", path.display())]
    Locked { path: PathBuf },
    /// Files cannot be opened, read or written.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        source: io::Error,
    },
    /// There is no room; nothing was changed, and the next write is tried as if nothing had been.
    #[error(
        "there is no room left in {} ({source}); nothing was changed: make room there and write again",
        path.display()
    )]
    Full { path: PathBuf, source: io::Error },
    /// Acknowledged data is not what was written.
    #[error(
        "{} is damaged at byte {offset}: {why}. This was acknowledged data, so nothing is served from it: \
         keep a copy of its directory and restore the directory from a backup",
        path.display()
    )]
    Damaged {
        path: PathBuf,
        /// Where the damage shows.
        offset: usize,
        why: String,
    },
    /// A file that must be there is not, or is not the one its name says.
    #[error(
        "{} does not continue the store at revision {revision}: a file in {} is missing or was renamed; \
         restore the directory from a backup",
        path.display(), dir.display()
    )]
    Missing {
        /// The file that does not fit, or is not there.
        path: PathBuf,
        dir: PathBuf,
        /// The newest revision that is there.
        revision: u64,
    },
    /// The file was written by another version of the format.
    #[error("{} has storage format {found}, this program reads {expected}", path.display())]
    Format { path: PathBuf, found: u32, expected: u32 },
    /// The writer thread could not be started.
    #[error("starting the writer thread: {source}")]
    Thread { source: std::io::Error },
}

impl JournalError {
    pub(super) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { operation, path: path.into(), source }
    }
}

/// Durable storage of the current state.
pub trait Journal: Send + 'static {
    /// Reads everything; called once, before the first commit. Returns the newest revision ever
    /// written, deletions included.
    /// Fails when storage cannot be read or holds damaged data.
    fn load(&mut self, state: &mut dyn Replay) -> Result<u64, JournalError>;

    /// Makes a batch durable: all of it or nothing, and durable when this returns.
    ///
    /// # Errors
    /// When the batch could not be made durable. After [`JournalError::Full`] another batch may
    /// follow, with the same revisions; after anything else no further call does.
    fn commit(&mut self, batch: &[Entry<'_>]) -> Result<(), JournalError>;

    /// Whether `commit` blocks the thread, and so needs a thread of its own.
    fn blocks(&self) -> bool;

    /// Whether the whole state should be written, so that the log can start over.
    fn wants_checkpoint(&mut self) -> bool {
        false
    }

    /// Takes the whole state at a revision, all of which is committed.
    fn checkpoint(&mut self, _revision: u64, _objects: Vec<SnapshotObject>) {}
}

/// Keeps nothing: the state in memory is all there is.
#[derive(Debug, Default)]
pub struct MemoryJournal;

impl Journal for MemoryJournal {
    fn load(&mut self, state: &mut dyn Replay) -> Result<u64, JournalError> {
        state.history_begins(0);
        Ok(0)
    }

    fn commit(&mut self, _batch: &[Entry<'_>]) -> Result<(), JournalError> {
        Ok(())
    }

    fn blocks(&self) -> bool {
        false
    }
}
