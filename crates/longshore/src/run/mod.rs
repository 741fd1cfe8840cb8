//! From a checked config to a running program.

mod alone;
mod demo;
mod descriptors;
mod faults;
mod liveness;
mod loops;
mod memory;
mod plain;
mod registrar;
mod root;
mod sidecar;
mod sidecars;
mod up;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::cli;

pub(crate) use descriptors::raise as raise_descriptors;

/// Everything on this machine, until a signal.
///
/// # Errors
/// When it cannot start or fails while running.
pub async fn up(config: cli::up::Config) -> anyhow::Result<()> {
    root::require("up")?;
    up::run(config).await
}

/// One node of `up --nodes N`, in a process of its own.
///
/// # Errors
/// When it cannot start or fails while running.
pub async fn up_node(config: cli::up::NodeConfig) -> anyhow::Result<()> {
    up::run_node(config).await
}

/// One volume's whole life, shown.
///
/// # Errors
/// When a step fails.
pub async fn demo(_config: cli::up::DemoConfig) -> anyhow::Result<()> {
    root::require("demo")?;
    demo::run().await
}

/// The API alone.
///
/// # Errors
/// When it cannot start or fails while running.
pub async fn apiserver(config: cli::up::ApiServerConfig) -> anyhow::Result<()> {
    alone::apiserver(config).await
}

/// The CSI provisioner.
///
/// # Errors
/// When it cannot start, or loses its lease or its driver.
pub async fn provisioner(config: cli::provisioner::Config) -> anyhow::Result<()> {
    sidecars::provisioner(config).await
}

/// The CSI attacher.
///
/// # Errors
/// When it cannot start, or loses its lease or its driver.
pub async fn attacher(config: cli::attacher::Config) -> anyhow::Result<()> {
    sidecars::attacher(config).await
}

/// The volume controllers and the scheduler.
///
/// # Errors
/// When they cannot start, or lose their lease.
pub async fn controllers(config: cli::controllers::Config) -> anyhow::Result<()> {
    loops::run(config).await
}

/// The node agent.
///
/// # Errors
/// When it cannot start or fails while running.
pub async fn node(config: cli::node::Config) -> anyhow::Result<()> {
    alone::node(config).await
}

/// The registrar of a CSI driver.
///
/// # Errors
/// When it cannot start, when the kubelet refuses the driver, or when it fails while running.
pub async fn node_registrar(config: cli::node_registrar::Registration) -> anyhow::Result<()> {
    registrar::run(config).await
}

/// The liveness page of a CSI driver.
///
/// # Errors
/// When the driver does not say who it is, or a page fails.
pub async fn liveness_probe(config: cli::liveness_probe::Config) -> anyhow::Result<()> {
    liveness::run(config).await
}

/// A directory of this node for each claim.
///
/// # Errors
/// When it cannot start, or loses its lease.
pub async fn hostpath_provisioner(config: cli::plain::Hostpath) -> anyhow::Result<()> {
    plain::hostpath(config).await
}

/// A directory of a mounted export for each claim.
///
/// # Errors
/// When it cannot start, or loses its lease.
pub async fn nfs_provisioner(config: cli::plain::Nfs) -> anyhow::Result<()> {
    plain::nfs(config).await
}

/// A CSI driver.
///
/// # Errors
/// When it cannot start or fails while running.
pub async fn driver(config: cli::driver::Config) -> anyhow::Result<()> {
    alone::driver(config).await
}

/// The keeper of one pod's processes. Runs before any runtime or thread exists, because it makes namespaces and forks.
///
/// # Errors
/// When the pod cannot be started.
pub fn pod_shim(args: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let text = |arg: OsString| {
        arg.into_string().map_err(|arg| anyhow::anyhow!("{arg:?} is not readable as text"))
    };
    let args = args.into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
    Ok(longshore_node::shim::main(&args))
}
