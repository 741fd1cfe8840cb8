//! `longshore liveness-probe`: a page that says whether a driver is alive.

use anyhow::{Context as _, Result};
use longshore_cluster::{Metrics, shutdown};
use longshore_csi::metrics::Side;
use longshore_node::liveness::{Liveness, Pages};
use tokio::net::TcpListener;

use crate::cli::liveness_probe::{Config, Shown};

/// Waits for the driver, then answers until a signal. The driver may come and go.
pub async fn run(config: Config) -> Result<()> {
    let Config { logging: _, socket, probe_timeout, address, metrics } = config;
    let signal = shutdown::on_signals().context("cannot listen for signals")?;
    let registry = Metrics::new();
    let calls =
        registry.with_registry(|all| longshore_csi::metrics::Metrics::register(all, Side::Sidecar));
    let finding = Liveness::find(&socket, probe_timeout, calls);
    let Some(found) = signal.run_until_cancelled(finding).await else { return Ok(()) };
    let liveness =
        found.with_context(|| format!("cannot ask the driver at {}", socket.display()))?;
    tracing::info!(driver = liveness.driver(), "connected to the driver");
    let mut pages = Pages { health: Some(liveness), metrics: None };
    let mut apart = None;
    if let Some(Shown { apart: other, path }) = metrics {
        match other {
            None => pages.metrics = Some((path, registry)),
            Some(address) => {
                let listener = TcpListener::bind(&address).await.with_context(|| {
                    format!("cannot listen on {address}; choose a free --metrics-address")
                })?;
                tracing::info!(address = %listener.local_addr()?, "serving metrics");
                apart = Some((listener, Pages { health: None, metrics: Some((path, registry)) }));
            }
        }
    }
    let measured = async {
        match apart {
            Some((listener, pages)) => pages.serve(listener).await,
            None => std::future::pending().await,
        }
    };
    let listener = match TcpListener::bind(&address).await {
        Ok(listener) => listener,
        Err(error) => {
            // Upstream ends without a failure here, and manifests may count on that.
            tracing::error!(address, %error, "cannot listen; choose a free --http-endpoint");
            return Ok(());
        }
    };
    tracing::info!(address = %listener.local_addr()?, "serving /healthz");
    tokio::select! {
        () = signal.cancelled() => Ok(()),
        ended = pages.serve(listener) => ended.context("the health page failed"),
        ended = measured => ended.context("the metrics page failed"),
    }
}
