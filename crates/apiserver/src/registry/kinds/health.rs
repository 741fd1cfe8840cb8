//! The health of volumes and of storage in the status of claims, pods and CSINodes.

use std::collections::HashSet;

use longshore_core::health::conditions::{
    MAX_CONDITIONS, MAX_MESSAGE_BYTES, MAX_REASON_BYTES, is_reason,
};

use super::prelude::*;

/// What can be wrong with a volume, and with the storage of a node, as errors list them.
const VOLUME: &[&str] = &["DataLoss", "Degraded", "Inaccessible"];
const STORAGE: &[&str] = &["StorageDegraded", "StorageUnreachable"];

const REASON: &str = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";

/// With gate `CSIVolumeHealth` off a field of the status cannot be set. One that is set stays open to changes: who
/// switches the gate off must still be able to clear it.
pub(super) fn drop_disabled(new: &mut Value, old: &Value, field: &str, cx: &Context<'_>) {
    let was_set = match &old["status"][field] {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        _ => true,
    };
    if cx.settings.volume_health || was_set {
        return;
    }
    let Some(status) = new.get_mut("status").and_then(Value::as_object_mut) else { return };
    status.remove(field);
    // A request of which nothing is left changes nothing.
    if status.is_empty()
        && old["status"].is_null()
        && let Some(object) = new.as_object_mut()
    {
        object.remove("status");
    }
}

pub(super) fn validate_claim(causes: &mut Causes, claim: &Value) {
    let field = "status.healthStatus.healthConditions";
    validate_volume(causes, field, items(claim, "/status/healthStatus/healthConditions"));
}

pub(super) fn validate_pod(causes: &mut Causes, pod: &Value) {
    let volumes = items(pod, "/spec/volumes").iter();
    let volumes: HashSet<&str> = volumes.map(|volume| text(volume, "/name")).collect();
    let mut seen = HashSet::new();
    for (i, entry) in items(pod, "/status/volumeHealth").iter().enumerate() {
        let (field, name) = (format!("status.volumeHealth[{i}]"), text(entry, "/name"));
        if !seen.insert(name) {
            let shown = go_values::sparse(go_values::POD_VOLUME_HEALTH, entry);
            causes.push(Cause::duplicate_record(&field, &shown));
        }
        if name.is_empty() {
            causes.push(Cause::required(format!("{field}.name"), ""));
        } else if !volumes.contains(name) {
            causes.push(Cause::not_found(&field, &name.into()));
        }
        let conditions = items(entry, "/healthConditions");
        validate_volume(causes, &format!("{field}.healthConditions"), conditions);
    }
}

pub(super) fn validate_csi_node(causes: &mut Causes, node: &Value) {
    let mut seen = HashSet::new();
    for (i, entry) in items(node, "/status/storageHealth").iter().enumerate() {
        let field = format!("status.storageHealth[{i}]");
        driver_name(causes, &format!("{field}.name"), text(entry, "/name"));
        if !seen.insert(text(entry, "/name")) {
            causes.push(Cause::duplicate(format!("{field}.name"), &entry["name"]));
        }
        let conditions = items(entry, "/healthConditions");
        let field = format!("{field}.healthConditions");
        if conditions.len() > MAX_CONDITIONS {
            causes.push(Cause::too_many(&field, conditions.len(), MAX_CONDITIONS));
            continue;
        }
        for (i, condition) in conditions.iter().enumerate() {
            let field = format!("{field}[{i}]");
            validate_condition(causes, &field, condition, STORAGE);
            for (part, words) in
                [("accessMode", ACCESS_MODES), ("volumeMode", &["Block", "Filesystem"][..])]
            {
                if let Some(word) = condition[part].as_str() {
                    one_of(causes, &format!("{field}.{part}"), word, words);
                }
            }
        }
    }
}

/// The conditions of one volume. Of too many none is looked at.
fn validate_volume(causes: &mut Causes, field: &str, conditions: &[Value]) {
    if conditions.len() > MAX_CONDITIONS {
        causes.push(Cause::too_many(field, conditions.len(), MAX_CONDITIONS));
        return;
    }
    let mut seen = HashSet::new();
    for (i, condition) in conditions.iter().enumerate() {
        if !seen.insert((text(condition, "/status"), text(condition, "/reason"))) {
            let shown = go_values::sparse(go_values::HEALTH_CONDITION, condition);
            causes.push(Cause::duplicate_record(format!("{field}[{i}]"), &shown));
        }
    }
    for (i, condition) in conditions.iter().enumerate() {
        validate_condition(causes, &format!("{field}[{i}]"), condition, VOLUME);
    }
}

fn validate_condition(causes: &mut Causes, field: &str, condition: &Value, statuses: &[&str]) {
    let part = |name: &str| format!("{field}.{name}");
    match text(condition, "/status") {
        "" => causes.push(Cause::required(part("status"), "")),
        word => one_of(causes, &part("status"), word, statuses),
    }
    match text(condition, "/reason") {
        "" => causes.push(Cause::required(part("reason"), "")),
        long if long.len() > MAX_REASON_BYTES => {
            causes.push(Cause::too_long(part("reason"), MAX_REASON_BYTES));
        }
        word if !is_reason(word) => {
            causes.push(Cause::invalid(part("reason"), &word.into(), REASON));
        }
        _ => {}
    }
    if text(condition, "/message").len() > MAX_MESSAGE_BYTES {
        causes.push(Cause::too_long(part("message"), MAX_MESSAGE_BYTES));
    }
}
