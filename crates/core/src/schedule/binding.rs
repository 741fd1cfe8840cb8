//! How far the binding of a pod's volumes has come.

use super::fully_bound;
use crate::model::{
    VolumeName,
    keys::annotations,
    kinds::{Claim, Node, Volume},
};

/// A claim that was given an existing volume.
#[derive(Debug, Clone, Copy)]
pub struct StaticClaim<'a> {
    /// The claim's name, for messages.
    pub name: &'a str,
    /// The volume's name, for messages.
    pub volume_name: &'a VolumeName,
    /// The claim as it stands.
    pub claim: Option<&'a Claim>,
    /// The volume as it stands.
    pub volume: Option<&'a Volume>,
}

/// A claim whose volume is being made.
#[derive(Debug, Clone, Copy)]
pub struct ProvisionedClaim<'a> {
    /// The claim's name, for messages.
    pub name: &'a str,
    /// The claim as it stands.
    pub claim: Option<&'a Claim>,
    /// The volume that the claim names, if it does and the volume was seen.
    pub volume: Option<&'a Volume>,
}

/// All that the progress depends on.
#[derive(Debug, Clone, Copy)]
pub struct BindingView<'a> {
    /// The chosen node.
    pub node: Option<&'a Node>,
    /// The pod is still there and waits.
    pub pod_waits: bool,
    /// Claims that were given an existing volume.
    pub bind: &'a [StaticClaim<'a>],
    /// Claims whose volume is being made.
    pub provision: &'a [ProvisionedClaim<'a>],
}

/// How far it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Every claim has its volume.
    Bound,
    /// Someone else has to act first.
    Waiting,
    /// It will not come to a good end: the pod has to be placed anew.
    Failed(String),
}

/// Reads the progress. A failure anywhere outweighs a wait elsewhere.
#[must_use]
pub fn binding_progress(view: &BindingView<'_>) -> Progress {
    let Some(node) = view.node else { return failed("the chosen node is gone") };
    if !view.pod_waits {
        return failed("pod does not exist any more");
    }
    let bind = view.bind.iter().map(|one| static_progress(one, node));
    let provision = view.provision.iter().map(|one| provision_progress(one, node));
    let mut all = Progress::Bound;
    for progress in bind.chain(provision) {
        match progress {
            Progress::Failed(_) => return progress,
            Progress::Waiting => all = Progress::Waiting,
            Progress::Bound => {}
        }
    }
    all
}

fn failed(why: impl Into<String>) -> Progress {
    Progress::Failed(format!("binding volumes: {}", why.into()))
}

fn static_progress(one: &StaticClaim<'_>, node: &Node) -> Progress {
    let Some(volume) = one.volume else {
        return failed(format!("persistentvolume \"{}\" not found", one.volume_name));
    };
    let Some(claim) = one.claim else {
        return failed(format!("persistentvolumeclaim \"{}\" not found", one.name));
    };
    if let Some(trouble) = out_of_reach(volume, node) {
        return trouble;
    }
    let kept = volume.spec.claim_ref.as_ref().is_some_and(|owner| !owner.uid.is_empty());
    if !kept {
        return failed(format!("ClaimRef got reset for pv \"{}\"", one.volume_name));
    }
    if fully_bound(claim) { Progress::Bound } else { Progress::Waiting }
}

fn provision_progress(one: &ProvisionedClaim<'_>, node: &Node) -> Progress {
    let Some(claim) = one.claim else {
        return failed(format!("persistentvolumeclaim \"{}\" not found", one.name));
    };
    let selected = claim.metadata.annotation(annotations::SELECTED_NODE);
    if selected.is_none_or(|selected| selected != node.metadata.name) {
        // The provisioner gives the choice back this way when it cannot serve the node.
        return failed(format!("provisioning failed for PVC \"{}\"", one.name));
    }
    if !fully_bound(claim) {
        return Progress::Waiting;
    }
    let Some(volume) = one.volume else { return Progress::Waiting };
    out_of_reach(volume, node).unwrap_or(Progress::Bound)
}

fn out_of_reach(volume: &Volume, node: &Node) -> Option<Progress> {
    let reachable = volume.reachable_from(&node.metadata.name, &node.metadata.labels);
    let (pv, node) = (&volume.metadata.name, &node.metadata.name);
    (!reachable).then(|| failed(format!("pv \"{pv}\" node affinity doesn't match node \"{node}\"")))
}
