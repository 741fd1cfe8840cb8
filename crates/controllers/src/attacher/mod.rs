//! The attacher: turns one driver's `VolumeAttachment` objects into calls of the driver.
//!
//! [`longshore_core::attach::sidecar`] holds the rules and why their order keeps data safe.
//! Attach and detach have lanes of their own, so that a driver that hangs on one does not hold
//! up the other; one attachment is in one lane at a time. A third queue gives volumes up that are
//! going away and that no attachment needs any more.
//!
//! A driver that cannot publish volumes gets the trivial handler: every attachment is declared
//! done at once.

mod attach;
#[cfg(test)]
mod call_tests;
mod detach;
mod error;
#[cfg(test)]
mod failure_tests;
mod lanes;
mod request;
mod sync;
#[cfg(test)]
mod tests;
mod volumes;

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use longshore_cluster::{
    Api, Cache, Change, Metrics, Outcome, Patch, QueueOptions, SharedCaches, WorkQueue,
};
use longshore_core::{
    attach::sidecar::{
        AttachmentView, Handler, Step, finalizer_name, is_rolled_back, next_step, only_our_mark,
        worth_a_look,
    },
    model::{
        ObjectKey,
        kinds::{CsiNode, Volume, VolumeAttachment},
    },
};
use longshore_csi::{Call, Client, CsiError, capabilities::PluginService, client::DriverNameError};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use self::lanes::{Lane, Lanes};
use crate::index::{attachments_on_node, index_attachments};

/// Deadline of the calls that ask the driver who it is and what it can do.
const IDENTITY_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest pause between attempts to ask a driver who it is.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Settings, with the official defaults.
#[derive(Debug, Clone)]
pub struct Config {
    /// `--timeout`: deadline of each publish and unpublish, and of one whole list of volumes.
    pub timeout: Duration,
    /// `--retry-interval-start`: first pause after a failure.
    pub retry_interval_start: Duration,
    /// `--retry-interval-max`: longest pause after a failure.
    pub retry_interval_max: Duration,
    /// `--resync`: pause between looks at objects that did not change; zero means never.
    pub resync: Duration,
    /// `--worker-threads`: workers of each lane.
    pub worker_threads: NonZeroUsize,
    /// `--max-entries`: page size of lists of volumes; zero means the driver's choice.
    pub max_entries: i32,
    /// `--default-fstype`: for volumes that name none.
    pub default_fstype: String,
    /// `--reconcile-sync`: pause between comparisons with the driver's own list.
    pub reconcile_sync: Duration,
    /// Feature gate `MutableCSINodeAllocatableCount`: write the code of a failed attach.
    pub error_codes: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(15),
            retry_interval_start: Duration::from_secs(1),
            retry_interval_max: Duration::from_secs(300),
            resync: Duration::from_secs(600),
            worker_threads: NonZeroUsize::new(10).expect("ten is not zero"),
            max_entries: 0,
            default_fstype: String::new(),
            reconcile_sync: Duration::from_secs(60),
            error_codes: true,
        }
    }
}

/// What the attacher watches.
#[derive(Clone)]
pub struct Caches {
    /// Attachments of all drivers.
    pub attachments: Cache<VolumeAttachment>,
    /// Volumes.
    pub volumes: Cache<Volume>,
    /// The driver's id of each node.
    pub csi_nodes: Cache<CsiNode>,
}

impl Caches {
    /// The caches that all loops of the process share.
    #[must_use]
    pub fn shared(caches: &SharedCaches) -> Self {
        Self { attachments: caches.of(), volumes: caches.of(), csi_nodes: caches.of() }
    }
}

/// The attacher of one driver. Build it from its parts and [`run`](Attacher::run) it.
pub struct Attacher {
    /// Where results are written.
    pub api: Api,
    /// The driver; it has to be ready.
    pub driver: Client,
    /// What is watched.
    pub caches: Caches,
    /// Where queues report; `None` keeps them quiet.
    pub metrics: Option<Metrics>,
    /// Settings.
    pub config: Config,
}

