//! Calling a driver.

mod capability_cache;
mod connect;
mod identity;
mod lists;
mod rpcs;
mod snapshots;
mod watched;

use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use longshore_core::words;
use prost::{Message, Name};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::service::Routes;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::util::{Either, MapErr};
use tracing::Instrument as _;

use crate::error::code_name;
use crate::metrics::Metrics;
use crate::redact::SentRequest;
use crate::{Call, CsiError, redact};

pub use connect::{
    ConnectError, ConnectOptions, LOST_CONNECTION, OnLost, TERMINATION_LOG, channel, exit_on_loss,
};
pub use identity::{DriverNameError, ProbeFailed};
pub use snapshots::SnapshotLookup;

/// What every call of a client shares.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Deadline of each call; absent means none.
    pub timeout: Option<Duration>,
    pub metrics: Option<Metrics>,
    /// Longest response text in a log; absent means no limit.
    pub max_log_length: Option<usize>,
}

/// Asked before each call that [undoes](Call::undoes): whether it is still this process that may; the error says why not.
pub type Fence = Arc<dyn Fn() -> BoxFuture<'static, Result<(), NotAgreed>> + Send + Sync>;

/// Why this process may not [undo](Call::undoes) anything any more.
pub type NotAgreed = Box<dyn std::error::Error + Send + Sync>;

/// A connection to the driver, or its services in this process.
type Transport = Either<Channel, MapErr<Routes, fn(Infallible) -> tonic::transport::Error>>;

/// A client of one driver. Clones share the connection.
#[derive(Clone)]
pub struct Client {
    transport: Transport,
    shared: Arc<Shared>,
    deadline: Deadline,
    migrated: Option<bool>,
    fence: Option<Fence>,
}

/// The driver at the other end, for logs and metrics.
#[derive(Debug, Default)]
struct Peer {
    /// Where its socket is; none in this process.
    address: Option<String>,
    name: OnceLock<String>,
}

struct Shared {
    metrics: Option<Metrics>,
    max_log_length: Option<usize>,
    peer: Arc<Peer>,
    losses: Arc<watch::Sender<u64>>,
    capabilities: capability_cache::CapabilityCache,
    /// Whether an unadvertised snapshot topology has been logged.
    stray_topology: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
enum Deadline {
    None,
    Each(Duration),
    At(Instant),
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Client");
        out.field("driver", &self.driver()).field("deadline", &self.deadline).finish()
    }
}

impl Client {
    /// A client that calls services in this process, without a connection that could be lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use longshore_csi::{Client, Options, fake};
    ///
    /// let driver = fake::Driver::new("example.csi.test");
    /// let client = Client::in_process(driver.routes(), Options::default());
    /// assert_eq!(client.driver_name().await?, "example.csi.test");
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_process(services: Routes, options: Options) -> Self {
        let services = MapErr::new(services.prepare(), never as fn(Infallible) -> _);
        let losses = Arc::new(watch::Sender::new(0));
        Self::new(Either::Right(services), options, losses, Arc::default())
    }

    fn new(
        transport: Transport,
        options: Options,
        losses: Arc<watch::Sender<u64>>,
        peer: Arc<Peer>,
    ) -> Self {
        let Options { timeout, metrics, max_log_length } = options;
        let shared = Shared {
            metrics,
            max_log_length,
            peer,
            losses,
            capabilities: capability_cache::CapabilityCache::default(),
            stray_topology: AtomicBool::new(false),
        };
        Self {
            transport,
            shared: Arc::new(shared),
            deadline: timeout.map_or(Deadline::None, Deadline::Each),
            migrated: None,
            fence: None,
        }
    }

    /// The same client with another deadline for each call; `None` waits for ever.
    #[must_use]
    pub fn with_timeout(&self, timeout: Option<Duration>) -> Self {
        Self { deadline: timeout.map_or(Deadline::None, Deadline::Each), ..self.clone() }
    }

    /// The same client with one deadline that all its calls share.
    #[must_use]
    pub fn with_deadline(&self, at: Instant) -> Self {
        Self { deadline: Deadline::At(at), ..self.clone() }
    }

    /// The same client with a value for the `migrated` label; only for drivers that replace an in-tree plugin.
    #[must_use]
    pub fn with_migrated(&self, migrated: Option<bool>) -> Self {
        Self { migrated, ..self.clone() }
    }

    /// The same client for one of several leaders in time: a call that [undoes](Call::undoes) goes out only if `fence`
    /// agrees. A new leader may have made anew what an old one still wants to delete.
    #[must_use]
    pub fn with_fence(&self, fence: Fence) -> Self {
        Self { fence: Some(fence), ..self.clone() }
    }

    /// How often the connection has been lost so far; changes can be awaited.
    pub fn connection_losses(&self) -> watch::Receiver<u64> {
        self.shared.losses.subscribe()
    }

    /// Waits until the connection has been lost at least once.
    pub async fn connection_lost(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.connection_losses().wait_for(|losses| *losses > 0).await;
    }

    /// Sends one request and waits for its response, inside a span that names the call.
    async fn unary<Q, R>(&self, call: Call, request: Q) -> Result<R, CsiError>
    where
        Q: Message + Name + 'static,
        R: Message + Name + Default + 'static,
    {
        self.send(call, request).instrument(tracing::info_span!("call", %call)).await
    }

