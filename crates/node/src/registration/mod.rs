//! Driver registration: sockets in the registry directory become registered drivers.
//!
//! The directory is watched, not polled. Each socket has one task: it registers with back-off,
//! then waits for the socket to go or to be made anew, then deregisters.

mod node_info;
mod watch;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use longshore_cluster::{Api, Cache, Subscription};
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::CsiDriver;
use longshore_core::stage::paths::NodePaths;
use longshore_core::stage::registration::validate;
use longshore_csi::registration::registration_client::RegistrationClient;
use longshore_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use longshore_csi::v1;
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::watch as watch_channel;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use crate::drivers::Drivers;
use crate::metrics::Counts;
use crate::volumes::BACKOFF;
use node_info::NodeInfo;
use watch::{Seen, Watcher};

const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
const INFO_TIMEOUT: Duration = Duration::from_secs(1);
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// Limits are not asked for more often than this, in seconds.
const SHORTEST_PERIOD: u64 = 10;

/// Why a driver is not registered.
#[derive(Debug, thiserror::Error)]
enum RegisterError {
    #[error("dial {path}: {cause}")]
    Dial { path: PathBuf, cause: String },
    #[error("GetInfo: {0}")]
    Info(String),
    #[error("no handler registered for plugin type: {0}")]
    UnknownType(String),
    #[error(transparent)]
    Refused(#[from] longshore_core::stage::registration::Refusal),
    #[error("NodeGetInfo: {0}")]
    NodeInfo(String),
    #[error("NotifyRegistrationStatus: {0}")]
    Notify(String),
}

/// Registers drivers as long as it runs.
pub struct Registrar {
    drivers: Arc<Drivers>,
    objects: Cache<CsiDriver>,
    /// Changes with every driver's object.
    news: watch_channel::Sender<u64>,
    paths: NodePaths,
    node: NodeInfo,
    /// Sockets that are there, and whether their plugin is registered.
    sockets: Mutex<BTreeMap<PathBuf, bool>>,
    /// Ends with the registrar.
    notified: Mutex<Option<Subscription>>,
}

struct Task {
    stop: CancellationToken,
    handle: JoinHandle<()>,
}

impl Registrar {
    /// For one node.
    #[must_use]
    pub fn new(
        api: Api,
        drivers: Arc<Drivers>,
        objects: Cache<CsiDriver>,
        paths: NodePaths,
        node_name: &str,
    ) -> Arc<Self> {
        let (node, news) = (NodeInfo::new(api, node_name), watch_channel::Sender::new(0));
        let (sockets, notified) = (Mutex::default(), Mutex::default());
        let registrar = Arc::new(Self { drivers, objects, news, paths, node, sockets, notified });
        let weak = Arc::downgrade(&registrar);
        let notified = registrar.objects.subscribe(move |_| {
            if let Some(registrar) = weak.upgrade() {
                registrar.news.send_modify(|count| *count += 1);
            }
        });
        *registrar.notified.lock() = Some(notified);
        registrar
    }

    /// Sockets by path and world, for the metrics.
    pub(crate) fn total_plugins(&self) -> Counts {
        let mut counts = Counts::new();
        for (path, registered) in self.sockets.lock().iter() {
            let path = path.display().to_string();
            if *registered {
                counts.insert((path.clone(), "actual_state_of_world"), 1);
            }
            counts.insert((path, "desired_state_of_world"), 1);
        }
        counts
    }

    fn set_registered(&self, socket: &Path, registered: bool) {
        if let Some(known) = self.sockets.lock().get_mut(socket) {
            *known = registered;
        }
    }

    /// Asks a driver again how many volumes fit on this node, and writes the answer down.
    pub async fn refresh(&self, driver: &str) {
        let Some(client) = self.drivers.client(driver) else { return };
        if let Err(error) = self.install(driver, &client).await {
            tracing::warn!(driver, %error, "limits of the driver not refreshed");
        }
    }

