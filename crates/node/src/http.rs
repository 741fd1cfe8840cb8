//! The node's HTTP endpoint: metrics, health and `/stats/summary`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;

use axum::routing::get;
use axum::{Json, Router};
use futures::StreamExt;
use longshore_cluster::telemetry::{Endpoint, EndpointError};
use longshore_csi::server::Listener;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::NodeStats;

/// Serves until `shutdown` and returns the address in use; `:8080` means all interfaces.
///
/// # Errors
/// The address cannot be listened on.
pub async fn serve(
    address: &str,
    endpoint: Endpoint,
    stats: NodeStats,
    shutdown: &CancellationToken,
) -> Result<(SocketAddr, JoinHandle<()>), EndpointError> {
    let served = with_stats(endpoint, stats).start(address, shutdown).await?;
    longshore_cluster::log_process!(address = %served.0, "serving metrics, health and statistics");
    Ok(served)
}

fn with_stats(endpoint: Endpoint, stats: NodeStats) -> Endpoint {
    let summary = move || async move { Json(stats.summary()) };
    endpoint.routes(Router::new().route("/stats/summary", get(summary)))
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
        served = axum::serve(Socket(listener), with_stats(endpoint, stats).router()) => served,
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
