//! From a checked config to a running program.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::cli::{attacher, controllers, driver, node, provisioner, up};

fn not_wired(program: &str) -> anyhow::Error {
    anyhow::anyhow!("`{program}` is not wired in this build")
}

/// Everything on this machine, until a signal.
///
/// # Errors
/// When it cannot start or fails while running.
pub async fn up(_config: up::Config) -> anyhow::Result<()> {
    Err(not_wired("up"))
}

/// One volume's whole life, shown.
///
/// # Errors
/// When a step fails.
pub async fn demo(_config: up::DemoConfig) -> anyhow::Result<()> {
    Err(not_wired("demo"))
}

/// The API alone.
///
/// # Errors
/// When it cannot start or fails while running.
pub async fn apiserver(_config: up::ApiServerConfig) -> anyhow::Result<()> {
    Err(not_wired("apiserver"))
}

/// The CSI provisioner.
///
/// # Errors
/// When it cannot start, or loses its lease or its driver.
pub async fn provisioner(_config: provisioner::Config) -> anyhow::Result<()> {
    Err(not_wired("provisioner"))
}

/// The CSI attacher.
///
/// # Errors
/// When it cannot start, or loses its lease or its driver.
pub async fn attacher(_config: attacher::Config) -> anyhow::Result<()> {
    Err(not_wired("attacher"))
}

/// The volume controllers and the scheduler.
///
/// # Errors
/// When they cannot start, or lose their lease.
pub async fn controllers(_config: controllers::Config) -> anyhow::Result<()> {
    Err(not_wired("controllers"))
}

/// The node agent.
///
/// # Errors
/// When it cannot start or fails while running.
pub async fn node(_config: node::Config) -> anyhow::Result<()> {
    Err(not_wired("node"))
}

/// A CSI driver.
///
/// # Errors
/// When it cannot start or fails while running.
pub async fn driver(_config: driver::Config) -> anyhow::Result<()> {
    Err(not_wired("driver"))
}

/// The keeper of one pod's processes. Runs before any runtime or thread exists, because it makes namespaces and forks.
///
/// # Errors
/// When the pod cannot be started.
pub fn pod_shim(_args: Vec<OsString>) -> anyhow::Result<ExitCode> {
    Err(not_wired("pod-shim"))
}
