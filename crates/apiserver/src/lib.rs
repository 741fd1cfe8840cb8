//! The embedded Kubernetes API server.
//!
//! ```text
//! http ──► ops ──► store ──► journal (memory or disk)
//!  │        │        └──► history ──► watch ──► http
//!  │        └── registry: kinds, codecs, strategies ◄── crd: definitions and their objects
//!  └── auth
//! ```
//!
//! [`ApiServer::open`] replays the store and starts the housekeeping tasks; [`ApiServer::client`]
//! gives an in-process client that needs no socket, [`ApiServer::serve`] listens with TLS.
//!
//! Invariants: a write is acknowledged after the journal has it; readers and watchers never see what
//! the journal does not have; one increasing number orders all writes.
//!
//! Absent, and answered as such: conversion webhooks of custom resources (422), anonymous access
//! beyond health checks (401), and `kubectl exec`, `attach`, `port-forward` and `proxy` (404).

#![warn(unreachable_pub)]

mod access;
mod admission;
mod apply;
pub mod auth;
mod bootstrap;
pub mod clock;
mod crd;
pub mod error;
mod field_manager;
mod field_path;
mod go_errors;
mod heavy;
mod housekeeping;
pub mod http;
mod logs;
mod metrics;
mod ops;
mod patch;
mod pod_security;
mod registry;
mod selector;
mod size_limits;
pub mod store;
mod streams;
mod watch;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use admission::{Gate, Gates};
use auth::tokens::TokenError;
use auth::{Identity, MASTERS, Pki, PkiError, ServerNames};
use clock::{Clock, Environment, SystemClock, TokioClock};
use ops::Core;
use registry::strategy::Settings;
use store::{DiskJournal, History, Journal, JournalError, MemoryJournal, Store};

pub use logs::LogSource;
pub use streams::{StreamSource, Streams};

/// Bounds on what clients can use up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest request body.
    pub body_bytes: usize,
    /// Requests that only read in flight; watches apart. Zero means no bound.
    pub reads: usize,
    /// Requests that may change something in flight. Zero means no bound.
    pub writes: usize,
    /// Watches and followed logs open at the same time.
    pub watches: usize,
    /// Connections open at the same time; further ones are closed.
    pub connections: usize,
    /// Longest time of a request, watches and followed logs apart; a client may ask for less.
    pub request_timeout: Duration,
    /// What a client may take to agree on keys.
    pub handshake_timeout: Duration,
    /// What a client may be silent for between requests and before the first.
    pub idle_timeout: Duration,
    /// What a client may leave its responses unread for.
    pub stall_timeout: Duration,
    /// How long events are kept after they were last written.
    pub event_ttl: Duration,
    /// Events kept per resource; a watcher that falls behind them is cut off.
    pub history_events: usize,
    /// Memory for the events of all resources.
    pub history_bytes: usize,
    /// What all stored objects may take together; zero means no bound. When it is reached, creates and
    /// growing updates get 507; deletes always pass, and leases, status and what this process writes
    /// have a tenth more.
    pub store_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 3 << 20,
            reads: 400,
            writes: 200,
            watches: 4096,
            connections: 4096,
            request_timeout: Duration::from_secs(60),
            handshake_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(90),
            stall_timeout: Duration::from_secs(60),
            event_ttl: Duration::from_secs(3600),
            history_events: 10_000,
            history_bytes: 32 << 20,
            store_bytes: 128 << 20,
        }
    }
}

