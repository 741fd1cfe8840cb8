//! Whose turn it is.
//!
//! Attaches and detaches wait in a lane each, so that a thousand nodes that let go do not hold up
//! one pod that starts. A lane has a few places for operations that are sending their requests;
//! one that only waits for the driver's verdict takes no place. Free places go to the node that
//! has the fewest, and among equals to the one that was served longest ago. What something else
//! waits for (a detach from one node before the attach to the next) goes first.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use crate::names::UniqueName;

/// Those who wait, by node and in the order they came.
type Lines = BTreeMap<String, VecDeque<(UniqueName, Duration)>>;

/// Operations of one kind.
#[derive(Debug)]
pub struct Lane {
    places: usize,
    urgent: Lines,
    plain: Lines,
    /// Who waits, and whether it is urgent.
    waiting: BTreeMap<(UniqueName, String), bool>,
    nodes: BTreeMap<String, Served>,
    taken: usize,
    /// Start of each operation under way, those without a place included.
    under_way: BTreeMap<u64, Duration>,
    turns: u64,
}

/// What a node has had of the lane.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Served {
    places: usize,
    last_turn: u64,
}

/// A turn: first with a place, then without, until it is [finished](Lane::finish).
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Which volume.
    pub volume: UniqueName,
    /// Which node.
    pub node: String,
    id: u64,
    has_place: bool,
}

