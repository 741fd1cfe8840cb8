//! A local copy of the objects of one kind, kept by a watch and shared by all loops.
//!
//! Each process makes one [`Cache`] per kind and hands out clones. Objects are decoded straight
//! into slim records. A loop that writes hands the response to [`Cache::assume`], so that its next
//! pass does not read something older than its own write.

mod needs;
mod recent;
mod reflect;
mod shared;
mod store;
mod subscribe;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use longshore_core::model::{HasMeta, Kind, ObjectKey};
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::api::{Api, ListParams, key_of};
pub use needs::Needs;
use recent::Recent;
pub use shared::SharedCaches;
use store::Store;
use subscribe::Subscribers;
pub use subscribe::Subscription;

/// A kind that a [`Cache`] can hold.
pub trait Cacheable: Kind + HasMeta + DeserializeOwned + Send + Sync + 'static {}
impl<T: Kind + HasMeta + DeserializeOwned + Send + Sync + 'static> Cacheable for T {}

/// The part of a kind that a cache holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Only this namespace; all with `None`.
    pub namespace: Option<String>,
    /// Only objects whose labels match.
    pub label_selector: Option<String>,
    /// Only objects whose fields match.
    pub field_selector: Option<String>,
}

impl Scope {
    /// Every object of the kind.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// The objects of one namespace.
    #[must_use]
    pub fn namespace(namespace: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), ..Self::default() }
    }

    /// Objects whose fields match, for example `spec.nodeName=a`.
    #[must_use]
    pub fn fields(selector: impl Into<String>) -> Self {
        Self { field_selector: Some(selector.into()), ..Self::default() }
    }

    /// Objects whose labels match.
    #[must_use]
    pub fn labels(selector: impl Into<String>) -> Self {
        Self { label_selector: Some(selector.into()), ..Self::default() }
    }

    fn params(&self) -> ListParams {
        ListParams {
            label_selector: self.label_selector.clone(),
            field_selector: self.field_selector.clone(),
        }
    }

    fn is_selective(&self) -> bool {
        self.label_selector.is_some() || self.field_selector.is_some()
    }
}

/// One change of the cache, in the order the watch delivered it.
pub enum Change<T> {
    /// An object was added (`old` is `None`) or changed.
    Applied { old: Option<Arc<T>>, new: Arc<T> },
    /// An object was deleted; `old` is its last known state.
    Deleted { old: Arc<T> },
}

impl<T> Change<T> {
    /// The object: new state, or last state if it is gone.
    #[must_use]
    pub fn object(&self) -> &Arc<T> {
        match self {
            Self::Applied { new, .. } => new,
            Self::Deleted { old } => old,
        }
    }

    /// The new state of an object that was added or changed.
    #[must_use]
    pub fn applied(&self) -> Option<&Arc<T>> {
        match self {
            Self::Applied { new, .. } => Some(new),
            Self::Deleted { .. } => None,
        }
    }

    /// The last state of an object that was deleted.
    #[must_use]
    pub fn deleted(&self) -> Option<&Arc<T>> {
        match self {
            Self::Applied { .. } => None,
            Self::Deleted { old } => Some(old),
        }
    }
}

impl<T: HasMeta> fmt::Debug for Change<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            Self::Applied { .. } => "Applied",
            Self::Deleted { .. } => "Deleted",
        };
        let meta = self.object().meta();
        write!(f, "{word}({} @{})", meta.key(), meta.resource_version)
    }
}

/// The objects of one kind. Cheap to clone; all clones are the same cache.
///
/// ```
/// use longshore_cluster::{Cache, Change, ObjectKey, Scope};
/// use longshore_core::model::kinds::Namespace;
///
/// # use longshore_apiserver::{ApiServer, Config};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = ApiServer::open(Config::deterministic(1)).await?;
/// # let api = longshore_cluster::Api::new(server.client());
/// # let shutdown = tokio_util::sync::CancellationToken::new();
/// let (namespaces, _task) = Cache::<Namespace>::start(&api, Scope::all(), &shutdown);
/// namespaces.synced().await;
/// assert!(namespaces.get(&ObjectKey::cluster("default")).is_some());
/// let _subscription = namespaces.subscribe(|change| match change {
///     Change::Applied { new, .. } => println!("{}", new.metadata.name),
///     Change::Deleted { old } => println!("{} is gone", old.metadata.name),
/// });
/// # Ok(())
/// # }
/// ```
pub struct Cache<T> {
    inner: Arc<Inner<T>>,
}

