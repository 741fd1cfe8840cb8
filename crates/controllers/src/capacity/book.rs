//! What should be published, and which objects there are for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use longshore_core::{
    model::{Uid, kinds::CsiStorageCapacity},
    provision::{capacity::Item, topology::Term},
};

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Work {
    /// Ask the driver about an item and make its object say so.
    Refresh(Item),
    /// Delete an object that is about nothing, or about what another one is about.
    Remove {
        /// Its name.
        name: String,
        /// Its uid.
        uid: Uid,
    },
}

/// The items that are wanted, each with the object that tells about it. Every method answers what
/// is to be done about the change.
#[derive(Debug, Default)]
pub(super) struct Book {
    segments: BTreeSet<Term>,
    classes: BTreeSet<String>,
    items: BTreeMap<Item, Option<Arc<CsiStorageCapacity>>>,
    /// Objects that are to go, by uid.
    obsolete: BTreeSet<Uid>,
}

impl Book {
    /// The places are these now.
    pub(super) fn set_segments(&mut self, segments: BTreeSet<Term>) -> Vec<Work> {
        let mut work = self.drop_items(|item| !segments.contains(&item.segment));
        for segment in segments.difference(&self.segments) {
            for class in &self.classes {
                let item = Item { segment: segment.clone(), class: class.clone() };
                self.items.entry(item.clone()).or_insert(None);
                work.push(Work::Refresh(item));
            }
        }
        self.segments = segments;
        work
    }

    /// A class is wanted; its parameters may have changed.
    pub(super) fn want_class(&mut self, class: &str) -> Vec<Work> {
        self.classes.insert(class.to_owned());
        let items = self
            .segments
            .iter()
            .map(|segment| Item { segment: segment.clone(), class: class.to_owned() });
        let items: Vec<Item> = items.collect();
        for item in &items {
            self.items.entry(item.clone()).or_insert(None);
        }
        items.into_iter().map(Work::Refresh).collect()
    }

    /// A class is not wanted any more.
    pub(super) fn drop_class(&mut self, class: &str) -> Vec<Work> {
        self.classes.remove(class);
        self.drop_items(|item| item.class == class)
    }

    fn drop_items(&mut self, gone: impl Fn(&Item) -> bool) -> Vec<Work> {
        let mut work = Vec::new();
        self.items.retain(|item, object| {
            let gone = gone(item);
            if let (true, Some(object)) = (gone, object) {
                self.obsolete.insert(object.metadata.uid.clone());
                work.push(remove(object));
            }
            !gone
        });
        work
    }

    /// An object of ours appeared or changed.
    pub(super) fn object_seen(&mut self, object: &Arc<CsiStorageCapacity>) -> Vec<Work> {
        let uid = &object.metadata.uid;
        if let Some(known) = self.items.values_mut().flatten().find(|o| o.metadata.uid == *uid) {
            *known = object.clone();
            return Vec::new();
        }
        let unclaimed = self
            .items
            .iter_mut()
            .find(|(item, object_of)| object_of.is_none() && item.describes(object));
        if let Some((item, place)) = unclaimed {
            *place = Some(object.clone());
            // Whoever made it may have been wrong.
            return vec![Work::Refresh(item.clone())];
        }
        self.obsolete.insert(uid.clone());
        vec![remove(object)]
    }

    /// An object of ours is gone, or ours no longer.
    pub(super) fn object_gone(&mut self, uid: &Uid) -> Vec<Work> {
        self.obsolete.remove(uid);
        let has = |object: &Option<Arc<CsiStorageCapacity>>| {
            object.as_ref().is_some_and(|object| object.metadata.uid == *uid)
        };
        let Some((item, place)) = self.items.iter_mut().find(|(_, object)| has(object)) else {
            return Vec::new();
        };
        *place = None;
        vec![Work::Refresh(item.clone())]
    }

    /// The object for an item; `None` when the item is not wanted.
    pub(super) fn object(&self, item: &Item) -> Option<Option<Arc<CsiStorageCapacity>>> {
        self.items.get(item).cloned()
    }

    /// All items for which `wanted` holds.
    pub(super) fn items(&self, wanted: impl Fn(&Item) -> bool) -> Vec<Work> {
        self.items.keys().filter(|item| wanted(item)).cloned().map(Work::Refresh).collect()
    }

    /// How many objects there should be, how many of those there are, and how many are to go.
    pub(super) fn counts(&self) -> [usize; 3] {
        [self.items.len(), self.items.values().flatten().count(), self.obsolete.len()]
    }
}

fn remove(object: &CsiStorageCapacity) -> Work {
    let meta = &object.metadata;
    Work::Remove { name: meta.name.clone(), uid: meta.uid.clone() }
}
