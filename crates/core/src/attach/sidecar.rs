//! Rules of the attacher sidecar: from a `VolumeAttachment` to calls of the driver.
//!
//! Two orderings keep data safe. The finalizer is saved before the driver hears of the volume,
//! so a crash in between, or an answer that was lost, still leaves a detach owed. It is dropped
//! only after the driver has confirmed the detach, so no volume is freed while a node may write
//! to it.

use serde_json::{Value, json};

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

/// All that the finalizer on a volume depends on.
#[derive(Debug, Clone, Copy, Default)]
pub struct VolumeView {
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Our finalizer is on it.
    pub finalizer: bool,
    /// Some attachment, of whatever driver, names it.
    pub referenced: bool,
}

/// Whether our finalizer may leave the volume. An attachment that still names it needs it for
/// the detach, and its deletion asks again.
#[must_use]
pub fn drop_volume_finalizer(view: &VolumeView) -> bool {
    view.deleting && view.finalizer && !view.referenced
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
    fn handlers() {
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
    fn steps() {
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
    fn volume_finalizers() {
        const GOING: VolumeView = VolumeView { deleting: true, finalizer: true, referenced: false };
        let cases = [
            ("unreferenced", GOING, true),
            ("case: attacher/37", VolumeView { referenced: true, ..GOING }, false),
            ("live", VolumeView { deleting: false, ..GOING }, false),
            ("not ours", VolumeView { finalizer: false, ..GOING }, false),
        ];
        for (name, view, want) in cases {
            assert_eq!(drop_volume_finalizer(&view), want, "{name}");
        }
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
