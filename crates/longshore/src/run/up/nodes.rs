//! All nodes of an instance: one in this process, or several as child processes.
//!
//! Children end with the main process, however it ends; their pods live on under their shims and
//! are adopted when the children start again.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, bail};
use longshore_cluster::Api;
use longshore_driver::{DriverConfig, DriverKind, Mode, PoolConfig};
use tokio::{
    process::{Child, Command},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    Served as Server, bootstrap,
    control::Control,
    datadir,
    drivers::{self, Served},
    host::Host,
    logs::Logs,
};
use crate::cli::{
    pool::Pool,
    up::{Config, NodeConfig},
};

/// How much longer than its pods' grace a child may take to stop.
const STOP_SLACK: Duration = Duration::from_secs(20);

/// The running nodes.
pub enum Nodes {
    /// In this process.
    One(Box<Host>),
    /// Each in a process of its own, with the shared driver's controller side here.
    Many(Many),
}

/// Several nodes.
pub struct Many {
    children: Vec<(String, Child)>,
    stop_driver: CancellationToken,
    tasks: JoinSet<Result<()>>,
    patience: Duration,
}

/// Starts the nodes, and the loops that talk to their drivers.
pub async fn start(
    config: &Config,
    server: &Server,
    api: &Api,
    control: &mut Control,
) -> Result<Nodes> {
    let foreign = ask_foreign(config, api, control).await?;
    let names = config.node_names();
    if let [name] = names.as_slice() {
        let mut node = node_config(config, server, name, true);
        node.csi_endpoints = foreign;
        let host = Host::start(&node, api.clone()).await?;
        server.server.set_log_source(Logs::new(api, [(name.clone(), node.root.clone())]));
        for driver in host.drivers.iter().filter(|driver| driver.is_ours()) {
            control.provision(&driver.name, driver.client().await?);
            if !driver.is_local() {
                control.attach(&driver.name, driver.client().await?);
            }
        }
        return Ok(Nodes::One(Box::new(host)));
    }
    start_many(config, server, api, &names, foreign, control).await
}

async fn start_many(
    config: &Config,
    server: &Server,
    api: &Api,
    names: &[String],
    foreign: Vec<PathBuf>,
    control: &mut Control,
) -> Result<Nodes> {
    let mut many = Many {
        children: Vec::new(),
        stop_driver: CancellationToken::new(),
        tasks: JoinSet::new(),
        patience: config.stop_timeout + STOP_SLACK,
    };
    let mut shared = DriverConfig::new(DriverKind::Shared, "controller");
    shared.mode = Mode::Controller;
    shared.pools = vec![PoolConfig::new("default", &config.shared_pool)];
    let socket = server.data.path().join("shared-controller.sock");
    let served = drivers::serve_one(shared, socket, &mut many.tasks, &many.stop_driver).await?;
    control.provision(&served.name, served.client().await?);
    control.attach(&served.name, served.client().await?);
    let mut roots = Vec::new();
    for name in names {
        let mut node = node_config(config, server, name, false);
        if Some(name) == names.first() {
            node.first = true;
            node.csi_endpoints.clone_from(&foreign);
        }
        roots.push((name.clone(), node.root.clone()));
        many.children.push((name.clone(), spawn(&node, server).await?));
    }
    server.server.set_log_source(Logs::new(api, roots));
    Ok(Nodes::Many(many))
}

/// Learns who the foreign drivers are, makes what they need, and starts their loops.
async fn ask_foreign(config: &Config, api: &Api, control: &mut Control) -> Result<Vec<PathBuf>> {
    for socket in &config.csi_endpoints {
        let (served, client) = Served::foreign(socket).await?;
        let attach = can_attach(&client).await?;
        bootstrap::ensure_foreign(api, &served.name, attach).await?;
        control.provision(&served.name, client.clone());
        if attach {
            control.attach(&served.name, client);
        }
    }
    Ok(config.csi_endpoints.clone())
}

async fn can_attach(client: &longshore_csi::Client) -> Result<bool> {
    use longshore_csi::capabilities::{ControllerCapability, PluginService};
    if !client.plugin_capabilities().await?.has(PluginService::ControllerService) {
        return Ok(false);
    }
    Ok(client.controller_capabilities().await?.has(ControllerCapability::PublishUnpublishVolume))
}

