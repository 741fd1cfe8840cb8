//! Driver registration: sockets in the registry directory become registered drivers.
//!
//! The directory is watched, not polled. A key is the path of a socket: a pass registers its driver,
//! refreshes the driver's limits when they are due, and deregisters the driver once the socket is
//! gone or another one stands in its place.

mod node_info;
mod watch;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longshore_cluster::controller::note;
use longshore_cluster::{
    Cache, Context, Loop, Outcome, QueueOptions, Reconciler, Sources, Subject, WorkQueue,
};
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::CsiDriver;
use longshore_core::stage::paths::NodePaths;
use longshore_core::stage::registration::{Refusal, validate};
use longshore_csi::registration::registration_client::RegistrationClient;
use longshore_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use longshore_csi::{Client, CsiError, v1};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Channel;

use crate::drivers::Drivers;
use crate::metrics::Counts;
use crate::volumes::BACKOFF;
use node_info::{NodeInfo, NodeInfoError};
use watch::{Seen, Watcher};

const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
const INFO_TIMEOUT: Duration = Duration::from_secs(1);
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// Limits are not refreshed more often than this.
const SHORTEST_PERIOD: Duration = Duration::from_secs(10);
/// Sockets that are handled side by side: one whose driver hangs must not hold up the others.
const WORKERS: usize = 16;

