//! Actual state: which volume is on which node, as far as the controller knows.
//!
//! Three facts are kept apart because they come from three places: an entry is *confirmed* by
//! an attach that succeeded, it is *mounted* by what the node says of itself, and it is
//! *reported* when the node may rely on it. A volume leaves the report before it leaves the
//! node, so that no node starts to mount what is about to go away.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::AttachSpec;
use crate::{model::NodeName, names::UniqueName, visits};

/// What is known of one volume on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachState {
    /// Nothing is known: no attach was tried, or a detach was confirmed.
    Detached,
    /// An attach or a detach gave no clear result.
    Uncertain,
    /// The attach was confirmed.
    Attached,
}

/// One volume on one node, as handed out to the reconciler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnNode {
    pub volume: UniqueName,
    pub node: NodeName,
    /// What is known of the volume itself; `None` for one found in a node's status after a restart.
    pub spec: Option<AttachSpec>,
    /// Whether the attach was confirmed.
    pub confirmed: bool,
    /// Whether the node says, or must be assumed, to use it.
    pub mounted: bool,
    /// When it was first found to be unwanted.
    pub detach_requested: Option<Duration>,
}

#[derive(Debug, Default)]
struct Volume {
    spec: Option<AttachSpec>,
    device_path: String,
    nodes: BTreeMap<NodeName, Entry>,
}

#[derive(Debug, Default, Clone)]
struct Entry {
    confirmed: bool,
    /// It was attached for sure at some time, and nobody has confirmed that it is not any more.
    held: bool,
    detach_requested: Option<Duration>,
}

/// One volume as it stands in a node's `status.volumesAttached`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reported {
    /// The volume's unique name.
    pub name: UniqueName,
    /// Always empty for CSI volumes that this controller attached.
    pub device_path: String,
}

/// All volumes on all nodes.
#[derive(Debug, Default)]
pub struct Actual {
    volumes: BTreeMap<UniqueName, Volume>,
    /// The keys of `volumes` that have an entry for the node.
    by_node: BTreeMap<NodeName, BTreeSet<UniqueName>>,
    in_use: BTreeMap<NodeName, BTreeSet<UniqueName>>,
    reports: BTreeMap<NodeName, BTreeSet<UniqueName>>,
    /// Nodes whose report has to be written.
    dirty: BTreeSet<NodeName>,
}

impl Actual {
    /// Takes in a confirmed attach, and lists the volume in the node's report.
    pub fn mark_attached(
        &mut self,
        volume: &UniqueName,
        spec: Option<AttachSpec>,
        node: &NodeName,
        device_path: &str,
    ) {
        self.put(volume, spec, node, device_path, true);
        self.report_insert(volume, node);
    }

    /// Takes in a call that gave no clear result. The report stays as it is.
    pub fn mark_uncertain(
        &mut self,
        volume: &UniqueName,
        spec: Option<AttachSpec>,
        node: &NodeName,
    ) {
        self.put(volume, spec, node, "", false);
    }

    fn put(
        &mut self,
        name: &UniqueName,
        spec: Option<AttachSpec>,
        node: &NodeName,
        device_path: &str,
        confirmed: bool,
    ) {
        let volume = self.volumes.entry(name.clone()).or_default();
        if spec.is_some() {
            volume.spec = spec;
        }
        device_path.clone_into(&mut volume.device_path);
        volume.nodes.entry(node.clone()).or_default().confirmed = confirmed;
        self.by_node.entry(node.clone()).or_default().insert(name.clone());
        if confirmed {
            self.mark_held(name, node);
        }
    }

    /// Takes in a confirmed detach: entry and report both forget the volume.
    pub fn mark_detached(&mut self, name: &UniqueName, node: &NodeName) {
        if let Some(volume) = self.volumes.get_mut(name) {
            volume.nodes.remove(node);
            if volume.nodes.is_empty() {
                self.volumes.remove(name);
            }
        }
        if let Some(volumes) = self.by_node.get_mut(node) {
            volumes.remove(name);
            if volumes.is_empty() {
                self.by_node.remove(node);
            }
        }
        self.remove_from_report(name, node);
    }

    /// What is known of one volume on one node.
    #[must_use]
    pub fn state(&self, volume: &UniqueName, node: &NodeName) -> AttachState {
        match self.entry(volume, node) {
            None => AttachState::Detached,
            Some(Entry { confirmed: true, .. }) => AttachState::Attached,
            Some(Entry { confirmed: false, .. }) => AttachState::Uncertain,
        }
    }

    fn entry(&self, volume: &UniqueName, node: &NodeName) -> Option<&Entry> {
        self.volumes.get(volume)?.nodes.get(node)
    }

