//! Whether a node still lives, by the lease that it renews.
//!
//! A node that does not renew its lease for as long as the lease holds is not asked what it does: it
//! may have lost its machine, or hang with its pods running on. It is said to be unknown and gets no
//! new pods. Nothing of it is ended, and its volumes stay where they are.

use std::time::Duration;

/// What the node object says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// The node has never said.
    Never,
    /// The node said yes or no.
    Said,
    /// Somebody gave the node up.
    Unknown,
}

/// All that the decision may depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    pub ready: Ready,
    /// How long it has been watched without a renewal.
    pub silent: Duration,
    /// How long its lease holds.
    pub lease: Duration,
    /// It has both taints that keep pods away from a node nobody hears from.
    pub tainted: bool,
    /// It has one of them at least.
    pub partly: bool,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Set its conditions to unknown; true if it has never said anything.
    GiveUp { never: bool },
    /// Keep pods away.
    Taint,
    /// Let pods come again.
    Untaint,
}

/// Returns the steps to take, in order.
#[must_use]
pub fn decide(view: &View) -> Vec<Step> {
    let silent = view.silent >= view.lease;
    match (view.ready, silent) {
        (Ready::Never | Ready::Said, true) => {
            vec![Step::GiveUp { never: view.ready == Ready::Never }, Step::Taint]
        }
        // Only the node itself takes that back.
        (Ready::Unknown, _) if view.tainted => vec![],
        (Ready::Unknown, _) => vec![Step::Taint],
        (Ready::Said, false) if view.partly => vec![Step::Untaint],
        (Ready::Said | Ready::Never, false) => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::{Ready::*, Step::*, *};

    const FRESH: View = View {
        ready: Said,
        silent: Duration::ZERO,
        lease: Duration::from_secs(40),
        tainted: false,
        partly: false,
    };
    const SILENT: View = View { silent: Duration::from_secs(40), ..FRESH };

    #[test]
    fn next_steps() {
        let cases: [(&str, View, &[Step]); 9] = [
            ("renewed", FRESH, &[]),
            ("almost too late", View { silent: Duration::from_secs(39), ..FRESH }, &[]),
            ("not renewed", SILENT, &[GiveUp { never: false }, Taint]),
            ("made by hand", View { ready: Never, ..SILENT }, &[GiveUp { never: true }, Taint]),
            ("just made", View { ready: Never, ..FRESH }, &[]),
            ("given up", View { ready: Unknown, tainted: true, partly: true, ..SILENT }, &[]),
            ("given up by halves", View { ready: Unknown, partly: true, ..SILENT }, &[Taint]),
            (
                "renews, says nothing yet",
                View { ready: Unknown, tainted: true, partly: true, ..FRESH },
                &[],
            ),
            ("back", View { tainted: true, partly: true, ..FRESH }, &[Untaint]),
        ];
        for (name, view, want) in cases {
            assert_eq!(decide(&view), want, "{name}: {view:?}");
        }
    }
}
