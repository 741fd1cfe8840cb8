//! The event for a pod that has waited long for a volume: which node holds it, and what would help.

use std::{fmt::Write as _, time::Duration};

use super::PodId;
use crate::model::NodeName;

/// Why a node still holds a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holding {
    /// Pods want it there.
    Used,
    /// Nobody wants it there, and the node has not unmounted it yet.
    Mounted,
    /// As before, and the node is not ready, so nobody can say when it will.
    Unreachable,
    /// It is being taken away.
    Detaching,
    /// Taking it away failed, for this reason; it is tried again.
    Failing(String),
    /// It may be there: an attach was begun and has no clear result yet.
    Unclear,
}

/// A node that holds a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub node: NodeName,
    /// The pods that want the volume there.
    pub pods: Vec<PodId>,
    /// Why it is still there.
    pub holding: Holding,
}

/// The text for a pod that has waited `waited` for a volume. Pods of other namespaces are counted,
/// not named: their names are none of this pod's business.
#[must_use]
pub fn notice(volume: &str, waiting: &PodId, waited: Duration, holders: &[Holder]) -> String {
    let mut text =
        format!("Waiting for volume \"{volume}\" for {}s:", waited.as_millis().div_ceil(1000));
    for (at, holder) in holders.iter().enumerate() {
        let comma = if at == 0 { "" } else { ";" };
        let state = match holder.holding {
            Holding::Unclear => "its attach has no result yet on",
            _ => "it is attached to",
        };
        let _ = write!(text, "{comma} {state} node \"{}\"", holder.node);
        let users = users(waiting, &holder.pods);
        if !users.is_empty() {
            let _ = write!(text, ", used by {users}");
        }
        let _ = write!(text, ". {}", advice(holder));
    }
    text
}

fn users(waiting: &PodId, pods: &[PodId]) -> String {
    let (same, other): (Vec<_>, Vec<_>) =
        pods.iter().partition(|pod| pod.namespace == waiting.namespace);
    let names = same.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>().join(", ");
    match (same.is_empty(), other.len()) {
        (true, 0) => String::new(),
        (true, others) => format!("{others} pod(s) in different namespaces"),
        (false, 0) => format!("pod(s) {names}"),
        (false, others) => format!("pod(s) {names} and {others} pod(s) in different namespaces"),
    }
}

fn advice(holder: &Holder) -> String {
    match &holder.holding {
        Holding::Used => "It can move once they have ended".to_owned(),
        Holding::Mounted => "The node has yet to unmount it".to_owned(),
        Holding::Unreachable => format!(
            "The node is not ready and may still write to it. If it is off for good, say so: \
             kubectl taint node {} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
            holder.node
        ),
        Holding::Detaching => "It is being detached".to_owned(),
        Holding::Failing(why) => format!("The detach failed and is tried again: {why}"),
        Holding::Unclear => format!(
            "It can move once the driver has answered or nothing wants it there. If the node is \
             off for good, say so: kubectl taint node {} \
             node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
            holder.node
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, name: &str) -> PodId {
        PodId { namespace: namespace.into(), name: name.into(), uid: name.into() }
    }

    #[test]
    fn the_event_names_the_holder_and_what_helps() {
        let used = |pods: &[PodId]| (pods.to_vec(), Holding::Used);
        let rows = [
            (
                used(&[pod("ns", "web")]),
                "it is attached to node \"n1\", used by pod(s) web. It can move once they have ended",
            ),
            (
                used(&[pod("ns", "a"), pod("other", "b"), pod("ns", "c")]),
                "it is attached to node \"n1\", used by pod(s) a, c and 1 pod(s) in different \
                 namespaces. It can move once they have ended",
            ),
            (
                used(&[pod("other", "b")]),
                "it is attached to node \"n1\", used by 1 pod(s) in different namespaces. It can \
                 move once they have ended",
            ),
            (
                (vec![], Holding::Mounted),
                "it is attached to node \"n1\". The node has yet to unmount it",
            ),
            (
                (vec![], Holding::Unreachable),
                "it is attached to node \"n1\". The node is not ready and may still write to it. \
                 If it is off for good, say so: kubectl taint node n1 \
                 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
            ),
            ((vec![], Holding::Detaching), "it is attached to node \"n1\". It is being detached"),
            (
                (vec![], Holding::Failing("busy".into())),
                "it is attached to node \"n1\". The detach failed and is tried again: busy",
            ),
            (
                (vec![pod("ns", "web")], Holding::Unclear),
                "its attach has no result yet on node \"n1\", used by pod(s) web. It can move once \
                 the driver has answered or nothing wants it there. If the node is off for good, \
                 say so: kubectl taint node n1 \
                 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
            ),
        ];
        for ((pods, holding), want) in rows {
            let holder = Holder { node: "n1".into(), pods, holding };
            let text = notice("pv", &pod("ns", "me"), Duration::from_millis(29_001), &[holder]);
            assert_eq!(text, format!("Waiting for volume \"pv\" for 30s: {want}"));
        }
    }

    #[test]
    fn the_event_lists_every_node_that_holds_the_volume() {
        let holder =
            |node: &str| Holder { node: node.into(), pods: vec![], holding: Holding::Detaching };
        let text =
            notice("pv", &pod("ns", "me"), Duration::from_secs(1), &[holder("a"), holder("b")]);
        let want = "Waiting for volume \"pv\" for 1s: it is attached to node \"a\". It is being \
                    detached; it is attached to node \"b\". It is being detached";
        assert_eq!(text, want);
    }
}
