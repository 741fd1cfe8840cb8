//! Picks one of the nodes that fit a pod, and words the event when none does.

use std::collections::{BTreeMap, BTreeSet};

use super::{NodePlan, Reason};
use crate::model::NodeName;

/// A node that fits.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The node's name.
    pub node: NodeName,
    /// Pods that are or will be on it.
    pub pods: usize,
    /// How much room its storage keeps, from 0 to 100; see [`volume_score`](super::volume_score).
    pub score: i64,
    /// What has to happen first.
    pub plan: NodePlan,
}

/// A node that does not fit, and all that speaks against it.
pub type Unfit = BTreeSet<Reason>;

/// The node whose storage keeps clearly more room, by a tenth or more; otherwise the one with the
/// fewest pods; between equals, existing volumes before new ones, then the first by name, so that
/// the same view always gives the same answer.
#[must_use]
pub fn pick_node(candidates: Vec<Candidate>) -> Option<Candidate> {
    candidates.into_iter().min_by(|a, b| {
        let rank = |one: &Candidate| {
            (-one.score / 10, one.pods, one.plan.provision.len(), one.node.clone())
        };
        rank(a).cmp(&rank(b))
    })
}

/// How many nodes are named; an event has room for no more.
const NAMED: usize = 8;

/// The message for a pod that fits nowhere: each objection with the number of nodes that have it,
/// then node by node. `unfit` has the nodes by name.
#[must_use]
pub fn no_fit_message(unfit: &[(NodeName, Unfit)]) -> String {
    if unfit.is_empty() {
        return "no nodes available to schedule pods".to_owned();
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for reason in unfit.iter().flat_map(|(_, reasons)| reasons) {
        *counts.entry(reason.to_string()).or_default() += 1;
    }
    let mut parts: Vec<String> =
        counts.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    parts.sort();
    let all = format!("0/{} nodes are available: {}.", unfit.len(), parts.join(", "));
    match unfit {
        [_] => all,
        many => format!("{all} {}.", by_node(many)),
    }
}

fn by_node(unfit: &[(NodeName, Unfit)]) -> String {
    let one = |(node, reasons): &(NodeName, Unfit)| {
        let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
        format!("{node}: {}", reasons.join(", "))
    };
    let mut nodes: Vec<String> = unfit.iter().take(NAMED).map(one).collect();
    if unfit.len() > NAMED {
        nodes.push(format!("and {} more", unfit.len() - NAMED));
    }
    nodes.join("; ")
}

/// The message for a pod that no node could help.
#[must_use]
pub fn refused_message(nodes: usize, why: &str) -> String {
    format!("0/{nodes} nodes are available: {why}.")
}
