//! Operations that wait for a `VolumeAttachment` to change.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use longshore_core::visits;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// One notifier per attachment that an operation waits for; it keeps none of them alive.
#[derive(Default)]
pub(super) struct Notifiers {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    by_name: HashMap<String, Weak<Notify>>,
    /// Those that nobody waits for are forgotten when there are so many: not at each operation, of
    /// which there may be as many as attachments.
    forget_at: usize,
}

/// The fewest notifiers that are worth a look at all of them.
const FEW: usize = 64;

impl Notifiers {
    /// The notifier of an attachment's changes. Take it before the first read, or a change in between
    /// is missed.
    pub(super) fn notifier(&self, name: &str) -> Arc<Notify> {
        let mut inner = self.inner.lock();
        if let Some(notifier) = inner.by_name.get(name).and_then(Weak::upgrade) {
            return notifier;
        }
        if inner.by_name.len() >= inner.forget_at.max(FEW) {
            visits::add(inner.by_name.len());
            inner.by_name.retain(|_, notifier| notifier.strong_count() > 0);
            inner.forget_at = inner.by_name.len() * 2;
        }
        let notifier = Arc::new(Notify::new());
        inner.by_name.insert(name.to_owned(), Arc::downgrade(&notifier));
        notifier
    }

    pub(super) fn notify(&self, name: &str) {
        let notifier = self.inner.lock().by_name.get(name).and_then(Weak::upgrade);
        if let Some(notifier) = notifier {
            // There is one operation on an attachment at a time, and it must not miss a change
            // while it reads.
            notifier.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifiers_are_forgotten_without_a_look_at_all_of_them_each_time() {
        let visited = |operations: usize| {
            let (notifiers, before) = (Notifiers::default(), visits::total());
            let held: Vec<_> =
                (0..operations).map(|n| notifiers.notifier(&n.to_string())).collect();
            drop(held);
            for again in 0..operations {
                drop(notifiers.notifier(&format!("again-{again}")));
            }
            let kept = notifiers.inner.lock().by_name.len();
            assert!(kept <= operations * 2 + FEW, "{kept} of {operations}");
            (visits::total() - before).div_ceil(operations)
        };
        assert!(visited(1_000) <= 4, "{}", visited(1_000));
        assert!(visited(10_000) <= 4, "{}", visited(10_000));
    }
}
