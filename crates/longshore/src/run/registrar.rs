//! `longshore node-registrar`: introduces a driver to the kubelet of its node.

use anyhow::{Context as _, Result};
use longshore_cluster::shutdown;
use longshore_csi::{Client, ConnectOptions, Options};
use longshore_node::registrar::{Health, Introduction, Registrar};

use crate::cli::node_registrar::Registration;

/// Registers the driver and stays until a signal, a refusal or a failure.
pub async fn run(config: Registration) -> Result<()> {
    let Registration { logging: _, socket, endpoint, registry, timeout, health } = config;
    let signal = shutdown::on_signals().context("cannot listen for signals")?;
    let naming = async {
        let calls = Options { timeout: Some(timeout), ..Options::default() };
        let options =
            ConnectOptions { calls, ..ConnectOptions::from(socket.display().to_string()) };
        let csi = Client::connect(options).await?;
        csi.driver_name().await.with_context(|| {
            format!("cannot learn the driver's name at {} within {timeout:?}", socket.display())
        })
    };
    let Some(driver) = signal.run_until_cancelled(naming).await else { return Ok(()) };
    let driver = driver?;
    let introduction = Introduction { driver, endpoint, registry };
    let (driver, socket) = (introduction.driver.clone(), introduction.socket());
    let registrar = Registrar::succeed(introduction)?;
    tracing::info!(driver, socket = %socket.display(), "waiting for the kubelet");
    let healthy = async {
        let Some(address) = health else { return std::future::pending().await };
        let serving = async {
            let server = Health { socket, driver, timeout }.listen(&address).await?;
            tracing::info!(address = %server.address()?, "serving /healthz");
            server.run().await
        };
        serving.await.with_context(|| {
            format!(
                "cannot serve /healthz on {address}; choose a free address with --http-endpoint"
            )
        })
    };
    tokio::select! {
        ended = registrar.run_until_refused(signal) => ended.map_err(Into::into),
        ended = healthy => ended,
    }
}
