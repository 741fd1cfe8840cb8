//! What is said of volumes whose driver reports a condition, and of volumes on nodes that failed.
//!
//! Nothing is mended here. A condition becomes an event on the claim, and so does a node that is gone for longer than
//! [`GRACE`] while pods with volumes are on it. The loops that ask are `longshore_controllers::health_monitor`.
//!
//! That is for the volume condition of CSI 1.3 to 1.12. What drivers of CSI 1.13 report becomes a field of the claim's
//! status: [`conditions`].

pub mod conditions;

use std::time::Duration;

use crate::model::{
    VolumePhase,
    kinds::{Node, Volume},
};

/// The text of the event on a claim whose volume is well again.
pub const RECOVERED: &str = "The Volume returns to the healthy state";
/// How long a node may be not ready before its volumes are spoken of.
pub const GRACE: Duration = Duration::from_secs(5 * 60);

/// A driver's word on a volume, as of CSI 1.3 to 1.12.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    pub abnormal: bool,
    pub message: String,
}

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report<'a> {
    Nothing,
    /// A warning with the driver's message, again at every look.
    Abnormal(&'a str),
    /// As long as the last warning has not expired, again at every look.
    Recovered,
}

/// Decides from the driver's word, and from whether the claim still has an event that warns. A volume without a
/// condition is well.
#[must_use]
pub fn report(condition: Option<&Condition>, warned: bool) -> Report<'_> {
    match condition {
        Some(Condition { abnormal: true, message }) => Report::Abnormal(message),
        _ if warned => Report::Recovered,
        _ => Report::Nothing,
    }
}

/// The driver's handle of a volume whose health is asked for: a bound one of this driver.
#[must_use]
pub fn handle_of<'a>(volume: &'a Volume, driver: &str) -> Option<&'a str> {
    let csi = volume.spec.csi.as_ref()?;
    let watched = csi.driver == *driver
        && volume.status.phase == VolumePhase::Bound
        && volume.metadata.deletion_timestamp.is_none();
    watched.then_some(&csi.volume_handle)
}

/// A node, as far as its volumes are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeSeen {
    Ready,
    NotReady,
    /// It has no Ready condition: nothing is known of it.
    Unknown,
    /// Its object is gone.
    Gone,
}

/// Reads a node.
#[must_use]
pub fn seen(node: Option<&Node>) -> NodeSeen {
    let Some(node) = node else { return NodeSeen::Gone };
    let ready = node.status.conditions.iter().find(|one| one.kind == "Ready");
    match ready.map(|one| one.status.as_str()) {
        Some("True") => NodeSeen::Ready,
        Some(_) => NodeSeen::NotReady,
        None => NodeSeen::Unknown,
    }
}

/// What is known of a node when it is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeView {
    pub seen: NodeSeen,
    /// For how long it has been broken, if a look before this one found it so.
    pub broken_for: Option<Duration>,
    /// Whether its failure was said.
    pub down: bool,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeStep {
    Nothing,
    /// Forget when it broke.
    Forget,
    /// Remember that it is broken since now.
    Remember,
    /// Say that it failed; then it is down, and the time begins anew.
    Failed,
    /// Say that it is back; then it is not down any more.
    Recovered,
}

/// Decides what is said of a node. One that stays broken is spoken of again each time [`GRACE`] has passed.
#[must_use]
pub fn decide_node(view: &NodeView) -> NodeStep {
    use NodeSeen::{Gone, NotReady, Ready, Unknown};
    match (view.seen, view.broken_for, view.down) {
        (Ready, _, true) => NodeStep::Recovered,
        (Ready, _, false) => NodeStep::Forget,
        (Unknown, ..) | (Gone, _, true) => NodeStep::Nothing,
        (Gone, _, false) => NodeStep::Failed,
        (NotReady, None, _) => NodeStep::Remember,
        (NotReady, Some(time), _) if time > GRACE => NodeStep::Failed,
        (NotReady, Some(_), _) => NodeStep::Nothing,
    }
}