impl<T> Clone for Cache<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

struct Inner<T> {
    scope: Scope,
    store: RwLock<Store<T>>,
    /// Held while the watch changes the store and notifies, so that every subscriber sees
    /// the same order. Taken before `store`, never after.
    subscribers: Arc<Mutex<Subscribers<T>>>,
    /// Cancelled after the first list. Waiting loops are woken in the order of arrival.
    synced: CancellationToken,
    recent: Mutex<Recent>,
    /// Why the API server does not let this process list or watch the kind, as long as it does not.
    refused: watch::Sender<Option<String>>,
}

impl<T: Cacheable> Cache<T> {
    /// Starts a cache and the task that keeps it. The task ends when `shutdown` is cancelled.
    #[must_use]
    pub fn start(api: &Api, scope: Scope, shutdown: &CancellationToken) -> (Self, JoinHandle<()>) {
        let cache = Self::idle(scope);
        let task = reflect::run(cache.clone(), api.clone(), shutdown.clone());
        (cache, tokio::spawn(unless_panicked(task)))
    }

    /// A cache without a watch yet.
    fn idle(scope: Scope) -> Self {
        let inner = Inner {
            scope,
            store: RwLock::new(Store::new()),
            subscribers: Arc::default(),
            synced: CancellationToken::new(),
            recent: Mutex::default(),
            refused: watch::Sender::new(None),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Waits for the first complete list; all subscribers know its objects by then.
    pub async fn synced(&self) {
        self.inner.synced.cancelled().await;
    }

    /// True after the first complete list.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.inner.synced.is_cancelled()
    }

    /// True if the watch is open and delivered an event or a bookmark within this time: the cache
    /// is not older than that. A quiet server cannot be distinguished from a lost one: false for
    /// both.
    #[must_use]
    pub fn is_fresh(&self, within: Duration) -> bool {
        self.inner.store.read().last_event.is_some_and(|at| at.elapsed() <= within)
    }

    /// Follows why the API server does not let this process list or watch the kind; `None` while it does.
    #[must_use]
    pub fn refused(&self) -> watch::Receiver<Option<String>> {
        self.inner.refused.subscribe()
    }

    /// Returns the object, or `None` if the cache does not hold it.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        self.inner.store.read().get(key)
    }

