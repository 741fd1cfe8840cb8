//! What a snapshotter writes to a group content. All are merge patches.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::super::status::seconds;
use crate::model::{
    keys::{annotations, finalizers},
    kinds::{Meta, VolumeGroupSnapshotContentStatus, VolumeSnapshotInfo},
};

/// A group snapshot as the driver describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    pub handle: String,
    pub ready: bool,
    pub cut_at: Option<Timestamp>,
    pub members: Vec<VolumeSnapshotInfo>,
}

/// The status after the driver has described the group snapshot: all of it in one patch. Handle, time and
/// members are set once. None when it says so already.
#[must_use]
pub fn described(
    has: Option<&VolumeGroupSnapshotContentStatus>,
    taken: &Taken,
    with_members: bool,
) -> Option<Value> {
    let none = VolumeGroupSnapshotContentStatus::default();
    let has = has.unwrap_or(&none);
    let mut status = Map::new();
    let mut set = |field: &str, unset: bool, value: Value| {
        if unset {
            status.insert(field.to_owned(), value);
        }
    };
    let handle = has.volume_group_snapshot_handle.is_none();
    set("volumeGroupSnapshotHandle", handle, taken.handle.as_str().into());
    if let Some(cut) = taken.cut_at {
        set("creationTime", has.creation_time.is_none(), seconds(cut).into());
    }
    let unlisted = with_members && has.volume_snapshot_info_list.is_empty();
    set("volumeSnapshotInfoList", unlisted && !taken.members.is_empty(), json!(taken.members));
    set("readyToUse", has.ready_to_use != Some(taken.ready), taken.ready.into());
    set("error", taken.ready && has.error.is_some(), Value::Null);
    (!status.is_empty()).then(|| json!({"status": status}))
}

/// The status after DeleteVolumeGroupSnapshot.
#[must_use]
pub fn cleared() -> Value {
    json!({"status": {"volumeGroupSnapshotHandle": null, "readyToUse": false,
        "creationTime": null, "error": null}})
}

/// Notes that CreateVolumeGroupSnapshot is about to be called; with the guard in one write with the
/// finalizer.
#[must_use]
pub fn begun(meta: &Meta, guard: bool) -> Value {
    let note = annotations::GROUP_SNAPSHOT_BEING_CREATED;
    super::super::writes::noted(meta, note, guard.then_some(finalizers::GROUP_CONTENT_BOUND))
}

/// Drops the note of [`begun`].
#[must_use]
pub fn settled() -> Value {
    json!({"metadata": {"annotations": {annotations::GROUP_SNAPSHOT_BEING_CREATED: null}}})
}