    fn entry_mut(&mut self, volume: &UniqueName, node: &NodeName) -> Option<&mut Entry> {
        self.volumes.get_mut(volume)?.nodes.get_mut(node)
    }

    /// Takes in that a volume was attached once, also where it is uncertain now. From then on, and
    /// until the node says otherwise, the node may be using it. One that it was never told of it does
    /// not touch, and that must not be kept from the node where it is wanted.
    pub fn mark_held(&mut self, volume: &UniqueName, node: &NodeName) {
        let Some(entry) = self.entry_mut(volume, node) else { return };
        if !std::mem::replace(&mut entry.held, true) {
            self.in_use.entry(node.clone()).or_default().insert(volume.clone());
        }
    }

    /// The nodes that hold the volume: those it was attached to and not taken from, also when the
    /// detach gave no clear result. One whose attach gave no clear result does not count: it must
    /// not keep a volume from the node where it is wanted forever.
    #[must_use]
    pub fn holders(&self, volume: &UniqueName) -> Vec<NodeName> {
        let Some(volume) = self.volumes.get(volume) else { return Vec::new() };
        let held = volume.nodes.iter().filter(|(_, entry)| entry.held);
        held.map(|(node, _)| node.clone()).collect()
    }

    /// Everything known of one volume, one item per node.
    #[must_use]
    pub fn of_volume(&self, name: &UniqueName) -> Vec<OnNode> {
        let Some(volume) = self.volumes.get(name) else { return Vec::new() };
        let nodes = visits::each(&volume.nodes);
        nodes.map(|(node, entry)| self.on_node(name, volume, node, entry)).collect()
    }

    /// Everything known, one item per volume and node.
    #[must_use]
    pub fn all(&self) -> Vec<OnNode> {
        self.volumes.keys().flat_map(|name| self.of_volume(name)).collect()
    }

    /// Names of all volumes known on one node.
    #[must_use]
    pub fn volumes_on(&self, node: &NodeName) -> Vec<UniqueName> {
        visits::each(self.by_node.get(node).into_iter().flatten()).cloned().collect()
    }

    fn on_node(
        &self,
        name: &UniqueName,
        volume: &Volume,
        node: &NodeName,
        entry: &Entry,
    ) -> OnNode {
        OnNode {
            volume: name.clone(),
            node: node.clone(),
            spec: volume.spec.clone(),
            confirmed: entry.confirmed,
            mounted: self.mounted(name, node),
            detach_requested: entry.detach_requested,
        }
    }

    /// Whether the node says, or must be assumed, to use the volume.
    #[must_use]
    pub fn mounted(&self, volume: &UniqueName, node: &NodeName) -> bool {
        self.in_use.get(node).is_some_and(|volumes| volumes.contains(volume))
    }

    /// Takes in what a node says it uses; whatever was known or assumed before is replaced. True
    /// when that changes anything.
    pub fn set_in_use(&mut self, node: &NodeName, volumes: BTreeSet<UniqueName>) -> bool {
        if self.in_use.get(node).is_some_and(|known| *known == volumes) {
            return false;
        }
        self.in_use.insert(node.clone(), volumes);
        true
    }

    /// Stamps the request to detach, once, and returns how long ago that was.
    /// `None` when there is no such entry.
    pub fn request_detach(
        &mut self,
        volume: &UniqueName,
        node: &NodeName,
        now: Duration,
    ) -> Option<Duration> {
        let entry = self.entry_mut(volume, node)?;
        let since = *entry.detach_requested.get_or_insert(now);
        Some(now.saturating_sub(since))
    }

    /// The volume is wanted again: the wait for its unmount starts anew next time.
    pub fn reset_detach_request(&mut self, volume: &UniqueName, node: &NodeName) {
        if let Some(entry) = self.entry_mut(volume, node) {
            entry.detach_requested = None;
        }
    }

    fn report_insert(&mut self, volume: &UniqueName, node: &NodeName) {
        if self.reports.entry(node.clone()).or_default().insert(volume.clone()) {
            self.dirty.insert(node.clone());
        }
    }

    /// Takes the volume out of the node's report; false when it was not in it.
    pub fn remove_from_report(&mut self, volume: &UniqueName, node: &NodeName) -> bool {
        let Some(report) = self.reports.get_mut(node) else { return false };
        let removed = report.remove(volume);
        if removed {
            self.dirty.insert(node.clone());
        }
        removed
    }

    /// Puts a volume back into the report after a detach that did not start.
    pub fn add_to_report(&mut self, volume: &UniqueName, node: &NodeName) {
        if self.entry(volume, node).is_some() {
            self.report_insert(volume, node);
        }
    }

