//! The attach-detach controller: puts volumes on the nodes whose pods want them, and takes them
//! away when the node has let go.
//!
//! What is wanted comes from pods, claims and volumes; what is there comes from node status and
//! attachments. [`longshore_core::attach`] decides, this module carries out: it makes and
//! deletes `VolumeAttachment` objects (the driver's attacher does the work behind them) and
//! reports to each node what it may rely on. A volume leaves the node's report before its detach
//! begins.
//!
//! ```text
//!  caches ──observe──> State { desired, actual } ──reconcile──> FairQueue (attach | detach)
//!                                                                   │ permit, PendingOperations
//!  VolumeAttachment <──operate── PermitGuard <──────────────────────┘
//!      │ changes notify the waiting operation (Notifiers)
//!      └──> actual ──report──> Node.status.volumesAttached
//! ```
//!
//! Attaches and detaches wait in queues of their own ([`longshore_core::attach::FairQueue`]); a pod
//! that waits long for a volume gets an event that names its holder.
//!
//! Every step is woken by a change in a cache. Timers exist only for what is timed: pauses after
//! failures, the wait for an unhealthy node, the limit of one operation, and two slow passes that
//! repair what events cannot show.
//!
//! Memory is rebuilt from the API at start, so the controller may be dropped at any await.

mod config;
mod metrics;
mod notifiers;
mod observe;
mod operate;
mod permit;
mod reconcile;
mod recover;
mod report;
mod state;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use longshore_cluster::{
    Api, Cache, Context, Loop, Outcome, QueueOptions, Reconciler, Recorder, Sources, Subject,
    WorkQueue,
};
use longshore_core::{
    model::{
        NodeName,
        kinds::{Claim, CsiDriver, Node, Pod, Volume, VolumeAttachment},
    },
    names::UniqueName,
};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at},
};
use tokio_util::sync::CancellationToken;

use self::{metrics::AttachMetrics, notifiers::Notifiers, permit::QueueView, state::State};
use crate::index::index_pods;

pub use self::config::{Config, Flags};

/// The component that events of this controller come from.
pub const COMPONENT: &str = "attachdetach-controller";

/// The controller.
pub struct AttachDetach {
    controller: Arc<Controller>,
}

impl AttachDetach {
    /// A controller that does nothing until [`Self::run`].
    #[must_use]
    pub fn new(context: &Context, config: Config) -> Self {
        let reports = QueueOptions::backoff(Duration::from_millis(100), Duration::from_secs(10));
        // A pass decides and never fails, so that its queue needs no backoff.
        let queue = context.queue("attachdetach", QueueOptions::default());
        let state = Arc::new(State::new(config.concurrent_requests, &queue));
        let controller = Arc::new(Controller {
            api: context.api.clone(),
            pods: context.cache(),
            nodes: context.cache(),
            claims: context.cache(),
            volumes: context.cache(),
            drivers: context.cache(),
            attachments: context.cache(),
            recorder: context.recorder(COMPONENT),
            config,
            queues: QueueView::both(&state),
            state,
            queue,
            notifiers: Notifiers::default(),
            sweep_soon: Notify::new(),
            populate_soon: Notify::new(),
            reports: context.queue("node-report", reports),
            counted: AttachMetrics::of(&context.metrics),
        });
        index_pods(&controller.pods);
        controller.counted.watch(&controller);
        for queue in &controller.queues {
            queue.watch(&context.metrics);
        }
        Self { controller }
    }

    /// Runs until `shutdown` is cancelled. Operations in flight are dropped then: each can be
    /// repeated, and the next start finds out how far it came.
    pub async fn run(self, shutdown: CancellationToken) {
        let controller = self.controller;
        let (queue, starter) = (controller.queue.clone(), controller.clone());
        let volumes = Loop::new("attach", controller.clone(), queue)
            .beside(async move { starter.start_operations().await });
        let (queue, writer) = (controller.reports.clone(), Arc::new(Reports(controller)));
        let reports = Loop::new("report", writer, queue).workers(2);
        // Whichever ends first: a write of a report in flight is not waited for.
        tokio::select! {
            biased;
            () = volumes.run(&shutdown) => {}
            () = reports.run(&shutdown) => {}
        }
    }
}

/// The controller at work; shared by its operations and its subscriptions.
struct Controller {
    api: Api,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    claims: Cache<Claim>,
    volumes: Cache<Volume>,
    drivers: Cache<CsiDriver>,
    attachments: Cache<VolumeAttachment>,
    recorder: Recorder,
    config: Config,
    state: Arc<State>,
    /// Volumes that need a pass.
    queue: WorkQueue<UniqueName>,
    notifiers: Notifiers,
    /// A driver does not attach any more: its attachments are looked at.
    sweep_soon: Notify,
    /// Whether a driver attaches has changed: all pods are observed anew.
    populate_soon: Notify,
    /// Nodes whose report has to be written.
    reports: WorkQueue<NodeName>,
    counted: AttachMetrics,
    /// Kept alive for those who read the metrics.
    queues: [Arc<QueueView>; 2],
}

impl Controller {
    /// Starts operations as the queues have permits, and runs the two slow passes.
    async fn start_operations(self: &Arc<Self>) {
        let every = |period: Duration| {
            let mut ticks = interval_at(Instant::now() + period, period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        };
        let mut populate = every(self.config.populate_period);
        let mut verify = every(self.config.verify_period.unwrap_or(Duration::from_secs(3600)));
        let mut operations = JoinSet::new();
        let mut passes = 0_u64;
        loop {
            // All that is enqueued is decided first, so that detaches from one node share one write
            // of its report. The last pass wakes this loop.
            if self.queue.depth() == 0 {
                self.start_next(&mut operations);
                self.enqueue_reports();
            }
            // In a fixed order, so that a simulated run can be repeated. What fires seldom comes
            // first: a stream of changes cannot hold it up.
            tokio::select! {
                biased;
                _ = populate.tick() => {
                    passes += 1;
                    // Adding all pods anew is the slower repair, so it is done less often.
                    self.populate(passes.is_multiple_of(3));
                }
                _ = verify.tick(), if self.config.verify_period.is_some() => {
                    operations.spawn(self.clone().verify());
                }
                () = self.populate_soon.notified() => self.populate(true),
                () = self.sweep_soon.notified() => {
                    let controller = self.clone();
                    operations.spawn(async move { controller.sweep_needless().await });
                }
                Some(_) = operations.join_next() => {}
                () = self.state.changed() => {}
            }
        }
    }

    fn enqueue_reports(&self) {
        let unreported = self.state.lock().actual.dirty_reports();
        for node in unreported {
            // One that failed comes back after its pause, not at once.
            if self.reports.requeues(&node) == 0 {
                self.reports.add(node);
            }
        }
    }
}

impl Reconciler for Controller {
    type Key = UniqueName;

    fn sources(&self, sources: &mut Sources<Self>) {
        self.observe(sources);
    }

    fn prepare(&self) {
        self.recover();
    }

    fn subject(&self, key: &UniqueName) -> Subject {
        Subject::volume(key)
    }

    async fn reconcile(&self, volume: &UniqueName) -> Outcome {
        self.decide(volume);
        self.state.change(|_| ());
        Outcome::Done
    }
}

/// Writes the reports of nodes.
struct Reports(Arc<Controller>);

impl Reconciler for Reports {
    type Key = NodeName;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources.needs(&self.0.nodes);
    }

    fn subject(&self, node: &NodeName) -> Subject {
        Subject::node(node)
    }

    async fn reconcile(&self, node: &NodeName) -> Outcome {
        self.0.report(node).await.into()
    }
}
