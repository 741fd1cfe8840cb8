//! `/healthz` of a driver: each request calls Probe.
//!
//! Each request opens a connection. So a driver that hangs or ended is noticed, and one that is back is
//! found without a restart.

use std::future::IntoFuture as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::{Router, extract::Request, response::IntoResponse as _, response::Response};
use http::{StatusCode, header};
use longshore_cluster::Metrics;
use longshore_core::words;
use longshore_csi::client::{ConnectError, DriverNameError};
use longshore_csi::{Client, ConnectOptions, CsiError, Options, metrics, v1};
use tokio::net::TcpListener;
use tokio::time::Instant;

/// Why the driver is not known.
#[derive(Debug, thiserror::Error)]
pub enum LivenessError {
    /// The socket is of no use.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The driver does not say who it is.
    #[error("cannot learn the driver's name")]
    Name(#[from] DriverNameError),
}

/// Why a driver counts as dead.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The socket is of no use.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection was not accepted in time.
    #[error("cannot connect to {} within {}", socket.display(), words::time(*.timeout))]
    Timeout { socket: PathBuf, timeout: Duration },
    #[error(transparent)]
    Call(#[from] CsiError),
    /// The driver is still starting.
    #[error("driver responded but is not ready")]
    NotReady,
}

/// A driver that can be asked whether it is alive.
#[derive(Debug, Clone)]
pub struct Liveness {
    socket: PathBuf,
    driver: String,
    timeout: Duration,
    calls: metrics::Metrics,
}

impl Liveness {
    /// Waits for the driver, however long it takes, and asks for its name. `timeout` is the time for
    /// one look later on.
    ///
    /// # Errors
    /// The driver returns an error or no name.
    pub async fn find(
        socket: &Path,
        timeout: Duration,
        calls: metrics::Metrics,
    ) -> Result<Self, LivenessError> {
        let client = Client::connect(options(socket, None, &calls)).await?;
        let driver = client.driver_name().await?;
        Ok(Self { socket: socket.to_owned(), driver, timeout, calls })
    }

    /// The driver's name.
    #[must_use]
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// Dials, asks, hangs up. One deadline holds for all of it.
    ///
    /// # Errors
    /// Why the driver counts as dead.
    pub async fn probe(&self) -> Result<(), ProbeError> {
        let deadline = Instant::now() + self.timeout;
        let dialing = Client::connect(options(&self.socket, Some(self.timeout), &self.calls));
        let client = match tokio::time::timeout_at(deadline, dialing).await {
            Ok(dialed) => dialed?,
            Err(_) => {
                let (socket, timeout) = (self.socket.clone(), self.timeout);
                return Err(ProbeError::Timeout { socket, timeout });
            }
        };
        let client = client.with_driver_name(&self.driver).with_deadline(deadline);
        match client.probe(v1::ProbeRequest {}).await?.ready {
            Some(false) => Err(ProbeError::NotReady),
            _ => Ok(()),
        }
    }
}

fn options(socket: &Path, timeout: Option<Duration>, calls: &metrics::Metrics) -> ConnectOptions {
    ConnectOptions {
        timeout,
        calls: Options { metrics: Some(calls.clone()), ..Options::default() },
        ..ConnectOptions::from(socket.display().to_string())
    }
}

/// The pages of one HTTP server.
#[derive(Clone, Default)]
pub struct Pages {
    /// Under `/healthz`.
    pub health: Option<Liveness>,
    /// Under the path.
    pub metrics: Option<(String, Metrics)>,
}

impl Pages {
    /// Shows them on a port, for ever.
    ///
    /// # Errors
    /// When the server fails.
    pub async fn serve(self, listener: TcpListener) -> io::Result<()> {
        let router = Router::new().fallback(move |request: Request| {
            let pages = self.clone();
            async move { pages.respond(request.uri().path()).await }
        });
        axum::serve(listener, router).into_future().await
    }

    async fn respond(&self, path: &str) -> Response {
        match self {
            Self { health: Some(liveness), .. } if path == "/healthz" => {
                let Err(error) = liveness.probe().await else {
                    return (StatusCode::OK, "ok").into_response();
                };
                let reason = error.to_string();
                tracing::error!(driver = liveness.driver, reason, "health check failed");
                (StatusCode::INTERNAL_SERVER_ERROR, reason).into_response()
            }
            Self { metrics: Some((shown, metrics)), .. } if path == shown => {
                let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
                (kind, metrics.render()).into_response()
            }
            _ => (StatusCode::NOT_FOUND, "404 page not found\n").into_response(),
        }
    }
}
