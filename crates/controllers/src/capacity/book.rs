//! What should be published, and which objects there are for it.
//!
//! There is one item for each segment and class, so thousands with a segment per node. A change of
//! one object, node or volume looks only at the items that it concerns.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use longshore_core::{
    model::{Uid, kinds::CsiStorageCapacity},
    provision::{capacity::Item, topology::Term},
    visits,
};

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Work {
    /// Ask the driver about an item and make its object say so.
    Refresh(Item),
    /// Refresh all items of a class.
    RefreshClass(String),
    /// Delete an object that is about nothing, or about what another one is about.
    Remove { name: String, uid: Uid },
}

/// The items that are wanted, each with the object that tells about it. Every method answers what
/// is to be done about the change.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// The places, each with the number of nodes there.
    segments: BTreeMap<Term, usize>,
    /// Where each node is.
    nodes: HashMap<String, Term>,
    classes: BTreeSet<String>,
    items: BTreeMap<Item, Option<Arc<CsiStorageCapacity>>>,
    /// The items of the objects that are in `items`, by uid.
    published: HashMap<Uid, Item>,
    /// Objects that are to go, by uid.
    obsolete: BTreeSet<Uid>,
}

impl Book {
    /// A node is in this place now; with `None` it is nowhere, or gone.
    pub(super) fn set_node(&mut self, node: &str, place: Option<Term>) -> Vec<Work> {
        let before = match &place {
            Some(place) if self.nodes.get(node) == Some(place) => return Vec::new(),
            Some(place) => self.nodes.insert(node.to_owned(), place.clone()),
            None => self.nodes.remove(node),
        };
        let mut work = before.map(|before| self.leave(&before)).unwrap_or_default();
        if let Some(place) = place {
            work.extend(self.enter(place));
        }
        work
    }

    /// One more node is there.
    fn enter(&mut self, segment: Term) -> Vec<Work> {
        let nodes = self.segments.entry(segment.clone()).or_default();
        *nodes += 1;
        if *nodes > 1 {
            return Vec::new();
        }
        let items: Vec<Item> = self.at(&segment);
        for item in &items {
            self.items.entry(item.clone()).or_insert(None);
        }
        items.into_iter().map(Work::Refresh).collect()
    }

    /// One node less is there.
    fn leave(&mut self, segment: &Term) -> Vec<Work> {
        let Some(nodes) = self.segments.get_mut(segment) else { return Vec::new() };
        *nodes -= 1;
        if *nodes > 0 {
            return Vec::new();
        }
        self.segments.remove(segment);
        let items = self.at(segment);
        items.iter().filter_map(|item| self.drop_item(item)).collect()
    }

    /// The items of one place.
    fn at(&self, segment: &Term) -> Vec<Item> {
        let item = |class: &String| Item { segment: segment.clone(), class: class.clone() };
        visits::each(&self.classes).map(item).collect()
    }

    /// The items of one class.
    fn of_class(&self, class: &str) -> Vec<Item> {
        let item = |segment: &Term| Item { segment: segment.clone(), class: class.to_owned() };
        visits::each(self.segments.keys()).map(item).collect()
    }

    /// A class is wanted; its parameters may have changed.
    pub(super) fn want_class(&mut self, class: &str) -> Vec<Work> {
        self.classes.insert(class.to_owned());
        let items = self.of_class(class);
        for item in &items {
            self.items.entry(item.clone()).or_insert(None);
        }
        items.into_iter().map(Work::Refresh).collect()
    }

    /// A class is not wanted any more.
    pub(super) fn drop_class(&mut self, class: &str) -> Vec<Work> {
        if !self.classes.remove(class) {
            return Vec::new();
        }
        let items = self.of_class(class);
        items.iter().filter_map(|item| self.drop_item(item)).collect()
    }

    fn drop_item(&mut self, item: &Item) -> Option<Work> {
        let object = self.items.remove(item)??;
        let uid = object.metadata.uid.clone();
        self.published.remove(&uid);
        self.obsolete.insert(uid);
        Some(remove(&object))
    }

    /// An object of ours appeared or changed.
    pub(super) fn object_seen(&mut self, object: &Arc<CsiStorageCapacity>) -> Vec<Work> {
        let uid = &object.metadata.uid;
        if let Some(known) = self.published.get(uid).and_then(|item| self.items.get_mut(item)) {
            *known = Some(object.clone());
            return Vec::new();
        }
        if let Some(item) = Item::of(object)
            && let Some(place @ None) = self.items.get_mut(&item)
        {
            *place = Some(object.clone());
            self.published.insert(uid.clone(), item.clone());
            // Whoever made it may have been wrong.
            return vec![Work::Refresh(item)];
        }
        self.obsolete.insert(uid.clone());
        vec![remove(object)]
    }

