//! Desired state: which volume pods want on which node.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use super::AttachSpec;
use crate::{
    model::{NodeName, Uid},
    names::UniqueName,
    visits,
};

/// A pod that wants a volume: enough to find it and to tell it about its volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodId {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID: a pod made anew under the same name is another pod.
    pub uid: Uid,
}

/// One volume wanted on one node.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// What to attach. The first pod's answer stays until the last pod is gone.
    pub spec: AttachSpec,
    /// Who wants it, by UID.
    pub pods: BTreeMap<Uid, PodId>,
    /// Whether the pods were already told that another node holds the volume.
    pub busy_reported: bool,
    /// Since when another node has been in the way.
    waiting: Option<Waiting>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    since: Duration,
    /// When the pods hear of it again.
    notice: Duration,
}

/// What a wait for another node has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waited {
    /// How long it has lasted.
    pub elapsed: Duration,
    /// The pods have to be told now.
    pub tell: bool,
    /// When to look again.
    pub again: Duration,
}

/// A node that is not managed by this controller, or is still in use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DesiredError {
    /// The node has not asked for attachment by this controller.
    #[error("node {0} is not managed by this controller")]
    NotManaged(NodeName),
    /// The node still has volumes wanted on it.
    #[error("node {0} still has volumes wanted on it")]
    NodeInUse(NodeName),
}

/// All wanted volumes on all managed nodes.
#[derive(Debug, Default)]
pub struct Desired {
    nodes: BTreeMap<NodeName, BTreeMap<UniqueName, Wanted>>,
    /// The nodes that have an entry for the volume.
    by_volume: HashMap<UniqueName, BTreeSet<NodeName>>,
    by_pod: HashMap<Uid, BTreeSet<(NodeName, UniqueName)>>,
}

impl Desired {
    /// Makes a node managed.
    pub fn add_node(&mut self, node: &NodeName) {
        self.nodes.entry(node.clone()).or_default();
    }

    /// Whether the node is managed by this controller.
    #[must_use]
    pub fn manages(&self, node: &NodeName) -> bool {
        self.nodes.contains_key(node)
    }

    /// Forgets a node. One that still has volumes is kept, so that they are detached in order.
    pub fn remove_node(&mut self, node: &NodeName) -> Result<(), DesiredError> {
        if self.nodes.get(node).is_some_and(|volumes| !volumes.is_empty()) {
            return Err(DesiredError::NodeInUse(node.clone()));
        }
        self.nodes.remove(node);
        Ok(())
    }

    /// A pod on `node` wants a volume. True when the volume was not wanted there before.
    pub fn add_pod(
        &mut self,
        pod: &PodId,
        volume: &UniqueName,
        spec: &AttachSpec,
        node: &NodeName,
    ) -> Result<bool, DesiredError> {
        let volumes =
            self.nodes.get_mut(node).ok_or_else(|| DesiredError::NotManaged(node.clone()))?;
        let mut new = false;
        let wanted = volumes.entry(volume.clone()).or_insert_with(|| {
            new = true;
            Wanted {
                spec: spec.clone(),
                pods: BTreeMap::new(),
                busy_reported: false,
                waiting: None,
            }
        });
        wanted.pods.entry(pod.uid.clone()).or_insert_with(|| pod.clone());
        if new {
            self.by_volume.entry(volume.clone()).or_default().insert(node.clone());
        }
        self.by_pod.entry(pod.uid.clone()).or_default().insert((node.clone(), volume.clone()));
        Ok(new)
    }

    /// A pod wants nothing any more. Returns the volumes it wanted.
    ///
    /// The pod's own list is used, not its claims: those may be gone from the cache before the
    /// pod is, and the detach would then wait for the next full pass.
    pub fn remove_pod(&mut self, uid: &Uid) -> Vec<UniqueName> {
        let wanted = self.by_pod.remove(uid).unwrap_or_default();
        for (node, volume) in &wanted {
            self.drop_pod_from(uid, node, volume);
        }
        wanted.into_iter().map(|(_, volume)| volume).collect()
    }

    fn drop_pod_from(&mut self, uid: &Uid, node: &NodeName, volume: &UniqueName) {
        let Some(volumes) = self.nodes.get_mut(node) else { return };
        let Some(wanted) = volumes.get_mut(volume) else { return };
        wanted.pods.remove(uid);
        if wanted.pods.is_empty() {
            volumes.remove(volume);
            if let Some(nodes) = self.by_volume.get_mut(volume) {
                nodes.remove(node);
                if nodes.is_empty() {
                    self.by_volume.remove(volume);
                }
            }
        }
    }

