//! Sets of fields, in the form `managedFields` shows them.
//!
//! A node stands for a field (`f:name`), an element of a keyed list (`k:{…}`) or of a set (`v:…`).
//! It can be a member itself, hold members below, or both; `.` marks a member that has others below.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::{Map, Value};

use crate::error::cut;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    /// Whether the node itself is in the set.
    pub own: bool,
    pub children: BTreeMap<String, FieldSet>,
}

impl FieldSet {
    /// A set of the node itself.
    pub(crate) fn leaf() -> Self {
        Self { own: true, children: BTreeMap::new() }
    }

    /// Whether nothing is in the set.
    pub(crate) fn is_empty(&self) -> bool {
        !self.own && self.children.values().all(Self::is_empty)
    }

    /// Puts a set below a name, unless it is empty.
    pub(crate) fn insert(&mut self, name: String, child: Self) {
        if !child.is_empty() {
            self.children.insert(name, child);
        }
    }

    /// Adds all members of another set.
    pub(crate) fn union(&mut self, other: &Self) {
        self.own |= other.own;
        for (name, child) in &other.children {
            match self.children.get_mut(name) {
                Some(mine) => mine.union(child),
                None => drop(self.children.insert(name.clone(), child.clone())),
            }
        }
    }

    /// Takes out all members of another set.
    pub(crate) fn subtract(&mut self, other: &Self) {
        self.own &= !other.own;
        // The smaller side leads: small sets are taken many times from large ones, and the other way.
        if self.children.len() < other.children.len() {
            self.children.retain(|name, mine| {
                if let Some(child) = other.children.get(name) {
                    mine.subtract(child);
                }
                !mine.is_empty()
            });
            return;
        }
        for (name, child) in &other.children {
            if let Some(mine) = self.children.get_mut(name) {
                mine.subtract(child);
                if mine.is_empty() {
                    self.children.remove(name);
                }
            }
        }
    }

    /// The members of both sets.
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let mut both = Self { own: self.own && other.own, children: BTreeMap::new() };
        if self.children.len() > other.children.len() {
            return other.intersection(self);
        }
        for (name, child) in &self.children {
            if let Some(theirs) = other.children.get(name) {
                both.insert(name.clone(), child.intersection(theirs));
            }
        }
        both
    }

    /// Takes a whole branch out, given by the names that the nodes have here.
    pub(crate) fn prune(&mut self, path: &[&str]) {
        let Some((name, rest)) = path.split_first() else { return };
        if rest.is_empty() {
            self.children.remove(*name);
        } else if let Some(child) = self.children.get_mut(*name) {
            child.prune(rest);
            if child.is_empty() {
                self.children.remove(*name);
            }
        }
    }

    /// The paths of all members, as errors show them: `.spec.containers[name="a"].image`.
    /// At most so many.
    pub(crate) fn paths(&self, most: usize) -> Vec<String> {
        let mut found = Vec::new();
        self.collect("", most, &mut found);
        found
    }

    fn collect(&self, path: &str, most: usize, found: &mut Vec<String>) {
        if self.own && !path.is_empty() && found.len() < most {
            found.push(path.to_owned());
        }
        for (name, child) in &self.children {
            if found.len() >= most {
                return;
            }
            let name = shown(name);
            child.collect(&cut(&format!("{path}{name}")), most, found);
        }
    }

    /// How many members there are.
    pub(crate) fn count(&self) -> usize {
        usize::from(self.own) + self.children.values().map(Self::count).sum::<usize>()
    }

    /// The set as `fieldsV1`.
    pub(crate) fn to_value(&self) -> Value {
        let mut map = Map::new();
        if self.own && !self.children.is_empty() {
            map.insert(".".into(), Value::Object(Map::new()));
        }
        for (name, child) in &self.children {
            map.insert(name.clone(), child.to_value());
        }
        Value::Object(map)
    }

    /// Reads `fieldsV1`; `None` when it is not in that form.
    pub(crate) fn parse(value: &Value) -> Option<Self> {
        let mut set = Self::node(value)?;
        // The object itself has no manager.
        set.own = false;
        Some(set)
    }

    fn node(value: &Value) -> Option<Self> {
        let map = value.as_object()?;
        let mut set =
            Self { own: map.is_empty() || map.contains_key("."), children: BTreeMap::new() };
        for (name, child) in map.iter().filter(|(name, _)| *name != ".") {
            if !is_known(name) {
                return None;
            }
            set.children.insert(name.clone(), Self::node(child)?);
        }
        Some(set)
    }
}

