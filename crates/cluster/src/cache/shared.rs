//! One cache per kind for all loops of a process.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{Cache, Cacheable, Scope};
use crate::api::Api;

type Synced = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Makes each kind's cache when it is first asked for, and hands out clones. Cheap to clone.
#[derive(Clone)]
pub struct SharedCaches {
    inner: Arc<Inner>,
}

struct Inner {
    api: Api,
    shutdown: CancellationToken,
    caches: Mutex<BTreeMap<TypeId, Shared>>,
}

struct Shared {
    cache: Box<dyn Any + Send + Sync>,
    synced: Synced,
}

impl Shared {
    fn new<T: Cacheable>(cache: Cache<T>) -> Self {
        let waiting = cache.clone();
        let synced: Synced = Box::new(move || {
            let cache = waiting.clone();
            Box::pin(async move { cache.synced().await })
        });
        Self { cache: Box::new(cache), synced }
    }
}

impl SharedCaches {
    /// No caches yet. Those made later end with `shutdown`.
    #[must_use]
    pub fn new(api: &Api, shutdown: &CancellationToken) -> Self {
        let inner = Inner {
            api: api.clone(),
            shutdown: shutdown.clone(),
            caches: Mutex::new(BTreeMap::new()),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The cache of all objects of a kind. Must be called within the runtime.
    #[must_use]
    pub fn of<T: Cacheable>(&self) -> Cache<T> {
        let mut caches = self.inner.caches.lock();
        let shared = caches.entry(TypeId::of::<T>()).or_insert_with(|| {
            let (cache, _task) =
                Cache::<T>::start(&self.inner.api, Scope::all(), &self.inner.shutdown);
            Shared::new(cache)
        });
        let cache = shared.cache.downcast_ref::<Cache<T>>();
        cache.expect("kept under its own type").clone()
    }

    /// From now on hands out this cache for its kind, for example one of a narrower scope.
    pub fn put<T: Cacheable>(&self, cache: Cache<T>) {
        self.inner.caches.lock().insert(TypeId::of::<T>(), Shared::new(cache));
    }

    /// Waits until every cache made so far has its first list.
    pub async fn synced(&self) {
        let waits: Vec<_> = self.inner.caches.lock().values().map(|s| (s.synced)()).collect();
        futures::future::join_all(waits).await;
    }
}
