//! Keeps whole responses to our own writes for the loop that updates the same object next.
//!
//! A write starts from the object as the API has it, with all that a slim record leaves out. What was
//! written a moment ago is at hand; if its version is still the one that was decided on, it need not be
//! read again.

use std::collections::{HashMap, VecDeque};

use longshore_core::model::ObjectKey;
use serde_json::Value;

/// Bounds the memory of a burst.
const MAX_KEPT: usize = 1024;

/// The last writes, oldest out first.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// False until a loop wants them: most loops update nothing that another has just written.
    wanted: bool,
    objects: HashMap<ObjectKey, Value>,
    order: VecDeque<ObjectKey>,
}

impl Recent {
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    pub(super) fn keep(&mut self, key: ObjectKey, object: Value) {
        if !self.wanted {
            return;
        }
        if self.objects.insert(key.clone(), object).is_none() {
            self.order.push_back(key);
        }
        // Keys of taken objects are still in `order`.
        while self.order.len() > MAX_KEPT {
            if let Some(oldest) = self.order.pop_front() {
                self.objects.remove(&oldest);
            }
        }
    }

    /// Takes out the object at exactly this version: the next write makes it old.
    pub(super) fn take(&mut self, key: &ObjectKey, version: &str) -> Option<Value> {
        let object = self.objects.remove(key)?;
        if self.objects.is_empty() {
            // The burst is over.
            *self = Self { wanted: self.wanted, ..Self::default() };
        }
        (object["metadata"]["resourceVersion"] == version).then_some(object)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(version: &str) -> Value {
        json!({"metadata": {"resourceVersion": version}})
    }

    #[test]
    fn an_object_is_taken_once_and_only_at_its_version() {
        let (mut recent, key) = (Recent::default(), ObjectKey::cluster("a"));
        recent.keep(key.clone(), object("1"));
        assert_eq!(recent.take(&key, "1"), None, "not wanted yet");
        recent.want();
        recent.keep(key.clone(), object("1"));
        recent.keep(key.clone(), object("2"));
        assert_eq!(recent.take(&key, "2"), Some(object("2")));
        assert_eq!(recent.take(&key, "2"), None);
        recent.keep(key.clone(), object("3"));
        assert_eq!(recent.take(&key, "2"), None);
    }

    #[test]
    fn the_oldest_is_dropped_when_too_many_are_kept() {
        let mut recent = Recent::default();
        recent.want();
        for number in 0..=MAX_KEPT {
            recent.keep(ObjectKey::cluster(number.to_string()), object("1"));
        }
        assert_eq!(recent.take(&ObjectKey::cluster("0"), "1"), None);
        assert_eq!(recent.objects.len(), MAX_KEPT);
        assert!(recent.take(&ObjectKey::cluster("1"), "1").is_some());
    }
}