    /// Nobody may have this volume attached any more, whoever wants it.
    pub fn remove_volume(&mut self, volume: &UniqueName) {
        for node in visits::each(self.by_volume.remove(volume).unwrap_or_default()) {
            let wanted = self.nodes.get_mut(&node).and_then(|all| all.remove(volume));
            let at = (node, volume.clone());
            for uid in wanted.into_iter().flat_map(|wanted| wanted.pods.into_keys()) {
                if let Some(places) = self.by_pod.get_mut(&uid) {
                    places.remove(&at);
                    if places.is_empty() {
                        self.by_pod.remove(&uid);
                    }
                }
            }
        }
    }

    /// The desired attachment of one volume to one node.
    #[must_use]
    pub fn get(&self, volume: &UniqueName, node: &NodeName) -> Option<&Wanted> {
        self.nodes.get(node)?.get(volume)
    }

    /// Remembers that the waiting pods got an event, for as long as the volume is desired.
    pub fn set_busy_reported(&mut self, volume: &UniqueName, node: &NodeName) {
        if let Some(wanted) = self.nodes.get_mut(node).and_then(|all| all.get_mut(volume)) {
            wanted.busy_reported = true;
        }
    }

    /// Another node is in the way. The pods are told after `first`, and again whenever the wait
    /// has doubled: often enough to be found, too rarely to be noise.
    pub fn wait(
        &mut self,
        volume: &UniqueName,
        node: &NodeName,
        now: Duration,
        first: Duration,
    ) -> Option<Waited> {
        let wanted = self.nodes.get_mut(node)?.get_mut(volume)?;
        let waiting = wanted.waiting.get_or_insert(Waiting { since: now, notice: now + first });
        let elapsed = now.saturating_sub(waiting.since);
        let tell = now >= waiting.notice;
        if tell {
            waiting.notice = now + elapsed.max(first);
        }
        Some(Waited { elapsed, tell, again: waiting.notice })
    }

    /// No node is in the way any more.
    pub fn end_wait(&mut self, volume: &UniqueName, node: &NodeName) {
        if let Some(wanted) = self.nodes.get_mut(node).and_then(|all| all.get_mut(volume)) {
            wanted.waiting = None;
        }
    }

    /// The nodes where a volume is wanted.
    #[must_use]
    pub fn nodes_wanting(&self, volume: &UniqueName) -> Vec<NodeName> {
        visits::each(self.by_volume.get(volume).into_iter().flatten()).cloned().collect()
    }

    /// Names and specs of all wanted volumes, each once per node.
    pub fn all(&self) -> impl Iterator<Item = (&NodeName, &UniqueName, &Wanted)> {
        visits::each(&self.nodes).flat_map(|(node, volumes)| {
            volumes.iter().map(move |(name, wanted)| (node, name, wanted))
        })
    }

    /// Every pod that wants something.
    #[must_use]
    pub fn pods(&self) -> Vec<PodId> {
        let mut pods: Vec<PodId> =
            self.all().flat_map(|(_, _, wanted)| wanted.pods.values().cloned()).collect();
        pods.sort();
        pods.dedup();
        pods
    }

