//! Current objects and recent events, in memory.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::watch;

use super::journal::{JournalError, Loaded};

/// Where an object is stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Storage name of the resource, e.g. `storage.k8s.io/storageclasses`.
    pub resource: Arc<str>,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{} {}", self.resource, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.resource, self.name),
        }
    }
}

/// One stored object. The content is kept as JSON text, ready to be sent; only what selectors
/// and the collector ask for again and again is kept apart.
#[derive(Debug)]
pub struct Stored {
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Revision of the last change.
    pub revision: u64,
    /// Labels, sorted by key.
    pub labels: Vec<(String, String)>,
    /// Uids of the owners.
    pub owners: Vec<String>,
    /// Whether the object is marked for deletion.
    pub deleting: bool,
    /// The object as JSON, without kind and apiVersion.
    pub body: Bytes,
}

impl Stored {
    /// Gives the object its revision and turns it into text.
    pub fn new(key: &Key, revision: u64, mut object: Value) -> Self {
        object["metadata"]["resourceVersion"] = Value::String(revision.to_string());
        let body = Bytes::from(object.to_string());
        Self::with_body(key, revision, &object, body)
    }

    fn with_body(key: &Key, revision: u64, object: &Value, body: Bytes) -> Self {
        let meta = &object["metadata"];
        let labels = meta["labels"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().to_owned()))
            .collect();
        let owners = meta["ownerReferences"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|o| o["uid"].as_str().map(str::to_owned))
            .collect();
        Self {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: meta["uid"].as_str().unwrap_or_default().to_owned(),
            revision,
            labels,
            owners,
            deleting: !meta["deletionTimestamp"].is_null(),
            body,
        }
    }

    /// The object as a tree.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.body).expect("stored text was written from a tree")
    }
}

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It was created or changed.
    Put,
    /// It went away.
    Delete,
}

/// One change of one object.
#[derive(Debug)]
pub struct Event {
    /// Revision of the change.
    pub revision: u64,
    /// The object.
    pub key: Key,
    /// What happened.
    pub change: Change,
    /// The new content; for a deletion the last content, at the revision of the deletion.
    pub object: Arc<Stored>,
    /// What was there before.
    pub previous: Option<Arc<Stored>>,
}

/// The asked revision is older than the kept history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trimmed {
    /// The oldest revision from which events can still be read.
    pub oldest: u64,
}

/// A list with the revision it is from.
#[derive(Debug)]
pub struct Page {
    /// Revision of the store when the list was made.
    pub revision: u64,
    /// Objects, ordered by namespace, then name.
    pub objects: Vec<Arc<Stored>>,
}

type Name = (String, String);

/// Objects and history of one resource.
struct Table {
    objects: BTreeMap<Name, Arc<Stored>>,
    history: VecDeque<Arc<Event>>,
    /// Events up to here are forgotten.
    trimmed: u64,
    changed: watch::Sender<u64>,
}

impl Table {
    fn new(trimmed: u64) -> Self {
        Self {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            trimmed,
            changed: watch::Sender::new(trimmed),
        }
    }

    fn list(&self, namespace: Option<&str>) -> Vec<Arc<Stored>> {
        match namespace {
            None => self.objects.values().cloned().collect(),
            Some(ns) => self
                .objects
                .range((ns.to_owned(), String::new())..)
                .take_while(|((in_ns, _), _)| in_ns == ns)
                .map(|(_, object)| Arc::clone(object))
                .collect(),
        }
    }
}

/// All resources. One lock guards it, so that a list and its revision always fit together.
pub(super) struct State {
    revision: u64,
    /// Revision at start: nothing is known about how it came to be.
    start: u64,
    history: usize,
    tables: BTreeMap<Arc<str>, Table>,
    changed: watch::Sender<u64>,
}

impl State {
    pub(super) fn restore(loaded: Loaded, history: usize) -> Result<Self, JournalError> {
        let start = loaded.revision;
        let changed = watch::Sender::new(start);
        let tables = BTreeMap::new();
        let mut state = Self { revision: start, start, history, tables, changed };
        for (key, revision, body) in loaded.objects {
            let object: Value = serde_json::from_slice(&body)
                .map_err(|e| JournalError::Corrupt { key: key.to_string(), why: e.to_string() })?;
            let stored = Arc::new(Stored::with_body(&key, revision, &object, Bytes::from(body)));
            let table = state.table(&key.resource);
            table.objects.insert((key.namespace, key.name), stored);
        }
        Ok(state)
    }

