//! Secondary indexes that several loops use, each defined once.

use longshore_cluster::Cache;
use longshore_core::model::{
    NodeName, ObjectKey, VolumeName,
    kinds::{Pod, VolumeAttachment},
};

const PODS_BY_CLAIM: &str = "pods-by-claim";
const PODS_BY_NODE: &str = "pods-by-node";
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
