//! Counts requests in flight, so that low-priority requests are delayed under load.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// With more requests than this in flight, low-priority requests are delayed.
const SATURATED_ABOVE: usize = 4;
/// A low-priority request is sent after this delay at the latest.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// The requests of normal priority that wait for their response.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    count: AtomicUsize,
    drained: Notify,
}

impl InFlight {
    /// Counts a request until the guard is dropped.
    pub(crate) fn enter(&self) -> Counted<'_> {
        self.count.fetch_add(1, Ordering::Relaxed);
        Counted { in_flight: self }
    }

    pub(crate) fn is_saturated(&self) -> bool {
        self.count.load(Ordering::Relaxed) > SATURATED_ABOVE
    }

    /// Delays a low-priority request while the API is saturated.
    pub(crate) async fn wait(&self) {
        let unsaturated = async {
            loop {
                // Made before the check, so that a notification in between is not missed.
                let drained = self.drained.notified();
                if !self.is_saturated() {
                    return;
                }
                drained.await;
            }
        };
        let _ = tokio::time::timeout(MAX_DELAY, unsaturated).await;
    }
}

pub(crate) struct Counted<'a> {
    in_flight: &'a InFlight,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if self.in_flight.count.fetch_sub(1, Ordering::Relaxed) == SATURATED_ABOVE + 1 {
            self.in_flight.drained.notify_waiters();
        }
    }
}
