//! The controller's memory: both worlds, the slots, and who needs a look.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use longshore_core::attach::{Actual, Desired, Lane, Operation, Slots, UniqueName};
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::Instant};

/// Memory behind a lock that is never held across an await.
pub(super) struct World {
    inner: Mutex<Inner>,
    /// One writer per node's report.
    report_locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    wake: Notify,
    started: Instant,
}

/// What the lock guards.
pub(super) struct Inner {
    pub(super) desired: Desired,
    pub(super) actual: Actual,
    pub(super) slots: Slots,
    attaches: Lane,
    detaches: Lane,
    dirty: BTreeSet<UniqueName>,
    timers: BTreeMap<Duration, BTreeSet<UniqueName>>,
}

impl Inner {
    fn new(places: usize) -> Self {
        Self {
            desired: Desired::default(),
            actual: Actual::default(),
            slots: Slots::default(),
            attaches: Lane::new(places),
            detaches: Lane::new(places),
            dirty: BTreeSet::new(),
            timers: BTreeMap::new(),
        }
    }

    /// Where operations of this kind wait for their turn.
    pub(super) fn lane(&mut self, operation: Operation) -> &mut Lane {
        match operation {
            Operation::Attach => &mut self.attaches,
            Operation::Detach => &mut self.detaches,
        }
    }

    /// The volume needs a look.
    pub(super) fn mark(&mut self, volume: &UniqueName) {
        self.dirty.insert(volume.clone());
    }

    /// The volume needs a look at `moment`, even if nothing happens until then.
    pub(super) fn wake_at(&mut self, moment: Duration, volume: &UniqueName) {
        self.timers.entry(moment).or_default().insert(volume.clone());
    }
}

impl World {
    pub(super) fn new(places: usize) -> Self {
        Self {
            inner: Mutex::new(Inner::new(places)),
            report_locks: Mutex::default(),
            wake: Notify::new(),
            started: Instant::now(),
        }
    }

    /// The lock to hold while a node's report is written.
    pub(super) fn report_lock(&self, node: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.report_locks.lock().entry(node.to_owned()).or_default().clone()
    }

    /// The time as decisions know it: since the controller started.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Changes the memory, then wakes the loop.
    pub(super) fn change<R>(&self, act: impl FnOnce(&mut Inner) -> R) -> R {
        let result = act(&mut self.inner.lock());
        self.wake.notify_one();
        result
    }

    /// Waits for a change. One that came before the call counts.
    pub(super) async fn changed(&self) {
        self.wake.notified().await;
    }

    /// A volume that needs a look, once.
    pub(super) fn take_dirty(&self) -> Option<UniqueName> {
        self.inner.lock().dirty.pop_first()
    }

    /// When the next timer fires.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let inner = self.inner.lock();
        inner.timers.keys().next().map(|moment| self.started + *moment)
    }

    /// Volumes whose timer has come need a look.
    pub(super) fn fire_timers(&self) {
        let now = self.now();
        let mut inner = self.inner.lock();
        while let Some(entry) = inner.timers.first_entry() {
            if *entry.key() > now {
                break;
            }
            let due = entry.remove();
            inner.dirty.extend(due);
        }
    }
}
