//! FlexVolumes that grow.
//!
//! Their drivers live on the nodes, so there is nobody to call here: the controller writes down the
//! size to come, and the node makes it so. A raw block volume needs nothing of the node.

use serde_json::{Map, Value, json};

use super::has_source;
use crate::{
    bind::edit::{annotate, child, unannotate},
    model::{
        Quantity,
        keys::annotations,
        kinds::{Claim, Volume},
    },
};

/// The conditions that a change of the size leaves on a claim.
const CONDITIONS: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];
const IN_PROGRESS: &str = "ControllerResizeInProgress";
const INFEASIBLE: &str = "ControllerResizeInfeasible";
const NODE_PENDING: &str = "NodeResizePending";
const NODE_IN_PROGRESS: &str = "NodeResizeInProgress";
const NODE_INFEASIBLE: &str = "NodeResizeInfeasible";

/// The next step for the claim of a FlexVolume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlexStep {
    /// The node is at it.
    LeaveToNode,
    /// The node is done: the volume's note of the size before goes.
    ForgetOldSize,
    /// The node gave up on the size that the volume has, and is asked again.
    AskNodeAgain,
    /// The volume is to become this large.
    Grow(Quantity),
}

/// The driver of a FlexVolume; `None` for other volumes.
pub(super) fn driver(volume: &Value) -> Option<&str> {
    has_source(volume, "flexVolume")
        .then(|| volume.pointer("/spec/flexVolume/driver").and_then(Value::as_str))
        .flatten()
}

/// Decides about a claim that asks for more than it has, or whose volume still has the note of its
/// size before.
#[must_use]
pub fn decide_flex(claim: &Claim, volume: &Volume) -> FlexStep {
    let (request, has) = (claim.request(), size(claim));
    let noted = volume.metadata.annotation(annotations::PRE_RESIZE_CAPACITY).is_some();
    if noted && has >= request && has >= volume.capacity() {
        return FlexStep::ForgetOldSize;
    }
    let status = claim.status.allocated_resource_statuses.get("storage").map(String::as_str);
    let allocated = claim.status.allocated_resources.get("storage").copied();
    let begun = allocated.unwrap_or(request);
    if volume.capacity() < request {
        return FlexStep::Grow(match status {
            Some(IN_PROGRESS | NODE_PENDING | NODE_IN_PROGRESS | NODE_INFEASIBLE) => begun,
            _ => request,
        });
    }
    match status {
        Some(NODE_PENDING | NODE_IN_PROGRESS) => FlexStep::LeaveToNode,
        Some(NODE_INFEASIBLE) => FlexStep::AskNodeAgain,
        None | Some("" | IN_PROGRESS | INFEASIBLE) => FlexStep::Grow(begun),
        Some(_) => FlexStep::Grow(request),
    }
}

/// The size that a claim has.
pub(super) fn size(claim: &Claim) -> Quantity {
    claim.status.capacity.get("storage").copied().unwrap_or(Quantity::ZERO)
}

/// Writes onto a claim that its volume is about to become `target` large, and by whom.
pub fn mark_growing(claim: &mut Value, resizer: &str, target: Quantity, now: &str) {
    annotate(claim, annotations::STORAGE_RESIZER, resizer);
    let status = &mut claim["status"];
    child(status, "allocatedResources").insert("storage".into(), target.to_string().into());
    child(status, "allocatedResourceStatuses").insert("storage".into(), IN_PROGRESS.into());
    let resizing = json!({"type": "Resizing", "status": "True", "lastTransitionTime": now});
    set_condition(child(claim, "status"), resizing, false);
}

/// Writes onto a claim that its node has to do the rest.
pub fn mark_node_pending(claim: &mut Value, now: &str) {
    let statuses = child(&mut claim["status"], "allocatedResourceStatuses");
    statuses.insert("storage".into(), NODE_PENDING.into());
    let pending = json!({"type": "FileSystemResizePending", "status": "True", "lastTransitionTime": now,
        "message": "Waiting for user to (re-)start a pod to finish file system resize of volume on node."});
    set_condition(child(claim, "status"), pending, true);
}

/// Writes onto a claim that it has its new size.
pub fn mark_grown(claim: &mut Value, target: Quantity) {
    let status = &mut claim["status"];
    child(status, "capacity").insert("storage".into(), target.to_string().into());
    let statuses = child(status, "allocatedResourceStatuses");
    statuses.remove("storage");
    let none_left = statuses.is_empty();
    let status = child(claim, "status");
    if none_left {
        status.remove("allocatedResourceStatuses");
    }
    if let Some(Value::Array(conditions)) = status.get_mut("conditions") {
        conditions.retain(|one| !is_of_resize(one));
    }
}

/// Gives a volume its new size. One whose node has yet to follow keeps a note of what the claim had
/// before. False when nothing changed.
pub fn set_size(volume: &mut Value, target: Quantity, before: Option<Quantity>) -> bool {
    let had = volume.pointer("/spec/capacity/storage").and_then(Value::as_str);
    let had = had.and_then(|text| text.parse::<Quantity>().ok()).unwrap_or(Quantity::ZERO);
    let grows = had < target;
    if grows {
        let capacity = child(&mut volume["spec"], "capacity");
        capacity.insert("storage".into(), target.to_string().into());
    }
    let key = annotations::PRE_RESIZE_CAPACITY;
    let noted = volume["metadata"]["annotations"].get(key).is_some();
    let Some(before) = before.filter(|_| !noted) else { return grows };
    annotate(volume, key, &before.to_string()) || grows
}

/// Removes the note of the size before.
pub fn forget_old_size(volume: &mut Value) -> bool {
    unannotate(volume, annotations::PRE_RESIZE_CAPACITY)
}

