//! The node agent: everything of one node in one value.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longshore_cluster::{Api, Cache, Metrics, Recorder, Scope, Subscription};
use longshore_core::model::Uid;
use longshore_core::model::kinds::{Claim, CsiDriver, Node, Pod};
use longshore_core::stage::paths::NodePaths;
use tokio::sync::{Notify, watch};
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::drivers::Drivers;
use crate::fault::{Faults, Forgets};
use crate::metrics::NodeMetrics;
use crate::node_object::NodeObject;
use crate::pods::cgroups::Cgroups;
use crate::pods::hidden::hide_from_pods;
use crate::pods::logs::NodeLogs;
use crate::pods::pod_dir::remove_pod_dir;
use crate::pods::shim_client::{ShimClient, ShimProgram, kill_leftovers};
use crate::pods::worker::{PodDeps, Worker};
use crate::registration::Registrar;
use crate::shim::protocol::LogLimit;
use crate::volumes::stats::NodeStats;
use crate::volumes::{Deps, VolumeManager, make_dir};

/// How pods are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodsMode {
    /// As host processes.
    Process,
    /// Not at all: volumes are mounted for somebody else's runtime.
    None,
}

/// How a node agent behaves.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The node's name.
    pub node_name: String,
    /// Kubelet-style root directory.
    pub root_dir: PathBuf,
    /// How pods are run.
    pub pods: PodsMode,
    /// The shim's program; normally this program with `["pod-shim"]`.
    pub shim: ShimProgram,
    /// Host directories that pods must not see (data directory, pools).
    pub hidden_dirs: Vec<PathBuf>,
    /// At shutdown: stop pods, unpublish and unstage. Otherwise pods go on under their shims.
    pub stop_pods: bool,
    /// Cuts the pods' grace at shutdown.
    pub stop_timeout: Duration,
    /// Run the command of any image on the host.
    pub run_any_image_on_host: bool,
    /// What pods can use up.
    pub limits: PodLimits,
}

/// What a pod can use up of the node.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PodLimits {
    /// Processes of a pod; no bound when absent.
    pub max_pids: Option<u64>,
    /// Output of a container.
    pub log: LogLimit,
}

impl Default for PodLimits {
    fn default() -> Self {
        Self { max_pids: Some(4096), log: LogLimit::default() }
    }
}

/// Why an agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A directory cannot be made or watched.
    #[error("node directory {dir}: {source}")]
    Dir {
        /// The directory.
        dir: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}

/// See the module's description.
pub struct NodeAgent {
    config: NodeConfig,
    api: Api,
    drivers: Arc<Drivers>,
    settings: Settings,
}

/// What few change.
struct Settings {
    metrics: Metrics,
    stats: NodeStats,
    selinux: bool,
    mount_patience: Duration,
    list_staged: bool,
    stats_period: Duration,
    faults: Faults,
}

/// How long unmounting may take at shutdown, beyond the pods' grace.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(20);
/// How long a pod waits for its volumes before somebody looks why.
const MOUNT_PATIENCE: Duration = Duration::from_secs(123);
/// How often drivers are asked how full their volumes are.
const STATS_PERIOD: Duration = Duration::from_secs(60);
const START_RETRY: Duration = Duration::from_millis(500);

impl NodeAgent {
    /// An agent over an API client.
    #[must_use]
    pub fn new(config: NodeConfig, api: Api) -> Self {
        let settings = Settings {
            metrics: Metrics::new(),
            stats: NodeStats::new(&config.node_name),
            selinux: Path::new("/sys/fs/selinux/enforce").exists(),
            mount_patience: MOUNT_PATIENCE,
            list_staged: false,
            stats_period: STATS_PERIOD,
            faults: Faults::NONE,
        };
        Self { config, api, drivers: Arc::default(), settings }
    }

    /// Counts and measures into these metrics.
    #[must_use]
    pub fn with_metrics(mut self, metrics: &Metrics) -> Self {
        self.settings.metrics = metrics.clone();
        self
    }

    /// Whether volumes are mounted with SELinux labels; by default if the node has SELinux.
    #[must_use]
    pub fn with_selinux(mut self, selinux: bool) -> Self {
        self.settings.selinux = selinux;
        self
    }

