//! Which call a snapshotter makes next about one group content.

use crate::model::{
    DeletionPolicy,
    keys::{annotations, finalizers},
    kinds::{Meta, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent},
};

/// What comes next for a group content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    Nothing,
    /// Take our finalizer off: nothing of the driver's is to be deleted.
    Release,
    /// DeleteVolumeGroupSnapshot with its members, and then take our finalizer off.
    Delete {
        handle: String,
        members: Vec<String>,
    },
    /// CreateVolumeGroupSnapshot. `first`: the content has no status yet.
    Create {
        first: bool,
    },
    /// Ask what became of a group snapshot that the driver has.
    Find {
        handle: String,
        members: Vec<String>,
    },
    /// The note of a call in flight is left over: drop it.
    DropNote,
}

/// Whether this driver's snapshotter is meant. `class` is the content's, where it is found.
#[must_use]
pub fn serves(
    driver: &str,
    content: &VolumeGroupSnapshotContent,
    class: Option<&VolumeGroupSnapshotClass>,
) -> bool {
    let source = &content.spec.source;
    let has_source = source.volume_handles.is_some() || source.group_snapshot_handles.is_some();
    let same_class = class.is_none_or(|class| class.driver == driver);
    has_source && content.spec.driver == driver && same_class
}

/// Says what comes next. After each step it is asked again.
#[must_use]
pub fn decide(content: &VolumeGroupSnapshotContent) -> Next {
    let meta = &content.metadata;
    if should_delete(content) {
        return deletion(content);
    }
    let being_created = is_being_created(meta);
    let status = content.status.as_ref();
    let handle = status.and_then(|status| status.volume_group_snapshot_handle.as_ref());
    // It is going, and no call was made that could be owed an answer: the user's last word is to come.
    if meta.deleting() && !being_created && handle.is_none() {
        return Next::Nothing;
    }
    if status.is_some_and(|status| status.ready_to_use == Some(true)) {
        return if being_created { Next::DropNote } else { Next::Nothing };
    }
    match &content.spec.source.group_snapshot_handles {
        Some(given) => Next::Find {
            handle: handle.unwrap_or(&given.volume_group_snapshot_handle).clone(),
            members: given.volume_snapshot_handles.clone(),
        },
        None => Next::Create { first: status.is_none() },
    }
}

/// Whether CreateVolumeGroupSnapshot was called and has no verdict.
#[must_use]
pub fn is_being_created(meta: &Meta) -> bool {
    meta.annotation(annotations::GROUP_SNAPSHOT_BEING_CREATED).is_some()
}

/// Whether the content may go: it was never bound, or its group snapshot is going and no call is in flight.
#[must_use]
pub fn should_delete(content: &VolumeGroupSnapshotContent) -> bool {
    let meta = &content.metadata;
    let spec = &content.spec;
    let given = spec.source.group_snapshot_handles.is_some();
    let unbound = given && spec.volume_group_snapshot_ref.uid.is_empty();
    let going = meta.annotation(annotations::GROUP_SNAPSHOT_BEING_DELETED).is_some();
    meta.deleting() && (unbound || (going && !is_being_created(meta)))
}

fn deletion(content: &VolumeGroupSnapshotContent) -> Next {
    let cascades = content.spec.deletion_policy == DeletionPolicy::Delete;
    let status = content.status.as_ref();
    let known = status.and_then(|status| status.volume_group_snapshot_handle.as_ref());
    let given = content.spec.source.group_snapshot_handles.as_ref();
    let unasked = given.filter(|_| !is_cleared(content));
    match known.or(unasked.map(|given| &given.volume_group_snapshot_handle)) {
        Some(handle) if cascades => {
            let listed = status.map(|status| &status.volume_snapshot_info_list);
            let listed: Vec<String> =
                listed.into_iter().flatten().map(|one| one.snapshot_handle.clone()).collect();
            let members = match (listed.is_empty(), given) {
                (true, Some(given)) => given.volume_snapshot_handles.clone(),
                _ => listed,
            };
            Next::Delete { handle: handle.clone(), members }
        }
        _ if content.metadata.has_finalizer(finalizers::GROUP_CONTENT_BOUND) => Next::Release,
        _ => Next::Nothing,
    }
}

/// Whether the status says that the driver's group snapshot is deleted.
fn is_cleared(content: &VolumeGroupSnapshotContent) -> bool {
    content.status.as_ref().is_some_and(|status| {
        status.ready_to_use == Some(false)
            && status.volume_group_snapshot_handle.is_none()
            && status.error.is_none()
    })
}