    /// Whether the node's report lists the volume.
    #[must_use]
    pub fn is_reported(&self, volume: &UniqueName, node: &NodeName) -> bool {
        self.reports.get(node).is_some_and(|report| report.contains(volume))
    }

    /// Asks for the node's report to be written again, also when nothing changed. A node that
    /// registered anew may have wiped it. False for a node nothing was ever reported for.
    pub fn rewrite_report(&mut self, node: &NodeName) -> bool {
        let reported = self.reports.contains_key(node);
        if reported {
            self.dirty.insert(node.clone());
        }
        reported
    }

    /// Nodes whose report has to be written.
    #[must_use]
    pub fn dirty_reports(&self) -> Vec<NodeName> {
        visits::each(&self.dirty).cloned().collect()
    }

    /// Takes one node's report for writing: `Some` when it has to be written, and then only
    /// once. A failed write asks again through [`Actual::rewrite_report`].
    pub fn take_report(&mut self, node: &NodeName) -> Option<Vec<Reported>> {
        if !self.dirty.remove(node) {
            return None;
        }
        let report = self.reports.get(node)?;
        let path = |name: &UniqueName| {
            self.volumes.get(name).map(|volume| volume.device_path.clone()).unwrap_or_default()
        };
        let list = visits::each(report);
        Some(list.map(|name| Reported { name: name.clone(), device_path: path(name) }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_about_one_node_do_not_visit_the_others() {
        let visited = |nodes: u32| {
            let mut actual = Actual::default();
            for node in 0..nodes {
                for volume in 0..3 {
                    let handle = format!("{node}-{volume}");
                    let volume = UniqueName::new(&"d".into(), &handle.as_str().into());
                    actual.mark_attached(&volume, None, &node.to_string().into(), "");
                }
                actual.take_report(&node.to_string().into());
            }
            let (node, before) = (NodeName::from("7"), visits::total());
            assert_eq!(actual.volumes_on(&node).len(), 3);
            let volume = actual.volumes_on(&node).remove(0);
            assert_eq!(actual.of_volume(&volume).len(), 1);
            actual.mark_detached(&volume, &node);
            assert_eq!(actual.volumes_on(&node).len(), 2);
            assert_eq!(actual.dirty_reports(), ["7"]);
            assert_eq!(actual.take_report(&node).map(|report| report.len()), Some(2));
            visits::total() - before
        };
        assert_eq!(visited(1_000), visited(10_000));
        assert!(visited(1_000) < 20);
    }

    const T0: Duration = Duration::ZERO;

    fn name() -> UniqueName {
        UniqueName::new(&"d".into(), &"v".into())
    }

    fn attached(nodes: &[&str]) -> Actual {
        let mut actual = Actual::default();
        for node in nodes {
            actual.mark_attached(&name(), None, &(*node).into(), "");
        }
        actual
    }

    fn reported(actual: &mut Actual, node: &str) -> Option<usize> {
        actual.take_report(&node.into()).map(|list| list.len())
    }

    #[test]
    fn a_new_attachment_counts_as_mounted() {
        // case: attach-detach/A1
        let actual = attached(&["n1"]);
        let all = actual.all();
        assert_eq!(all.len(), 1);
        assert!(all[0].mounted && all[0].confirmed && all[0].detach_requested.is_none());
        assert_eq!(actual.state(&name(), &"n1".into()), AttachState::Attached);
    }

    #[test]
    fn a_node_holds_its_volume_until_the_detach_is_confirmed() {
        let mut actual = attached(&["n1"]);
        actual.mark_uncertain(&name(), None, &"n1".into());
        assert_eq!(actual.state(&name(), &"n1".into()), AttachState::Uncertain);
        assert_eq!(actual.holders(&name()), ["n1"], "a failed detach proves nothing");
        actual.mark_detached(&name(), &"n1".into());
        assert!(actual.holders(&name()).is_empty());
        actual.mark_uncertain(&name(), None, &"n1".into());
        actual.mark_held(&name(), &"n1".into());
        assert_eq!(actual.holders(&name()), ["n1"], "found attached after a restart");
    }

    #[test]
    fn an_uncertain_attachment_is_neither_reported_nor_a_holder() {
        // case: attach-detach/A2
        let mut actual = Actual::default();
        actual.mark_uncertain(&name(), None, &"n1".into());
        assert_eq!(actual.state(&name(), &"n1".into()), AttachState::Uncertain);
        assert_eq!(reported(&mut actual, "n1"), None);
        assert!(!actual.mounted(&name(), &"n1".into()), "the node was never told of it");
        actual.mark_attached(&name(), None, &"n1".into(), "");
        assert_eq!(actual.state(&name(), &"n1".into()), AttachState::Attached);
        assert!(actual.mounted(&name(), &"n1".into()), "it may be");
        assert_eq!(reported(&mut actual, "n1"), Some(1));
        // case: attach-detach/A3
        actual.mark_uncertain(&name(), None, &"n2".into());
        assert_eq!(actual.holders(&name()), ["n1"]);
        assert_eq!(reported(&mut actual, "n2"), None);
        assert!(actual.is_reported(&name(), &"n1".into()));
    }

    #[test]
    fn attaching_again_keeps_what_the_node_said() {
        // case: attach-detach/A4
        let mut actual = attached(&["n1"]);
        actual.mark_attached(&name(), None, &"n1".into(), "");
        assert_eq!(actual.all().len(), 1);
        assert!(actual.mounted(&name(), &"n1".into()));
        // case: attach-detach/A6
        actual.set_in_use(&"n1".into(), BTreeSet::new());
        assert!(!actual.mounted(&name(), &"n1".into()));
        // case: attach-detach/A7
        actual.mark_attached(&name(), None, &"n1".into(), "");
        assert!(!actual.mounted(&name(), &"n1".into()));
    }

    #[test]
    fn a_detach_leaves_the_other_node_alone() {
        // case: attach-detach/A5
        let mut actual = attached(&["n1", "n2"]);
        actual.mark_detached(&name(), &"n1".into());
        assert_eq!(actual.holders(&name()), ["n2"]);
        assert_eq!(actual.state(&name(), &"n1".into()), AttachState::Detached);
    }

    #[test]
    fn the_detach_stamp_is_set_once() {
        // case: attach-detach/A13
        let mut actual = attached(&["n1"]);
        assert_eq!(actual.request_detach(&name(), &"n1".into(), T0), Some(T0));
        let later = Duration::from_secs(1);
        assert_eq!(actual.request_detach(&name(), &"n1".into(), later), Some(later));
        // case: attach-detach/A8
        actual.set_in_use(&"n1".into(), BTreeSet::from([name()]));
        assert_eq!(actual.all()[0].detach_requested, Some(T0));
        actual.reset_detach_request(&name(), &"n1".into());
        assert_eq!(actual.request_detach(&name(), &"n1".into(), later), Some(T0));
        assert_eq!(actual.request_detach(&name(), &"other".into(), later), None);
    }

    #[test]
    fn the_report_follows_the_detach_attempt() {
        // case: attach-detach/A9
        let mut actual = attached(&["n1"]);
        assert!(actual.remove_from_report(&name(), &"n1".into()));
        assert_eq!(reported(&mut actual, "n1"), Some(0));
        // case: attach-detach/A10
        actual.mark_attached(&name(), None, &"n1".into(), "");
        assert_eq!(reported(&mut actual, "n1"), Some(1));
        // case: attach-detach/A11
        actual.remove_from_report(&name(), &"n1".into());
        actual.add_to_report(&name(), &"n1".into());
        assert_eq!(reported(&mut actual, "n1"), Some(1));
        // case: attach-detach/A12
        actual.remove_from_report(&name(), &"n1".into());
        actual.mark_detached(&name(), &"n1".into());
        actual.add_to_report(&name(), &"n1".into());
        assert_eq!(reported(&mut actual, "n1"), Some(0), "a volume that is gone stays out");
        actual.mark_attached(&name(), None, &"n1".into(), "");
        assert_eq!(reported(&mut actual, "n1"), Some(1));
    }

    #[test]
    fn one_device_path_per_volume() {
        // case: attach-detach/A14
        let mut actual = Actual::default();
        actual.mark_attached(&name(), None, &"n1".into(), "p1");
        actual.mark_attached(&name(), None, &"n2".into(), "p2");
        for node in ["n1", "n2"] {
            let list = actual.take_report(&node.into()).expect("dirty");
            assert_eq!(list[0].device_path, "p2");
        }
    }

    #[test]
    fn reports_are_handed_out_once() {
        // case: attach-detach/A15
        let mut actual = attached(&["n1"]);
        assert!(!actual.rewrite_report(&"unknown".into()));
        assert_eq!(actual.dirty_reports(), ["n1"]);
        // case: attach-detach/A16
        assert_eq!(reported(&mut actual, "n1"), Some(1));
        assert_eq!(reported(&mut actual, "n1"), None);
        assert!(actual.rewrite_report(&"n1".into()));
        assert_eq!(reported(&mut actual, "n1"), Some(1));
    }
}
