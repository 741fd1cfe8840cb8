//! The kinds without which a loop cannot work.

use futures::future::{BoxFuture, FutureExt as _, select_all};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Cache, Cacheable};
use crate::controller::Context;

/// Caches that a loop waits for before its first pass.
///
/// They are filled before the loop leads, so that a standby takes over with warm caches; and a kind that the process may
/// not watch stops only the loops that need it.
#[derive(Default)]
pub struct Needs(Vec<Need>);

struct Need {
    kind: &'static str,
    synced: CancellationToken,
    refused: watch::Receiver<Option<String>>,
}

impl Need {
    fn refusal(&self) -> BoxFuture<'_, (&'static str, String)> {
        async {
            let mut refused = self.refused.clone();
            let refused = refused.wait_for(Option::is_some).await;
            match refused.ok().and_then(|why| why.clone()) {
                Some(why) => (self.kind, why),
                // The cache has ended, and so has everything that needs it.
                None => std::future::pending().await,
            }
        }
        .boxed()
    }
}

impl Needs {
    /// Needs a kind. Its cache is started, if it was not before.
    #[must_use]
    pub fn of<T: Cacheable>(context: &Context) -> Self {
        Self::default().and::<T>(context)
    }

    /// Needs another kind as well.
    #[must_use]
    pub fn and<T: Cacheable>(mut self, context: &Context) -> Self {
        let cache: Cache<T> = context.cache();
        let (synced, refused) = (cache.inner.synced.clone(), cache.refused());
        self.0.push(Need { kind: T::KIND, synced, refused });
        self
    }

    /// Waits for the first list of each.
    pub async fn synced(&self) {
        for need in &self.0 {
            need.synced.cancelled().await;
        }
    }

    /// Waits until one of them may not be listed or watched, and says which, and what the API server said.
    pub async fn refusal(&self) -> (&'static str, String) {
        let waits: Vec<_> = self.0.iter().map(Need::refusal).collect();
        if waits.is_empty() {
            return std::future::pending().await;
        }
        select_all(waits).await.0
    }

    /// Waits until every one of them may be listed and watched again.
    pub async fn allowed(&self) {
        for need in &self.0 {
            let _ = need.refused.clone().wait_for(Option::is_none).await;
        }
    }
}
