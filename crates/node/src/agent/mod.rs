//! The node agent: everything of one node in one value.

mod pods;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longshore_cluster::{Api, Cache, Context, Metrics, Recorder, Scope};
use longshore_core::backoff::Backoff;
use longshore_core::model::kinds::{CsiDriver, Node, Pod};
use longshore_core::stage::paths::NodePaths;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::drivers::Drivers;
use crate::fault::{Faults, Forgets};
use crate::metrics::NodeMetrics;
use crate::node_object::NodeObject;
use crate::pods::cgroups::Cgroups;
use crate::pods::environment::api_variables;
use crate::pods::hidden::hide_from_pods;
use crate::pods::logs::NodeLogs;
use crate::pods::shim_client::ShimProgram;
use crate::pods::worker::PodDeps;
use crate::registration::Registrar;
use crate::shim::protocol::LogLimit;
use crate::volumes::stats::NodeStats;
use crate::volumes::{BACKOFF, Deps, LeftVolume, VolumeManager, make_dir};
use pods::PodLoop;

/// How pods are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodsMode {
    Process,
    /// Not at all: volumes are mounted for another runtime.
    None,
}

/// How a node agent behaves.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    pub node_name: String,
    /// Kubelet-style root directory.
    pub root_dir: PathBuf,
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
    Dir { dir: PathBuf, source: std::io::Error },
    /// The stop gave up on volumes; the next start goes on with them.
    #[error("still mounted: {}", .0.join("; "))]
    StillMounted(Vec<String>),
}

/// Registers drivers, mounts volumes and runs the pods of one node.
pub struct NodeAgent {
    config: NodeConfig,
    api: Api,
    drivers: Arc<Drivers>,
    stats: NodeStats,
    settings: Settings,
}

/// Settings that have defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the agent counts and measures.
    pub metrics: Metrics,
    /// Volumes are mounted with SELinux labels; by default if the node has SELinux.
    pub selinux: bool,
    /// How long a pod waits for its volumes before the agent checks whether the node is full.
    pub mount_timeout: Duration,
    /// How often drivers are asked how full their volumes are.
    pub stats_period: Duration,
    /// Also lists volumes in `status.volumesInUse` that are staged without being attached, so that a
    /// provisioner of ours does not delete them too early. A kubelet does not list them.
    pub list_staged: bool,
    /// What happens at the points of [`crate::fault`].
    pub faults: Faults,
    /// Where programs in pods reach the API server; they are not told when it is absent.
    pub api_address: Option<ApiAddress>,
    /// How often files that pods have from the API are looked at again.
    pub files_period: Duration,
    /// The pause after a failed operation on a volume.
    pub volume_backoff: Backoff,
}

/// Host and port of an API server that serves TLS.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ApiAddress {
    /// An IP address or a name, both without brackets.
    pub host: String,
    pub port: u16,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            metrics: Metrics::new(),
            selinux: Path::new("/sys/fs/selinux/enforce").exists(),
            mount_timeout: Duration::from_secs(123),
            stats_period: Duration::from_secs(60),
            list_staged: false,
            faults: Faults::NONE,
            api_address: None,
            files_period: Duration::from_secs(50),
            volume_backoff: BACKOFF,
        }
    }
}

/// How long drivers may take at shutdown, beyond the pods' grace, before they say no.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(20);
/// How long volumes that fail to unmount are tried again at shutdown, however short the grace is.
const UNMOUNT_TRIES: Duration = Duration::from_secs(3);
/// How often a stop looks at what it waits for.
const STOP_LOOK: Duration = Duration::from_secs(1);
const START_RETRY: Duration = Duration::from_millis(500);

impl NodeAgent {
    /// An agent over an API client.
    #[must_use]
    pub fn new(config: NodeConfig, api: Api) -> Self {
        let stats = NodeStats::new(&config.node_name);
        Self { config, api, drivers: Arc::default(), stats, settings: Settings::default() }
    }

