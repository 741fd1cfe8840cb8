//! Notes: small files that record for other nodes, and for the next process, what a node has.

use std::path::PathBuf;

use super::record::Staged;
use super::{Pool, PoolError, RECORD_LIMIT_BYTES, names, sealed};
use crate::id::VolumeId;

impl Pool {
    /// How a node has a volume staged, by its own note.
    pub fn staged(&self, id: &VolumeId, node_id: &str) -> Result<Option<Staged>, PoolError> {
        let name = names::staged(id, node_id);
        let bytes = self.io("read a note", self.dir.read(&name, RECORD_LIMIT_BYTES))?;
        let bad = |error: sealed::UnsealError| PoolError::BadRecord {
            id: id.clone(),
            why: format!("its note of staging: {error}"),
        };
        bytes.map(|bytes| sealed::unseal(&bytes).map_err(bad)).transpose()
    }

    /// Whether there is a note that a node has a volume staged.
    pub fn is_staged(&self, id: &VolumeId, node_id: &str) -> Result<bool, PoolError> {
        self.io("look for a note", self.dir.has_file(&names::staged(id, node_id)))
    }

    /// Writes a node's note. On a pool that other machines see it is flushed, so that they see
    /// it before anything happens; on a local one a power failure makes it untrue anyway.
    pub fn note_staging(&self, id: &VolumeId, staged: &Staged) -> Result<(), PoolError> {
        let bytes = sealed::seal(staged);
        let name = names::staged(id, &staged.node);
        let written =
            self.write_small("write a note", || self.dir.write_unflushed(&name, &bytes))?;
        if self.exclusive {
            return Ok(());
        }
        self.io("flush a note", written.sync_all())?;
        self.io("flush it", self.dir.sync())
    }

    pub fn forget_staging(&self, id: &VolumeId, node_id: &str) -> Result<(), PoolError> {
        self.io("remove a note", self.dir.remove(&names::staged(id, node_id)))?;
        if self.exclusive { Ok(()) } else { self.io("flush it", self.dir.sync()) }
    }

    /// Notes that `node_id` has this pool, so that volumes may be attached to it.
    pub fn register_node(&self, node_id: &str) -> Result<(), PoolError> {
        let name = names::node(node_id);
        if !self.knows_node(node_id)? {
            let text = serde_json::json!({ "nodeId": node_id }).to_string();
            let temporary = format!("{name}.tmp");
            self.io("note a node", self.dir.replace(&temporary, &name, text.as_bytes()))?;
        }
        Ok(())
    }

    /// The socket through which a node of this machine quiesces its volumes.
    pub fn quiesce_socket(&self, node_id: &str) -> PathBuf {
        self.dir.short_path(&names::quiesce_socket(node_id))
    }

    /// Whether a driver of that node ever opened this pool.
    pub fn knows_node(&self, node_id: &str) -> Result<bool, PoolError> {
        self.io("look for a node", self.dir.has_file(&names::node(node_id)))
    }
}
