//! The node's HTTP endpoint: metrics, health and `/stats/summary`.

use std::net::SocketAddr;

use axum::Json;
use axum::routing::get;
use longshore_cluster::telemetry::Endpoint;
use tokio::net::TcpListener;
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
    let listener = listen(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let summary = move || async move { Json(stats.summary()) };
    let router = axum::Router::new()
        .route("/stats/summary", get(summary))
        .fallback_service(endpoint.router());
    let stop = shutdown.clone();
    let task = tokio::spawn(async move {
        let serve = axum::serve(listener, router);
        let serve = serve.with_graceful_shutdown(async move { stop.cancelled().await });
        if let Err(error) = serve.await {
            tracing::error!(%error, "the HTTP endpoint stopped");
        }
    });
    tracing::info!(address = %bound, "serving metrics, health and statistics");
    Ok((bound, task))
}

async fn listen(address: &str) -> std::io::Result<TcpListener> {
    let Some(port) = address.strip_prefix(':') else {
        return TcpListener::bind(address).await;
    };
    match TcpListener::bind(format!("[::]:{port}")).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind(format!("0.0.0.0:{port}")).await,
    }
}
