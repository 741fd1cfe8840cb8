//! Current objects and recent events, in memory.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::History;
use super::journal::{Replay, SnapshotObject, Unreadable};
use super::managed_fields::{MANAGED_FIELDS, SplitObject};
use super::notifier::{Notifier, Subscription};
use super::outline::Outline;

/// Where an object is stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Storage name of the resource, e.g. `storage.k8s.io/storageclasses`.
    pub resource: Arc<str>,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
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
    pub name: String,
    pub uid: String,
    /// Revision of the last change.
    pub revision: u64,
    /// Labels, sorted by key.
    pub labels: Vec<(String, String)>,
    pub owners: Vec<String>,
    /// Whether the object is marked for deletion.
    pub deleting: bool,
    /// The object as JSON, without kind and apiVersion.
    pub body: Bytes,
}

/// A scratch buffer keeps at most this much between uses.
const KEPT_SCRATCH: usize = 64 << 10;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// An object on its way to the store: text already, but for the revision.
pub(super) struct Draft {
    uid: String,
    labels: Vec<(String, String)>,
    owners: Vec<String>,
    deleting: bool,
    text: Vec<u8>,
    /// Where the revision goes.
    revision_at: usize,
}

impl Draft {
    /// `near` is a revision that is about as long as the one to come.
    pub(super) fn new(object: &mut Value, managers: Option<&str>, near: u64) -> Self {
        object["metadata"]["resourceVersion"] = Value::String(String::new());
        let (text, revision_at) = SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            let revision_at = write_text(object, managers, scratch);
            // Just as large as it will be: these texts are kept, and there are many.
            let mut text = Vec::with_capacity(scratch.len() + digits(near));
            text.extend_from_slice(scratch);
            scratch.shrink_to(KEPT_SCRATCH);
            (text, revision_at)
        });
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
            uid: meta["uid"].as_str().unwrap_or_default().to_owned(),
            labels,
            owners,
            deleting: !meta["deletionTimestamp"].is_null(),
            text,
            revision_at,
        }
    }

    pub(super) fn store(self, key: &Key, revision: u64) -> Stored {
        let mut body = self.text;
        let length = body.len();
        body.extend_from_slice(revision.to_string().as_bytes());
        // From the end to its place.
        body[self.revision_at..].rotate_left(length - self.revision_at);
        Stored {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: self.uid,
            revision,
            labels: self.labels,
            owners: self.owners,
            deleting: self.deleting,
            body: Bytes::from(body.into_boxed_slice()),
        }
    }
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// Writes the object; returns where the text of its version, which is empty, would stand. Managers
/// that are not in the tree stand where they would if they were.
fn write_text(object: &Value, managers: Option<&str>, out: &mut Vec<u8>) -> usize {
    let mut revision_at = 0;
    write_map(object, None, out, |name, value, out| {
        if name != "metadata" {
            return write_value(value, out);
        }
        write_map(value, managers, out, |name, value, out| {
            write_value(value, out);
            if name == "resourceVersion" {
                revision_at = out.len() - 1;
            }
        });
    });
    revision_at
}

fn write_map(
    value: &Value,
    mut managers: Option<&str>,
    out: &mut Vec<u8>,
    mut each: impl FnMut(&str, &Value, &mut Vec<u8>),
) {
    out.push(b'{');
    let mut separator = b"".as_slice();
    for (name, value) in value.as_object().into_iter().flatten() {
        if name.as_str() > MANAGED_FIELDS
            && let Some(text) = managers.take()
        {
            out.extend_from_slice(separator);
            write_value(MANAGED_FIELDS, out);
            out.push(b':');
            out.extend_from_slice(text.as_bytes());
            separator = b",";
        }
        out.extend_from_slice(separator);
        write_value(name, out);
        out.push(b':');
        each(name, value, out);
        separator = b",";
    }
    debug_assert!(managers.is_none(), "metadata always has a resourceVersion, which comes later");
    out.push(b'}');
}

fn write_value(value: &(impl serde::Serialize + ?Sized), out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("a tree with text keys is always text");
}

