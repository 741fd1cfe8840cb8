//! csi-resizer and ours, exchanged in the middle of an expansion, both ways, on a real API server.

use std::process::Command;

use longshore_real_kube::tools::{self, Tool};
use longshore_real_kube::{Cluster, Controllers, Lifetime, Options, Program, longshore};
use serde_json::Value;

use super::support::{Hostpath, eventually, kubectl, kubectl_with, log_of, object, text_of};

const OBJECTS: &str = "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: proof}
provisioner: hostpath.csi.k8s.io
allowVolumeExpansion: true
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: default}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: proof
  resources: {requests: {storage: 3Mi}}
";

/// Which resizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Go,
    Ours,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Go => Self::Ours,
            Self::Ours => Self::Go,
        }
    }

    fn start(self, cluster: &Cluster, driver: &Hostpath, number: usize) -> Program {
        let mut command = match self {
            Self::Go => {
                let mut command = Command::new(tools::path(Tool::CsiResizer).unwrap());
                // Recovery is on as in the later releases; its attribute classes are of a version that is gone.
                command.arg("--feature-gates=RecoverVolumeExpansionFailure=true,VolumeAttributesClass=false");
                command
            }
            Self::Ours => {
                let mut command = Command::new(longshore());
                command.arg("resizer");
                command
            }
        };
        command.arg(format!("--csi-address={}", driver.socket.display()));
        command.arg(format!("--kubeconfig={}", cluster.kubeconfig().display()));
        command.args(["--retry-interval-start=100ms", "--timeout=60s"]).env_remove("KUBECONFIG");
        let name = format!("resizer-{number}-{self:?}");
        let log = cluster.dir().join(format!("{name}.log"));
        Program::start(&name, command, &log, Lifetime::Owner).unwrap()
    }
}

fn claim(cluster: &Cluster) -> Value {
    object(cluster, "pvc", "data")
}

fn stage(cluster: &Cluster) -> String {
    text_of(&claim(cluster)["status"]["allocatedResourceStatuses"]["storage"])
}

fn ask(cluster: &Cluster, size: &str) {
    let patch =
        format!("{{\"spec\":{{\"resources\":{{\"requests\":{{\"storage\":\"{size}\"}}}}}}}}");
    kubectl(cluster, &["patch", "pvc", "data", "-p", &patch]);
}

/// The node's part, which no kubelet is here to do.
fn node_is_done(cluster: &Cluster, size: &str) {
    let done = format!(
        "{{\"status\":{{\"capacity\":{{\"storage\":\"{size}\"}},\"conditions\":null,\"allocatedResourceStatuses\":null}}}}"
    );
    let status = ["patch", "pvc", "data", "--subresource=status", "--type=merge", "-p", &done];
    kubectl(cluster, &status);
}

fn signal(driver: &Hostpath, name: &str) {
    let pid = driver.pid().to_string();
    assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
}

/// One expansion begun by the first and ended by the second.
fn swap(cluster: &Cluster, driver: &Hostpath, first: Side, base: usize) {
    let second = first.other();
    let volume = text_of(&claim(cluster)["spec"]["volumeName"]);
    let has = |size: &str| object(cluster, "pv", &volume)["spec"]["capacity"]["storage"] == *size;
    let log = || format!("{}\n{:#}", log_of(cluster, "provisioner"), claim(cluster));
    let wait = |what: &str, done: &dyn Fn() -> bool| {
        eventually(&format!("{what}, {first:?} then {second:?}"), log, done);
    };
    let larger = |step: usize| format!("{}Mi", base + step);

    // case: resizer/74
    // The driver is asked and does not answer: its verdict is for the second.
    let one = first.start(cluster, driver, base);
    ask(cluster, &larger(1));
    wait("the first expansion waits for its node", &|| stage(cluster) == "NodeResizePending");
    node_is_done(cluster, &larger(1));
    signal(driver, "-STOP");
    ask(cluster, &larger(2));
    wait("the expansion is under way", &|| stage(cluster) == "ControllerResizeInProgress");
    one.kill().unwrap();
    let two = second.start(cluster, driver, base + 1);
    signal(driver, "-CONT");
    wait("the other ends it", &|| stage(cluster) == "NodeResizePending" && has(&larger(2)));
    assert_eq!(claim(cluster)["status"]["allocatedResources"]["storage"], *larger(2));

    // The node's part is left; whoever comes leaves it alone.
    two.kill().unwrap();
    let one = first.start(cluster, driver, base + 2);
    ask(cluster, &larger(3));
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(stage(cluster), "NodeResizePending");
    assert!(has(&larger(2)));
    node_is_done(cluster, &larger(2));
    wait("the next size is asked for", &|| {
        stage(cluster) == "NodeResizePending" && has(&larger(3))
    });
    node_is_done(cluster, &larger(3));

    // More than the driver can: the other takes the smaller size that the user asks for then.
    ask(cluster, "2Ti");
    wait("the size is refused", &|| stage(cluster) == "ControllerResizeInfeasible");
    one.kill().unwrap();
    let two = second.start(cluster, driver, base + 3);
    ask(cluster, &larger(4));
    wait("less is granted", &|| stage(cluster) == "NodeResizePending" && has(&larger(4)));
    node_is_done(cluster, &larger(4));
    let settled = || {
        let status = &claim(cluster)["status"];
        let left = status["conditions"].to_string();
        status["capacity"]["storage"] == *larger(4) && !left.contains("Resiz")
    };
    wait("the claim is as it should be", &settled);
    two.stop().unwrap();
}

#[test]
fn resizers_are_exchanged_in_the_middle_of_an_expansion() {
    let needed = [
        Tool::Etcd,
        Tool::KubeApiserver,
        Tool::KubeControllerManager,
        Tool::Kubectl,
        Tool::Hostpath,
        Tool::CsiResizer,
    ];
    if !tools::need(&needed) {
        return;
    }
    let mut cluster = Cluster::start(&Options {
        controllers: Controllers::Volumes,
        etcd_without_fsync: true,
        ..Options::default()
    })
    .unwrap();
    let driver = Hostpath::start(cluster.dir(), &["--enable-topology=false"]);
    let mut command = Command::new(longshore());
    command.arg("provisioner").arg(format!("--csi-address={}", driver.socket.display()));
    command.arg("--kubeconfig").arg(cluster.kubeconfig()).env_remove("KUBECONFIG");
    cluster.add("provisioner", command).unwrap();
    kubectl_with(&cluster, &["apply", "-f", "-"], OBJECTS);
    let bound = ["wait", "--for=jsonpath={.status.phase}=Bound", "pvc/data", "--timeout=120s"];
    kubectl(&cluster, &bound);
    for (first, base) in [(Side::Go, 10), (Side::Ours, 20)] {
        swap(&cluster, &driver, first, base);
    }
    kubectl(&cluster, &["delete", "pvc", "data", "--timeout=120s"]);
    driver.stop();
    cluster.stop().unwrap();
}
