//! All nodes of an instance: one in this process, or several as child processes.
//!
//! Children end with the main process, however it ends; their pods live on under their shims and
//! are adopted when the children start again. [`NodeProcesses`] watches them.

use std::path::PathBuf;

use anyhow::Result;
use longshore_cluster::Api;
use longshore_controllers::provision::NodeScope;
use longshore_core::model::keys::embedded;
use longshore_driver::{DriverConfig, DriverKind, Mode, PoolConfig};
use tokio_util::sync::CancellationToken;

use super::{Config, NodeConfig};
use super::{
    RunningApi, absent, control::Control, drivers, host::Host, logs::Logs,
    node_processes::NodeProcesses, outage, streams::NodesStreams,
};
use crate::programs::pool::Pool;

/// The running nodes.
pub(super) enum Nodes {
    /// In this process.
    One(Box<Host>),
    /// Each in a process of its own, with the shared driver's controller side here.
    Many(Box<NodeProcesses>),
}

/// Starts the nodes, and the loops that talk to their drivers.
pub(super) async fn start(
    config: &Config,
    server: &RunningApi,
    api: &Api,
    control: &mut Control,
) -> Result<Nodes> {
    for socket in &config.csi_endpoints {
        control.serve_foreign(socket.clone());
    }
    let names = config.node_names();
    let others = absent::tell(api, &server.data, &names).await?;
    if let [name] = names.as_slice() {
        // It may have been absent before.
        outage::back(api, name).await?;
        let mut node = node_config(config, server, name, true);
        node.csi_endpoints.clone_from(&config.csi_endpoints);
        save(&node);
        let host = Host::start(&node, api.clone()).await?;
        serve_containers(server, api, vec![(name.clone(), node.root.clone())]);
        for driver in &host.drivers {
            control.add_driver(&driver.name, &driver.socket);
            if driver.is_local() && others {
                // Volumes in the pools of absent nodes are not this driver's to delete.
                let scope = NodeScope { node: name.as_str().into(), unplaced: true };
                control.provisioned_elsewhere(&driver.name);
                control.snapshot_node(&driver.name, driver.client(), &scope);
                control.provision_node(&driver.name, driver.client(), scope);
                control.resize_for_nodes(&driver.name);
                control.modify_node(&driver.name, driver.client(), name);
            } else {
                control.snapshot(&driver.name, driver.client());
                control.provision(&driver.name, driver.client());
                control.resize(&driver.name, driver.client());
            }
            if !driver.is_local() {
                control.attach(&driver.name, driver.client());
            }
        }
        return Ok(Nodes::One(Box::new(host)));
    }
    start_many(config, server, api, &names, control).await
}

/// Writes down how the node runs. On a full disk an instance starts without: it is for a reset alone.
fn save(node: &NodeConfig) {
    if let Err(error) = node.save() {
        tracing::warn!(node = node.node, "how the node runs is not written down: {error:#}");
    }
}

async fn start_many(
    config: &Config,
    server: &RunningApi,
    api: &Api,
    names: &[String],
    control: &mut Control,
) -> Result<Nodes> {
    let mut many = NodeProcesses::new(api, config.stop_timeout);
    let mut shared = DriverConfig::new(DriverKind::Shared, "controller");
    shared.mode = Mode::Controller;
    shared.pools = vec![PoolConfig::new("default", &config.shared_pool)];
    let socket = server.data.path().join("shared-controller.sock");
    let served = many.serve(shared, socket).await?;
    control.add_driver(&served.name, &served.socket);
    control.provisioned_elsewhere(embedded::LOCAL_DRIVER);
    control.resize_for_nodes(embedded::LOCAL_DRIVER);
    // Every node has a local driver, and a program beside it serves that node's volumes.
    let local = drivers::socket(&server.data.node("NODE"), embedded::LOCAL_DRIVER);
    control.add_driver(embedded::LOCAL_DRIVER, &local);
    control.provision(&served.name, served.client());
    control.snapshot(&served.name, served.client());
    control.attach(&served.name, served.client());
    control.resize(&served.name, served.client());
    let mut roots = Vec::new();
    for name in names {
        let mut node = node_config(config, server, name, false);
        if Some(name) == names.first() {
            node.first = true;
            node.csi_endpoints.clone_from(&config.csi_endpoints);
        }
        roots.push((name.clone(), node.root.clone()));
        many.start(node).await?;
    }
    serve_containers(server, api, roots);
    Ok(Nodes::Many(Box::new(many)))
}

/// Lets the API reach the containers of the nodes: their logs and their streams.
fn serve_containers(server: &RunningApi, api: &Api, roots: Vec<(String, PathBuf)>) {
    server.server.set_log_source(Logs::new(api, roots.clone()));
    server.server.set_stream_source(NodesStreams::new(api, roots));
}

fn node_config(config: &Config, server: &RunningApi, name: &str, only_node: bool) -> NodeConfig {
    let pools = if config.pools.is_empty() {
        vec![Pool { name: "default".to_owned(), dir: server.data.pool(name) }]
    } else if only_node {
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
        api_address: server.for_pods.clone(),
        pools,
        shared_pool: config.shared_pool.clone(),
        csi_endpoints: Vec::new(),
        stop_timeout: config.stop_timeout,
        run_any_image_on_host: config.run_any_image_on_host,
        limits: config.limits.clone(),
        only_node,
        first: only_node,
    }
}

impl Nodes {
    /// Waits for the signal; an error when the only node stops without it. With several nodes the
    /// others go on.
    pub(super) async fn watch(&mut self, signal: &CancellationToken) -> Result<()> {
        match self {
            Self::One(host) => tokio::select! {
                () = signal.cancelled() => Ok(()),
                error = host.failed() => Err(error),
            },
            Self::Many(many) => many.watch(signal).await,
        }
    }

    /// Stops pods and unmounts everywhere.
    pub(super) async fn stop(self) -> Result<()> {
        match self {
            Self::One(host) => host.stop().await,
            Self::Many(many) => many.stop().await,
        }
    }
}
