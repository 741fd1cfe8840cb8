//! What is written to contents, and to the metadata of snapshots. All are merge patches.

use serde_json::{Map, Value, json};

use super::status::text;
use crate::model::{
    keys::{annotations, finalizers},
    kinds::{Meta, OwnerReference, SnapshotError, VolumeSnapshotContentStatus},
};

/// A snapshot as the driver describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    pub handle: String,
    pub ready: bool,
    /// In nanoseconds since 1970.
    pub cut_at: i64,
    /// In bytes; none when the driver does not say.
    pub size: Option<i64>,
    /// The driver's id of the group snapshot that it is a member of.
    pub group: Option<String>,
}

/// The status after the driver has described the snapshot: handle, time, size and group are set once. None
/// when it says so already.
#[must_use]
pub fn described(has: Option<&VolumeSnapshotContentStatus>, taken: &Taken) -> Option<Value> {
    let none = VolumeSnapshotContentStatus::default();
    let has = has.unwrap_or(&none);
    let mut status = Map::new();
    let mut set = |field: &str, unset: bool, value: Value| {
        if unset {
            status.insert(field.to_owned(), value);
        }
    };
    set("snapshotHandle", has.snapshot_handle.is_none(), taken.handle.as_str().into());
    set("creationTime", has.creation_time.is_none(), taken.cut_at.into());
    if let Some(size) = taken.size {
        set("restoreSize", has.restore_size.is_none(), size.into());
    }
    if let Some(group) = &taken.group {
        let unset = has.volume_group_snapshot_handle.is_none();
        set("volumeGroupSnapshotHandle", unset, group.as_str().into());
    }
    set("readyToUse", has.ready_to_use != Some(taken.ready), taken.ready.into());
    set("error", taken.ready && has.error.is_some(), Value::Null);
    (!status.is_empty()).then(|| json!({"status": status}))
}

/// The status after a failure; none when `error`, which it shows, says so already.
#[must_use]
pub fn failed(error: Option<&SnapshotError>, message: &str, now: &str) -> Option<Value> {
    let patch =
        json!({"status": {"error": {"message": message, "time": now}, "readyToUse": false}});
    (text(error) != Some(message)).then_some(patch)
}

/// The status after DeleteSnapshot.
#[must_use]
pub fn cleared() -> Value {
    json!({"status": {"snapshotHandle": null, "readyToUse": false, "creationTime": null,
        "restoreSize": null, "error": null}})
}

/// Notes that CreateSnapshot is about to be called. With the guard the content gets its finalizer in the
/// same write, so that it cannot vanish during the call.
#[must_use]
pub fn begun(meta: &Meta, guard: bool) -> Value {
    noted(meta, annotations::SNAPSHOT_BEING_CREATED, guard.then_some(finalizers::CONTENT_BOUND))
}

/// The note of a call in flight, and the finalizer that the object shall have by then.
pub(super) fn noted(meta: &Meta, note: &str, finalizer: Option<&str>) -> Value {
    let mut patch = json!({"metadata": {"annotations": {note: "yes"}}});
    let missing = |finalizer: &&str| !meta.deleting() && !meta.has_finalizer(finalizer);
    if let Some(finalizer) = finalizer.filter(missing) {
        let mut all = meta.finalizers.clone();
        all.push(finalizer.to_owned());
        patch["metadata"]["finalizers"] = all.into();
        patch["metadata"]["resourceVersion"] = meta.resource_version.as_str().into();
    }
    patch
}

/// Drops the note of [`begun`].
#[must_use]
pub fn settled() -> Value {
    json!({"metadata": {"annotations": {annotations::SNAPSHOT_BEING_CREATED: null}}})
}

/// The object without these finalizers, if it is still the version that was looked at.
#[must_use]
pub fn without_finalizers(meta: &Meta, gone: &[&str]) -> Value {
    let kept = meta.finalizers.iter().filter(|one| !gone.contains(&one.as_str()));
    finalizers_patch(meta, kept.cloned().collect())
}

/// The object with these finalizers, if it is still the version that was looked at.
#[must_use]
pub fn with_finalizers(meta: &Meta, new: &[&str]) -> Value {
    let new = new.iter().filter(|one| !meta.has_finalizer(one)).map(|one| (*one).to_owned());
    finalizers_patch(meta, meta.finalizers.iter().cloned().chain(new).collect())
}

/// The object with another owner, if it is still the version that was looked at.
#[must_use]
pub fn with_owner(meta: &Meta, owner: &OwnerReference) -> Value {
    let owners: Vec<&OwnerReference> = meta.owner_references.iter().chain([owner]).collect();
    let (uid, version) = (&meta.uid, &meta.resource_version);
    json!({"metadata": {"uid": uid, "resourceVersion": version, "ownerReferences": owners}})
}

fn finalizers_patch(meta: &Meta, finalizers: Vec<String>) -> Value {
    let (uid, version) = (&meta.uid, &meta.resource_version);
    json!({"metadata": {"uid": uid, "resourceVersion": version, "finalizers": finalizers}})
}