/// How to run a server.
#[derive(Clone)]
pub struct Config {
    /// Where state and keys are kept; `None` keeps them in memory.
    pub data_dir: Option<PathBuf>,
    pub clock: Arc<dyn Clock>,
    /// Makes uids and generated names repeatable.
    pub seed: Option<u64>,
    pub limits: Limits,
    /// Whether the kinds of `snapshot.storage.k8s.io` and `groupsnapshot.storage.k8s.io` are there
    /// from the start.
    pub snapshot_kinds: bool,
    /// Whether pods have service accounts as in a cluster: `default` unless they name another one,
    /// which must be there, and a token of it in every container unless pod or account say no.
    pub default_accounts: bool,
    /// How long a deleted namespace is left alone before its content is deleted. Who is about to
    /// create something in it learns meanwhile that it is going.
    pub namespace_grace: Duration,
    /// Gate `CSIVolumeHealth`, off as upstream: whether the health of volumes and of storage can be
    /// set in the status of claims, pods and CSINodes. Where it is set already it may change.
    pub volume_health: bool,
}

/// Who a client in this process is, unless it says otherwise.
const ADMIN: &str = "system:admin";
const ADMIN_GROUPS: [&str; 2] = [MASTERS, "system:authenticated"];

/// Long enough for a person's next command, short enough to wait for.
const NAMESPACE_GRACE: Duration = Duration::from_secs(2);

impl Config {
    /// A server whose state lives and dies with the process.
    pub fn memory() -> Self {
        Self {
            data_dir: None,
            clock: Arc::new(SystemClock),
            seed: None,
            limits: Limits::default(),
            snapshot_kinds: true,
            default_accounts: false,
            namespace_grace: NAMESPACE_GRACE,
            volume_health: false,
        }
    }

    /// A server that keeps its state in a directory.
    pub fn at(data_dir: impl Into<PathBuf>) -> Self {
        Self { data_dir: Some(data_dir.into()), ..Self::memory() }
    }

    /// A server in memory that is fully repeatable: time follows tokio's clock (which tests pause),
    /// uids and names follow the seed. It starts without the kinds for snapshots, which would cost
    /// each of thousands of small worlds more than all the rest. Call it inside the runtime.
    pub fn deterministic(seed: u64) -> Self {
        let start = jiff::Timestamp::new(1_767_225_600, 0).expect("a time in range");
        Self {
            clock: Arc::new(TokioClock::starting_at(start)),
            seed: Some(seed),
            snapshot_kinds: false,
            ..Self::memory()
        }
    }
}

/// Why a server could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data directory cannot be made.
    #[error("making {}: {source}", path.display())]
    DataDir { path: PathBuf, source: std::io::Error },
    /// Keys and certificates cannot be had.
    #[error(transparent)]
    Keys(#[from] PkiError),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] JournalError),
    /// The directory was written by a version that was never released.
    #[error(
        "{} was written by an early development version and cannot be read by this one; \
         move it away to start with an empty store",
        path.display()
    )]
    OldStore { path: PathBuf },
    /// The objects that are always there could not be written.
    #[error("writing the first objects: {0}")]
    FirstObjects(#[source] error::Status),
}

/// An empty store must not silently take the place of one that is there.
fn refuse_old_store(dir: &std::path::Path) -> Result<(), OpenError> {
    let path = dir.join("store.redb");
    if path.exists() && !dir.join("store").exists() {
        return Err(OpenError::OldStore { path });
    }
    Ok(())
}

/// Why a server could not listen.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener does not work.
    #[error("listening: {source}")]
    Listener { source: std::io::Error },
    /// The keys do not work.
    #[error(transparent)]
    Keys(#[from] PkiError),
}

/// Shared by all services of one server.
pub(crate) struct Inner {
    pub(crate) core: Arc<Core>,
    pub(crate) access: access::Access,
    pub(crate) limits: Limits,
    pub(crate) gates: Gates,
    pub(crate) metrics: Arc<metrics::Metrics>,
    pub(crate) closing: CancellationToken,
    /// Documents about all kinds, with the kinds they are about.
    pub(crate) documents: Mutex<BTreeMap<&'static str, (Arc<registry::Registry>, Bytes)>>,
    pki: Pki,
    address: ArcSwapOption<SocketAddr>,
    logs: ArcSwapOption<Box<dyn LogSource>>,
    streams: ArcSwapOption<Box<dyn StreamSource>>,
}