    /// All objects, ordered by namespace and name.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<T>> {
        self.inner.store.read().list()
    }

    /// How many objects there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.store.read().len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a secondary index. Can be done at any time; a second index of the same name is
    /// ignored, so that loops which share a cache need not agree who adds it. `values` is called
    /// under the cache's lock and must depend on nothing but the object.
    pub fn index(&self, name: &str, values: impl Fn(&T) -> Vec<String> + Send + Sync + 'static) {
        let mut store = self.inner.store.write();
        if !store.has_index(name) {
            store.add_index(name, Box::new(values));
        }
    }

    /// The objects that the index finds under `value`.
    #[must_use]
    pub fn by_index(&self, name: &str, value: &str) -> Vec<Arc<T>> {
        self.inner.store.read().by_index(name, value)
    }

    /// The first object, by namespace and name, that the index finds under `value`.
    #[must_use]
    pub fn first_by_index(&self, name: &str, value: &str) -> Option<Arc<T>> {
        self.inner.store.read().first_by_index(name, value)
    }

    /// One object of each value that the index has, in no order.
    #[must_use]
    pub fn one_of_each(&self, name: &str) -> Vec<Arc<T>> {
        self.inner.store.read().one_of_each(name)
    }

    /// How many objects the index finds under `value`.
    #[must_use]
    pub fn count_indexed(&self, name: &str, value: &str) -> usize {
        self.inner.store.read().count_indexed(name, value)
    }

    /// Whether the index finds anything under `value`.
    #[must_use]
    pub fn has_indexed(&self, name: &str, value: &str) -> bool {
        self.inner.store.read().has_indexed(name, value)
    }

    /// Calls `subscriber` for every object there is and for every later change, in order, after
    /// the store holds it, until the guard is dropped. It must be quick (put keys into queues) and
    /// must not subscribe.
    pub fn subscribe(
        &self,
        mut subscriber: impl FnMut(&Change<T>) + Send + 'static,
    ) -> Subscription {
        let mut subscribers = self.inner.subscribers.lock();
        for object in self.list() {
            subscriber(&Change::Applied { old: None, new: object });
        }
        let alive = subscribers.add(Box::new(subscriber));
        drop(subscribers);
        Subscription::new(&self.inner.subscribers, alive)
    }

    /// Counts the subscribers, for tests of loops that end.
    #[must_use]
    pub fn subscribers(&self) -> usize {
        self.inner.subscribers.lock().count()
    }

    /// Overlays the response to our own write until the watch catches up. A response that is older
    /// than the cached object changes nothing. Subscribers are notified when the watch delivers it.
    pub fn assume(&self, written: &Value) {
        let version = written["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if self.inner.store.read().has_seen(&key_of(written), version.parse().unwrap_or(0)) {
            return;
        }
        let object = match T::deserialize(written) {
            Ok(object) => object,
            Err(error) => {
                tracing::warn!(kind = T::KIND, %error, "own write is unreadable; waiting for the watch");
                return;
            }
        };
        let scope = &self.inner.scope;
        let foreign = scope.namespace.as_ref().is_some_and(|ns| *ns != object.meta().namespace);
        if !foreign {
            self.inner.store.write().assume(object, !scope.is_selective());
        }
    }

    /// Keeps the whole response to our own write for [`Self::take_written`]. Does nothing
    /// before [`Self::want_written`].
    pub fn keep_written(&self, written: Value) {
        self.inner.recent.lock().keep(key_of(&written), written);
    }

    /// Turns [`Self::keep_written`] on, for a loop that updates what another has just written.
    pub fn want_written(&self) {
        self.inner.recent.lock().want();
    }

    /// Takes the whole object if it was kept at this version: as good as reading it.
    #[must_use]
    pub fn take_written(&self, key: &ObjectKey, version: &str) -> Option<Value> {
        self.inner.recent.lock().take(key, version)
    }

    /// Applies changes to the store and notifies the subscribers.
    fn change(&self, act: impl FnOnce(&mut Store<T>) -> Vec<Change<T>>) {
        let mut subscribers = self.inner.subscribers.lock();
        let changes = act(&mut self.inner.store.write());
        for change in &changes {
            subscribers.notify(change);
        }
    }
}

/// The exit code of a process whose cache panicked, which is that of a panic.
const PANICKED: i32 = 101;

/// What all loops take for the truth must not be guessed: a cache that panics ends the process.
async fn unless_panicked(keep: impl Future<Output = ()>) {
    if AssertUnwindSafe(keep).catch_unwind().await.is_err() {
        tracing::error!("a cache panicked; the process ends");
        std::process::exit(PANICKED);
    }
}

#[cfg(test)]
mod tests {
    /// The process that ends is a child of this test binary, never the test process itself.
    #[test]
    fn a_cache_that_panics_ends_the_process() {
        const CHILD: &str = "LONGSHORE_TEST_CACHE_CHILD";
        const WENT_ON: &str = "the process went on";
        if std::env::var_os(CHILD).is_some() {
            let runtime = tokio::runtime::Runtime::new().expect("runtime");
            runtime.block_on(super::unless_panicked(async { panic!("a cache is confused") }));
            println!("{WENT_ON}");
            return;
        }
        let name = "cache::tests::a_cache_that_panics_ends_the_process";
        let exe = std::env::current_exe().expect("own path");
        let child = std::process::Command::new(exe)
            .args(["--exact", "--nocapture", name])
            .env(CHILD, "1")
            .output()
            .expect("child runs");
        let said = String::from_utf8_lossy(&child.stdout);
        assert_eq!(child.status.code(), Some(super::PANICKED), "{said}");
        assert!(!said.contains(WENT_ON), "{said}");
    }
}