/// Why a driver is not registered.
#[derive(Debug, thiserror::Error)]
enum RegisterError {
    #[error("dial {path}: {source}")]
    Dial { path: PathBuf, source: CallError },
    #[error("GetInfo: {0}")]
    Info(#[source] CallError),
    #[error("no handler registered for plugin type: {0}")]
    UnknownType(String),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("NodeGetInfo: {0}")]
    NodeGetInfo(#[from] CsiError),
    #[error("NodeGetInfo: {0}")]
    NodeInfo(#[from] NodeInfoError),
    #[error("NotifyRegistrationStatus: {0}")]
    Notify(#[source] CallError),
}

/// Why a call through a registration socket failed.
#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error("no answer within {}s", .0.as_secs())]
    Timeout(Duration),
    #[error("{}", longshore_csi::status_text(.0))]
    Status(#[from] Status),
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
}

/// The registration loop of one node.
pub(crate) struct Registrar {
    drivers: Arc<Drivers>,
    objects: Cache<CsiDriver>,
    paths: NodePaths,
    node: NodeInfo,
    sockets: Mutex<BTreeMap<PathBuf, Socket>>,
    queue: WorkQueue<PathBuf>,
}

/// What is known of the path of a socket. It is kept until the driver is deregistered.
#[derive(Default)]
struct Socket {
    /// How often a socket was made here.
    made: u64,
    present: bool,
    registered: Option<Registered>,
}

#[derive(Clone)]
struct Registered {
    driver: String,
    /// Which of the sockets made here introduced it.
    made: u64,
    /// When its limits were read.
    refreshed: Instant,
}

impl Reconciler for Registrar {
    type Key = PathBuf;

    fn sources(&self, sources: &mut Sources<Self>) {
        sources.on(&self.objects, |registrar, change| {
            registrar.sockets_of(&change.object().metadata.name)
        });
    }

    fn subject(&self, path: &PathBuf) -> Subject {
        Subject::key(path.display())
    }

    async fn reconcile(&self, path: &PathBuf) -> Outcome {
        let Some((present, registered)) = self.state_of(path) else { return Outcome::Done };
        if let Some(registered) = &registered {
            note("driver", &registered.driver);
        }
        match (present, registered) {
            (Some(made), Some(registered)) if registered.made == made => {
                self.refresh_if_due(path, &registered).await
            }
            (_, Some(registered)) => {
                self.deregister(&registered.driver).await;
                self.set_registered(path, None);
                Outcome::Again
            }
            (Some(made), None) => self.register(path, made).await,
            (None, None) => {
                self.sockets.lock().retain(|known, socket| known != path || socket.present);
                Outcome::Done
            }
        }
    }
}

impl Registrar {
    /// A registrar for one node that does nothing until [`Self::run`].
    pub(crate) fn new(
        context: &Context,
        drivers: Arc<Drivers>,
        paths: NodePaths,
        node_name: &str,
    ) -> Arc<Self> {
        let options = QueueOptions { backoff: BACKOFF, ..QueueOptions::default() };
        Arc::new(Self {
            drivers,
            objects: context.cache(),
            paths,
            node: NodeInfo::new(context.api.clone(), node_name),
            sockets: Mutex::default(),
            queue: WorkQueue::new("register", options),
        })
    }

    /// Runs until `shutdown`. Drivers stay registered then: a restart must not take them away from
    /// running pods.
    pub(crate) async fn run(self: Arc<Self>, shutdown: CancellationToken) -> io::Result<()> {
        let registry = self.paths.registry();
        crate::volumes::make_dir(&registry)?;
        let watcher = Watcher::new(&registry)?;
        let passes = Loop::new("register", self.clone(), self.queue.clone()).workers(WORKERS);
        // A pass in flight is dropped at shutdown: a driver that hangs must not hold it up.
        let never = CancellationToken::new();
        tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            ended = self.observe(watcher) => ended,
            () = passes.run(&never) => Ok(()),
        }
    }

    /// Enqueues the path of every socket that comes or goes; returns only with an error.
    async fn observe(&self, mut watcher: Watcher) -> io::Result<()> {
        loop {
            let (path, present) = match watcher.next().await? {
                Seen::Socket(path) => (path, true),
                Seen::Gone(path) => (path, false),
            };
            {
                let mut sockets = self.sockets.lock();
                let socket = sockets.entry(path.clone()).or_default();
                socket.present = present;
                socket.made += u64::from(present);
            }
            self.queue.forget(&path);
            self.queue.add(path);
        }
    }

    /// Which socket stands at a path, if one does, and the driver that was registered through it.
    fn state_of(&self, path: &Path) -> Option<(Option<u64>, Option<Registered>)> {
        let sockets = self.sockets.lock();
        let socket = sockets.get(path)?;
        Some((socket.present.then_some(socket.made), socket.registered.clone()))
    }

    fn set_registered(&self, path: &Path, registered: Option<Registered>) {
        if let Some(socket) = self.sockets.lock().get_mut(path) {
            socket.registered = registered;
        }
    }

    /// The sockets through which a driver was registered.
    fn sockets_of(&self, driver: &str) -> Vec<PathBuf> {
        let is_of = |socket: &Socket| {
            socket.registered.as_ref().is_some_and(|registered| registered.driver == driver)
        };
        let sockets = self.sockets.lock();
        sockets.iter().filter(|(_, socket)| is_of(socket)).map(|(path, _)| path.clone()).collect()
    }

    /// Sockets by path and state, for the metrics.
    pub(crate) fn total_plugins(&self) -> Counts {
        let mut counts = Counts::new();
        for (path, socket) in self.sockets.lock().iter().filter(|(_, socket)| socket.present) {
            let path = path.display().to_string();
            if socket.registered.is_some() {
                counts.insert((path.clone(), "actual_state_of_world"), 1);
            }
            counts.insert((path, "desired_state_of_world"), 1);
        }
        counts
    }

    async fn register(&self, path: &Path, made: u64) -> Outcome {
        let driver = match self.introduce(path).await {
            Ok(driver) => driver,
            Err(error) => return Outcome::retry(error),
        };
        longshore_cluster::log_process!(driver, socket = %path.display(), "driver registered");
        let registered = Registered { driver, made, refreshed: Instant::now() };
        self.set_registered(path, Some(registered));
        // The next pass sees when the limits are due, and whether the socket still stands.
        Outcome::Again
    }

    /// Refreshes a driver's limits as often as its object says.
    async fn refresh_if_due(&self, path: &Path, registered: &Registered) -> Outcome {
        let object = self.objects.get(&ObjectKey::cluster(&registered.driver));
        let seconds = object.and_then(|one| one.spec.node_allocatable_update_period_seconds);
        let Some(seconds) = seconds.and_then(|seconds| u64::try_from(seconds).ok()) else {
            return Outcome::Done;
        };
        let period = Duration::from_secs(seconds).max(SHORTEST_PERIOD);
        let left = period.saturating_sub(registered.refreshed.elapsed());
        if !left.is_zero() {
            return Outcome::After(left);
        }
        self.refresh(&registered.driver).await;
        self.set_registered(
            path,
            Some(Registered { refreshed: Instant::now(), ..registered.clone() }),
        );
        Outcome::After(period)
    }

    /// Asks a driver again how many volumes fit on this node, and writes the number down.
    pub(crate) async fn refresh(&self, driver: &str) {
        let Some(client) = self.drivers.client(driver) else { return };
        if let Err(error) = self.install(driver, &client).await {
            tracing::warn!(driver, %error, "cannot refresh the limits of the driver");
        }
    }

    /// Registers the driver that a socket introduces; returns its name.
    async fn introduce(&self, socket: &Path) -> Result<String, RegisterError> {
        let mut client = RegistrationClient::new(dial(socket).await?);
        let info = within(INFO_TIMEOUT, client.get_info(InfoRequest {})).await;
        let info = info.map_err(RegisterError::Info)?.into_inner();
        if let Err(error) = self.accept(&info, socket).await {
            // Best effort: the error that counts is the one that follows.
            let _ = notify(&mut client, false, &error.to_string()).await;
            return Err(error);
        }
        if let Err(error) = notify(&mut client, true, "").await {
            self.deregister(&info.name).await;
            return Err(error);
        }
        Ok(info.name)
    }

    async fn accept(&self, info: &PluginInfo, socket: &Path) -> Result<(), RegisterError> {
        if info.r#type != "CSIPlugin" {
            return Err(RegisterError::UnknownType(info.r#type.clone()));
        }
        let registered = self.drivers.version(&info.name);
        let version = validate(&info.name, &info.supported_versions, registered)?;
        let endpoint = match info.endpoint.as_str() {
            "" => socket.to_owned(),
            other => PathBuf::from(other.strip_prefix("unix://").unwrap_or(other)),
        };
        let client = self.drivers.insert(&info.name, version, endpoint);
        let result = self.install(&info.name, &client).await;
        if result.is_err() {
            self.drivers.remove(&info.name);
        }
        result
    }

    async fn install(&self, driver: &str, client: &Client) -> Result<(), RegisterError> {
        let info = client.node_get_info(v1::NodeGetInfoRequest {}).await?;
        Ok(self.node.install(driver, &info).await?)
    }

    async fn deregister(&self, driver: &str) {
        self.drivers.remove(driver);
        if let Err(error) = self.node.uninstall(driver).await {
            tracing::warn!(driver, %error, "cannot take the driver off the node's objects");
        }
        longshore_cluster::log_process!(driver, "driver deregistered");
    }
}

async fn within<T, E: Into<CallError>>(
    timeout: Duration,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, CallError> {
    let response = tokio::time::timeout(timeout, call).await;
    response.map_err(|_| CallError::Timeout(timeout))?.map_err(Into::into)
}

async fn dial(socket: &Path) -> Result<Channel, RegisterError> {
    let channel = within(DIAL_TIMEOUT, longshore_csi::client::channel(socket)).await;
    channel.map_err(|source| RegisterError::Dial { path: socket.to_owned(), source })
}

async fn notify(
    client: &mut RegistrationClient<Channel>,
    registered: bool,
    error: &str,
) -> Result<(), RegisterError> {
    let status = RegistrationStatus { plugin_registered: registered, error: error.to_owned() };
    let sent = within(NOTIFY_TIMEOUT, client.notify_registration_status(status)).await;
    sent.map(drop).map_err(RegisterError::Notify)
}
