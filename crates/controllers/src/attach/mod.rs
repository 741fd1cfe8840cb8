//! The attach-detach controller: puts volumes on the nodes whose pods want them, and takes them
//! away when the node has let go.
//!
//! What is wanted comes from pods, claims and volumes; what is there comes from node status and
//! attachments. [`longshore_core::attach`] decides, this module carries out: it makes and
//! deletes `VolumeAttachment` objects (the driver's attacher does the work behind them) and
//! reports to each node what it may rely on. A volume leaves the node's report before its detach
//! begins.
//!
//! Every step is woken by a change in a cache. Timers exist only for what is timed: pauses after
//! failures, the wait for an unhealthy node, the limit of one operation, and two slow passes that
//! repair what events cannot show.
//!
//! Memory is rebuilt from the API at start, so the controller may be dropped at any await.

mod intake;
mod operate;
mod recover;
mod report;
#[cfg(test)]
mod tests;
mod waiters;
mod world;

use std::{sync::Arc, time::Duration};

use longshore_cluster::{Api, Cache, Metrics, QueueOptions, Recorder, SharedCaches, WorkQueue};
use longshore_core::{
    attach::{
        Attach, AttachView, Detach, DetachView, Operation, Refused, SlotKey, UniqueName,
        busy_message, decide_attach, decide_detach,
    },
    model::{
        ObjectKey,
        keys::taints,
        kinds::{Claim, CsiDriver, Node, Pod, Volume, VolumeAttachment},
    },
};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at, sleep_until},
};
use tokio_util::sync::CancellationToken;

use self::{report::ForcedDetaches, waiters::Waiters, world::World};

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
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_wait_for_unmount: Duration::from_secs(360),
            disable_force_detach_on_timeout: false,
            populate_period: Duration::from_secs(60),
            verify_period: Some(Duration::from_secs(60)),
            operation_timeout: Duration::from_secs(120),
        }
    }
}

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
    /// Where forced detaches are counted.
    pub metrics: Option<Metrics>,
    /// Settings.
    pub config: Config,
}

impl AttachDetach {
    /// Works until `shutdown` is cancelled. Operations under way are dropped then: each can be
    /// repeated, and the next start finds out how far it came.
    pub async fn run(self, shutdown: CancellationToken) {
        let forced = ForcedDetaches::default();
        if let Some(metrics) = &self.metrics {
            forced.register(metrics);
        }
        let reports = QueueOptions::backoff(Duration::from_millis(100), Duration::from_secs(10));
        let controller = Arc::new(Controller {
            api: self.api,
            caches: self.caches,
            recorder: self.recorder,
            config: self.config,
            world: World::new(),
            waiters: Waiters::default(),
            reports: WorkQueue::new("node-report", reports),
            forced,
        });
        tokio::select! {
            () = controller.clone().work(&shutdown) => {}
            () = shutdown.cancelled() => {}
        }
        controller.reports.shut_down();
    }
}

