//! Secondary indexes that several loops use, each defined once.

use longshore_cluster::Cache;
use longshore_core::model::{
    NodeName, ObjectKey, VolumeName,
    kinds::{Node, NodeSelector, NodeSelectorTerm, Pod, Requirement, VolumeAttachment},
};

const PODS_BY_CLAIM: &str = "pods-by-claim";
const PODS_BY_NODE: &str = "pods-by-node";
const NODES_BY_LABEL: &str = "nodes-by-label";
const ATTACHMENTS_BY_VOLUME: &str = "attachments-by-volume";
const ATTACHMENTS_BY_NODE: &str = "attachments-by-node";

/// Lets pods be found by the claims they name and by their node.
pub(crate) fn index_pods(pods: &Cache<Pod>) {
    pods.index(PODS_BY_CLAIM, |pod: &Pod| {
        let namespace = &pod.metadata.namespace;
        pod.claim_names().map(|(name, _)| format!("{namespace}/{name}")).collect()
    });
    pods.index(PODS_BY_NODE, |pod: &Pod| vec![pod.spec.node_name.to_string()]);
}

/// Pods that name a claim, also by way of an ephemeral volume.
pub(crate) fn pods_of_claim(pods: &Cache<Pod>, claim: &ObjectKey) -> Vec<std::sync::Arc<Pod>> {
    pods.by_index(PODS_BY_CLAIM, &claim.to_string())
}

/// Pods on a node; with an empty name, pods on none.
pub(crate) fn pods_on_node(pods: &Cache<Pod>, node: &NodeName) -> Vec<std::sync::Arc<Pod>> {
    pods.by_index(PODS_BY_NODE, node)
}

/// Lets attachments be found by volume and by node.
pub(crate) fn index_attachments(attachments: &Cache<VolumeAttachment>) {
    attachments.index(ATTACHMENTS_BY_VOLUME, |attachment: &VolumeAttachment| {
        attachment.spec.source.persistent_volume_name.iter().map(String::from).collect()
    });
    attachments.index(ATTACHMENTS_BY_NODE, |attachment: &VolumeAttachment| {
        vec![attachment.spec.node_name.to_string()]
    });
}

/// Attachments, of whatever driver, that name a volume.
pub(crate) fn attachments_of_volume(
    attachments: &Cache<VolumeAttachment>,
    volume: &VolumeName,
) -> Vec<std::sync::Arc<VolumeAttachment>> {
    attachments.by_index(ATTACHMENTS_BY_VOLUME, volume)
}

/// Attachments to a node.
pub(crate) fn attachments_on_node(
    attachments: &Cache<VolumeAttachment>,
    node: &NodeName,
) -> Vec<std::sync::Arc<VolumeAttachment>> {
    attachments.by_index(ATTACHMENTS_BY_NODE, node)
}

/// Lets nodes be found by their labels.
pub(crate) fn index_nodes(nodes: &Cache<Node>) {
    nodes.index(NODES_BY_LABEL, |node: &Node| {
        node.metadata.labels.iter().map(|(key, value)| label(key, value)).collect()
    });
}

fn label(key: &str, value: &str) -> String {
    format!("{key}={value}")
}

/// Nodes among which are all that a selector matches. Few, where it names places: all nodes are looked at only
/// where a term names no value at all.
pub(crate) fn nodes_for(nodes: &Cache<Node>, selector: &NodeSelector) -> Vec<std::sync::Arc<Node>> {
    let mut found = Vec::new();
    for term in &selector.node_selector_terms {
        match nodes_for_term(nodes, term) {
            Some(some) => found.extend(some),
            None => return nodes.list(),
        }
    }
    found
}

/// Those of the requirement that the fewest fulfil; `None` when there is none that names values.
fn nodes_for_term(
    nodes: &Cache<Node>,
    term: &NodeSelectorTerm,
) -> Option<Vec<std::sync::Arc<Node>>> {
    let names_values = |one: &&Requirement| one.operator == "In";
    // A term matches no node at all where it is empty, and one node where it names that.
    if term.match_expressions.is_empty() && term.match_fields.is_empty() {
        return Some(Vec::new());
    }
    if let Some(named) = term.match_fields.iter().find(names_values) {
        let named = named.values.iter();
        return Some(named.filter_map(|name| nodes.get(&ObjectKey::cluster(name))).collect());
    }
    let count = |one: &&Requirement| -> usize {
        let values = one.values.iter();
        values.map(|value| nodes.count_indexed(NODES_BY_LABEL, &label(&one.key, value))).sum()
    };
    let rarest = term.match_expressions.iter().filter(names_values).min_by_key(count)?;
    let values = rarest.values.iter();
    let by_value = |value: &String| nodes.by_index(NODES_BY_LABEL, &label(&rarest.key, value));
    Some(values.flat_map(by_value).collect())
}
