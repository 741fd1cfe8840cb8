//! Tasks of the server itself: definitions of custom resources are served, namespaces are emptied, dependents of gone owners deleted, old
//! events forgotten, and every namespace gets its default service account.
//!
//! One task reads all changes in order and keeps a small index; what it decides it then does
//! through the same verbs that clients use. It looks at the store again before each deletion, so
//! an index that lags behind can delay work but never delete too much.

mod accounts;
mod definitions;
mod events;
mod migrations;
mod namespaces;
mod owners;
mod roles;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::crd;
use crate::ops::{Core, Target};
use crate::registry::{Registry, Resource};
use crate::store::{Change, Event, Key};

pub(crate) use definitions::settle as settle_definitions;
pub(crate) use roles::first_roles;

/// Work that failed is tried again after this long.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const MAX_EVENTS: usize = 1024;

/// Runs until the server closes.
pub(crate) async fn run(core: Arc<Core>, event_ttl: Duration, closing: CancellationToken) {
    let mut changed = core.store.subscribe_all();
    let mut keeper = Keeper::new(core, event_ttl);
    loop {
        keeper.follow();
        let failed = tokio::select! {
            biased;
            () = closing.cancelled() => return,
            failed = keeper.work() => failed,
        };
        let retry = failed.then(|| Instant::now() + RETRY_AFTER);
        let wake =
            [retry, keeper.events.next(), keeper.next_namespace()].into_iter().flatten().min();
        let sleep = async {
            match wake {
                Some(wake) => tokio::time::sleep_until(wake).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = closing.cancelled() => return,
            () = changed.changed() => {}
            () = sleep => {}
        }
    }
}

/// Serves the kinds of stored definitions before the first request.
pub(crate) fn serve_stored(core: &Core) {
    let stored = core.store.list(definitions::STORAGE, None).objects;
    let all: Vec<serde_json::Value> = stored.iter().map(|object| object.value()).collect();
    core.serve(all.iter().filter(|definition| crd::is_established(definition)));
}

/// What the task knows, and what it still has to look at.
struct Keeper {
    core: Arc<Core>,
    /// The kinds that are followed.
    registry: Arc<Registry>,
    /// How far each resource's changes have been read; `None` before the first look.
    cursors: BTreeMap<Arc<str>, Option<u64>>,
    /// Nothing of what changed up to here has been left out.
    looked: u64,
    owners: owners::Index,
    events: events::Ages,
    /// Namespaces on their way out, and when their content goes.
    terminating: BTreeMap<String, Instant>,
    /// Namespaces whose default account has to be checked.
    accounts: BTreeSet<String>,
    /// Objects whose owners or dependents have to be checked.
    suspects: BTreeSet<Key>,
    /// Whether definitions have to be looked at.
    definitions: bool,
    /// Whether migrations have to be looked at.
    migrations: bool,
    /// Whether roles that are put together from others have to be looked at.
    roles: bool,
    /// Where the objects of definitions on their way out are stored.
    ending: BTreeSet<String>,
}

impl Keeper {
    fn new(core: Arc<Core>, event_ttl: Duration) -> Self {
        let registry = core.registry();
        let cursors = registry.stored().map(|r| (Arc::clone(&r.storage), None)).collect();
        Self {
            core,
            registry,
            cursors,
            looked: 0,
            owners: owners::Index::default(),
            events: events::Ages::new(event_ttl),
            terminating: BTreeMap::new(),
            accounts: BTreeSet::new(),
            suspects: BTreeSet::new(),
            definitions: true,
            migrations: true,
            roles: true,
            ending: BTreeSet::new(),
        }
    }

    /// Follows new kinds and forgets those that are gone.
    fn follow_kinds(&mut self) {
        let registry = self.core.registry();
        if Arc::ptr_eq(&registry, &self.registry) {
            return;
        }
        let served: BTreeSet<Arc<str>> =
            registry.stored().map(|r| Arc::clone(&r.storage)).collect();
        let gone: Vec<Arc<str>> =
            self.cursors.keys().filter(|storage| !served.contains(*storage)).cloned().collect();
        for storage in gone {
            self.cursors.remove(&storage);
            self.owners.forget_resource(&storage);
        }
        for storage in served {
            self.cursors.entry(storage).or_insert(None);
        }
        self.registry = registry;
    }

    /// Reads all changes since the last time.
    fn follow(&mut self) {
        self.follow_kinds();
        let (now, mut resources) = self.core.store.changed_after(self.looked);
        self.looked = now;
        resources.retain(|resource| self.cursors.contains_key(resource));
        let fresh = self.cursors.iter().filter(|(_, cursor)| cursor.is_none());
        resources.extend(fresh.map(|(resource, _)| Arc::clone(resource)));
        for resource in resources {
            loop {
                let cursor = self.cursors.get(&resource).copied().flatten();
                let read = cursor
                    .and_then(|at| self.core.store.events_after(&resource, at, MAX_EVENTS).ok());
                let Some((events, reached)) = read else {
                    self.relist(&resource);
                    break;
                };
                self.cursors.insert(Arc::clone(&resource), Some(reached));
                for event in &events {
                    self.observe(event);
                }
                if events.len() < MAX_EVENTS {
                    break;
                }
            }
        }
    }

    /// Starts a resource over: at first, or after falling behind the history.
    fn relist(&mut self, resource: &Arc<str>) {
        let page = self.core.store.list(resource, None);
        self.owners.forget_resource(resource);
        for object in page.objects {
            let key = Key {
                resource: Arc::clone(resource),
                namespace: object.namespace.clone(),
                name: object.name.clone(),
            };
            let revision = object.revision;
            let change = Change::Put;
            self.observe(&Event { revision, key, change, object, previous: None });
        }
        self.cursors.insert(Arc::clone(resource), Some(page.revision));
    }

    fn observe(&mut self, event: &Event) {
        let gone = event.change == Change::Delete;
        match &*event.key.resource {
            "namespaces" => {
                let name = event.key.name.clone();
                if !gone && event.object.deleting {
                    let grace = self.core.settings.namespace_grace;
                    self.terminating.entry(name).or_insert_with(|| Instant::now() + grace);
                } else {
                    self.terminating.remove(&name);
                    if !gone {
                        self.accounts.insert(name);
                    }
                }
            }
            "events" if gone => self.events.forget(&event.key),
            "events" => self.events.observe(&event.key, event.revision),
            "serviceaccounts" if gone => {
                self.accounts.insert(event.key.namespace.clone());
            }
            definitions::STORAGE => {
                self.definitions = true;
                let (plural, group) = event.key.name.split_once('.').unwrap_or_default();
                let storage = format!("{group}/{plural}");
                if !gone && event.object.deleting {
                    self.ending.insert(storage);
                } else {
                    self.ending.remove(&storage);
                }
            }
            roles::STORAGE => self.roles = true,
            migrations::STORAGE => self.migrations |= !gone,
            storage if gone && self.ending.contains(storage) => self.definitions = true,
            _ => {}
        }
        self.suspects.extend(self.owners.observe(event));
    }

    /// When the content of a namespace is next to go.
    fn next_namespace(&self) -> Option<Instant> {
        let now = Instant::now();
        self.terminating.values().copied().filter(|at| *at > now).min()
    }

    /// Does what is to be done; true when something has to be tried again.
    async fn work(&mut self) -> bool {
        let mut failed = false;
        if std::mem::take(&mut self.definitions)
            && let Err(status) = definitions::settle(&self.core).await
        {
            tracing::debug!(%status, "definitions are looked at again later");
            self.definitions = true;
            failed = true;
        }
        if std::mem::take(&mut self.roles) && roles::aggregate(&self.core).await.is_err() {
            self.roles = true;
            failed = true;
        }
        if std::mem::take(&mut self.migrations) && migrations::settle(&self.core).await.is_err() {
            self.migrations = true;
            failed = true;
        }
        let now = Instant::now();
        let due = self.terminating.iter().filter(|(_, at)| **at <= now);
        for name in due.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            failed |= namespaces::empty(&self.core, &name).await.is_err();
        }
        failed |= self.events.expire(&self.core).await.is_err();
        for name in std::mem::take(&mut self.accounts) {
            if accounts::ensure(&self.core, &name).await.is_err() {
                self.accounts.insert(name);
                failed = true;
            }
        }
        for key in std::mem::take(&mut self.suspects) {
            if let Err(status) = owners::settle(&self.core, &self.owners, &key).await {
                tracing::debug!(%key, %status, "owners are looked at again later");
                self.suspects.insert(key);
                failed = true;
            }
        }
        failed
    }
}

/// The kind that is stored under a name.
fn stored_kind(core: &Core, storage: &str) -> Option<Arc<Resource>> {
    core.registry().stored().find(|r| &*r.storage == storage).cloned()
}

fn target(core: &Core, key: &Key) -> Option<Target> {
    Some(Target {
        resource: stored_kind(core, &key.resource)?,
        namespace: key.namespace.clone(),
        name: key.name.clone(),
    })
}
