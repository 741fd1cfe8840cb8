//! A fair queue of attach or detach operations, shared by the nodes.
//!
//! ```text
//!  enter ──> waiting ──take──> permit held ──release──> in flight ──finish──> gone
//!            (by node)         (sends requests)         (waits for the driver)
//! ```
//!
//! Attaches and detaches wait in a queue each, so that a thousand nodes that let go do not hold up
//! one pod that starts. A queue has a few permits for operations that are sending their requests;
//! one that only waits for the driver's verdict takes no permit. Free permits go to the node that
//! has the fewest, and among equals to the one that was served longest ago. What something else
//! waits for (a detach from one node before the attach to the next) goes first.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use crate::{model::NodeName, names::UniqueName, visits};

/// Waiting operations.
#[derive(Debug, Default)]
struct Lines {
    /// By node, in the order they came; no line is empty.
    by_node: BTreeMap<NodeName, VecDeque<(UniqueName, Duration)>>,
    /// The nodes of `by_node`, whose turn it is first.
    turns: BTreeSet<(Served, NodeName)>,
}

impl Lines {
    fn push(&mut self, volume: UniqueName, node: &NodeName, since: Duration, served: Served) {
        self.turns.insert((served, node.clone()));
        self.by_node.entry(node.clone()).or_default().push_back((volume, since));
    }

    /// Takes out what stands at `at` in the node's line.
    fn remove(
        &mut self,
        node: &NodeName,
        at: usize,
        served: Served,
    ) -> Option<(UniqueName, Duration)> {
        let line = self.by_node.get_mut(node)?;
        let removed = line.remove(at);
        if line.is_empty() {
            self.by_node.remove(node);
            self.turns.remove(&(served, node.clone()));
        }
        removed
    }

    fn position(&self, volume: &UniqueName, node: &NodeName) -> Option<usize> {
        visits::each(self.by_node.get(node)?).position(|(waiting, _)| waiting == volume)
    }

    /// A node has had more, or less, of the queue.
    fn served(&mut self, node: &NodeName, before: Served, now: Served) {
        if self.turns.remove(&(before, node.clone())) {
            self.turns.insert((now, node.clone()));
        }
    }
}

/// Operations of one kind.
#[derive(Debug)]
pub struct FairQueue {
    permits: usize,
    urgent: Lines,
    plain: Lines,
    /// Waiting operations, and whether each is urgent.
    waiting: BTreeMap<(UniqueName, NodeName), bool>,
    nodes: HashMap<NodeName, Served>,
    taken: usize,
    /// Start of each operation in flight, those without a permit included.
    in_flight: BTreeMap<u64, Duration>,
    turns: u64,
}

/// What a node has had of the queue.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Served {
    permits: usize,
    last_turn: u64,
}

/// An operation that has started: first with a permit, then without, until it is [finished](FairQueue::finish).
#[derive(Debug, PartialEq, Eq)]
pub struct Permit {
    pub volume: UniqueName,
    pub node: NodeName,
    id: u64,
    held: bool,
}

impl FairQueue {
    /// A queue with this many permits, at least one.
    #[must_use]
    pub fn new(permits: usize) -> Self {
        Self {
            permits: permits.max(1),
            urgent: Lines::default(),
            plain: Lines::default(),
            waiting: BTreeMap::new(),
            nodes: HashMap::new(),
            taken: 0,
            in_flight: BTreeMap::new(),
            turns: 0,
        }
    }

    /// Enqueues an operation. One that waits already keeps its position, or moves up if it has become urgent.
    pub fn enter(&mut self, volume: &UniqueName, node: &NodeName, now: Duration, urgent: bool) {
        let key = (volume.clone(), node.clone());
        let since = match self.waiting.get(&key) {
            Some(was_urgent) if *was_urgent || !urgent => return,
            Some(_) => self.leave(volume, node).unwrap_or(now),
            None => now,
        };
        self.waiting.insert(key, urgent);
        let served = self.served(node);
        self.lines(urgent).push(volume.clone(), node, since, served);
    }

    /// Removes a waiting operation; returns since when it waited.
    pub fn leave(&mut self, volume: &UniqueName, node: &NodeName) -> Option<Duration> {
        let urgent = self.waiting.remove(&(volume.clone(), node.clone()))?;
        let served = self.served(node);
        let lines = self.lines(urgent);
        let at = lines.position(volume, node)?;
        lines.remove(node, at, served).map(|(_, since)| since)
    }