fn node_config(config: &Config, server: &Server, name: &str, alone: bool) -> NodeConfig {
    let pools = if config.pools.is_empty() {
        vec![Pool { name: "default".to_owned(), dir: server.data.pool(name) }]
    } else if alone {
        config.pools.clone()
    } else {
        // A pool belongs to one node, so each takes a part of its own.
        let own = |pool: &Pool| Pool { name: pool.name.clone(), dir: pool.dir.join(name) };
        config.pools.iter().map(own).collect()
    };
    NodeConfig {
        node: name.to_owned(),
        data_dir: server.data.path().to_owned(),
        root: server.data.node(name),
        kubeconfig: server.data.kubeconfig(),
        pools,
        shared_pool: config.shared_pool.clone(),
        csi_endpoints: Vec::new(),
        stop_timeout: config.stop_timeout,
        run_any_image_on_host: config.run_any_image_on_host,
        alone,
        first: alone,
    }
}

/// Starts a node as a child and writes its process id down.
async fn spawn(node: &NodeConfig, server: &Server) -> Result<Child> {
    datadir::make_private(&node.root)
        .with_context(|| format!("cannot make {}", node.root.display()))?;
    let file = node.root.join("host.json");
    datadir::write_private(&file, &serde_json::to_string_pretty(node)?)
        .with_context(|| format!("cannot write {}", file.display()))?;
    let exe = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(exe);
    command.arg("up-node").arg(&file).stdin(Stdio::null()).stdout(Stdio::null());
    end_with_parent(&mut command);
    let child = command.spawn().with_context(|| format!("cannot start node {}", node.node))?;
    let pid = child.id().context("the node ended at once")?;
    let pid_file = server.data.node(&node.node).join("pid");
    datadir::write_private(&pid_file, &format!("{pid}\n"))
        .with_context(|| format!("cannot write {}", pid_file.display()))?;
    Ok(child)
}

/// The child gets SIGKILL when the thread that started it ends, so a killed instance leaves no
/// agent behind that a later one would have to compete with.
#[expect(unsafe_code, reason = "a pre-exec hook is the only way to set the parent-death signal")]
fn end_with_parent(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: the closure only makes system calls, which is allowed between fork and exec.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // The parent may have ended before the signal was set.
            let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
            if now != i32::try_from(parent).ok() {
                return Err(std::io::Error::other("the main process has ended"));
            }
            Ok(())
        });
    }
}

impl Nodes {
    /// Waits for the signal; an error when a node stops without it.
    pub async fn watch(&mut self, signal: &CancellationToken) -> Result<()> {
        match self {
            Self::One(host) => tokio::select! {
                () = signal.cancelled() => Ok(()),
                error = host.failed() => Err(error),
            },
            Self::Many(many) => tokio::select! {
                () = signal.cancelled() => Ok(()),
                error = many.failed() => Err(error),
            },
        }
    }

    /// Stops pods and unmounts everywhere.
    pub async fn stop(self) -> Result<()> {
        match self {
            Self::One(host) => host.stop().await,
            Self::Many(many) => many.stop().await,
        }
    }
}

impl Many {
    async fn failed(&mut self) -> anyhow::Error {
        let waits = self.children.iter_mut().map(|(name, child)| {
            Box::pin(async move {
                let ended = child.wait().await;
                anyhow::anyhow!("node {name} ended: {ended:?}")
            })
        });
        futures::future::select_all(waits).await.0
    }

    async fn stop(mut self) -> Result<()> {
        for (_, child) in &self.children {
            if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
                let pid =
                    rustix::process::Pid::from_raw(pid).context("a child without a number")?;
                rustix::process::kill_process(pid, rustix::process::Signal::TERM)
                    .context("cannot ask a node to stop")?;
            }
        }
        let mut trouble = Vec::new();
        for (name, child) in &mut self.children {
            match tokio::time::timeout(self.patience, child.wait()).await {
                Ok(Ok(status)) if status.success() => {}
                Ok(ended) => trouble.push(format!("node {name} ended with {ended:?}")),
                Err(_) => trouble.push(format!("node {name} did not stop in time")),
            }
        }
        self.stop_driver.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.context("a driver's task ended abnormally")??;
        }
        if !trouble.is_empty() {
            bail!("{}", trouble.join("; "));
        }
        Ok(())
    }
}
