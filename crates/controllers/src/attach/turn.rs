//! Turns in the lanes, and what a scrape sees of them.

use std::{sync::Arc, time::Duration};

use longshore_cluster::{Metrics, QueueStats};
use longshore_core::attach::{Operation, Ticket};

use super::world::World;

/// A turn that ends with its operation, also when that is dropped or panics.
pub(super) struct Turn {
    world: Arc<World>,
    operation: Operation,
    ticket: Ticket,
}

impl Turn {
    pub(super) fn new(world: &Arc<World>, operation: Operation, ticket: Ticket) -> Self {
        Self { world: world.clone(), operation, ticket }
    }

    /// The requests are sent; what is left is to wait for the verdict.
    pub(super) fn only_waits(&mut self) {
        self.world.change(|world| world.lane(self.operation).free_place(&mut self.ticket));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.world.change(|world| world.lane(self.operation).finish(&mut self.ticket));
    }
}

/// One lane as a work queue's metrics show it.
pub(super) struct LaneStats {
    world: Arc<World>,
    operation: Operation,
}

impl LaneStats {
    pub(super) fn both(world: &Arc<World>) -> [Arc<Self>; 2] {
        [Operation::Attach, Operation::Detach]
            .map(|operation| Arc::new(Self { world: world.clone(), operation }))
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

impl QueueStats for LaneStats {
    fn depth(&self) -> usize {
        self.world.lock().lane(self.operation).depth()
    }

    fn oldest_age(&self) -> Duration {
        let now = self.world.now();
        self.world.lock().lane(self.operation).oldest(now)
    }

    fn running(&self) -> Vec<Duration> {
        let now = self.world.now();
        self.world.lock().lane(self.operation).under_way(now)
    }
}
