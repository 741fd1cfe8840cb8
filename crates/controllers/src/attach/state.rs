//! The controller's memory: desired and actual state, queues, and pending operations.

use std::{collections::HashMap, sync::Arc, time::Duration};

use longshore_cluster::WorkQueue;
use longshore_core::attach::{Actual, Desired, FairQueue, Operation, PendingOperations};
use longshore_core::{model::NodeName, names::UniqueName};
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::Instant};

/// Memory behind a lock that is never held across an await.
pub(super) struct State {
    inner: Mutex<Inner>,
    /// One writer per node's report.
    report_locks: Mutex<HashMap<NodeName, Arc<tokio::sync::Mutex<()>>>>,
    wake: Notify,
    started: Instant,
}

/// What the lock guards.
pub(super) struct Inner {
    pub(super) desired: Desired,
    pub(super) actual: Actual,
    pub(super) pending: PendingOperations,
    attaches: FairQueue,
    detaches: FairQueue,
    /// Volumes that need a pass.
    queue: WorkQueue<UniqueName>,
    started: Instant,
}

impl Inner {
    fn new(permits: usize, queue: WorkQueue<UniqueName>, started: Instant) -> Self {
        Self {
            desired: Desired::default(),
            actual: Actual::default(),
            pending: PendingOperations::default(),
            attaches: FairQueue::new(permits),
            detaches: FairQueue::new(permits),
            queue,
            started,
        }
    }

    /// The queue of operations of this kind.
    pub(super) fn queue_of(&mut self, operation: Operation) -> &mut FairQueue {
        match operation {
            Operation::Attach => &mut self.attaches,
            Operation::Detach => &mut self.detaches,
        }
    }

    pub(super) fn mark(&mut self, volume: &UniqueName) {
        self.queue.add(volume.clone());
    }

    /// Enqueues a volume at `moment`, even if nothing happens until then.
    pub(super) fn wake_at(&mut self, moment: Duration, volume: &UniqueName) {
        let left = moment.saturating_sub(self.started.elapsed());
        self.queue.add_after(volume.clone(), left);
    }
}

impl State {
    pub(super) fn new(permits: usize, queue: &WorkQueue<UniqueName>) -> Self {
        let started = Instant::now();
        Self {
            inner: Mutex::new(Inner::new(permits, queue.clone(), started)),
            report_locks: Mutex::default(),
            wake: Notify::new(),
            started,
        }
    }

    /// The lock to hold while a node's report is written.
    pub(super) fn report_lock(&self, node: &NodeName) -> Arc<tokio::sync::Mutex<()>> {
        self.report_locks.lock().entry(node.clone()).or_default().clone()
    }

    /// The time as decisions know it: since the controller started.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Changes the memory, then wakes the queues.
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