    fn lines(&mut self, urgent: bool) -> &mut Lines {
        if urgent { &mut self.urgent } else { &mut self.plain }
    }

    /// What the node has had so far.
    fn served(&self, node: &NodeName) -> Served {
        self.nodes.get(node).copied().unwrap_or_default()
    }

    fn set_served(&mut self, node: &NodeName, now: Served) {
        let before = self.nodes.insert(node.clone(), now).unwrap_or_default();
        self.urgent.served(node, before, now);
        self.plain.served(node, before, now);
    }

    /// Whether the volume waits, on any node.
    #[must_use]
    pub fn waits(&self, volume: &UniqueName) -> bool {
        let from = (volume.clone(), NodeName::default());
        self.waiting.range(from..).next().is_some_and(|((found, _), _)| found == volume)
    }

    /// The volumes that wait on this node.
    #[must_use]
    pub fn waiting_on(&self, node: &NodeName) -> Vec<UniqueName> {
        let lines = [&self.urgent, &self.plain].into_iter();
        let lines = lines.filter_map(|lines| lines.by_node.get(node));
        visits::each(lines.flatten()).map(|(volume, _)| volume.clone()).collect()
    }

    /// Starts the next waiting operation, if a permit is free.
    pub fn take(&mut self, now: Duration) -> Option<Permit> {
        if self.taken >= self.permits {
            return None;
        }
        let urgent = !self.urgent.turns.is_empty();
        let (served, node) = visits::each(&self.lines(urgent).turns).next()?.clone();
        let (volume, _) = self.lines(urgent).remove(&node, 0, served)?;
        self.waiting.remove(&(volume.clone(), node.clone()));
        self.turns += 1;
        self.set_served(&node, Served { permits: served.permits + 1, last_turn: self.turns });
        self.taken += 1;
        self.in_flight.insert(self.turns, now);
        Some(Permit { volume, node, id: self.turns, held: true })
    }

    /// All requests are sent: the permit is free for the next one.
    pub fn release(&mut self, permit: &mut Permit) {
        if !std::mem::take(&mut permit.held) {
            return;
        }
        self.taken = self.taken.saturating_sub(1);
        if let Some(served) = self.nodes.get(&permit.node).copied() {
            let permits = served.permits.saturating_sub(1);
            self.set_served(&permit.node, Served { permits, ..served });
        }
        if self.taken == 0 && self.waiting.is_empty() {
            // Nobody competes: there is no order to remember.
            self.nodes.clear();
        }
    }

    /// The operation has ended, however.
    pub fn finish(&mut self, permit: &mut Permit) {
        self.release(permit);
        self.in_flight.remove(&permit.id);
    }