    /// The same agent with other settings.
    #[must_use]
    pub fn with(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// How full the volumes of this node's pods are.
    #[must_use]
    pub fn stats(&self) -> NodeStats {
        self.stats.clone()
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
        let context = self.context(&inner);
        let node = NodeObject::new(self.api.clone(), &self.config.node_name);
        tasks.spawn(node.watching(context.cache()).run(inner.clone()));
        let metrics = NodeMetrics::of(&self.settings.metrics);
        self.drivers.measure(metrics.csi.clone());
        let (drivers, name) = (self.drivers.clone(), &self.config.node_name);
        let registrar = Registrar::new(&context, drivers, paths.clone(), name);
        metrics.count_plugins(&registrar);
        let (serving, token) = (registrar.clone(), inner.clone());
        tasks.spawn(async move {
            if let Err(error) = serving.run(token).await {
                tracing::error!(%error, "driver registration ended");
            }
        });
        let shared = Shared { context, registrar, paths, metrics };
        // The first lists never come from an API server that does not answer.
        let starting = Running::start(&self, shared, &inner);
        let Some(running) = shutdown.run_until_cancelled(starting).await else {
            return Ok(());
        };
        running.pods.run(&shutdown).await;
        let left = match self.config.stop_pods {
            true => running.stop(self.config.stop_timeout).await,
            false => Vec::new(),
        };
        inner.cancel();
        running.end().await;
        while tasks.join_next().await.is_some() {}
        match left.is_empty() {
            true => Ok(()),
            false => Err(NodeError::StillMounted(left)),
        }
    }

    /// What the loops are built from: of pods and nodes only those of this node.
    fn context(&self, inner: &CancellationToken) -> Context {
        let context = Context::new(self.api.clone(), self.settings.metrics.clone(), inner);
        let name = &self.config.node_name;
        let pods = Scope::fields(format!("spec.nodeName={name}"));
        context.caches.put(Cache::<Pod>::start(&self.api, pods, inner).0);
        let node = Scope::fields(format!("metadata.name={name}"));
        context.caches.put(Cache::<Node>::start(&self.api, node, inner).0);
        context
    }

    /// Creates the node's objects; false when shut down before the API was reached.
    async fn announce(&self, shutdown: &CancellationToken) -> bool {
        let node = NodeObject::new(self.api.clone(), &self.config.node_name);
        loop {
            match shutdown.run_until_cancelled(node.ensure()).await {
                None => return false,
                Some(Ok(())) => return true,
                Some(Err(error)) => tracing::warn!(%error, "cannot create the node object yet"),
            }
            tokio::select! {
                () = shutdown.cancelled() => return false,
                () = tokio::time::sleep(START_RETRY) => {}
            }
        }
    }
}

/// The loops of an agent that runs.
struct Running {
    pods: Arc<PodLoop>,
    volumes: Arc<VolumeManager>,
    deps: Arc<PodDeps>,
    stop_pods: watch::Sender<Option<Duration>>,
    loops: JoinSet<()>,
}

/// What registration, volumes and pods are built from.
struct Shared {
    context: Context,
    registrar: Arc<Registrar>,
    paths: NodePaths,
    metrics: NodeMetrics,
}

impl Running {
    async fn start(agent: &NodeAgent, shared: Shared, inner: &CancellationToken) -> Self {
        let NodeAgent { config, api, drivers, stats, settings } = agent;
        let Shared { context, registrar, paths, metrics } = shared;
        let name = &config.node_name;
        let (recorder, _) = Recorder::start(api, "kubelet", name, inner);
        let pods = context.cache::<Pod>();
        let node = context.cache::<Node>();
        let csi_drivers = context.cache::<CsiDriver>();
        tokio::join!(pods.synced(), node.synced(), csi_drivers.synced());
        let volumes = VolumeManager::new(Deps {
            list_staged: settings.list_staged,
            faults: settings.faults.clone(),
            api: api.clone(),
            recorder: recorder.clone(),
            node,
            csi_drivers,
            claims: context.cache(),
            drivers: drivers.clone(),
            paths: paths.clone(),
            node_name: name.into(),
            selinux: settings.selinux,
            metrics,
            stats: stats.clone(),
            backoff: settings.volume_backoff,
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
            mount_timeout: settings.mount_timeout,
            faults: settings.faults.clone(),
            services: settings.api_address.as_ref().map(api_variables).unwrap_or_default(),
            files_period: settings.files_period,
        });
        let pods = PodLoop::new(config.pods, pods, deps.clone());
        let mut running = Self { pods, volumes, deps, stop_pods, loops: JoinSet::new() };
        running.resume(inner);
        let paths = &running.deps.paths;
        running.deps.cgroups.sweep(|uid| paths.pod(uid).exists()).await;
        running
    }

    /// Takes over what an earlier agent left, then starts the loops of the volumes.
    fn resume(&mut self, inner: &CancellationToken) {
        let found = self.volumes.reconstruct();
        let faults = &self.deps.faults;
        faults.at("start.reconstructed");
        let found = if faults.forgets(Forgets::Orphans) { Vec::new() } else { found };
        self.pods.resume(found);
        self.volumes.all_pods_known();
        self.loops.spawn(self.volumes.clone().run(inner.clone()));
        self.loops.spawn(self.volumes.clone().collect_stats(inner.clone()));
    }

    /// Stops pods, then unpublishes and unstages all volumes. Returns what could not be unmounted.
    async fn stop(&self, grace: Duration) -> Vec<String> {
        self.stop_pods.send_replace(Some(grace));
        let all_down = async {
            self.pods.ended().await;
            let mut changes = self.volumes.changes();
            while !self.volumes.is_idle() {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = all_down => Vec::new(),
            left = self.give_up(grace) => {
                self.volumes.give_up();
                left.iter().map(ToString::to_string).collect()
            }
        }
    }

    /// Logs what the stop waits for, whenever that changes. Ends with what is left: after the grace
    /// once every volume that is left has failed, and in any case when drivers had their time.
    async fn give_up(&self, grace: Duration) -> Vec<LeftVolume> {
        let begun = Instant::now();
        let mut said = String::new();
        loop {
            tokio::time::sleep(STOP_LOOK).await;
            let left = self.volumes.left_volumes().await;
            let text = self.awaited(&left);
            if text != said {
                tracing::warn!("the stop waits for {text}");
                said = text;
            }
            let hopeless = !left.is_empty() && left.iter().all(|one| one.stuck);
            let passed = begun.elapsed();
            if (passed >= grace.max(UNMOUNT_TRIES) && hopeless) || passed >= grace + UNMOUNT_TIMEOUT
            {
                return left;
            }
        }
    }

    /// What a stop waits for: volumes by name, else the pods that still run.
    fn awaited(&self, left: &[LeftVolume]) -> String {
        let names: Vec<String> = match left.is_empty() {
            true => self.pods.names().iter().map(|pod| format!("pod {pod}")).collect(),
            false => left.iter().map(ToString::to_string).collect(),
        };
        names.join("; ")
    }

    async fn end(mut self) {
        self.pods.abort().await;
        while self.loops.join_next().await.is_some() {}
        self.deps.cgroups.tidy();
    }
}