    /// Sends one request and waits for its response: logs, deadline, metrics and redaction are here.
    async fn send<Q, R>(&self, call: Call, request: Q) -> Result<R, CsiError>
    where
        Q: Message + Name + 'static,
        R: Message + Name + Default + 'static,
    {
        if let Some(fence) = self.fence.as_ref().filter(|_| call.undoes())
            && let Err(why) = fence().await
        {
            return Err(CsiError::new(call, Status::unavailable(format!("not called: {why}"))));
        }
        let start = Instant::now();
        self.log_request(call, &request);
        let sent = SentRequest::new(&request);
        let response = self.within(self.deadline_from(start), request, |request| async {
            let mut grpc = tonic::client::Grpc::new(self.transport.clone());
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            let path = PathAndQuery::from_static(call.path());
            grpc.unary(request, path, ProstCodec::<Q, R>::default()).await
        });
        let result = response.await.map(tonic::Response::into_inner);
        let result = result.map_err(|status| CsiError::new(call, without_secrets(status, &sent)));
        self.finished(call, result.as_ref().err(), start);
        self.log_response(call, &result, start);
        result
    }

    /// Sends one request and returns the stream of responses once it has begun.
    async fn streaming<Q, R>(&self, call: Call, request: Q) -> Result<Streaming<R>, CsiError>
    where
        Q: Message + Name + 'static,
        R: Message + Name + Default + 'static,
    {
        let start = Instant::now();
        self.log_request(call, &request);
        let sent = SentRequest::new(&request);
        let response = self.within(self.deadline_from(start), request, |request| async {
            let mut grpc = tonic::client::Grpc::new(self.transport.clone());
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            let path = PathAndQuery::from_static(call.path());
            grpc.server_streaming(request, path, ProstCodec::<Q, R>::default()).await
        });
        let result = response.await.map(tonic::Response::into_inner);
        let result = result.map_err(|status| CsiError::new(call, without_secrets(status, &sent)));
        self.finished(call, result.as_ref().err(), start);
        let took = words::time(start.elapsed());
        let code = code_name(result.as_ref().err().map_or(Code::Ok, CsiError::code));
        tracing::debug!(method = call.path(), driver = self.driver(), took, code, "GRPC stream");
        result
    }

    fn deadline_from(&self, start: Instant) -> Option<Instant> {
        match self.deadline {
            Deadline::None => None,
            Deadline::Each(timeout) => start.checked_add(timeout),
            Deadline::At(at) => Some(at),
        }
    }

    /// Runs a call under its deadline, and sends the deadline to the driver.
    async fn within<Q, R, F>(
        &self,
        deadline: Option<Instant>,
        request: Q,
        send: impl FnOnce(tonic::Request<Q>) -> F,
    ) -> Result<R, Status>
    where
        F: Future<Output = Result<R, Status>>,
    {
        let mut request = tonic::Request::new(request);
        let Some(deadline) = deadline else { return send(request).await };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(deadline_exceeded());
        }
        request.set_timeout(left);
        let response = tokio::select! {
            biased;
            () = tokio::time::sleep_until(deadline) => return Err(deadline_exceeded()),
            response = send(request) => response,
        };
        match response {
            // The transport, and a driver that obeys the deadline, have their own words for it.
            Err(status) if status.code() == Code::Cancelled && Instant::now() >= deadline => {
                Err(deadline_exceeded())
            }
            response => response,
        }
    }

    fn finished(&self, call: Call, error: Option<&CsiError>, start: Instant) {
        if error.is_some_and(|error| error.code() == Code::Unimplemented) {
            self.note_unimplemented(call);
        }
        if let Some(metrics) = &self.shared.metrics {
            let code = error.map_or(Code::Ok, CsiError::code);
            metrics.record(self.driver(), call.path(), Some(code), self.migrated, start.elapsed());
        }
    }

    /// The driver's name, once it is known.
    fn driver(&self) -> Option<&str> {
        self.shared.peer.name.get().map(String::as_str)
    }

    /// Where the driver's socket is.
    fn address(&self) -> Option<&str> {
        self.shared.peer.address.as_deref()
    }

    fn log_request<Q: Message + Name>(&self, call: Call, request: &Q) {
        if tracing::enabled!(tracing::Level::DEBUG) {
            let request = redact::text(request);
            tracing::debug!(method = call.path(), driver = self.driver(), request, "GRPC call");
        }
    }

    fn log_response<R: Message + Name>(
        &self,
        call: Call,
        result: &Result<R, CsiError>,
        start: Instant,
    ) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let (method, driver) = (call.path(), self.driver());
        let took = words::time(start.elapsed());
        match result {
            Ok(response) => {
                let response = redact::cap(redact::text(response), self.shared.max_log_length);
                let code = code_name(Code::Ok);
                tracing::debug!(method, driver, took, code, response, "GRPC response");
            }
            Err(error) => {
                let code = code_name(error.code());
                tracing::debug!(method, driver, took, code, %error, "GRPC error");
            }
        }
    }
}

/// Services in this process have no transport that could fail.
fn never(impossible: Infallible) -> tonic::transport::Error {
    match impossible {}
}

/// Removes the secrets of the request from the driver's status text.
fn without_secrets(status: Status, sent: &SentRequest) -> Status {
    match sent.scrub(status.message()) {
        Some(clean) => Status::new(status.code(), clean),
        None => status,
    }
}

fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

#[cfg(test)]
mod tests;
