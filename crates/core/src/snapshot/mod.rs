//! Decides how snapshots come about, are bound to contents, and go.
//!
//! Two programs share the work. The snapshot controller sees VolumeSnapshots: [`bind`] says what it does
//! next about one, [`delete`] what it does about one that is going, [`create`] builds the content that
//! asks a driver for a snapshot, [`status`] copies back what the driver said, [`class`] finds the default
//! class. The snapshotter stands beside a driver and sees VolumeSnapshotContents: [`sidecar`] says which
//! call comes next, [`writes`] what is written after it.
//!
//! What keeps data safe and the driver's pool clean:
//!
//! * CreateSnapshot is noted on the content before the call and until there is a verdict. A content with that
//!   note is never given up, also not when it is deleted.
//! * DeleteSnapshot is called only for a content that is going, that says `Delete`, and whose snapshot is
//!   going too or was never there.
//! * A snapshot that was cut once is never cut again: one whose content is lost says so.

pub mod bind;
pub mod class;
pub mod create;
pub mod delete;
pub mod group;
pub mod params;
pub mod sidecar;
pub mod status;
pub mod writes;

#[cfg(test)]
mod bind_tests;
#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod sidecar_tests;

use crate::model::{
    Uid,
    kinds::{
        Claim, DataSource, Kind as _, Meta, ObjectKey, ObjectRef, OwnerReference,
        VolumeGroupSnapshot, VolumeSnapshot, VolumeSnapshotContent,
    },
};

/// A failure that an object shows: as an event, as `status.error`, and by being tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The event's reason.
    pub reason: &'static str,
    pub message: String,
    /// `readyToUse` becomes false with it.
    pub unready: bool,
}

impl Failure {
    /// A failure of an object that is of no use now.
    #[must_use]
    pub fn unready(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), unready: true }
    }
}

/// The name of the content that the controller makes for a snapshot.
#[must_use]
pub fn dynamic_content_name(snapshot: &Uid) -> String {
    format!("snapcontent-{snapshot}")
}

/// The name of the content that is, or shall be, the snapshot's: the one it is bound to, the one it asks
/// for, or the one that the controller makes, for a member of a group also before it is bound.
#[must_use]
pub fn content_name(snapshot: &VolumeSnapshot) -> String {
    let meta = &snapshot.metadata;
    let asked = snapshot.spec.source.volume_snapshot_content_name.as_deref();
    let is_member = is_group_member(meta);
    let named = match meta.deleting() || is_member {
        true => snapshot.bound_content().or(asked),
        false => asked,
    };
    let made = || match group::content_of_member(&meta.name) {
        Some(name) if is_member => name,
        _ => dynamic_content_name(&meta.uid),
    };
    named.map_or_else(made, str::to_owned)
}

/// Whether the content is this very snapshot's.
#[must_use]
pub fn points_back(content: &VolumeSnapshotContent, snapshot: &VolumeSnapshot) -> bool {
    refers_to(&content.spec.volume_snapshot_ref, &snapshot.metadata)
        && content.spec.volume_snapshot_ref.uid == snapshot.metadata.uid
}

/// Whether the reference has the object's name and namespace.
fn refers_to(reference: &ObjectRef, meta: &Meta) -> bool {
    reference.name == meta.name && reference.namespace == meta.namespace
}

/// Whether a group snapshot owns the snapshot. Earlier releases wrote other versions of the group.
#[must_use]
pub fn is_group_member(meta: &Meta) -> bool {
    group_owner(meta).is_some()
}

/// The group snapshot that owns the snapshot.
#[must_use]
pub fn group_owner(meta: &Meta) -> Option<&OwnerReference> {
    meta.owner_references.iter().find(|owner| {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        owner.kind == VolumeGroupSnapshot::KIND && group == VolumeGroupSnapshot::GROUP
    })
}

/// The snapshot that a claim of the same namespace is restored from.
#[must_use]
pub fn restored_from(claim: &Claim) -> Option<ObjectKey> {
    let namespace = &claim.metadata.namespace;
    let is_snapshot = |source: &&DataSource| {
        let here = source.namespace.as_ref().is_none_or(|other| other == namespace);
        source.kind == VolumeSnapshot::KIND && source.api_group == VolumeSnapshot::GROUP && here
    };
    let spec = &claim.spec;
    let sources = spec.data_source.iter().chain(&spec.data_source_ref);
    let source = sources.into_iter().find(is_snapshot)?;
    Some(ObjectKey::new(namespace, &source.name))
}

/// Whether a claim must stay because this snapshot is still taken of it.
#[must_use]
pub fn needs_claim(snapshot: &VolumeSnapshot) -> bool {
    !snapshot.metadata.deleting() && !snapshot.ready()
}
