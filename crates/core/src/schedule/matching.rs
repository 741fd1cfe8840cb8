//! Which existing volume answers a claim on a given node.

use std::collections::BTreeSet;

use crate::model::kinds::{Claim, Node, Volume};

/// The smallest volume that answers the claim and can be reached from the node; a volume kept for
/// this claim comes before all others. `taken` volumes are promised to other claims.
#[must_use]
pub fn best_volume<'a>(
    claim: &Claim,
    node: &Node,
    volumes: impl IntoIterator<Item = &'a Volume>,
    taken: &BTreeSet<String>,
) -> Option<&'a Volume> {
    let mut best: Option<&Volume> = None;
    for volume in volumes {
        if taken.contains(&volume.metadata.name) || !could_serve(claim, volume) {
            continue;
        }
        let reachable = volume.reachable_from(&node.metadata.name, &node.metadata.labels);
        if volume.spec.claim_ref.is_some() {
            // Kept for this claim: this one or none.
            return reachable.then_some(volume);
        }
        let smaller = best.is_none_or(|best| volume.capacity() < best.capacity());
        if reachable && smaller && available(claim, volume) {
            best = Some(volume);
        }
    }
    best
}

/// What even a volume kept for the claim must fulfil.
fn could_serve(claim: &Claim, volume: &Volume) -> bool {
    let attributes = |name: &Option<String>| name.clone().unwrap_or_default();
    let kept_for_other = volume.spec.claim_ref.as_ref().is_some_and(|owner| {
        let meta = &claim.metadata;
        let same = owner.name == meta.name && owner.namespace == meta.namespace;
        !same || !(owner.uid.is_empty() || owner.uid == meta.uid)
    });
    !kept_for_other
        && volume.capacity() >= claim.request()
        && volume.volume_mode() == claim.volume_mode()
        && attributes(&volume.spec.volume_attributes_class_name)
            == attributes(&claim.spec.volume_attributes_class_name)
        && !volume.metadata.deleting()
}

/// What a volume that nobody has must fulfil on top.
fn available(claim: &Claim, volume: &Volume) -> bool {
    let selected = claim.spec.selector.as_ref();
    volume.status.phase == "Available"
        && selected.is_none_or(|selector| selector.matches(&volume.metadata.labels))
        && volume.class_name() == claim.class_name()
        && claim.spec.access_modes.iter().all(|mode| volume.spec.access_modes.contains(mode))
}
