//! Intent records: what was asked of the driver and has no outcome yet.

use std::{collections::BTreeSet, sync::Arc};

use longshore_cluster::{
    Api, ApiError, Cache, DeleteParams, OptionalExt as _, Recorder, WorkQueue,
};
use longshore_core::{
    model::{
        NodeName, ObjectKey, Uid,
        keys::{annotations, labels},
        kinds::ConfigMap,
    },
    provision::{
        Plan,
        attempt::{ForeignRecord, check_cluster, from_record, to_record},
        source::{Content, SourceKind},
    },
};
use parking_lot::Mutex;
use serde_json::json;

/// The value of the label that marks an intent of this kind.
pub const INTENT_KIND: &str = "create-volume";

/// More records than this do not wait to be deleted: after a crash each is looked into.
const MOST_WAITING: usize = 5000;

/// The name of the index of records by what their volumes are filled from.
const BY_SOURCE: &str = "intent-source";

/// The most bytes that keys and values of a ConfigMap may have together.
const MOST_BYTES: usize = 1 << 20;

/// What the volume of a record is filled from. Only that is read, for the rest of a plan may be large.
fn content_in(record: &ConfigMap) -> Option<Content> {
    #[derive(serde::Deserialize)]
    struct Filled {
        content: Option<Content>,
    }
    let filled = |text: &String| serde_json::from_str::<Filled>(text).ok()?.content;
    record.data.values().find_map(filled)
}

fn source_value(kind: SourceKind, key: &ObjectKey) -> String {
    format!("{kind} {key}")
}

/// Why a plan was not written down.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotRecorded {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("an intent record is in the way, {record}: {source}")]
    Foreign { record: ObjectKey, source: ForeignRecord },
    #[error(
        "the intent record of claim {claim} would have {bytes} bytes, and a ConfigMap may have {MOST_BYTES}; the driver \
         was not asked. Narrow the allowedTopologies of its class or shorten its parameters, or start the provisioner \
         with --leak-guard=false"
    )]
    TooLarge { claim: ObjectKey, bytes: usize },
}

/// The name of the record for a claim.
#[must_use]
pub fn intent_name(claim_uid: &Uid) -> String {
    format!("longshore-create-volume-{claim_uid}")
}

