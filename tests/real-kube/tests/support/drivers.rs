//! CSI drivers as programs inside the node.

use std::{fs, path::Path, process::Command};

use longshore_real_kube::{
    Cluster, longshore,
    node::NAME,
    tools::{self, Tool},
};

use super::{eventually, ok};

/// The registration socket of a driver, by our registrar.
fn register(cluster: &mut Cluster, driver: &str, socket: &Path) {
    let node = cluster.node_mut().unwrap();
    let mut command = Command::new(longshore());
    command.arg("node-registrar").arg("--csi-address").arg(socket);
    command.arg("--kubelet-registration-path").arg(socket);
    command.arg("--plugin-registration-path").arg(node.registry());
    node.add(&format!("registrar-{driver}"), &command).unwrap();
    let known = "jsonpath={.spec.drivers[*].name}";
    eventually(&format!("the kubelet knows {driver}"), || {
        let output = cluster.kubectl(&["get", "csinode", NAME, "--output", known]).unwrap();
        String::from_utf8_lossy(&output.stdout).split(' ').any(|name| name == driver)
    });
}

/// A CSIDriver, and a class that waits for the first pod.
fn announce(cluster: &Cluster, driver: &str, attach: bool) {
    let objects = format!(
        "apiVersion: storage.k8s.io/v1\n\
         kind: CSIDriver\n\
         metadata: {{name: {driver}}}\n\
         spec: {{attachRequired: {attach}, podInfoOnMount: true}}\n\
         ---\n\
         apiVersion: storage.k8s.io/v1\n\
         kind: StorageClass\n\
         metadata: {{name: {driver}}}\n\
         provisioner: {driver}\n\
         volumeBindingMode: WaitForFirstConsumer\n"
    );
    ok(cluster, &["apply", "--filename", "-"], &objects);
}

/// The reference driver with the official provisioner.
pub fn hostpath(cluster: &mut Cluster) -> String {
    hostpath_named(cluster, "hostpath.csi.k8s.io", false)
}

/// The reference driver with the official provisioner and our attacher.
pub fn hostpath_attached(cluster: &mut Cluster) -> String {
    let driver = hostpath_named(cluster, "attached.csi.k8s.io", true);
    let socket = cluster.node().unwrap().plugin_dir(&driver).unwrap().join("csi.sock");
    let mut command = Command::new(longshore());
    command.args(["attacher", "--v=5"]).arg("--csi-address").arg(&socket);
    command.arg("--kubeconfig").arg(cluster.kubeconfig());
    cluster.add("longshore-attacher", command).unwrap();
    driver
}

fn hostpath_named(cluster: &mut Cluster, driver: &str, attach: bool) -> String {
    let node = cluster.node_mut().unwrap();
    let socket = node.plugin_dir(driver).unwrap().join("csi.sock");
    let data = node.dir().join(format!("data-{driver}"));
    fs::create_dir(&data).unwrap();
    let mut command = Command::new(tools::path(Tool::Hostpath).unwrap());
    command.args(["--drivername", driver, "--nodeid", NAME, "--logtostderr", "--v=5"]);
    command.arg(format!("--endpoint=unix://{}", socket.display()));
    command.arg(format!("--enable-attach={attach}"));
    command.arg("--statedir").arg(&data);
    node.add_until(&format!("driver-{driver}"), &command, || socket.exists()).unwrap();
    register(cluster, driver, &socket);
    announce(cluster, driver, attach);
    let mut command = Command::new(tools::path(Tool::CsiProvisioner).unwrap());
    command.arg("--csi-address").arg(&socket).arg("--kubeconfig").arg(cluster.kubeconfig());
    command.args(["--feature-gates=Topology=true", "--v=5"]);
    cluster.add(&format!("csi-provisioner-{driver}"), command).unwrap();
    driver.to_owned()
}

/// Our driver with our provisioner.
pub fn ours(cluster: &mut Cluster) -> String {
    let driver = "local.csi.longshore.dev";
    let node = cluster.node_mut().unwrap();
    let socket = node.plugin_dir(driver).unwrap().join("csi.sock");
    let pool = node.dir().join("pool");
    fs::create_dir(&pool).unwrap();
    let mut command = Command::new(longshore());
    command.args(["driver", "--node-id", NAME, "--v=5"]).arg("--pool").arg(&pool);
    command.arg(format!("--endpoint=unix://{}", socket.display()));
    node.add_until("longshore-driver", &command, || socket.exists()).unwrap();
    register(cluster, driver, &socket);
    announce(cluster, driver, false);
    let mut command = Command::new(longshore());
    command.args(["provisioner", "--strict-topology", "--v=5"]);
    command.arg("--csi-address").arg(&socket).arg("--kubeconfig").arg(cluster.kubeconfig());
    cluster.add("longshore-provisioner", command).unwrap();
    driver.to_owned()
}
