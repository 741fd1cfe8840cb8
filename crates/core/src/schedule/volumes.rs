//! Whether the pod's volumes can be had on a node, and what has to be done for it.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    ClaimFacts, PodClaims, Reason,
    capacity::{has_capacity, topology_allows},
};
use crate::{
    bind::{Search, smallest},
    model::{
        ObjectKey, VolumeName,
        keys::annotations,
        kinds::{CsiStorageCapacity, Node, Volume},
    },
};

/// The class provisioner that says that volumes are made by hand.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Labels that tie a volume to a zone or region, with the older name of each.
const ZONE_LABELS: [(&str, &str); 2] = [
    ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
];

/// The parts of the cluster that every node is checked against.
#[derive(Debug, Clone, Copy)]
pub struct Cluster<'a> {
    /// All volumes.
    pub volumes: &'a [Arc<Volume>],
    /// All published capacities.
    pub capacities: &'a [Arc<CsiStorageCapacity>],
    /// Volumes promised to claims whose bind is under way.
    pub taken: &'a BTreeSet<VolumeName>,
}

/// What has to happen before the pod can go to a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodePlan {
    /// Claims that get an existing volume, with its name.
    pub bind: Vec<(ObjectKey, VolumeName)>,
    /// Claims whose volume is made for the node.
    pub provision: Vec<ObjectKey>,
}

impl NodePlan {
    /// Nothing has to happen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bind.is_empty() && self.provision.is_empty()
    }
}

/// Checks one node; the answer holds every objection, or the plan.
pub fn check_volumes(
    claims: &PodClaims<'_>,
    node: &Node,
    cluster: &Cluster<'_>,
) -> Result<NodePlan, BTreeSet<Reason>> {
    let mut reasons = BTreeSet::new();
    for facts in &claims.bound {
        reasons.extend(check_bound(facts, node).err());
    }
    let plan = match plan_delayed(claims, node, cluster) {
        Ok(plan) => plan,
        Err(reason) => {
            reasons.insert(reason);
            NodePlan::default()
        }
    };
    if reasons.is_empty() { Ok(plan) } else { Err(reasons) }
}

fn check_bound(facts: &ClaimFacts<'_>, node: &Node) -> Result<(), Reason> {
    let volume = facts.volume.ok_or(Reason::VolumeMissing)?;
    if !volume.reachable_from(&node.metadata.name, &node.metadata.labels) {
        return Err(Reason::VolumeAffinity);
    }
    if !zones_match(volume, node) {
        return Err(Reason::Zone);
    }
    Ok(())
}

/// A node that knows no zones fits all volumes.
fn zones_match(volume: &Volume, node: &Node) -> bool {
    let labels = &node.metadata.labels;
    let on_node = |names: (&str, &str)| labels.get(names.0).or(labels.get(names.1));
    if ZONE_LABELS.iter().all(|&names| on_node(names).is_none()) {
        return true;
    }
    ZONE_LABELS.iter().all(|&names| {
        [names.0, names.1].iter().filter_map(|&name| volume.metadata.labels.get(name)).all(|set| {
            on_node(names).is_some_and(|value| set.split("__").any(|zone| zone == value))
        })
    })
}

fn plan_delayed(
    claims: &PodClaims<'_>,
    node: &Node,
    cluster: &Cluster<'_>,
) -> Result<NodePlan, Reason> {
    let mut plan = NodePlan::default();
    let mut taken = cluster.taken.clone();
    let volumes: Vec<&Volume> = cluster.volumes.iter().map(AsRef::as_ref).collect();
    let mut ascending: Vec<&ClaimFacts<'_>> = claims.delayed.iter().collect();
    // Small claims first, so that they do not use up the volumes that only fit the big ones.
    ascending.sort_by_key(|facts| facts.claim.request());
    for facts in ascending {
        let claim = facts.claim;
        let chosen = match claim.metadata.annotation(annotations::SELECTED_NODE) {
            Some(other) if other != node.metadata.name => return Err(Reason::BindConflict),
            // The provisioner was told already: an existing volume comes too late.
            Some(_) => None,
            None => existing(facts, node, &volumes, &taken)?,
        };
        match chosen {
            Some(volume) => {
                taken.insert(volume.name());
                plan.bind.push((claim.metadata.key(), volume.name()));
            }
            None => {
                check_provisioning(facts, node, cluster)?;
                plan.provision.push(claim.metadata.key());
            }
        }
    }
    Ok(plan)
}

/// A claim that cannot be searched for (a broken selector) fits nowhere.
fn existing<'v>(
    facts: &ClaimFacts<'_>,
    node: &Node,
    volumes: &[&'v Volume],
    taken: &BTreeSet<VolumeName>,
) -> Result<Option<&'v Volume>, Reason> {
    let search =
        Search { node: Some(node), reserved: taken, delayed: true, attributes_classes: true };
    smallest(facts.claim, volumes, &search).map_err(|_| Reason::BindConflict)
}

fn check_provisioning(
    facts: &ClaimFacts<'_>,
    node: &Node,
    cluster: &Cluster<'_>,
) -> Result<(), Reason> {
    let class = facts.class.ok_or(Reason::BindConflict)?;
    let by_hand = class.provisioner.is_empty() || class.provisioner == NO_PROVISIONER;
    if by_hand || !topology_allows(&class.allowed_topologies, &node.metadata.labels) {
        return Err(Reason::BindConflict);
    }
    if !has_capacity(facts, node, cluster.capacities.iter().map(AsRef::as_ref)) {
        return Err(Reason::NoCapacity);
    }
    Ok(())
}
