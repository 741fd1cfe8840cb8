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
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use crate::{model::NodeName, names::UniqueName};

/// Waiting operations, by node and in the order they came.
type Lines = BTreeMap<NodeName, VecDeque<(UniqueName, Duration)>>;

/// Operations of one kind.
#[derive(Debug)]
pub struct FairQueue {
    permits: usize,
    urgent: Lines,
    plain: Lines,
    /// Waiting operations, and whether each is urgent.
    waiting: BTreeMap<(UniqueName, NodeName), bool>,
    nodes: BTreeMap<NodeName, Served>,
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
            urgent: Lines::new(),
            plain: Lines::new(),
            waiting: BTreeMap::new(),
            nodes: BTreeMap::new(),
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
        let lines = if urgent { &mut self.urgent } else { &mut self.plain };
        lines.entry(node.clone()).or_default().push_back((volume.clone(), since));
    }

    /// Removes a waiting operation; returns since when it waited.
    pub fn leave(&mut self, volume: &UniqueName, node: &NodeName) -> Option<Duration> {
        let urgent = self.waiting.remove(&(volume.clone(), node.clone()))?;
        let lines = if urgent { &mut self.urgent } else { &mut self.plain };
        let line = lines.get_mut(node)?;
        let at = line.iter().position(|(waiting, _)| waiting == volume)?;
        let (_, since) = line.remove(at)?;
        if line.is_empty() {
            lines.remove(node);
        }
        Some(since)
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
        let lines = [&self.urgent, &self.plain].into_iter().filter_map(|lines| lines.get(node));
        lines.flatten().map(|(volume, _)| volume.clone()).collect()
    }

    /// Starts the next waiting operation, if a permit is free.
    pub fn take(&mut self, now: Duration) -> Option<Permit> {
        if self.taken >= self.permits {
            return None;
        }
        let lines = if self.urgent.is_empty() { &mut self.plain } else { &mut self.urgent };
        let served = |node: &NodeName| self.nodes.get(node).copied().unwrap_or_default();
        let node = lines.keys().min_by_key(|node| served(node))?.clone();
        let line = lines.get_mut(&node)?;
        let (volume, _) = line.pop_front()?;
        if line.is_empty() {
            lines.remove(&node);
        }
        self.waiting.remove(&(volume.clone(), node.clone()));
        self.turns += 1;
        let served = self.nodes.entry(node.clone()).or_default();
        served.permits += 1;
        served.last_turn = self.turns;
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
        if let Some(served) = self.nodes.get_mut(&permit.node) {
            served.permits = served.permits.saturating_sub(1);
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
        let lines = self.urgent.values().chain(self.plain.values());
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
