//! What the server has promised.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ObjectList, PostParams};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;

/// An answered write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The object has this version and value.
    Put(u64, String),
    /// The object is gone; it had this version.
    Deleted(u64),
}

#[derive(Default)]
struct Promises {
    /// The newest answer about each object.
    newest: BTreeMap<String, Answer>,
    /// All answers.
    all: Vec<(String, Answer)>,
    /// Objects with a request under way: old or new, both are right.
    open: BTreeSet<String>,
}

/// Everything that was answered, by all writers.
#[derive(Default)]
pub struct Ledger {
    promises: Mutex<Promises>,
    count: watch::Sender<usize>,
}

impl Ledger {
    fn asks(&self, name: &str) {
        self.promises.lock().open.insert(name.into());
    }

    fn answered(&self, name: &str, answer: Answer) {
        let mut promises = self.promises.lock();
        promises.open.remove(name);
        promises.newest.insert(name.into(), answer.clone());
        promises.all.push((name.into(), answer));
        self.count.send_replace(promises.all.len());
    }

    pub fn answers(&self) -> usize {
        *self.count.borrow()
    }

    pub async fn wait_for(&self, answers: usize) {
        let mut count = self.count.subscribe();
        count.wait_for(|count| *count >= answers).await.unwrap();
    }

    /// Every answer so far.
    pub fn all(&self) -> Vec<(String, Answer)> {
        self.promises.lock().all.clone()
    }

    /// Compares with a list from a server that has just started.
    pub fn check(&self, listed: &ObjectList<ConfigMap>) -> Result<(), String> {
        let promises = self.promises.lock();
        let found: BTreeMap<String, (u64, String)> =
            listed.iter().map(|map| (map.name_any(), content(map))).collect();
        for (name, answer) in &promises.newest {
            let found = found.get(name);
            let kept = promises.open.contains(name)
                || match answer {
                    Answer::Put(version, value) => found == Some(&(*version, value.clone())),
                    Answer::Deleted(_) => found.is_none(),
                };
            if !kept {
                return Err(format!("{name}: {answer:?} was answered, but there is {found:?}"));
            }
        }
        Ok(())
    }
}

/// Version and value.
pub fn content(map: &ConfigMap) -> (u64, String) {
    let version = map.resource_version().unwrap().parse().unwrap();
    let value = map.data.as_ref().and_then(|data| data.get("k")).cloned();
    (version, value.unwrap_or_default())
}

/// Creates, changes and deletes until the connection breaks.
pub async fn write_until_killed(maps: Api<ConfigMap>, prefix: String, ledger: Arc<Ledger>) {
    let put = |map: &ConfigMap| {
        let (version, value) = content(map);
        Answer::Put(version, value)
    };
    for i in 0.. {
        let name = format!("{prefix}-{i}");
        let map = json!({"metadata": {"name": name}, "data": {"k": "1"}});
        let map: ConfigMap = serde_json::from_value(map).unwrap();
        ledger.asks(&name);
        let Ok(mut made) = maps.create(&PostParams::default(), &map).await else { return };
        ledger.answered(&name, put(&made));
        if i % 2 == 0 {
            ledger.asks(&name);
            made.data = Some(BTreeMap::from([("k".into(), "2".into())]));
            match maps.replace(&name, &PostParams::default(), &made).await {
                Ok(changed) => made = changed,
                Err(_) => return,
            }
            ledger.answered(&name, put(&made));
        }
        if i % 3 == 0 {
            ledger.asks(&name);
            let Ok(_) = maps.delete(&name, &DeleteParams::default()).await else { return };
            ledger.answered(&name, Answer::Deleted(content(&made).0));
        }
    }
}
