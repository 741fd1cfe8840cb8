//! Decides how group snapshots come about and go: one call of the driver for several volumes, and a member
//! snapshot for each of them.
//!
//! [`bind`] says what the controller does next, [`create`] builds the content and the members, [`sidecar`]
//! which call the snapshotter makes, and [`writes`] what it writes. What holds beyond single snapshots:
//!
//! * The driver's whole description is written in one patch: no crash leaves a handle without members.
//! * Members have names that follow from group and volume: a second run finds those of the first.
//! * A member's snapshot is made before its content, which names it: whoever deletes the snapshot finds the content.

pub mod bind;
pub mod create;
pub mod sidecar;
pub mod writes;

#[cfg(test)]
mod tests;

use sha2::{Digest as _, Sha256};

use super::refers_to;
use crate::model::{
    Uid, VolumeHandle,
    kinds::{Meta, OwnerReference, VolumeGroupSnapshot, VolumeGroupSnapshotContent},
};

/// The name of the content that the controller makes for a group snapshot.
#[must_use]
pub fn dynamic_content_name(group: &Uid) -> String {
    format!("groupsnapcontent-{group}")
}

/// The name of the content that is, or shall be, the group snapshot's.
#[must_use]
pub fn content_name(group: &VolumeGroupSnapshot) -> String {
    let bound = group.status.as_ref();
    let bound = bound.and_then(|status| status.bound_volume_group_snapshot_content_name.as_deref());
    let asked = group.spec.source.volume_group_snapshot_content_name.as_deref();
    let named = bound.filter(|_| group.metadata.deleting()).or(asked);
    named.map_or_else(|| dynamic_content_name(&group.metadata.uid), str::to_owned)
}

/// Whether the content is this very group snapshot's.
#[must_use]
pub fn points_back(content: &VolumeGroupSnapshotContent, group: &VolumeGroupSnapshot) -> bool {
    let reference = &content.spec.volume_group_snapshot_ref;
    refers_to(reference, &group.metadata) && reference.uid == group.metadata.uid
}

/// The names of the snapshot and of the content of one member.
#[must_use]
pub fn member_names(group: &Uid, volume: &VolumeHandle) -> (String, String) {
    let mut hash = Sha256::new();
    hash.update(group.as_bytes());
    hash.update(volume.as_bytes());
    let hash = hex::encode(hash.finalize());
    (format!("snapshot-{hash}"), format!("snapcontent-{hash}"))
}

/// The name of a member's content, by that of its snapshot.
#[must_use]
pub fn content_of_member(snapshot: &str) -> Option<String> {
    snapshot.strip_prefix("snapshot-").map(|hash| format!("snapcontent-{hash}"))
}

/// The reference by which a group snapshot owns a member.
#[must_use]
pub fn owner(group: &Meta) -> OwnerReference {
    use crate::model::Kind as _;
    OwnerReference {
        api_version: VolumeGroupSnapshot::api_version(),
        kind: VolumeGroupSnapshot::KIND.to_owned(),
        name: group.name.clone(),
        uid: group.uid.clone(),
        ..OwnerReference::default()
    }
}
