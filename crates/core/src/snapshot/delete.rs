//! How a snapshot goes: its content first, where the class says `Delete`.

use super::bind::{Group, Step, View};
use super::points_back;
use crate::model::{
    DeletionPolicy,
    keys::{annotations, finalizers},
    kinds::VolumeSnapshotContent,
};

const OURS: [&str; 3] =
    [finalizers::SNAPSHOT_AS_SOURCE, finalizers::SNAPSHOT_BOUND, finalizers::SNAPSHOT_IN_GROUP];

/// Says what comes next for a snapshot that is being deleted.
pub(super) fn decide(view: &View<'_>) -> Step {
    let meta = &view.snapshot.metadata;
    if !OURS.iter().any(|one| meta.has_finalizer(one)) {
        return Step::Nothing;
    }
    // One of another snapshot, also of an earlier one of this name, is none of ours.
    let content = view.content.filter(|content| points_back(content, view.snapshot));
    if content.is_none() && !view.content_is_live {
        return Step::LookForContent;
    }
    if content.is_some() && view.restoring {
        let message = "Snapshot is being used to restore a PVC".to_owned();
        return Step::Blocked { reason: "SnapshotDeletePending", message };
    }
    match view.group {
        Group::Unknown => return Step::Wait("the group snapshots are not known yet".to_owned()),
        // Its end starts the next look.
        Group::Going => return Step::Nothing,
        Group::None | Group::Missing | Group::Known(_) => {}
    }
    if let Group::Known(group) = view.group {
        let (key, namespace) = (meta.key(), &meta.namespace);
        let message = format!(
            "deletion of the individual volume snapshot {key} is not allowed as it belongs to group snapshot \
             {namespace}/{group}. Deleting the group snapshot will trigger the deletion of all the individual \
             volume snapshots that are part of the group."
        );
        return Step::Blocked { reason: "SnapshotDeletePending", message };
    }
    content.and_then(delete_content).unwrap_or_else(|| release(view, content))
}

fn delete_content(content: &VolumeSnapshotContent) -> Option<Step> {
    let meta = &content.metadata;
    if meta.annotation(annotations::SNAPSHOT_BEING_DELETED).is_none() {
        return Some(Step::MarkContent);
    }
    let cascades = content.spec.deletion_policy == DeletionPolicy::Delete;
    (cascades && !meta.deleting()).then_some(Step::DeleteContent)
}

fn release(view: &View<'_>, content: Option<&VolumeSnapshotContent>) -> Step {
    let kept = content.is_some_and(|one| one.spec.deletion_policy == DeletionPolicy::Delete);
    let meta = &view.snapshot.metadata;
    let gone: Vec<&'static str> = OURS
        .into_iter()
        .filter(|one| meta.has_finalizer(one) && !(kept && *one == finalizers::SNAPSHOT_BOUND))
        .collect();
    match gone.is_empty() {
        true => Step::Nothing,
        false => Step::RemoveFinalizers(gone),
    }
}
