//! The narrow interface to durable storage.

use std::path::PathBuf;

use super::state::{Change, Event, Key};

/// One change on its way to storage.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Revision of the change.
    pub revision: u64,
    /// The object.
    pub key: &'a Key,
    /// The object's new content, or `None` when it goes away.
    pub body: Option<&'a [u8]>,
}

impl<'a> Entry<'a> {
    pub(super) fn of(event: &'a Event) -> Self {
        let body = match event.change {
            Change::Put => Some(&*event.object.body),
            Change::Delete => None,
        };
        Self { revision: event.revision, key: &event.key, body }
    }
}

/// What a journal holds at start.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The newest revision ever written, deletions included.
    pub revision: u64,
    /// Every object: key, revision, content.
    pub objects: Vec<(Key, u64, Vec<u8>)>,
}

/// Why storage failed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process has the file open.
    #[error("{} is in use by another process", path.display())]
    Locked {
        /// The database file.
        path: PathBuf,
    },
    /// The database cannot be opened, read or written.
    #[error("{operation} {}: {source}", path.display())]
    Database {
        /// What was tried.
        operation: &'static str,
        /// The database file.
        path: PathBuf,
        /// What the database said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A record does not match its checksum or cannot be understood.
    #[error("stored object {key} is damaged: {why}")]
    Corrupt {
        /// The record.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// The file was written by another version of the format.
    #[error("{} has storage format {found}, this program reads {expected}", path.display())]
    Format {
        /// The database file.
        path: PathBuf,
        /// Version in the file.
        found: u64,
        /// Version of this program.
        expected: u64,
    },
    /// The writer thread could not be started.
    #[error("starting the writer thread: {source}")]
    Thread {
        /// What the system said.
        source: std::io::Error,
    },
}

/// Durable storage of the current state.
pub trait Journal: Send + 'static {
    /// Reads everything; called once, before the first commit.
    ///
    /// # Errors
    /// When storage cannot be read or holds damaged data.
    fn load(&mut self) -> Result<Loaded, JournalError>;

    /// Makes a batch durable: all of it or nothing, and durable when this returns.
    ///
    /// # Errors
    /// When the batch could not be made durable. No further call follows.
    fn commit(&mut self, batch: &[Entry<'_>]) -> Result<(), JournalError>;

    /// Whether `commit` blocks the thread, and so needs a thread of its own.
    fn blocks(&self) -> bool;
}

/// Keeps nothing: the state in memory is all there is.
#[derive(Debug, Default)]
pub struct MemoryJournal;

impl Journal for MemoryJournal {
    fn load(&mut self) -> Result<Loaded, JournalError> {
        Ok(Loaded::default())
    }

    fn commit(&mut self, _batch: &[Entry<'_>]) -> Result<(), JournalError> {
        Ok(())
    }

    fn blocks(&self) -> bool {
        false
    }
}