impl Drop for Inner {
    /// With the last handle and client the housekeeping ends too.
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

impl Inner {
    pub(crate) fn stream_source(&self) -> Option<Arc<Box<dyn StreamSource>>> {
        self.streams.load_full()
    }

    pub(crate) fn log_source(&self) -> Option<Arc<Box<dyn LogSource>>> {
        self.logs.load_full()
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.core.store.is_writable()
    }

    /// Who a token stands for, and for whom it was made: for us, unless others are asked for.
    ///
    /// # Errors
    /// Why the token is refused; clients get no more than a 401.
    pub(crate) fn identify_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<(Identity, Vec<String>), TokenError> {
        if let Some(admin) = self.pki.identify_token(token) {
            return Ok((admin, vec![auth::tokens::ISSUER.to_owned()]));
        }
        access::identify(&self.core, self.pki.signer(), token, audiences)
            .inspect_err(|error| tracing::debug!(%error, "a bearer token is refused"))
    }

    pub(crate) fn signer(&self) -> &auth::tokens::Signer {
        self.pki.signer()
    }

    /// Where the server listens, for discovery; empty while it does not.
    pub(crate) fn address(&self) -> String {
        self.address.load().as_ref().map(|address| address.to_string()).unwrap_or_default()
    }
}

/// A running API server. Clones share it.
#[derive(Clone)]
pub struct ApiServer {
    inner: Arc<Inner>,
}

impl ApiServer {
    /// Replays the stored state and starts the housekeeping tasks.
    ///
    /// # Errors
    /// When the data directory or the store cannot be used.
    pub async fn open(config: Config) -> Result<Self, OpenError> {
        let journal: Box<dyn Journal> = match &config.data_dir {
            None => Box::new(MemoryJournal),
            Some(dir) => {
                longshore_files::make_private_dir(dir)
                    .map_err(|source| OpenError::DataDir { path: dir.clone(), source })?;
                refuse_old_store(dir)?;
                let journal = DiskJournal::open(&dir.join("store"))?;
                Box::new(journal.with_marker(dir.join("store.newest"))?)
            }
        };
        Self::open_on(config, journal).await
    }

    /// The same on a journal of the caller's; the data directory then holds the keys only.
    ///
    /// # Errors
    /// When the data directory or the journal cannot be used.
    pub async fn open_on(config: Config, journal: Box<dyn Journal>) -> Result<Self, OpenError> {
        let Limits { history_events, history_bytes, .. } = config.limits;
        let store = Store::open(journal, History { events: history_events, bytes: history_bytes })?;
        let is_new = store.revision() == 0;
        let pki = Pki::open(config.data_dir.as_ref().map(|dir| dir.join("pki")).as_deref())?;
        let env = Environment::new(config.clock, config.seed);
        let metrics = Arc::new(metrics::Metrics::default());
        let settings = Settings {
            default_accounts: config.default_accounts,
            namespace_grace: config.namespace_grace,
            volume_health: config.volume_health,
        };
        let core = Arc::new(Core::new(store, env, settings, Arc::clone(&metrics)));
        housekeeping::serve_stored(&core);
        let inner = Inner {
            access: access::Access::new(&core.store),
            core,
            limits: config.limits,
            gates: Gates {
                reads: Gate::new(config.limits.reads),
                writes: Gate::new(config.limits.writes),
                long: Gate::new(config.limits.watches),
            },
            metrics,
            closing: CancellationToken::new(),
            documents: Mutex::default(),
            pki,
            address: ArcSwapOption::empty(),
            logs: ArcSwapOption::empty(),
            streams: ArcSwapOption::empty(),
        };
        let server = Self { inner: Arc::new(inner) };
        bootstrap::write(&server.inner.core, config.snapshot_kinds)
            .await
            .map_err(OpenError::FirstObjects)?;
        if is_new {
            // Watches do not see how the bootstrap objects were created: history begins now.
            server.inner.core.store.forget_history();
        }
        // A store that is too full already can still be opened.
        server.inner.core.store.set_limit(config.limits.store_bytes);
        let (core, closing) = (Arc::clone(&server.inner.core), server.inner.closing.clone());
        let event_ttl = server.inner.limits.event_ttl;
        tokio::spawn(housekeeping::run(core, event_ttl, closing));
        Ok(server)
    }

