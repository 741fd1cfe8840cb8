//! Why a pool could not do what was asked.

use std::path::PathBuf;

use longshore_core::words;

use crate::id::{SnapshotId, VolumeId};

/// Why a pool could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The directory or a file in it could not be used.
    #[error("pool {pool}: cannot {what}: {source}")]
    Io { pool: String, what: String, source: std::io::Error },
    /// Another process owns the pool.
    #[error("pool {pool} ({}) is in use by another driver process", dir.display())]
    Busy { pool: String, dir: PathBuf },
    /// Nodes could not trust each other's locks.
    #[error(
        "pool {pool} is on {fstype}, where a shared driver cannot keep nodes apart: {why}; use a filesystem with locks that hold on every machine"
    )]
    Locking {
        pool: String,
        fstype: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There is no such volume.
    #[error("volume {0} does not exist")]
    NotFound(VolumeId),
    /// The record cannot be understood; nothing is done with its volume.
    #[error("volume {id}: its record is unusable: {why}")]
    BadRecord { id: VolumeId, why: String },
    /// A snapshot or group that cannot be used; nothing is done with it.
    #[error("{id} is unusable: {why}")]
    BadSnapshot { id: String, why: String },
    /// Another process commits the same snapshot.
    #[error("snapshot {0} is being imported by another process; wait for that one, then try again")]
    Importing(SnapshotId),
    /// The image of an existing volume is not there.
    #[error("volume {0}: its image file is missing")]
    ImageMissing(VolumeId),
    /// A file that is no volume of ours is in the way.
    #[error("volume {0}: an image file without a record is in the way")]
    InTheWay(VolumeId),
    /// So little is left that those who have volumes need it.
    #[error(
        "pool {pool} is nearly full ({} of {} are free): it takes no new work until something is deleted or its filesystem grows",
        words::room(*.free_bytes),
        words::room(*.total_bytes)
    )]
    NearlyFull { pool: String, free_bytes: u64, total_bytes: u64 },
    /// The pool cannot promise that many bytes.
    #[error(
        "pool {pool} has {} left, {} needed",
        words::room(*.allocatable_bytes),
        words::size(*.wanted_bytes)
    )]
    Full {
        pool: String,
        /// What it could still promise.
        allocatable_bytes: u64,
        wanted_bytes: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_moves_of_the_room_leave_the_text_as_it_is() {
        let full = |allocatable_bytes| PoolError::Full {
            pool: "default".into(),
            allocatable_bytes,
            wanted_bytes: 900 << 40,
        };
        let text = full(75_785_424_896).to_string();
        assert_eq!(text, "pool default has 70Gi left, 900Ti needed");
        assert_eq!(full(75_785_424_896 - (300 << 20)).to_string(), text);
    }
}
