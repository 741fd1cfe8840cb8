//! What the controller does next about one group snapshot.

use serde_json::{Map, Value, json};

use super::super::{
    Failure,
    bind::{Class, ContentStep},
    refers_to, status,
};
use super::points_back;
use crate::model::{
    DeletionPolicy,
    keys::{annotations, finalizers},
    kinds::{VolumeGroupSnapshot, VolumeGroupSnapshotContent},
};

/// What the controller knows of one group snapshot.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub group: &'a VolumeGroupSnapshot,
    /// The content of the name that [`super::content_name`] gives.
    pub content: Option<&'a VolumeGroupSnapshotContent>,
    /// No content means that there is none: the API was asked, not only the cache.
    pub content_is_live: bool,
    pub class: Class,
    /// Some member that the driver has made lacks its objects.
    pub members_missing: bool,
    /// A claim that waits for its volume is restored from a member.
    pub restoring: bool,
    /// Members that are not going yet.
    pub members_left: bool,
}

/// What comes next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    Nothing,
    /// The group snapshot names no class: find the default one.
    FindClass,
    AddFinalizer,
    /// Select claims, and ask the driver by making a content.
    CreateContent,
    /// Patch the content, so that it is this group snapshot's.
    Bind(Value),
    /// Make what is missing of the members.
    CreateMembers,
    CopyStatus(status::Copied),
    /// The cache shows no content: ask the API.
    LookForContent,
    MarkContent,
    DeleteContent,
    DeleteMembers,
    RemoveFinalizer,
    /// Nothing can be done yet: an event, and another try.
    Blocked {
        reason: &'static str,
        message: String,
    },
    Fail(Failure),
}

/// The text about a lost content; a function, because constants here are read as reasons of events.
fn content_missing() -> &'static str {
    "VolumeGroupSnapshotContent is missing"
}

/// Says what comes next for one group snapshot. After each step it is asked again.
#[must_use]
pub fn decide(view: &View<'_>) -> Step {
    let group = view.group;
    if group.metadata.deleting() {
        return deletion(view);
    }
    let source = &group.spec.source;
    let is_static = source.volume_group_snapshot_content_name.is_some();
    match view.class {
        Class::Missing => {
            let name = group.spec.volume_group_snapshot_class_name.as_deref().unwrap_or_default();
            let cause =
                format!("volumegroupsnapshotclass.groupsnapshot.storage.k8s.io {name:?} not found");
            return Step::Fail(Failure {
                reason: "GetGroupSnapshotClassFailed",
                message: format!("failed to get group snapshot class with error {cause}"),
                unready: false,
            });
        }
        Class::Unnamed if !is_static => return Step::FindClass,
        Class::Unnamed | Class::Known => {}
    }
    if is_static == source.selector.is_some() {
        let text = "Exactly one of Selector and VolumeGroupSnapshotContentName should be specified";
        return Step::Fail(Failure::unready("GroupSnapshotValidationError", text));
    }
    let status = group.status.as_ref();
    let bound = status.and_then(|one| one.bound_volume_group_snapshot_content_name.as_ref());
    let kept = group.metadata.has_finalizer(finalizers::GROUP_SNAPSHOT_BOUND);
    if bound.is_some() && view.content.is_some() && !kept {
        return Step::AddFinalizer;
    }
    let ready = status.is_some_and(|status| status.ready_to_use == Some(true));
    match (ready && bound.is_some(), is_static) {
        (true, _) => steady(view),
        (false, true) => pre_provisioned(view),
        (false, false) => dynamic(view),
    }
}

fn steady(view: &View<'_>) -> Step {
    match view.content {
        None if !view.content_is_live => Step::LookForContent,
        None => Step::Fail(Failure::unready("GroupSnapshotContentMissing", content_missing())),
        Some(content) if !points_back(content, view.group) => Step::Fail(Failure::unready(
            "GroupSnapshotMisbound",
            "VolumeGroupSnapshotContent is not bound to the VolumeGroupSnapshot correctly",
        )),
        Some(_) => Step::Nothing,
    }
}

fn pre_provisioned(view: &View<'_>) -> Step {
    let Some(content) = view.content else {
        return Step::Fail(Failure::unready("GroupSnapshotContentMissing", content_missing()));
    };
    if content.spec.source.group_snapshot_handles.is_none() {
        let text = "VolumeGroupSnapshotContent is dynamically provisioned while expecting a pre-provisioned one";
        return Step::Fail(Failure::unready("GroupSnapshotContentMismatch", text));
    }
    let meta = &view.group.metadata;
    let reference = &content.spec.volume_group_snapshot_ref;
    let free = reference.uid.is_empty() || reference.uid == meta.uid;
    if !refers_to(reference, meta) || !free {
        let name = &content.metadata.name;
        let text =
            format!("VolumeGroupSnapshotContent [{name}] is bound to a different group snapshot");
        return Step::Fail(Failure::unready("GroupSnapshotContentMisbound", text));
    }
    let mut spec = Map::new();
    if reference.uid.is_empty() {
        spec.insert("volumeGroupSnapshotRef".to_owned(), json!({"uid": meta.uid}));
    }
    let class = view.group.spec.volume_group_snapshot_class_name.as_ref();
    let unset = content.spec.volume_group_snapshot_class_name.is_none();
    if let Some(class) = class.filter(|_| unset) {
        spec.insert("volumeGroupSnapshotClassName".to_owned(), class.as_str().into());
    }
    match spec.is_empty() {
        true => copy_status(view, content),
        false => Step::Bind(json!({"spec": spec})),
    }
}