    /// How many wait for a permit.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.waiting.len()
    }

    /// How long the one that waits longest for a permit has waited.
    #[must_use]
    pub fn oldest(&self, now: Duration) -> Duration {
        let lines = self.urgent.by_node.values().chain(self.plain.by_node.values());
        // One that became urgent stands behind younger ones, so the front is not always oldest.
        let since = lines.flatten().map(|(_, since)| *since).min();
        since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// How long each operation in flight has taken so far.
    #[must_use]
    pub fn in_flight(&self, now: Duration) -> Vec<Duration> {
        self.in_flight.values().map(|since| now.saturating_sub(*since)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Duration = Duration::ZERO;

    fn volume(name: &str) -> UniqueName {
        UniqueName::new(&"d".into(), &name.into())
    }

    fn enter(queue: &mut FairQueue, node: &str, volumes: &[&str]) {
        for name in volumes {
            queue.enter(&volume(name), &node.into(), T0, false);
        }
    }

    /// The next operation, kept in flight.
    fn next(queue: &mut FairQueue) -> Option<Permit> {
        queue.take(T0)
    }

    #[test]
    fn the_next_node_is_found_without_visiting_all_that_wait() {
        let visited = |nodes: u32| {
            let mut queue = FairQueue::new(2);
            for node in 0..nodes {
                enter(&mut queue, &node.to_string(), &["a", "b"]);
            }
            let before = visits::total();
            for _ in 0..100 {
                let mut permit = next(&mut queue).expect("somebody waits");
                queue.release(&mut permit);
                queue.finish(&mut permit);
            }
            visits::total() - before
        };
        assert_eq!(visited(1_000), visited(10_000));
        assert!(visited(1_000) <= 100);
    }

    fn shown(permit: &Permit) -> String {
        format!("{}/{}", permit.node, permit.volume.as_str().rsplit('^').next().unwrap_or(""))
    }

    /// Starts every waiting operation, one after the other.
    fn order(queue: &mut FairQueue) -> Vec<String> {
        let mut order = Vec::new();
        while let Some(mut permit) = next(queue) {
            order.push(shown(&permit));
            queue.finish(&mut permit);
        }
        order
    }

    #[test]
    fn nodes_take_turns_whatever_they_bring() {
        let mut queue = FairQueue::new(1);
        enter(&mut queue, "a", &["1", "2", "3", "4"]);
        enter(&mut queue, "b", &["5"]);
        enter(&mut queue, "c", &["6", "7"]);
        assert_eq!(order(&mut queue), ["a/1", "b/5", "c/6", "a/2", "c/7", "a/3", "a/4"]);
    }

    #[test]
    fn a_free_place_goes_to_the_node_with_the_fewest() {
        let mut queue = FairQueue::new(3);
        enter(&mut queue, "a", &["1", "2", "3", "4"]);
        let mut first = next(&mut queue).expect("a permit");
        let second = next(&mut queue).expect("a permit");
        assert_eq!((shown(&first), shown(&second)), ("a/1".into(), "a/2".into()));
        enter(&mut queue, "b", &["5", "6"]);
        let third = next(&mut queue).expect("a permit");
        assert_eq!(shown(&third), "b/5");
        assert_eq!(next(&mut queue), None, "all permits are taken");
        queue.release(&mut first);
        queue.release(&mut first);
        // Both nodes have one permit now; a was served before b.
        assert_eq!(next(&mut queue).map(|permit| shown(&permit)), Some("a/3".into()));
        assert_eq!(next(&mut queue), None, "a permit is given back once");
    }

    #[test]
    fn what_somebody_waits_for_goes_first() {
        let mut queue = FairQueue::new(1);
        enter(&mut queue, "a", &["1", "2", "3"]);
        queue.enter(&volume("3"), &"a".into(), Duration::from_secs(9), true);
        queue.enter(&volume("9"), &"z".into(), T0, true);
        queue.enter(&volume("9"), &"z".into(), T0, false);
        assert_eq!(queue.depth(), 4, "nobody waits twice");
        assert_eq!(queue.oldest(Duration::from_secs(20)), Duration::from_secs(20));
        assert_eq!(order(&mut queue), ["a/3", "z/9", "a/1", "a/2"]);
    }

    #[test]
    fn who_steps_out_is_not_called() {
        let mut queue = FairQueue::new(1);
        queue.enter(&volume("1"), &"a".into(), Duration::from_secs(3), false);
        queue.enter(&volume("1"), &"b".into(), T0, true);
        assert!(queue.waits(&volume("1")) && !queue.waits(&volume("0")));
        assert_eq!(queue.leave(&volume("1"), &"a".into()), Some(Duration::from_secs(3)));
        assert_eq!(queue.leave(&volume("1"), &"a".into()), None);
        assert!(queue.waits(&volume("1")));
        assert_eq!(order(&mut queue), ["b/1"]);
        assert!(!queue.waits(&volume("1")));
    }

    #[test]
    fn ages_count_until_the_permit_and_until_the_verdict() {
        let at = Duration::from_secs;
        let mut queue = FairQueue::new(1);
        assert_eq!(queue.oldest(at(5)), T0);
        queue.enter(&volume("1"), &"a".into(), at(1), false);
        queue.enter(&volume("2"), &"a".into(), at(2), false);
        let mut permit = queue.take(at(3)).expect("a permit");
        assert_eq!((queue.depth(), queue.oldest(at(10))), (1, at(8)));
        queue.release(&mut permit);
        assert_eq!(queue.in_flight(at(10)), [at(7)], "it still waits for its verdict");
        queue.finish(&mut permit);
        assert!(queue.in_flight(at(10)).is_empty());
    }
}