    /// Refreshes a driver's limits as often as its object says.
    async fn keep_limits(&self, driver: &str) {
        let mut news = self.news.subscribe();
        let mut last = Instant::now();
        loop {
            let object = self.objects.get(&ObjectKey::cluster(driver));
            let period = object.and_then(|one| one.spec.node_allocatable_update_period_seconds);
            let period = period.and_then(|seconds| u64::try_from(seconds).ok());
            let period = period.map(|seconds| Duration::from_secs(seconds.max(SHORTEST_PERIOD)));
            let due = async {
                match period {
                    Some(period) => tokio::time::sleep_until(last + period).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {
                    self.refresh(driver).await;
                    last = Instant::now();
                }
                changed = news.changed() => if changed.is_err() { return std::future::pending().await },
            }
        }
    }

    /// Watches the registry directory until told to stop. Drivers stay registered then: a restart
    /// must not take them away from running pods.
    ///
    /// # Errors
    /// The directory cannot be made or watched.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) -> io::Result<()> {
        let registry = self.paths.registry();
        crate::volumes::make_dir(&registry)?;
        let mut watcher = Watcher::new(&registry)?;
        let mut tasks: BTreeMap<PathBuf, Task> = BTreeMap::new();
        loop {
            let seen = tokio::select! {
                () = shutdown.cancelled() => break,
                seen = watcher.next() => seen?,
            };
            match seen {
                Seen::Socket(path) => {
                    let before = tasks.remove(&path);
                    self.sockets.lock().entry(path.clone()).or_default();
                    tasks.insert(path.clone(), self.serve(path, before));
                }
                Seen::Gone(path) => {
                    self.sockets.lock().remove(&path);
                    if let Some(task) = tasks.remove(&path) {
                        task.stop.cancel();
                    }
                }
            }
        }
        for task in tasks.into_values() {
            task.handle.abort();
        }
        Ok(())
    }

    fn serve(self: &Arc<Self>, path: PathBuf, before: Option<Task>) -> Task {
        let stop = CancellationToken::new();
        let (registrar, token) = (self.clone(), stop.clone());
        let handle = tokio::spawn(async move {
            if let Some(before) = before {
                // A socket made anew: the old registration ends first.
                before.stop.cancel();
                // A task that was aborted has nothing left to undo.
                let _ = before.handle.await;
            }
            registrar.keep_registered(&path, &token).await;
        });
        Task { stop, handle }
    }

    async fn keep_registered(&self, socket: &Path, stop: &CancellationToken) {
        let mut pauses = BACKOFF.series();
        let name = loop {
            // Never dropped half-way: what it wrote would stay. A socket that is gone ends it soon.
            match self.register(socket).await {
                Ok(name) => break name,
                Err(error) => {
                    tracing::warn!(socket = %socket.display(), %error, "driver not registered")
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pauses.pause()) => {}
            }
        };
        self.set_registered(socket, true);
        tracing::info!(driver = name, socket = %socket.display(), "driver registered");
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.keep_limits(&name) => {}
        }
        self.set_registered(socket, false);
        self.deregister(&name).await;
    }

    async fn register(&self, socket: &Path) -> Result<String, RegisterError> {
        let mut client = RegistrationClient::new(dial(socket).await?);
        let info = tokio::time::timeout(INFO_TIMEOUT, client.get_info(InfoRequest {})).await;
        let info = info.map_err(|_| RegisterError::Info("no answer within 1s".to_owned()))?;
        let info = info
            .map_err(|status| RegisterError::Info(longshore_csi::status_text(&status)))?
            .into_inner();
        match self.accept(&info, socket).await {
            Ok(()) => {}
            Err(error) => {
                // Best effort: the error that counts is the one that follows.
                let _ = notify(&mut client, false, &error.to_string()).await;
                return Err(error);
            }
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
        let registered = self.drivers.get(&info.name).map(|driver| driver.version);
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

    async fn install(
        &self,
        driver: &str,
        client: &longshore_csi::Client,
    ) -> Result<(), RegisterError> {
        let info = client.node_get_info(v1::NodeGetInfoRequest {}).await;
        let info = info.map_err(|error| RegisterError::NodeInfo(error.to_string()))?;
        self.node.install(driver, &info).await.map_err(RegisterError::NodeInfo)
    }

    async fn deregister(&self, driver: &str) {
        self.drivers.remove(driver);
        if let Err(error) = self.node.uninstall(driver).await {
            tracing::warn!(driver, error, "cannot take the driver off the node's objects");
        }
        tracing::info!(driver, "driver deregistered");
    }
}

async fn dial(socket: &Path) -> Result<Channel, RegisterError> {
    let failed = |cause: String| RegisterError::Dial { path: socket.to_owned(), cause };
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_: http::Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    let connecting = endpoint.connect_with_connector(connector);
    let channel = tokio::time::timeout(DIAL_TIMEOUT, connecting).await;
    channel
        .map_err(|_| failed("no answer within 10s".to_owned()))?
        .map_err(|error| failed(error.to_string()))
}

async fn notify(
    client: &mut RegistrationClient<Channel>,
    registered: bool,
    error: &str,
) -> Result<(), RegisterError> {
    let status = RegistrationStatus { plugin_registered: registered, error: error.to_owned() };
    let sent =
        tokio::time::timeout(NOTIFY_TIMEOUT, client.notify_registration_status(status)).await;
    let sent = sent.map_err(|_| RegisterError::Notify("no answer within 5s".to_owned()))?;
    sent.map(drop).map_err(|status| RegisterError::Notify(longshore_csi::status_text(&status)))
}
