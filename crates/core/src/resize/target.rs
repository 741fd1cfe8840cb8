//! Which size the driver is asked for next.

use super::{belongs_to, conditions, expands, holds, is_bound};
use crate::model::{
    Quantity,
    keys::annotations,
    kinds::{Claim, Volume},
};

/// How far the expansion of a claim has come: `status.allocatedResourceStatuses.storage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is going on, or a word that this version does not know.
    None,
    ControllerInProgress,
    ControllerInfeasible,
    NodePending,
    NodeInProgress,
    NodeInfeasible,
}

impl Stage {
    /// The stage that the claim's status names.
    #[must_use]
    pub fn of(claim: &Claim) -> Self {
        let status = claim.status.allocated_resource_statuses.get("storage");
        match status.map(String::as_str).unwrap_or_default() {
            "ControllerResizeInProgress" => Self::ControllerInProgress,
            "ControllerResizeInfeasible" => Self::ControllerInfeasible,
            "NodeResizePending" => Self::NodePending,
            "NodeResizeInProgress" => Self::NodeInProgress,
            "NodeResizeInfeasible" => Self::NodeInfeasible,
            _ => Self::None,
        }
    }

    /// The node has begun, or will.
    fn is_on_node(self) -> bool {
        matches!(self, Self::NodePending | Self::NodeInProgress)
    }
}

/// What the decision depends on beside the claim and its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resizer<'a> {
    /// The driver's name.
    pub driver: &'a str,
    /// ControllerExpandVolume is called; otherwise only nodes expand.
    pub controller_expands: bool,
    /// Gate `RecoverVolumeExpansionFailure`.
    pub recovers: bool,
    /// Gate `AnnotateFsResize`.
    pub annotates: bool,
}

/// What is to be done first about a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expansion {
    /// Nothing: it has what it asks for, or somebody else's turn has come.
    Nothing,
    /// The volume's mark of an expansion that waited for its node has served its purpose.
    DropMark,
    /// The driver is to be asked for this size.
    To(Quantity),
}

/// What to do about a claim and its volume. `refused` says that the last answer of the driver to this
/// claim was a final error, so that nothing of the last size is under way.
#[must_use]
pub fn decide(resizer: &Resizer<'_>, claim: &Claim, volume: &Volume, refused: bool) -> Expansion {
    let has = size(claim);
    let marked = volume.metadata.annotation(annotations::PRE_RESIZE_CAPACITY).is_some();
    if resizer.annotates && marked && has >= volume.capacity() {
        return Expansion::DropMark;
    }
    let wanted = claim.request();
    let ours = expands(resizer.driver, claim, volume) && belongs_to(volume, claim);
    if !is_bound(claim) || wanted <= has || !ours {
        return Expansion::Nothing;
    }
    let target = match resizer.recovers {
        true => target(resizer, claim, volume, refused),
        false => legacy_target(claim, volume),
    };
    target.map_or(Expansion::Nothing, Expansion::To)
}

/// The size that the claim has: `status.capacity`.
#[must_use]
pub fn size(claim: &Claim) -> Quantity {
    claim.status.capacity.get("storage").copied().unwrap_or(Quantity::ZERO)
}

fn target(
    resizer: &Resizer<'_>,
    claim: &Claim,
    volume: &Volume,
    refused: bool,
) -> Option<Quantity> {
    let (wanted, backend, stage) = (claim.request(), volume.capacity(), Stage::of(claim));
    let allocated = claim.status.allocated_resources.get("storage").copied();
    let begun = allocated.unwrap_or(wanted);
    if backend < wanted {
        return match stage {
            Stage::NodeInfeasible => Some(begun),
            // The node finishes what it has before anything larger is asked for.
            stage if stage.is_on_node() => (backend < begun).then_some(begun),
            Stage::ControllerInProgress if refused => Some(wanted),
            Stage::ControllerInProgress => Some(begun),
            _ => Some(wanted),
        };
    }
    match stage {
        stage if stage.is_on_node() => None,
        Stage::NodeInfeasible if resizer.controller_expands => Some(begun),
        Stage::NodeInfeasible => Some(wanted),
        Stage::ControllerInProgress | Stage::ControllerInfeasible => Some(begun),
        _ if allocated.is_some() => allocated,
        _ => (!holds(claim, conditions::FILE_SYSTEM_RESIZE_PENDING)).then_some(wanted),
    }
}

/// With the gate `RecoverVolumeExpansionFailure` off the claim's request is the only size.
fn legacy_target(claim: &Claim, volume: &Volume) -> Option<Quantity> {
    let waits = volume.capacity() >= claim.request()
        && holds(claim, conditions::FILE_SYSTEM_RESIZE_PENDING);
    (!waits).then(|| claim.request())
}

/// Whether a change of the claim is worth a look.
#[must_use]
pub fn worth_a_look(old: &Claim, new: &Claim, recovers: bool) -> bool {
    let named =
        |claim: &Claim| claim.metadata.annotation(annotations::STORAGE_RESIZER).map(str::to_owned);
    let stage = |claim: &Claim| claim.status.allocated_resource_statuses.get("storage").cloned();
    let request = match recovers {
        true => old.request() != new.request(),
        false => old.request() < new.request(),
    };
    request
        || named(old) != named(new)
        || size(new) > size(old)
        || stage(old) != stage(new)
        || (is_bound(new) && !is_bound(old))
}

/// Whether the claim already records this target, so that marking it changes no stage and no
/// condition.
#[must_use]
pub fn is_recorded(claim: &Claim, target: Quantity) -> bool {
    claim.status.allocated_resources.get("storage") == Some(&target)
}
