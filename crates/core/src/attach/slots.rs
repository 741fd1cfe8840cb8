//! One operation at a time for each volume, and a pause after a failure.
//!
//! The key of an operation is a volume and, for volumes that may be on several nodes at once, a
//! node. A key without a node stands for all of them: an exclusive volume has one operation in
//! the whole cluster.

use std::{collections::BTreeMap, time::Duration};

use crate::backoff::Backoff;
use crate::names::UniqueName;

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
pub struct SlotKey {
    /// The volume.
    pub volume: UniqueName,
    /// The node; `None` collides with every node.
    pub node: Option<String>,
}

impl SlotKey {
    /// The key for one volume on one node.
    #[must_use]
    pub fn new(volume: &UniqueName, node: &str, shareable: bool) -> Self {
        Self { volume: volume.clone(), node: shareable.then(|| node.to_owned()) }
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
    #[error("no retries permitted until {until:?} after start")]
    Paused {
        /// When it may be tried again.
        until: Duration,
    },
}

#[derive(Debug)]
struct Slot {
    key: SlotKey,
    operation: Operation,
    pending: bool,
    pauses: Pauses,
}

/// One pause for each kind of operation. Two operations that fail in turn must both wait: if one
/// ended the other's pause, an exclusive volume that one node cannot let go and another wants
/// would be tried without end.
#[derive(Debug, Default)]
struct Pauses {
    attach: Option<Pause>,
    detach: Option<Pause>,
}

impl Pauses {
    fn of(&mut self, operation: Operation) -> &mut Option<Pause> {
        match operation {
            Operation::Attach => &mut self.attach,
            Operation::Detach => &mut self.detach,
        }
    }

