//! Intents: what was asked of the driver and has no outcome yet.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use longshore_cluster::{Api, ApiError, Cache, DeleteParams, WorkQueue};
use longshore_core::{
    model::{
        ObjectKey,
        keys::{annotations, labels},
        kinds::ConfigMap,
    },
    provision::Plan,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;

/// The value of the label that marks an intent of this kind.
pub const INTENT_KIND: &str = "create-volume";

/// More records than this do not wait to be dropped: after a crash each is looked into.
const MOST_FINISHED: usize = 5000;

/// The key of the plan in the record.
const PLAN: &str = "plan";

/// The name of the record for a claim.
#[must_use]
pub fn intent_name(claim_uid: &str) -> String {
    format!("longshore-create-volume-{claim_uid}")
}

/// The labels of records of one driver, or of one node's instance of it.
pub(super) fn selector(driver: &str, node: Option<&str>) -> String {
    let driver = label_value(driver);
    let all = format!("{}={INTENT_KIND},{}={driver}", labels::INTENT, labels::INTENT_DRIVER);
    match node {
        Some(node) => format!("{all},{}={}", labels::INTENT_NODE, label_value(node)),
        None => all,
    }
}

/// Driver and node names have letters, digits, dashes and dots: cut to 63 they fit a label.
fn label_value(name: &str) -> String {
    name.chars().take(63).collect()
}

/// The records, and which of them this process is working on.
#[derive(Clone)]
pub(super) struct Intents {
    api: Api,
    records: Cache<ConfigMap>,
    namespace: String,
    driver: String,
    node: Option<String>,
    work: Arc<Work>,
}

/// Who works on which intent, by claim UID.
#[derive(Default)]
struct Work {
    /// Somebody is deciding over it right now.
    taken: Mutex<HashSet<String>>,
    freed: Notify,
    /// The claim's own turns will bring it to its end: a call is to be repeated, or a volume to
    /// be saved.
    owned: Mutex<HashSet<String>>,
    /// The outcome is in the API; only the record has to go, when there is time for it.
    finished: Mutex<HashSet<String>>,
    /// Who drops those records.
    resolver: Mutex<Option<WorkQueue<String>>>,
}

/// The right to decide over one intent.
pub(super) struct Taken {
    work: Arc<Work>,
    uid: String,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.work.taken.lock().remove(&self.uid);
        self.work.freed.notify_waiters();
    }
}

/// What became of writing an intent down.
pub(super) enum Begun {
    /// It is written: the call may go out.
    New,
    /// There is one from an earlier attempt: that one comes first.
    Earlier(Box<Plan>),
}

impl Intents {
    pub(super) fn new(
        api: Api,
        records: Cache<ConfigMap>,
        namespace: &str,
        driver: &str,
        node: Option<&str>,
    ) -> Self {
        Self {
            api,
            records,
            namespace: namespace.into(),
            driver: driver.into(),
            node: node.map(str::to_owned),
            work: Arc::default(),
        }
    }

    pub(super) fn records(&self) -> &Cache<ConfigMap> {
        &self.records
    }

    fn key(&self, uid: &str) -> ObjectKey {
        ObjectKey::new(self.namespace.clone(), intent_name(uid))
    }

    /// Whether the watch shows an intent for a claim. A hint only: it may have ended meanwhile.
    pub(super) fn seems_open(&self, uid: &str) -> bool {
        self.records.get(&self.key(uid)).is_some()
    }

    /// The open intent for a claim, from the API itself: a call must never be repeated for a
    /// record that is gone, or nothing would stand for its outcome.
    pub(super) async fn open(&self, uid: &str) -> Result<Option<Plan>, ApiError> {
        let record = self.api.get::<ConfigMap>(&self.key(uid)).await?;
        Ok(record.as_ref().and_then(plan_in))
    }