    /// How long a pod may wait for its volumes before the node looks for a full one; 2 min 3 s.
    #[must_use]
    pub fn with_mount_patience(mut self, patience: Duration) -> Self {
        self.settings.mount_patience = patience;
        self
    }

    /// How often drivers are asked how full their volumes are; once a minute.
    #[must_use]
    pub fn with_stats_period(mut self, period: Duration) -> Self {
        self.settings.stats_period = period;
        self
    }

    /// Also lists volumes in `status.volumesInUse` that are staged without being attached, so that a
    /// provisioner of ours does not delete them too early. A kubelet does not list them.
    #[must_use]
    pub fn with_staged_listed(mut self) -> Self {
        self.settings.list_staged = true;
        self
    }

    /// What happens at the points of [`crate::fault`].
    #[must_use]
    pub fn with_faults(mut self, faults: Faults) -> Self {
        self.settings.faults = faults;
        self
    }

    /// How full the volumes of this node's pods are.
    #[must_use]
    pub fn stats(&self) -> NodeStats {
        self.settings.stats.clone()
    }

    /// The drivers registered on this node.
    #[must_use]
    pub fn drivers(&self) -> Arc<Drivers> {
        self.drivers.clone()
    }

    /// The logs of this node's pods.
    #[must_use]
    pub fn logs(&self) -> NodeLogs {
        NodeLogs::new(self.api.clone(), &self.config.root_dir)
    }

    /// Runs until `shutdown`, and then as long as the way back takes.
    ///
    /// # Errors
    /// The node's directories cannot be used.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), NodeError> {
        let paths = NodePaths::new(&self.config.root_dir);
        for dir in [paths.root().to_owned(), paths.pods(), paths.csi_plugins(), paths.registry()] {
            make_dir(&dir).map_err(|source| NodeError::Dir { dir, source })?;
        }
        // Ends after the pods: unmounting needs drivers, caches and events.
        let inner = CancellationToken::new();
        let _ends = inner.clone().drop_guard();
        if !self.announce(&shutdown).await {
            return Ok(());
        }
        self.settings.faults.at("start.announced");
        let mut tasks = JoinSet::new();
        let node = NodeObject::new(self.api.clone(), &self.config.node_name);
        tasks.spawn(node.run(inner.clone()));
        let (csi_drivers, _) = Cache::<CsiDriver>::start(&self.api, Scope::all(), &inner);
        let metrics = NodeMetrics::of(&self.settings.metrics);
        self.drivers.measure(metrics.csi.clone());
        let registrar = Registrar::new(
            self.api.clone(),
            self.drivers.clone(),
            csi_drivers.clone(),
            paths.clone(),
            &self.config.node_name,
        );
        metrics.count_plugins(&registrar);
        let token = inner.clone();
        let serving = registrar.clone();
        tasks.spawn(async move {
            let registrar = serving;
            if let Err(error) = registrar.run(token).await {
                tracing::error!(%error, "driver registration ended");
            }
        });
        let shared = Shared { registrar, csi_drivers, paths, metrics };
        // The first lists never come from an API server that does not answer.
        let starting = Running::start(&self, shared, &inner);
        let Some(mut running) = shutdown.run_until_cancelled(starting).await else {
            return Ok(());
        };
        running.supervise(&shutdown).await;
        if self.config.stop_pods {
            running.stop(self.config.stop_timeout).await;
        }
        inner.cancel();
        running.end().await;
        while tasks.join_next().await.is_some() {}
        Ok(())
    }

    /// Makes the node's objects; false when told to stop before the API answered.
    async fn announce(&self, shutdown: &CancellationToken) -> bool {
        let node = NodeObject::new(self.api.clone(), &self.config.node_name);
        loop {
            match shutdown.run_until_cancelled(node.ensure()).await {
                None => return false,
                Some(Ok(())) => return true,
                Some(Err(error)) => tracing::warn!(%error, "node not announced yet"),
            }
            tokio::select! {
                () = shutdown.cancelled() => return false,
                () = tokio::time::sleep(START_RETRY) => {}
            }
        }
    }
}

struct PodEntry {
    updates: watch::Sender<Option<Arc<Pod>>>,
    task: Id,
}

