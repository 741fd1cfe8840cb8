//! The volume's side of binding, and reclaim.

use super::{Action, anneal::anneal_volume};
use crate::model::{
    keys::annotations,
    kinds::{Claim, Volume},
};

/// All that the decision about a volume depends on.
#[derive(Debug, Clone)]
pub struct VolumeView<'a> {
    /// The volume.
    pub volume: &'a Volume,
    /// The claim that it points at, with the same UID; `None` only when the API itself was asked
    /// and does not have it.
    pub claim: Option<&'a Claim>,
    /// A claim of that name exists, whatever its UID.
    pub name_taken: bool,
    /// Running pods that use a claim of that name, as `namespace/name`.
    pub users: &'a [String],
}

/// The steps for one volume, in order; none when all is as it should be.
#[must_use]
pub fn decide_volume(view: &VolumeView<'_>) -> Vec<Action> {
    let mut actions: Vec<Action> = anneal_volume(view.volume).into_iter().collect();
    let volume = view.volume;
    let pointed = volume.spec.claim_ref.as_ref().filter(|reference| !reference.uid.is_empty());
    actions.extend(match (pointed, view.claim) {
        (None, _) => phase(volume, "Available", ""),
        (Some(_), None) => release(view),
        (Some(_), Some(claim)) => with_claim(view, claim),
    });
    actions
}

fn with_claim(view: &VolumeView<'_>, claim: &Claim) -> Vec<Action> {
    let volume = view.volume;
    let name = &volume.metadata.name;
    if claim.spec.volume_name.is_empty() {
        if volume.volume_mode() != claim.volume_mode() {
            return modes_differ(name, &claim.metadata.name);
        }
        return vec![Action::LookAtClaim];
    }
    if claim.spec.volume_name == *name {
        return phase(volume, "Bound", "");
    }
    let dynamic = volume.metadata.annotation(annotations::PROVISIONED_BY).is_some();
    if dynamic && volume.spec.persistent_volume_reclaim_policy == "Delete" {
        return release(view);
    }
    let mut actions = vec![Action::Unbind { volume: name.clone() }];
    actions.extend(phase(volume, "Available", ""));
    actions
}

fn modes_differ(volume: &str, claim: &str) -> Vec<Action> {
    vec![
        Action::warn_volume(
            "VolumeMismatch",
            format!(
                "Cannot bind PersistentVolume to requested PersistentVolumeClaim {claim:?} due to incompatible volumeMode."
            ),
        ),
        Action::warn_claim(
            "VolumeMismatch",
            format!(
                "Cannot bind PersistentVolume {volume:?} to requested PersistentVolumeClaim due to incompatible volumeMode."
            ),
        ),
    ]
}

/// The claim is gone, or has another volume and never needed this one.
fn release(view: &VolumeView<'_>) -> Vec<Action> {
    let volume = view.volume;
    let settled = matches!(volume.status.phase.as_str(), "Released" | "Failed");
    let mut actions = if settled { vec![] } else { phase(volume, "Released", "") };
    actions.extend(reclaim(view));
    actions
}

fn reclaim(view: &VolumeView<'_>) -> Vec<Action> {
    let volume = view.volume;
    if volume.metadata.annotation(annotations::MIGRATED_TO).is_some_and(|driver| !driver.is_empty())
    {
        return vec![];
    }
    match volume.spec.persistent_volume_reclaim_policy.as_str() {
        "Retain" => vec![],
        "Delete" => delete(volume),
        "Recycle" => recycle(view),
        _ => failed(
            volume,
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy".into(),
        ),
    }
}

/// There are no plugins inside: whoever made the volume deletes it, once it is released.
fn delete(volume: &Volume) -> Vec<Action> {
    let problem = match volume.metadata.annotation(annotations::PROVISIONED_BY) {
        Some(by) if by.starts_with("kubernetes.io/") => {
            format!("no volume plugin matched name: {by}")
        }
        Some(by) if !by.is_empty() => return vec![],
        _ if volume.metadata.annotation(annotations::MIGRATED_TO).is_some() => return vec![],
        _ if volume.spec.csi.is_some() => return vec![],
        _ => "no volume plugin matched".into(),
    };
    let name = &volume.metadata.name;
    let text = format!("error getting deleter volume plugin for volume {name:?}: {problem}");
    failed(volume, "VolumeFailedDelete", text)
}

fn recycle(view: &VolumeView<'_>) -> Vec<Action> {
    if !view.users.is_empty() && !view.name_taken {
        let text = format!("Volume is used by pods: {}", view.users.join(","));
        return vec![Action::tell_volume("VolumeFailedRecycle", text)];
    }
    let text = "No recycler plugin found for the volume!";
    failed(view.volume, "VolumeFailedRecycle", text.into())
}

fn failed(volume: &Volume, reason: &'static str, message: String) -> Vec<Action> {
    let mut actions = phase(volume, "Failed", &message);
    if !actions.is_empty() {
        actions.push(Action::warn_volume(reason, message));
    }
    actions
}

fn phase(volume: &Volume, phase: &'static str, message: &str) -> Vec<Action> {
    if volume.status.phase == phase {
        return vec![];
    }
    let name = volume.metadata.name.clone();
    vec![Action::SetVolumePhase { volume: name, phase, message: message.into() }]
}

/// Whether nobody holds the volume any more; asked again right before anything irrevocable.
#[must_use]
pub fn is_released(volume: &Volume, claim: Option<&Claim>) -> bool {
    let Some(reference) = volume.spec.claim_ref.as_ref().filter(|one| !one.uid.is_empty()) else {
        return false;
    };
    match claim.filter(|claim| claim.metadata.uid == reference.uid) {
        Some(claim) => {
            !claim.spec.volume_name.is_empty() && claim.spec.volume_name != volume.metadata.name
        }
        None => true,
    }
}

#[cfg(test)]
#[path = "volume_tests.rs"]
mod tests;
