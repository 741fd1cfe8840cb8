//! What the controller does next about one snapshot, and about one content.

use serde_json::{Value, json};

use super::{Failure, delete, group, is_group_member, points_back, refers_to, status, writes};
use crate::model::{
    DeletionPolicy,
    keys::finalizers,
    kinds::{VolumeGroupSnapshot, VolumeSnapshot, VolumeSnapshotContent},
};

/// Whether the snapshot's class is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The snapshot names none.
    Unnamed,
    Known,
    Missing,
}

/// The group snapshot of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group<'a> {
    None,
    /// It is there; its name.
    Known(&'a str),
    /// The content belongs to a group whose object is not found.
    Missing,
    /// It is being deleted, and its members with it.
    Going,
    /// It cannot be said yet.
    Unknown,
}

/// What the controller knows of one snapshot.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub snapshot: &'a VolumeSnapshot,
    /// The content of the name that [`super::content_name`] gives.
    pub content: Option<&'a VolumeSnapshotContent>,
    /// No content means that there is none: the API was asked, not only the cache.
    pub content_is_live: bool,
    pub class: Class,
    /// The group snapshot that the content belongs to, or that the status names.
    pub group: Group<'a>,
    /// The group snapshot that the status names, unless it is going.
    pub parent: Option<&'a VolumeGroupSnapshot>,
    /// A claim that waits for its volume is restored from the snapshot.
    pub restoring: bool,
}

/// What comes next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    Nothing,
    /// The snapshot names no class: find the default one.
    FindClass,
    AddFinalizers(Vec<&'static str>),
    /// Ask a driver for the snapshot, by making a content.
    CreateContent,
    /// Patch the content, so that it is this snapshot's.
    Bind(Value),
    /// Patch the snapshot, so that its group snapshot owns it.
    AddOwner(Value),
    /// Patch the snapshot's status.
    CopyStatus(status::Copied),
    /// The cache shows no content: ask the API.
    LookForContent,
    /// Say on the content that its snapshot goes.
    MarkContent,
    DeleteContent,
    RemoveFinalizers(Vec<&'static str>),
    /// Nothing can be done yet: an event, and another try.
    Blocked {
        reason: &'static str,
        message: String,
    },
    /// Another try, without a word to the user.
    Wait(String),
    Fail(Failure),
}

/// The text about a lost content; a function, because constants here are read as reasons of events.
fn content_missing() -> &'static str {
    "VolumeSnapshotContent is missing"
}

/// Says what comes next for one snapshot. After each step it is asked again.
#[must_use]
pub fn decide(view: &View<'_>) -> Step {
    let snapshot = view.snapshot;
    if snapshot.metadata.deleting() {
        return delete::decide(view);
    }
    let source = &snapshot.spec.source;
    let is_static = source.volume_snapshot_content_name.is_some();
    let is_member = is_group_member(&snapshot.metadata);
    match view.class {
        Class::Missing => {
            let name = snapshot.spec.volume_snapshot_class_name.as_deref().unwrap_or_default();
            return Step::Fail(Failure {
                reason: "GetSnapshotClassFailed",
                message: format!("Failed to get snapshot class with error {}", not_found(name)),
                unready: false,
            });
        }
        Class::Unnamed if !is_static && !is_member => return Step::FindClass,
        Class::Unnamed | Class::Known => {}
    }
    if is_static == source.persistent_volume_claim_name.is_some() {
        let text = "Exactly one of PersistentVolumeClaimName and VolumeSnapshotContentName should be specified";
        return Step::Fail(Failure::unready("SnapshotValidationError", text));
    }
    let missing = missing_finalizers(view, is_member);
    if !missing.is_empty() {
        return Step::AddFinalizers(missing);
    }
    if snapshot.ready() && snapshot.bound_content().is_some() {
        return ready(view);
    }
    match (is_static, is_member) {
        (true, _) => pre_provisioned(view),
        (false, true) => member(view),
        (false, false) => dynamic(view),
    }
}

/// The text for a class that is not there.
#[must_use]
pub fn not_found(class: &str) -> String {
    let cause = format!("volumesnapshotclass.snapshot.storage.k8s.io {class:?} not found");
    format!("failed to retrieve snapshot class {class} from the informer: {cause:?}")
}