    /// An object of ours is gone, or ours no longer.
    pub(super) fn object_gone(&mut self, uid: &Uid) -> Vec<Work> {
        self.obsolete.remove(uid);
        let Some(item) = self.published.remove(uid) else { return Vec::new() };
        self.items.insert(item.clone(), None);
        vec![Work::Refresh(item)]
    }

    /// The object for an item; `None` when the item is not wanted.
    pub(super) fn object(&self, item: &Item) -> Option<Option<Arc<CsiStorageCapacity>>> {
        self.items.get(item).cloned()
    }

    /// Asks about everything.
    pub(super) fn all(&self) -> Vec<Work> {
        visits::each(self.items.keys()).cloned().map(Work::Refresh).collect()
    }

    /// Asks about all places of a class.
    pub(super) fn refresh_class(&self, class: &str) -> Vec<Work> {
        match self.classes.contains(class) {
            true => self.of_class(class).into_iter().map(Work::Refresh).collect(),
            false => Vec::new(),
        }
    }

    /// Asks about all classes in these places.
    pub(super) fn refresh_segments(&self, segments: &[Term]) -> Vec<Work> {
        let known = segments.iter().filter(|segment| self.segments.contains_key(*segment));
        known.flat_map(|segment| self.at(segment)).map(Work::Refresh).collect()
    }

    /// How many objects there should be, how many of those there are, and how many are to go.
    pub(super) fn counts(&self) -> [usize; 3] {
        [self.items.len(), self.published.len(), self.obsolete.len()]
    }
}

fn remove(object: &CsiStorageCapacity) -> Work {
    let meta = &object.metadata;
    Work::Remove { name: meta.name.clone(), uid: meta.uid.clone() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn place(node: usize) -> Term {
        [("host".to_owned(), format!("n{node}"))].into()
    }

    fn object(node: usize, uid: &str) -> Arc<CsiStorageCapacity> {
        let object = json!({"metadata": {"name": uid, "namespace": "d", "uid": uid},
            "storageClassName": "gold", "nodeTopology": {"matchLabels": place(node)}});
        Arc::new(serde_json::from_value(object).unwrap())
    }

    /// A book with a place per node, and the object of each but the last.
    fn book(nodes: usize) -> Book {
        let mut book = Book::default();
        for node in 0..nodes {
            book.set_node(&node.to_string(), Some(place(node)));
        }
        book.want_class("gold");
        for node in 0..nodes - 1 {
            let work = book.object_seen(&object(node, &format!("uid-{node}")));
            assert!(matches!(&work[..], [Work::Refresh(_)]), "{work:?}");
        }
        book
    }

    #[test]
    fn a_change_of_one_object_or_node_does_not_visit_all_items() {
        let visited = |nodes: usize| {
            let (mut book, before) = (book(nodes), visits::total());
            book.object_seen(&object(nodes - 1, "new"));
            book.object_seen(&object(7, "uid-7"));
            assert_eq!(book.object_seen(&object(7, "twice")).len(), 1, "one too many is removed");
            book.object_gone(&"twice".into());
            assert_eq!(book.counts(), [nodes, nodes, 0]);
            book.object_gone(&"uid-7".into());
            assert_eq!(book.refresh_segments(&[place(7)]).len(), 1);
            assert_eq!(book.set_node("8", None).len(), 1, "its object goes");
            assert!(book.set_node("9", Some(place(9))).is_empty());
            assert_eq!(book.counts(), [nodes - 1, nodes - 2, 1]);
            visits::total() - before
        };
        assert_eq!(visited(1_000), visited(10_000));
        assert!(visited(1_000) < 10, "{}", visited(1_000));
    }

    #[test]
    fn a_place_lasts_until_its_last_node_has_left() {
        let mut book = Book::default();
        book.want_class("gold");
        assert_eq!(book.set_node("a", Some(place(1))).len(), 1);
        assert!(book.set_node("b", Some(place(1))).is_empty(), "known already");
        book.object_seen(&object(1, "x"));
        assert!(book.set_node("a", None).is_empty(), "b is still there");
        let work = book.set_node("b", Some(place(2)));
        assert!(matches!(&work[..], [Work::Remove { .. }, Work::Refresh(_)]), "{work:?}");
        assert!(book.set_node("b", Some(place(2))).is_empty());
    }
}
