//! Which call a snapshotter makes next about one content.

use crate::model::{
    DeletionPolicy,
    keys::{annotations, finalizers},
    kinds::{Meta, VolumeSnapshotClass, VolumeSnapshotContent},
};

/// What comes next for a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    Nothing,
    /// Take our finalizer off: nothing of the driver's is to be deleted.
    Release,
    /// DeleteSnapshot, and then take our finalizer off.
    Delete {
        handle: String,
    },
    /// CreateSnapshot. `first`: the content has no status yet.
    Create {
        first: bool,
    },
    /// Ask what became of a snapshot that the driver has.
    Find {
        handle: String,
    },
    /// The note of a call in flight is left over: drop it.
    DropNote,
}

/// Whether this driver's snapshotter is meant. `class` is the content's, where it is found.
#[must_use]
pub fn serves(
    driver: &str,
    content: &VolumeSnapshotContent,
    class: Option<&VolumeSnapshotClass>,
) -> bool {
    let source = &content.spec.source;
    let has_source = source.volume_handle.is_some() || source.snapshot_handle.is_some();
    let same_class = class.is_none_or(|class| class.driver == driver);
    has_source && content.spec.driver == driver && same_class
}

/// Whether a change of a content can call for work. Our own writes, and the controller's finalizer, do not. A member
/// of a group can be asked about from when the controller has written its handle.
#[must_use]
pub fn worth_a_look(old: &VolumeSnapshotContent, new: &VolumeSnapshotContent) -> bool {
    let became_ready = new.ready() && !old.ready();
    let begins = decide(old) == Next::Nothing && decide(new) != Next::Nothing;
    became_ready || begins || old.spec != new.spec || noted(&old.metadata) != noted(&new.metadata)
}

/// What of the metadata calls for work.
fn noted(meta: &Meta) -> impl PartialEq + '_ {
    let notes = meta.annotations.iter();
    let notes = notes.filter(|(key, _)| *key != annotations::SNAPSHOT_BEING_CREATED);
    let notes: Vec<_> = notes.collect();
    (notes, &meta.labels, meta.deletion_timestamp, &meta.uid, &meta.owner_references)
}

/// Says what comes next. After each step it is asked again.
#[must_use]
pub fn decide(content: &VolumeSnapshotContent) -> Next {
    let meta = &content.metadata;
    if should_delete(content) {
        return deletion(content);
    }
    let being_created = is_being_created(meta);
    let source = &content.spec.source;
    let status = content.status.as_ref();
    let handle = status.and_then(|status| status.snapshot_handle.as_ref());
    // It is going, and no call was made that could be owed an answer: the user's last word is to come.
    if meta.deleting() && !being_created && handle.is_none() {
        return Next::Nothing;
    }
    let of_group = meta.annotation(annotations::GROUP_SNAPSHOT_HANDLE).is_some();
    if source.volume_handle.is_some() && status.is_none() && !of_group {
        return Next::Create { first: true };
    }
    if content.ready() {
        return if being_created { Next::DropNote } else { Next::Nothing };
    }
    if let Some(handle) = &source.snapshot_handle {
        return Next::Find { handle: handle.clone() };
    }
    let in_group = status.is_some_and(|status| status.volume_group_snapshot_handle.is_some());
    match handle {
        Some(handle) if of_group || in_group => Next::Find { handle: handle.clone() },
        _ if of_group || in_group => Next::Nothing,
        _ => Next::Create { first: false },
    }
}

/// Whether CreateSnapshot was called and has no verdict.
#[must_use]
pub fn is_being_created(meta: &Meta) -> bool {
    meta.annotation(annotations::SNAPSHOT_BEING_CREATED).is_some()
}

/// Whether the content may go: it was never bound, or its snapshot is going and no call is in flight.
#[must_use]
pub fn should_delete(content: &VolumeSnapshotContent) -> bool {
    let meta = &content.metadata;
    let spec = &content.spec;
    let unbound = spec.source.snapshot_handle.is_some() && spec.volume_snapshot_ref.uid.is_empty();
    let going = meta.annotation(annotations::SNAPSHOT_BEING_DELETED).is_some();
    meta.deleting() && (unbound || (going && !is_being_created(meta)))
}

fn deletion(content: &VolumeSnapshotContent) -> Next {
    let cascades = content.spec.deletion_policy == DeletionPolicy::Delete;
    let of_group = content.metadata.annotation(annotations::GROUP_SNAPSHOT_HANDLE).is_some();
    let status = content.status.as_ref();
    let in_group = status.is_some_and(|status| status.volume_group_snapshot_handle.is_some());
    let known = status.and_then(|status| status.snapshot_handle.as_ref());
    // A content that was never asked about has no status, yet the driver has its snapshot.
    let given = content.spec.source.snapshot_handle.as_ref().filter(|_| !is_cleared(content));
    match known.or(given) {
        Some(handle) if cascades && !of_group && !in_group => {
            Next::Delete { handle: handle.clone() }
        }
        _ if content.metadata.has_finalizer(finalizers::CONTENT_BOUND) => Next::Release,
        _ => Next::Nothing,
    }
}

/// Whether the status says that the driver's snapshot is deleted.
fn is_cleared(content: &VolumeSnapshotContent) -> bool {
    content.status.as_ref().is_some_and(|status| {
        status.ready_to_use == Some(false)
            && status.snapshot_handle.is_none()
            && status.error.is_none()
    })
}
