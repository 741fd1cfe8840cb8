//! The fixture itself: a real control plane starts, serves, checks rights and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Output;

use longshore_real_kube::tools::{Tool, need};
use longshore_real_kube::{Cluster, Controllers, Options, Process};

const CLAIM: &str = r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: none
  resources: {requests: {storage: 1Gi}}
"#;
const API: [Tool; 3] = [Tool::Etcd, Tool::KubeApiserver, Tool::Kubectl];

fn text(done: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
}

/// Runs kubectl as the administrator and expects success.
fn kubectl(cluster: &Cluster, args: &[&str], stdin: &str) -> String {
    let done = cluster.kubectl_as(cluster.kubeconfig(), args, stdin).unwrap();
    assert!(done.status.success(), "kubectl {args:?}: {}", text(&done));
    text(&done)
}

fn processes(cluster: &Cluster) -> Vec<Process> {
    cluster.programs().iter().map(|program| program.process().clone()).collect()
}

fn assert_gone(processes: &[Process], dir: &Path) {
    for process in processes {
        assert!(!process.runs(), "{process:?} still runs");
    }
    assert!(!dir.exists(), "{} is still there", dir.display());
}

#[test]
fn a_claim_is_created_and_read_and_nothing_is_left() {
    if !need(&API) {
        return;
    }
    let options = Options { audit: true, etcd_without_fsync: true, ..Options::default() };
    let cluster = Cluster::start(&options).unwrap();
    kubectl(&cluster, &["create", "-f", "-"], CLAIM);
    let seen = kubectl(&cluster, &["get", "pvc", "data", "-o", "jsonpath={.status.phase}"], "");
    assert_eq!(seen, "Pending");
    let version = kubectl(&cluster, &["get", "--raw", "/version"], "");
    assert!(version.contains(longshore_real_kube::tools::KUBERNETES), "{version}");
    let log = fs::read_to_string(cluster.audit_log().unwrap()).unwrap();
    assert!(log.contains("persistentvolumeclaims"), "the audit log misses the claim");

    let (processes, dir) = (processes(&cluster), cluster.dir().to_owned());
    assert_eq!(processes.len(), 2);
    assert!(processes.iter().all(Process::runs));
    cluster.stop().unwrap();
    assert_gone(&processes, &dir);
}

#[test]
fn two_clusters_do_not_see_each_other() {
    if !need(&API) {
        return;
    }
    let options = Options { etcd_without_fsync: true, ..Options::default() };
    let (one, two) = std::thread::scope(|scope| {
        let other = scope.spawn(|| Cluster::start(&options).unwrap());
        (Cluster::start(&options).unwrap(), other.join().unwrap())
    });
    assert_ne!(one.server(), two.server());
    kubectl(&one, &["create", "-f", "-"], CLAIM);
    let seen = kubectl(&two, &["get", "pvc", "--ignore-not-found", "-o", "name"], "");
    assert_eq!(seen, "");
    let (processes, dir) = (processes(&one), one.dir().to_owned());
    drop(one);
    assert_gone(&processes, &dir);
    kubectl(&two, &["get", "namespace", "default"], "");
    two.stop().unwrap();
}

#[test]
fn requests_without_rbac_rights_are_refused() {
    if !need(&API) {
        return;
    }
    let options = Options { rbac: true, etcd_without_fsync: true, ..Options::default() };
    let cluster = Cluster::start(&options).unwrap();
    let nobody: PathBuf = cluster.kubeconfig_for("nobody", &["guests", "visitors"]).unwrap();
    let create = ["create", "-f", "-"];
    let refused = cluster.kubectl_as(&nobody, &create, CLAIM).unwrap();
    assert!(!refused.status.success());
    assert!(text(&refused).contains("cannot create resource"), "{}", text(&refused));
    // Each of the two groups counts.
    for (group, verbs) in [("guests", "create"), ("visitors", "get")] {
        let resource = "--resource=persistentvolumeclaims";
        let verb = format!("--verb={verbs}");
        kubectl(&cluster, &["create", "role", group, &verb, resource], "");
        let (role, group) = (format!("--role={group}"), format!("--group={group}"));
        kubectl(&cluster, &["create", "rolebinding", verbs, &role, &group], "");
    }
    let created = cluster.kubectl_as(&nobody, &create, CLAIM).unwrap();
    assert!(created.status.success(), "{}", text(&created));
    let seen = cluster.kubectl_as(&nobody, &["get", "pvc", "data"], "").unwrap();
    assert!(seen.status.success(), "{}", text(&seen));
    cluster.stop().unwrap();
}

#[test]
fn the_real_controllers_bind_a_claim() {
    let more = [Tool::KubeControllerManager, Tool::KubeScheduler];
    if !need(&[&API[..], &more].concat()) {
        return;
    }
    let options = Options {
        rbac: true,
        controllers: Controllers::All,
        scheduler: true,
        etcd_without_fsync: true,
        ..Options::default()
    };
    let cluster = Cluster::start(&options).unwrap();
    let volume = r#"
apiVersion: v1
kind: PersistentVolume
metadata: {name: one}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  storageClassName: none
  hostPath: {path: /nonexistent}
"#;
    kubectl(&cluster, &["create", "-f", "-"], volume);
    kubectl(&cluster, &["create", "-f", "-"], CLAIM);
    let phase = "--for=jsonpath={.status.phase}=Bound";
    kubectl(&cluster, &["wait", "pvc/data", phase, "--timeout=60s"], "");
    let (processes, dir) = (processes(&cluster), cluster.dir().to_owned());
    assert_eq!(processes.len(), 4);
    cluster.stop().unwrap();
    assert_gone(&processes, &dir);
}

/// Ports are only known to be free a moment ago, so a program that finds its port taken is started
/// again on another one, but not for ever.
#[test]
fn a_taken_port_is_tried_again_and_then_said() {
    if !need(&API) {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // No test may wait for a response from here. The thread ends with the test program.
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let options = Options {
        more_apiserver_args: vec![format!("--secure-port={port}")],
        etcd_without_fsync: true,
        ..Options::default()
    };
    let error = format!("{:#}", Cluster::start(&options).err().unwrap());
    assert!(error.contains("after 5 tries on other ports"), "{error}");
    assert!(error.contains("address already in use"), "the log is part of the error: {error}");
}

#[test]
fn a_bad_flag_is_said_at_once() {
    if !need(&API) {
        return;
    }
    let options = Options {
        more_apiserver_args: vec!["--no-such-flag".to_owned()],
        etcd_without_fsync: true,
        ..Options::default()
    };
    let error = format!("{:#}", Cluster::start(&options).err().unwrap());
    assert!(error.contains("kube-apiserver ended before it was ready"), "{error}");
    assert!(error.contains("no-such-flag") && !error.contains("tries"), "{error}");
}
