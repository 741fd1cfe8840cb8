//! `longshore hostpath-provisioner` and `longshore nfs-provisioner`.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use longshore_cluster::{Api, Metrics, ObjectKey, shutdown};
use longshore_core::model::kinds::Node;
use longshore_provisioner::{Config, Election, Host, Provisioner};

use super::sidecar::client_config;
use crate::{
    cli::plain::{Common, Hostpath, Nfs},
    plain::{
        base::Base,
        hostpath::{self, Place},
        nfs::{self, Export},
    },
};

/// `longshore hostpath-provisioner`.
pub async fn hostpath(config: Hostpath) -> Result<()> {
    let Hostpath { common, root, node_name, node_deployment } = config;
    open_to_pods();
    let base = Arc::new(Base::make(&root)?);
    let host = connect(&common, "hostpath-provisioner").await?;
    let place = place(host.api(), node_name.unwrap_or_else(host_name)).await?;
    tracing::info!(node = place.node, root = %root.display(), name = common.name, "ready to work");
    sweep(&base);
    run(host, common, hostpath::Hostpath::new(base, place, node_deployment)).await
}

/// `longshore nfs-provisioner`.
pub async fn nfs(config: Nfs) -> Result<()> {
    let Nfs { common, server, path, mount } = config;
    open_to_pods();
    let base =
        Arc::new(Base::open(&mount).context(
            "the export must be mounted before the provisioner starts; --mount says where",
        )?);
    let host = connect(&common, "nfs-provisioner").await?;
    tracing::info!(server, path = %path.display(), mount = %mount.display(), name = common.name, "ready to work");
    sweep(&base);
    let api = host.api().clone();
    run(host, common, nfs::Nfs::new(base, Export { server, path }, api)).await
}

async fn connect(common: &Common, program: &str) -> Result<Host> {
    let config = client_config(common.kube.clone(), program, &Metrics::new());
    Ok(Host::connect(&config).await?)
}

async fn run(host: Host, common: Common, provisioner: impl Provisioner) -> Result<()> {
    let election = Election { namespace: common.lease_namespace, ..Election::default() };
    let mut host = host.elected(common.leader_election.then_some(election));
    if let Some(address) = &common.http_endpoint {
        host = host.serving_metrics(address, "/metrics");
    }
    let config = Config { threads: common.threads, ..Config::new(common.name) };
    let signal = shutdown::on_signals().context("cannot listen for signals")?;
    Ok(host.with(config, provisioner).run(signal).await?)
}

/// What is made shall be as open as asked for: pods run as anybody.
fn open_to_pods() {
    rustix::process::umask(rustix::fs::Mode::empty());
}

/// Finishes earlier removals, beside the work.
fn sweep(base: &Arc<Base>) {
    let base = base.clone();
    tokio::task::spawn_blocking(move || {
        if let Err(error) = base.sweep() {
            tracing::warn!(%error, "what was removed earlier is still there");
        }
    });
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().to_lowercase()
}

/// The node's labels say by which name volumes are pinned to it.
async fn place(api: &Api, node: String) -> Result<Place> {
    let found = api.get::<Node>(&ObjectKey::cluster(&node)).await;
    let found = found.with_context(|| format!("cannot read node {node}"))?;
    if found.is_none() {
        tracing::warn!(
            node,
            "there is no such node; volumes are pinned to that host name (--node-name)"
        );
    }
    let labels = found.map(|found| found.metadata.labels).unwrap_or_default();
    Ok(Place { node, labels })
}
