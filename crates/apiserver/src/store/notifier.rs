//! Tells watches that a resource has changed.
//!
//! Tokio's `watch` channel would do, but it wakes its receivers in random order. Here the order
//! follows from the order of subscription, so that a simulated run can be repeated exactly.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Waiting subscribers are spread over so many locks.
const LANES: usize = 8;

#[derive(Default)]
struct Shared {
    /// Of the last change.
    revision: AtomicU64,
    changes: AtomicU64,
    next_lane: AtomicUsize,
    subscribers: AtomicUsize,
    lanes: [Notify; LANES],
}

/// Wakes the subscribers of a resource.
#[derive(Default)]
pub(super) struct Notifier(Arc<Shared>);

impl Notifier {
    pub(super) fn new(revision: u64) -> Self {
        let notifier = Self::default();
        notifier.0.revision.store(revision, Ordering::Release);
        notifier
    }

    pub(super) fn notify(&self, revision: u64) {
        self.0.revision.store(revision, Ordering::Release);
        self.0.changes.fetch_add(1, Ordering::AcqRel);
        self.0.lanes.iter().for_each(Notify::notify_waiters);
    }

    pub(super) fn subscribe(&self) -> Subscription {
        self.0.subscribers.fetch_add(1, Ordering::AcqRel);
        let lane = self.0.next_lane.fetch_add(1, Ordering::Relaxed) % LANES;
        let seen = self.0.changes.load(Ordering::Acquire);
        Subscription { shared: Arc::clone(&self.0), seen, lane }
    }

    pub(super) fn has_subscribers(&self) -> bool {
        self.0.subscribers.load(Ordering::Acquire) > 0
    }
}

/// Hears of changes from its subscription on.
pub struct Subscription {
    shared: Arc<Shared>,
    seen: u64,
    lane: usize,
}

impl Subscription {
    /// Returns when there was a change since the last return. Several changes may be one wake-up, and
    /// none is lost if the future is dropped.
    pub async fn changed(&mut self) {
        loop {
            let mut notified = pin!(self.shared.lanes[self.lane].notified());
            // Before the look at the counter: a change in between must not be missed.
            notified.as_mut().enable();
            let changes = self.shared.changes.load(Ordering::Acquire);
            if changes != self.seen {
                self.seen = changes;
                return;
            }
            notified.await;
        }
    }

    /// The revision of the last change.
    pub fn revision(&self) -> u64 {
        self.shared.revision.load(Ordering::Acquire)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.shared.subscribers.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn a_change_is_heard_once_and_never_missed() {
        let notifier = Notifier::new(4);
        let mut first = notifier.subscribe();
        assert_eq!((first.revision(), first.changed().now_or_never()), (4, None));
        notifier.notify(5);
        notifier.notify(6);
        let mut late = notifier.subscribe();
        first.changed().await;
        assert_eq!((first.revision(), first.changed().now_or_never()), (6, None));
        assert_eq!(late.changed().now_or_never(), None);
        let waiting = tokio::spawn(async move { late.changed().await });
        tokio::task::yield_now().await;
        notifier.notify(7);
        waiting.await.unwrap();
        assert!(notifier.has_subscribers());
        drop(first);
        assert!(!notifier.has_subscribers());
    }

    #[tokio::test]
    async fn subscribers_are_woken_in_the_same_order_every_time() {
        let mut orders = Vec::new();
        for _ in 0..3 {
            let (notifier, heard) = (Notifier::default(), Arc::new(parking_lot::Mutex::default()));
            let tasks: Vec<_> = (0..20)
                .map(|number| {
                    let (mut one, heard) = (notifier.subscribe(), Arc::clone(&heard));
                    tokio::spawn(async move {
                        one.changed().await;
                        let mut heard: parking_lot::MutexGuard<'_, Vec<i32>> = heard.lock();
                        heard.push(number);
                    })
                })
                .collect();
            tokio::task::yield_now().await;
            notifier.notify(1);
            futures::future::join_all(tasks).await;
            orders.push(heard.lock().clone());
        }
        assert_eq!((orders[0].len(), &orders[1]), (20, &orders[0]));
        assert_eq!(orders[2], orders[0]);
    }
}
