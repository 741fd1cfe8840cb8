//! One node: its drivers, their introduction, and its agent.
//!
//! With one node this runs in the main process and reaches the API in memory. With several, each
//! node is a child process that reads a [`NodeConfig`] and reaches the API through its port.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use longshore_cluster::{Api, Metrics, config::ClientConfig, shutdown, telemetry::Endpoint};
use longshore_controllers::provision::NodeScope;
use longshore_csi::server::Listener;
use longshore_node::{NodeAgent, PodsMode, Settings, ShimProgram};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::NodeConfig;
use super::drivers::{Plan, RunningDriver, introduce_foreign};
use crate::programs::internal;

/// A running node.
pub(super) struct Host {
    pub node: String,
    pub drivers: Vec<RunningDriver>,
    agent: JoinHandle<Result<()>>,
    stop_agent: CancellationToken,
    stop_drivers: CancellationToken,
    tasks: JoinSet<Result<()>>,
}

impl Host {
    /// Starts drivers and agent.
    pub(super) async fn start(config: &NodeConfig, api: Api) -> Result<Self> {
        let (stop_agent, stop_drivers) = (CancellationToken::new(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        let drivers = Plan::of(config).serve(&mut tasks, &stop_drivers).await?;
        // The kubelet's metrics, and a registry of their own: controllers of this process measure
        // some things under the same names.
        let metrics = Metrics::new();
        let settings = Settings {
            metrics: metrics.clone(),
            list_staged: true,
            api_address: Some(config.api_address.clone()),
            ..Settings::default()
        };
        let agent = NodeAgent::new(agent_config(config)?, api).with(settings);
        let socket = config.root.join("http.sock");
        let listener = Listener::bind(&socket)
            .with_context(|| format!("cannot serve node {}'s statistics", config.node))?
            .kept();
        let (stats, token) = (agent.stats(), stop_drivers.clone());
        tasks.spawn(async move {
            let endpoint = Endpoint::new(&metrics);
            longshore_node::http::serve_socket(listener, endpoint, stats, token)
                .await
                .context("the node's statistics are not served any more")
        });
        let registry = config.root.join("plugins_registry");
        for driver in &drivers {
            driver.introduce(&registry, &mut tasks, &stop_drivers)?;
        }
        for socket in config.csi_endpoints.iter().cloned() {
            tasks.spawn(introduce_foreign(socket, registry.clone(), stop_drivers.clone()));
        }
        let token = stop_agent.clone();
        let agent = tokio::spawn(async move { agent.run(token).await.map_err(Into::into) });
        Ok(Self { node: config.node.clone(), drivers, agent, stop_agent, stop_drivers, tasks })
    }

    /// Returns when a part of the node ended before the stop.
    pub(super) async fn failed(&mut self) -> anyhow::Error {
        let ended = tokio::select! {
            ended = &mut self.agent => ended,
            Some(ended) = self.tasks.join_next() => ended,
        };
        let error = match ended {
            Ok(Ok(())) => anyhow::anyhow!("it ended by itself"),
            Ok(Err(error)) => error,
            Err(error) => error.into(),
        };
        error.context(format!("a part of node {} stopped", self.node))
    }

    /// Stops pods, unmounts, detaches loop devices, then ends the drivers.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.stop_agent.cancel();
        let stopped = match self.agent.is_finished() {
            true => Ok(()),
            false => (&mut self.agent).await.context("the node agent ended abnormally")?,
        };
        let mut left = Vec::new();
        for driver in &self.drivers {
            driver.tidy().await?;
            left.extend(driver.left_devices().await?);
        }
        self.stop_drivers.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.context("a driver's task ended abnormally")??;
        }
        if let Err(error) = stopped {
            left.insert(0, format!("{error:#}"));
        }
        if left.is_empty() {
            return Ok(());
        }
        bail!(
            "node {} stopped, but something of it is left: {}; end what holds it and start and stop once \
             more, or unmount it and detach loop devices with losetup -d",
            self.node,
            left.join("; ")
        )
    }
}

fn agent_config(config: &NodeConfig) -> Result<longshore_node::NodeConfig> {
    let exe = std::env::current_exe().context("cannot find this program")?;
    Ok(longshore_node::NodeConfig {
        node_name: config.node.clone(),
        root_dir: config.root.clone(),
        pods: PodsMode::Process,
        shim: ShimProgram { program: exe, args: vec![internal::POD_SHIM.to_owned()] },
        hidden_dirs: hidden(config),
        stop_pods: true,
        stop_timeout: config.stop_timeout,
        run_any_image_on_host: config.run_any_image_on_host,
        limits: config.limits.clone(),
    })
}

/// What a pod must not see: the data directory, every pool outside of it, and the sockets of drivers,
/// which do what anybody asks who can reach them.
fn hidden(config: &NodeConfig) -> Vec<PathBuf> {
    let pools = config.pools.iter().map(|pool| pool.dir.clone());
    let mut dirs: Vec<PathBuf> = std::iter::once(config.data_dir.clone())
        .chain(pools)
        .chain([config.shared_pool.clone()])
        .chain(config.csi_endpoints.iter().cloned())
        .collect();
    dirs.sort();
    // A directory below one that is hidden already is hidden with it.
    dirs.dedup_by(|later, earlier| later.starts_with(earlier));
    dirs
}

/// The child process of one node.
pub(super) async fn run_in_own_process(config: NodeConfig) -> Result<()> {
    let signal = shutdown::on_signals().context("cannot listen for signals")?;
    let metrics = Metrics::new();
    let client = ClientConfig {
        user_agent: Some(format!("longshore-node/{}", env!("CARGO_PKG_VERSION"))),
        metrics: Some(metrics.clone()),
        ..ClientConfig::from_kubeconfig(&config.kubeconfig)
    };
    let api = Api::new(client.client().await?);
    let mut host = Host::start(&config, api.clone()).await?;
    let stop_loops = CancellationToken::new();
    let mut control = super::control::Control::for_node(api, metrics, &stop_loops, &config.node);
    for driver in &host.drivers {
        if driver.is_local() {
            let scope = NodeScope { node: (&config.node).into(), unplaced: config.first };
            control.snapshot_node(&driver.name, driver.client(), &scope);
            control.provision_node(&driver.name, driver.client(), scope);
            control.modify_node(&driver.name, driver.client(), &config.node);
        }
    }
    let failed = tokio::select! {
        () = signal.cancelled() => None,
        error = host.failed() => Some(error),
    };
    let stopped = host.stop().await;
    stop_loops.cancel();
    control.finish().await;
    match failed {
        Some(error) => Err(error),
        None => stopped,
    }
}
