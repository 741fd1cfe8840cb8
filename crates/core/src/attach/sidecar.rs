//! Rules of the attacher sidecar: from a `VolumeAttachment` to calls of the driver.
//!
//! Two orderings keep data safe. The finalizer is saved before the driver hears of the volume,
//! so a crash in between, or an answer that was lost, still leaves a detach owed. It is dropped
//! only after the driver has confirmed the detach, so no volume is freed while a node may write
//! to it.

use serde_json::{Value, json};

use crate::{
    model::{
        keys::annotations,
        kinds::{AttachmentSource, CsiSource, Volume, VolumeAttachment, VolumeSpec},
    },
    provision::migration,
};

/// The finalizer of one driver's attacher, on attachments and volumes alike.
#[must_use]
pub fn finalizer_name(driver: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' };
    let mut name: String = driver.chars().map(allowed).collect();
    // A finalizer has to end in a letter or digit.
    if name.ends_with('-') {
        name.push('X');
    }
    format!("external-attacher/{name}")
}

/// How attachments of a driver are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handler {
    /// The driver does not attach: every attachment is declared done.
    Trivial,
    /// The driver attaches and detaches.
    Csi,
}

impl Handler {
    /// `publishes` is asked for only when there is a controller service at all.
    #[must_use]
    pub fn choose(controller_service: bool, publishes: bool) -> Self {
        if controller_service && publishes { Self::Csi } else { Self::Trivial }
    }
}

/// All that the next step of one attachment depends on.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttachmentView {
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Our finalizer is on it: a detach is owed, whether or not an attach was ever confirmed.
    pub finalizer: bool,
    /// `status.attached`.
    pub attached: bool,
    /// The driver's own list disagrees with the status.
    pub force: bool,
}

/// What to do about an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// All is as it should be.
    Nothing,
    /// Save the finalizer, tell the driver, then say so in the status.
    Attach,
    /// Tell the driver, drop the finalizer, then say so in the status.
    Detach,
}

/// Decides the next step for one attachment.
#[must_use]
pub fn next_step(view: &AttachmentView) -> Step {
    match (view.deleting, view.attached, view.finalizer, view.force) {
        (false, true, _, false) => Step::Nothing,
        (false, false, _, _) | (false, true, _, true) => Step::Attach,
        // The status is not looked at: an attach without a verdict may still have happened.
        (true, _, true, _) | (true, _, false, true) => Step::Detach,
        (true, _, false, false) => Step::Nothing,
    }
}

/// What an attachment is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source<'a> {
    /// A volume with an object of its own.
    Volume(&'a str),
    /// A volume described in the attachment itself.
    Inline(&'a CsiSource, &'a VolumeSpec),
}

/// An attachment that does not say what to attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Two answers.
    #[error("both InlineCSIVolumeSource and PersistentVolumeName specified in VA source")]
    Both,
    /// No answer.
    #[error("neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source")]
    Neither,
    /// Described, but not as a CSI volume.
    #[error("inline volume spec contains nil CSI source")]
    NotCsi,
}

/// Reads what an attachment is about.
pub fn source(source: &AttachmentSource) -> Result<Source<'_>, SourceError> {
    match (source.persistent_volume_name.as_deref(), &source.inline_volume_spec) {
        (Some(_), Some(_)) => Err(SourceError::Both),
        (None, None) => Err(SourceError::Neither),
        (Some(name), None) => Ok(Source::Volume(name)),
        (None, Some(spec)) => {
            let csi = spec.csi.as_ref().ok_or(SourceError::NotCsi)?;
            Ok(Source::Inline(csi, spec))
        }
    }
}

/// Whether a change of an attachment calls for a look at it. Our own error notes must not: they
/// would turn each failure into an immediate retry.
#[must_use]
pub fn worth_a_look(old: &VolumeAttachment, new: &VolumeAttachment) -> bool {
    let same_version = old.metadata.resource_version == new.metadata.resource_version;
    let has_error = |va: &VolumeAttachment| {
        va.status.attach_error.is_some() || va.status.detach_error.is_some()
    };
    same_version || (!has_error(old) && !has_error(new)) || without_notes(old) != without_notes(new)
}

/// Whether a change is nothing but our own mark: the finalizer and the node id that are saved
/// before the driver is called. Seen as news it would cause a second call right after the first.
#[must_use]
pub fn only_our_mark(old: &VolumeAttachment, new: &VolumeAttachment, finalizer: &str) -> bool {
    let unmarked = |attachment: &VolumeAttachment| {
        let mut plain = attachment.clone();
        plain.metadata.resource_version.clear();
        plain.metadata.finalizers.retain(|one| one != finalizer);
        plain.metadata.annotations.remove(annotations::ATTACH_NODE_ID);
        plain
    };
    old.metadata.resource_version != new.metadata.resource_version
        && new.metadata.has_finalizer(finalizer)
        && unmarked(old) == unmarked(new)
}

