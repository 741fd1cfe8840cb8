//! The single parts: `longshore apiserver`, `longshore driver`, `longshore node`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use longshore_cluster::{Api, Metrics, config::ClientConfig, shutdown, telemetry::Endpoint};
use longshore_driver::{Driver, DriverConfig};
use longshore_node::{NodeAgent, PodsMode, ShimProgram};

use super::{root, up};
use crate::cli;

/// `longshore apiserver`: the API alone, with its own housekeeping and nothing else.
pub async fn apiserver(config: cli::up::ApiServerConfig) -> Result<()> {
    let signal = shutdown::on_signals().context("cannot listen for signals")?;
    let mut served = up::Served::start(&config.server, false).await?;
    up::announce(&served.data.kubeconfig())?;
    tokio::select! {
        () = signal.cancelled() => served.stop().await,
        error = served.failed() => Err(error),
    }
}

/// `longshore driver`.
pub async fn driver(config: cli::driver::Config) -> Result<()> {
    root::require("driver")?;
    let signal = shutdown::on_signals().context("cannot listen for signals")?;
    let endpoint = config.endpoint.clone();
    let config = DriverConfig::from(config);
    let opened = tokio::task::spawn_blocking(|| Driver::open(config)).await?;
    longshore_driver::serve(&opened?, &endpoint, signal).await.map_err(Into::into)
}

/// `longshore node`: mounts volumes, and runs pods unless told not to.
pub async fn node(config: cli::node::Config) -> Result<()> {
    let cli::node::Config {
        logging: _,
        kubeconfig,
        node_name,
        root_dir,
        pods,
        http_endpoint,
        run_any_image_on_host,
        limits,
    } = config;
    root::require("node")?;
    let signal = shutdown::on_signals().context("cannot listen for signals")?;
    let metrics = Metrics::new();
    let mut hidden_dirs = vec![root_dir.clone(), kubeconfig.clone()];
    hidden_dirs.extend(key_files(&kubeconfig));
    let client = ClientConfig {
        user_agent: Some(format!("longshore-node/{}", env!("CARGO_PKG_VERSION"))),
        metrics: Some(metrics.clone()),
        ..ClientConfig::from_kubeconfig(kubeconfig)
    };
    let exe = std::env::current_exe().context("cannot find this program")?;
    let config = longshore_node::NodeConfig {
        node_name,
        hidden_dirs,
        root_dir,
        pods: match pods {
            cli::node::Pods::Process => PodsMode::Process,
            cli::node::Pods::None => PodsMode::None,
        },
        shim: ShimProgram { program: exe, args: vec!["pod-shim".to_owned()] },
        // As the kubelet: pods outlive a restart of the agent.
        stop_pods: false,
        stop_timeout: std::time::Duration::ZERO,
        run_any_image_on_host,
        limits,
    };
    let api = Api::new(client.client().await?);
    let agent =
        NodeAgent::new(config, api).with_metrics(&metrics).with_faults(super::faults::of_agent());
    if let Some(address) = http_endpoint {
        let endpoint = Endpoint::new(&metrics);
        longshore_node::http::serve(&address, endpoint, agent.stats(), &signal).await?;
    }
    agent.run(signal).await.map_err(Into::into)
}

/// Files with keys and tokens that a client configuration names.
fn key_files(kubeconfig: &Path) -> Vec<PathBuf> {
    let dir = kubeconfig.parent().unwrap_or(Path::new("/"));
    let text = std::fs::read_to_string(kubeconfig).unwrap_or_default();
    let config: serde_json::Value = serde_saphyr::from_str(&text).unwrap_or_default();
    let users = config["users"].as_array().cloned().unwrap_or_default();
    let named = |user: &serde_json::Value, key: &str| {
        user["user"][key].as_str().filter(|file| !file.is_empty()).map(|file| dir.join(file))
    };
    users
        .iter()
        .flat_map(|user| [named(user, "client-key"), named(user, "tokenFile")])
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_tokens_of_a_client_configuration_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        let text = "users:\n- name: a\n  user: {client-key: a.key, client-certificate: a.crt}\n\
                    - name: b\n  user: {tokenFile: /b/token}\n";
        std::fs::write(&file, text).unwrap();
        assert_eq!(key_files(&file), [dir.path().join("a.key"), PathBuf::from("/b/token")]);
        assert!(key_files(&dir.path().join("none")).is_empty());
    }
}