/// The agent's moving parts.
struct Running {
    mode: PodsMode,
    pods: Cache<Pod>,
    volumes: Arc<VolumeManager>,
    deps: Arc<PodDeps>,
    stop_pods: watch::Sender<Option<Duration>>,
    wake: Arc<Notify>,
    entries: BTreeMap<Uid, PodEntry>,
    workers: JoinSet<()>,
    loops: JoinSet<()>,
    inner: CancellationToken,
    /// The first look at all pods is still going on.
    first_pass: bool,
    /// Wakes this for changes of pods.
    notified: Option<Subscription>,
}

/// What registration and volumes have in common.
struct Shared {
    registrar: Arc<Registrar>,
    csi_drivers: Cache<CsiDriver>,
    paths: NodePaths,
    metrics: NodeMetrics,
}

impl Running {
    async fn start(agent: &NodeAgent, shared: Shared, inner: &CancellationToken) -> Self {
        let NodeAgent { config, api, drivers, settings } = agent;
        let Shared { registrar, csi_drivers, paths, metrics } = shared;
        let name = &config.node_name;
        let (pods, _) =
            Cache::<Pod>::start(api, Scope::fields(format!("spec.nodeName={name}")), inner);
        let (node, _) =
            Cache::<Node>::start(api, Scope::fields(format!("metadata.name={name}")), inner);
        // Nobody waits for it to be synced: without the right to watch claims, they are asked for.
        let (claims, _) = Cache::<Claim>::start(api, Scope::all(), inner);
        let (recorder, _) = Recorder::start(api, "kubelet", name, inner);
        pods.synced().await;
        node.synced().await;
        csi_drivers.synced().await;
        let volumes = VolumeManager::new(Deps {
            list_staged: settings.list_staged,
            faults: settings.faults.clone(),
            api: api.clone(),
            recorder: recorder.clone(),
            node,
            csi_drivers,
            claims,
            drivers: drivers.clone(),
            paths: paths.clone(),
            node_name: name.clone(),
            selinux: settings.selinux,
            metrics,
            stats: settings.stats.clone(),
            stats_period: settings.stats_period,
        });
        let (stop_pods, stop_receiver) = watch::channel(None);
        let hidden = config.hidden_dirs.iter().chain([&config.root_dir]);
        let hidden: Vec<PathBuf> =
            hidden.map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.clone())).collect();
        hidden.iter().for_each(|dir| hide_from_pods(dir));
        let cgroups = match config.pods {
            PodsMode::Process => Cgroups::find(paths.root(), config.limits.max_pids),
            PodsMode::None => Cgroups::default(),
        };
        let deps = Arc::new(PodDeps {
            cgroups,
            log_limit: config.limits.log,
            api: api.clone(),
            recorder,
            volumes: volumes.clone(),
            paths,
            shim: config.shim.clone(),
            hidden,
            run_any_image: config.run_any_image_on_host,
            stop_pods: stop_receiver,
            registrar,
            mount_patience: settings.mount_patience,
            faults: settings.faults.clone(),
        });
        let mut running = Self {
            mode: config.pods,
            pods,
            volumes,
            deps,
            stop_pods,
            wake: Arc::default(),
            entries: BTreeMap::new(),
            workers: JoinSet::new(),
            loops: JoinSet::new(),
            inner: inner.clone(),
            first_pass: true,
            notified: None,
        };
        running.resume();
        let paths = &running.deps.paths;
        running.deps.cgroups.sweep(|uid| paths.pod(uid).exists()).await;
        running
    }

    /// Picks up what an earlier life left, then lets the volume loop go.
    fn resume(&mut self) {
        let wake = self.wake.clone();
        self.notified = Some(self.pods.subscribe(move |_| wake.notify_one()));
        let found = self.volumes.reconstruct();
        let faults = &self.deps.faults;
        faults.at("start.reconstructed");
        let found = if faults.forgets(Forgets::Orphans) { Vec::new() } else { found };
        self.look();
        for uid in found {
            if !self.entries.contains_key(&uid) {
                tracing::info!(uid = uid.as_str(), "pod directory without a pod");
                self.workers.spawn(end_orphan(self.deps.clone(), uid));
            }
        }
        self.first_pass = false;
        self.volumes.all_pods_known();
        self.loops.spawn(self.volumes.clone().run(self.inner.clone()));
        self.loops.spawn(self.volumes.clone().collect_stats(self.inner.clone()));
    }

    async fn supervise(&mut self, shutdown: &CancellationToken) {
        loop {
            self.look();
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.wake.notified() => {}
                Some(ended) = self.workers.join_next_with_id() => self.ended(ended),
            }
        }
    }

    fn ended(&mut self, ended: Result<(Id, ()), tokio::task::JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                tracing::error!(%error, "a pod's worker failed; it will be started again");
                error.id()
            }
        };
        self.entries.retain(|_, entry| entry.task != id);
    }

    /// One worker per pod; pods that are gone are told so.
    fn look(&mut self) {
        let mut present: BTreeMap<Uid, Arc<Pod>> =
            self.pods.list().into_iter().map(|pod| (pod.metadata.uid.clone(), pod)).collect();
        for (uid, entry) in &self.entries {
            let now = present.remove(uid);
            entry.updates.send_if_modified(|before| {
                let version = |pod: &Option<Arc<Pod>>| {
                    pod.as_ref().map(|pod| pod.metadata.resource_version.clone())
                };
                let changed = version(before) != version(&now);
                *before = now;
                changed
            });
        }
        for (uid, pod) in present {
            let (updates, receiver) = watch::channel(Some(pod.clone()));
            let task = match self.mode {
                PodsMode::Process => {
                    let worker = Worker::new(self.deps.clone(), pod, receiver, self.first_pass);
                    self.workers.spawn(worker.run())
                }
                PodsMode::None => self.workers.spawn(mount_only(self.deps.clone(), pod, receiver)),
            };
            self.entries.insert(uid, PodEntry { updates, task: task.id() });
        }
    }

    /// Stops pods and takes everything down.
    async fn stop(&mut self, grace: Duration) {
        self.stop_pods.send_replace(Some(grace));
        let all_down = async {
            while let Some(ended) = self.workers.join_next_with_id().await {
                if let Err(error) = ended {
                    tracing::error!(%error, "a pod's worker failed");
                }
            }
            let mut changes = self.volumes.changes();
            while !self.volumes.is_idle() {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(grace + UNMOUNT_PATIENCE, all_down).await.is_err() {
            tracing::error!("some volumes are still mounted; the next start goes on with them");
        }
    }

    async fn end(mut self) {
        self.workers.abort_all();
        while self.workers.join_next().await.is_some() {}
        while self.loops.join_next().await.is_some() {}
        self.deps.cgroups.tidy();
    }
}

/// A pod directory whose pod no longer exists: what still runs is ended first.
async fn end_orphan(deps: Arc<PodDeps>, uid: Uid) {
    let dir = deps.paths.pod(&uid);
    match ShimClient::adopt(&dir).await {
        Ok(Some(shim)) => shim.quit().await,
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(uid = uid.as_str(), %error, "shim of a vanished pod does not answer")
        }
    }
    kill_leftovers(&dir).await;
    deps.remove_cgroup(&uid).await;
    let volumes = deps.volumes.volumes_of(&uid);
    deps.volumes.release(&uid);
    deps.volumes.wait_unmounted(&uid, &volumes).await;
    if let Err(error) = remove_pod_dir(&dir) {
        tracing::warn!(uid = uid.as_str(), %error, "directory of a vanished pod stays");
    }
}

/// A pod that somebody else runs: its volumes are there as long as it is.
async fn mount_only(
    deps: Arc<PodDeps>,
    pod: Arc<Pod>,
    mut updates: watch::Receiver<Option<Arc<Pod>>>,
) {
    let uid = pod.metadata.uid.clone();
    let mut stop = deps.stop_pods.clone();
    let mut released = pod.finished();
    if !released {
        deps.volumes.want(&pod);
    }
    loop {
        let now = updates.borrow_and_update().clone();
        let Some(pod) = now.filter(|_| stop.borrow().is_none()) else { break };
        if pod.finished() && !released {
            deps.volumes.release(&uid);
            released = true;
        }
        deps.volumes.want_if_known(&pod);
        tokio::select! {
            changed = updates.changed() => if changed.is_err() { break },
            changed = stop.changed() => if changed.is_err() { break },
        }
    }
    let volumes = deps.volumes.volumes_of(&uid);
    deps.volumes.release(&uid);
    deps.volumes.wait_unmounted(&uid, &volumes).await;
    if let Err(error) = remove_pod_dir(&deps.paths.pod(&uid)) {
        tracing::warn!(uid = uid.as_str(), %error, "pod directory stays");
    }
}
