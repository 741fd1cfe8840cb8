//! Patches of the status of a claim whose volume grows, and of the volume.
//!
//! They are strategic merge patches: conditions merge by their type, so those of others stay.

use serde_json::{Map, Value, json};

use super::{conditions, target::size};
use crate::model::{
    Quantity,
    keys::annotations,
    kinds::{Claim, Volume},
};

/// Asks the user for what a node needs to finish.
const START_A_POD: &str =
    "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";

/// How the claim's status changes when an expansion is begun, or begun again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// A new target: the claim forgets what became of the last one.
    Anew,
    /// The same target as before: stage and conditions stay.
    Again,
    /// Gate `RecoverVolumeExpansionFailure` off: nothing but the condition is written.
    Legacy,
}

/// Before the driver is asked for `target`.
#[must_use]
pub fn begun(claim: &Claim, target: Quantity, begin: Begin, now: &str) -> Value {
    let mut all = match begin {
        Begin::Again => Vec::new(),
        Begin::Anew | Begin::Legacy => dropped(claim, &conditions::OF_RESIZE, conditions::RESIZING),
    };
    all.push(json!({"type": conditions::RESIZING, "status": "True", "lastTransitionTime": now}));
    let mut patch = json!({"status": {"conditions": all}});
    if begin != Begin::Legacy {
        patch["status"]["allocatedResources"] = json!({"storage": target.to_string()});
        drop_annotation(claim, annotations::NODE_EXPANSION_NOT_REQUIRED, &mut patch);
    }
    if begin == Begin::Anew {
        patch["status"]["allocatedResourceStatuses"] =
            json!({"storage": "ControllerResizeInProgress"});
    }
    patch
}

/// The driver has done its part, and the node must do its own.
#[must_use]
pub fn node_pending(claim: &Claim, recovers: bool, now: &str) -> Value {
    let condition = json!({"type": conditions::FILE_SYSTEM_RESIZE_PENDING, "status": "True",
        "message": START_A_POD, "lastTransitionTime": now});
    let mut patch = json!({"status": {"conditions": [condition]}});
    if recovers {
        patch["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizePending"});
        drop_annotation(claim, annotations::NODE_EXPANSION_NOT_REQUIRED, &mut patch);
    }
    patch
}

/// The driver has done all there is to do.
#[must_use]
pub fn finished(claim: &Claim, now_has: Quantity, recovers: bool) -> Value {
    let mut status = json!({"capacity": {"storage": now_has.to_string()}});
    let gone = dropped(claim, &conditions::OF_RESIZE, "");
    if !gone.is_empty() {
        status["conditions"] = gone.into();
    }
    let mut patch = json!({"status": status});
    if recovers {
        let stages = &claim.status.allocated_resource_statuses;
        if stages.contains_key("storage") {
            let others = stages.len() > 1;
            let cleared = if others { json!({"storage": null}) } else { Value::Null };
            patch["status"]["allocatedResourceStatuses"] = cleared;
        }
        patch["metadata"] =
            json!({"annotations": {annotations::NODE_EXPANSION_NOT_REQUIRED: "true"}});
    }
    patch
}

/// The driver has refused for good; `infeasible` says that it always will.
#[must_use]
pub fn refused(error: &str, infeasible: bool, now: &str) -> Value {
    let condition = json!({"type": conditions::CONTROLLER_RESIZE_ERROR, "status": "True",
        "message": format!("failed to expand pvc with {error}"), "lastTransitionTime": now});
    let mut patch = json!({"status": {"conditions": [condition]}});
    if infeasible {
        patch["status"]["allocatedResourceStatuses"] =
            json!({"storage": "ControllerResizeInfeasible"});
    }
    patch
}

/// The volume's new size, and what the claim had before when a node still has to finish.
#[must_use]
pub fn grown(claim: &Claim, volume: &Volume, now_has: Quantity, annotate: bool) -> Value {
    let mut patch = json!({"spec": {"capacity": {"storage": now_has.to_string()}}});
    let marked = volume.metadata.annotation(annotations::PRE_RESIZE_CAPACITY).is_some();
    if annotate && !marked {
        patch["metadata"] =
            json!({"annotations": {annotations::PRE_RESIZE_CAPACITY: size(claim).to_string()}});
    }
    patch
}

/// Takes the mark off a volume whose claim has the size by now.
#[must_use]
pub fn unmarked() -> Value {
    json!({"metadata": {"annotations": {annotations::PRE_RESIZE_CAPACITY: null}}})
}

/// Directives that delete those of `kinds` that the claim has, but for `kept`.
pub(super) fn dropped(claim: &Claim, kinds: &[&str], kept: &str) -> Vec<Value> {
    let there = |kind: &&&str| claim.status.conditions.iter().any(|one| one.kind == **kind);
    let gone = kinds.iter().filter(|kind| **kind != kept).filter(there);
    gone.map(|kind| json!({"$patch": "delete", "type": kind})).collect()
}

fn drop_annotation(claim: &Claim, name: &str, patch: &mut Value) {
    if claim.metadata.annotation(name).is_some() {
        let gone: Map<String, Value> = [(name.to_owned(), Value::Null)].into_iter().collect();
        patch["metadata"] = json!({"annotations": gone});
    }
}