impl Stored {
    /// Gives the object its revision and turns it into text.
    pub fn new(key: &Key, revision: u64, object: Value) -> Self {
        Self::with_managers(key, revision, object, None)
    }

    /// The same for an object whose managers are text already.
    pub(super) fn with_managers(
        key: &Key,
        revision: u64,
        mut object: Value,
        managers: Option<&str>,
    ) -> Self {
        Draft::new(&mut object, managers, revision).store(key, revision)
    }

    /// An object that is text already.
    pub(super) fn from_text(key: &Key, revision: u64, body: &[u8]) -> Result<Self, Unreadable> {
        let outline = Outline::read(body);
        let outline = outline.map_err(|source| Unreadable { key: key.clone(), source })?;
        Ok(Self {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: outline.uid,
            revision,
            labels: outline.labels,
            owners: outline.owners,
            deleting: outline.deleting,
            body: Bytes::copy_from_slice(body),
        })
    }

    /// What the object counts for: its text, and what else is kept of it.
    pub fn weight(&self) -> usize {
        const OVERHEAD: usize = 256;
        const OWNER: usize = 256;
        const LABEL: usize = 96;
        OVERHEAD + self.owners.len() * OWNER + self.labels.len() * LABEL + self.body.len()
    }

    /// The object as a tree.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.body).expect("stored text was written from a tree")
    }

    /// The object as a tree without its managers, and their text. They are often the larger part,
    /// and most changes need no tree of them.
    pub fn split_managed_fields(&self) -> SplitObject {
        serde_json::from_slice(&self.body).expect("stored text was written from a tree")
    }
}

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It was created or changed.
    Put,
    Delete,
}

/// One change of one object.
#[derive(Debug)]
pub struct Event {
    pub revision: u64,
    pub key: Key,
    pub change: Change,
    /// The new content; for a deletion the last content, at the revision of the deletion.
    pub object: Arc<Stored>,
    /// What was there before.
    pub previous: Option<Arc<Stored>>,
}

impl Event {
    /// Memory that only history keeps: the content that is no longer current.
    fn cost(&self) -> usize {
        const OVERHEAD: usize = 256;
        let last = if self.change == Change::Delete { self.object.body.len() } else { 0 };
        OVERHEAD + last + self.previous.as_ref().map_or(0, |previous| previous.body.len())
    }
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

/// Objects by namespace, then name.
#[derive(Default)]
struct Objects {
    spaces: BTreeMap<String, BTreeMap<String, Arc<Stored>>>,
    /// What all of them take.
    bytes: usize,
}

impl Objects {
    fn get(&self, namespace: &str, name: &str) -> Option<&Arc<Stored>> {
        self.spaces.get(namespace)?.get(name)
    }

    fn insert(&mut self, namespace: &str, name: &str, object: Arc<Stored>) {
        self.bytes += object.weight();
        if let Some(there) = self.spaces.get_mut(namespace).and_then(|names| names.get_mut(name)) {
            self.bytes -= there.weight();
            *there = object;
            return;
        }
        self.spaces.entry(namespace.to_owned()).or_default().insert(name.to_owned(), object);
    }

    fn remove(&mut self, namespace: &str, name: &str) {
        let Some(names) = self.spaces.get_mut(namespace) else { return };
        if let Some(gone) = names.remove(name) {
            self.bytes -= gone.weight();
        }
        if names.is_empty() {
            self.spaces.remove(namespace);
        }
    }

    fn is_empty(&self) -> bool {
        self.spaces.is_empty()
    }

    fn len(&self) -> usize {
        self.spaces.values().map(BTreeMap::len).sum()
    }

    fn values(&self) -> impl Iterator<Item = &Arc<Stored>> {
        self.spaces.values().flat_map(BTreeMap::values)
    }

    fn of(&self, namespace: &str) -> impl Iterator<Item = &Arc<Stored>> {
        self.spaces.get(namespace).into_iter().flat_map(BTreeMap::values)
    }
}

/// Objects and history of one resource.
struct Table {
    objects: Objects,
    history: VecDeque<Arc<Event>>,
    /// Events up to here are forgotten.
    trimmed: u64,
    changed: Arc<Notifier>,
}

impl Table {
    fn new(trimmed: u64) -> Self {
        Self {
            objects: Objects::default(),
            history: VecDeque::new(),
            trimmed,
            changed: Arc::new(Notifier::new(trimmed)),
        }
    }