    fn table(&mut self, resource: &Arc<str>) -> &mut Table {
        let start = self.start;
        self.tables.entry(Arc::clone(resource)).or_insert_with(|| Table::new(start))
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<Stored>> {
        let table = self.tables.get(&key.resource)?;
        table.objects.get(&(key.namespace.clone(), key.name.clone())).cloned()
    }

    pub(super) fn list(&self, resource: &str, namespace: Option<&str>) -> Page {
        let objects = self.tables.get(resource).map(|t| t.list(namespace)).unwrap_or_default();
        Page { revision: self.revision, objects }
    }

    /// Undoes newer events, newest first, on a copy of the current names.
    pub(super) fn list_at(
        &self,
        resource: &str,
        namespace: Option<&str>,
        revision: u64,
    ) -> Result<Page, Trimmed> {
        let Some(table) = self.tables.get(resource) else {
            return if revision < self.start {
                Err(Trimmed { oldest: self.start })
            } else {
                Ok(Page { revision, objects: Vec::new() })
            };
        };
        if revision < table.trimmed {
            return Err(Trimmed { oldest: table.trimmed });
        }
        if table.history.back().is_none_or(|newest| newest.revision <= revision) {
            return Ok(Page { revision, objects: table.list(namespace) });
        }
        let mut objects: BTreeMap<Name, Arc<Stored>> = table
            .list(namespace)
            .into_iter()
            .map(|o| ((o.namespace.clone(), o.name.clone()), o))
            .collect();
        let newer = table.history.iter().rev().take_while(|e| e.revision > revision);
        for event in newer.filter(|e| namespace.is_none_or(|ns| ns == e.key.namespace)) {
            let name = (event.key.namespace.clone(), event.key.name.clone());
            match &event.previous {
                Some(previous) => objects.insert(name, Arc::clone(previous)),
                None => objects.remove(&name),
            };
        }
        Ok(Page { revision, objects: objects.into_values().collect() })
    }

    pub(super) fn events_after(
        &self,
        resource: &str,
        revision: u64,
        max: usize,
    ) -> Result<(Vec<Arc<Event>>, u64), Trimmed> {
        let Some(table) = self.tables.get(resource) else {
            return if revision < self.start {
                Err(Trimmed { oldest: self.start })
            } else {
                Ok((Vec::new(), self.revision.max(revision)))
            };
        };
        if revision < table.trimmed {
            return Err(Trimmed { oldest: table.trimmed });
        }
        let from = table.history.partition_point(|e| e.revision <= revision);
        let events: Vec<_> = table.history.iter().skip(from).take(max).cloned().collect();
        let complete = from + events.len() == table.history.len();
        let reached = match events.last() {
            Some(last) if !complete => last.revision,
            _ => self.revision.max(revision),
        };
        Ok((events, reached))
    }

    pub(super) fn subscribe(&self, resource: &str) -> Option<watch::Receiver<u64>> {
        Some(self.tables.get(resource)?.changed.subscribe())
    }

    pub(super) fn subscribe_new(&mut self, resource: &str) -> watch::Receiver<u64> {
        self.table(&Arc::from(resource)).changed.subscribe()
    }

    pub(super) fn forget_history(&mut self) {
        self.start = self.revision;
        for table in self.tables.values_mut() {
            table.history.clear();
            table.trimmed = self.revision;
        }
    }

    pub(super) fn subscribe_all(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn counts(&self) -> Vec<(Arc<str>, usize)> {
        self.tables.iter().map(|(name, table)| (Arc::clone(name), table.objects.len())).collect()
    }

    pub(super) fn apply(&mut self, event: Event) {
        self.revision = event.revision;
        let history = self.history;
        let table = self.table(&event.key.resource);
        let name = (event.key.namespace.clone(), event.key.name.clone());
        match event.change {
            Change::Put => table.objects.insert(name, Arc::clone(&event.object)),
            Change::Delete => table.objects.remove(&name),
        };
        let revision = event.revision;
        table.history.push_back(Arc::new(event));
        while table.history.len() > history {
            if let Some(oldest) = table.history.pop_front() {
                table.trimmed = oldest.revision;
            }
        }
        table.changed.send_replace(revision);
        self.changed.send_replace(revision);
    }
}
