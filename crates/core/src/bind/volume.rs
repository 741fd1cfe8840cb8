//! The volume's side of binding, and reclaim.

use super::{
    Action, HostPathPlugin, Options, Write, claim::HOST_PATH, migration::sync_volume_migration,
};
use crate::model::{
    ReclaimPolicy, VolumePhase,
    keys::annotations,
    kinds::{Claim, Volume},
};

/// All that the decision about a volume depends on.
#[derive(Debug, Clone)]
pub struct VolumeView<'a> {
    pub volume: &'a Volume,
    /// The claim that it points at, with the same UID; `None` only when the API itself was asked
    /// and does not have it.
    pub claim: Option<&'a Claim>,
    /// A claim of that name exists, whatever its UID.
    pub name_taken: bool,
    /// Running pods that use a claim of that name, as `namespace/name`.
    pub users: &'a [String],
    /// What is switched on.
    pub options: Options,
}

/// The steps for one volume, in order; none when all is as it should be.
#[must_use]
pub fn decide_volume(view: &VolumeView<'_>) -> Vec<Action> {
    let mut actions: Vec<Action> =
        sync_volume_migration(view.volume).map(Action::from).into_iter().collect();
    let volume = view.volume;
    let pointed = volume.spec.claim_ref.as_ref().filter(|reference| !reference.uid.is_empty());
    actions.extend(match (pointed, view.claim) {
        (None, _) => phase(volume, VolumePhase::Available, ""),
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
        return vec![Action::EnqueueClaim];
    }
    if claim.spec.volume_name == *name {
        return phase(volume, VolumePhase::Bound, "");
    }
    let dynamic = volume.metadata.annotation(annotations::PROVISIONED_BY).is_some();
    if dynamic && volume.spec.persistent_volume_reclaim_policy == ReclaimPolicy::Delete {
        return release(view);
    }
    let mut actions = vec![Write::Unbind { volume: volume.name() }.into()];
    actions.extend(phase(volume, VolumePhase::Available, ""));
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
    let settled = matches!(volume.status.phase, VolumePhase::Released | VolumePhase::Failed);
    let mut actions = if settled { vec![] } else { phase(volume, VolumePhase::Released, "") };
    actions.extend(reclaim(view));
    actions
}

fn reclaim(view: &VolumeView<'_>) -> Vec<Action> {
    let volume = view.volume;
    if volume.metadata.annotation(annotations::MIGRATED_TO).is_some_and(|driver| !driver.is_empty())
    {
        return vec![];
    }
    match volume.spec.persistent_volume_reclaim_policy {
        ReclaimPolicy::Retain => vec![],
        ReclaimPolicy::Delete => delete(volume, view.options),
        ReclaimPolicy::Recycle => recycle(view),
        ReclaimPolicy::Other(_) => failed(
            volume,
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy".into(),
        ),
    }
}

/// Whoever made the volume deletes it, once it is released: somebody outside, as a rule.
fn delete(volume: &Volume, options: Options) -> Vec<Action> {
    if options.host_path != HostPathPlugin::Off && is_host_path(volume) {
        return vec![Action::DeleteInTree];
    }
    let external = has_outside_deleter(volume);
    let mut actions = vec![Action::DeletionBegins { external }];
    if !external {
        actions.extend(failed(volume, "VolumeFailedDelete", why_undeletable(volume)));
    }
    actions
}

/// Whether the volume is the plugin's for directories of the host: it made it, or could have.
fn is_host_path(volume: &Volume) -> bool {
    match volume.metadata.annotation(annotations::PROVISIONED_BY).filter(|by| !by.is_empty()) {
        Some(by) => by == HOST_PATH,
        None => volume.spec.host_path.is_some(),
    }
}

/// Whether somebody outside deletes the volume.
fn has_outside_deleter(volume: &Volume) -> bool {
    match volume.metadata.annotation(annotations::PROVISIONED_BY).filter(|by| !by.is_empty()) {
        Some(by) => !by.starts_with("kubernetes.io/"),
        None => {
            volume.metadata.annotation(annotations::MIGRATED_TO).is_some()
                || volume.spec.csi.is_some()
        }
    }
}

/// Why nobody deletes the volume, in the words of kube-controller-manager, whose plugins can delete
/// as little. Its only one that can, for directories of the controller's own host below `/tmp`, is
/// off in the embedded mode.
fn why_undeletable(volume: &Volume) -> String {
    let by = volume.metadata.annotation(annotations::PROVISIONED_BY).filter(|by| !by.is_empty());
    let path = volume.spec.host_path.as_ref().map(|source| source.path.as_str());
    let problem = match (by, path) {
        (Some(by), _) => format!("no volume plugin matched name: {by}"),
        (None, Some(path)) if !path.contains("/tmp/") => {
            return format!("host_path deleter only supports /tmp/.+ but received provided {path}");
        }
        (None, Some(path)) => {
            format!(
                "the plugin for directories of the host is off; remove {path} and the volume by hand"
            )
        }
        (None, None) if volume.spec.nfs.is_some() => "no deletable volume plugin matched".into(),
        (None, None) => "no volume plugin matched".into(),
    };
    let name = &volume.metadata.name;
    format!("error getting deleter volume plugin for volume {name:?}: {problem}")
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
    let mut actions = phase(volume, VolumePhase::Failed, &message);
    if !actions.is_empty() {
        actions.push(Action::warn_volume(reason, message));
    }
    actions
}

fn phase(volume: &Volume, phase: VolumePhase, message: &str) -> Vec<Action> {
    if volume.status.phase == phase {
        return vec![];
    }
    vec![Write::SetVolumePhase { volume: volume.name(), phase, message: message.into() }.into()]
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