fn is_of_resize(condition: &Value) -> bool {
    condition["type"].as_str().is_some_and(|kind| CONDITIONS.contains(&kind))
}

/// Sets a condition; one that says the same already stays as it is, its time included. Others of a
/// resize stay only if they are to.
fn set_condition(status: &mut Map<String, Value>, new: Value, keep_others: bool) {
    let had = status.remove("conditions");
    let had = had.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let same = had.iter().find(|one| one["type"] == new["type"] && one["status"] == new["status"]);
    let mut conditions: Vec<Value> = had
        .iter()
        .filter(|one| one["type"] != new["type"] && (keep_others || !is_of_resize(one)))
        .cloned()
        .collect();
    conditions.push(same.cloned().unwrap_or(new));
    status.insert("conditions".into(), conditions.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bind::fixtures::{claim, merge, volume};

    fn decide(claim_over: Value, volume_over: Value) -> FlexStep {
        let mut asks = json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
        merge(&mut asks, claim_over);
        decide_flex(&claim(asks), &volume(volume_over))
    }

    fn gib(text: &str) -> Quantity {
        text.parse().expect("a quantity")
    }

    #[test]
    fn flex_step_follows_request_size_and_status() {
        let grow = |text| FlexStep::Grow(gib(text));
        let stands = |status: &str| {
            json!({"status": {"allocatedResources": {"storage": "2Gi"},
                "allocatedResourceStatuses": {"storage": status}}})
        };
        let small = || json!({"spec": {"capacity": {"storage": "1Gi"}}});
        let large = || json!({"spec": {"capacity": {"storage": "3Gi"}}});
        let noted = json!({"spec": {"capacity": {"storage": "3Gi"}}, "metadata": {"annotations":
            {"volume.alpha.kubernetes.io/pre-resize-capacity": "1Gi"}}});
        let done = json!({"status": {"capacity": {"storage": "3Gi"}}});
        for (name, claim, volume, want) in [
            ("nothing begun", json!({}), small(), grow("3Gi")),
            ("begun with less", stands(IN_PROGRESS), small(), grow("2Gi")),
            ("the node waits", stands(NODE_PENDING), small(), grow("2Gi")),
            ("the node works", stands(NODE_IN_PROGRESS), small(), grow("2Gi")),
            ("the node gave up", stands(NODE_INFEASIBLE), small(), grow("2Gi")),
            ("the controller gave up", stands(INFEASIBLE), small(), grow("3Gi")),
            ("large, the node waits", stands(NODE_PENDING), large(), FlexStep::LeaveToNode),
            ("large, the node works", stands(NODE_IN_PROGRESS), large(), FlexStep::LeaveToNode),
            ("large, the node gave up", stands(NODE_INFEASIBLE), large(), FlexStep::AskNodeAgain),
            ("large, begun", stands(IN_PROGRESS), large(), grow("2Gi")),
            ("large, given up", stands(INFEASIBLE), large(), grow("2Gi")),
            ("large, allocated", stands(""), large(), grow("2Gi")),
            ("large, nothing begun", json!({}), large(), grow("3Gi")),
            ("the node is done", done, noted.clone(), FlexStep::ForgetOldSize),
            ("the node is not done", json!({}), noted, grow("3Gi")),
        ] {
            assert_eq!(decide(claim, volume), want, "{name}");
        }
    }

    #[test]
    fn a_claim_on_its_way() {
        let (kept, now) = (json!({"type": "Unused", "status": "True"}), "2024-01-01T00:00:00Z");
        let error = json!({"type": "ControllerResizeError", "status": "True"});
        let mut claim = json!({"metadata": {"name": "c"}, "status": {"capacity": {"storage": "1Gi"},
            "conditions": [kept, error]}});
        mark_growing(&mut claim, "example.com/flex", gib("2Gi"), now);
        let resizing = json!({"type": "Resizing", "status": "True", "lastTransitionTime": now});
        let want = json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": IN_PROGRESS}, "conditions": [kept, resizing]});
        assert_eq!(claim["status"], want);
        let resizer = &claim["metadata"]["annotations"]["volume.kubernetes.io/storage-resizer"];
        assert_eq!(resizer, "example.com/flex");
        mark_node_pending(&mut claim, "2024-01-02T00:00:00Z");
        assert_eq!(claim["status"]["allocatedResourceStatuses"]["storage"], NODE_PENDING);
        assert_eq!(claim["status"]["conditions"][1], resizing, "resizing goes on");
        assert_eq!(claim["status"]["conditions"][2]["type"], "FileSystemResizePending");
        let before = claim.clone();
        mark_node_pending(&mut claim, "2024-01-03T00:00:00Z");
        assert_eq!(claim, before, "the same again is no change");
        mark_grown(&mut claim, gib("2Gi"));
        let want = json!({"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"},
            "conditions": [kept]});
        assert_eq!(claim["status"], want);
    }

    #[test]
    fn a_volume_on_its_way() {
        let mut pv = json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"}}});
        assert!(set_size(&mut pv, gib("2Gi"), Some(gib("1Gi"))));
        assert!(!set_size(&mut pv, gib("2Gi"), Some(gib("2Gi"))), "the first note stays");
        let note = &pv["metadata"]["annotations"]["volume.alpha.kubernetes.io/pre-resize-capacity"];
        assert_eq!((&pv["spec"]["capacity"]["storage"], note), (&json!("2Gi"), &json!("1Gi")));
        assert!(forget_old_size(&mut pv) && !forget_old_size(&mut pv));
        assert!(set_size(&mut pv, gib("3Gi"), None) && !set_size(&mut pv, gib("3Gi"), None));
        assert_eq!(pv["metadata"].get("annotations"), None);
    }
}
