//! Events tell what happened lately; they are not kept forever.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::target;
use crate::error::ApiResult;
use crate::ops::{Core, DeleteOptions};
use crate::store::Key;

/// An event goes this long after it was last written (or after a restart).
const KEPT: Duration = Duration::from_secs(3600);

/// Events in the order in which they will go. An event that was written again stands in it twice;
/// only the place of its current revision counts.
#[derive(Default)]
pub(super) struct Ages {
    queue: VecDeque<(Instant, Key, u64)>,
}

impl Ages {
    pub(super) fn observe(&mut self, key: &Key, revision: u64) {
        self.queue.push_back((Instant::now() + KEPT, key.clone(), revision));
    }

    /// When the next event may go.
    pub(super) fn next(&self) -> Option<Instant> {
        self.queue.front().map(|(due, _, _)| *due)
    }

    /// Deletes events that are due.
    pub(super) async fn expire(&mut self, core: &Core) -> ApiResult<()> {
        while let Some((due, key, revision)) = self.queue.front()
            && *due <= Instant::now()
        {
            let current = core.store.get(key).is_some_and(|event| event.revision == *revision);
            if current && let Some(target) = target(core, key) {
                match core.delete(&target, &DeleteOptions::default()).await {
                    Ok(_) => {}
                    Err(status) if status.code == 404 => {}
                    Err(status) => return Err(status),
                }
            }
            self.queue.pop_front();
        }
        Ok(())
    }
}