fn dynamic(view: &View<'_>) -> Step {
    let group = view.group;
    let Some(content) = view.content else {
        let cut = group.status.as_ref().is_some_and(|status| status.creation_time.is_some());
        return match (cut, view.content_is_live) {
            (true, true) => {
                Step::Fail(Failure::unready("GroupSnapshotContentMissing", content_missing()))
            }
            (true, false) => Step::LookForContent,
            (false, _) => Step::CreateContent,
        };
    };
    let name = &content.metadata.name;
    if content.spec.source.group_snapshot_handles.is_some() {
        let text = format!(
            "Group snapshot handle should not be set in content {name} for dynamic provisioning"
        );
        return Step::Fail(Failure::unready("GroupSnapshotHandleSet", text));
    }
    if !points_back(content, group) {
        let text =
            format!("VolumeGroupSnapshotContent {name} is bound to a different group snapshot");
        return Step::Fail(Failure::unready("GroupSnapshotContentMisbound", text));
    }
    match view.members_missing {
        true => Step::CreateMembers,
        false => copy_status(view, content),
    }
}

fn copy_status(view: &View<'_>, content: &VolumeGroupSnapshotContent) -> Step {
    match copy(view.group, content) {
        Some(copied) => Step::CopyStatus(copied),
        None => Step::Nothing,
    }
}

/// What the status takes from the content; none when it says it all.
#[must_use]
pub fn copy(
    group: &VolumeGroupSnapshot,
    content: &VolumeGroupSnapshotContent,
) -> Option<status::Copied> {
    let has = group.status.clone().unwrap_or_default();
    let said = content.status.clone().unwrap_or_default();
    let mut patch = Map::new();
    let mut set = |field: &str, value: Value| {
        patch.insert(field.to_owned(), value);
    };
    if has.bound_volume_group_snapshot_content_name.is_none() {
        set("boundVolumeGroupSnapshotContentName", content.metadata.name.as_str().into());
    }
    let cut = said.creation_time.filter(|_| has.creation_time.is_none());
    if let Some(cut) = cut {
        set("creationTime", status::seconds(cut).into());
    }
    let ready = said.ready_to_use.unwrap_or(false);
    if has.ready_to_use != Some(ready) {
        set("readyToUse", ready.into());
    }
    let error = said.error.filter(|_| !ready);
    if let Some(error) = status::error_change(has.error.as_ref(), error) {
        set("error", error);
    }
    let became_ready = ready && has.ready_to_use != Some(true);
    let created = cut.is_some();
    (!patch.is_empty()).then(|| status::Copied {
        patch: json!({"status": patch}),
        created,
        ready: became_ready,
    })
}

/// Says what the controller does about one group content: a bound one gets a finalizer.
#[must_use]
pub fn decide_content(content: &VolumeGroupSnapshotContent) -> ContentStep {
    let source = &content.spec.source;
    let meta = &content.metadata;
    if source.volume_handles.is_some() == source.group_snapshot_handles.is_some() {
        return ContentStep::Invalid {
            reason: "GroupContentValidationError",
            message: "Exactly one of GroupSnapshotHandles and VolumeHandles should be specified",
        };
    }
    let bound = !content.spec.volume_group_snapshot_ref.uid.is_empty();
    match bound && !meta.deleting() && !meta.has_finalizer(finalizers::GROUP_CONTENT_BOUND) {
        true => ContentStep::AddFinalizer,
        false => ContentStep::Nothing,
    }
}

/// How a group snapshot goes: its content first, where the class says `Delete`, then its members.
fn deletion(view: &View<'_>) -> Step {
    let meta = &view.group.metadata;
    if !meta.has_finalizer(finalizers::GROUP_SNAPSHOT_BOUND) {
        return Step::Nothing;
    }
    let content = view.content.filter(|content| points_back(content, view.group));
    if content.is_none() && !view.content_is_live {
        return Step::LookForContent;
    }
    if view.restoring {
        let message = "Snapshot is being used to restore a PVC".to_owned();
        return Step::Blocked { reason: "SnapshotDeletePending", message };
    }
    let policy = content.map(|content| &content.spec.deletion_policy);
    let cascades = policy == Some(&DeletionPolicy::Delete);
    if let Some(content) = content {
        let meta = &content.metadata;
        if meta.annotation(annotations::GROUP_SNAPSHOT_BEING_DELETED).is_none() {
            return Step::MarkContent;
        }
        if cascades && !meta.deleting() {
            return Step::DeleteContent;
        }
    }
    match (view.members_left, cascades) {
        (true, _) => Step::DeleteMembers,
        (false, true) => Step::Nothing,
        (false, false) => Step::RemoveFinalizer,
    }
}
