//! Decides which Event object an occurrence belongs to.
//!
//! Three rules, as the Go recorder has them: equal occurrences share one object with a count; from
//! the tenth different message of one reason within ten minutes on they share a combined object; a
//! source may make at most 25 new Event objects about one object at once, and one more every five minutes.
//! Counts of existing objects are never dropped, only written less often.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

use super::{EventType, Occurrence};
use crate::bucket::TokenBucket;

const COMBINE_AFTER: usize = 10;
const COMBINE_WINDOW: Duration = Duration::from_secs(600);
const SPAM_BURST: u32 = 25;
const SPAM_PER_SECOND: f64 = 1.0 / 300.0;
/// Most identities remembered per map; the oldest go first.
const REMEMBERED: usize = 4096;
/// Prefix of combined messages, as the Go recorder writes it.
const COMBINED: &str = "(combined from similar events): ";

/// The object, type and reason of an event, without its message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Topic {
    object: super::ObjectRef,
    kind: EventType,
    reason: String,
}

/// The identity of one Event object: topic and message; no message for a combined one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct EventKey {
    topic: Topic,
    message: Option<String>,
}

/// An Event object that was written.
#[derive(Debug, Clone)]
pub(super) struct Written {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) count: u64,
}

/// What to write for an occurrence.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) key: EventKey,
    /// The message to write, with the prefix if it is a combined one.
    pub(super) message: String,
    /// The object to count up; `None` makes a new one.
    pub(super) written: Option<Written>,
}

struct Similar {
    messages: BTreeSet<String>,
    since: Instant,
}

#[derive(Default)]
pub(super) struct Correlator {
    written: Remembered<EventKey, Written>,
    similar: Remembered<Topic, Similar>,
    spam: Remembered<super::ObjectRef, TokenBucket>,
}

impl Correlator {
    /// The Event object that this occurrence belongs to; `None` if it is spam.
    pub(super) fn correlate(&mut self, occurrence: &Occurrence) -> Option<Decision> {
        let topic = Topic {
            object: occurrence.identity(),
            kind: occurrence.kind,
            reason: occurrence.reason.clone(),
        };
        let combined = self.is_similar_flood(&topic, &occurrence.message);
        let message = if combined {
            format!("{COMBINED}{}", occurrence.message)
        } else {
            occurrence.message.clone()
        };
        let key = EventKey { topic, message: (!combined).then(|| occurrence.message.clone()) };
        let written = self.written.get(&key).cloned();
        if written.is_none() && !self.may_make_another(&key.topic.object) {
            return None;
        }
        Some(Decision { key, message, written })
    }

    pub(super) fn remember(&mut self, key: EventKey, written: Written) {
        self.written.insert(key, written);
    }

    /// Forgets an Event object, for instance because the server has expired it.
    pub(super) fn forget(&mut self, key: &EventKey) {
        self.written.remove(key);
    }

    fn is_similar_flood(&mut self, topic: &Topic, message: &str) -> bool {
        let fresh = || Similar { messages: BTreeSet::new(), since: Instant::now() };
        let similar = self.similar.entry(topic.clone(), fresh);
        if similar.since.elapsed() > COMBINE_WINDOW {
            similar.messages.clear();
        }
        similar.since = Instant::now();
        if similar.messages.contains(message) {
            return false;
        }
        if similar.messages.len() + 1 >= COMBINE_AFTER {
            return true;
        }
        similar.messages.insert(message.to_owned());
        false
    }

    fn may_make_another(&mut self, object: &super::ObjectRef) -> bool {
        let fresh = || TokenBucket::new(SPAM_PER_SECOND, SPAM_BURST);
        self.spam.entry(object.clone(), fresh).try_take()
    }
}

/// A map that forgets its least recently used entries.
struct Remembered<K, V> {
    entries: HashMap<K, (V, u64)>,
    clock: u64,
}

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), clock: 0 }
    }
}

impl<K: Hash + Eq + Clone, V> Remembered<K, V> {
    fn get(&mut self, key: &K) -> Option<&V> {
        self.clock += 1;
        let (value, used) = self.entries.get_mut(key)?;
        *used = self.clock;
        Some(value)
    }

    fn entry(&mut self, key: K, fresh: impl FnOnce() -> V) -> &mut V {
        self.make_room(&key);
        self.clock += 1;
        let (value, used) = self.entries.entry(key).or_insert_with(|| (fresh(), 0));
        *used = self.clock;
        value
    }

    fn insert(&mut self, key: K, value: V) {
        self.make_room(&key);
        self.clock += 1;
        self.entries.insert(key, (value, self.clock));
    }

    fn remove(&mut self, key: &K) {
        self.entries.remove(key);
    }

    /// Drops the older half when full, so that the scan is rare.
    fn make_room(&mut self, key: &K) {
        if self.entries.len() < REMEMBERED || self.entries.contains_key(key) {
            return;
        }
        let mut uses: Vec<u64> = self.entries.values().map(|(_, used)| *used).collect();
        uses.sort_unstable();
        let middle = uses[uses.len() / 2];
        self.entries.retain(|_, (_, used)| *used > middle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occurrence(reason: &str, message: &str) -> Occurrence {
        Occurrence {
            object: super::super::ObjectRef { name: "data".into(), ..Default::default() },
            kind: EventType::Warning,
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    fn write(correlator: &mut Correlator, occurrence: &Occurrence) -> Option<String> {
        let decision = correlator.correlate(occurrence)?;
        let written = Written { namespace: "default".into(), name: "e".into(), count: 1 };
        correlator.remember(decision.key, written);
        Some(decision.message)
    }

    #[tokio::test(start_paused = true)]
    async fn the_tenth_different_message_is_combined() {
        let mut correlator = Correlator::default();
        for i in 0..9 {
            let message = format!("m{i}");
            assert_eq!(write(&mut correlator, &occurrence("R", &message)), Some(message));
        }
        let combined = correlator.correlate(&occurrence("R", "m9")).expect("correlated");
        assert_eq!(combined.message, "(combined from similar events): m9");
        assert!(combined.written.is_none());
        write(&mut correlator, &occurrence("R", "m9"));
        let next = correlator.correlate(&occurrence("R", "m10")).expect("correlated");
        assert!(next.written.is_some(), "all further ones share the combined object");
        let known = correlator.correlate(&occurrence("R", "m3")).expect("correlated");
        assert_eq!(known.message, "m3", "known messages keep their own object");
        tokio::time::advance(Duration::from_secs(601)).await;
        assert_eq!(write(&mut correlator, &occurrence("R", "m12")), Some("m12".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_makes_25_objects_about_one_thing_and_then_one_every_five_minutes() {
        let mut correlator = Correlator::default();
        let made = (0..40)
            .filter(|i| write(&mut correlator, &occurrence(&format!("R{i}"), "m")).is_some())
            .count();
        assert_eq!(made, 25);
        assert!(
            correlator.correlate(&occurrence("R0", "m")).is_some(),
            "counting up is never spam"
        );
        tokio::time::advance(Duration::from_secs(301)).await;
        assert!(write(&mut correlator, &occurrence("R40", "m")).is_some());
        assert!(write(&mut correlator, &occurrence("R41", "m")).is_none());
    }

    #[test]
    fn memory_is_bounded() {
        let mut map = Remembered::default();
        for i in 0..3 * REMEMBERED {
            map.insert(i, ());
        }
        assert!(map.entries.len() <= REMEMBERED);
        assert!(map.get(&(3 * REMEMBERED - 1)).is_some());
    }
}