impl Serialize for FieldSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if self.own && !self.children.is_empty() {
            map.serialize_entry(".", &Map::new())?;
        }
        for (name, child) in &self.children {
            map.serialize_entry(name, child)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for FieldSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Nodes)
    }
}

struct Nodes;

impl<'de> Visitor<'de> for Nodes {
    type Value = FieldSet;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a set of fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FieldSet, A::Error> {
        let mut set = FieldSet { own: true, children: BTreeMap::new() };
        let mut itself = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "." {
                map.next_value::<IgnoredAny>()?;
                itself = true;
            } else if is_known(&name) {
                set.children.insert(name, map.next_value()?);
            } else {
                return Err(A::Error::custom("not a set of fields"));
            }
        }
        set.own = itself || set.children.is_empty();
        Ok(set)
    }
}

fn is_known(name: &str) -> bool {
    ["f:", "k:", "v:", "i:"].iter().any(|prefix| name.starts_with(prefix))
}

/// The name of a field's node.
pub(super) fn field(name: &str) -> String {
    let mut node = String::with_capacity(name.len() + 2);
    node.push_str("f:");
    node.push_str(name);
    node
}

/// One step of a path as errors show it.
fn shown(name: &str) -> String {
    let (kind, rest) = name.split_at(name.find(':').map_or(0, |at| at + 1));
    match kind {
        "f:" => format!(".{rest}"),
        "k:" => {
            let keys: Map<String, Value> = serde_json::from_str(rest).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(k, v)| format!("{k}={v}")).collect();
            format!("[{}]", keys.join(","))
        }
        "v:" => format!("[={rest}]"),
        _ => format!("[{rest}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(value: Value) -> FieldSet {
        FieldSet::parse(&value).unwrap()
    }

    #[test]
    fn sets_survive_the_round_trip() {
        let value = json!({"f:data": {".": {}, "f:a": {}}, "f:spec": {"k:{\"name\":\"x\"}": {".": {}, "f:y": {}}}});
        assert_eq!(set(value.clone()).to_value(), value);
        assert!(FieldSet::parse(&json!({"data": {}})).is_none());
        assert!(FieldSet::parse(&json!([])).is_none());
    }

    #[test]
    fn sets_are_joined_and_parted() {
        let mut a = set(json!({"f:data": {"f:a": {}, "f:b": {}}}));
        let b = set(json!({"f:data": {"f:b": {}, "f:c": {}}}));
        assert_eq!(a.intersection(&b), set(json!({"f:data": {"f:b": {}}})));
        a.union(&b);
        assert_eq!(a, set(json!({"f:data": {"f:a": {}, "f:b": {}, "f:c": {}}})));
        a.subtract(&b);
        assert_eq!(a, set(json!({"f:data": {"f:a": {}}})));
        a.prune(&["f:data"]);
        assert!(a.is_empty());
    }

    #[test]
    fn paths_read_like_fields() {
        let fields = set(
            json!({"f:spec": {"f:c": {"k:{\"name\":\"a\"}": {"f:image": {}}}, "f:s": {"v:\"x\"": {}}}}),
        );
        assert_eq!(fields.paths(9), [".spec.c[name=\"a\"].image", ".spec.s[=\"x\"]"]);
    }
}
