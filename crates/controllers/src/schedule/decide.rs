//! Finds a node for a pod.

use std::collections::BTreeSet;

use longshore_core::{
    model::{
        AccessMode, NodeName, ObjectKey,
        kinds::{Node, Pod},
    },
    schedule::{
        Amounts, Candidate, ClaimFacts, Cluster, LimitView, NodePlan, NotReady, PodClaims, Reason,
        Unfit, VolumeUse, check_basics, check_limits, check_resources, check_volumes,
        no_fit_message, pick_node, refused_message, requests_of, sort_claims, volume_score,
    },
};
use tokio::time::Instant;

use super::{
    Scheduler,
    state::{Inner, Placement},
    view::HeldClaim,
};
use crate::index::pods_of_claim;

/// What is the same for all nodes while one pod is placed.
struct Question<'a> {
    pod: &'a Pod,
    claims: &'a PodClaims<'a>,
    cluster: Cluster<'a>,
    wanted: &'a BTreeSet<VolumeUse>,
    /// What its containers request.
    requests: &'a Amounts,
    once_pod_conflict: bool,
}

/// Why a pod has no node; the text is that of its event.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unschedulable {
    #[error("{}", refused_message(*nodes, &why.to_string()))]
    Claims { nodes: usize, why: NotReady },
    #[error("{}", no_fit_message(.0))]
    Nodes(Vec<(NodeName, Unfit)>),
}

impl Scheduler {
    /// Chooses a node and promises it to the pod, or says why there is none.
    pub(super) fn decide(&self, pod: &Pod) -> Result<Placement, Unschedulable> {
        // Held to the end: the next decision must see this promise.
        let mut state = self.state.lock();
        let nodes = self.nodes.list();
        let held = self.claims_of(pod);
        let claims = match sort_claims(pod, |name| HeldClaim::find(&held, name)) {
            Ok(claims) => claims,
            Err(why) => {
                state.wait(pod);
                return Err(Unschedulable::Claims { nodes: nodes.len(), why });
            }
        };
        let volumes = self.free_volumes(&claims.delayed);
        let capacities = self.capacities.list();
        let taken = state.taken();
        let question = Question {
            pod,
            claims: &claims,
            cluster: Cluster { volumes: &volumes, capacities: &capacities, taken: &taken },
            wanted: &self.uses_of(pod),
            requests: &requests_of(pod),
            once_pod_conflict: self.once_pod_conflict(pod, &claims, &state),
        };
        let (mut fit, mut unfit): (Vec<Candidate>, Vec<(NodeName, Unfit)>) =
            (Vec::new(), Vec::new());
        for node in &nodes {
            match self.check_node(&question, node, &state) {
                Ok(plan) => {
                    let name = node.name();
                    let pods = self.pods_on(&name, &state);
                    let score = volume_score(&claims, &plan, node, &question.cluster);
                    fit.push(Candidate { node: name, pods, score, plan });
                }
                Err(reasons) => unfit.push((node.name(), reasons)),
            }
        }
        let Some(chosen) = pick_node(fit) else {
            state.wait(pod);
            return Err(Unschedulable::Nodes(unfit));
        };
        let placement = Placement {
            node: chosen.node,
            plan: chosen.plan,
            written: false,
            deadline: Instant::now() + self.config.bind_timeout,
        };
        state.promise(pod, placement.clone());
        Ok(placement)
    }

    fn check_node(
        &self,
        question: &Question<'_>,
        node: &Node,
        state: &Inner,
    ) -> Result<NodePlan, Unfit> {
        let only = |reason: Reason| BTreeSet::from([reason]);
        check_basics(question.pod, node).map_err(only)?;
        if !question.requests.is_empty() {
            let used = self.requested_on(&node.name(), state);
            check_resources(question.requests, node, &used)?;
        }
        if question.once_pod_conflict {
            return Err(only(Reason::OncePod));
        }
        if !question.wanted.is_empty() {
            self.check_count(question, node, state).map_err(only)?;
        }
        check_volumes(question.claims, node, &question.cluster)
    }

    fn check_count(
        &self,
        question: &Question<'_>,
        node: &Node,
        state: &Inner,
    ) -> Result<(), Reason> {
        let csi_node = self.csi_nodes.get(&node.metadata.key());
        let used = self.used_on(node, state);
        let view =
            LimitView { csi_node: csi_node.as_deref(), used: &used, wanted: question.wanted };
        let drivers: Vec<_> = question
            .wanted
            .iter()
            .filter_map(|volume| self.drivers.get(&ObjectKey::cluster(&volume.driver)))
            .collect();
        check_limits(&view, |name| {
            drivers.iter().find(|driver| driver.metadata.name == name).map(AsRef::as_ref)
        })
    }

    /// Whether a claim for one pod only is used by another pod that is, or will be, on a node.
    fn once_pod_conflict(&self, pod: &Pod, claims: &PodClaims<'_>, state: &Inner) -> bool {
        let once = |facts: &&ClaimFacts<'_>| {
            facts.claim.spec.access_modes.contains(&AccessMode::ReadWriteOncePod)
        };
        claims.bound.iter().chain(&claims.delayed).filter(once).any(|facts| {
            pods_of_claim(&self.pods, &facts.claim.metadata.key()).iter().any(|other| {
                let key = other.metadata.key();
                let placed = !other.spec.node_name.is_empty()
                    || state.on_their_way().any(|coming| *coming == key);
                other.metadata.uid != pod.metadata.uid && placed && !other.finished()
            })
        })
    }
}
