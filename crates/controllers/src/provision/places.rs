//! Where volumes may be: on nodes as the API shows them, or on the one node that this provisioner
//! is for.

use std::collections::{BTreeMap, BTreeSet};

use longshore_cluster::Cache;
use longshore_core::{
    model::{
        NodeName, ObjectKey,
        kinds::{Claim, CsiNode, Node, StorageClass},
    },
    provision::{
        attempt::Observed,
        topology::{self, Requirement, SelectedNode, Term, TopologyError, term_of},
    },
};

type Labels = BTreeMap<String, String>;

/// Nodes by the drivers that have topology keys there.
const WITH_KEYS: &str = "csi-nodes-with-topology-keys";

/// Where topology is read from.
pub(super) enum Map {
    /// Topology is not in use.
    Unknown,
    /// The API.
    Watched(Cache<Node>, Cache<CsiNode>),
    /// The driver said where it is when it was asked, and stays there.
    Fixed {
        node: NodeName,
        /// The driver's keys and values for it.
        segments: Term,
    },
}

/// Works out topology requirements.
pub(super) struct Places {
    driver: String,
    map: Map,
}

/// How requirements are made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    pub(super) strict: bool,
    pub(super) immediate: bool,
}

impl Places {
    pub(super) fn new(driver: &str, map: Map) -> Self {
        if let Map::Watched(_, csi_nodes) = &map {
            csi_nodes.index(WITH_KEYS, |node: &CsiNode| {
                let drivers = node.spec.drivers.iter().filter(|one| !one.topology_keys.is_empty());
                drivers.map(|one| one.name.to_string()).collect()
            });
        }
        Self { driver: driver.to_owned(), map }
    }

    pub(super) fn known(&self) -> bool {
        !matches!(self.map, Map::Unknown)
    }

    /// The requirement for a claim. What was observed for it before counts, and is completed.
    pub(super) fn requirement(
        &self,
        seen: &mut Observed,
        claim: &Claim,
        class: &StorageClass,
        node: Option<&NodeName>,
        manner: Manner,
    ) -> Result<Option<Requirement>, TopologyError> {
        let allowed = allowed(class);
        if seen.node.as_ref() != node {
            *seen = Observed { node: node.cloned(), ..Observed::default() };
        }
        let all_places = allowed.is_empty() && !manner.strict;
        self.complete(seen, all_places || node.is_none());
        let terms: Vec<&Term> = seen.terms.iter().flatten().collect();
        let selected = node.map(|name| SelectedNode {
            name,
            keys: seen.keys.as_deref(),
            labels: seen.labels.as_ref(),
        });
        let result = topology::requirement(&topology::View {
            claim: &claim.metadata.name,
            selected,
            strict: manner.strict,
            immediate: manner.immediate,
            allowed: &allowed,
            cluster_keys: seen.keys.as_deref(),
            nodes: &terms,
        });
        if seen.keys.as_ref().is_none_or(Vec::is_empty) {
            // Places without keys are nowhere: the node is known, its driver is not yet.
            seen.terms = None;
        }
        result
    }

    /// Looks for what is not remembered. Labels without a key that is needed do not count.
    fn complete(&self, seen: &mut Observed, all_places: bool) {
        let node = seen.node.as_ref();
        if seen.keys.as_ref().is_none_or(Vec::is_empty) {
            seen.keys = self.keys(node);
        }
        let keys = seen.keys.as_deref().unwrap_or_default();
        let whole = |labels: &Labels| keys.iter().all(|key| labels.contains_key(key));
        if let Some(name) = node
            && !seen.labels.as_ref().is_some_and(whole)
        {
            seen.labels = self.labels(name);
        }
        if all_places && seen.terms.as_ref().is_none_or(Vec::is_empty) {
            seen.terms = Some(self.terms(keys));
        }
    }

    /// The driver's keys on a node (none when its CSINode is not there), or on any node that has
    /// some.
    fn keys(&self, node: Option<&NodeName>) -> Option<Vec<String>> {
        let on = |node: &CsiNode| node.driver(&self.driver).map(|one| one.topology_keys.clone());
        match (&self.map, node) {
            (Map::Unknown, _) => None,
            (Map::Watched(_, csi_nodes), Some(name)) => {
                let found = csi_nodes.get(&ObjectKey::cluster(name))?;
                Some(on(&found).unwrap_or_default())
            }
            (Map::Watched(_, csi_nodes), None) => {
                let first = csi_nodes.first_by_index(WITH_KEYS, &self.driver);
                first.and_then(|node| on(&node))
            }
            (Map::Fixed { node, segments }, chosen) => {
                let here = chosen.is_none_or(|chosen| chosen == node);
                let keys: Vec<String> = segments.keys().cloned().collect();
                Some(keys).filter(|keys| here && (chosen.is_some() || !keys.is_empty()))
            }
        }
    }

    fn labels(&self, name: &NodeName) -> Option<Labels> {
        match &self.map {
            Map::Unknown => None,
            Map::Watched(nodes, _) => {
                Some(nodes.get(&ObjectKey::cluster(name))?.metadata.labels.clone())
            }
            Map::Fixed { node, segments } => (name == node).then(|| segments.clone()),
        }
    }

    /// The places of all nodes that have the keys, each once.
    fn terms(&self, keys: &[String]) -> Vec<Term> {
        match &self.map {
            Map::Unknown => Vec::new(),
            Map::Watched(nodes, _) => {
                let (index, wanted) = (format!("places-by {}", keys.join(" ")), keys.to_vec());
                // Made for the first claim with these keys; a driver hardly ever changes them.
                nodes.index(&index, move |node| {
                    let place = term_of(&node.metadata.labels, &wanted);
                    place.iter().map(|place| format!("{place:?}")).collect()
                });
                let some = nodes.one_of_each(&index);
                let places = some.iter().filter_map(|node| term_of(&node.metadata.labels, keys));
                places.collect::<BTreeSet<_>>().into_iter().collect()
            }
            Map::Fixed { segments, .. } => vec![segments.clone()],
        }
    }
}

fn allowed(class: &StorageClass) -> Vec<topology::Allowed> {
    let terms = class.allowed_topologies.iter();
    terms
        .map(|term| {
            let all = term.match_label_expressions.iter();
            all.map(|one| (one.key.clone(), one.values.clone())).collect()
        })
        .collect()
}