impl Lane {
    /// A lane with this many places, at least one.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self {
            places: places.max(1),
            urgent: Lines::new(),
            plain: Lines::new(),
            waiting: BTreeMap::new(),
            nodes: BTreeMap::new(),
            taken: 0,
            under_way: BTreeMap::new(),
            turns: 0,
        }
    }

    /// Lines up. One that waits already keeps its place, or moves up if it has become urgent.
    pub fn enter(&mut self, volume: &UniqueName, node: &str, now: Duration, urgent: bool) {
        let key = (volume.clone(), node.to_owned());
        let since = match self.waiting.get(&key) {
            Some(was_urgent) if *was_urgent || !urgent => return,
            Some(_) => self.leave(volume, node).unwrap_or(now),
            None => now,
        };
        self.waiting.insert(key, urgent);
        let lines = if urgent { &mut self.urgent } else { &mut self.plain };
        lines.entry(node.to_owned()).or_default().push_back((volume.clone(), since));
    }

    /// Steps out of the line; returns since when it waited.
    pub fn leave(&mut self, volume: &UniqueName, node: &str) -> Option<Duration> {
        let urgent = self.waiting.remove(&(volume.clone(), node.to_owned()))?;
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
        let from = (volume.clone(), String::new());
        self.waiting.range(from..).next().is_some_and(|((found, _), _)| found == volume)
    }

    /// The volumes that wait on this node.
    #[must_use]
    pub fn waiting_on(&self, node: &str) -> Vec<UniqueName> {
        let lines = [&self.urgent, &self.plain].into_iter().filter_map(|lines| lines.get(node));
        lines.flatten().map(|(volume, _)| volume.clone()).collect()
    }

    /// The next turn, if a place is free and somebody waits.
    pub fn take(&mut self, now: Duration) -> Option<Ticket> {
        if self.taken >= self.places {
            return None;
        }
        let lines = if self.urgent.is_empty() { &mut self.plain } else { &mut self.urgent };
        let served = |node: &String| self.nodes.get(node).copied().unwrap_or_default();
        let node = lines.keys().min_by_key(|node| served(node))?.clone();
        let line = lines.get_mut(&node)?;
        let (volume, _) = line.pop_front()?;
        if line.is_empty() {
            lines.remove(&node);
        }
        self.waiting.remove(&(volume.clone(), node.clone()));
        self.turns += 1;
        let served = self.nodes.entry(node.clone()).or_default();
        served.places += 1;
        served.last_turn = self.turns;
        self.taken += 1;
        self.under_way.insert(self.turns, now);
        Some(Ticket { volume, node, id: self.turns, has_place: true })
    }

    /// All requests are sent: the place is free for the next one.
    pub fn free_place(&mut self, ticket: &mut Ticket) {
        if !std::mem::take(&mut ticket.has_place) {
            return;
        }
        self.taken = self.taken.saturating_sub(1);
        if let Some(served) = self.nodes.get_mut(&ticket.node) {
            served.places = served.places.saturating_sub(1);
        }
        if self.taken == 0 && self.waiting.is_empty() {
            // Nobody competes: there is no order to remember.
            self.nodes.clear();
        }
    }

    /// The operation has ended, however.
    pub fn finish(&mut self, ticket: &mut Ticket) {
        self.free_place(ticket);
        self.under_way.remove(&ticket.id);
    }

    /// How many wait for a place.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.waiting.len()
    }

    /// How long the one that waits longest for a place has waited.
    #[must_use]
    pub fn oldest(&self, now: Duration) -> Duration {
        let lines = self.urgent.values().chain(self.plain.values());
        // One that became urgent stands behind younger ones, so the front is not always oldest.
        let since = lines.flatten().map(|(_, since)| *since).min();
        since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// How long each operation under way has taken so far.
    #[must_use]
    pub fn under_way(&self, now: Duration) -> Vec<Duration> {
        self.under_way.values().map(|since| now.saturating_sub(*since)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Duration = Duration::ZERO;

    fn volume(name: &str) -> UniqueName {
        UniqueName::new("d", name)
    }

    fn enter(lane: &mut Lane, node: &str, volumes: &[&str]) {
        for name in volumes {
            lane.enter(&volume(name), node, T0, false);
        }
    }

    /// The next turn as `node/volume`, kept under way.
    fn next(lane: &mut Lane) -> Option<Ticket> {
        lane.take(T0)
    }

    fn shown(ticket: &Ticket) -> String {
        format!("{}/{}", ticket.node, ticket.volume.as_str().rsplit('^').next().unwrap_or(""))
    }

    /// Gives every waiting one its turn, one after the other.
    fn order(lane: &mut Lane) -> Vec<String> {
        let mut order = Vec::new();
        while let Some(mut ticket) = next(lane) {
            order.push(shown(&ticket));
            lane.finish(&mut ticket);
        }
        order
    }

    #[test]
    fn nodes_take_turns_whatever_they_bring() {
        let mut lane = Lane::new(1);
        enter(&mut lane, "a", &["1", "2", "3", "4"]);
        enter(&mut lane, "b", &["5"]);
        enter(&mut lane, "c", &["6", "7"]);
        assert_eq!(order(&mut lane), ["a/1", "b/5", "c/6", "a/2", "c/7", "a/3", "a/4"]);
    }

    #[test]
    fn a_free_place_goes_to_the_node_with_the_fewest() {
        let mut lane = Lane::new(3);
        enter(&mut lane, "a", &["1", "2", "3", "4"]);
        let mut first = next(&mut lane).expect("a place");
        let second = next(&mut lane).expect("a place");
        assert_eq!((shown(&first), shown(&second)), ("a/1".into(), "a/2".into()));
        enter(&mut lane, "b", &["5", "6"]);
        let third = next(&mut lane).expect("a place");
        assert_eq!(shown(&third), "b/5");
        assert_eq!(next(&mut lane), None, "all places are taken");
        lane.free_place(&mut first);
        lane.free_place(&mut first);
        // Both nodes have one place now; a was served before b.
        assert_eq!(next(&mut lane).map(|ticket| shown(&ticket)), Some("a/3".into()));
        assert_eq!(next(&mut lane), None, "a place is given back once");
    }

    #[test]
    fn what_somebody_waits_for_goes_first() {
        let mut lane = Lane::new(1);
        enter(&mut lane, "a", &["1", "2", "3"]);
        lane.enter(&volume("3"), "a", Duration::from_secs(9), true);
        lane.enter(&volume("9"), "z", T0, true);
        lane.enter(&volume("9"), "z", T0, false);
        assert_eq!(lane.depth(), 4, "nobody waits twice");
        assert_eq!(lane.oldest(Duration::from_secs(20)), Duration::from_secs(20));
        assert_eq!(order(&mut lane), ["a/3", "z/9", "a/1", "a/2"]);
    }

    #[test]
    fn who_steps_out_is_not_called() {
        let mut lane = Lane::new(1);
        lane.enter(&volume("1"), "a", Duration::from_secs(3), false);
        lane.enter(&volume("1"), "b", T0, true);
        assert!(lane.waits(&volume("1")) && !lane.waits(&volume("0")));
        assert_eq!(lane.leave(&volume("1"), "a"), Some(Duration::from_secs(3)));
        assert_eq!(lane.leave(&volume("1"), "a"), None);
        assert!(lane.waits(&volume("1")));
        assert_eq!(order(&mut lane), ["b/1"]);
        assert!(!lane.waits(&volume("1")));
    }

    #[test]
    fn ages() {
        let at = Duration::from_secs;
        let mut lane = Lane::new(1);
        assert_eq!(lane.oldest(at(5)), T0);
        lane.enter(&volume("1"), "a", at(1), false);
        lane.enter(&volume("2"), "a", at(2), false);
        let mut ticket = lane.take(at(3)).expect("a place");
        assert_eq!((lane.depth(), lane.oldest(at(10))), (1, at(8)));
        lane.free_place(&mut ticket);
        assert_eq!(lane.under_way(at(10)), [at(7)], "it still waits for its verdict");
        lane.finish(&mut ticket);
        assert!(lane.under_way(at(10)).is_empty());
    }
}
