//! The drivers of one node: served on their sockets, and introduced to the node agent.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use longshore_csi::{Client, ConnectOptions, Options};
use longshore_driver::{Driver, DriverConfig, DriverKind, Mode, PoolConfig};
use longshore_node::registrar::{Introduction, Registrar};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::NodeConfig;
use crate::programs::pool::Pool;

/// Deadline of calls to our own drivers: a large volume may take a while to make.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A driver that is being served.
pub(super) struct RunningDriver {
    pub name: String,
    /// Its socket.
    pub socket: PathBuf,
    driver: Driver,
}

/// Which drivers a node has, and where their volumes are.
pub(super) struct Plan<'a> {
    /// The node's name, which is also its id for the drivers.
    pub node: &'a str,
    /// The node's kubelet-style root.
    pub root: &'a Path,
    /// Pools of the local driver.
    pub pools: &'a [Pool],
    /// Pool of the shared driver.
    pub shared_pool: &'a Path,
    /// Which services of the shared driver this node offers.
    pub shared_mode: Mode,
}

impl<'a> Plan<'a> {
    /// The drivers of a node.
    pub(super) fn of(config: &'a NodeConfig) -> Self {
        Self {
            node: &config.node,
            root: &config.root,
            pools: &config.pools,
            shared_pool: &config.shared_pool,
            shared_mode: if config.only_node { Mode::All } else { Mode::Node },
        }
    }

    /// The settings of both drivers.
    pub(super) fn configs(&self) -> [DriverConfig; 2] {
        let mut local = DriverConfig::new(DriverKind::Local, self.node);
        local.pools =
            self.pools.iter().map(|pool| PoolConfig::new(&pool.name, &pool.dir)).collect();
        let mut shared = DriverConfig::new(DriverKind::Shared, self.node);
        shared.pools = vec![PoolConfig::new("default", self.shared_pool)];
        shared.mode = self.shared_mode;
        for config in [&mut local, &mut shared] {
            config.freeze_holder = Some(crate::programs::driver::freeze_holder());
        }
        [local, shared]
    }

    /// Opens and serves both drivers until `shutdown`.
    pub(super) async fn serve(
        &self,
        tasks: &mut JoinSet<Result<()>>,
        shutdown: &CancellationToken,
    ) -> Result<Vec<RunningDriver>> {
        let mut served = Vec::new();
        for config in self.configs() {
            let socket = socket(self.root, &config.driver_name);
            served.push(serve_one(config, socket, tasks, shutdown).await?);
        }
        Ok(served)
    }
}

/// The socket of a node's driver.
pub(super) fn socket(root: &Path, driver: &str) -> PathBuf {
    root.join("plugins").join(driver).join("csi.sock")
}

/// Opens one driver and serves it on its socket.
pub(super) async fn serve_one(
    config: DriverConfig,
    socket: PathBuf,
    tasks: &mut JoinSet<Result<()>>,
    shutdown: &CancellationToken,
) -> Result<RunningDriver> {
    let name = config.driver_name.clone();
    let opened = tokio::task::spawn_blocking(|| Driver::open(config)).await?;
    let driver = opened.with_context(|| format!("cannot open the driver {name}"))?;
    let listener = longshore_csi::server::Listener::bind(&socket)
        .with_context(|| format!("cannot serve the driver {name}"))?
        .kept();
    let (routes, stop) = (driver.services(), shutdown.clone());
    tasks.spawn(async move {
        longshore_csi::server::serve(routes, listener, stop).await.map_err(Into::into)
    });
    Ok(RunningDriver { name, socket, driver })
}

impl RunningDriver {
    /// Whether it is the driver whose volumes belong to one node.
    pub(super) fn is_local(&self) -> bool {
        self.driver.config().kind == DriverKind::Local
    }

    /// A client for the loops, which asks the driver within the process.
    pub(super) fn client(&self) -> Client {
        Client::in_process(self.driver.services(), call_options())
    }

    /// Introduces the driver to the node agent whose registry directory this is.
    pub(super) fn introduce(
        &self,
        registry: &Path,
        tasks: &mut JoinSet<Result<()>>,
        shutdown: &CancellationToken,
    ) -> Result<()> {
        let introduction = Introduction {
            driver: self.name.clone(),
            endpoint: self.socket.clone(),
            registry: registry.to_owned(),
        };
        let registrar = Registrar::bind(introduction)?;
        let stop = shutdown.clone();
        tasks.spawn(async move { registrar.run(stop).await.map_err(Into::into) });
        Ok(())
    }

    /// Detaches loop devices that nothing uses any more. Called when everything is unstaged.
    pub(super) async fn tidy(&self) -> Result<()> {
        let driver = self.driver.clone();
        let swept = tokio::task::spawn_blocking(move || driver.cleanup_orphans()).await?;
        let count =
            swept.with_context(|| format!("cannot tidy up after the driver {}", self.name))?;
        if count > 0 {
            longshore_cluster::log_process!(
                driver = self.name,
                count,
                "detached loop devices that nothing used"
            );
        }
        Ok(())
    }

    /// What of the driver's devices could not be detached, in words.
    pub(super) async fn left_devices(&self) -> Result<Vec<String>> {
        let driver = self.driver.clone();
        let left = tokio::task::spawn_blocking(move || driver.left_devices()).await?;
        let left = left.with_context(|| format!("cannot look after the driver {}", self.name))?;
        Ok(left.iter().map(ToString::to_string).collect())
    }
}

/// Waits for the foreign driver behind a socket and asks who it is; returns the client that did.
/// `None` when the stop comes first.
pub(super) async fn ask_foreign(
    socket: &Path,
    stop: &CancellationToken,
) -> Option<(longshore_controllers::Driver, Client)> {
    let options = ConnectOptions {
        calls: call_options(),
        timeout: None,
        ..ConnectOptions::from(socket.display().to_string())
    };
    let client = match stop.run_until_cancelled(Client::connect(options)).await? {
        Ok(client) => client,
        Err(error) => {
            tracing::error!(%error, socket = %socket.display(), "the driver cannot be served");
            return None;
        }
    };
    let ask = longshore_controllers::Driver::describe_with_retries(
        &client,
        CALL_TIMEOUT,
        Duration::from_secs(1),
        stop,
    );
    Some((ask.await?, client))
}

/// Introduces a foreign driver to the node agent once it answers.
pub(super) async fn introduce_foreign(
    socket: PathBuf,
    registry: PathBuf,
    stop: CancellationToken,
) -> Result<()> {
    let Some((driver, _)) = ask_foreign(&socket, &stop).await else {
        stop.cancelled().await;
        return Ok(());
    };
    let introduction = Introduction { driver: driver.name, endpoint: socket, registry };
    Ok(Registrar::bind(introduction)?.run(stop).await?)
}

fn call_options() -> Options {
    Options { timeout: Some(CALL_TIMEOUT), ..Options::default() }
}