    /// No change is newer than this one, which may be forgotten already.
    fn newest(&self) -> u64 {
        self.history.back().map_or(self.trimmed, |event| event.revision)
    }

    /// It holds no object and no history, and has no subscriber.
    fn is_forgotten(&self) -> bool {
        self.objects.is_empty() && self.history.is_empty() && !self.changed.has_subscribers()
    }

    /// Forgets the oldest event; returns what that frees.
    fn trim(&mut self) -> usize {
        let Some(oldest) = self.history.pop_front() else { return 0 };
        self.trimmed = oldest.revision;
        oldest.cost()
    }

    /// Objects in order, of one namespace or of all.
    fn iter<'a>(
        &'a self,
        namespace: Option<&'a str>,
    ) -> Box<dyn Iterator<Item = &'a Arc<Stored>> + 'a> {
        match namespace {
            None => Box::new(self.objects.values()),
            Some(ns) => Box::new(self.objects.of(ns)),
        }
    }

    fn list(&self, namespace: Option<&str>) -> Vec<Arc<Stored>> {
        self.iter(namespace).cloned().collect()
    }

    /// The same with newer events undone.
    fn list_at(&self, namespace: Option<&str>, revision: u64) -> Vec<Arc<Stored>> {
        // Newest first, so that of several changes to one object the oldest decides.
        let newer = self.history.iter().rev().take_while(|event| event.revision > revision);
        let mut undone: BTreeMap<(&str, &str), Option<&Arc<Stored>>> = BTreeMap::new();
        for event in newer.filter(|event| namespace.is_none_or(|ns| ns == event.key.namespace)) {
            undone.insert((&event.key.namespace, &event.key.name), event.previous.as_ref());
        }
        let mut undone = undone.into_iter().peekable();
        let mut objects = Vec::new();
        for object in self.iter(namespace) {
            let name = (object.namespace.as_str(), object.name.as_str());
            while let Some((_, before)) = undone.next_if(|(other, _)| *other < name) {
                objects.extend(before.cloned());
            }
            match undone.next_if(|(other, _)| *other == name) {
                Some((_, before)) => objects.extend(before.cloned()),
                None => objects.push(Arc::clone(object)),
            }
        }
        objects.extend(undone.filter_map(|(_, before)| before.cloned()));
        objects
    }
}

/// Wakes who waits for changes.
pub(super) struct Notifiers {
    revision: u64,
    notifiers: Vec<Arc<Notifier>>,
}

impl Notifiers {
    pub(super) fn notify(&self) {
        for notifier in &self.notifiers {
            notifier.notify(self.revision);
        }
    }
}

/// All resources. One lock guards it, so that a list and its revision always fit together.
pub(super) struct State {
    revision: u64,
    /// Revision at start: nothing is known about how it came to be.
    start: u64,
    limits: History,
    /// What all histories hold that would be gone without them.
    history_bytes: usize,
    tables: BTreeMap<Arc<str>, Table>,
    changed: Arc<Notifier>,
}

impl Replay for State {
    fn object(&mut self, key: Key, revision: u64, body: &[u8]) -> Result<(), Unreadable> {
        let stored = Arc::new(Stored::from_text(&key, revision, body)?);
        self.table(&key.resource).objects.insert(&key.namespace, &key.name, stored);
        Ok(())
    }

    fn history_begins(&mut self, revision: u64) {
        self.revision = revision;
        self.forget_history();
    }

    fn change(
        &mut self,
        key: Key,
        change: Change,
        revision: u64,
        body: &[u8],
    ) -> Result<(), Unreadable> {
        let object = Arc::new(Stored::from_text(&key, revision, body)?);
        let previous = self.get(&key);
        self.apply(Event { revision, key, change, object, previous });
        Ok(())
    }
}

impl State {
    pub(super) fn new(limits: History) -> Self {
        Self {
            revision: 0,
            start: 0,
            limits,
            history_bytes: 0,
            tables: BTreeMap::new(),
            changed: Arc::default(),
        }
    }

