//! The controller: its queues, the caches that feed them, and its loops.

use std::sync::Arc;

use longshore_cluster::{
    Api, Cache, Change, EventType, Loop, Metrics, Outcome, QueueOptions, Reconciler, Recorder,
    Scope, Sources, Subject, WorkQueue,
};
use longshore_core::model::{
    HasMeta, ObjectKey, ObjectRef, Uid, VolumeName,
    kinds::{Claim, StorageClass, Volume},
};
use tokio_util::sync::CancellationToken;

use crate::{Attempts, Config, ProvisionMetrics, Provisioner, memory::Memory};

/// How many tasks save volumes that could not be saved at once.
const SAVERS: usize = 4;

/// The name of the index of claims by UID.
pub(crate) const BY_UID: &str = "uid";

/// What a controller works with. All loops of a process share the same caches.
#[derive(Clone)]
pub struct Parts {
    /// The API.
    pub api: Api,
    /// All claims.
    pub claims: Cache<Claim>,
    /// All volumes.
    pub volumes: Cache<Volume>,
    /// All classes.
    pub classes: Cache<StorageClass>,
    /// Where events go.
    pub recorder: Recorder,
    /// Counters.
    pub metrics: ProvisionMetrics,
    /// Where queues report.
    pub registry: Metrics,
}

impl Parts {
    /// Starts caches and recorder for a process that has none yet.
    #[must_use]
    pub fn start(api: &Api, name: &str, shutdown: &CancellationToken) -> Self {
        let registry = Metrics::new();
        Self {
            claims: Cache::start(api, Scope::all(), shutdown).0,
            volumes: Cache::start(api, Scope::all(), shutdown).0,
            classes: Cache::start(api, Scope::all(), shutdown).0,
            recorder: Recorder::start(api, name, "", shutdown).0,
            metrics: ProvisionMetrics::register(&registry),
            api: api.clone(),
            registry,
        }
    }
}

/// Runs a [`Provisioner`] for all claims that name it.
pub struct ProvisionController<P> {
    pub(crate) inner: Arc<Inner<P>>,
}

pub(crate) struct Inner<P> {
    pub(crate) config: Config,
    pub(crate) names: Vec<String>,
    pub(crate) parts: Parts,
    pub(crate) provisioner: Arc<P>,
    pub(crate) attempts: Attempts,
    pub(crate) memory: Memory,
    /// By claim UID: a claim of the same name made later is another claim.
    pub(crate) claims: WorkQueue<Uid>,
    pub(crate) volumes: WorkQueue<VolumeName>,
    pub(crate) unsaved: WorkQueue<Uid>,
}

impl<P: Provisioner> ProvisionController<P> {
    /// A controller that does nothing until [`Self::run`].
    #[must_use]
    pub fn new(config: Config, parts: Parts, provisioner: P) -> Self {
        Self::shared(config, parts, Arc::new(provisioner), Attempts::default())
    }

    /// As [`Self::new`], for a provisioner that others hold too, and with attempts that it takes part
    /// in.
    #[must_use]
    pub fn shared(config: Config, parts: Parts, provisioner: Arc<P>, attempts: Attempts) -> Self {
        let retry = QueueOptions {
            bucket: config.retry.bucket,
            ..QueueOptions::backoff(config.retry.start, config.retry.max)
        }
        .with_metrics(&parts.registry);
        let save = QueueOptions::controller().with_metrics(&parts.registry);
        let inner = Inner {
            names: config.names(),
            claims: WorkQueue::new("claims", retry.clone()),
            volumes: WorkQueue::new("volumes", retry),
            unsaved: WorkQueue::new("unsavedpvs", save),
            attempts,
            memory: Memory::default(),
            config,
            parts,
            provisioner,
        };
        Self { inner: Arc::new(inner) }
    }

    /// A handle that gives claims and volumes another look from outside.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker { volumes: self.inner.volumes.clone() }
    }

    /// Runs until `shutdown`; then finishes what is in flight and returns. Aborting it at any point
    /// is safe as far as the provisioner's own calls are.
    pub async fn run(self, shutdown: CancellationToken) {
        let inner = self.inner;
        inner.parts.claims.index(BY_UID, |claim| vec![claim.metadata.uid.to_string()]);
        let (threads, resync) = (inner.config.threads, inner.config.resync);
        let claims = Loop::new("provision", Arc::new(Claims(inner.clone())), inner.claims.clone())
            .workers(threads)
            .resync(resync);
        let volumes = Loop::new("delete", Arc::new(Volumes(inner.clone())), inner.volumes.clone())
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
        let parts = &self.0.parts;
        sources
            .needs(&parts.volumes)
            .on(&parts.claims, |_, change| match change {
                Change::Applied { new, .. } => Some(new.metadata.uid.clone()),
                Change::Deleted { .. } => None,
            })
            // A class made anew may answer claims that were infeasible, and claims that wait for it.
            .on(&parts.classes, |this, change| match change {
                Change::Applied { old: Some(old), new } if old.metadata.uid == new.metadata.uid => {
                    Vec::new()
                }
                Change::Applied { .. } => this.0.attempts.resting(),
                Change::Deleted { .. } => Vec::new(),
            })
            .on_resync(&parts.claims, |_, claim| [claim.metadata.uid.clone()]);
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
        let parts = &self.0.parts;
        sources
            .needs(&parts.claims)
            .needs(&parts.classes)
            .on(&parts.volumes, |this, change| match change {
                Change::Applied { new, .. } => Some(new.name()),
                Change::Deleted { old } => {
                    let name = old.name();
                    this.0.volumes.forget(&name);
                    this.0.memory.forget_volume(&name, &old.metadata.uid);
                    None
                }
            })
            .on_resync(&parts.volumes, |_, volume| [volume.name()]);
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

impl<P: Provisioner> Inner<P> {
    pub(crate) fn class_of(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.parts.classes.get(&ObjectKey::cluster(name))
    }

    pub(crate) fn tell(&self, claim: &Claim, kind: EventType, reason: &str, message: String) {
        let object = ObjectRef::of::<Claim>(claim.meta());
        self.parts.recorder.event(&object, kind, reason, message);
    }
}
