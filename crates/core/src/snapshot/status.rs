//! What a snapshot's status takes from its content.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::Failure;
use crate::model::{
    Quantity,
    kinds::{SnapshotError, VolumeSnapshot, VolumeSnapshotContent},
};

/// A change of a snapshot's status, and what it means.
#[derive(Debug, Clone, PartialEq)]
pub struct Copied {
    /// A merge patch.
    pub patch: Value,
    /// The driver has cut the snapshot.
    pub created: bool,
    /// Volumes can be made from it now.
    pub ready: bool,
}

/// What is to be copied from the content; none when the status says it all. Name, time and size are set
/// once; readiness and error follow the content.
#[must_use]
pub fn copy(
    snapshot: &VolumeSnapshot,
    content: &VolumeSnapshotContent,
    group: Option<&str>,
) -> Option<Copied> {
    let has = snapshot.status.clone().unwrap_or_default();
    let said = content.status.clone().unwrap_or_default();
    let mut patch = Map::new();
    let mut set = |field: &str, value: Value| {
        patch.insert(field.to_owned(), value);
    };
    if has.bound_volume_snapshot_content_name.is_none() {
        set("boundVolumeSnapshotContentName", content.metadata.name.as_str().into());
    }
    let cut = said.creation_time.filter(|_| has.creation_time.is_none()).and_then(time);
    if let Some(cut) = &cut {
        set("creationTime", cut.as_str().into());
    }
    let ready = said.ready_to_use.unwrap_or(false);
    if has.ready_to_use != Some(ready) {
        set("readyToUse", ready.into());
    }
    let size = said.restore_size.map(Quantity::from_bytes);
    let unset = has.restore_size.is_none_or(|size| size.is_zero());
    if let Some(size) = size.filter(|size| unset && has.restore_size != Some(*size)) {
        set("restoreSize", size.to_string().into());
    }
    let error = said.error.filter(|_| !ready);
    if let Some(error) = error_change(has.error.as_ref(), error) {
        set("error", error);
    }
    if let Some(group) = group.filter(|_| has.volume_group_snapshot_name.is_none()) {
        set("volumeGroupSnapshotName", group.into());
    }
    let became_ready = ready && has.ready_to_use != Some(true);
    let created = cut.is_some();
    (!patch.is_empty()).then(|| Copied {
        patch: json!({"status": patch}),
        created,
        ready: became_ready,
    })
}

/// The status of an object that has failed; none when it says so already.
#[must_use]
pub fn failed(error: Option<&SnapshotError>, failure: &Failure, now: &str) -> Option<Value> {
    if text(error) == Some(&failure.message) {
        return None;
    }
    let mut status = json!({"error": {"message": failure.message, "time": now}});
    if failure.unready {
        status["readyToUse"] = false.into();
    }
    Some(json!({"status": status}))
}

/// The message of an error.
#[must_use]
pub fn text(error: Option<&SnapshotError>) -> Option<&str> {
    error?.message.as_deref()
}

/// How the error becomes what is said now; none when it is that.
pub(super) fn error_change(
    has: Option<&SnapshotError>,
    said: Option<SnapshotError>,
) -> Option<Value> {
    let same = text(said.as_ref()) == text(has) && said.is_some() == has.is_some();
    (!same).then(|| said.map_or(Value::Null, shown))
}

fn shown(error: SnapshotError) -> Value {
    let SnapshotError { message, time } = error;
    let mut shown = Map::new();
    shown.extend(message.map(|message| ("message".to_owned(), message.into())));
    shown.extend(time.map(|time| ("time".to_owned(), seconds(time).into())));
    shown.into()
}

/// A time in nanoseconds, as `metav1.Time` is written; none when no calendar has it.
fn time(nanos: i64) -> Option<String> {
    Timestamp::from_nanosecond(nanos.into()).ok().map(seconds)
}

/// RFC 3339 in whole seconds.
pub(super) fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