/// A snapshot of a group has no bound finalizer: the group keeps it.
fn missing_finalizers(view: &View<'_>, is_member: bool) -> Vec<&'static str> {
    let snapshot = view.snapshot;
    let bound = snapshot.bound_content().is_some() && !is_member;
    let content = view.content.filter(|content| points_back(content, snapshot));
    let cascades = content.is_some_and(|one| one.spec.deletion_policy == DeletionPolicy::Delete);
    let wanted = [
        Some(finalizers::SNAPSHOT_AS_SOURCE),
        (bound && cascades).then_some(finalizers::SNAPSHOT_BOUND),
    ];
    wanted.into_iter().flatten().filter(|one| !snapshot.metadata.has_finalizer(one)).collect()
}

fn ready(view: &View<'_>) -> Step {
    match view.content {
        None if !view.content_is_live => Step::LookForContent,
        None => Step::Fail(Failure::unready("SnapshotContentMissing", content_missing())),
        Some(content) if !points_back(content, view.snapshot) => Step::Fail(Failure::unready(
            "SnapshotMisbound",
            "VolumeSnapshotContent is not bound to the VolumeSnapshot correctly",
        )),
        Some(_) => match view.parent.filter(|_| !is_group_member(&view.snapshot.metadata)) {
            // A member that was there already: whoever deletes the group snapshot deletes it, too.
            Some(parent) => {
                let owner = group::owner(&parent.metadata);
                Step::AddOwner(writes::with_owner(&view.snapshot.metadata, &owner))
            }
            None => Step::Nothing,
        },
    }
}

fn pre_provisioned(view: &View<'_>) -> Step {
    let Some(content) = view.content else {
        return Step::Fail(Failure::unready("SnapshotContentMissing", content_missing()));
    };
    if content.spec.source.snapshot_handle.is_none() {
        let text = "VolumeSnapshotContent is dynamically provisioned while expecting a pre-provisioned one";
        return Step::Fail(Failure::unready("SnapshotContentMismatch", text));
    }
    let reference = &content.spec.volume_snapshot_ref;
    let meta = &view.snapshot.metadata;
    let free = reference.uid.is_empty() || reference.uid == meta.uid;
    if !refers_to(reference, meta) || !free {
        let name = &content.metadata.name;
        let text = format!("VolumeSnapshotContent [{name}] is bound to a different snapshot");
        return Step::Fail(Failure::unready("SnapshotContentMisbound", text));
    }
    match binding(view.snapshot, content) {
        Some(patch) => Step::Bind(patch),
        None => copy_status(view, content),
    }
}

/// Gives a content that is there already the snapshot's UID, and its class.
fn binding(snapshot: &VolumeSnapshot, content: &VolumeSnapshotContent) -> Option<Value> {
    let mut spec = json!({});
    if content.spec.volume_snapshot_ref.uid.is_empty() {
        spec["volumeSnapshotRef"] = json!({"uid": snapshot.metadata.uid});
    }
    let class = snapshot.spec.volume_snapshot_class_name.as_ref();
    if let Some(class) = class.filter(|_| content.spec.volume_snapshot_class_name.is_none()) {
        spec["volumeSnapshotClassName"] = class.as_str().into();
    }
    (spec != json!({})).then(|| json!({"spec": spec}))
}

fn member(view: &View<'_>) -> Step {
    match view.content {
        // The group snapshot binds it, which starts the next look.
        _ if view.snapshot.bound_content().is_none() => Step::Nothing,
        None => Step::Wait("the content of this member of a group is not there yet".to_owned()),
        Some(content) => copy_status(view, content),
    }
}

fn dynamic(view: &View<'_>) -> Step {
    let snapshot = view.snapshot;
    let Some(content) = view.content else {
        let cut = snapshot.status.as_ref().is_some_and(|status| status.creation_time.is_some());
        return match (cut, view.content_is_live) {
            // Another cut would have other data under the same name.
            (true, true) => {
                Step::Fail(Failure::unready("SnapshotContentMissing", content_missing()))
            }
            (true, false) => Step::LookForContent,
            (false, _) => Step::CreateContent,
        };
    };
    let name = &content.metadata.name;
    if content.spec.source.volume_handle.is_none() {
        let text = format!(
            "VolumeSnapshotContent {name} is pre-provisioned while expecting a dynamically provisioned one"
        );
        return Step::Fail(Failure::unready("SnapshotContentMismatch", text));
    }
    if content.spec.source.snapshot_handle.is_some() {
        let text =
            format!("Snapshot handle should not be set in content {name} for dynamic provisioning");
        return Step::Fail(Failure::unready("SnapshotHandleSet", text));
    }
    if !points_back(content, snapshot) {
        let text = format!("VolumeSnapshotContent {name} is bound to a different snapshot");
        return Step::Fail(Failure::unready("SnapshotContentMisbound", text));
    }
    copy_status(view, content)
}

fn copy_status(view: &View<'_>, content: &VolumeSnapshotContent) -> Step {
    let in_group =
        content.status.as_ref().is_some_and(|status| status.volume_group_snapshot_handle.is_some());
    let group = match (in_group, view.group) {
        (true, Group::Known(name)) => Some(name),
        (true, Group::None | Group::Missing | Group::Going | Group::Unknown) => {
            return Step::Wait("the group snapshot of the content is not found".to_owned());
        }
        (false, _) => None,
    };
    match status::copy(view.snapshot, content, group) {
        Some(copied) => Step::CopyStatus(copied),
        None => Step::Nothing,
    }
}

/// What the controller does about one content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContentStep {
    Nothing,
    AddFinalizer,
    Invalid { reason: &'static str, message: &'static str },
}

/// Says what the controller does about one content: a bound one gets a finalizer. A content is never
/// deleted for the lack of its snapshot: it may have been copied from another cluster.
#[must_use]
pub fn decide_content(content: &VolumeSnapshotContent) -> ContentStep {
    let source = &content.spec.source;
    let meta = &content.metadata;
    if source.volume_handle.is_some() == source.snapshot_handle.is_some() {
        return ContentStep::Invalid {
            reason: "ContentValidationError",
            message: "Exactly one of VolumeHandle and SnapshotHandle should be specified",
        };
    }
    let bound = !content.spec.volume_snapshot_ref.uid.is_empty();
    match bound && !meta.deleting() && !meta.has_finalizer(finalizers::CONTENT_BOUND) {
        true => ContentStep::AddFinalizer,
        false => ContentStep::Nothing,
    }
}
