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
mod config;
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

use std::sync::Arc;

use longshore_cluster::{
    Api, Cache, Change, Context, Loop, OptionalExt as _, Outcome, QueueOptions, Reconciler,
    Sources, Subject, WorkQueue, controller::note,
};
use longshore_core::{
    attach::sidecar::{
        AttachmentView, Handler, Step, finalizer_name, next_step, only_our_mark, worth_a_look,
    },
    model::{
        NodeName, ObjectKey, VolumeName,
        kinds::{CsiNode, Volume, VolumeAttachment},
    },
};
use longshore_csi::Client;
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub use self::config::{Config, GATES};
use self::{
    lanes::{Lane, Lanes},
    volumes::ReleasedVolumes,
};
use crate::{
    driver::Driver,
    index::{attachments_on_node, index_attachments},
};

/// The attacher of one driver.
pub struct Attacher {
    context: Context,
    driver: Client,
    config: Config,
}

impl Attacher {
    /// An attacher that does nothing until [`Self::run`].
    #[must_use]
    pub fn new(context: &Context, driver: Client, config: Config) -> Self {
        Self { context: context.clone(), driver, config }
    }

    /// Runs until `shutdown` is cancelled; calls in flight are finished then.
    ///
    /// `driver` was asked before the election, as by upstream: a standby that takes over needs no answer first.
    pub async fn run(self, driver: Driver, shutdown: CancellationToken) {
        let can = driver.capabilities;
        let handler = Handler::choose(can.controller_service, can.publish);
        let sidecar = Arc::new(self.into_sidecar(driver.name));
        match handler {
            Handler::Csi => sidecar.work(&shutdown).await,
            Handler::Trivial => sidecar.work_trivially(&shutdown).await,
        }
    }

    /// Asks the driver first, then does as [`run`](Self::run): waits for the driver to be ready and asks again when it gives no
    /// answer. For programs that outlive their driver.
    pub async fn run_with_retries(self, shutdown: CancellationToken) {
        let pause = self.config.retry_interval_start;
        let driver =
            Driver::describe_with_retries(&self.driver, self.config.timeout, pause, &shutdown);
        if let Some(driver) = driver.await {
            self.run(driver, shutdown).await;
        }
    }

    fn into_sidecar(self, name: String) -> Sidecar {
        let (config, context) = (self.config, self.context);
        let retry = QueueOptions::backoff(config.retry_interval_start, config.retry_interval_max);
        let attachments = context.cache();
        index_attachments(&attachments);
        Sidecar {
            finalizer: finalizer_name(&name),
            name,
            api: context.api.clone(),
            driver: self.driver.with_timeout(Some(config.timeout)),
            attachments,
            volumes: context.cache(),
            csi_nodes: context.cache(),
            lanes: Lanes::new(&context, &retry),
            released: context.queue("csi-attacher-pv", retry),
            config,
        }
    }
}

/// The attacher at work.
struct Sidecar {
    name: String,
    finalizer: String,
    api: Api,
    driver: Client,
    attachments: Cache<VolumeAttachment>,
    volumes: Cache<Volume>,
    csi_nodes: Cache<CsiNode>,
    config: Config,
    lanes: Lanes,
    /// Volumes that may be given up.
    released: WorkQueue<VolumeName>,
}

impl Sidecar {
    async fn work(self: Arc<Self>, shutdown: &CancellationToken) {
        let (workers, resync) = (self.config.worker_threads.get(), self.config.resync);
        let lane = |lane: Lane| {
            let reconciler = Arc::new(InLane { sidecar: self.clone(), lane });
            let queue = self.lanes.queue(lane).clone();
            Loop::new(lane.step(), reconciler, queue).workers(workers).resync(resync)
        };
        let compares = self.clone();
        let attach = lane(Lane::Attach).beside(async move { compares.compare_forever().await });
        let released = Arc::new(ReleasedVolumes(self.clone()));
        let volumes =
            Loop::new("release", released, self.released.clone()).workers(workers).resync(resync);
        tokio::join!(attach.run(shutdown), lane(Lane::Detach).run(shutdown), volumes.run(shutdown));
    }

    /// The attachment's name, if it is ours and belongs into this lane.
    fn in_lane(&self, lane: Lane, attachment: &VolumeAttachment) -> Option<String> {
        let ours = attachment.spec.attacher == self.name;
        let here = Lane::of(attachment) == lane;
        (ours && here).then(|| attachment.metadata.name.clone())
    }

    fn attachment_changed(&self, lane: Lane, change: &Change<VolumeAttachment>) -> Option<String> {
        let Change::Applied { old, new } = change else { return None };
        let news = |old: &Arc<VolumeAttachment>| {
            worth_a_look(old, new) && !only_our_mark(old, new, &self.finalizer)
        };
        self.in_lane(lane, new).filter(|_| old.as_ref().is_none_or(news))
    }