/// The controller at work; shared by its operations and its subscriptions.
struct Controller {
    api: Api,
    caches: Caches,
    recorder: Recorder,
    config: Config,
    world: World,
    waiters: Waiters,
    /// Nodes whose report has to be written.
    reports: WorkQueue<String>,
    forced: ForcedDetaches,
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
                self.reconcile(&volume, &mut operations);
            }
            let unreported = self.world.lock().actual.dirty_reports();
            for node in unreported {
                self.reports.add(node);
            }
            let timer = self.world.next_timer();
            tokio::select! {
                () = self.world.changed() => {}
                () = async { sleep_until(timer.unwrap_or_else(Instant::now)).await }, if timer.is_some() => {
                    self.world.fire_timers();
                }
                Some(_) = operations.join_next() => {}
                _ = populate.tick() => {
                    passes += 1;
                    // Adding all pods anew is the slower repair, so it is done less often.
                    self.populate(passes.is_multiple_of(3));
                }
                _ = verify.tick(), if self.config.verify_period.is_some() => {
                    operations.spawn(self.clone().verify());
                }
            }
        }
    }

    /// Closes the gap between wish and reality for one volume, as far as it can be closed now.
    fn reconcile(self: &Arc<Self>, volume: &UniqueName, operations: &mut JoinSet<()>) {
        self.detach_unwanted(volume, operations);
        let nodes = self.world.lock().desired.nodes_wanting(volume);
        for node in nodes {
            self.attach_wanted(volume, &node, operations);
        }
    }

    fn detach_unwanted(self: &Arc<Self>, volume: &UniqueName, operations: &mut JoinSet<()>) {
        let now = self.world.now();
        let mut world = self.world.lock();
        for entry in world.actual.of_volume(volume) {
            let node = entry.node.as_str();
            if world.desired.get(volume, node).is_some() {
                continue;
            }
            let shareable = entry.spec.as_ref().is_none_or(|spec| spec.shareable);
            let key = SlotKey::new(volume, node, shareable);
            match world.slots.check(&key, Operation::Detach, now) {
                Ok(()) => {}
                Err(Refused::Pending) => continue,
                Err(Refused::Paused { until }) => {
                    world.wake_at(until, volume);
                    continue;
                }
            }
            let Some(elapsed) = world.actual.request_detach(volume, node, now) else { continue };
            match decide_detach(&self.detach_view(node, elapsed, entry.mounted)) {
                Detach::Wait(None) => {}
                Detach::Wait(Some(left)) => world.wake_at(now + left, volume),
                Detach::Start { verify_safe, forced } => {
                    if world.slots.start(&key, Operation::Detach, now).is_err() {
                        continue;
                    }
                    world.actual.remove_from_report(volume, node);
                    if let Some(forced) = forced {
                        self.forced.count(forced);
                    }
                    operations.spawn(self.clone().detach(key, entry, verify_safe));
                }
            }
        }
    }

    fn detach_view(&self, node: &str, elapsed: Duration, mounted: bool) -> DetachView {
        let node = self.caches.nodes.get(&ObjectKey::cluster(node));
        let tainted = |node: &Arc<Node>| {
            node.spec.taints.iter().any(|taint| taint.key == taints::OUT_OF_SERVICE)
        };
        DetachView {
            elapsed,
            max_wait: self.config.max_wait_for_unmount,
            force_disabled: self.config.disable_force_detach_on_timeout,
            healthy: node.as_ref().is_some_and(|node| node.ready()),
            out_of_service: node.as_ref().is_some_and(tainted),
            mounted,
        }
    }

    fn attach_wanted(
        self: &Arc<Self>,
        volume: &UniqueName,
        node: &str,
        operations: &mut JoinSet<()>,
    ) {
        let now = self.world.now();
        let mut world = self.world.lock();
        let Some(wanted) = world.desired.get(volume, node).cloned() else { return };
        let key = SlotKey::new(volume, node, wanted.spec.shareable);
        if world.slots.is_pending(&key) {
            return;
        }
        let holders = world.actual.holders(volume);
        let view = AttachView {
            state: world.actual.state(volume, node),
            shareable: wanted.spec.shareable,
            held_elsewhere: holders.iter().any(|holder| holder != node),
            busy_reported: wanted.busy_reported,
        };
        match decide_attach(&view) {
            Attach::Done => world.actual.reset_detach_request(volume, node),
            Attach::Busy { report: false } => {}
            Attach::Busy { report: true } => {
                world.desired.set_busy_reported(volume, node);
                let others = world.desired.pods_on(volume, &holders);
                drop(world);
                for pod in wanted.pods.values() {
                    let message = busy_message(&wanted.spec.name, pod, &others);
                    self.warn_pod(pod, message);
                }
            }
            Attach::Start => match world.slots.start(&key, Operation::Attach, now) {
                Ok(()) => {
                    let node = node.to_owned();
                    operations.spawn(self.clone().attach(key, node, wanted.spec));
                }
                Err(Refused::Paused { until }) => world.wake_at(until, volume),
                Err(Refused::Pending) => {}
            },
        }
    }
}