/// Why the attacher could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The driver did not say who it is.
    #[error("error getting CSI driver name: {0}")]
    Name(#[from] DriverNameError),
    /// The driver did not say what it can do.
    #[error("failed to check if the CSI driver supports the controller service: {0}")]
    Capabilities(#[from] CsiError),
}

impl Attacher {
    /// Works until `shutdown` is cancelled; calls under way are finished then.
    ///
    /// # Errors
    /// When the driver does not say who it is or what it can do.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), StartError> {
        let driver = self.ask().await?;
        self.work(driver, shutdown).await;
        Ok(())
    }

    /// Like [`run`](Self::run), but waits for the driver to be ready and asks again, after pauses
    /// that grow to ten seconds, when it gives no answer. For programs that outlive their driver.
    pub async fn run_patiently(self, shutdown: CancellationToken) {
        let mut pause = self.config.retry_interval_start;
        let driver = loop {
            let asked = async {
                if let Err(error) = self.driver.wait_ready(self.config.timeout).await {
                    tracing::warn!(%error, "the driver is not ready");
                }
                self.ask().await
            };
            let answer = tokio::select! {
                answer = asked => answer,
                () = shutdown.cancelled() => return,
            };
            match answer {
                Ok(driver) => break driver,
                Err(error) => {
                    tracing::warn!(%error, retry_in = ?pause, "the driver cannot be asked who it is");
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        self.work(driver, shutdown).await;
    }

    async fn ask(&self) -> Result<Described, StartError> {
        let name = self.driver.with_timeout(Some(IDENTITY_TIMEOUT)).driver_name().await?;
        let driver = self.driver.with_deadline(tokio::time::Instant::now() + IDENTITY_TIMEOUT);
        let service = driver.has_service(PluginService::ControllerService).await?;
        let publishes = driver.supports(Call::ControllerPublishVolume).await?;
        Ok(Described { name, handler: Handler::choose(service, publishes) })
    }

    async fn work(self, driver: Described, shutdown: CancellationToken) {
        let handler = driver.handler;
        let sidecar = Arc::new(self.into_sidecar(driver));
        match handler {
            Handler::Csi => sidecar.work(&shutdown).await,
            Handler::Trivial => sidecar.work_trivially(&shutdown).await,
        }
    }

    fn into_sidecar(self, driver: Described) -> Sidecar {
        let config = self.config;
        let mut options =
            QueueOptions::backoff(config.retry_interval_start, config.retry_interval_max);
        options.metrics = self.metrics;
        Sidecar {
            finalizer: finalizer_name(&driver.name),
            name: driver.name,
            api: self.api,
            driver: self.driver.with_timeout(Some(config.timeout)),
            caches: self.caches,
            lanes: Lanes::new(&options),
            volumes: WorkQueue::new("csi-attacher-pv", options),
            config,
        }
    }
}

/// A driver that has introduced itself.
struct Described {
    name: String,
    handler: Handler,
}

/// The attacher at work.
struct Sidecar {
    name: String,
    finalizer: String,
    api: Api,
    driver: Client,
    caches: Caches,
    config: Config,
    lanes: Lanes,
    /// Volumes that may be given up.
    volumes: WorkQueue<String>,
}

impl Sidecar {
    async fn work(self: Arc<Self>, shutdown: &CancellationToken) {
        self.synced().await;
        index_attachments(&self.caches.attachments);
        self.subscribe();
        let workers = self.config.worker_threads.get();
        let turn = |lane: Lane| {
            let sidecar = self.clone();
            move |name: String| {
                let sidecar = sidecar.clone();
                async move { sidecar.turn(lane, &name).await }
            }
        };
        let volumes = self.clone();
        tokio::join!(
            self.lanes.queue(Lane::Attach).run_until(workers, shutdown, turn(Lane::Attach)),
            self.lanes.queue(Lane::Detach).run_until(workers, shutdown, turn(Lane::Detach)),
            self.volumes.run_until(workers, shutdown, move |name| {
                let sidecar = volumes.clone();
                async move { sidecar.give_up_volume(&name).await }
            }),
            self.compare_forever(shutdown),
            self.resync_forever(shutdown, || {
                self.caches.attachments.list().iter().for_each(|one| self.enqueue(one));
                self.caches.volumes.list().iter().for_each(|one| self.enqueue_volume(one));
            }),
        );
    }

    /// Looks at everything again from time to time, as upstream's caches do.
    async fn resync_forever(&self, shutdown: &CancellationToken, look: impl Fn()) {
        if self.config.resync.is_zero() {
            return;
        }
        let again = async {
            loop {
                tokio::time::sleep(self.config.resync).await;
                look();
            }
        };
        shutdown.run_until_cancelled(again).await;
    }

    async fn synced(&self) {
        let caches = &self.caches;
        tokio::join!(
            caches.attachments.synced(),
            caches.volumes.synced(),
            caches.csi_nodes.synced()
        );
    }

    /// Follows attachments and volumes. The subscriptions do not keep the attacher alive.
    fn subscribe(self: &Arc<Self>) {
        let sidecar = Arc::downgrade(self);
        self.caches.attachments.subscribe(move |change| {
            let Some(sidecar) = sidecar.upgrade() else { return };
            match change {
                Change::Applied { old, new } => {
                    let news = |old: &Arc<VolumeAttachment>| {
                        worth_a_look(old, new) && !only_our_mark(old, new, &sidecar.finalizer)
                    };
                    if old.as_ref().is_none_or(news) {
                        sidecar.enqueue(new);
                    }
                }
                Change::Deleted { old } => {
                    if let Some(volume) = &old.spec.source.persistent_volume_name {
                        sidecar.volumes.add(volume.clone());
                    }
                }
            }
        });
        let sidecar = Arc::downgrade(self);
        self.caches.csi_nodes.subscribe(move |change| {
            if let Some(sidecar) = sidecar.upgrade() {
                sidecar.node_changed(change);
            }
        });
        let sidecar = Arc::downgrade(self);
        self.caches.volumes.subscribe(move |change| {
            let (Some(sidecar), Change::Applied { new, .. }) = (sidecar.upgrade(), change) else {
                return;
            };
            sidecar.enqueue_volume(new);
        });
    }

    /// A node that has just registered the driver, or anew, may be what attachments wait for.
    fn node_changed(&self, change: &Change<CsiNode>) {
        let Change::Applied { old, new } = change else { return };
        let before = old.as_ref().and_then(|old| old.driver(&self.name));
        let now = new.driver(&self.name);
        if now.is_none() || before.map(|one| &one.node_id) == now.map(|one| &one.node_id) {
            return;
        }
        for attachment in attachments_on_node(&self.caches.attachments, &new.metadata.name) {
            if !attachment.status.attached {
                self.enqueue(&attachment);
            }
        }
    }

    fn enqueue(&self, attachment: &VolumeAttachment) {
        if attachment.spec.attacher == self.name {
            let lane = if attachment.metadata.deleting() { Lane::Detach } else { Lane::Attach };
            self.lanes.queue(lane).add(attachment.metadata.name.clone());
        }
    }

    /// Queues a volume if it may have to be given up.
    fn enqueue_volume(&self, volume: &Volume) {
        let unwanted = volume.metadata.deleting() || is_rolled_back(volume, &self.name);
        if unwanted && volume.metadata.has_finalizer(&self.finalizer) {
            self.volumes.add(volume.metadata.name.clone());
        }
    }

    /// One turn of one attachment in one lane.
    async fn turn(&self, lane: Lane, name: &str) -> Outcome {
        // In the other lane just now: it comes back when it is through there.
        let Some(_turn) = self.lanes.enter(lane, name) else { return Outcome::Done };
        let Some(attachment) = self.caches.attachments.get(&ObjectKey::cluster(name)) else {
            return Outcome::Done;
        };
        let view = AttachmentView {
            deleting: attachment.metadata.deleting(),
            finalizer: attachment.metadata.has_finalizer(&self.finalizer),
            attached: attachment.status.attached,
            force: self.lanes.take_force(name),
        };
        let result = match (lane, next_step(&view)) {
            (Lane::Attach, Step::Attach) => self.attach(&attachment).await,
            (Lane::Detach, Step::Detach) => self.detach(&attachment).await,
            // Moved to the other lane since it was queued here; it is queued there too.
            _ => return Outcome::Done,
        };
        match result {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::retry(error),
        }
    }

    /// For drivers that do not attach: says "attached" wherever it is not said yet.
    async fn work_trivially(self: Arc<Self>, shutdown: &CancellationToken) {
        self.caches.attachments.synced().await;
        let sidecar = Arc::downgrade(&self);
        self.caches.attachments.subscribe(move |change| {
            if let (Some(sidecar), Change::Applied { new, .. }) = (sidecar.upgrade(), change) {
                sidecar.enqueue_trivially(new);
            }
        });
        let (workers, sidecar) = (self.config.worker_threads.get(), self.clone());
        let turns = self.lanes.queue(Lane::Attach).run_until(workers, shutdown, move |name| {
            let sidecar = sidecar.clone();
            async move { sidecar.declare_attached(&name).await }
        });
        let resync = self.resync_forever(shutdown, || {
            self.caches.attachments.list().iter().for_each(|one| self.enqueue_trivially(one));
        });
        tokio::join!(turns, resync);
    }

    fn enqueue_trivially(&self, attachment: &VolumeAttachment) {
        if attachment.spec.attacher == self.name && !attachment.status.attached {
            self.lanes.queue(Lane::Attach).add(attachment.metadata.name.clone());
        }
    }

    async fn declare_attached(&self, name: &str) -> Outcome {
        let key = ObjectKey::cluster(name);
        let attachment = self.caches.attachments.get(&key);
        if attachment.is_none_or(|attachment| attachment.status.attached) {
            return Outcome::Done;
        }
        let patch = json!({"status":
            {"attached": true, "attachmentMetadata": null, "attachError": null}});
        match self.api.patch_status::<VolumeAttachment>(&key, Patch::Merge(&patch)).await {
            Ok(written) => {
                self.caches.attachments.assume(&written);
                Outcome::Done
            }
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => Outcome::retry(error),
        }
    }
}
