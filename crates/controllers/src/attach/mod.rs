//! The attach-detach controller: puts volumes on the nodes whose pods want them, and takes them
//! away when the node has let go.
//!
//! What is wanted comes from pods, claims and volumes; what is there comes from node status and
//! attachments. [`longshore_core::attach`] decides, this module carries out: it makes and
//! deletes `VolumeAttachment` objects (the driver's attacher does the work behind them) and
//! reports to each node what it may rely on. A volume leaves the node's report before its detach
//! begins.
//!
//! Attaches and detaches wait for their turn in lanes of their own ([`longshore_core::attach::Lane`]);
//! a pod that waits long for a volume is told who holds it.
//!
//! Every step is woken by a change in a cache. Timers exist only for what is timed: pauses after
//! failures, the wait for an unhealthy node, the limit of one operation, and two slow passes that
//! repair what events cannot show.
//!
//! Memory is rebuilt from the API at start, so the controller may be dropped at any await.

mod intake;
mod metrics;
mod operate;
mod reconcile;
mod recover;
mod report;
#[cfg(test)]
mod tests;
mod turn;
mod waiters;
mod world;

use std::{sync::Arc, time::Duration};

use longshore_cluster::{Api, Cache, Metrics, QueueOptions, Recorder, SharedCaches, WorkQueue};
use longshore_core::model::kinds::{Claim, CsiDriver, Node, Pod, Volume, VolumeAttachment};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at, sleep_until},
};
use tokio_util::sync::CancellationToken;

use self::{metrics::AttachMetrics, turn::LaneStats, waiters::Waiters, world::World};
use crate::planted::{Planted, plantable};

/// The component that events of this controller come from.
pub const COMPONENT: &str = "attachdetach-controller";

/// Settings of the controller.
#[derive(Debug, Clone)]
pub struct Config {
    /// How long an unhealthy node may keep a volume that nobody wants.
    pub max_wait_for_unmount: Duration,
    /// The limit above does not count.
    pub disable_force_detach_on_timeout: bool,
    /// How often wishes are compared with the pods there are.
    pub populate_period: Duration,
    /// How often attachments are compared with their objects; `None` for never.
    pub verify_period: Option<Duration>,
    /// How long one attach or detach may take.
    pub operation_timeout: Duration,
    /// How many attaches, and how many detaches, send their requests at once.
    pub lane_places: usize,
    /// How long a pod waits for a volume that another node holds before it is told which pod on
    /// which node that is; `None` for never.
    pub holder_notice: Option<Duration>,
    /// A bug on purpose.
    #[cfg(any(test, feature = "planted-bugs"))]
    pub planted: Option<Planted>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_wait_for_unmount: Duration::from_secs(360),
            disable_force_detach_on_timeout: false,
            populate_period: Duration::from_secs(60),
            verify_period: Some(Duration::from_secs(60)),
            operation_timeout: Duration::from_secs(120),
            lane_places: 16,
            holder_notice: Some(Duration::from_secs(30)),
            #[cfg(any(test, feature = "planted-bugs"))]
            planted: None,
        }
    }
}

plantable!(Config, Planted);

/// What the controller watches.
#[derive(Clone)]
pub struct Caches {
    /// Pods of all namespaces.
    pub pods: Cache<Pod>,
    /// Nodes.
    pub nodes: Cache<Node>,
    /// Claims of all namespaces.
    pub claims: Cache<Claim>,
    /// Volumes.
    pub volumes: Cache<Volume>,
    /// Drivers.
    pub drivers: Cache<CsiDriver>,
    /// Attachments.
    pub attachments: Cache<VolumeAttachment>,
}

impl Caches {
    /// The caches that all loops of the process share.
    #[must_use]
    pub fn shared(caches: &SharedCaches) -> Self {
        Self {
            pods: caches.of(),
            nodes: caches.of(),
            claims: caches.of(),
            volumes: caches.of(),
            drivers: caches.of(),
            attachments: caches.of(),
        }
    }
}