    /// A client of the administrator, without a socket.
    pub fn client(&self) -> kube::Client {
        self.client_as(ADMIN, ADMIN_GROUPS)
    }

    /// The service behind [`Self::client`].
    pub fn service(&self) -> http::Service {
        self.service_as(Identity::new(ADMIN, ADMIN_GROUPS))
    }

    /// A client of any user, without a socket.
    pub fn client_as(
        &self,
        user: &str,
        groups: impl IntoIterator<Item = impl Into<String>>,
    ) -> kube::Client {
        kube::Client::new(self.service_as(Identity::new(user, groups)), "default")
    }

    /// The server as a tower service for one user, e.g. to put layers around it.
    pub fn service_as(&self, identity: Identity) -> http::Service {
        let ending = self.inner.closing.clone();
        http::Service::new(Arc::clone(&self.inner), Some(identity), ending)
    }

    /// Sets where `pods/log` reads from.
    pub fn set_log_source(&self, source: impl LogSource) {
        self.inner.logs.store(Some(Arc::new(Box::new(source))));
    }

    /// Sets where `pods/exec` and `pods/attach` lead.
    pub fn set_stream_source(&self, source: impl StreamSource) {
        self.inner.streams.store(Some(Arc::new(Box::new(source))));
    }

    /// Answers connections on a listener, with TLS, until shutdown. The certificate has the address
    /// of the listener.
    ///
    /// # Errors
    /// When the listener has no address or the keys are unusable.
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) -> Result<(), ServeError> {
        let local = listener.local_addr().map_err(|source| ServeError::Listener { source })?.ip();
        let addresses = (!local.is_unspecified()).then_some(local).into_iter().collect();
        let names = ServerNames { addresses, ..ServerNames::default() };
        self.serve_as(listener, move || names.clone(), shutdown).await
    }

    /// The same, with what `names` says in the certificate. It is asked again when a connection
    /// arrives at an address that is not among them.
    ///
    /// # Errors
    /// When the listener has no address, the keys are unusable, or a name is none.
    pub async fn serve_as(
        &self,
        listener: TcpListener,
        names: impl Fn() -> ServerNames + Send + Sync + 'static,
        shutdown: CancellationToken,
    ) -> Result<(), ServeError> {
        let local = listener.local_addr().map_err(|source| ServeError::Listener { source })?;
        let serving = self.inner.pki.serving(Box::new(names))?;
        let tls = self.inner.pki.server_config(&serving)?;
        self.inner.address.store(Some(Arc::new(local)));
        http::serve::run(Arc::clone(&self.inner), listener, (tls, serving), shutdown)
            .await
            .map_err(|source| ServeError::Listener { source })
    }

    /// The administrator's kubeconfig for a server at this `HOST:PORT`. It holds a private key:
    /// write it with [`auth::write_private`].
    pub fn kubeconfig(&self, address: impl std::fmt::Display) -> String {
        auth::kubeconfig(&self.inner.pki, address)
    }

    /// The certificate of the CA that signs the serving certificate, as PEM.
    pub fn ca_certificate(&self) -> &str {
        self.inner.pki.ca_certificate()
    }

    /// Ends watches and housekeeping, and waits until every write under way is durable.
    pub async fn shutdown(&self) {
        self.inner.closing.cancel();
        let store = self.inner.core.store.clone();
        // Joining the writer blocks; in memory there is none and nothing blocks.
        if store.has_writer() {
            let closed = tokio::task::spawn_blocking(move || store.close()).await;
            if let Err(error) = closed {
                tracing::error!(%error, "closing the store");
            }
        } else {
            store.close();
        }
    }
}
