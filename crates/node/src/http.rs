//! The node's HTTP endpoint: metrics, health and `/stats/summary`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;

use axum::Json;
use axum::routing::get;
use futures::StreamExt;
use longshore_cluster::listen;
use longshore_cluster::telemetry::Endpoint;
use longshore_csi::server::Listener;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::NodeStats;

/// The endpoint cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; choose a free address with --http-endpoint")]
pub struct HttpError {
    address: String,
    source: std::io::Error,
}

/// Serves until `shutdown` and returns the address in use; `:8080` means all interfaces.
///
/// # Errors
/// The address cannot be listened on.
pub async fn serve(
    address: &str,
    endpoint: Endpoint,
    stats: NodeStats,
    shutdown: &CancellationToken,
) -> Result<(SocketAddr, JoinHandle<()>), HttpError> {
    let failed = |source| HttpError { address: address.to_owned(), source };
    let listener = listen::listen(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let router = router(endpoint, stats);
    let stop = shutdown.clone();
    let task = tokio::spawn(async move {
        let serve = axum::serve(listener, router);
        let serve = serve.with_graceful_shutdown(async move { stop.cancelled().await });
        if let Err(error) = serve.await {
            tracing::error!(%error, "the HTTP endpoint stopped");
        }
    });
    longshore_cluster::log_process!(address = %bound, "serving metrics, health and statistics");
    Ok((bound, task))
}

fn router(endpoint: Endpoint, stats: NodeStats) -> axum::Router {
    let summary = move || async move { Json(stats.summary()) };
    axum::Router::new().route("/stats/summary", get(summary)).fallback_service(endpoint.router())
}

/// Serves the same on a bound socket until `shutdown`, then removes the socket. Requests under way
/// are not waited for.
///
/// # Errors
/// The server ended for another reason.
pub async fn serve_socket(
    listener: Listener,
    endpoint: Endpoint,
    stats: NodeStats,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    let path = listener.path().to_owned();
    let served = tokio::select! {
        served = axum::serve(Socket(listener), router(endpoint, stats)) => served,
        () = shutdown.cancelled() => Ok(()),
    };
    if let Err(error) = std::fs::remove_file(&path) {
        tracing::warn!(path = %path.display(), %error, "cannot remove the socket");
    }
    served
}

struct Socket(Listener);

impl axum::serve::Listener for Socket {
    type Io = UnixStream;
    type Addr = PathBuf;

    async fn accept(&mut self) -> (UnixStream, PathBuf) {
        let mut incoming = pin!(self.0.incoming());
        loop {
            // It logs what fails and has no end.
            if let Some(Ok(stream)) = incoming.next().await {
                return (stream, self.0.path().to_owned());
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<PathBuf> {
        Ok(self.0.path().to_owned())
    }
}
