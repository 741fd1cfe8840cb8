//! CSI drivers as programs inside the node of a cluster, each with a class of its own name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::node::{NAME, Node};
use crate::tools::{self, Tool};
use crate::{Cluster, longshore};

/// How long a kubelet may take to know a driver: machines can be busy.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The registration socket of a driver, by our registrar.
fn register(cluster: &mut Cluster, driver: &str, socket: &Path) -> Result<()> {
    let node = node_of(cluster)?;
    let mut command = Command::new(longshore());
    command.arg("node-registrar").arg("--csi-address").arg(socket);
    command.arg("--kubelet-registration-path").arg(socket);
    command.arg("--plugin-registration-path").arg(node.registry());
    node.add(&format!("registrar-{driver}"), &command)?;
    let known = "jsonpath={.spec.drivers[*].name}";
    let end = Instant::now() + TIMEOUT;
    loop {
        let output = cluster.kubectl(&["get", "csinode", NAME, "--output", known])?;
        if String::from_utf8_lossy(&output.stdout).split(' ').any(|name| name == driver) {
            return Ok(());
        }
        let seconds = TIMEOUT.as_secs();
        ensure!(Instant::now() < end, "the kubelet does not know {driver} after {seconds} s");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn node_of(cluster: &mut Cluster) -> Result<&mut Node> {
    cluster.node_mut().context("the cluster has no node")
}

/// A CSIDriver, and a class that waits for the first pod. The class names no filesystem, and without the policy the
/// kubelet would give such a volume no group.
fn announce(cluster: &Cluster, driver: &str, attach: bool) -> Result<()> {
    let objects = format!(
        "apiVersion: storage.k8s.io/v1\n\
         kind: CSIDriver\n\
         metadata: {{name: {driver}}}\n\
         spec: {{attachRequired: {attach}, podInfoOnMount: true, fsGroupPolicy: File}}\n\
         ---\n\
         apiVersion: storage.k8s.io/v1\n\
         kind: StorageClass\n\
         metadata: {{name: {driver}}}\n\
         provisioner: {driver}\n\
         allowVolumeExpansion: true\n\
         volumeBindingMode: WaitForFirstConsumer\n"
    );
    let apply = ["apply", "--filename", "-"];
    let output = cluster.kubectl_as(cluster.kubeconfig(), &apply, &objects)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cannot announce {driver}: {said}");
    Ok(())
}

/// The reference driver with the official provisioner.
///
/// # Errors
/// A program does not start, or the kubelet does not take the driver.
pub fn hostpath(cluster: &mut Cluster) -> Result<String> {
    hostpath_named(cluster, "hostpath.csi.k8s.io", false)
}

/// The reference driver with the official provisioner and our attacher.
///
/// # Errors
/// A program does not start, or the kubelet does not take the driver.
pub fn hostpath_attached(cluster: &mut Cluster) -> Result<String> {
    let driver = hostpath_named(cluster, "attached.csi.k8s.io", true)?;
    let socket = node_of(cluster)?.plugin_dir(&driver)?.join("csi.sock");
    let mut command = Command::new(longshore());
    command.args(["attacher", "--v=5"]).arg("--csi-address").arg(&socket);
    command.arg("--kubeconfig").arg(cluster.kubeconfig());
    cluster.add("longshore-attacher", command)?;
    Ok(driver)
}

fn hostpath_named(cluster: &mut Cluster, driver: &str, attach: bool) -> Result<String> {
    let socket = hostpath_alone(cluster, driver, attach)?;
    let mut command = Command::new(tools::path(Tool::CsiProvisioner)?);
    command.arg("--csi-address").arg(&socket).arg("--kubeconfig").arg(cluster.kubeconfig());
    command.args(["--feature-gates=Topology=true", "--v=5"]);
    cluster.add(&format!("csi-provisioner-{driver}"), command)?;
    Ok(driver.to_owned())
}

/// The reference driver without sidecars but the registrar. Returns its socket.
///
/// # Errors
/// A program does not start, or the kubelet does not take the driver.
pub fn hostpath_alone(cluster: &mut Cluster, driver: &str, attach: bool) -> Result<PathBuf> {
    let node = node_of(cluster)?;
    let socket = node.plugin_dir(driver)?.join("csi.sock");
    let data = node.dir().join(format!("data-{driver}"));
    fs::create_dir(&data)?;
    let mut command = Command::new(tools::path(Tool::Hostpath)?);
    command.args(["--drivername", driver, "--nodeid", NAME, "--logtostderr", "--v=5"]);
    command.arg(format!("--endpoint=unix://{}", socket.display()));
    command.arg(format!("--enable-attach={attach}"));
    command.arg("--statedir").arg(&data);
    node.add_until(&format!("driver-{driver}"), &command, || socket.exists())?;
    register(cluster, driver, &socket)?;
    announce(cluster, driver, attach)?;
    Ok(socket)
}

/// Our driver with our provisioner.
///
/// # Errors
/// A program does not start, or the kubelet does not take the driver.
pub fn ours(cluster: &mut Cluster) -> Result<String> {
    let driver = "local.csi.longshore.dev";
    let node = node_of(cluster)?;
    let socket = node.plugin_dir(driver)?.join("csi.sock");
    let pool = node.dir().join("pool");
    fs::create_dir(&pool)?;
    let mut command = Command::new(longshore());
    command.args(["driver", "--node-id", NAME, "--v=5"]).arg("--pool").arg(&pool);
    command.arg(format!("--endpoint=unix://{}", socket.display()));
    node.add_until("longshore-driver", &command, || socket.exists())?;
    register(cluster, driver, &socket)?;
    announce(cluster, driver, false)?;
    let mut command = Command::new(longshore());
    command.args(["provisioner", "--strict-topology", "--v=5"]);
    command.arg("--csi-address").arg(&socket).arg("--kubeconfig").arg(cluster.kubeconfig());
    cluster.add("longshore-provisioner", command)?;
    Ok(driver.to_owned())
}
