//! The claim's side of binding.

use std::collections::BTreeSet;

use super::{
    Action, Write,
    matching::{Search, find, is_for, mismatch},
    migration::sync_claim_migration,
};
use crate::{
    claim::has_class,
    model::{
        ClaimPhase, VolumeName, VolumePhase,
        keys::annotations,
        kinds::{Claim, StorageClass, Volume},
    },
    provision::migration,
};

/// What is switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Claims without a matching volume get one made.
    pub dynamic_provisioning: bool,
    /// Volume attributes classes are supported.
    pub attributes_classes: bool,
    /// The plugin for directories of the controller's own host.
    pub host_path: HostPathPlugin,
}

/// What the plugin for directories of the controller's own host does. It is kube-controller-manager's
/// only one, and there it deletes unasked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HostPathPlugin {
    /// Nothing.
    #[default]
    Off,
    /// It deletes released volumes below `/tmp`.
    Deletes,
    /// It makes volumes, too.
    Makes,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dynamic_provisioning: true,
            attributes_classes: true,
            host_path: HostPathPlugin::Off,
        }
    }
}

/// All that the decision about a claim depends on.
#[derive(Debug, Clone)]
pub struct ClaimView<'a> {
    pub claim: &'a Claim,
    /// The volume that its `spec.volumeName` names, if there is one.
    pub named: Option<&'a Volume>,
    /// Volumes that are free or kept for this claim.
    pub candidates: &'a [&'a Volume],
    /// Volumes promised to other claims by writes that are under way.
    pub reserved: &'a BTreeSet<VolumeName>,
    /// The claim's class, if it exists.
    pub class: Option<&'a StorageClass>,
    /// The class for claims that name none.
    pub default_class: Option<&'a str>,
    /// Pods that use the claim and have no node yet.
    pub waiting_pods: &'a [String],
    /// What is switched on.
    pub options: Options,
}

/// The steps for one claim, in order; none when all is as it should be.
#[must_use]
pub fn decide_claim(view: &ClaimView<'_>) -> Vec<Action> {
    let mut actions: Vec<Action> =
        sync_claim_migration(view.claim).map(Action::from).into_iter().collect();
    let complete = view.claim.metadata.annotation(annotations::BIND_COMPLETED).is_some();
    actions.extend(match (complete, view.claim.spec.volume_name.is_empty()) {
        (true, _) => bound(view),
        (false, true) => unbound(view),
        (false, false) => naming(view),
    });
    actions
}

/// Not bound and open to any volume.
fn unbound(view: &ClaimView<'_>) -> Vec<Action> {
    let delayed = match view.class {
        Some(class) if class.volume_binding_mode.is_none() => {
            let name = &class.metadata.name;
            return vec![Action::Fail(format!(
                "VolumeBindingMode not set for StorageClass {name:?}"
            ))];
        }
        Some(class) => class.waits_for_consumer(),
        None => false,
    };
    let search = Search {
        node: None,
        reserved: view.reserved,
        delayed,
        attributes_classes: view.options.attributes_classes,
    };
    match find(view.claim, view.candidates, &search) {
        Err(error) => vec![Action::Fail(format!(
            "error finding PV for claim {:?}: {error}",
            view.claim.metadata.key().to_string()
        ))],
        Ok(Some(volume)) => bind(view.claim, volume),
        Ok(None) => unmatched(view, delayed),
    }
}

/// Open to any volume, and there is none.
fn unmatched(view: &ClaimView<'_>, delayed: bool) -> Vec<Action> {
    if let (false, Some(class)) = (has_class(view.claim), view.default_class) {
        return vec![Write::SetClass(class.to_string()).into()];
    }
    // Only the annotation's presence counts here; the provisioner looks at its value.
    let selected = view.claim.metadata.annotation(annotations::SELECTED_NODE).is_some();
    if delayed && !selected {
        return then_pending(view.claim, wait_note(view.waiting_pods));
    }
    if !view.claim.class_name().is_empty() {
        return provision(view);
    }
    let message = "no persistent volumes available for this claim and no storage class is set";
    then_pending(view.claim, Action::tell_claim("FailedBinding", message))
}

fn wait_note(pods: &[String]) -> Action {
    match pods {
        [] => Action::tell_claim(
            "WaitForFirstConsumer",
            "waiting for first consumer to be created before binding",
        ),
        [pod] => Action::tell_claim(
            "WaitForPodScheduled",
            format!("waiting for pod {pod} to be scheduled"),
        ),
        pods => Action::tell_claim(
            "WaitForPodScheduled",
            format!("waiting for pods {} to be scheduled", pods.join(",")),
        ),
    }
}

/// The plugin for directories of the controller's own host. It makes none unless it is switched on
/// for tests.
pub(super) const HOST_PATH: &str = "kubernetes.io/host-path";

/// Has the in-tree plugin provision a volume, if it can make what the claim and its class ask for.
fn provision_in_tree(claim: &Claim, class: &StorageClass, ask: Option<Action>) -> Vec<Action> {
    let failed = |message: String| Action::warn_claim("ProvisioningFailed", message);
    if claim.spec.data_source.is_some() || claim.spec.data_source_ref.is_some() {
        let text = format!(
            "plugin {HOST_PATH:?} is not a CSI plugin. Only CSI plugin can provision a claim with a datasource"
        );
        return vec![failed(text)];
    }
    let step = if class.mount_options.is_empty() {
        Action::ProvisionInTree
    } else {
        failed(format!(
            "Mount options are not supported by the provisioner but StorageClass {:?} has mount options [{}]",
            class.metadata.name,
            class.mount_options.join(" ")
        ))
    };
    ask.into_iter().chain([step]).collect()
}