fn without_notes(attachment: &VolumeAttachment) -> VolumeAttachment {
    let mut plain = attachment.clone();
    plain.metadata.resource_version.clear();
    plain.status.attach_error = None;
    plain.status.detach_error = None;
    plain
}

/// All that the finalizer on a volume depends on.
#[derive(Debug, Clone, Copy, Default)]
pub struct VolumeView {
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// It went back to its in-tree plugin: see [`is_rolled_back`].
    pub rolled_back: bool,
    /// Our finalizer is on it.
    pub finalizer: bool,
    /// Some attachment, of whatever driver, names it.
    pub referenced: bool,
}

/// Whether our finalizer may leave the volume. An attachment that still names it needs it for
/// the detach, and its deletion asks again.
#[must_use]
pub fn drop_volume_finalizer(view: &VolumeView) -> bool {
    (view.deleting || view.rolled_back) && view.finalizer && !view.referenced
}

/// Whether an in-tree volume is not this driver's (any more): nobody says that it was moved there.
#[must_use]
pub fn is_rolled_back(volume: &Volume, driver: &str) -> bool {
    migration::is_migratable(volume)
        && volume.metadata.annotation(annotations::MIGRATED_TO) != Some(driver)
}

/// A JSON patch that adds a finalizer without touching those of others.
#[must_use]
pub fn add_finalizer_patch(present: &[String], name: &str) -> Value {
    if present.is_empty() {
        // The test makes sure that none was added since we looked.
        return json!([
            {"op": "test", "path": "/metadata/finalizers", "value": null},
            {"op": "add", "path": "/metadata/finalizers", "value": [name]},
        ]);
    }
    json!([{"op": "add", "path": "/metadata/finalizers/-", "value": name}])
}

