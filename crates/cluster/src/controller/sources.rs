//! The sources of a loop's keys: caches, their changes, and resyncs.

use std::sync::Arc;

use futures::future::{BoxFuture, join_all};

use super::Reconciler;
use crate::cache::{Cache, Cacheable, Change, Subscription};
use crate::queue::WorkQueue;

type Subscribe = Box<dyn FnOnce() -> Subscription + Send>;
/// Enqueues every object of a cache.
pub(super) type Resync = Box<dyn Fn() + Send + Sync>;

/// The caches of a loop, and which keys their changes concern. Subscriptions are made in the order
/// in which they are named here.
pub struct Sources<R: Reconciler> {
    reconciler: Arc<R>,
    queue: WorkQueue<R::Key>,
    synced: Vec<BoxFuture<'static, ()>>,
    subscribe: Vec<Subscribe>,
    resyncs: Vec<Resync>,
}

impl<R: Reconciler> Sources<R> {
    pub(super) fn new(reconciler: Arc<R>, queue: WorkQueue<R::Key>) -> Self {
        let (synced, subscribe, resyncs) = (Vec::new(), Vec::new(), Vec::new());
        Self { reconciler, queue, synced, subscribe, resyncs }
    }

    /// The loop reads this cache: it waits for its first list, and its changes concern no key.
    pub fn needs<T: Cacheable>(&mut self, cache: &Cache<T>) -> &mut Self {
        let cache = cache.clone();
        self.synced.push(Box::pin(async move { cache.synced().await }));
        self
    }

    /// Enqueues the keys that a change of this cache concerns.
    pub fn on<T, Keys>(
        &mut self,
        cache: &Cache<T>,
        keys_of: impl Fn(&R, &Change<T>) -> Keys + Send + 'static,
    ) -> &mut Self
    where
        T: Cacheable,
        Keys: IntoIterator<Item = R::Key>,
    {
        self.needs(cache).on_optional(cache, keys_of)
    }

    /// Like [`Self::on`], for a kind that the loop may lack the right to watch: it does not wait for
    /// the first list.
    pub fn on_optional<T, Keys>(
        &mut self,
        cache: &Cache<T>,
        keys_of: impl Fn(&R, &Change<T>) -> Keys + Send + 'static,
    ) -> &mut Self
    where
        T: Cacheable,
        Keys: IntoIterator<Item = R::Key>,
    {
        let (cache, queue, reconciler) =
            (cache.clone(), self.queue.clone(), self.reconciler.clone());
        self.subscribe.push(Box::new(move || {
            cache.subscribe(move |change| {
                keys_of(&reconciler, change).into_iter().for_each(|key| queue.add(key));
            })
        }));
        self
    }

    /// Shows every change of this cache to the loop, which keeps what it needs of it and enqueues
    /// keys itself.
    pub fn observe<T: Cacheable>(
        &mut self,
        cache: &Cache<T>,
        observe: impl Fn(&R, &Change<T>) + Send + 'static,
    ) -> &mut Self {
        self.on(cache, move |reconciler, change| {
            observe(reconciler, change);
            None
        })
    }

    /// At each resync, enqueues the key of every object of this cache.
    pub fn on_resync<T, Keys>(
        &mut self,
        cache: &Cache<T>,
        keys_of: impl Fn(&R, &T) -> Keys + Send + Sync + 'static,
    ) -> &mut Self
    where
        T: Cacheable,
        Keys: IntoIterator<Item = R::Key>,
    {
        let (cache, queue, reconciler) =
            (cache.clone(), self.queue.clone(), self.reconciler.clone());
        self.resyncs.push(Box::new(move || {
            for object in cache.list() {
                keys_of(&reconciler, &object).into_iter().for_each(|key| queue.add(key));
            }
        }));
        self
    }

    /// Waits for the first list of every cache.
    pub(super) async fn synced(&mut self) {
        join_all(std::mem::take(&mut self.synced)).await;
    }

    pub(super) fn resyncs(&mut self) -> Vec<Resync> {
        std::mem::take(&mut self.resyncs)
    }

    pub(super) fn subscribe(self) -> Vec<Subscription> {
        self.subscribe.into_iter().map(|subscribe| subscribe()).collect()
    }
}
