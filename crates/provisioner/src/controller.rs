//! The controller: queues, who feeds them, and who works on them.

use std::sync::Arc;

use longshore_cluster::{
    Api, Cache, Change, EventType, Metrics, QueueOptions, Recorder, Scope, Subscription, WorkQueue,
};
use longshore_core::model::{
    HasMeta, ObjectKey, ObjectRef,
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

    async fn synced(&self) {
        self.claims.synced().await;
        self.volumes.synced().await;
        self.classes.synced().await;
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
    pub(crate) claims: WorkQueue<String>,
    /// By volume name.
    pub(crate) volumes: WorkQueue<String>,
    /// By claim UID.
    pub(crate) unsaved: WorkQueue<String>,
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

    /// Works until `shutdown`; then finishes what is under way and returns. Aborting it at any
    /// point is safe as far as the provisioner's own calls are.
    pub async fn run(self, shutdown: CancellationToken) {
        let inner = self.inner;
        let _closing = Closing(inner.clone());
        inner.parts.claims.index(BY_UID, |claim| vec![claim.metadata.uid.clone()]);
        if shutdown.run_until_cancelled(inner.parts.synced()).await.is_none() {
            return;
        }
        let _subscriptions = subscribe(&inner);
        let (claims, volumes, savers) = (inner.clone(), inner.clone(), inner.clone());
        let threads = inner.config.threads;
        tokio::join!(
            inner.claims.run_until(threads, &shutdown, move |uid| {
                let inner = claims.clone();
                async move { inner.sync_claim(&uid).await }
            }),
            inner.volumes.run_until(threads, &shutdown, move |name| {
                let inner = volumes.clone();
                async move { inner.sync_volume(&name).await }
            }),
            inner.unsaved.run_until(SAVERS, &shutdown, move |name| {
                let inner = savers.clone();
                async move { inner.save_again(&name).await }
            }),
            resync(&inner, &shutdown),
        );
    }
}

/// Wakes a controller for what its own caches do not show.
#[derive(Clone)]
pub struct Waker {
    volumes: WorkQueue<String>,
}

impl Waker {
    /// Looks at a volume now, without waiting for its backoff.
    pub fn look_at_volume(&self, name: &str) {
        self.volumes.add(name.to_string());
    }
}

/// Closes the queues when the controller ends in whatever way: the caches keep their subscribers,
/// and must not fill the queues of a controller that is gone.
struct Closing<P>(Arc<Inner<P>>);

impl<P> Drop for Closing<P> {
    fn drop(&mut self) {
        self.0.claims.shut_down();
        self.0.volumes.shut_down();
        self.0.unsaved.shut_down();
    }
}

fn subscribe<P: Provisioner>(inner: &Arc<Inner<P>>) -> [Subscription; 3] {
    let queue = inner.claims.clone();
    let claims = inner.parts.claims.subscribe(move |change| {
        if let Change::Applied { new, .. } = change {
            queue.add(new.metadata.uid.clone());
        }
    });
    let (queue, weak) = (inner.volumes.clone(), Arc::downgrade(inner));
    let volumes = inner.parts.volumes.subscribe(move |change| match change {
        Change::Applied { new, .. } => queue.add(new.metadata.name.clone()),
        Change::Deleted { old } => {
            queue.forget(&old.metadata.name);
            if let Some(inner) = weak.upgrade() {
                inner.memory.forget_volume(&old.metadata.name, &old.metadata.uid);
            }
        }
    });
    // A class made anew may answer claims that were infeasible, and claims that wait for it.
    let (queue, weak) = (inner.claims.clone(), Arc::downgrade(inner));
    let classes = inner.parts.classes.subscribe(move |change| {
        let Some(inner) = weak.upgrade() else { return };
        let new_uid = match change {
            Change::Applied { old, new } => {
                old.as_ref().is_none_or(|old| old.metadata.uid != new.metadata.uid)
            }
            Change::Deleted { .. } => false,
        };
        if new_uid {
            inner.attempts.resting().into_iter().for_each(|uid| queue.add(uid));
        }
    });
    [claims, volumes, classes]
}

/// Looks at everything again now and then, for what no event tells about.
async fn resync<P: Provisioner>(inner: &Arc<Inner<P>>, shutdown: &CancellationToken) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(inner.config.resync) => {}
        }
        for claim in inner.parts.claims.list() {
            inner.claims.add(claim.metadata.uid.clone());
        }
        for volume in inner.parts.volumes.list() {
            inner.volumes.add(volume.metadata.name.clone());
        }
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
