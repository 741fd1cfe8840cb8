//! Who is under way, so that what can wait lets the work pass first.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// With more requests than this under way, what can wait does.
const CALM: usize = 4;
/// But not longer than this.
const PATIENCE: Duration = Duration::from_secs(1);

/// The requests under way that cannot wait.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    count: AtomicUsize,
    calmed: Notify,
}

impl Crowd {
    /// Counts a request until the answer is dropped.
    pub(crate) fn enter(&self) -> Place<'_> {
        self.count.fetch_add(1, Ordering::Relaxed);
        Place { crowd: self }
    }

    /// Whether few are under way.
    pub(crate) fn is_calm(&self) -> bool {
        self.count.load(Ordering::Relaxed) <= CALM
    }

    /// Waits until few are under way, or until patience ends.
    pub(crate) async fn wait(&self) {
        let calm = async {
            loop {
                // Made before the look, so that no news is missed in between.
                let calmed = self.calmed.notified();
                if self.is_calm() {
                    return;
                }
                calmed.await;
            }
        };
        let _ = tokio::time::timeout(PATIENCE, calm).await;
    }
}

/// A request under way.
pub(crate) struct Place<'a> {
    crowd: &'a Crowd,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.crowd.count.fetch_sub(1, Ordering::Relaxed) == CALM + 1 {
            self.crowd.calmed.notify_waiters();
        }
    }
}
