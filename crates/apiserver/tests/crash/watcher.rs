//! Watches that outlive the server: they go on from where they were.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::ledger::{Answer, Ledger, content};

/// What one watch has seen.
#[derive(Default)]
struct Seen {
    /// How far it is.
    version: u64,
    /// Versions and values, and when an object went away.
    put: BTreeSet<(String, u64, String)>,
    deleted: BTreeMap<String, u64>,
    /// The first thing that was wrong.
    broken: Option<String>,
}

/// Several watches, followed by tasks.
pub struct Watchers {
    server: watch::Sender<Option<Api<ConfigMap>>>,
    seen: Vec<Arc<Mutex<Seen>>>,
    _tasks: JoinSet<()>,
}

impl Watchers {
    pub fn start(count: usize) -> Self {
        let server = watch::Sender::new(None);
        let mut tasks = JoinSet::new();
        let seen: Vec<Arc<Mutex<Seen>>> = (0..count).map(|_| Arc::default()).collect();
        for one in &seen {
            tasks.spawn(follow(server.subscribe(), Arc::clone(one)));
        }
        Self { server, seen, _tasks: tasks }
    }

    /// There is a new server.
    pub fn go_on_at(&self, server: Api<ConfigMap>) {
        self.server.send_replace(Some(server));
    }

    /// Waits until every watch has seen every answered write.
    pub async fn finish(&self, ledger: &Ledger) -> Result<(), String> {
        for seen in &self.seen {
            let mut missing = Vec::new();
            for _ in 0..3000 {
                if let Some(broken) = &seen.lock().broken {
                    return Err(broken.clone());
                }
                missing = unseen(&seen.lock(), ledger);
                if missing.is_empty() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if let Some(first) = missing.first() {
                let (count, at) = (missing.len(), seen.lock().version);
                return Err(format!(
                    "{first:?} was answered, but a watch at {at} never saw it ({count} such)"
                ));
            }
        }
        Ok(())
    }
}

fn unseen(seen: &Seen, ledger: &Ledger) -> Vec<(String, Answer)> {
    let was_seen = |name: &String, answer: &Answer| match answer {
        Answer::Put(version, value) => seen.put.contains(&(name.clone(), *version, value.clone())),
        Answer::Deleted(version) => seen.deleted.get(name).is_some_and(|at| at > version),
    };
    ledger.all().into_iter().filter(|(name, answer)| !was_seen(name, answer)).collect()
}

/// Watches from server to server.
async fn follow(mut server: watch::Receiver<Option<Api<ConfigMap>>>, seen: Arc<Mutex<Seen>>) {
    loop {
        let current = server.borrow_and_update().clone();
        let ended = async {
            if let Some(maps) = current {
                // Writes go on meanwhile, so the place to start is asked for only once.
                let _ = watch_until_end(&maps, &seen).await;
            }
        };
        ended.await;
        if seen.lock().broken.is_some() {
            return;
        }
        tokio::select! {
            changed = server.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
    }
}

async fn watch_until_end(maps: &Api<ConfigMap>, seen: &Mutex<Seen>) -> kube::Result<()> {
    let from = seen.lock().version;
    let from = match from {
        0 => {
            let listed = maps.list(&ListParams::default()).await?;
            for map in &listed {
                let (version, value) = content(map);
                seen.lock().put.insert((map.name_any(), version, value));
            }
            let version = listed.metadata.resource_version.unwrap_or_default();
            seen.lock().version = version.parse().unwrap();
            version
        }
        version => version.to_string(),
    };
    let mut events = maps.watch(&WatchParams::default(), &from).await?.boxed();
    while let Some(event) = events.try_next().await? {
        observe(&mut seen.lock(), event);
    }
    Ok(())
}

fn observe(seen: &mut Seen, event: WatchEvent<ConfigMap>) {
    let (map, gone) = match event {
        WatchEvent::Added(map) | WatchEvent::Modified(map) => (map, false),
        WatchEvent::Deleted(map) => (map, true),
        WatchEvent::Bookmark(_) => return,
        WatchEvent::Error(status) => {
            let at = seen.version;
            seen.broken.get_or_insert(format!("a watch lost its place at {at}: {status:?}"));
            return;
        }
    };
    let (version, value) = content(&map);
    if version <= seen.version {
        let at = seen.version;
        seen.broken.get_or_insert(format!("a watch at {at} went backwards to {version}"));
    }
    seen.version = version;
    if gone {
        seen.deleted.insert(map.name_any(), version);
    } else {
        seen.put.insert((map.name_any(), version, value));
    }
}
