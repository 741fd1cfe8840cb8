//! The subscribers of a cache, each notified until its guard is dropped.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use longshore_core::model::{HasMeta, Kind};
use parking_lot::Mutex;

use super::Change;

type Notify<T> = Box<dyn FnMut(&Change<T>) + Send>;

/// The subscribers of one cache.
pub(super) struct Subscribers<T> {
    all: Vec<Subscriber<T>>,
}

struct Subscriber<T> {
    alive: Arc<AtomicBool>,
    notify: Notify<T>,
}

impl<T> Default for Subscribers<T> {
    fn default() -> Self {
        Self { all: Vec::new() }
    }
}

impl<T> Subscribers<T> {
    pub(super) fn add(&mut self, notify: Notify<T>) -> Arc<AtomicBool> {
        let alive = Arc::new(AtomicBool::new(true));
        self.all.push(Subscriber { alive: alive.clone(), notify });
        alive
    }

    pub(super) fn count(&self) -> usize {
        self.all.iter().filter(|one| one.alive.load(Ordering::Acquire)).count()
    }

    fn remove_dead(&mut self) {
        self.all.retain(|one| one.alive.load(Ordering::Acquire));
    }
}

impl<T: Kind + HasMeta> Subscribers<T> {
    /// Notifies each subscriber of one change.
    pub(super) fn notify(&mut self, change: &Change<T>) {
        self.remove_dead();
        for subscriber in &mut self.all {
            // One loop's mistake must not stop the watch that all loops live on.
            let notify = AssertUnwindSafe(|| (subscriber.notify)(change));
            if std::panic::catch_unwind(notify).is_err() {
                let object = change.object().meta().key();
                tracing::error!(kind = T::KIND, %object, "a subscriber panicked");
            }
        }
    }
}

/// Keeps a subscription alive; dropping it unsubscribes. A notification that runs on another
/// thread at that moment is finished.
#[must_use = "the subscription ends when this is dropped"]
pub struct Subscription {
    alive: Arc<AtomicBool>,
    cache: Weak<dyn Removal>,
}

impl Subscription {
    pub(super) fn new<T: 'static>(
        cache: &Arc<Mutex<Subscribers<T>>>,
        alive: Arc<AtomicBool>,
    ) -> Self {
        let cache: Weak<Mutex<Subscribers<T>>> = Arc::downgrade(cache);
        Self { alive, cache }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.alive.store(false, Ordering::Release);
        if let Some(cache) = self.cache.upgrade() {
            cache.remove_dead();
        }
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Subscription")
    }
}

/// The subscribers of a cache of whatever kind.
trait Removal: Any + Send + Sync {
    fn remove_dead(&self);
}

impl<T: 'static> Removal for Mutex<Subscribers<T>> {
    /// Removes subscribers whose guard is gone. The lock may be held by the very notification that
    /// drops the guard, so it is only tried; the next change removes what is left.
    fn remove_dead(&self) {
        if let Some(mut subscribers) = self.try_lock() {
            subscribers.remove_dead();
        }
    }
}
