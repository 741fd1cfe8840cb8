//! Events tell what happened lately; they are not kept forever.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::target;
use crate::error::ApiResult;
use crate::ops::{Core, DeleteOptions};
use crate::store::Key;

/// When each event goes: so long after it was last written (or after a restart).
pub(super) struct Ages {
    kept: Duration,
    /// Every event once, in the order in which they go.
    queue: BTreeSet<(Instant, Key)>,
    /// Where an event stands in the queue, and its revision.
    known: HashMap<Key, (Instant, u64)>,
}

impl Ages {
    pub(super) fn new(kept: Duration) -> Self {
        Self { kept, queue: BTreeSet::new(), known: HashMap::new() }
    }

    /// An event was written.
    pub(super) fn observe(&mut self, key: &Key, revision: u64) {
        self.forget(key);
        let due = Instant::now() + self.kept;
        self.known.insert(key.clone(), (due, revision));
        self.queue.insert((due, key.clone()));
    }

    /// An event is gone.
    pub(super) fn forget(&mut self, key: &Key) {
        if let Some((due, _)) = self.known.remove(key) {
            self.queue.remove(&(due, key.clone()));
        }
    }

    /// When the next event may go.
    pub(super) fn next(&self) -> Option<Instant> {
        self.queue.first().map(|(due, _)| *due)
    }

    /// Deletes events that are due.
    pub(super) async fn expire(&mut self, core: &Core) -> ApiResult<()> {
        while let Some((due, key)) = self.queue.first().cloned()
            && due <= Instant::now()
        {
            let revision = self.known.get(&key).map(|(_, revision)| *revision);
            let current = core.store.get(&key).map(|event| event.revision);
            // One that was written again comes back here as such.
            if current.is_some()
                && current == revision
                && let Some(target) = target(core, &key)
            {
                match core.delete(&target, &DeleteOptions::default()).await {
                    Ok(_) => {}
                    Err(status) if status.code == 404 => {}
                    Err(status) => return Err(status),
                }
            }
            self.forget(&key);
        }
        Ok(())
    }
}