    /// A node that has just registered the driver, or anew, may be what attachments wait for.
    fn node_changed(&self, lane: Lane, change: &Change<CsiNode>) -> Vec<String> {
        let Change::Applied { old, new } = change else { return Vec::new() };
        let before = old.as_ref().and_then(|old| old.driver(&self.name));
        let now = new.driver(&self.name);
        if now.is_none() || before.map(|one| &one.node_id) == now.map(|one| &one.node_id) {
            return Vec::new();
        }
        let node = NodeName::from(&new.metadata.name);
        let there = attachments_on_node(&self.attachments, &node).into_iter();
        let waiting = there.filter(|attachment| !attachment.status.attached);
        waiting.filter_map(|attachment| self.in_lane(lane, &attachment)).collect()
    }

    fn enqueue(&self, attachment: &VolumeAttachment) {
        let lane = Lane::of(attachment);
        if let Some(name) = self.in_lane(lane, attachment) {
            self.lanes.queue(lane).add(name);
        }
    }

    /// One pass over one attachment in one lane.
    async fn reconcile(&self, lane: Lane, name: &str) -> Outcome {
        // In the other lane just now: it comes back when it is through there.
        let Some(_permit) = self.lanes.enter(lane, name) else { return Outcome::Done };
        let Some(attachment) = self.attachments.get(&ObjectKey::cluster(name)) else {
            return Outcome::Done;
        };
        let view = AttachmentView {
            deleting: attachment.metadata.deleting(),
            finalizer: attachment.metadata.has_finalizer(&self.finalizer),
            attached: attachment.status.attached,
            force: self.lanes.take_force(name),
        };
        match (lane, next_step(&view)) {
            (Lane::Attach, Step::Attach) => self.attach(&attachment).await.into(),
            (Lane::Detach, Step::Detach) => self.detach(&attachment).await.into(),
            // Moved to the other lane since it was queued here; it is queued there too.
            _ => Outcome::Done,
        }
    }

    /// For drivers that do not attach: says "attached" wherever it is not said yet.
    async fn work_trivially(self: Arc<Self>, shutdown: &CancellationToken) {
        let queue = self.lanes.queue(Lane::Attach).clone();
        let (workers, resync) = (self.config.worker_threads.get(), self.config.resync);
        let trivial = Loop::new("attach", Arc::new(Trivial(self)), queue);
        trivial.workers(workers).resync(resync).run(shutdown).await;
    }

    async fn declare_attached(&self, name: &str) -> Outcome {
        let attachment = self.attachments.get(&ObjectKey::cluster(name));
        let Some(attachment) = attachment.filter(|attachment| !attachment.status.attached) else {
            return Outcome::Done;
        };
        let patch = json!({"status":
            {"attached": true, "attachmentMetadata": null, "attachError": null}});
        self.patch_status(&attachment, &patch).await.optional().map(drop).into()
    }
}

/// The attachments of one lane.
struct InLane {
    sidecar: Arc<Sidecar>,
    lane: Lane,
}

impl Reconciler for InLane {
    type Key = String;

    fn sources(&self, sources: &mut Sources<Self>) {
        let Self { sidecar, .. } = self;
        sources
            .needs(&sidecar.volumes)
            .on(&sidecar.attachments, |this, change| {
                this.sidecar.attachment_changed(this.lane, change)
            })
            .on(&sidecar.csi_nodes, |this, change| this.sidecar.node_changed(this.lane, change))
            .on_resync(&sidecar.attachments, |this, one| this.sidecar.in_lane(this.lane, one));
    }

    fn subject(&self, name: &String) -> Subject {
        Subject::key(name)
    }

    async fn reconcile(&self, name: &String) -> Outcome {
        note("driver", &self.sidecar.name);
        self.sidecar.reconcile(self.lane, name).await
    }
}

/// Attachments of a driver that cannot publish volumes.
struct Trivial(Arc<Sidecar>);

impl Trivial {
    fn unattached(&self, attachment: &VolumeAttachment) -> Option<String> {
        let ours = attachment.spec.attacher == self.0.name;
        (ours && !attachment.status.attached).then(|| attachment.metadata.name.clone())
    }
}

impl Reconciler for Trivial {
    type Key = String;

    fn sources(&self, sources: &mut Sources<Self>) {
        let attachments = &self.0.attachments;
        sources
            .on(attachments, |this, change| change.applied().and_then(|new| this.unattached(new)))
            .on_resync(attachments, Self::unattached);
    }

    fn subject(&self, name: &String) -> Subject {
        Subject::key(name)
    }

    async fn reconcile(&self, name: &String) -> Outcome {
        self.0.declare_attached(name).await
    }
}
