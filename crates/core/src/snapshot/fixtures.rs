//! Snapshots and contents for tables: a base, and what a row changes.

use serde_json::{Value, json};

use crate::bind::fixtures::merge;
use crate::model::kinds::{VolumeSnapshot, VolumeSnapshotContent};

/// A snapshot of the claim `origin`, of class `fast`.
pub(super) fn snapshot(over: Value) -> VolumeSnapshot {
    let mut base = json!({
        "metadata": {"name": "snap", "namespace": "ns", "uid": "u", "resourceVersion": "7",
            "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection"]},
        "spec": {"source": {"persistentVolumeClaimName": "origin"}, "volumeSnapshotClassName": "fast"},
    });
    merge(&mut base, over);
    serde_json::from_value(base).expect("a snapshot")
}

/// Its content, as the controller makes it.
pub(super) fn content(over: Value) -> VolumeSnapshotContent {
    let mut base = json!({
        "metadata": {"name": "snapcontent-u", "uid": "c", "resourceVersion": "9",
            "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"]},
        "spec": {"driver": "d", "deletionPolicy": "Delete", "source": {"volumeHandle": "h"},
            "volumeSnapshotClassName": "fast",
            "volumeSnapshotRef": {"name": "snap", "namespace": "ns", "uid": "u"}},
    });
    merge(&mut base, over);
    serde_json::from_value(base).expect("a content")
}

/// A snapshot and a content that were there already.
pub(super) fn pre_provisioned(snap: Value, over: Value) -> (VolumeSnapshot, VolumeSnapshotContent) {
    let asked = json!({"spec": {"source":
        {"persistentVolumeClaimName": null, "volumeSnapshotContentName": "kept"}}});
    let base = json!({"metadata": {"name": "kept"},
        "spec": {"source": {"volumeHandle": null, "snapshotHandle": "s-1"}}});
    (snapshot(both(asked, snap)), content(both(base, over)))
}

pub(super) fn deleting() -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
}

/// `one` and `other` in one; nulls stay, and remove when they meet a base.
pub(super) fn both(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Object(mut one), Value::Object(other)) => {
            for (key, value) in other {
                let had = one.remove(&key).unwrap_or(Value::Null);
                one.insert(key, both(had, value));
            }
            Value::Object(one)
        }
        (_, other) => other,
    }
}
