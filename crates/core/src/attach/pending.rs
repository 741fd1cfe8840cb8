//! One operation at a time for each volume, and a pause after a failure.
//!
//! The key of an operation is a volume and, for volumes that may be on several nodes at once, a
//! node. A key without a node stands for all of them: an exclusive volume has one operation in
//! the whole cluster.

use std::{collections::BTreeMap, time::Duration};

use crate::backoff::Backoff;
use crate::{model::NodeName, names::UniqueName};

/// The pause after a failure.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(122));

/// What an operation does. A pause after one kind does not hold back the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Put a volume on a node.
    Attach,
    /// Take it away.
    Detach,
}

/// What an operation works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationKey {
    pub volume: UniqueName,
    /// The node; `None` collides with every node.
    pub node: Option<NodeName>,
    /// Where the operation takes place, whatever it collides with: a node that failed does not
    /// make another one pause.
    place: NodeName,
}

impl OperationKey {
    /// The key for one volume on one node.
    #[must_use]
    pub fn new(volume: &UniqueName, node: &NodeName, shareable: bool) -> Self {
        Self { volume: volume.clone(), node: shareable.then(|| node.clone()), place: node.clone() }
    }

    /// Whether both stand for the same slot.
    fn is_slot_of(&self, other: &Self) -> bool {
        self.volume == other.volume && self.node == other.node
    }

    fn collides(&self, other: &Self) -> bool {
        let nodes_meet = match (&self.node, &other.node) {
            (Some(mine), Some(theirs)) => mine == theirs,
            _ => true,
        };
        self.volume == other.volume && nodes_meet
    }
}

/// Why an operation may not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another operation on the same volume is still running.
    #[error("an operation on this volume is already running")]
    Pending,
    /// The same operation failed not long ago.
    #[error("no retries permitted until {} after start", crate::words::time(*.until))]
    Paused {
        /// When it may be tried again.
        until: Duration,
    },
}

#[derive(Debug)]
struct Entry {
    key: OperationKey,
    operation: Operation,
    pending: bool,
    pauses: Pauses,
}

/// One pause for each kind of operation on each node. Two operations that fail in turn must both wait: if one
/// ended the other's pause, an exclusive volume that one node cannot let go and another wants
/// would be tried without end.
#[derive(Debug, Default)]
struct Pauses {
    attach: BTreeMap<NodeName, Pause>,
    detach: BTreeMap<NodeName, Pause>,
}

impl Pauses {
    fn of(&mut self, operation: Operation) -> &mut BTreeMap<NodeName, Pause> {
        match operation {
            Operation::Attach => &mut self.attach,
            Operation::Detach => &mut self.detach,
        }
    }

