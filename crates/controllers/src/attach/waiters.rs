//! Operations that wait for a `VolumeAttachment` to change.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Who waits for which attachment. Nobody is kept alive by it.
#[derive(Default)]
pub(super) struct Waiters {
    by_name: Mutex<HashMap<String, Weak<Notify>>>,
}

impl Waiters {
    /// A bell that rings when the attachment changes. Take it before the first look, or a change
    /// in between is missed.
    pub(super) fn bell(&self, name: &str) -> Arc<Notify> {
        let mut by_name = self.by_name.lock();
        by_name.retain(|_, bell| bell.strong_count() > 0);
        if let Some(bell) = by_name.get(name).and_then(Weak::upgrade) {
            return bell;
        }
        let bell = Arc::new(Notify::new());
        by_name.insert(name.to_owned(), Arc::downgrade(&bell));
        bell
    }

    /// The attachment has changed.
    pub(super) fn ring(&self, name: &str) {
        let bell = self.by_name.lock().get(name).and_then(Weak::upgrade);
        if let Some(bell) = bell {
            // There is one operation on an attachment at a time, and it must not miss the ring
            // while it is looking.
            bell.notify_one();
        }
    }
}
