//! Where a volume may live: the topology requirement of CreateVolume, and the way back from the
//! driver's answer to the node affinity of the volume.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::compact::Written;
use crate::model::NodeName;

/// One place: topology keys and their values, sorted by key.
pub type Term = BTreeMap<String, String>;

/// What CreateVolume is told: where it may be, and in which order we would like it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
pub struct Requirement {
    /// The volume must be reachable from at least one of these.
    pub requisite: Vec<Term>,
    /// The same terms, best first.
    pub preferred: Vec<Term>,
}

/// The node the scheduler chose.
#[derive(Debug, Clone)]
pub struct SelectedNode<'a> {
    pub name: &'a NodeName,
    /// The topology keys that the driver registered there; `None` when its CSINode is gone.
    pub keys: Option<&'a [String]>,
    /// Its labels; `None` when the Node is gone.
    pub labels: Option<&'a BTreeMap<String, String>>,
}

/// An allowed topology of a class: each key with the values it may have.
pub type Allowed = Vec<(String, Vec<String>)>;

/// All that the requirement depends on.
#[derive(Debug, Clone)]
pub struct View<'a> {
    /// The claim's name: spreads the replicas of a set over the places.
    pub claim: &'a str,
    /// The node chosen by the scheduler, if any.
    pub selected: Option<SelectedNode<'a>>,
    /// Ask for the selected node's place only.
    pub strict: bool,
    /// Without a selected node: send all places of the cluster.
    pub immediate: bool,
    /// The class's allowed topologies.
    pub allowed: &'a [Allowed],
    /// The driver's keys as one of the cluster's CSINodes lists them.
    pub cluster_keys: Option<&'a [String]>,
    /// The labels of every node.
    pub nodes: &'a [&'a BTreeMap<String, String>],
}

/// Why there is no requirement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// The chosen node does not run the driver (any more): another node must be found.
    #[error("failed to get selected CSINode {node}: csinode.storage.k8s.io \"{node}\" not found")]
    NoCsiNode {
        /// The chosen node.
        node: NodeName,
    },
    /// The driver registered no keys on the chosen node.
    #[error("error generating accessibility requirements: no topology key found for node {0}")]
    NoKeys(NodeName),
    /// The chosen node lacks a label.
    #[error(
        "error generating accessibility requirements: topology labels from selected node {labels:?} does not match topology keys from CSINode {keys:?}"
    )]
    LabelsMissing {
        /// The labels it has.
        labels: BTreeMap<String, String>,
        /// The keys it needs.
        keys: Vec<String>,
    },
    /// The chosen node is outside the class's topologies.
    #[error(
        "error generating accessibility requirements: selected node '\"{node}\"' topology '{term:?}' is not in allowed topologies: {allowed:?}"
    )]
    NotAllowed {
        /// The chosen node.
        node: NodeName,
        /// Its place.
        term: Term,
        /// What the class allows.
        allowed: Vec<Term>,
    },
    /// The chosen node matches none of the terms.
    #[error(
        "error generating accessibility requirements: topology {term:?} from selected node \"{node}\" is not in requisite: {requisite:?}"
    )]
    NotRequisite {
        /// The chosen node.
        node: NodeName,
        /// Its place.
        term: Term,
        requisite: Vec<Term>,
    },
    /// No node runs the driver with topology keys.
    #[error("error generating accessibility requirements: no available topology found")]
    NoneAvailable,
    /// No node carries the keys as labels.
    #[error(
        "error generating accessibility requirements: topologyKeys {0:?} were not found on any nodes"
    )]
    KeysNowhere(Vec<String>),
}

/// The topology requirement for one claim; `None` when the request carries none.
///
/// # Errors
/// When the selected node or the cluster gives no usable place.
pub fn requirement(view: &View<'_>) -> Result<Option<Requirement>, TopologyError> {
    let allowed = flatten(view.allowed);
    let Some(selected) = &view.selected else { return unselected(view, allowed) };
    let keys =
        selected.keys.ok_or_else(|| TopologyError::NoCsiNode { node: selected.name.clone() })?;
    if keys.is_empty() {
        return Err(TopologyError::NoKeys(selected.name.clone()));
    }
    let term = selected.labels.and_then(|labels| term_of(labels, keys)).ok_or_else(|| {
        TopologyError::LabelsMissing {
            labels: selected.labels.cloned().unwrap_or_default(),
            keys: keys.to_vec(),
        }
    })?;
    if view.strict {
        return strict(selected.name, term, view.allowed, allowed);
    }
    let requisite = if view.allowed.is_empty() {
        cluster_terms(keys, view.nodes)?
    } else if allowed.is_empty() {
        return Ok(None);
    } else {
        allowed
    };
    match requisite.iter().position(|candidate| is_subset(candidate, &term)) {
        Some(first) => Ok(Some(rotated(requisite, first))),
        None => Err(TopologyError::NotRequisite { node: selected.name.clone(), term, requisite }),
    }
}

