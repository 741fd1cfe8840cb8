//! A real node: pods with claims on the reference driver and on ours.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod support;

use std::{fs, path::Path, process::Command};

use longshore_real_kube::{
    Cluster, Controllers, Options, longshore,
    node::{self, NAME},
    tools::{self, Tool},
};
use support::{Traces, eventually, ok, pod, step};

const TOOLS: [Tool; 6] = [
    Tool::Etcd,
    Tool::KubeApiserver,
    Tool::KubeControllerManager,
    Tool::KubeScheduler,
    Tool::Kubelet,
    Tool::Kubectl,
];

fn options() -> Options {
    Options {
        rbac: true,
        controllers: Controllers::Volumes,
        scheduler: true,
        node: true,
        etcd_without_fsync: true,
        ..Options::default()
    }
}

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

/// A CSIDriver that needs no attaching, and a class that waits for the first pod.
fn announce(cluster: &Cluster, driver: &str) {
    let objects = format!(
        "apiVersion: storage.k8s.io/v1\n\
         kind: CSIDriver\n\
         metadata: {{name: {driver}}}\n\
         spec: {{attachRequired: false, podInfoOnMount: true}}\n\
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
fn hostpath(cluster: &mut Cluster) -> String {
    let driver = "hostpath.csi.k8s.io";
    let node = cluster.node_mut().unwrap();
    let socket = node.plugin_dir(driver).unwrap().join("csi.sock");
    let data = node.dir().join("hostpath-data");
    fs::create_dir(&data).unwrap();
    let mut command = Command::new(tools::path(Tool::Hostpath).unwrap());
    command.args(["--drivername", driver, "--nodeid", NAME, "--logtostderr", "--v=5"]);
    command.arg(format!("--endpoint=unix://{}", socket.display()));
    command.arg("--statedir").arg(&data);
    node.add_until("hostpath", &command, || socket.exists()).unwrap();
    register(cluster, driver, &socket);
    announce(cluster, driver);
    let mut command = Command::new(tools::path(Tool::CsiProvisioner).unwrap());
    command.arg("--csi-address").arg(&socket).arg("--kubeconfig").arg(cluster.kubeconfig());
    command.args(["--feature-gates=Topology=true", "--v=5"]);
    cluster.add("csi-provisioner", command).unwrap();
    driver.to_owned()
}

/// Our driver with our provisioner.
fn ours(cluster: &mut Cluster) -> String {
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
    announce(cluster, driver);
    let mut command = Command::new(longshore());
    command.args(["provisioner", "--strict-topology", "--v=5"]);
    command.arg("--csi-address").arg(&socket).arg("--kubeconfig").arg(cluster.kubeconfig());
    cluster.add("longshore-provisioner", command).unwrap();
    driver.to_owned()
}

fn claim(cluster: &Cluster, class: &str) {
    let claim = format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: claim}}\n\
         spec: {{storageClassName: {class}, accessModes: [ReadWriteOnce], \
         resources: {{requests: {{storage: 64Mi}}}}}}\n"
    );
    ok(cluster, &["apply", "--filename", "-"], &claim);
}

/// A claim and a pod; the pod writes and goes; another reads; all goes.
fn life_of_a_claim(cluster: &Cluster, class: &str) {
    claim(cluster, class);
    let write = "echo written by the first > /data/file && sync && touch /tmp/done && sleep 1000";
    pod(cluster, "writer", write, Some("claim"));
    let read = ["exec", "writer", "--", "cat", "/data/file"];
    assert_eq!(ok(cluster, &read, ""), "written by the first\n");
    ok(cluster, &["delete", "pod", "writer", "--timeout=60s"], "");
    pod(cluster, "reader", "touch /tmp/done && sleep 1000", Some("claim"));
    let read = ["exec", "reader", "--", "cat", "/data/file"];
    assert_eq!(ok(cluster, &read, ""), "written by the first\n");
    ok(cluster, &["delete", "pod/reader", "pvc/claim", "--timeout=60s"], "");
    eventually(&format!("the volume of class {class} is deleted"), || {
        ok(cluster, &["get", "pv", "--output", "name"], "").is_empty()
    });
}

#[test]
fn claims_reach_pods() {
    if !node::possible() || !tools::need(&TOOLS) {
        return;
    }
    if !tools::need(&[Tool::Hostpath, Tool::CsiProvisioner]) {
        return;
    }
    let mut cluster = step("the cluster", || Cluster::start(&options())).unwrap();
    let class = step("the reference driver", || hostpath(&mut cluster));
    step("a claim on the reference driver", || life_of_a_claim(&cluster, &class));
    let class = step("our driver", || ours(&mut cluster));
    step("a claim on our driver", || life_of_a_claim(&cluster, &class));

    // Ended in the middle of things: a pod runs, with a volume on a loop device.
    claim(&cluster, &class);
    pod(&cluster, "left-running", "touch /tmp/done && sleep 1000", Some("claim"));
    let traces = Traces::of(cluster.dir()).unwrap();
    traces.assert_there(&["process", "pod process", "cgroup", "link", "pod link", "loop"]);
    step("the end", || cluster.stop()).unwrap();
    traces.assert_gone();
}

#[test]
fn two_nodes_at_once_do_not_meet() {
    if !node::possible() || !tools::need(&TOOLS) {
        return;
    }
    let run = |name: &'static str| {
        let cluster = Cluster::start(&options()).unwrap();
        pod(&cluster, name, "touch /tmp/done && sleep 1000", None);
        (cluster, name)
    };
    let (one, two) = std::thread::scope(|scope| {
        let (one, two) = (scope.spawn(|| run("one")), scope.spawn(|| run("two")));
        (one.join().unwrap(), two.join().unwrap())
    });
    let traces = [Traces::of(one.0.dir()).unwrap(), Traces::of(two.0.dir()).unwrap()];
    for ((cluster, name), traces) in [&one, &two].into_iter().zip(&traces) {
        traces.assert_there(&["process", "pod process", "cgroup", "link", "pod link"]);
        let pods = ok(cluster, &["get", "pods", "--output", "name"], "");
        assert_eq!(pods, format!("pod/{name}\n"));
    }
    one.0.stop().unwrap();
    traces[0].assert_gone();
    // The end of one is nothing to the other.
    traces[1].assert_there(&["process", "pod process", "cgroup", "link", "pod link"]);
    assert_eq!(ok(&two.0, &["exec", "two", "--", "echo", "here"], ""), "here\n");
    two.0.stop().unwrap();
    traces[1].assert_gone();
}