    /// Pods that want the volume on any of these nodes.
    #[must_use]
    pub fn pods_on(&self, volume: &UniqueName, nodes: &[NodeName]) -> Vec<PodId> {
        let wanted = nodes.iter().filter_map(|node| self.get(volume, node));
        wanted.flat_map(|wanted| wanted.pods.values().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> UniqueName {
        UniqueName::new(&"d".into(), &"v".into())
    }

    fn spec() -> AttachSpec {
        AttachSpec {
            name: "pv".into(),
            driver: "d".into(),
            handle: "v".into(),
            shareable: false,
            migrated: false,
            inline: None,
        }
    }

    fn pod(uid: &str) -> PodId {
        PodId { namespace: "ns".into(), name: format!("pod-{uid}"), uid: uid.into() }
    }

    #[test]
    fn questions_about_one_volume_do_not_visit_all_nodes() {
        let visited = |nodes: u32| {
            let mut desired = Desired::default();
            for node in 0..nodes {
                let (node, uid) = (NodeName::from(node.to_string()), node.to_string());
                let volume = UniqueName::new(&"d".into(), &uid.as_str().into());
                desired.add_node(&node);
                desired.add_pod(&pod(&uid), &volume, &spec(), &node).expect("managed");
            }
            let (volume, before) = (UniqueName::new(&"d".into(), &"7".into()), visits::total());
            assert_eq!(desired.nodes_wanting(&volume), ["7"]);
            desired.remove_volume(&volume);
            assert!(desired.nodes_wanting(&volume).is_empty());
            assert!(desired.remove_pod(&"7".into()).is_empty());
            visits::total() - before
        };
        assert_eq!(visited(1_000), visited(10_000));
        assert!(visited(1_000) < 10);
    }

    #[test]
    fn only_managed_nodes_take_pods() {
        // case: attach-detach/A17
        let mut desired = Desired::default();
        let refused = desired.add_pod(&pod("1"), &name(), &spec(), &"n1".into());
        assert_eq!(refused, Err(DesiredError::NotManaged("n1".into())));
        assert_eq!(desired.all().count(), 0);
    }

    #[test]
    fn a_node_with_volumes_is_kept() {
        // case: attach-detach/A18
        let mut desired = Desired::default();
        desired.add_node(&"n1".into());
        assert_eq!(desired.add_pod(&pod("1"), &name(), &spec(), &"n1".into()), Ok(true));
        assert_eq!(desired.remove_node(&"n1".into()), Err(DesiredError::NodeInUse("n1".into())));
        assert_eq!(desired.remove_pod(&"1".into()), [name()]);
        assert_eq!(desired.remove_node(&"n1".into()), Ok(()));
        assert_eq!(desired.remove_node(&"unknown".into()), Ok(()));
        assert!(!desired.manages(&"n1".into()));
    }

    #[test]
    fn the_last_pod_takes_the_volume_along() {
        // case: attach-detach/A19
        let mut desired = Desired::default();
        desired.add_node(&"n1".into());
        assert_eq!(desired.add_pod(&pod("1"), &name(), &spec(), &"n1".into()), Ok(true));
        assert_eq!(desired.add_pod(&pod("2"), &name(), &spec(), &"n1".into()), Ok(false));
        desired.set_busy_reported(&name(), &"n1".into());
        desired.remove_pod(&"1".into());
        assert_eq!(desired.nodes_wanting(&name()), ["n1"]);
        assert!(desired.get(&name(), &"n1".into()).expect("wanted").busy_reported);
        desired.remove_pod(&"2".into());
        assert!(desired.nodes_wanting(&name()).is_empty());
        desired.add_pod(&pod("2"), &name(), &spec(), &"n1".into()).expect("managed");
        assert!(!desired.get(&name(), &"n1".into()).expect("wanted").busy_reported, "desired anew");
    }

    #[test]
    fn a_wait_is_told_whenever_it_has_doubled() {
        let second = Duration::from_secs(1);
        let mut desired = Desired::default();
        assert_eq!(desired.wait(&name(), &"n1".into(), second, second), None, "nothing is wanted");
        desired.add_node(&"n1".into());
        desired.add_pod(&pod("1"), &name(), &spec(), &"n1".into()).expect("managed");
        let told = |desired: &mut Desired, from: u32| -> Vec<u32> {
            let moments = 0..=80_u32;
            let tell = |moment: &u32| {
                let now = (from + moment) * second;
                desired
                    .wait(&name(), &"n1".into(), now, 10 * second)
                    .is_some_and(|waited| waited.tell)
            };
            moments.filter(tell).collect()
        };
        assert_eq!(told(&mut desired, 5), [10, 20, 40, 80]);
        desired.end_wait(&name(), &"n1".into());
        assert_eq!(told(&mut desired, 500), [10, 20, 40, 80], "a new wait");
    }

    #[test]
    fn a_volume_can_be_withdrawn_from_all() {
        let mut desired = Desired::default();
        for node in ["n1", "n2"] {
            desired.add_node(&node.into());
            desired.add_pod(&pod(node), &name(), &spec(), &node.into()).expect("managed");
        }
        assert_eq!(desired.pods().len(), 2);
        desired.remove_volume(&name());
        assert!(desired.pods().is_empty());
        assert!(desired.remove_pod(&"n1".into()).is_empty());
    }
}
