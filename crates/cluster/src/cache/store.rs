//! The objects of one kind, with indexes and an overlay of our own writes.
//!
//! The rule that keeps the store right: versions are numbers, and an older one never replaces a
//! newer one, whether it came by list, watch or write. The watch is the truth; the response to a
//! write only fills the time until the watch delivers the same.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use longshore_core::model::{HasMeta, ObjectKey};
use longshore_core::visits;
use tokio::time::Instant;

use super::Change;

/// Returns the values under which an index finds an object.
pub(super) type IndexFn<T> = Box<dyn Fn(&T) -> Vec<String> + Send + Sync>;

struct Index<T> {
    values: IndexFn<T>,
    keys: HashMap<String, BTreeSet<ObjectKey>>,
}

struct Entry<T> {
    object: Arc<T>,
    version: u64,
    /// Set while `object` is our own write that the watch has not delivered yet: what the
    /// watch delivered last, if anything.
    overlaid: Option<Option<Arc<T>>>,
}

pub(super) struct Store<T> {
    /// A hash map, because objects are looked up far more often than listed.
    entries: HashMap<ObjectKey, Entry<T>>,
    indexes: HashMap<String, Index<T>>,
    /// Everything up to this version has been seen; 0 before the first list is complete.
    seen_version: u64,
    /// When the watch last delivered anything; `None` while there is no watch.
    pub(super) last_event: Option<Instant>,
}

impl<T: HasMeta> Store<T> {
    pub(super) fn new() -> Self {
        Self { entries: HashMap::new(), indexes: HashMap::new(), seen_version: 0, last_event: None }
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        visits::add(1);
        self.entries.get(key).map(|e| e.object.clone())
    }