    /// Everything there is, in order.
    pub(super) fn all(&self) -> Vec<SnapshotObject> {
        let objects = |(name, table): (&Arc<str>, &'_ Table)| {
            let name = Arc::clone(name);
            table
                .objects
                .values()
                .map(move |object| (Arc::clone(&name), Arc::clone(object)))
                .collect::<Vec<_>>()
        };
        self.tables.iter().flat_map(objects).collect()
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
        table.objects.get(&key.namespace, &key.name).cloned()
    }

    pub(super) fn list(&self, resource: &str, namespace: Option<&str>) -> Page {
        let objects = self.tables.get(resource).map(|t| t.list(namespace)).unwrap_or_default();
        Page { revision: self.revision, objects }
    }

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
        Ok(Page { revision, objects: table.list_at(namespace, revision) })
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

    /// The resources with changes after a revision.
    pub(super) fn changed_after(&self, revision: u64) -> Vec<Arc<str>> {
        let changed = self.tables.iter().filter(|(_, table)| table.newest() > revision);
        changed.map(|(name, _)| Arc::clone(name)).collect()
    }

    pub(super) fn subscribe(&self, resource: &str) -> Option<Subscription> {
        Some(self.tables.get(resource)?.changed.subscribe())
    }

    pub(super) fn subscribe_new(&mut self, resource: &str) -> Subscription {
        self.table(&Arc::from(resource)).changed.subscribe()
    }

    pub(super) fn forget_history(&mut self) {
        self.start = self.revision;
        self.history_bytes = 0;
        for table in self.tables.values_mut() {
            table.history.clear();
            table.trimmed = self.revision;
        }
    }

    pub(super) fn subscribe_all(&self) -> Subscription {
        self.changed.subscribe()
    }

    /// What all objects take, by resource.
    pub(super) fn bytes(&self) -> Vec<(Arc<str>, usize)> {
        self.tables.iter().map(|(name, table)| (Arc::clone(name), table.objects.bytes)).collect()
    }

    pub(super) fn counts(&self) -> Vec<(Arc<str>, usize)> {
        self.tables.iter().map(|(name, table)| (Arc::clone(name), table.objects.len())).collect()
    }

    pub(super) fn apply(&mut self, event: Event) {
        self.revision = event.revision;
        let limits = self.limits;
        let cost = event.cost();
        let table = self.table(&event.key.resource);
        let (namespace, name) = (&event.key.namespace, &event.key.name);
        match event.change {
            Change::Put => table.objects.insert(namespace, name, Arc::clone(&event.object)),
            Change::Delete => table.objects.remove(namespace, name),
        }
        table.history.push_back(Arc::new(event));
        let mut freed = 0;
        while table.history.len() > limits.events {
            freed += table.trim();
        }
        self.history_bytes = (self.history_bytes + cost).saturating_sub(freed);
        while self.history_bytes > limits.bytes && self.trim_oldest() {}
    }

    /// What wakes those who wait for changes of these resources. It is better rung without the lock: they
    /// want to read.
    pub(super) fn notifiers<'a>(&self, resources: impl Iterator<Item = &'a Arc<str>>) -> Notifiers {
        let mut notifiers: Vec<_> = resources
            .filter_map(|resource| self.tables.get(resource))
            .map(|table| Arc::clone(&table.changed))
            .collect();
        notifiers.push(Arc::clone(&self.changed));
        Notifiers { revision: self.revision, notifiers }
    }

    /// Forgets the oldest event of all resources; false when there is none.
    fn trim_oldest(&mut self) -> bool {
        let oldest = self
            .tables
            .iter_mut()
            .filter(|(_, table)| !table.history.is_empty())
            .min_by_key(|(_, table)| table.history.front().map(|event| event.revision));
        let Some((name, table)) = oldest else { return false };
        self.history_bytes = self.history_bytes.saturating_sub(table.trim());
        // Kinds come and go with their definitions.
        if table.is_forgotten() {
            let (name, trimmed) = (Arc::clone(name), table.trimmed);
            self.tables.remove(&name);
            self.start = self.start.max(trimmed);
        }
        true
    }
}