/// Asks somebody outside to make a volume; the claim's status is not touched.
fn provision(view: &ClaimView<'_>) -> Vec<Action> {
    if !view.options.dynamic_provisioning {
        return vec![];
    }
    let failed = |message: String| vec![Action::warn_claim("ProvisioningFailed", message)];
    let Some(class) = view.class else {
        let name = view.claim.class_name();
        return failed(format!("storageclass.storage.k8s.io {name:?} not found"));
    };
    let provisioner = migration::driver_for(&class.provisioner).unwrap_or(&class.provisioner);
    let noted = view.claim.metadata.annotation(annotations::STORAGE_PROVISIONER);
    let ask = (noted != Some(provisioner))
        .then(|| Write::AskProvisioner { provisioner: provisioner.to_string() }.into());
    match provisioner {
        HOST_PATH if view.options.host_path == HostPathPlugin::Makes => {
            return provision_in_tree(view.claim, class, ask);
        }
        // It is found before it turns out to be off, so the claim names it.
        HOST_PATH => {
            let text = "Failed to create provisioner: provisioning in volume plugin \"kubernetes.io/host-path\" is disabled";
            return ask.into_iter().chain(failed(text.into())).collect();
        }
        "kubernetes.io/nfs" => return failed("no provisionable volume plugin matched".into()),
        other if other.starts_with("kubernetes.io/") => {
            return failed(format!("no volume plugin matched name: {other}"));
        }
        _ => {}
    }
    let message = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
    );
    ask.into_iter().chain([Action::tell_claim("ExternalProvisioning", message)]).collect()
}

/// Not bound, and only one volume will do.
fn naming(view: &ClaimView<'_>) -> Vec<Action> {
    let claim = view.claim;
    let Some(volume) = view.named else { return pending(claim).into_iter().collect() };
    let name = &volume.metadata.name;
    if view.reserved.contains(name.as_str()) {
        // Somebody else's bind is under way; its outcome decides.
        return vec![Action::Fail(format!("volume {name:?} is being bound to another claim"))];
    }
    if volume.spec.claim_ref.is_none() {
        return match mismatch(claim, volume, view.options.attributes_classes) {
            None => bind(claim, volume),
            Some(reason) => {
                let text = format!("Cannot bind to requested volume {name:?}: {reason}");
                then_pending(claim, Action::warn_claim("VolumeMismatch", text))
            }
        };
    }
    if is_for(volume, &claim.metadata) {
        return bind(claim, volume);
    }
    let taken = Action::warn_claim(
        "FailedBinding",
        format!("volume {name:?} already bound to a different claim."),
    );
    if claim.metadata.annotation(annotations::BOUND_BY_CONTROLLER).is_none() {
        return then_pending(claim, taken);
    }
    let key = claim.metadata.key().to_string();
    let fail =
        format!("invalid binding of claim {key:?} to volume {name:?}: volume already claimed");
    vec![taken, Action::Fail(fail)]
}

/// Bound once; is it still?
fn bound(view: &ClaimView<'_>) -> Vec<Action> {
    let claim = view.claim;
    if claim.spec.volume_name.is_empty() {
        let text =
            "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
        return lost(claim, "ClaimLost", text);
    }
    let Some(volume) = view.named else {
        let text = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
        return lost(claim, "ClaimLost", text);
    };
    match &volume.spec.claim_ref {
        None if view.reserved.contains(volume.metadata.name.as_str()) => {
            vec![Action::Fail(format!("volume {:?} is being bound", volume.metadata.name))]
        }
        None => bind(claim, volume),
        Some(reference) if reference.uid == claim.metadata.uid => bind(claim, volume),
        Some(_) => {
            let text = "Two claims are bound to the same volume, this one is bound incorrectly";
            lost(claim, "ClaimMisbound", text)
        }
    }
}

fn lost(claim: &Claim, reason: &'static str, message: &str) -> Vec<Action> {
    if claim.status.phase == ClaimPhase::Lost {
        return vec![];
    }
    vec![Write::SetClaimPhase(ClaimPhase::Lost).into(), Action::warn_claim(reason, message)]
}

fn then_pending(claim: &Claim, note: Action) -> Vec<Action> {
    std::iter::once(note).chain(pending(claim)).collect()
}

fn pending(claim: &Claim) -> Option<Action> {
    let status = &claim.status;
    let already = status.phase == ClaimPhase::Pending
        && status.access_modes.is_empty()
        && status.capacity.is_empty();
    (!already).then(|| Write::SetClaimPhase(ClaimPhase::Pending).into())
}

/// The four writes of a bind, volume first, without those that would change nothing.
fn bind(claim: &Claim, volume: &Volume) -> Vec<Action> {
    let name = volume.name();
    let mut writes = Vec::new();
    let pointed = volume.spec.claim_ref.as_ref().is_some_and(|reference| {
        is_for(volume, &claim.metadata) && reference.uid == claim.metadata.uid
    });
    let chosen_by_us = !is_for(volume, &claim.metadata);
    if !pointed {
        writes.push(Write::PointVolume { volume: name.clone(), chosen_by_us });
    }
    if volume.status.phase != VolumePhase::Bound {
        let message = String::new();
        writes.push(Write::SetVolumePhase {
            volume: name.clone(),
            phase: VolumePhase::Bound,
            message,
        });
    }
    let complete = claim.metadata.annotation(annotations::BIND_COMPLETED).is_some();
    if claim.spec.volume_name != name || !complete {
        writes.push(Write::PointClaim { volume: name.clone() });
    }
    if claim.status.phase != ClaimPhase::Bound
        || claim.status.access_modes != volume.spec.access_modes
    {
        writes.push(Write::SetClaimBound { volume: name });
    }
    writes.into_iter().map(Action::from).collect()
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