    pub(super) fn list(&self) -> Vec<Arc<T>> {
        visits::add(self.entries.len());
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries.into_iter().map(|(_, entry)| entry.object.clone()).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn has_index(&self, name: &str) -> bool {
        self.indexes.contains_key(name)
    }

    pub(super) fn add_index(&mut self, name: &str, values: IndexFn<T>) {
        let mut index = Index { values, keys: HashMap::new() };
        for (key, entry) in &self.entries {
            index.insert(key, &entry.object);
        }
        self.indexes.insert(name.to_owned(), index);
    }

    pub(super) fn by_index(&self, name: &str, value: &str) -> Vec<Arc<T>> {
        let keys = self.indexes.get(name).and_then(|index| index.keys.get(value));
        keys.into_iter().flatten().filter_map(|key| self.get(key)).collect()
    }

    pub(super) fn first_by_index(&self, name: &str, value: &str) -> Option<Arc<T>> {
        let keys = self.indexes.get(name)?.keys.get(value)?;
        keys.iter().find_map(|key| self.get(key))
    }

    pub(super) fn one_of_each(&self, name: &str) -> Vec<Arc<T>> {
        let Some(index) = self.indexes.get(name) else { return Vec::new() };
        index.keys.values().filter_map(|keys| self.get(keys.first()?)).collect()
    }

    pub(super) fn count_indexed(&self, name: &str, value: &str) -> usize {
        let keys = self.indexes.get(name).and_then(|index| index.keys.get(value));
        keys.map_or(0, BTreeSet::len)
    }

    pub(super) fn has_indexed(&self, name: &str, value: &str) -> bool {
        self.indexes.get(name).is_some_and(|index| index.keys.contains_key(value))
    }

    /// Stores an object of the watch.
    pub(super) fn apply(&mut self, object: T) -> Option<Change<T>> {
        self.store(object, false)
    }

    /// Stores an object of a list. Lists are consistent reads, so what the watch delivered before
    /// is never newer, unless the server was set back to an earlier state: then the list is right.
    pub(super) fn apply_listed(&mut self, object: T) -> Option<Change<T>> {
        self.store(object, true)
    }

    fn store(&mut self, object: T, listed: bool) -> Option<Change<T>> {
        let key = object.key();
        let version = object.meta().revision();
        let mut old = None;
        if let Some(entry) = self.entries.get_mut(&key) {
            let set_back = listed && entry.overlaid.is_none();
            if version < entry.version && !set_back {
                return None;
            }
            if version == entry.version && version > 0 && entry.overlaid.is_none() {
                return None;
            }
            old = match entry.overlaid.take() {
                // The watch delivers what was assumed: it is stored already.
                Some(before) if version == entry.version && version > 0 => {
                    return Some(Change::Applied { old: before, new: entry.object.clone() });
                }
                Some(before) => before,
                None => Some(entry.object.clone()),
            };
        }
        let new = Arc::new(object);
        self.put(key, new.clone(), version, None);
        Some(Change::Applied { old, new })
    }

    /// Removes an object that the watch reports deleted; `object` carries the version of the
    /// deletion.
    pub(super) fn delete(&mut self, object: &T) -> Option<Change<T>> {
        let key = object.key();
        let entry = self.entries.get(&key)?;
        if object.meta().revision() < entry.version {
            return None;
        }
        self.remove(&key)
    }

    /// Removes what a complete list at `list_version` did not hold, except our own writes that are
    /// newer than the list.
    pub(super) fn retain_listed(
        &mut self,
        listed: &BTreeSet<ObjectKey>,
        list_version: u64,
    ) -> Vec<Change<T>> {
        let mut gone: Vec<ObjectKey> = self
            .entries
            .iter()
            .filter(|(key, entry)| {
                let newer = entry.overlaid.is_some() && entry.version > list_version;
                !newer && !listed.contains(*key)
            })
            .map(|(key, _)| key.clone())
            .collect();
        gone.sort_unstable();
        gone.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// The watch has listed everything up to `version`.
    pub(super) fn seen_up_to(&mut self, version: u64) {
        self.seen_version = self.seen_version.max(version);
        self.last_event = Some(Instant::now());
    }

    /// Notes the version of a list. It may be lower than before: a backup may have been restored.
    pub(super) fn listed_at(&mut self, version: u64) {
        self.seen_version = version;
        self.last_event = Some(Instant::now());
    }

    /// Our own writes that no watch has delivered yet are no better than what else is held: a server
    /// that was set back to an earlier state knows nothing of them.
    pub(super) fn forget_writes(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.overlaid = None);
    }

    /// Whether the response to a write of this version is not newer than the stored object.
    pub(super) fn has_seen(&self, key: &ObjectKey, version: u64) -> bool {
        match self.entries.get(key) {
            Some(entry) => version > 0 && version <= entry.version,
            None => false,
        }
    }

    /// Overlays the response to our own write. `may_add` is false where a selector could exclude
    /// it.
    pub(super) fn assume(&mut self, object: T, may_add: bool) {
        let key = object.key();
        let version = object.meta().revision();
        let overlaid = match self.entries.get_mut(&key) {
            Some(entry) if version <= entry.version => return,
            Some(entry) => match entry.overlaid.take() {
                Some(before) => before,
                None => Some(entry.object.clone()),
            },
            // The watch is past this write and does not hold the object: it was deleted since.
            None if version <= self.seen_version || !may_add => return,
            None => None,
        };
        self.put(key, Arc::new(object), version, Some(overlaid));
    }

    fn put(
        &mut self,
        key: ObjectKey,
        object: Arc<T>,
        version: u64,
        overlaid: Option<Option<Arc<T>>>,
    ) {
        let old = self.entries.get(&key).map(|e| e.object.clone());
        for index in self.indexes.values_mut() {
            if let Some(old) = &old {
                index.remove(&key, old);
            }
            index.insert(&key, &object);
        }
        self.entries.insert(key, Entry { object, version, overlaid });
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<Change<T>> {
        let entry = self.entries.remove(key)?;
        for index in self.indexes.values_mut() {
            index.remove(key, &entry.object);
        }
        Some(Change::Deleted { old: entry.object })
    }
}

impl<T> Index<T> {
    fn insert(&mut self, key: &ObjectKey, object: &T) {
        for value in (self.values)(object) {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &ObjectKey, object: &T) {
        for value in (self.values)(object) {
            if let Some(keys) = self.keys.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use longshore_core::model::Meta;
    use longshore_core::model::kinds::Namespace;

    use super::*;

    fn object(name: &str, version: u64) -> Namespace {
        let labels = [("v".to_owned(), version.to_string())].into();
        Namespace {
            metadata: Meta {
                name: name.to_owned(),
                resource_version: version.to_string(),
                labels,
                ..Meta::default()
            },
        }
    }

    fn version(store: &Store<Namespace>, name: &str) -> Option<u64> {
        store.get(&ObjectKey::cluster(name)).map(|o| o.metadata.revision())
    }

    fn store(objects: &[(&str, u64)], seen: u64) -> Store<Namespace> {
        let mut store = Store::new();
        for (name, version) in objects {
            store.apply(object(name, *version));
        }
        store.seen_up_to(seen);
        store
    }

    #[test]
    fn lists_and_deletions_come_in_order() {
        let names: Vec<String> = (0..100).map(|i| format!("n{:02}", i * 37 % 100)).collect();
        let objects: Vec<(&str, u64)> =
            names.iter().zip(1..).map(|(n, v)| (n.as_str(), v)).collect();
        let mut store = store(&objects, 100);
        let listed: Vec<String> = store.list().iter().map(|o| o.metadata.name.clone()).collect();
        assert!(listed.is_sorted() && listed.len() == 100, "{listed:?}");
        let gone = store.retain_listed(&BTreeSet::new(), 100);
        let gone: Vec<String> = gone.iter().map(|c| c.object().metadata.name.clone()).collect();
        assert_eq!(gone, listed);
    }

    /// A response that cannot change anything is not even decoded.
    #[test]
    fn responses_not_newer_than_the_store_are_recognized() {
        let store = store(&[("a", 5)], 9);
        let seen = |name: &str, version| store.has_seen(&ObjectKey::cluster(name), version);
        assert!(seen("a", 4) && seen("a", 5));
        assert!(!seen("a", 6) && !seen("a", 0) && !seen("b", 5));
    }

    /// case: snapshotter/47
    #[test]
    fn an_older_version_never_replaces_a_newer_one() {
        // 9 < 10 as numbers, not as text.
        let mut store = store(&[("a", 10)], 10);
        assert!(store.apply(object("a", 9)).is_none());
        assert!(store.apply(object("a", 10)).is_none(), "the same version is no change");
        assert_eq!(version(&store, "a"), Some(10));
        store.assume(object("a", 9), true);
        assert_eq!(version(&store, "a"), Some(10));
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        // What is listed, and what is held then. The same version again is as good as new: a resync
        // looks at what is held and needs no change to run.
        let rows = [
            ("case: pv-controller/cache-1", 1, 1),
            ("case: pv-controller/cache-2", 1, 1),
            ("case: pv-controller/cache-3", 2, 2),
            ("case: pv-controller/cache-4", 1, 2),
            ("case: pv-controller/cache-5", 10, 10),
        ];
        let mut store = store(&[], 0);
        for (case, listed, held) in rows {
            store.apply(object("a", listed));
            assert_eq!(version(&store, "a"), Some(held), "{case}");
        }
        // case: pv-controller/cache-err. A version that is no number is older than any, so what is
        // known stays.
        let mut odd = object("a", 11);
        odd.metadata.resource_version = "xxx".to_owned();
        assert!(store.apply(odd).is_none());
        assert_eq!(version(&store, "a"), Some(10));
    }

    #[test]
    fn an_assumed_write_is_read_until_the_watch_confirms_it() {
        let mut store = store(&[("a", 10)], 10);
        store.assume(object("a", 12), true);
        assert_eq!(version(&store, "a"), Some(12));
        assert!(store.apply(object("a", 11)).is_none(), "the watch is behind our write");
        assert_eq!(version(&store, "a"), Some(12));
        let change = store.apply(object("a", 12)).expect("one change");
        let Change::Applied { old: Some(old), new } = change else { panic!("{change:?}") };
        assert_eq!((old.metadata.revision(), new.metadata.revision()), (10, 12));
        assert!(store.apply(object("a", 12)).is_none());
    }

    #[test]
    fn a_deletion_wins_by_its_version() {
        let mut store = store(&[("a", 10)], 10);
        store.assume(object("a", 15), true);
        assert!(store.delete(&object("a", 12)).is_none(), "an older deletion does not count");
        assert!(store.delete(&object("a", 16)).is_some());
        store.seen_up_to(16);
        store.assume(object("a", 15), true);
        assert_eq!(version(&store, "a"), None, "a late response does not bring it back");
        store.assume(object("a", 17), true);
        assert_eq!(version(&store, "a"), Some(17), "made again after the deletion");
    }

    #[test]
    fn a_list_deletes_what_it_does_not_hold_except_newer_writes() {
        let mut store = store(&[("kept", 1), ("gone", 2)], 2);
        store.assume(object("old-write", 4), true);
        store.assume(object("new-write", 9), true);
        let listed = [ObjectKey::cluster("kept")].into();
        let mut gone: Vec<String> = store
            .retain_listed(&listed, 5)
            .iter()
            .map(|change| match change {
                Change::Deleted { old } => old.metadata.name.clone(),
                Change::Applied { .. } => panic!("{change:?}"),
            })
            .collect();
        gone.sort();
        assert_eq!(gone, ["gone", "old-write"]);
        assert_eq!(version(&store, "new-write"), Some(9));
    }

    #[test]
    fn a_server_set_back_to_an_earlier_state_is_believed() {
        let mut store = store(&[("a", 10)], 10);
        assert!(store.apply_listed(object("a", 3)).is_some());
        assert_eq!(version(&store, "a"), Some(3));
        store.assume(object("a", 12), true);
        assert!(store.apply_listed(object("a", 3)).is_none(), "our own write is newer");
        assert_eq!(version(&store, "a"), Some(12));
        store.forget_writes();
        assert!(store.apply_listed(object("a", 3)).is_some());
        assert_eq!(version(&store, "a"), Some(3));
    }

    #[test]
    fn a_selector_keeps_unknown_writes_out() {
        let mut store = store(&[("a", 1)], 1);
        store.assume(object("b", 5), false);
        assert_eq!(version(&store, "b"), None);
        store.assume(object("a", 5), false);
        assert_eq!(version(&store, "a"), Some(5));
    }

    #[test]
    fn an_index_gives_the_first_object_of_one_value_or_of_each() {
        let mut store = store(&[("a", 1), ("b", 2), ("c", 3)], 3);
        store.add_index("parity", Box::new(|o| vec![(o.metadata.revision() % 2).to_string()]));
        let name = |object: Arc<Namespace>| object.metadata.name.clone();
        let before = visits::total();
        assert_eq!(store.first_by_index("parity", "1").map(name), Some("a".to_owned()));
        assert_eq!(visits::total() - before, 1);
        assert_eq!(store.first_by_index("parity", "7").map(name), None);
        let mut each: Vec<String> = store.one_of_each("parity").into_iter().map(name).collect();
        each.sort();
        assert_eq!(each, ["a", "b"]);
        store.delete(&object("a", 4));
        assert_eq!(store.first_by_index("parity", "1").map(name), Some("c".to_owned()));
    }

    #[test]
    fn indexes_follow_lists_watches_and_own_writes() {
        let mut store = store(&[("a", 1), ("b", 2)], 2);
        store.add_index("v", Box::new(|o| o.metadata.labels.values().cloned().collect()));
        let names = |store: &Store<Namespace>, value: &str| -> Vec<String> {
            store.by_index("v", value).iter().map(|o| o.metadata.name.clone()).collect()
        };
        assert_eq!(names(&store, "1"), ["a"]);
        store.assume(object("a", 3), true);
        assert_eq!((names(&store, "1"), names(&store, "3")), (vec![], vec!["a".to_owned()]));
        store.apply(object("b", 4));
        assert_eq!((names(&store, "2"), names(&store, "4")), (vec![], vec!["b".to_owned()]));
        store.delete(&object("b", 5));
        assert_eq!(names(&store, "4"), Vec::<String>::new());
    }
}
