//! The controller: its queues, the caches that feed them, and its loops.

use std::sync::Arc;

use longshore_cluster::{
    Api, Cache, Change, Context, Loop, Outcome, QueueOptions, Reconciler, Recorder, Sources,
    Subject, WorkQueue,
};
use longshore_core::model::{
    Uid, VolumeName,
    kinds::{Claim, StorageClass, Volume},
};
use tokio_util::sync::CancellationToken;

use crate::{Attempts, Config, ProvisionMetrics, Provisioner, memory::Memory};

/// How many tasks save volumes that could not be saved at once.
const SAVERS: usize = 4;

/// The name of the index of claims by UID.
pub(crate) const BY_UID: &str = "uid";

/// Runs a [`Provisioner`] for all claims that name it.
pub struct ProvisionController<P> {
    pub(crate) inner: Arc<Inner<P>>,
}

pub(crate) struct Inner<P> {
    pub(crate) config: Config,
    pub(crate) names: Vec<String>,
    pub(crate) api: Api,
    pub(crate) claims: Cache<Claim>,
    pub(crate) volumes: Cache<Volume>,
    pub(crate) classes: Cache<StorageClass>,
    pub(crate) recorder: Recorder,
    pub(crate) metrics: ProvisionMetrics,
    pub(crate) provisioner: Arc<P>,
    pub(crate) attempts: Attempts,
    pub(crate) memory: Memory,
    /// By claim UID: a claim of the same name made later is another claim.
    claim_queue: WorkQueue<Uid>,
    volume_queue: WorkQueue<VolumeName>,
    pub(crate) unsaved: WorkQueue<Uid>,
}

impl<P: Provisioner> ProvisionController<P> {
    /// A controller that does nothing until [`Self::run`]. Its events come from its name.
    #[must_use]
    pub fn new(config: Config, context: &Context, provisioner: P) -> Self {
        let recorder = context.recorder(&config.name);
        Self::shared(config, context, recorder, Arc::new(provisioner), Attempts::default())
    }

    /// As [`Self::new`], for a provisioner that others hold too, and with attempts that it takes part
    /// in.
    #[must_use]
    pub fn shared(
        config: Config,
        context: &Context,
        recorder: Recorder,
        provisioner: Arc<P>,
        attempts: Attempts,
    ) -> Self {
        let retry = QueueOptions {
            bucket: config.retry.bucket,
            ..QueueOptions::backoff(config.retry.start, config.retry.max)
        };
        let inner = Inner {
            names: config.names(),
            api: context.api.clone(),
            claims: context.cache(),
            volumes: context.cache(),
            classes: context.cache(),
            recorder,
            metrics: ProvisionMetrics::register(&context.metrics),
            claim_queue: context.queue("claims", retry.clone()),
            volume_queue: context.queue("volumes", retry),
            unsaved: context.queue("unsavedpvs", QueueOptions::controller()),
            attempts,
            memory: Memory::default(),
            config,
            provisioner,
        };
        inner.claims.index(BY_UID, |claim| vec![claim.metadata.uid.to_string()]);
        Self { inner: Arc::new(inner) }
    }

    /// A handle that gives claims and volumes another look from outside.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker { volumes: self.inner.volume_queue.clone() }
    }

    /// Runs until `shutdown`; then finishes what is in flight and returns. Aborting it at any point
    /// is safe as far as the provisioner's own calls are.
    pub async fn run(self, shutdown: CancellationToken) {
        let inner = self.inner;
        let (threads, resync) = (inner.config.threads, inner.config.resync);
        let (claims, volumes) = (Arc::new(Claims(inner.clone())), Arc::new(Volumes(inner.clone())));
        let claims = Loop::new("provision", claims, inner.claim_queue.clone())
            .workers(threads)
            .resync(resync);
        let volumes = Loop::new("delete", volumes, inner.volume_queue.clone())
            .workers(threads)
            .resync(resync);
        let unsaved = inner.unsaved.clone();
        let savers = Loop::new("save", Arc::new(Savers(inner)), unsaved).workers(SAVERS);
        tokio::join!(claims.run(&shutdown), volumes.run(&shutdown), savers.run(&shutdown));
    }
}

/// Claims that want a volume.
struct Claims<P>(Arc<Inner<P>>);

impl<P: Provisioner> Reconciler for Claims<P> {
    type Key = Uid;

    fn sources(&self, sources: &mut Sources<Self>) {
        let inner = &self.0;
        sources
            .needs(&inner.volumes)
            .on(&inner.claims, |_, change| change.applied().map(|new| new.metadata.uid.clone()))
            // A class made anew may answer claims that were infeasible, and claims that wait for it.
            .on(&inner.classes, |this, change| match change {
                Change::Applied { old: Some(old), new } if old.metadata.uid == new.metadata.uid => {
                    Vec::new()
                }
                Change::Applied { .. } => this.0.attempts.resting(),
                Change::Deleted { .. } => Vec::new(),
            })
            .on_resync(&inner.claims, |_, claim| [claim.metadata.uid.clone()]);
    }

    fn subject(&self, uid: &Uid) -> Subject {
        Subject::key(uid)
    }

    async fn reconcile(&self, uid: &Uid) -> Outcome {
        self.0.sync_claim(uid).await
    }
}

/// Volumes that may have to be deleted.
struct Volumes<P>(Arc<Inner<P>>);

impl<P: Provisioner> Reconciler for Volumes<P> {
    type Key = VolumeName;

    fn sources(&self, sources: &mut Sources<Self>) {
        let inner = &self.0;
        sources
            .needs(&inner.claims)
            .needs(&inner.classes)
            .on(&inner.volumes, |this, change| match change {
                Change::Applied { new, .. } => Some(new.name()),
                Change::Deleted { old } => {
                    let name = old.name();
                    this.0.volume_queue.forget(&name);
                    this.0.memory.forget_volume(&name, &old.metadata.uid);
                    None
                }
            })
            .on_resync(&inner.volumes, |_, volume| [volume.name()]);
    }

    fn subject(&self, name: &VolumeName) -> Subject {
        Subject::volume(name)
    }

    async fn reconcile(&self, name: &VolumeName) -> Outcome {
        self.0.sync_volume(name).await
    }
}

/// Claims whose volume could not be saved at once.
struct Savers<P>(Arc<Inner<P>>);

impl<P: Provisioner> Reconciler for Savers<P> {
    type Key = Uid;

    fn sources(&self, _: &mut Sources<Self>) {}

    fn subject(&self, uid: &Uid) -> Subject {
        Subject::key(uid)
    }

    async fn reconcile(&self, uid: &Uid) -> Outcome {
        self.0.save_again(uid).await
    }
}

/// Wakes a controller for what its own caches do not show.
#[derive(Clone)]
pub struct Waker {
    volumes: WorkQueue<VolumeName>,
}

impl Waker {
    /// Looks at a volume now, without waiting for its backoff.
    pub fn look_at_volume(&self, name: &VolumeName) {
        self.volumes.add(name.clone());
    }
}
