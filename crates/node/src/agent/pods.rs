//! The loop that keeps one worker per pod of the node.

use std::collections::BTreeMap;
use std::sync::Arc;

use longshore_cluster::controller::pass_span;
use longshore_cluster::{
    Cache, Change, Loop, Outcome, QueueOptions, Reconciler, Sources, Subject, WorkQueue,
};
use longshore_core::model::kinds::Pod;
use longshore_core::model::{ObjectKey, Uid};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::pods::pod_dir::remove_pod_dir;
use crate::pods::shim_client::{ShimClient, kill_leftovers};
use crate::pods::worker::{PodDeps, Worker};

use super::PodsMode;

/// One pod. Another one may have taken its name since.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PodKey {
    name: ObjectKey,
    uid: Uid,
}

impl From<&Pod> for PodKey {
    fn from(pod: &Pod) -> Self {
        Self { name: pod.metadata.key(), uid: pod.metadata.uid.clone() }
    }
}

/// Sends changes of a pod to its worker, by UID.
type Workers = BTreeMap<Uid, watch::Sender<Option<Arc<Pod>>>>;

/// The pods of the node and their workers. Dropping it aborts them.
pub(super) struct PodLoop {
    mode: PodsMode,
    pods: Cache<Pod>,
    deps: Arc<PodDeps>,
    workers: Arc<Mutex<Workers>>,
    tasks: Mutex<JoinSet<()>>,
    queue: WorkQueue<PodKey>,
}

impl Reconciler for PodLoop {
    type Key = PodKey;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources.on(&self.pods, |_, change| {
            let old = match change {
                Change::Applied { old, new } => {
                    old.as_ref().filter(|old| old.metadata.uid != new.metadata.uid)
                }
                Change::Deleted { .. } => None,
            };
            let pods = old.into_iter().chain([change.object()]);
            pods.map(|pod| PodKey::from(&**pod)).collect::<Vec<_>>()
        });
    }

    fn subject(&self, key: &PodKey) -> Subject {
        Subject::pod(&key.name)
    }

    async fn reconcile(&self, key: &PodKey) -> Outcome {
        let pod = self.pods.get(&key.name).filter(|pod| pod.metadata.uid == key.uid);
        let running = self.workers.lock().get(&key.uid).map(|updates| update(updates, &pod));
        if let (None, Some(pod)) = (running, pod) {
            self.start(pod, false);
        }
        Outcome::Done
    }
}

impl PodLoop {
    pub(super) fn new(mode: PodsMode, pods: Cache<Pod>, deps: Arc<PodDeps>) -> Arc<Self> {
        Arc::new(Self {
            mode,
            pods,
            deps,
            workers: Arc::default(),
            tasks: Mutex::default(),
            queue: WorkQueue::new("pod", QueueOptions::default()),
        })
    }

    /// Starts a worker for each pod that is there, and ends what is left of the pods of `found` that
    /// are not.
    pub(super) fn resume(&self, found: Vec<Uid>) {
        for pod in self.pods.list() {
            self.start(pod, true);
        }
        for uid in found {
            if !self.workers.lock().contains_key(&uid) {
                // Its name went with the object; its directory tells people what it was.
                let span = pass_span("pod", &Subject::key(&uid), 1);
                let dir = self.deps.paths.pod(&uid);
                span.in_scope(|| {
                    longshore_cluster::log_process!(dir = %dir.display(), "pod directory without a pod")
                });
                let end = end_orphan(self.deps.clone(), uid);
                self.tasks.lock().spawn(end.instrument(span));
            }
        }
    }

    /// Runs until `shutdown`. Workers go on.
    pub(super) async fn run(self: &Arc<Self>, shutdown: &CancellationToken) {
        Loop::new("pod", self.clone(), self.queue.clone()).run(shutdown).await;
    }

    /// The pods that have a worker, as `namespace/name`.
    pub(super) fn names(&self) -> Vec<String> {
        let workers = self.workers.lock();
        let pods = workers.values().filter_map(|updates| updates.borrow().clone());
        pods.map(|pod| pod.metadata.key().to_string()).collect()
    }

