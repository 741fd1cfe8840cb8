//! The controller's memory: both worlds, the slots, and who needs a look.

use std::{collections::HashMap, sync::Arc, time::Duration};

use longshore_cluster::WorkQueue;
use longshore_core::attach::{Actual, Desired, Lane, Operation, Slots};
use longshore_core::names::UniqueName;
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
    /// Volumes that need a pass.
    queue: WorkQueue<UniqueName>,
    started: Instant,
}

impl Inner {
    fn new(places: usize, queue: WorkQueue<UniqueName>, started: Instant) -> Self {
        Self {
            desired: Desired::default(),
            actual: Actual::default(),
            slots: Slots::default(),
            attaches: Lane::new(places),
            detaches: Lane::new(places),
            queue,
            started,
        }
    }

    /// Where operations of this kind wait for their turn.
    pub(super) fn lane(&mut self, operation: Operation) -> &mut Lane {
        match operation {
            Operation::Attach => &mut self.attaches,
            Operation::Detach => &mut self.detaches,
        }
    }

    /// Enqueues a volume.
    pub(super) fn mark(&mut self, volume: &UniqueName) {
        self.queue.add(volume.clone());
    }

    /// Enqueues a volume at `moment`, even if nothing happens until then.
    pub(super) fn wake_at(&mut self, moment: Duration, volume: &UniqueName) {
        let left = moment.saturating_sub(self.started.elapsed());
        self.queue.add_after(volume.clone(), left);
    }
}

impl World {
    pub(super) fn new(places: usize, queue: &WorkQueue<UniqueName>) -> Self {
        let started = Instant::now();
        Self {
            inner: Mutex::new(Inner::new(places, queue.clone(), started)),
            report_locks: Mutex::default(),
            wake: Notify::new(),
            started,
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

    /// Changes the memory, then wakes the lanes.
    pub(super) fn change<R>(&self, act: impl FnOnce(&mut Inner) -> R) -> R {
        let result = act(&mut self.inner.lock());
        self.wake.notify_one();
        result
    }

    /// Waits for a change. One that came before the call counts.
    pub(super) async fn changed(&self) {
        self.wake.notified().await;
    }
}
