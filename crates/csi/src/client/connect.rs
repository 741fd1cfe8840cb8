//! Connecting to a driver, waiting for its socket, and detecting lost connections.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use longshore_core::backoff::Backoff;
use longshore_core::words;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tower::Service;
use tower::util::Either;

use super::watched::Watched;
use super::{Client, Options, Peer};
use crate::names::{self, BadAddress};

/// What a sidecar writes to its termination log before it exits because its connection was lost.
pub const LOST_CONNECTION: &str = "Lost connection to CSI driver, exiting";
/// The file from which the kubelet reads a container's termination message.
pub const TERMINATION_LOG: &str = "/dev/termination-log";

const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Called when a connection is lost.
pub type OnLost = Arc<dyn Fn() + Send + Sync>;

/// Where the driver is and how to treat it.
#[derive(Clone)]
pub struct ConnectOptions {
    /// `unix:///path`, `unix:path` or `/path`.
    pub address: String,
    /// How long to wait for the socket; absent means for ever.
    pub timeout: Option<Duration>,
    /// Called each time an established connection is lost; the client reconnects in any case.
    pub on_lost: Option<OnLost>,
    pub calls: Options,
}

impl From<String> for ConnectOptions {
    fn from(address: String) -> Self {
        let timeout = Some(Duration::from_secs(30));
        Self { address, timeout, on_lost: None, calls: Options::default() }
    }
}

impl From<&str> for ConnectOptions {
    fn from(address: &str) -> Self {
        address.to_owned().into()
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("ConnectOptions");
        out.field("address", &self.address).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Why no connection came about.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The address is of no use.
    #[error(transparent)]
    Address(#[from] BadAddress),
    /// No driver accepted a connection in time.
    #[error(
        "cannot connect to CSI driver at {address} within {}: {last}; start the driver, or correct the address",
        words::time(*.waited)
    )]
    Timeout {
        /// Where the driver was expected.
        address: String,
        /// How long it was waited for.
        waited: Duration,
        last: String,
    },
}

impl Client {
    /// Connects to a socket, waiting for it to appear. Later losses are repaired on the next call.
    pub async fn connect(options: ConnectOptions) -> Result<Self, ConnectError> {
        let path = names::socket_path(&options.address)?;
        let losses = Arc::new(watch::Sender::new(0));
        let peer = Arc::new(Peer { address: Some(options.address.clone()), ..Peer::default() });
        let dial = move || UnixStream::connect(path.clone());
        let connector = Connector::new(dial, &losses, &peer, options.on_lost.clone());
        let channel = wait(&options, connector).await?;
        Ok(Self::new(Either::Left(channel), options.calls, losses, peer))
    }

    /// A client that gets each of its connections from `dial`, the first one on the first call.
    pub fn with_dialer<S, F>(
        dial: impl Fn() -> F + Send + Sync + 'static,
        on_lost: Option<OnLost>,
        options: Options,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
    {
        let (losses, peer) = (Arc::new(watch::Sender::new(0)), Arc::default());
        let connector = Connector::new(dial, &losses, &peer, on_lost);
        let channel = endpoint().connect_with_connector_lazy(connector);
        Self::new(Either::Left(channel), options, losses, peer)
    }
}

/// One connection to a socket for any generated client, for example that of the registration service.
///
/// Fails at once when no process listens; the authority is `localhost`.
pub async fn channel(path: &Path) -> Result<Channel, tonic::transport::Error> {
    let path = path.to_owned();
    let (losses, peer) = (Arc::new(watch::Sender::new(0)), Arc::default());
    let connector = Connector::new(move || UnixStream::connect(path.clone()), &losses, &peer, None);
    endpoint().connect_with_connector(connector).await
}

/// The authority every CSI client sends on a unix socket.
fn endpoint() -> Endpoint {
    Endpoint::from_static("http://localhost")
}

async fn wait<S, F, D>(
    options: &ConnectOptions,
    connector: Connector<D>,
) -> Result<Channel, ConnectError>
where
    D: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let start = Instant::now();
    let mut report = start + REPORT_EVERY;
    let mut pauses = BACKOFF.series();
    loop {
        let error = match endpoint().connect_with_connector(connector.clone()).await {
            Ok(channel) => return Ok(channel),
            Err(error) => error,
        };
        let left = options.timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(ConnectError::Timeout {
                address: options.address.clone(),
                waited: start.elapsed(),
                last: words::causes(error.source().unwrap_or(&error)),
            });
        }
        if Instant::now() >= report {
            tracing::warn!(address = options.address, "Still connecting to CSI driver");
            report += REPORT_EVERY;
        }
        let pause = pauses.pause();
        tokio::time::sleep(left.map_or(pause, |left| left.min(pause))).await;
    }
}

/// Exits with code 1 and a termination message when the connection is lost, as most sidecars do.
pub fn exit_on_loss(termination_log: &Path) -> OnLost {
    let path = termination_log.to_owned();
    Arc::new(move || {
        tracing::error!("{LOST_CONNECTION}");
        if let Err(error) = write_termination_log(&path) {
            tracing::error!(path = %path.display(), %error, "cannot write the termination log");
        }
        std::process::exit(1);
    })
}

/// Writes the termination message of a sidecar whose connection was lost.
fn write_termination_log(path: &Path) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o644).open(path)?;
    file.write_all(LOST_CONNECTION.as_bytes())
}

/// Dials connections for a channel and detects the loss of each.
struct Connector<D> {
    dial: Arc<D>,
    notify: Arc<dyn Fn() + Send + Sync>,
}

impl<D> Clone for Connector<D> {
    fn clone(&self) -> Self {
        Self { dial: self.dial.clone(), notify: self.notify.clone() }
    }
}

impl<D> Connector<D> {
    fn new(
        dial: D,
        losses: &Arc<watch::Sender<u64>>,
        peer: &Arc<Peer>,
        on_lost: Option<OnLost>,
    ) -> Self {
        // Weak: once the last client is gone, a closing connection is no loss.
        let (losses, peer) = (Arc::downgrade(losses), peer.clone());
        let notify = move || {
            let Some(losses) = losses.upgrade() else { return };
            let (address, driver) = (peer.address.as_deref(), peer.name.get());
            tracing::warn!(address, driver, "Lost connection to CSI driver");
            losses.send_modify(|count| *count += 1);
            if let Some(callback) = &on_lost {
                callback();
            }
        };
        Self { dial: Arc::new(dial), notify: Arc::new(notify) }
    }
}

impl<S, F, D> Service<Uri> for Connector<D>
where
    D: Fn() -> F,
    F: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Response = TokioIo<Watched<S>>;
    type Error = io::Error;
    type Future = futures::future::BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (dialing, notify) = ((self.dial)(), self.notify.clone());
        Box::pin(async move { Ok(TokioIo::new(Watched::watch(dialing.await?, move || notify()))) })
    }
}