fn strict(
    node: &NodeName,
    term: Term,
    given: &[Allowed],
    allowed: Vec<Term>,
) -> Result<Option<Requirement>, TopologyError> {
    if !given.is_empty() && !allowed.iter().any(|candidate| is_subset(candidate, &term)) {
        return Err(TopologyError::NotAllowed { node: node.clone(), term, allowed });
    }
    Ok(Some(Requirement { requisite: vec![term.clone()], preferred: vec![term] }))
}

fn unselected(view: &View<'_>, allowed: Vec<Term>) -> Result<Option<Requirement>, TopologyError> {
    let requisite = if !view.allowed.is_empty() {
        allowed
    } else if view.immediate {
        let keys = view.cluster_keys.ok_or(TopologyError::NoneAvailable)?;
        cluster_terms(keys, view.nodes)?
    } else {
        return Ok(None);
    };
    if requisite.is_empty() {
        return Ok(None);
    }
    let first = start_index(view.claim, requisite.len());
    Ok(Some(rotated(requisite, first)))
}

/// The place of a node, if it carries every key as a label.
#[must_use]
pub fn term_of(labels: &BTreeMap<String, String>, keys: &[String]) -> Option<Term> {
    keys.iter().map(|key| Some((key.clone(), labels.get(key)?.clone()))).collect()
}

fn cluster_terms(
    keys: &[String],
    nodes: &[&BTreeMap<String, String>],
) -> Result<Vec<Term>, TopologyError> {
    let terms: Vec<Term> = nodes.iter().filter_map(|labels| term_of(labels, keys)).collect();
    if terms.is_empty() {
        return Err(TopologyError::KeysNowhere(keys.to_vec()));
    }
    Ok(sorted(terms))
}

/// Every combination of values that the allowed topologies describe.
fn flatten(allowed: &[Allowed]) -> Vec<Term> {
    let mut terms = Vec::new();
    for expressions in allowed.iter().filter(|expressions| !expressions.is_empty()) {
        let mut product = vec![Term::new()];
        for (key, values) in expressions {
            product = product
                .iter()
                .flat_map(|term| {
                    values.iter().map(|value| {
                        let mut longer = term.clone();
                        longer.insert(key.clone(), value.clone());
                        longer
                    })
                })
                .collect();
        }
        terms.extend(product);
    }
    sorted(terms)
}

/// Shorter terms first, then by key, then by value; equal terms once.
fn sorted(terms: Vec<Term>) -> Vec<Term> {
    let set: BTreeSet<(usize, Vec<(String, String)>)> =
        terms.into_iter().map(|term| (term.len(), term.into_iter().collect())).collect();
    set.into_iter().map(|(_, pairs)| pairs.into_iter().collect()).collect()
}

fn is_subset(part: &Term, whole: &Term) -> bool {
    part.iter().all(|(key, value)| whole.get(key) == Some(value))
}

fn rotated(requisite: Vec<Term>, first: usize) -> Requirement {
    let mut preferred = requisite.clone();
    preferred.rotate_left(first);
    Requirement { requisite, preferred }
}

/// Spreads claims over places by name. Claims of one set (`data-web-0`, `data-web-1`, …) start at
/// neighbouring places, and all claims of one replica at the same one.
fn start_index(claim: &str, count: usize) -> usize {
    let (base, index) = match claim.rsplit_once('-') {
        Some((base, number)) => match number.parse::<u32>() {
            Ok(index) => (base.rsplit_once('-').map_or(base, |(_, set)| set), index),
            Err(_) => (claim, 0),
        },
        None => (claim, 0),
    };
    let start = fnv1(base).wrapping_add(index);
    // The remainder is smaller than `count`, which is a usize already.
    usize::try_from(u64::from(start) % count as u64).unwrap_or(0)
}

/// 32-bit FNV-1: multiply, then xor.
fn fnv1(text: &str) -> u32 {
    text.bytes()
        .fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}

/// The node affinity of a volume that the driver says is reachable from these places.
///
/// No places at all: reachable from everywhere. Places without segments are left out; if nothing
/// is left the affinity matches no node, which is what the driver said.
#[must_use]
pub fn node_affinity(places: &[Term]) -> Option<Value> {
    if places.is_empty() {
        return None;
    }
    let terms: Vec<Value> = places
        .iter()
        .filter(|place| !place.is_empty())
        .map(|place| {
            let expressions: Vec<Value> = place
                .iter()
                .map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}))
                .collect();
            json!({"matchExpressions": expressions})
        })
        .collect();
    Some(json!({"required": {"nodeSelectorTerms": terms}}))
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