    /// Waits until all workers have ended.
    pub(super) async fn ended(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        while tasks.join_next().await.is_some() {}
    }

    /// Aborts all workers; pods go on under their shims.
    pub(super) async fn abort(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
    }

    fn start(&self, pod: Arc<Pod>, first_pass: bool) {
        let key = PodKey::from(&*pod);
        let (updates, receiver) = watch::channel(Some(pod.clone()));
        self.workers.lock().insert(key.uid.clone(), updates);
        let span = pass_span("pod", &Subject::pod(&key.name), 1);
        let ended = Ended { key, workers: self.workers.clone(), queue: self.queue.clone() };
        let (mode, deps) = (self.mode, self.deps.clone());
        let work = async move {
            let _ended = ended;
            match mode {
                PodsMode::Process => Worker::new(deps, pod, receiver, first_pass).run().await,
                PodsMode::None => mount_only(deps, pod, receiver).await,
            }
        };
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work.instrument(span));
    }
}

/// Shows a worker what its pod is now, if that changed; `None` when it is gone.
fn update(updates: &watch::Sender<Option<Arc<Pod>>>, now: &Option<Arc<Pod>>) {
    let version =
        |pod: &Option<Arc<Pod>>| pod.as_ref().map(|pod| pod.metadata.resource_version.clone());
    updates.send_if_modified(|before| {
        let changed = version(before) != version(now);
        before.clone_from(now);
        changed
    });
}

/// Enqueues a pod when its worker ends, in whatever way: if the pod is still there, it gets another.
struct Ended {
    key: PodKey,
    workers: Arc<Mutex<Workers>>,
    queue: WorkQueue<PodKey>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(pod = %self.key.name, "a pod's worker failed; it will be started again");
        }
        self.workers.lock().remove(&self.key.uid);
        self.queue.add(self.key.clone());
    }
}

/// Removes a pod directory whose pod no longer exists; what still runs is ended first.
async fn end_orphan(deps: Arc<PodDeps>, uid: Uid) {
    let dir = deps.paths.pod(&uid);
    match ShimClient::adopt(&dir).await {
        Ok(Some(shim)) => shim.quit().await,
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(dir = %dir.display(), %error, "cannot reach the shim of a deleted pod")
        }
    }
    kill_leftovers(&dir).await;
    deps.remove_cgroup(&uid).await;
    let volumes = deps.volumes.volumes_of(&uid);
    deps.volumes.remove_pod(&uid);
    deps.volumes.wait_unmounted(&uid, &volumes).await;
    if let Err(error) = remove_pod_dir(&dir) {
        tracing::warn!(dir = %dir.display(), %error, "cannot remove the directory of a deleted pod");
    }
}

/// Mounts the volumes of a pod that another runtime runs, for as long as it is there.
async fn mount_only(
    deps: Arc<PodDeps>,
    pod: Arc<Pod>,
    mut updates: watch::Receiver<Option<Arc<Pod>>>,
) {
    let uid = pod.metadata.uid.clone();
    let mut stop = deps.stop_pods.clone();
    let mut released = pod.finished();
    if !released {
        deps.volumes.add_pod(&pod);
    }
    loop {
        let now = updates.borrow_and_update().clone();
        let Some(pod) = now.filter(|_| stop.borrow().is_none()) else { break };
        if pod.finished() && !released {
            deps.volumes.let_go(&pod);
            released = true;
        }
        deps.volumes.update_pod(&pod);
        tokio::select! {
            changed = updates.changed() => if changed.is_err() { break },
            changed = stop.changed() => if changed.is_err() { break },
        }
    }
    let volumes = deps.volumes.let_go(&pod);
    deps.volumes.wait_unmounted(&uid, &volumes).await;
    if let Err(error) = remove_pod_dir(&deps.paths.pod(&uid)) {
        tracing::warn!(pod = %pod.metadata.key(), %error, "cannot remove the pod directory");
    }
}
