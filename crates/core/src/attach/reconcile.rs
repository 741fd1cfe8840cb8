//! What to do about one volume on one node.
//!
//! Two rules keep data safe. A volume that a node says it uses is taken away only when the node
//! is unhealthy for longer than the limit, or an operator has declared it out of service. And a
//! volume for one node only goes to the next node when the first has certainly let go of it.

use std::time::Duration;

use super::{AttachState, PodId};

/// Why a volume was taken from a node that had not confirmed its unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Forced {
    /// The wait for the unmount took too long.
    Timeout,
    /// The node carries the out-of-service taint.
    OutOfService,
}

impl Forced {
    /// The label value of the forced-detach metric.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::OutOfService => "out-of-service",
        }
    }
}

/// What is known about an unwanted volume on a node.
#[derive(Debug, Clone, Copy)]
pub struct DetachView {
    /// How long it has been unwanted.
    pub elapsed: Duration,
    /// How long an unhealthy node may keep it.
    pub max_wait: Duration,
    /// Whether the limit above counts at all.
    pub force_disabled: bool,
    /// The node exists and is Ready.
    pub healthy: bool,
    /// The node carries the out-of-service taint.
    pub out_of_service: bool,
    /// The node says, or must be assumed, to use the volume.
    pub mounted: bool,
}

/// What to do about an unwanted volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detach {
    /// The node still uses it. With `Some`, look again after that time even if nothing happens.
    Wait(Option<Duration>),
    /// Take it out of the node's report, then detach it.
    Start {
        /// Ask the API once more that the node does not use it.
        verify_safe: bool,
        /// The detach counts as forced.
        forced: Option<Forced>,
    },
}

/// Decides about a volume that is on a node and is not wanted there.
#[must_use]
pub fn decide_detach(view: &DetachView) -> Detach {
    let timed_out = view.elapsed > view.max_wait && !view.force_disabled;
    let force = timed_out && !view.healthy;
    if view.mounted && !force && !view.out_of_service {
        // Only an unhealthy node can run into the limit; a healthy one reports for itself.
        let limit_counts = !view.healthy && !view.force_disabled;
        let left = view.max_wait.saturating_sub(view.elapsed) + Duration::from_millis(1);
        return Detach::Wait(limit_counts.then_some(left));
    }
    let forced = match (timed_out, view.out_of_service) {
        (true, _) => Some(Forced::Timeout),
        (false, true) => Some(Forced::OutOfService),
        (false, false) => None,
    };
    Detach::Start { verify_safe: forced.is_none(), forced }
}

/// What is known about a wanted volume on a node.
#[derive(Debug, Clone, Copy)]
pub struct AttachView {
    /// What is known of the volume on this node.
    pub state: AttachState,
    /// It may be on several nodes at once.
    pub shareable: bool,
    /// Another node certainly holds it.
    pub held_elsewhere: bool,
    /// The waiting pods were told already.
    pub busy_reported: bool,
}

/// What to do about a wanted volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// It is there. A wait for its unmount, if one was running, is over.
    Done,
    /// Another node has it.
    Busy {
        /// Tell the waiting pods.
        report: bool,
    },
    /// Attach it. An uncertain state is cleared up by attaching again.
    Start,
}

/// Decides about a volume that is wanted on a node.
#[must_use]
pub fn decide_attach(view: &AttachView) -> Attach {
    match view.state {
        AttachState::Attached => Attach::Done,
        AttachState::Detached | AttachState::Uncertain => {
            if !view.shareable && view.held_elsewhere {
                Attach::Busy { report: !view.busy_reported }
            } else {
                Attach::Start
            }
        }
    }
}

