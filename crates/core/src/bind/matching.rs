//! Finds the volume that matches a claim best.

use std::collections::BTreeSet;

use crate::model::{
    AccessMode, Meta, VolumeName, VolumePhase,
    kinds::{Claim, LabelSelector, Node, Volume},
};

/// Why no search is possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    /// The claim names a volume attributes class, which is switched off.
    #[error(
        "unsupported volumeAttributesClassName is set on claim {0} when the feature is disabled"
    )]
    AttributesClassOff(String),
    /// The claim's label selector is not valid.
    #[error("error creating internal label selector for claim: {0}: {1}")]
    Selector(String, String),
}

/// How to search.
#[derive(Debug, Clone, Copy)]
pub struct Search<'a> {
    /// The node the volume must be reachable from (scheduler only).
    pub node: Option<&'a Node>,
    /// Volumes promised to others.
    pub reserved: &'a BTreeSet<VolumeName>,
    /// Binding waits for the scheduler: only volumes kept for this claim count.
    pub delayed: bool,
    /// Volume attributes classes are supported.
    pub attributes_classes: bool,
}

/// Whether the volume is bound to or kept for this claim.
#[must_use]
pub fn is_for(volume: &Volume, claim: &Meta) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|reference| {
        reference.name == claim.name
            && reference.namespace == claim.namespace
            && (reference.uid.is_empty() || reference.uid == claim.uid)
    })
}

/// Whether the volume says already that it is bound to this very claim.
fn is_begun(volume: &Volume, claim: &Meta) -> bool {
    let uid = volume.spec.claim_ref.as_ref().map(|reference| reference.uid.as_str());
    is_for(volume, claim)
        && uid == Some(claim.uid.as_str())
        && volume.status.phase == VolumePhase::Bound
}

/// The volume for a claim as the binder searches: one whose bind to it was begun, then fewest access
/// modes first.
///
/// # Errors
/// When the claim itself makes the search impossible.
pub fn find<'v>(
    claim: &Claim,
    volumes: &[&'v Volume],
    search: &Search<'_>,
) -> Result<Option<&'v Volume>, MatchError> {
    let wanted = modes(&claim.spec.access_modes);
    let mut groups: Vec<(BTreeSet<&AccessMode>, Vec<&'v Volume>)> = Vec::new();
    for volume in volumes {
        let offered = modes(&volume.spec.access_modes);
        if !wanted.is_subset(&offered) {
            continue;
        }
        match groups.iter_mut().find(|(have, _)| *have == offered) {
            Some((_, group)) => group.push(volume),
            None => groups.push((offered, vec![volume])),
        }
    }
    check_search(claim, search)?;
    // Of two that are kept for the claim, the other must not be bound to it as well.
    let begun = |volume: &&Volume| is_begun(volume, &claim.metadata);
    let mut grouped = groups.iter().flat_map(|(_, group)| group.iter().copied());
    if let Some(volume) = grouped.find(|volume| begun(volume) && fits(claim, volume, search)) {
        return Ok(Some(volume));
    }
    groups.sort_by_key(|(offered, _)| offered.len());
    for (_, group) in &groups {
        if let Some(found) = smallest(claim, group, search)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The smallest volume that passes the filter, or the one kept for this claim.
///
/// # Errors
/// When the claim itself makes the search impossible.
pub fn smallest<'v>(
    claim: &Claim,
    volumes: &[&'v Volume],
    search: &Search<'_>,
) -> Result<Option<&'v Volume>, MatchError> {
    check_search(claim, search)?;
    let mut best: Option<&'v Volume> = None;
    for volume in volumes {
        if search.reserved.contains(volume.metadata.name.as_str()) || !fits(claim, volume, search) {
            continue;
        }
        let reachable = search
            .node
            .is_none_or(|node| volume.reachable_from(&node.metadata.name, &node.metadata.labels));
        if is_for(volume, &claim.metadata) {
            // A volume kept for this claim ends the search: where it cannot be reached, no other
            // volume may take its place.
            return Ok(reachable.then_some(*volume));
        }
        if reachable && is_free_match(claim, volume, search) {
            let smaller = best.is_none_or(|best| volume.capacity() < best.capacity());
            best = if smaller { Some(volume) } else { best };
        }
    }
    Ok(best)
}

/// What even a volume kept for the claim must fulfil.
fn fits(claim: &Claim, volume: &Volume, search: &Search<'_>) -> bool {
    (volume.spec.claim_ref.is_none() || is_for(volume, &claim.metadata))
        && volume.capacity() >= claim.request()
        && volume.volume_mode() == claim.volume_mode()
        && same_attributes_class(claim, volume, search.attributes_classes)
        && !volume.metadata.deleting()
}

/// What a free volume must fulfil beyond [`fits`].
fn is_free_match(claim: &Claim, volume: &Volume, search: &Search<'_>) -> bool {
    let offered = || modes(&volume.spec.access_modes);
    (search.node.is_some() || !search.delayed)
        && volume.status.phase == VolumePhase::Available
        && claim.spec.selector.as_ref().is_none_or(|s| s.matches(&volume.metadata.labels))
        && volume.class_name() == claim.class_name()
        && (search.node.is_none() || modes(&claim.spec.access_modes).is_subset(&offered()))
}

fn same_attributes_class(claim: &Claim, volume: &Volume, supported: bool) -> bool {
    let wanted = claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
    let offered = volume.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
    if supported { wanted == offered } else { wanted.is_empty() && offered.is_empty() }
}

fn modes(modes: &[AccessMode]) -> BTreeSet<&AccessMode> {
    modes.iter().collect()
}

fn check_search(claim: &Claim, search: &Search<'_>) -> Result<(), MatchError> {
    let named = claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
    if !search.attributes_classes && !named.is_empty() {
        return Err(MatchError::AttributesClassOff(claim.metadata.key().to_string()));
    }
    if let Some(problem) = claim.spec.selector.as_ref().and_then(selector_problem) {
        return Err(MatchError::Selector(claim.metadata.key().to_string(), problem));
    }
    Ok(())
}

fn selector_problem(selector: &LabelSelector) -> Option<String> {
    selector.match_expressions.iter().find_map(|one| match one.operator.as_str() {
        "In" | "NotIn" if one.values.is_empty() => {
            Some(format!("values: for '{}' operator, values set can't be empty", one.operator))
        }
        "Exists" | "DoesNotExist" if !one.values.is_empty() => {
            Some("values: values set must be empty for exists and does not exist".into())
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => None,
        other => Some(format!("\"{other}\" is not a valid label selector operator")),
    })
}

/// Why a volume that the claim names, and that nobody holds, cannot be bound to it.
///
/// Selector, phase and node affinity are not looked at: naming the volume overrides them.
#[must_use]
pub fn mismatch(claim: &Claim, volume: &Volume, attributes_classes: bool) -> Option<String> {
    if volume.metadata.deleting() {
        return Some(format!("the volume is marked for deletion {:?}", volume.metadata.name));
    }
    let problem = if volume.capacity().bytes() < claim.request().bytes() {
        "requested PV is too small"
    } else if volume.class_name() != claim.class_name() {
        "storageClassName does not match"
    } else if !same_attributes_class(claim, volume, attributes_classes) {
        "volumeAttributesClassName does not match"
    } else if volume.volume_mode() != claim.volume_mode() {
        "incompatible volumeMode"
    } else if !modes(&claim.spec.access_modes).is_subset(&modes(&volume.spec.access_modes)) {
        "incompatible accessMode"
    } else {
        return None;
    };
    Some(problem.into())
}

#[cfg(test)]
#[path = "matching_tests.rs"]
mod tests;
