//! Answers to our own writes, whole, for whoever writes the same object next.
//!
//! A write starts from the object as the API has it, with all that a slim record leaves out. What was
//! written a moment ago is at hand; if its version is still the one that was decided on, it need not be
//! read again.

use std::collections::{HashMap, VecDeque};

use longshore_core::model::ObjectKey;
use serde_json::Value;

/// How many are kept.
const MOST: usize = 1024;

/// The last writes, oldest out first.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// False until somebody says that they are of use.
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
        // Taken ones leave their place in the order behind.
        while self.order.len() > MOST {
            if let Some(oldest) = self.order.pop_front() {
                self.objects.remove(&oldest);
            }
        }
    }

    /// The object at exactly this version. It is taken out: the next write makes it old.
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
    fn only_the_very_version_is_given_out_and_once() {
        let (mut recent, key) = (Recent::default(), ObjectKey::cluster("a"));
        recent.keep(key.clone(), object("1"));
        assert_eq!(recent.take(&key, "1"), None, "nobody wants them");
        recent.want();
        recent.keep(key.clone(), object("1"));
        recent.keep(key.clone(), object("2"));
        assert_eq!(recent.take(&key, "2"), Some(object("2")));
        assert_eq!(recent.take(&key, "2"), None);
        recent.keep(key.clone(), object("3"));
        assert_eq!(recent.take(&key, "2"), None);
    }

    #[test]
    fn the_oldest_go_first() {
        let mut recent = Recent::default();
        recent.want();
        for number in 0..=MOST {
            recent.keep(ObjectKey::cluster(number.to_string()), object("1"));
        }
        assert_eq!(recent.take(&ObjectKey::cluster("0"), "1"), None);
        assert_eq!(recent.objects.len(), MOST);
        assert!(recent.take(&ObjectKey::cluster("1"), "1").is_some());
    }
}