    fn after(&self, operation: Operation) -> Option<Pause> {
        match operation {
            Operation::Attach => self.attach,
            Operation::Detach => self.detach,
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
pub struct Slots {
    volumes: BTreeMap<UniqueName, Vec<Slot>>,
}

impl Slots {
    /// Of several colliding slots a running one decides, else the one with exactly this key.
    fn find(&self, key: &SlotKey) -> Option<(usize, &Slot)> {
        let slots = self.volumes.get(&key.volume)?;
        let colliding = || slots.iter().enumerate().filter(|(_, slot)| slot.key.collides(key));
        let pending = colliding().find(|(_, slot)| slot.pending);
        let exact = || colliding().find(|(_, slot)| slot.key == *key);
        pending.or_else(exact).or_else(|| colliding().next())
    }

    /// Whether something runs on this key.
    #[must_use]
    pub fn is_pending(&self, key: &SlotKey) -> bool {
        self.find(key).is_some_and(|(_, slot)| slot.pending)
    }

    /// Whether `operation` might start on this key now.
    pub fn check(&self, key: &SlotKey, operation: Operation, now: Duration) -> Result<(), Refused> {
        let Some((_, slot)) = self.find(key) else { return Ok(()) };
        if slot.pending {
            return Err(Refused::Pending);
        }
        match slot.pauses.after(operation) {
            Some(pause) if now < pause.until() => Err(Refused::Paused { until: pause.until() }),
            _ => Ok(()),
        }
    }

    /// Takes the slot for an operation. A pause left by the other kind of operation does not
    /// hold it back, and ends when this one succeeds.
    pub fn start(
        &mut self,
        key: &SlotKey,
        operation: Operation,
        now: Duration,
    ) -> Result<(), Refused> {
        self.check(key, operation, now)?;
        let found = self.find(key).map(|(at, _)| at);
        let slots = self.volumes.entry(key.volume.clone()).or_default();
        let Some(at) = found else {
            slots.push(Slot {
                key: key.clone(),
                operation,
                pending: true,
                pauses: Pauses::default(),
            });
            return Ok(());
        };
        let slot = &mut slots[at];
        slot.key = key.clone();
        slot.operation = operation;
        slot.pending = true;
        Ok(())
    }

    /// Frees the slot after a success: nothing is remembered.
    pub fn succeed(&mut self, key: &SlotKey) {
        let Some(slots) = self.volumes.get_mut(&key.volume) else { return };
        slots.retain(|slot| !(slot.pending && slot.key == *key));
        if slots.is_empty() {
            self.volumes.remove(&key.volume);
        }
    }

    /// Ends the pauses of a volume: what they waited for has happened.
    pub fn end_pauses(&mut self, volume: &UniqueName) {
        let Some(slots) = self.volumes.get_mut(volume) else { return };
        slots.retain(|slot| slot.pending);
        if slots.is_empty() {
            self.volumes.remove(volume);
        }
    }

    /// Frees the slot after a failure, and returns when it may be tried again.
    pub fn fail(&mut self, key: &SlotKey, now: Duration) -> Duration {
        let Some(slots) = self.volumes.get_mut(&key.volume) else { return now };
        let running = slots.iter_mut().find(|slot| slot.pending && slot.key == *key);
        let Some(slot) = running else { return now };
        let last = slot.pauses.of(slot.operation);
        let length = BACKOFF.following(last.as_ref().map(|pause| pause.length));
        let pause = Pause { since: now, length };
        *last = Some(pause);
        slot.pending = false;
        pause.until()
    }
}

#[cfg(test)]
mod tests {
    use super::{Operation::*, *};

    const T0: Duration = Duration::ZERO;

    fn volume() -> UniqueName {
        UniqueName::new("d", "v")
    }

    fn key(node: &str, shareable: bool) -> SlotKey {
        SlotKey::new(&volume(), node, shareable)
    }

    #[test]
    fn exclusive_volumes_have_one_slot_and_shared_ones_one_per_node() {
        // case: attach-detach/O1
        let mut slots = Slots::default();
        assert_eq!(slots.start(&key("a", false), Attach, T0), Ok(()));
        assert_eq!(slots.start(&key("b", false), Attach, T0), Err(Refused::Pending));
        // case: attach-detach/O2
        let mut slots = Slots::default();
        assert_eq!(slots.start(&key("a", true), Attach, T0), Ok(()));
        assert_eq!(slots.start(&key("b", true), Attach, T0), Ok(()));
        // case: attach-detach/O5
        assert_eq!(slots.start(&key("c", false), Attach, T0), Err(Refused::Pending));
        assert!(slots.is_pending(&key("any", false)));
    }

    #[test]
    fn a_pause_holds_back_only_the_operation_that_failed() {
        // case: attach-detach/O4
        let mut slots = Slots::default();
        slots.start(&key("a", false), Attach, T0).expect("free");
        let until = slots.fail(&key("a", false), T0);
        assert_eq!(until, BACKOFF.after(0));
        assert_eq!(slots.start(&key("a", false), Attach, T0), Err(Refused::Paused { until }));
        assert_eq!(slots.start(&key("a", false), Detach, T0), Ok(()));
        slots.succeed(&key("a", false));
        assert_eq!(slots.start(&key("a", false), Attach, T0), Ok(()), "the pause was reset");
    }

    #[test]
    fn two_operations_that_fail_in_turn_both_pause() {
        let mut slots = Slots::default();
        slots.start(&key("a", false), Detach, T0).expect("free");
        let until = slots.fail(&key("a", false), T0);
        slots.start(&key("b", false), Attach, T0).expect("the other kind");
        slots.fail(&key("b", false), T0);
        let paused = Err(Refused::Paused { until });
        assert_eq!(slots.start(&key("a", false), Detach, T0), paused);
        assert_eq!(slots.start(&key("b", false), Attach, T0), paused);
        slots.start(&key("a", false), Detach, until).expect("its pause is over");
        slots.succeed(&key("a", false));
        assert_eq!(slots.start(&key("b", false), Attach, T0), Ok(()), "success ends all pauses");
    }

    #[test]
    fn the_exact_slot_decides_when_nothing_runs() {
        // case: attach-detach/O6
        let mut slots = Slots::default();
        for node in ["a", "b"] {
            slots.start(&key(node, true), Attach, T0).expect("free");
            slots.fail(&key(node, true), T0);
        }
        let late = Duration::from_secs(10);
        slots.start(&key("", false), Attach, late).expect("nothing runs");
        let until = slots.fail(&key("", false), late);
        assert_eq!(slots.check(&key("b", true), Attach, late), Ok(()), "its own pause is over");
        let wildcard = slots.check(&key("", false), Attach, late);
        assert_eq!(wildcard, Err(Refused::Paused { until }));
    }

    #[test]
    fn a_pause_ends_early_when_its_reason_is_gone() {
        let mut slots = Slots::default();
        slots.start(&key("a", false), Attach, T0).expect("free");
        slots.end_pauses(&volume());
        assert!(slots.is_pending(&key("a", false)), "what runs goes on");
        slots.fail(&key("a", false), T0);
        slots.end_pauses(&volume());
        assert_eq!(slots.check(&key("a", false), Attach, T0), Ok(()));
    }

    #[test]
    fn pauses_double_up_to_their_limit() {
        let mut slots = Slots::default();
        let (mut now, mut pauses) = (T0, Vec::new());
        for _ in 0..10 {
            slots.start(&key("a", false), Attach, now).expect("the pause is over");
            let until = slots.fail(&key("a", false), now);
            pauses.push((until - now).as_millis());
            now = until;
        }
        let want = [500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 122_000, 122_000];
        assert_eq!(pauses, want);
    }
}