/// The labels of records of one driver, or of one node's instance of it.
pub(super) fn selector(driver: &str, node: Option<&NodeName>) -> String {
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

/// The records of one provisioner.
#[derive(Clone)]
pub(super) struct Intents {
    api: Api,
    records: Cache<ConfigMap>,
    namespace: String,
    driver: String,
    node: Option<NodeName>,
    /// This cluster, where it may be known.
    cluster: Option<Uid>,
    recorder: Recorder,
    /// Foreign records that were reported, by their UIDs.
    reported: Arc<Mutex<BTreeSet<Uid>>>,
    /// The queue of the resolver, while it runs.
    resolver: Arc<Mutex<Option<WorkQueue<Uid>>>>,
}

impl Intents {
    pub(super) fn new(
        api: Api,
        records: Cache<ConfigMap>,
        namespace: &str,
        driver: &str,
        node: Option<&NodeName>,
        cluster: Option<Uid>,
        recorder: Recorder,
    ) -> Self {
        records.index(BY_SOURCE, |record: &ConfigMap| {
            let content = content_in(record).into_iter();
            let value = |content: Content| {
                source_value(content.kind, &ObjectKey::new(content.namespace, content.name))
            };
            content.map(value).collect()
        });
        Self {
            api,
            records,
            namespace: namespace.into(),
            driver: driver.into(),
            node: node.cloned(),
            cluster,
            recorder,
            reported: Arc::default(),
            resolver: Arc::default(),
        }
    }

    pub(super) fn records(&self) -> &Cache<ConfigMap> {
        &self.records
    }

    fn key(&self, uid: &Uid) -> ObjectKey {
        ObjectKey::new(self.namespace.clone(), intent_name(uid))
    }

    /// Whether the watch shows an intent for a claim. A hint only: it may have ended meanwhile.
    pub(super) fn seems_open(&self, uid: &Uid) -> bool {
        self.records.get(&self.key(uid)).is_some()
    }

    /// The claim of an intent, as the watch shows it.
    pub(super) fn claim_of(&self, uid: &Uid) -> Option<ObjectKey> {
        let record = self.records.get(&self.key(uid))?;
        let plan = from_record(&record.data).ok()?;
        Some(ObjectKey::new(plan.claim.namespace.clone(), plan.claim.name.clone()))
    }

    /// The open intent for a claim, from the API itself: a call must never be repeated for a
    /// record that is gone, or nothing would stand for its outcome.
    pub(super) async fn open(&self, uid: &Uid) -> Result<Option<Arc<Plan>>, ApiError> {
        let record = self.api.get::<ConfigMap>(&self.key(uid)).await?;
        Ok(record.as_ref().and_then(|record| self.plan_in(record)))
    }

    /// The plan in a record of this cluster. An unreadable one is left for a person to look at, and so is one of
    /// another cluster: nothing of it is repeated here, and nothing deleted.
    pub(super) fn plan_in(&self, record: &ConfigMap) -> Option<Arc<Plan>> {
        if let Err(foreign) = self.check(record) {
            self.report(record, &foreign);
            return None;
        }
        let plan = from_record(&record.data);
        plan.inspect_err(|error| {
            tracing::error!(intent = %record.metadata.key(), %error, "an intent is not readable");
        })
        .ok()
    }

    fn check(&self, record: &ConfigMap) -> Result<(), ForeignRecord> {
        check_cluster(&record.data, self.cluster.as_ref())
    }

    /// Reports a foreign record, once.
    fn report(&self, record: &ConfigMap, foreign: &ForeignRecord) {
        if self.reported.lock().insert(record.metadata.uid.clone()) {
            tracing::warn!(intent = %record.metadata.key(), %foreign, "an intent record is not carried out");
            self.recorder.warning(record, "ForeignIntent", foreign.to_string());
        }
    }

    /// Writes a plan down; returns the one of an earlier record that is in the way.
    pub(super) async fn begin(&self, plan: &Plan) -> Result<Option<Arc<Plan>>, NotRecorded> {
        let record = self.record(plan)?;
        let exists = match self.api.create::<ConfigMap>(&record).await {
            Ok(record) => {
                self.records.assume(&record);
                return Ok(None);
            }
            Err(error) if error.is_already_exists() => error,
            Err(error) => return Err(error.into()),
        };
        let key = self.key(&plan.claim.uid);
        // Gone again, or not readable: the next attempt will see.
        let Some(record) = self.api.get::<ConfigMap>(&key).await? else {
            return Err(exists.into());
        };
        self.check(&record).map_err(|source| NotRecorded::Foreign { record: key, source })?;
        self.plan_in(&record).map(Some).ok_or_else(|| exists.into())
    }

    /// In a burst, leaves the record of a settled attempt to the resolver; false when it is to be
    /// deleted at once.
    pub(super) fn finish_later(&self, uid: &Uid) -> bool {
        let room = |queue: &WorkQueue<Uid>| queue.depth() < MOST_WAITING;
        let wait = self.api.is_saturated() && self.resolver.lock().as_ref().is_some_and(room);
        if wait {
            self.resolve_later(uid);
        }
        wait
    }

    /// Wakes the resolver for a record.
    pub(super) fn resolve_later(&self, uid: &Uid) {
        if let Some(resolver) = self.resolver.lock().as_ref() {
            resolver.add(uid.into());
        }
    }

    /// Says who resolves records; nobody with `None`.
    pub(super) fn set_resolver(&self, resolver: Option<WorkQueue<Uid>>) {
        *self.resolver.lock() = resolver;
    }

    /// Deletes a record: its outcome is in the API, or there is none.
    pub(super) async fn end(&self, api: &Api, uid: &Uid) -> Result<(), ApiError> {
        let deleted = api.delete::<ConfigMap>(&self.key(uid), &DeleteParams::default()).await;
        deleted.optional().map(drop)
    }

    /// Whether a call has no outcome yet, as the watch shows it, that fills a volume from this object.
    pub(super) fn is_begun_from(&self, kind: SourceKind, key: &ObjectKey) -> bool {
        let records = self.records.by_index(BY_SOURCE, &source_value(kind, key));
        records.iter().any(|record| self.plan_in(record).is_some())
    }

    fn record(&self, plan: &Plan) -> Result<serde_json::Value, NotRecorded> {
        let claim = &plan.claim;
        let data = to_record(plan, self.cluster.as_ref());
        let bytes: usize = data.iter().map(|(key, text)| key.len() + text.len()).sum();
        if bytes > MOST_BYTES {
            let claim = ObjectKey::new(claim.namespace.clone(), claim.name.clone());
            return Err(NotRecorded::TooLarge { claim, bytes });
        }
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
        Ok(record)
    }
}
