//! Decides which CSIStorageCapacity objects are published: one per topology segment and class of a driver.

use std::collections::BTreeMap;

use super::topology::{Term, term_of};
use crate::model::{
    NodeName,
    kinds::{
        CsiNode, CsiStorageCapacity, Node, NodeSelectorTerm, OwnerReference, StorageClass,
        VolumeNodeAffinity,
    },
};

/// Label: the driver whose capacity this is.
pub const DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";
/// Label: who keeps the object.
pub const MANAGER_LABEL: &str = "csi.storage.k8s.io/managed-by";
/// The manager where one provisioner serves all nodes.
pub const MANAGER: &str = "external-provisioner";
/// Labels are no longer than this.
const LONGEST_LABEL: usize = 63;

/// What one object is about: a place, and a class.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Item {
    /// The place; without keys it is all nodes.
    pub segment: Term,
    pub class: String,
}

impl Item {
    /// What an object is about, if it is a place that a label each describes.
    #[must_use]
    pub fn of(object: &CsiStorageCapacity) -> Option<Self> {
        let topology = object.node_topology.as_ref()?;
        let plain = topology.match_expressions.is_empty();
        plain.then(|| Self {
            segment: topology.match_labels.clone(),
            class: object.storage_class_name.clone(),
        })
    }

    /// Whether an object is about this.
    #[must_use]
    pub fn describes(&self, object: &CsiStorageCapacity) -> bool {
        Self::of(object).is_some_and(|item| item == *self)
    }
}

/// The place of a node where a driver runs. A node counts when its labels have a value for every key
/// that the driver registered there; a driver without keys is everywhere at once.
#[must_use]
pub fn segment_on(driver: &str, csi_node: &CsiNode, node: &Node) -> Option<Term> {
    term_of(&node.metadata.labels, &csi_node.driver(driver)?.topology_keys)
}

/// Whether the capacity for a class is published. Late binding needs it to place pods; immediate
/// binding does not look at it.
#[must_use]
pub fn is_published(class: &StorageClass, driver: &str, for_immediate: bool) -> bool {
    let immediate = class.volume_binding_mode.as_deref() == Some("Immediate");
    class.provisioner == driver && (for_immediate || !immediate)
}

/// What the driver says, and what an object says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// How much in all, in bytes.
    pub capacity: i64,
    /// The largest single volume, where it is known.
    pub maximum: Option<i64>,
}

/// Whether an object says what it should.
#[must_use]
pub fn is_current(object: &CsiStorageCapacity, room: Room, owner: Option<&OwnerReference>) -> bool {
    let said = Room {
        capacity: object.capacity.map_or(-1, |quantity| quantity.bytes()),
        maximum: object.maximum_volume_size.map(|quantity| quantity.bytes()),
    };
    said == room && owner.is_none_or(|owner| is_owned_by(object, owner))
}

/// Whether an object has this owner already.
#[must_use]
pub fn is_owned_by(object: &CsiStorageCapacity, owner: &OwnerReference) -> bool {
    object.metadata.owner_references.iter().any(|one| one.uid == owner.uid)
}

/// Which items a volume that was made or deleted has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touched {
    /// Nobody knows where it is: all places of its class.
    Class,
    /// Exactly these places.
    Segments(Vec<Term>),
}

/// Where the room has changed with a volume of this affinity.
#[must_use]
pub fn touched(affinity: &VolumeNodeAffinity) -> Touched {
    match &affinity.required {
        None => Touched::Class,
        Some(required) => {
            let terms = required.node_selector_terms.iter();
            Touched::Segments(terms.filter_map(segment_of).collect())
        }
    }
}

/// The place that a term of a node selector describes: nothing but single values will do.
#[must_use]
pub fn segment_of(term: &NodeSelectorTerm) -> Option<Term> {
    if !term.match_fields.is_empty() {
        return None;
    }
    let pairs = term.match_expressions.iter().map(|one| match &one.values[..] {
        [value] if one.operator == "In" => Some((one.key.clone(), value.clone())),
        _ => None,
    });
    pairs.collect::<Option<BTreeMap<_, _>>>()
}

/// The name under which a node's own provisioner keeps its objects, short enough for a label. Where
/// it would be too long, hashes keep it unique.
#[must_use]
pub fn manager_on(base: &str, node: &NodeName) -> String {
    let whole = if base.is_empty() { node.to_string() } else { format!("{base}-{node}") };
    if whole.len() <= LONGEST_LABEL {
        return whole;
    }
    // Two dashes and eight digits.
    let hashed = 10;
    let room = LONGEST_LABEL.saturating_sub(hashed + node.len());
    if room > 0 && !base.is_empty() {
        let kept: String = base.chars().take(room).collect();
        return format!("{kept}-{:08x}-{node}", fnv1a(base));
    }
    let kept: String = base.chars().take(LONGEST_LABEL - 9).collect();
    let hash = fnv1a(&whole);
    if kept.is_empty() { format!("{hash:08x}") } else { format!("{kept}-{hash:08x}") }
}

/// 32-bit FNV-1a: xor, then multiply.
fn fnv1a(text: &str) -> u32 {
    text.bytes()
        .fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
#[path = "capacity_tests.rs"]
mod tests;
