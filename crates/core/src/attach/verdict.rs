//! What a `VolumeAttachment` says about an attach or a detach that waits for it.

/// The parts of a `VolumeAttachment` that a waiting operation looks at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown<'a> {
    /// Someone has deleted it; it is gone once its finalizers are.
    pub deleting: bool,
    /// `status.attached`.
    pub attached: bool,
    /// `status.attachError.message`.
    pub attach_error: Option<&'a str>,
    /// `status.detachError.message`.
    pub detach_error: Option<&'a str>,
}

/// What the wait has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing to tell yet.
    Waiting,
    /// Done as asked.
    Done,
    /// It failed, for this reason.
    Failed(String),
}

/// Reads the result of an attach. The order counts: an attachment that is being deleted is not
/// one to rely on, and an error beside `attached` is an old one.
#[must_use]
pub fn attach_verdict(seen: Option<Shown<'_>>) -> Verdict {
    match seen {
        None => Verdict::Waiting,
        Some(Shown { deleting: true, .. }) => {
            Verdict::Failed("volume attachment is being deleted".to_owned())
        }
        Some(Shown { attached: true, .. }) => Verdict::Done,
        Some(Shown { attach_error: Some(error), .. }) => Verdict::Failed(error.to_owned()),
        Some(_) => Verdict::Waiting,
    }
}

/// Reads the result of a detach: done when the object is gone.
#[must_use]
pub fn detach_verdict(seen: Option<Shown<'_>>) -> Verdict {
    match seen {
        None => Verdict::Done,
        Some(Shown { detach_error: Some(error), .. }) => Verdict::Failed(error.to_owned()),
        Some(_) => Verdict::Waiting,
    }
}

/// Whether an error of `ControllerPublishVolume`, by its gRPC code, says for certain that the volume
/// is not on the node. All others leave it open: the call may still be carried out.
#[must_use]
pub fn is_final_attach_error(code: i32) -> bool {
    // Canceled, Unknown, DeadlineExceeded, Aborted (another call is running), Internal, Unavailable
    // and DataLoss. ResourceExhausted is the CSI specification's word for a full node.
    !matches!(code, 1 | 2 | 4 | 10 | 13 | 14 | 15)
}

/// Why a wait ended without a verdict.
#[must_use]
pub fn timeout_message(driver: Option<&str>, verb: &str, handle: &str) -> String {
    let driver = driver.unwrap_or("unknown");
    format!(
        "timed out waiting for external-attacher of {driver} CSI driver to {verb} volume {handle}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Shown<'_> =
        Shown { deleting: false, attached: false, attach_error: None, detach_error: None };

    #[test]
    fn attach_ends_when_the_status_says_so() {
        let failed = |text: &str| Verdict::Failed(text.to_owned());
        let cases = [
            ("not seen yet", None, Verdict::Waiting),
            ("new", Some(NEW), Verdict::Waiting),
            ("attached", Some(Shown { attached: true, ..NEW }), Verdict::Done),
            (
                "an old error does not count",
                Some(Shown { attached: true, attach_error: Some("old"), ..NEW }),
                Verdict::Done,
            ),
            (
                "case: attach-detach/C3",
                Some(Shown { attach_error: Some("attacher error"), ..NEW }),
                failed("attacher error"),
            ),
            (
                "case: attach-detach/C13",
                Some(Shown { deleting: true, attached: true, ..NEW }),
                failed("volume attachment is being deleted"),
            ),
        ];
        for (name, seen, want) in cases {
            assert_eq!(attach_verdict(seen), want, "{name}");
        }
    }

    #[test]
    fn only_errors_that_leave_nothing_open_are_final() {
        let open: Vec<i32> = (1..=16).filter(|code| !is_final_attach_error(*code)).collect();
        assert_eq!(open, [1, 2, 4, 10, 13, 14, 15]);
    }

    #[test]
    fn detach_ends_when_the_attachment_is_gone() {
        let deleting = Shown { deleting: true, attached: true, ..NEW };
        let cases = [
            ("gone", None, Verdict::Done),
            ("still there", Some(deleting), Verdict::Waiting),
            (
                "case: attach-detach/C12",
                Some(Shown { detach_error: Some("busy"), ..deleting }),
                Verdict::Failed("busy".to_owned()),
            ),
        ];
        for (name, seen, want) in cases {
            assert_eq!(detach_verdict(seen), want, "{name}");
        }
    }

    #[test]
    fn timeouts_name_the_driver_when_it_is_known() {
        assert_eq!(
            timeout_message(Some("d"), "attach", "v"),
            "timed out waiting for external-attacher of d CSI driver to attach volume v"
        );
        assert_eq!(
            timeout_message(None, "detach", "v"),
            "timed out waiting for external-attacher of unknown CSI driver to detach volume v"
        );
    }
}