/// The controller. Build it from its parts and [`run`](AttachDetach::run) it.
pub struct AttachDetach {
    /// Where attachments and node reports are written.
    pub api: Api,
    /// What is watched.
    pub caches: Caches,
    /// Where pods are told about their volumes.
    pub recorder: Recorder,
    /// Where its work is counted.
    pub metrics: Option<Metrics>,
    /// Settings.
    pub config: Config,
}

impl AttachDetach {
    /// Works until `shutdown` is cancelled. Operations under way are dropped then: each can be
    /// repeated, and the next start finds out how far it came.
    pub async fn run(self, shutdown: CancellationToken) {
        let controller = self.controller();
        tokio::select! {
            () = controller.clone().work(&shutdown) => {}
            () = shutdown.cancelled() => {}
        }
        controller.reports.shut_down();
    }

    fn controller(self) -> Arc<Controller> {
        let reports = QueueOptions::backoff(Duration::from_millis(100), Duration::from_secs(10));
        let world = Arc::new(World::new(self.config.lane_places));
        let controller = Arc::new(Controller {
            api: self.api,
            caches: self.caches,
            recorder: self.recorder,
            config: self.config,
            lanes: LaneStats::both(&world),
            world,
            waiters: Waiters::default(),
            reports: WorkQueue::new("node-report", reports),
            counted: self.metrics.as_ref().map(AttachMetrics::of).unwrap_or_default(),
        });
        if let Some(metrics) = &self.metrics {
            controller.counted.watch(&controller);
            for lane in &controller.lanes {
                lane.watch(metrics);
            }
        }
        controller
    }
}

/// The controller at work; shared by its operations and its subscriptions.
struct Controller {
    api: Api,
    caches: Caches,
    recorder: Recorder,
    config: Config,
    world: Arc<World>,
    waiters: Waiters,
    /// Nodes whose report has to be written.
    reports: WorkQueue<String>,
    counted: AttachMetrics,
    /// Kept alive for those who read the metrics.
    lanes: [Arc<LaneStats>; 2],
}

impl Controller {
    async fn work(self: Arc<Self>, shutdown: &CancellationToken) {
        self.synced().await;
        self.recover();
        self.subscribe();
        let writer = self.clone();
        let reports = self.reports.run_until(2, shutdown, move |node| {
            let writer = writer.clone();
            async move { writer.write_report(&node).await }
        });
        tokio::join!(reports, self.reconcile_forever());
    }

    async fn synced(&self) {
        let caches = &self.caches;
        tokio::join!(
            caches.pods.synced(),
            caches.nodes.synced(),
            caches.claims.synced(),
            caches.volumes.synced(),
            caches.drivers.synced(),
            caches.attachments.synced(),
        );
    }

    async fn reconcile_forever(self: &Arc<Self>) {
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
            while let Some(volume) = self.world.take_dirty() {
                self.reconcile(&volume);
            }
            self.start_next(&mut operations);
            let unreported = self.world.lock().actual.dirty_reports();
            for node in unreported {
                // One that failed comes back after its pause, not at once.
                if self.reports.requeues(&node) == 0 {
                    self.reports.add(node);
                }
            }
            let timer = self.world.next_timer();
            // In a fixed order, so that a simulated run can be repeated. What fires seldom comes
            // first: a stream of changes cannot hold it up.
            tokio::select! {
                biased;
                () = async { sleep_until(timer.unwrap_or_else(Instant::now)).await }, if timer.is_some() => {
                    self.world.fire_timers();
                }
                _ = populate.tick() => {
                    passes += 1;
                    // Adding all pods anew is the slower repair, so it is done less often.
                    self.populate(passes.is_multiple_of(3));
                }
                _ = verify.tick(), if self.config.verify_period.is_some() => {
                    operations.spawn(self.clone().verify());
                }
                Some(_) = operations.join_next() => {}
                () = self.world.changed() => {}
            }
        }
    }
}
