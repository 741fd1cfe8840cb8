//! Changes to the JSON of claims and volumes. Everything that is not named here stays as it is.
//!
//! Each function says whether it changed anything; an unchanged object is not written.

use serde_json::{Map, Value, json};

use crate::model::{
    ClaimPhase, Meta, NodeName, ObjectRef, VolumeName, VolumePhase,
    keys::annotations,
    kinds::{Claim, Volume},
};

/// Points a volume at a claim.
pub fn point_volume(volume: &mut Value, claim: &Meta, chosen_by_us: bool) -> bool {
    let reference = ObjectRef::of::<Claim>(claim);
    let spec = child(volume, "spec");
    let same = |field: &str, want: &str| {
        spec.get("claimRef").and_then(|r| r.get(field)).and_then(Value::as_str) == Some(want)
    };
    let pointed =
        same("name", &claim.name) && same("namespace", &claim.namespace) && same("uid", &claim.uid);
    if !pointed {
        spec.insert("claimRef".into(), json!(reference));
    }
    let noted = chosen_by_us && annotate(volume, annotations::BOUND_BY_CONTROLLER, "yes");
    !pointed || noted
}

/// Takes a volume's pointer back: all of it when the binder chose the claim, only the UID when a
/// person did.
pub fn unbind_volume(volume: &mut Value) -> bool {
    if unannotate(volume, annotations::BOUND_BY_CONTROLLER) {
        child(volume, "spec").remove("claimRef");
        return true;
    }
    let reference = child(volume, "spec").get_mut("claimRef").and_then(Value::as_object_mut);
    reference.is_some_and(|reference| reference.remove("uid").is_some())
}

/// Sets a volume's phase.
pub fn set_volume_phase(volume: &mut Value, phase: &VolumePhase, message: &str) -> bool {
    let status = child(volume, "status");
    if status.get("phase").and_then(Value::as_str) == Some(phase.as_str()) {
        return false;
    }
    status.insert("phase".into(), json!(phase));
    set_or_remove(status, "message", message);
    true
}

/// Points a claim at a volume and notes that the bind is complete.
pub fn point_claim(claim: &mut Value, volume: &VolumeName) -> bool {
    let spec = child(claim, "spec");
    let mut changed = false;
    if spec.get("volumeName").and_then(Value::as_str) != Some(volume) {
        spec.insert("volumeName".into(), volume.as_str().into());
        annotate(claim, annotations::BOUND_BY_CONTROLLER, "yes");
        changed = true;
    }
    if !has_annotation(claim, annotations::BIND_COMPLETED) {
        annotate(claim, annotations::BIND_COMPLETED, "yes");
        changed = true;
    }
    changed
}

/// Sets a claim's status to bound.
///
/// The size is taken over only when the phase changes: a bound claim may rightly show less than
/// its volume has, while an expansion waits for the node.
pub fn set_claim_bound(claim: &mut Value, volume: &Volume) -> bool {
    let before = claim.get("status").cloned();
    let status = child(claim, "status");
    let phase = status.get("phase").and_then(Value::as_str).unwrap_or_default();
    let phase = ClaimPhase::from(phase);
    status.insert("phase".into(), json!(ClaimPhase::Bound));
    status.insert("accessModes".into(), json!(volume.spec.access_modes));
    if phase != ClaimPhase::Bound {
        let pre_resize = volume.metadata.annotation(annotations::PRE_RESIZE_CAPACITY);
        let size = pre_resize
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| volume.capacity())
            .to_string();
        child(claim, "status").insert("capacity".into(), json!({"storage": size}));
    }
    if phase == ClaimPhase::Pending {
        let class = volume.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
        set_or_remove(child(claim, "status"), "currentVolumeAttributesClassName", class);
    }
    claim.get("status") != before.as_ref()
}

/// Sets a claim's phase to one without a volume.
pub fn set_claim_phase(claim: &mut Value, phase: &ClaimPhase) -> bool {
    let before = claim.get("status").cloned();
    let status = child(claim, "status");
    status.insert("phase".into(), json!(phase));
    for field in ["accessModes", "capacity", "currentVolumeAttributesClassName"] {
        status.remove(field);
    }
    claim.get("status") != before.as_ref()
}

/// Writes a class into a claim that has none.
pub fn set_class(claim: &mut Value, class: &str) -> bool {
    child(claim, "spec").insert("storageClassName".into(), class.into());
    true
}

/// Notes on a claim who shall make a volume for it. The note of a driver that took over goes: it
/// belongs to claims that name an in-tree plugin.
pub fn ask_provisioner(claim: &mut Value, provisioner: &str) -> bool {
    let now = annotate(claim, annotations::STORAGE_PROVISIONER, provisioner);
    let beta = annotate(claim, annotations::BETA_STORAGE_PROVISIONER, provisioner);
    let migrated = note_migration(claim, None);
    now || beta || migrated
}

/// Notes on an object which driver took over; `None` removes the note.
pub fn note_migration(object: &mut Value, migrated_to: Option<&str>) -> bool {
    match migrated_to {
        Some(driver) => annotate(object, annotations::MIGRATED_TO, driver),
        None => unannotate(object, annotations::MIGRATED_TO),
    }
}

/// Writes a node onto a claim: its volume is to be made there.
pub fn select_node(claim: &mut Value, node: &NodeName) -> bool {
    annotate(claim, annotations::SELECTED_NODE, node)
}

/// Removes the scheduler's choice from a claim, which asks it to choose again.
pub fn forget_selected_node(claim: &mut Value) -> bool {
    unannotate(claim, annotations::SELECTED_NODE)
}

/// Sets the finalizers of an object.
pub fn set_finalizers(object: &mut Value, finalizers: &[String]) -> bool {
    let metadata = child(object, "metadata");
    let wanted = json!(finalizers);
    let had = metadata.get("finalizers").cloned().unwrap_or_else(|| json!([]));
    if had == wanted {
        return false;
    }
    metadata.insert("finalizers".into(), wanted);
    true
}

fn has_annotation(object: &Value, key: &str) -> bool {
    object.pointer("/metadata/annotations").is_some_and(|notes| notes.get(key).is_some())
}

pub(crate) fn annotate(object: &mut Value, key: &str, value: &str) -> bool {
    let metadata = child(object, "metadata");
    let notes = metadata.entry("annotations").or_insert_with(|| json!({}));
    if notes.is_null() {
        *notes = json!({});
    }
    let Some(notes) = notes.as_object_mut() else { return false };
    let previous = notes.insert(key.into(), value.into());
    previous.as_ref().and_then(Value::as_str) != Some(value)
}

pub(crate) fn unannotate(object: &mut Value, key: &str) -> bool {
    let metadata = child(object, "metadata");
    let Some(notes) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else {
        return false;
    };
    let removed = notes.remove(key).is_some();
    if notes.is_empty() {
        metadata.remove("annotations");
    }
    removed
}

fn set_or_remove(object: &mut Map<String, Value>, field: &str, text: &str) {
    if text.is_empty() {
        object.remove(field);
    } else {
        object.insert(field.into(), text.into());
    }
}

/// A member that is an object; made so where it is not.
pub(crate) fn child<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    let slot = object
        .as_object_mut()
        .expect("made an object above")
        .entry(field)
        .or_insert_with(|| json!({}));
    if !slot.is_object() {
        *slot = json!({});
    }
    slot.as_object_mut().expect("made an object above")
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