    /// Writes an intent down, before the call goes out.
    pub(super) async fn begin(&self, plan: &Plan) -> Result<Begun, ApiError> {
        let written = self.api.create::<ConfigMap>(&self.record(plan)).await;
        match written {
            Ok(record) => {
                self.records.assume(&record);
                Ok(Begun::New)
            }
            Err(error) if error.is_already_exists() => {
                match self.open(&plan.claim.uid).await? {
                    Some(earlier) => Ok(Begun::Earlier(Box::new(earlier))),
                    // Gone again, or not readable: the next attempt will see.
                    None => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// In a burst, leaves the record of an intent whose outcome is in the API to the resolver; false when
    /// it is to be dropped at once.
    pub(super) fn finish_later(&self, uid: &str) -> bool {
        let resolver = self.work.resolver.lock();
        let Some(resolver) = resolver.as_ref().filter(|_| self.api.is_busy()) else { return false };
        let mut finished = self.work.finished.lock();
        if finished.len() >= MOST_FINISHED {
            return false;
        }
        finished.insert(uid.into());
        drop(finished);
        self.set_owned(uid, false);
        resolver.add(uid.into());
        true
    }

    /// Whether only the record is left of an intent.
    pub(super) fn is_finished(&self, uid: &str) -> bool {
        self.work.finished.lock().contains(uid)
    }

    /// Drops the record of such an intent, when there is time for it.
    pub(super) async fn end_finished(&self, uid: &str) -> Result<(), ApiError> {
        self.end_by(&self.api.later(), uid).await?;
        self.work.finished.lock().remove(uid);
        Ok(())
    }

    /// Says who drops records later; nobody with `None`.
    pub(super) fn set_resolver(&self, resolver: Option<WorkQueue<String>>) {
        *self.work.resolver.lock() = resolver;
    }

    /// Drops an intent: its outcome is in the API, or there is none.
    pub(super) async fn end(&self, uid: &str) -> Result<(), ApiError> {
        self.end_by(&self.api, uid).await
    }

    async fn end_by(&self, api: &Api, uid: &str) -> Result<(), ApiError> {
        match api.delete::<ConfigMap>(&self.key(uid), &DeleteParams::default()).await {
            Ok(()) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// All calls that have no outcome yet, as the watch shows them.
    pub(super) fn plans(&self) -> impl Iterator<Item = Plan> {
        self.records.list().into_iter().filter_map(|record| plan_in(&record))
    }

    /// Waits for the right to decide over an intent.
    pub(super) async fn take(&self, uid: &str) -> Taken {
        loop {
            // Registered before the look, so that a release in between is not missed.
            let freed = self.work.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.work.taken.lock().insert(uid.into()) {
                return Taken { work: self.work.clone(), uid: uid.into() };
            }
            freed.await;
        }
    }

    pub(super) fn set_owned(&self, uid: &str, owned: bool) {
        let mut all = self.work.owned.lock();
        if owned {
            all.insert(uid.into());
        } else {
            all.remove(uid);
        }
    }

    pub(super) fn is_owned(&self, uid: &str) -> bool {
        self.work.owned.lock().contains(uid)
    }

    fn record(&self, plan: &Plan) -> serde_json::Value {
        let claim = &plan.claim;
        let text = serde_json::to_string(plan).unwrap_or_default();
        let data = BTreeMap::from([(PLAN, text)]);
        let mut record = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": intent_name(&claim.uid),
                "namespace": self.namespace,
                "labels": {
                    labels::INTENT: INTENT_KIND,
                    labels::INTENT_DRIVER: label_value(&self.driver),
                },
                "annotations": {
                    annotations::INTENT_CLAIM: format!("{}/{}", claim.namespace, claim.name),
                },
            },
            "data": data,
        });
        if let Some(node) = &self.node {
            record["metadata"]["labels"][labels::INTENT_NODE] = json!(label_value(node));
        }
        record
    }
}

/// The plan in a record; an unreadable one is left for a person to look at.
pub(super) fn plan_in(record: &ConfigMap) -> Option<Plan> {
    match serde_json::from_str(record.data.get(PLAN)?) {
        Ok(plan) => Some(plan),
        Err(error) => {
            tracing::error!(intent = %record.metadata.key(), %error, "an intent is not readable");
            None
        }
    }
}