/// The text for a waiting pod whose volume is held by another node. `holders` are the pods that
/// want the volume on the nodes that hold it.
#[must_use]
pub fn busy_message(volume: &str, waiting: &PodId, holders: &[PodId]) -> String {
    let (same, other): (Vec<_>, Vec<_>) =
        holders.iter().partition(|pod| pod.namespace == waiting.namespace);
    let names = same.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>().join(", ");
    let text = match (same.is_empty(), other.len()) {
        (true, 0) => "Volume is already exclusively attached to one node, waiting on detach \
                      before it can be attached to another node"
            .to_owned(),
        (true, others) => {
            format!("Volume is already used by {others} pod(s) in different namespaces")
        }
        (false, 0) => format!("Volume is already used by pod(s) {names}"),
        (false, others) => format!(
            "Volume is already used by pod(s) {names} and {others} pod(s) in different namespaces"
        ),
    };
    format!("Waiting for detach for volume \"{volume}\" {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(360);
    const LATE: Duration = Duration::from_secs(361);

    /// Unmounted, healthy, just now unwanted.
    const FREE: DetachView = DetachView {
        elapsed: Duration::ZERO,
        max_wait: LIMIT,
        force_disabled: false,
        healthy: true,
        out_of_service: false,
        mounted: false,
    };
    const MOUNTED: DetachView = DetachView { mounted: true, ..FREE };
    const SICK: DetachView = DetachView { healthy: false, ..MOUNTED };

    const SAFE: Detach = Detach::Start { verify_safe: true, forced: None };
    const TIMEOUT: Detach = Detach::Start { verify_safe: false, forced: Some(Forced::Timeout) };
    const FENCED: Detach = Detach::Start { verify_safe: false, forced: Some(Forced::OutOfService) };

    #[test]
    fn detach() {
        let full_wait = Detach::Wait(Some(LIMIT + Duration::from_millis(1)));
        let cases = [
            ("case: attach-detach/R3", FREE, SAFE),
            // An unknown node is handed in as unhealthy.
            ("case: attach-detach/R4", DetachView { elapsed: LATE, ..SICK }, TIMEOUT),
            ("in use, unhealthy, in time", SICK, full_wait),
            ("case: attach-detach/R12", DetachView { out_of_service: true, ..MOUNTED }, FENCED),
            ("case: attach-detach/R13", MOUNTED, Detach::Wait(None)),
            (
                "healthy node, 5 limits",
                DetachView { elapsed: LIMIT * 5, ..MOUNTED },
                Detach::Wait(None),
            ),
            ("case: attach-detach/R14", DetachView { elapsed: LIMIT * 5, ..SICK }, TIMEOUT),
            (
                "force disabled, node not ready",
                DetachView { elapsed: LATE, force_disabled: true, ..SICK },
                Detach::Wait(None),
            ),
            (
                "case: attach-detach/R15",
                DetachView { elapsed: LATE, force_disabled: true, out_of_service: true, ..SICK },
                FENCED,
            ),
            ("case: attach-detach/R18", DetachView { elapsed: LATE, ..FREE }, TIMEOUT),
            ("exactly the limit is not late", DetachView { elapsed: LIMIT, ..FREE }, SAFE),
        ];
        for (name, view, want) in cases {
            assert_eq!(decide_detach(&view), want, "{name}: {view:?}");
        }
    }

    #[test]
    fn attach() {
        const NEW: AttachView = AttachView {
            state: AttachState::Detached,
            shareable: false,
            held_elsewhere: false,
            busy_reported: false,
        };
        let cases = [
            ("case: attach-detach/R2", NEW, Attach::Start),
            ("there", AttachView { state: AttachState::Attached, ..NEW }, Attach::Done),
            ("unsure", AttachView { state: AttachState::Uncertain, ..NEW }, Attach::Start),
            ("held", AttachView { held_elsewhere: true, ..NEW }, Attach::Busy { report: true }),
            (
                "held, told",
                AttachView { held_elsewhere: true, busy_reported: true, ..NEW },
                Attach::Busy { report: false },
            ),
            (
                "held, shareable",
                AttachView { held_elsewhere: true, shareable: true, ..NEW },
                Attach::Start,
            ),
        ];
        for (name, view, want) in cases {
            assert_eq!(decide_attach(&view), want, "{name}: {view:?}");
        }
    }

    #[test]
    fn busy_texts() {
        let pod = |namespace: &str, name: &str| PodId {
            namespace: namespace.into(),
            name: name.into(),
            uid: format!("{namespace}-{name}").into(),
        };
        let cases: [(&str, Vec<PodId>, &str); 4] = [
            (
                "case: attach-detach/R21",
                vec![],
                "Volume is already exclusively attached to one node, waiting on detach before it \
                 can be attached to another node",
            ),
            (
                "case: attach-detach/R22",
                vec![pod("ns1", "pod2")],
                "Volume is already used by pod(s) pod2",
            ),
            (
                "case: attach-detach/R23",
                vec![pod("ns2", "pod2")],
                "Volume is already used by 1 pod(s) in different namespaces",
            ),
            (
                "case: attach-detach/R24",
                vec![pod("ns2", "pod2"), pod("ns1", "pod3")],
                "Volume is already used by pod(s) pod3 and 1 pod(s) in different namespaces",
            ),
        ];
        for (name, holders, want) in cases {
            let text = busy_message("v1", &pod("ns1", "pod1"), &holders);
            assert_eq!(text, format!("Waiting for detach for volume \"v1\" {want}"), "{name}");
        }
    }
}