/// The text of the event about a failed node, on a claim that these pods use.
#[must_use]
pub fn node_failed(node: &str, namespace: &str, claim: &str, pods: &[&str]) -> String {
    let pods: String = pods.iter().map(|pod| format!("{pod} ")).collect();
    format!(
        "Pods: [ {pods}] consuming PVC: {claim} in namespace: {namespace} are now on a failed node: {node}"
    )
}

/// The text of the event when that node is back.
#[must_use]
pub fn node_recovered(node: &str) -> String {
    format!("Node: {node} recovered")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions() {
        let bad = Condition { abnormal: true, message: "disk smells".to_owned() };
        let good = Condition { abnormal: false, ..bad.clone() };
        for (name, condition, warned, want) in [
            // case: liveness-registrar-health/24
            ("abnormal", Some(&bad), false, Report::Abnormal("disk smells")),
            ("abnormal at the next look", Some(&bad), true, Report::Abnormal("disk smells")),
            // case: liveness-registrar-health/25
            ("normal without history", Some(&good), false, Report::Nothing),
            ("normal after a warning", Some(&good), true, Report::Recovered),
            // case: liveness-registrar-health/28
            ("no status", None, false, Report::Nothing),
            ("no status after a warning", None, true, Report::Recovered),
        ] {
            assert_eq!(report(condition, warned), want, "{name}");
        }
    }

    #[test]
    fn volumes_that_are_asked_about() {
        let volume = |more: serde_json::Value| -> Volume {
            let mut volume = json!({"metadata": {"name": "v"}, "status": {"phase": "Bound"},
                "spec": {"csi": {"driver": "d", "volumeHandle": "h"}}});
            for (key, value) in more.as_object().into_iter().flatten() {
                volume[key] = value.clone();
            }
            serde_json::from_value(volume).expect("a volume")
        };
        let other = json!({"spec": {"csi": {"driver": "other", "volumeHandle": "h"}}});
        let ends = json!({"metadata": {"name": "v", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        // case: liveness-registrar-health/27
        for (name, more, want) in [
            ("bound", json!({}), Some("h")),
            ("released", json!({"status": {"phase": "Released"}}), None),
            ("of another driver", other, None),
            ("not CSI", json!({"spec": {"nfs": {"server": "s", "path": "/"}}}), None),
            ("deleted", ends, None),
        ] {
            assert_eq!(handle_of(&volume(more), "d"), want, "{name}");
        }
    }

    #[test]
    fn nodes() {
        use NodeSeen::{Gone, NotReady, Ready, Unknown};
        let minutes = |n: u64| Some(Duration::from_secs(60 * n));
        for (name, seen, broken_for, down, want) in [
            ("ready", Ready, None, false, NodeStep::Forget),
            ("ready after a moment", Ready, minutes(2), false, NodeStep::Forget),
            // case: liveness-registrar-health/34
            ("back", Ready, None, true, NodeStep::Recovered),
            ("first seen broken", NotReady, None, false, NodeStep::Remember),
            // case: liveness-registrar-health/33
            ("broken for four minutes", NotReady, minutes(4), false, NodeStep::Nothing),
            ("broken for five", NotReady, minutes(5), false, NodeStep::Nothing),
            ("broken for six", NotReady, minutes(6), false, NodeStep::Failed),
            ("said, and still broken", NotReady, None, true, NodeStep::Remember),
            ("broken for another six", NotReady, minutes(6), true, NodeStep::Failed),
            ("says nothing", Unknown, minutes(9), false, NodeStep::Nothing),
            // case: liveness-registrar-health/35
            ("deleted", Gone, None, false, NodeStep::Failed),
            ("deleted, and said", Gone, None, true, NodeStep::Nothing),
        ] {
            assert_eq!(decide_node(&NodeView { seen, broken_for, down }), want, "{name}");
        }
    }

    #[test]
    fn texts_of_nodes() {
        let text = node_failed("n1", "shop", "data", &["a", "b"]);
        let want =
            "Pods: [ a b ] consuming PVC: data in namespace: shop are now on a failed node: n1";
        assert_eq!(text, want);
        assert_eq!(node_recovered("n1"), "Node: n1 recovered");
    }
}