/// A JSON patch that removes a finalizer, and fails if it is no longer where it was seen.
/// `None` when it is not there.
#[must_use]
pub fn remove_finalizer_patch(present: &[String], name: &str) -> Option<Value> {
    let at = present.iter().position(|finalizer| finalizer == name)?;
    let path = format!("/metadata/finalizers/{at}");
    Some(json!([
        {"op": "test", "path": path, "value": name},
        {"op": "remove", "path": path},
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finalizer_names() {
        let cases = [
            ("com.example.csi-driver", "external-attacher/com-example-csi-driver"),
            // case: attacher/47
            ("dotted.", "external-attacher/dotted-X"),
        ];
        for (driver, want) in cases {
            assert_eq!(finalizer_name(driver), want);
        }
    }

    #[test]
    fn a_driver_without_publish_gets_the_trivial_handler() {
        let cases = [
            (false, false, Handler::Trivial),
            (false, true, Handler::Trivial),
            (true, false, Handler::Trivial),
            (true, true, Handler::Csi),
        ];
        for (service, publishes, want) in cases {
            assert_eq!(Handler::choose(service, publishes), want, "{service} {publishes}");
        }
    }

    #[test]
    fn next_step_follows_status_and_deletion() {
        const NEW: AttachmentView =
            AttachmentView { deleting: false, finalizer: false, attached: false, force: false };
        const LOST: AttachmentView = AttachmentView { finalizer: true, ..NEW };
        const THERE: AttachmentView = AttachmentView { attached: true, ..LOST };
        let deleted = |view| AttachmentView { deleting: true, ..view };
        let forced = |view| AttachmentView { force: true, ..view };
        let cases = [
            ("new", NEW, Step::Attach),
            ("case: attacher/3", THERE, Step::Nothing),
            ("no verdict: attach again", LOST, Step::Attach),
            ("listed elsewhere", forced(THERE), Step::Attach),
            ("attached, deleted", deleted(THERE), Step::Detach),
            ("no verdict, deleted: a detach is owed", deleted(LOST), Step::Detach),
            ("case: attacher/30", deleted(NEW), Step::Nothing),
            (
                "detached, status stale",
                deleted(AttachmentView { attached: true, ..NEW }),
                Step::Nothing,
            ),
            ("published behind our back", forced(deleted(NEW)), Step::Detach),
        ];
        for (name, view, want) in cases {
            assert_eq!(next_step(&view), want, "{name}: {view:?}");
        }
    }

    #[test]
    fn an_attachment_names_exactly_one_volume_source() {
        let read = |value: Value| -> AttachmentSource {
            serde_json::from_value(value).expect("valid source")
        };
        let named = read(json!({"persistentVolumeName": "pv"}));
        assert_eq!(source(&named), Ok(Source::Volume("pv")));
        let inline = read(json!({"inlineVolumeSpec": {"csi": {"volumeHandle": "h"}}}));
        let Ok(Source::Inline(csi, _)) = source(&inline) else { panic!("an inline source") };
        assert_eq!(csi.volume_handle, "h");
        let cases = [
            (
                json!({"persistentVolumeName": "pv", "inlineVolumeSpec": {"csi": {}}}),
                SourceError::Both,
            ),
            (json!({}), SourceError::Neither),
            (json!({"inlineVolumeSpec": {}}), SourceError::NotCsi),
        ];
        for (value, want) in cases {
            assert_eq!(source(&read(value)), Err(want));
        }
    }

    #[test]
    fn changes_worth_a_look() {
        let base = VolumeAttachment::default();
        let version = |mut va: VolumeAttachment, version: &str| {
            va.metadata.resource_version = version.to_owned();
            va
        };
        let noted = |mut va: VolumeAttachment| {
            va.status.attach_error = Some(Default::default());
            va
        };
        let deleted = |mut va: VolumeAttachment| {
            va.metadata.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH);
            va
        };
        let (v1, v2) = (version(base.clone(), "1"), version(base, "2"));
        // case: attacher/35
        assert!(worth_a_look(&noted(v1.clone()), &noted(v1.clone())), "a resync");
        assert!(worth_a_look(&v1, &v2), "no error anywhere");
        // case: attacher/34
        assert!(!worth_a_look(&v1, &noted(v2.clone())), "our own note");
        assert!(!worth_a_look(&noted(v1.clone()), &v2), "our own note taken back");
        assert!(worth_a_look(&noted(v1), &deleted(noted(v2))), "a deletion");
    }

    #[test]
    fn our_own_mark_is_no_news() {
        let mut old = VolumeAttachment::default();
        old.metadata.resource_version = "1".to_owned();
        let mut new = old.clone();
        new.metadata.resource_version = "2".to_owned();
        new.metadata.finalizers = vec!["ours".to_owned()];
        new.metadata.annotations.insert(annotations::ATTACH_NODE_ID.to_owned(), "n".to_owned());
        assert!(only_our_mark(&old, &new, "ours"));
        assert!(!only_our_mark(&new, &new, "ours"), "a resync is not our mark");
        assert!(!only_our_mark(&new, &old, "ours"), "someone took it away");
        new.status.attached = true;
        assert!(!only_our_mark(&old, &new, "ours"));
    }

    #[test]
    fn volume_finalizers() {
        const GOING: VolumeView =
            VolumeView { deleting: true, rolled_back: false, finalizer: true, referenced: false };
        const BACK: VolumeView = VolumeView { deleting: false, rolled_back: true, ..GOING };
        let cases = [
            ("unreferenced", GOING, true),
            ("case: attacher/37", VolumeView { referenced: true, ..GOING }, false),
            ("live", VolumeView { deleting: false, ..GOING }, false),
            ("back with its plugin", BACK, true),
            ("back, and still attached", VolumeView { referenced: true, ..BACK }, false),
            ("not ours", VolumeView { finalizer: false, ..GOING }, false),
        ];
        for (name, view, want) in cases {
            assert_eq!(drop_volume_finalizer(&view), want, "{name}");
        }
    }

    #[test]
    fn volumes_that_went_back() {
        let volume = |spec: Value, moved: Option<&str>| -> Volume {
            serde_json::from_value(json!({"spec": spec, "metadata": {"name": "v",
                "annotations": {"pv.kubernetes.io/migrated-to": moved.unwrap_or_default()}}}))
            .expect("a volume")
        };
        let old = || json!({"gcePersistentDisk": {"pdName": "d"}});
        let gce = "pd.csi.storage.gke.io";
        assert!(!is_rolled_back(&volume(old(), Some(gce)), gce));
        assert!(is_rolled_back(&volume(old(), Some("other")), gce));
        let mut bare = volume(old(), None);
        bare.metadata.annotations.clear();
        // case: attacher/40
        assert!(is_rolled_back(&bare, gce));
        let csi = json!({"csi": {"driver": "d", "volumeHandle": "h"}});
        assert!(!is_rolled_back(&volume(csi, None), "d"));
    }

    #[test]
    fn finalizer_patches() {
        let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let first = add_finalizer_patch(&[], "x");
        assert_eq!(first[0], json!({"op": "test", "path": "/metadata/finalizers", "value": null}));
        assert_eq!(first[1]["value"], json!(["x"]));
        let further = add_finalizer_patch(&list(&["a"]), "x");
        assert_eq!(further, json!([{"op": "add", "path": "/metadata/finalizers/-", "value": "x"}]));
        let removal = remove_finalizer_patch(&list(&["a", "x"]), "x").expect("present");
        assert_eq!(removal[0]["path"], "/metadata/finalizers/1");
        assert_eq!(removal[1], json!({"op": "remove", "path": "/metadata/finalizers/1"}));
        assert_eq!(remove_finalizer_patch(&list(&["a"]), "x"), None);
    }
}
