//! Operations that wait for a `VolumeAttachment` to change.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// One notifier per attachment that an operation waits for; it keeps none of them alive.
#[derive(Default)]
pub(super) struct Notifiers {
    by_name: Mutex<HashMap<String, Weak<Notify>>>,
}

impl Notifiers {
    /// The notifier of an attachment's changes. Take it before the first read, or a change in between
    /// is missed.
    pub(super) fn notifier(&self, name: &str) -> Arc<Notify> {
        let mut by_name = self.by_name.lock();
        by_name.retain(|_, notifier| notifier.strong_count() > 0);
        if let Some(notifier) = by_name.get(name).and_then(Weak::upgrade) {
            return notifier;
        }
        let notifier = Arc::new(Notify::new());
        by_name.insert(name.to_owned(), Arc::downgrade(&notifier));
        notifier
    }

    pub(super) fn notify(&self, name: &str) {
        let notifier = self.by_name.lock().get(name).and_then(Weak::upgrade);
        if let Some(notifier) = notifier {
            // There is one operation on an attachment at a time, and it must not miss a change
            // while it reads.
            notifier.notify_one();
        }
    }
}
