//! `longshore up`: API, controllers, drivers and node in one process.
//!
//! Order of starting: the lock and the port first, so that a refusal changes nothing; then the API;
//! then drivers, loops and node, all of which reach the API in memory. Order of stopping is the
//! reverse: the node stops its pods and unmounts while everything else still works, then the
//! drivers let go of their loop devices, then the loops end, and the API last.

mod absent;
mod bootstrap;
mod control;
mod datadir;
mod drivers;
mod fence;
mod flags;
mod greeting;
mod host;
mod logs;
mod node_processes;
mod nodes;
mod outage;
mod provision;
mod ready;
mod reset;
mod resize;
mod streams;

use std::{io::Write as _, path::Path};

use anyhow::{Context as _, Result};
use longshore_apiserver::ApiServer;
use longshore_cluster::{Api, Metrics, shutdown};
use longshore_node::ApiAddress;
use tokio_util::sync::CancellationToken;

pub(crate) use self::flags::{Config, NodeConfig, absolute};
pub(crate) use self::reset::{Reset, nodes as nodes_of};
use self::{control::Control, datadir::DataDir};
use super::apiserver::Server;
use super::pool::check_parent;
use crate::process::root;

/// Runs everything until a signal.
async fn run(config: Config) -> Result<()> {
    root::require("up")?;
    root::require_mkfs()?;
    let signal = shutdown::on_signals().context("cannot listen for signals")?;
    config.pools.iter().try_for_each(|pool| check_parent("--pool", &pool.dir))?;
    let served = RunningApi::start(&config.server, true).await?;
    greeting::show(&config, &served.data.kubeconfig())?;
    let api = served.api();
    bootstrap::ensure(&api).await.context("cannot make the first objects")?;

    let loops = CancellationToken::new();
    let (ca, kubeconfig) = (served.server.ca_certificate(), served.data.kubeconfig());
    let mut control = Control::start(api.clone(), Metrics::new(), ca, &kubeconfig, &loops);
    let worked = work(&config, &served, &api, &mut control, &signal).await;
    loops.cancel();
    control.finish().await;
    served.stop().await?;
    worked
}

/// From the first node to the last unmount.
async fn work(
    config: &Config,
    served: &RunningApi,
    api: &Api,
    control: &mut Control,
    signal: &CancellationToken,
) -> Result<()> {
    let mut nodes = nodes::start(config, served, api, control).await?;
    let worked = async {
        tokio::select! {
            () = signal.cancelled() => return Ok(()),
            ready = ready::wait(api, config) => ready?,
        }
        if signal.run_until_cancelled(control.greet_foreign()).await.is_none() {
            return Ok(());
        }
        announce(&served.data.kubeconfig())?;
        nodes.watch(signal).await
    }
    .await;
    worked.and(nodes.stop().await)
}

/// Runs one node of several in this process; see [`nodes`].
pub(super) async fn run_node(config: NodeConfig) -> Result<()> {
    host::run_in_own_process(config).await
}

/// The one line on stdout, for programs that wait for it.
pub(super) fn announce(kubeconfig: &Path) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready kubeconfig={}", kubeconfig.display())
        .and_then(|()| out.flush())
        .context("cannot say that everything is ready")
}

/// The API server on its port, with its data directory locked.
pub(super) struct RunningApi {
    pub data: DataDir,
    pub server: ApiServer,
    /// Where pods reach it.
    pub for_pods: ApiAddress,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<()>>,
}

impl RunningApi {
    /// The API for the parts of this process.
    fn api(&self) -> Api {
        let service = self.server.service();
        Api::in_process(self.server.client(), move |request| {
            let service = service.clone();
            Box::pin(async move { service.handle(request).await })
        })
    }

    /// Takes the lock and the port, opens the store, serves, and writes the kubeconfig.
    ///
    /// `pods` says whether something here runs them; then each has an account, as in a cluster.
    pub(super) async fn start(config: &Server, pods: bool) -> Result<Self> {
        let data = DataDir::lock(&config.data_dir)?;
        let bound = config.listen.bind().await.with_context(|| {
            format!(
                "cannot listen on {}: is the address in use? choose another with --listen",
                config.listen
            )
        })?;
        let settings = longshore_apiserver::Config {
            default_accounts: pods,
            limits: config.limits,
            volume_health: config.volume_health,
            ..longshore_apiserver::Config::at(data.api())
        };
        let server = ApiServer::open(settings)
            .await
            .with_context(|| format!("cannot open the API's store in {}", data.api().display()))?;
        let kubeconfig = server.kubeconfig(&bound.local);
        datadir::write_kubeconfig(&data.kubeconfig(), &kubeconfig)
            .with_context(|| format!("cannot write {}", data.kubeconfig().display()))?;
        let stop = CancellationToken::new();
        let (serving, token) = (server.clone(), stop.clone());
        let (names, for_pods) = (bound.names(&config.tls_sans), bound.for_pods);
        longshore_cluster::log_process!(address = %bound.local, "the API is served");
        let task = tokio::spawn(async move {
            serving.serve_as(bound.listener, names, token).await.map_err(Into::into)
        });
        Ok(Self { data, server, for_pods, stop, task })
    }

    /// Ends serving; every answered write is on disk then.
    pub(super) async fn stop(self) -> Result<()> {
        self.stop.cancel();
        let served = self.task.await.context("the API's task ended abnormally")?;
        self.server.shutdown().await;
        served
    }

    /// Ends when serving ends for another reason than [`RunningApi::stop`].
    pub(super) async fn failed(&mut self) -> anyhow::Error {
        match (&mut self.task).await {
            Ok(Ok(())) => anyhow::anyhow!("the API stopped serving"),
            Ok(Err(error)) => error,
            Err(error) => error.into(),
        }
    }
}
