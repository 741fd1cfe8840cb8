//! Permits of the attach and detach queues, and the metrics of both queues.

use std::{sync::Arc, time::Duration};

use longshore_cluster::{Metrics, QueueStats};
use longshore_core::attach::{Operation, Permit};

use super::state::State;

/// A permit that ends with its operation, also when that is dropped or panics.
pub(super) struct PermitGuard {
    state: Arc<State>,
    operation: Operation,
    permit: Permit,
}

impl PermitGuard {
    pub(super) fn new(state: &Arc<State>, operation: Operation, permit: Permit) -> Self {
        Self { state: state.clone(), operation, permit }
    }

    /// The requests are sent; what is left is to wait for the verdict.
    pub(super) fn release_permit(&mut self) {
        self.state.change(|state| state.queue_of(self.operation).release(&mut self.permit));
    }
}

impl Drop for PermitGuard {
    fn drop(&mut self) {
        self.state.change(|state| state.queue_of(self.operation).finish(&mut self.permit));
    }
}

/// One queue as a work queue's metrics show it.
pub(super) struct QueueView {
    state: Arc<State>,
    operation: Operation,
}

impl QueueView {
    pub(super) fn both(state: &Arc<State>) -> [Arc<Self>; 2] {
        [Operation::Attach, Operation::Detach]
            .map(|operation| Arc::new(Self { state: state.clone(), operation }))
    }

    pub(super) fn watch(self: &Arc<Self>, metrics: &Metrics) {
        let name = match self.operation {
            Operation::Attach => "attachdetach-attach",
            Operation::Detach => "attachdetach-detach",
        };
        let weak: std::sync::Weak<Self> = Arc::downgrade(self);
        metrics.watch_queue(name, weak);
    }
}

impl QueueStats for QueueView {
    fn depth(&self) -> usize {
        self.state.lock().queue_of(self.operation).depth()
    }

    fn oldest_age(&self) -> Duration {
        let now = self.state.now();
        self.state.lock().queue_of(self.operation).oldest(now)
    }

    fn running(&self) -> Vec<Duration> {
        let now = self.state.now();
        self.state.lock().queue_of(self.operation).in_flight(now)
    }
}
