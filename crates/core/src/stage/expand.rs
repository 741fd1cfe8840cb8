//! Growing a volume on its node.

/// What the decision may depend on.
#[derive(Debug, Clone, Copy, Default)]
pub struct View<'a> {
    /// The volume's capacity in bytes.
    pub volume_size: i64,
    /// The claim's `status.capacity` in bytes.
    pub claim_size: i64,
    /// The claim's `status.allocatedResources` in bytes.
    pub allocated: Option<i64>,
    /// The claim's `status.allocatedResourceStatuses`, empty when unset.
    pub status: &'a str,
    /// The volume is written by many nodes (ReadWriteMany).
    pub many_writers: bool,
    /// The volume says that nodes need not do anything.
    pub not_required: bool,
    /// The pod may not write to the volume.
    pub read_only: bool,
    /// The driver can do it (`EXPAND_VOLUME`).
    pub driver_can: bool,
}

/// What is written to the claim around the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// Nothing: another node did, or will.
    Nothing,
    /// The new size, once it is there.
    Size,
    /// Every step, so that a failure can be recovered from.
    Steps,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The volume counts as this large from now on.
    Done(i64),
    /// It cannot be done on a read-only mount; it is said and counts as done.
    ReadOnly(i64),
    /// The driver cannot do it.
    Unsupported,
    /// It is not this node's turn.
    Later,
    /// Ask the driver for this many bytes.
    Call {
        /// How large.
        bytes: i64,
        /// What the claim is told.
        record: Record,
    },
}

/// What to do for a volume that is larger than its claim says.
#[must_use]
pub fn decide(view: &View<'_>) -> Step {
    let (bytes, record) = if view.status.is_empty() && view.allocated.is_none() {
        (view.volume_size, Record::Size)
    } else {
        match view.status {
            "NodeResizePending" | "NodeResizeInProgress" => {
                (view.allocated.unwrap_or(view.volume_size), Record::Steps)
            }
            "" if view.claim_size >= view.volume_size => {
                if !view.many_writers || view.not_required {
                    return Step::Done(view.volume_size);
                }
                (view.volume_size, Record::Nothing)
            }
            _ => return Step::Later,
        }
    };
    if view.read_only {
        return Step::ReadOnly(bytes);
    }
    match (view.driver_can, record) {
        (true, record) => Step::Call { bytes, record },
        (false, Record::Steps) => Step::Unsupported,
        (false, Record::Size | Record::Nothing) => Step::Done(bytes),
    }
}

/// How a driver refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Not while the volume is in use (`FailedPrecondition`).
    InUse,
    /// Never to this size.
    Infeasible,
    /// Otherwise.
    Other,
}

/// Sorts a gRPC code.
#[must_use]
pub fn classify(code: i32) -> Refused {
    match code {
        9 => Refused::InUse,
        3 | 5 | 11 => Refused::Infeasible,
        _ => Refused::Other,
    }
}

/// The claim's status after a refusal. `edited` says that the claim asks for another size by now.
#[must_use]
pub fn status_after(refused: Refused, edited: bool) -> &'static str {
    match refused {
        Refused::Infeasible => "NodeResizeInfeasible",
        Refused::Other if edited => "NodeResizeInfeasible",
        Refused::Other | Refused::InUse => "NodeResizeInProgress",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: i64 = 1 << 30;

    #[test]
    fn a_volume_grows_as_its_claim_and_driver_allow() {
        let pending = View {
            volume_size: 2 * GIB,
            claim_size: GIB,
            allocated: Some(2 * GIB),
            status: "NodeResizePending",
            driver_can: true,
            ..View::default()
        };
        let done = View { status: "", claim_size: 2 * GIB, ..pending };
        let old = View { status: "", allocated: None, ..pending };
        let call = |record| Step::Call { bytes: 2 * GIB, record };
        for (case, view, expected) in [
            ("case: node/N34", pending, call(Record::Steps)),
            ("under way", View { status: "NodeResizeInProgress", ..pending }, call(Record::Steps)),
            ("case: node/N35", View { status: "NodeResizeInfeasible", ..pending }, Step::Later),
            ("controller", View { status: "ControllerResizeInProgress", ..pending }, Step::Later),
            ("not larger yet", View { status: "", ..pending }, Step::Later),
            ("done elsewhere", done, Step::Done(2 * GIB)),
            ("case: node/N38", View { many_writers: true, ..done }, call(Record::Nothing)),
            (
                "case: node/N38 annotated",
                View { many_writers: true, not_required: true, ..done },
                Step::Done(2 * GIB),
            ),
            (
                "many writers, driver cannot",
                View { many_writers: true, driver_can: false, ..done },
                Step::Done(2 * GIB),
            ),
            ("case: node/N33", View { driver_can: false, ..pending }, Step::Unsupported),
            ("read-only", View { read_only: true, ..pending }, Step::ReadOnly(2 * GIB)),
            ("without steps", old, call(Record::Size)),
            (
                "without steps, driver cannot",
                View { driver_can: false, ..old },
                Step::Done(2 * GIB),
            ),
        ] {
            assert_eq!(decide(&view), expected, "{case}");
        }
    }

    #[test]
    fn refusals_of_expansion_are_classified() {
        for (case, code, edited, refused, status) in [
            ("case: node/N31", 9, false, Refused::InUse, "NodeResizeInProgress"),
            ("case: node/N32", 11, false, Refused::Infeasible, "NodeResizeInfeasible"),
            ("invalid", 3, false, Refused::Infeasible, "NodeResizeInfeasible"),
            ("not found", 5, false, Refused::Infeasible, "NodeResizeInfeasible"),
            ("case: node/N37", 13, false, Refused::Other, "NodeResizeInProgress"),
            ("edited meanwhile", 13, true, Refused::Other, "NodeResizeInfeasible"),
            ("no verdict", 4, false, Refused::Other, "NodeResizeInProgress"),
        ] {
            assert_eq!(classify(code), refused, "{case}");
            assert_eq!(status_after(refused, edited), status, "{case}");
        }
    }
}
