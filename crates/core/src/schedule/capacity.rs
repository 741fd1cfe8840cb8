//! Whether a driver has room for a claim on a node.

use std::collections::BTreeMap;

use super::ClaimFacts;
use crate::model::kinds::{CsiStorageCapacity, Node, TopologyTerm};

/// Whether the driver's published capacity allows the claim on the node. A driver that
/// publishes none is taken at its word when it is asked to make the volume.
#[must_use]
pub(crate) fn has_capacity<'a>(
    facts: &ClaimFacts<'_>,
    node: &Node,
    capacities: impl IntoIterator<Item = &'a CsiStorageCapacity>,
) -> bool {
    !counts(facts) || find_capacity(facts, node, capacities).is_some()
}

/// The published capacity that allows the claim on the node, where the driver publishes any.
#[must_use]
pub(crate) fn find_capacity<'a>(
    facts: &ClaimFacts<'_>,
    node: &Node,
    capacities: impl IntoIterator<Item = &'a CsiStorageCapacity>,
) -> Option<&'a CsiStorageCapacity> {
    if !counts(facts) {
        return None;
    }
    let request = facts.claim.request();
    capacities.into_iter().find(|capacity| {
        let limit = capacity.maximum_volume_size.or(capacity.capacity);
        // No topology means that the storage can be reached from nowhere.
        let here = capacity.node_topology.as_ref();
        capacity.storage_class_name == facts.claim.class_name()
            && limit.is_some_and(|limit| limit.bytes() >= request.bytes())
            && here.is_some_and(|topology| topology.matches(&node.metadata.labels))
    })
}

fn counts(facts: &ClaimFacts<'_>) -> bool {
    let publishes = facts.driver.is_some_and(|driver| driver.spec.storage_capacity == Some(true));
    publishes && !facts.claim.request().is_zero()
}

/// Whether a class allows volumes on a node with these labels. No terms allow all nodes, a term
/// without expressions allows none.
#[must_use]
pub(crate) fn topology_allows(terms: &[TopologyTerm], labels: &BTreeMap<String, String>) -> bool {
    let fits = |term: &TopologyTerm| {
        let expressions = &term.match_label_expressions;
        !expressions.is_empty()
            && expressions.iter().all(|expression| {
                labels.get(&expression.key).is_some_and(|value| expression.values.contains(value))
            })
    };
    terms.is_empty() || terms.iter().any(fits)
}