    fn after(&self, operation: Operation, node: &NodeName) -> Option<Pause> {
        match operation {
            Operation::Attach => self.attach.get(node).copied(),
            Operation::Detach => self.detach.get(node).copied(),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    since: Duration,
    length: Duration,
}

impl Pause {
    fn until(self) -> Duration {
        self.since + self.length
    }
}

/// All operations that run, and all that failed and wait.
#[derive(Debug, Default)]
pub struct PendingOperations {
    volumes: BTreeMap<UniqueName, Vec<Entry>>,
}

impl PendingOperations {
    /// Of several colliding entries a running one decides, else the one with exactly this key.
    fn find(&self, key: &OperationKey) -> Option<(usize, &Entry)> {
        let entries = self.volumes.get(&key.volume)?;
        let colliding = || entries.iter().enumerate().filter(|(_, entry)| entry.key.collides(key));
        let running = colliding().find(|(_, entry)| entry.pending);
        let exact = || colliding().find(|(_, entry)| entry.key.is_slot_of(key));
        running.or_else(exact).or_else(|| colliding().next())
    }

    /// Whether something runs on this key.
    #[must_use]
    pub fn is_pending(&self, key: &OperationKey) -> bool {
        self.find(key).is_some_and(|(_, entry)| entry.pending)
    }

    /// Whether `operation` might start on this key now.
    pub fn check(
        &self,
        key: &OperationKey,
        operation: Operation,
        now: Duration,
    ) -> Result<(), Refused> {
        let Some((_, entry)) = self.find(key) else { return Ok(()) };
        if entry.pending {
            return Err(Refused::Pending);
        }
        match entry.pauses.after(operation, &key.place) {
            Some(pause) if now < pause.until() => Err(Refused::Paused { until: pause.until() }),
            _ => Ok(()),
        }
    }

    /// Starts an operation. A pause left by the other kind of operation does not
    /// hold it back, and ends when this one succeeds.
    pub fn start(
        &mut self,
        key: &OperationKey,
        operation: Operation,
        now: Duration,
    ) -> Result<(), Refused> {
        self.check(key, operation, now)?;
        let found = self.find(key).map(|(at, _)| at);
        let entries = self.volumes.entry(key.volume.clone()).or_default();
        let Some(at) = found else {
            entries.push(Entry {
                key: key.clone(),
                operation,
                pending: true,
                pauses: Pauses::default(),
            });
            return Ok(());
        };
        let entry = &mut entries[at];
        entry.key = key.clone();
        entry.operation = operation;
        entry.pending = true;
        Ok(())
    }

    /// Ends an operation that succeeded: nothing is remembered.
    pub fn succeed(&mut self, key: &OperationKey) {
        let Some(entries) = self.volumes.get_mut(&key.volume) else { return };
        entries.retain(|entry| !(entry.pending && entry.key == *key));
        if entries.is_empty() {
            self.volumes.remove(&key.volume);
        }
    }

    /// Ends the pauses of a volume: what they waited for has happened.
    pub fn end_pauses(&mut self, volume: &UniqueName) {
        let Some(entries) = self.volumes.get_mut(volume) else { return };
        entries.retain(|entry| entry.pending);
        if entries.is_empty() {
            self.volumes.remove(volume);
        }
    }

    /// Ends an operation that failed, and returns when it may be tried again.
    pub fn fail(&mut self, key: &OperationKey, now: Duration) -> Duration {
        let Some(entries) = self.volumes.get_mut(&key.volume) else { return now };
        let running = entries.iter_mut().find(|entry| entry.pending && entry.key == *key);
        let Some(entry) = running else { return now };
        let pauses = entry.pauses.of(entry.operation);
        let length = BACKOFF.following(pauses.get(&key.place).map(|pause| pause.length));
        let pause = Pause { since: now, length };
        pauses.insert(key.place.clone(), pause);
        entry.pending = false;
        pause.until()
    }
}

#[cfg(test)]
mod tests {
    use super::{Operation::*, *};

    const T0: Duration = Duration::ZERO;

    fn volume() -> UniqueName {
        UniqueName::new(&"d".into(), &"v".into())
    }

    fn key(node: &str, shareable: bool) -> OperationKey {
        OperationKey::new(&volume(), &node.into(), shareable)
    }

    #[test]
    fn exclusive_volumes_have_one_slot_and_shared_ones_one_per_node() {
        // case: attach-detach/O1
        let mut pending = PendingOperations::default();
        assert_eq!(pending.start(&key("a", false), Attach, T0), Ok(()));
        assert_eq!(pending.start(&key("b", false), Attach, T0), Err(Refused::Pending));
        // case: attach-detach/O2
        let mut pending = PendingOperations::default();
        assert_eq!(pending.start(&key("a", true), Attach, T0), Ok(()));
        assert_eq!(pending.start(&key("b", true), Attach, T0), Ok(()));
        // case: attach-detach/O5
        assert_eq!(pending.start(&key("c", false), Attach, T0), Err(Refused::Pending));
        assert!(pending.is_pending(&key("any", false)));
    }

    #[test]
    fn a_pause_holds_back_only_the_operation_that_failed() {
        // case: attach-detach/O4
        let mut pending = PendingOperations::default();
        pending.start(&key("a", false), Attach, T0).expect("free");
        let until = pending.fail(&key("a", false), T0);
        assert_eq!(until, BACKOFF.after(0));
        assert_eq!(pending.start(&key("a", false), Attach, T0), Err(Refused::Paused { until }));
        assert_eq!(pending.start(&key("a", false), Detach, T0), Ok(()));
        pending.succeed(&key("a", false));
        assert_eq!(pending.start(&key("a", false), Attach, T0), Ok(()), "the pause was reset");
    }

    #[test]
    fn a_node_that_failed_does_not_make_another_pause() {
        let mut pending = PendingOperations::default();
        pending.start(&key("a", false), Attach, T0).expect("free");
        let until = pending.fail(&key("a", false), T0);
        pending.start(&key("b", false), Attach, T0).expect("not its pause");
        pending.fail(&key("b", false), T0);
        for node in ["a", "b"] {
            let again = pending.start(&key(node, false), Attach, T0);
            assert_eq!(again, Err(Refused::Paused { until }), "{node}");
        }
    }

    #[test]
    fn two_operations_that_fail_in_turn_both_pause() {
        let mut pending = PendingOperations::default();
        pending.start(&key("a", false), Detach, T0).expect("free");
        let until = pending.fail(&key("a", false), T0);
        pending.start(&key("b", false), Attach, T0).expect("the other kind");
        pending.fail(&key("b", false), T0);
        let paused = Err(Refused::Paused { until });
        assert_eq!(pending.start(&key("a", false), Detach, T0), paused);
        assert_eq!(pending.start(&key("b", false), Attach, T0), paused);
        pending.start(&key("a", false), Detach, until).expect("its pause is over");
        pending.succeed(&key("a", false));
        assert_eq!(pending.start(&key("b", false), Attach, T0), Ok(()), "success ends all pauses");
    }

    #[test]
    fn the_exact_slot_decides_when_nothing_runs() {
        // case: attach-detach/O6
        let mut pending = PendingOperations::default();
        for node in ["a", "b"] {
            pending.start(&key(node, true), Attach, T0).expect("free");
            pending.fail(&key(node, true), T0);
        }
        let late = Duration::from_secs(10);
        pending.start(&key("", false), Attach, late).expect("nothing runs");
        let until = pending.fail(&key("", false), late);
        assert_eq!(pending.check(&key("b", true), Attach, late), Ok(()), "its own pause is over");
        let wildcard = pending.check(&key("", false), Attach, late);
        assert_eq!(wildcard, Err(Refused::Paused { until }));
    }

    #[test]
    fn a_pause_ends_early_when_its_reason_is_gone() {
        let mut pending = PendingOperations::default();
        pending.start(&key("a", false), Attach, T0).expect("free");
        pending.end_pauses(&volume());
        assert!(pending.is_pending(&key("a", false)), "what runs goes on");
        pending.fail(&key("a", false), T0);
        pending.end_pauses(&volume());
        assert_eq!(pending.check(&key("a", false), Attach, T0), Ok(()));
    }

    #[test]
    fn pauses_double_up_to_their_limit() {
        let mut pending = PendingOperations::default();
        let (mut now, mut pauses) = (T0, Vec::new());
        for _ in 0..10 {
            pending.start(&key("a", false), Attach, now).expect("the pause is over");
            let until = pending.fail(&key("a", false), now);
            pauses.push((until - now).as_millis());
            now = until;
        }
        let want = [500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 122_000, 122_000];
        assert_eq!(pauses, want);
    }
}
