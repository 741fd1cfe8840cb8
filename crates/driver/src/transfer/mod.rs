//! A snapshot leaves a pool as one file, and comes into another pool, of another machine, too.
//!
//! ```text
//! longshore snapshot 1
//! {"version":1,"id":"snap-…","sizeBytes":…, …}      its record, on one line
//! sum SHA256                                         of the two lines above
//! data OFFSET LENGTH                                 then so many bytes; as often as needed
//! end SHA256                                         of everything above
//! ```
//!
//! What is not in a `data` part is zero. Nothing of a damaged or short file ever becomes a snapshot: its bytes go
//! into a draft, which gets its name only after the last line was compared.
//!
//! The driver that owns the pool may run meanwhile: a snapshot never changes, and its record appears in one rename.
//! A driver that starts just then removes the draft, and the import fails.

mod read;
#[cfg(test)]
mod tests;
mod write;

use std::io::{Read, Write};
use std::path::Path;

use jiff::Timestamp;

use crate::config::PoolConfig;
use crate::copy::{CopyError, Method};
use crate::id::SnapshotId;
use crate::pool::record::Content;
use crate::pool::snapshots::SnapshotRecord;
use crate::pool::{Pool, PoolError};

/// The first words of the file; the version of the form follows.
const MAGIC: &str = "longshore snapshot ";
const FORM: u32 = 1;
/// Bytes of a `data` part at most.
const PART_BYTES: usize = 1 << 20;
/// No line of ours is longer.
const LINE_BYTES: u64 = 64 << 10;

/// Why a snapshot was not exported or imported.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error("there is no pool at {0}: the directory does not exist")]
    NoPool(String),
    #[error("snapshot {0} is in none of the pools")]
    NoSnapshot(String),
    #[error(
        "it does not begin as an exported snapshot does: choose a file that `longshore snapshot export` wrote"
    )]
    NotOurs,
    #[error("it has form {0}, which a newer program wrote: import it with that one")]
    Newer(String),
    #[error(
        "it ends in the middle, after {0} bytes: it was not written or copied to its end; export or copy it again"
    )]
    Short(u64),
    #[error("it is damaged: {0}; export or copy it again")]
    Damaged(&'static str),
    #[error("cannot {what}: {source}")]
    Io { what: &'static str, source: std::io::Error },
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Copy(#[from] CopyError),
}

/// A snapshot that was exported or imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transferred {
    /// The driver's handle.
    pub id: SnapshotId,
    /// Size of the volume that it is of.
    pub size_bytes: u64,
    /// Bytes that the file has or had.
    pub file_bytes: u64,
    /// The volume was used as raw blocks only.
    pub raw: bool,
    /// When it was cut.
    pub created: Timestamp,
}

/// Whether a text is a handle of ours.
#[must_use]
pub fn is_handle(text: &str) -> bool {
    SnapshotId::parse(text).is_some()
}

/// Writes the snapshot of a handle; it is looked for in these pools.
///
/// # Errors
/// When it is in none of them, or cannot be read or written.
pub fn export(
    pools: &[&Path],
    handle: &str,
    out: &mut impl Write,
) -> Result<Transferred, TransferError> {
    let missing = || TransferError::NoSnapshot(handle.to_owned());
    let id = SnapshotId::parse(handle).ok_or_else(missing)?;
    for dir in pools.iter().filter(|dir| dir.is_dir()) {
        let pool = visit(dir)?;
        let Some(record) = pool.snapshot(&id)? else { continue };
        let image = pool.snapshot_image(&id)?;
        let file_bytes = write::write(&record, &image, out)?;
        return Ok(transferred(&record, file_bytes));
    }
    Err(missing())
}

/// Reads a file into a pool. `name` tells imports of one file apart: the same file under the same name has the
/// same handle, and is not read twice.
///
/// # Errors
/// When the file is not whole, or the pool has no room for it. Nothing is left in the pool then.
pub fn import(
    pool: &Path,
    name: &str,
    input: &mut impl Read,
) -> Result<Transferred, TransferError> {
    if !pool.is_dir() {
        return Err(TransferError::NoPool(pool.display().to_string()));
    }
    let pool = visit(pool)?;
    let (mut reader, exported) = read::Reader::begin(input)?;
    let id = SnapshotId::imported(name, &exported.id, exported.created);
    let mut record = SnapshotRecord {
        name: format!("imported/{name}"),
        group: None,
        shares: false,
        id: id.clone(),
        ..exported
    };
    if let Some(there) = pool.snapshot(&id)? {
        return Ok(transferred(&there, reader.skip_to_end()?));
    }
    // Under an id of its own: another process may be importing the same.
    let draft_id =
        SnapshotId::imported(&format!("draft {}", std::process::id()), &id, Timestamp::now());
    let draft = pool.draft_snapshot(&draft_id, record.data_bytes)?;
    let filled = reader.fill(&draft, record.size_bytes);
    let named = filled.and_then(|bytes| {
        pool.rename_draft(&draft_id, &id)?;
        Ok(bytes)
    });
    let committed = named.and_then(|file_bytes| {
        pool.commit_snapshot(&mut record, &draft, Method::Separate)
            .inspect_err(|_| drop(pool.drop_draft(&id)))?;
        Ok(transferred(&record, file_bytes))
    });
    if committed.is_err() {
        // The first failure is returned; the driver's next start removes what stays.
        drop(pool.drop_draft(&draft_id));
    }
    committed
}

/// Takes back what was imported; a snapshot that is not there is as good.
///
/// # Errors
/// When the pool cannot be changed.
pub fn remove(pool: &Path, id: &SnapshotId) -> Result<(), TransferError> {
    Ok(visit(pool)?.delete_snapshot(id)?)
}

fn visit(dir: &Path) -> Result<Pool, PoolError> {
    let name = dir.file_name().map_or_else(|| "pool".into(), |name| name.to_string_lossy());
    Pool::visit(&PoolConfig::new(name, dir))
}

fn transferred(record: &SnapshotRecord, file_bytes: u64) -> Transferred {
    Transferred {
        id: record.id.clone(),
        size_bytes: record.size_bytes,
        file_bytes,
        raw: record.fstype.is_none() || record.content == Content::Raw,
        created: record.created,
    }
}

fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> TransferError {
    move |source| TransferError::Io { what, source }
}
