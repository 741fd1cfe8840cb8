//! The directory provisioners with the manifests that are shipped, on a real API server that checks
//! rights. The export of the NFS one is a plain directory: nothing is mounted here.

use std::fs;
use std::path::Path;

use longshore_real_kube::Cluster;
use longshore_real_kube::tools::{self, Tool};
use serde_json::Value;

use super::support::*;

const HOSTPATH: Account =
    Account { namespace: "longshore-system", name: "longshore-hostpath-provisioner" };
const NFS: Account = Account { namespace: "longshore-system", name: "longshore-nfs-provisioner" };

fn can_run() -> bool {
    tools::need(&[Tool::Etcd, Tool::KubeApiserver, Tool::KubeControllerManager, Tool::Kubectl])
}

/// Applies the namespace and the rights of one provisioner, its class and its claim.
fn apply_shipped(cluster: &Cluster, directory: &str) {
    let deploy = root().join("deploy");
    let files = ["rbac/00-namespace.yaml".to_owned()]
        .into_iter()
        .chain(["rbac", "storageclass", "claim"].map(|name| format!("{directory}/{name}.yaml")));
    for file in files {
        let file = deploy.join(file).display().to_string();
        let last = std::cell::RefCell::new(String::new());
        // The API server makes the namespaces of Kubernetes a moment after it is ready.
        eventually(
            "it is applied",
            || last.borrow().clone(),
            || {
                let done = cluster.kubectl(&["apply", "-f", &file]).unwrap();
                *last.borrow_mut() = String::from_utf8_lossy(&done.stderr).into_owned();
                done.status.success()
            },
        );
    }
}

/// Waits for the shipped claim; gives its volume.
fn bound(cluster: &Cluster, claim: &str, program: &str) -> Value {
    let what = format!("pvc/{claim}");
    let bound = ["wait", "--for=jsonpath={.status.phase}=Bound", &what, "--timeout=120s"];
    let waited = cluster.kubectl(&bound).unwrap();
    assert!(waited.status.success(), "not bound:\n{}", log_of(cluster, program));
    let volume = text_of(&object(cluster, "pvc", claim)["spec"]["volumeName"]);
    object(cluster, "pv", &volume)
}

/// Deletes the shipped claim and waits until its volume is gone; no request may have been forbidden.
fn goes(cluster: Cluster, account: &Account, claim: &str, volume: &Value, program: &str) {
    kubectl(&cluster, &["delete", "pvc", claim, "--timeout=120s"]);
    let name = text_of(&volume["metadata"]["name"]);
    let gone = ["wait", "--for=delete", &format!("pv/{name}"), "--timeout=120s"];
    let waited = cluster.kubectl(&gone).unwrap();
    assert!(waited.status.success(), "not deleted:\n{}", log_of(&cluster, program));
    let (all, forbidden) = requests(&cluster, account);
    for one in ["create persistentvolumes", "create events", "create leases"] {
        assert!(all.iter().any(|seen| seen == one), "no {one} of {} in {all:?}", account.user());
    }
    assert_eq!(forbidden, Vec::<String>::new(), "requests were forbidden");
    cluster.stop().unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name != ".longshore-trash").collect()
}

#[test]
fn directories_of_a_node_with_the_shipped_manifests() {
    if !can_run() {
        return;
    }
    let mut cluster = guarded_cluster();
    apply_shipped(&cluster, "hostpath-provisioner");
    assert!(
        !may(&cluster, &HOSTPATH, &["create", "pods"]),
        "the account is not bound by its rules"
    );
    let volumes = cluster.dir().join("volumes");
    let dir = volumes.display().to_string();
    let args = ["hostpath-provisioner", "--root", &dir, "--node-name", "node-a"];
    let lease = ["--leader-election-namespace", HOSTPATH.namespace];
    start_ours(&mut cluster, &HOSTPATH, "hostpath", &[&args[..], &lease[..]].concat());
    let volume = bound(&cluster, "custom-claim", "hostpath");
    let name = text_of(&volume["metadata"]["name"]);
    assert_eq!(volume["spec"]["hostPath"]["path"], volumes.join(&name).display().to_string());
    assert_eq!(names(&volumes), [name]);
    let key = ["get", "lease", "-n", HOSTPATH.namespace, "longshore.dev-hostpath", "-o", "name"];
    assert!(!kubectl(&cluster, &key).is_empty(), "the lease has upstream's form of name");
    goes(cluster, &HOSTPATH, "custom-claim", &volume, "hostpath");
}

#[test]
fn directories_of_an_export_with_the_shipped_manifests() {
    if !can_run() {
        return;
    }
    let mut cluster = guarded_cluster();
    apply_shipped(&cluster, "nfs-provisioner");
    assert!(!may(&cluster, &NFS, &["update", "persistentvolumeclaims"]));
    let export = cluster.dir().join("export");
    fs::create_dir(&export).unwrap();
    let mount = export.display().to_string();
    let args = ["nfs-provisioner", "--server", "10.0.0.1", "--path", "/export", "--mount", &mount];
    let lease = ["--leader-election-namespace", NFS.namespace];
    start_ours(&mut cluster, &NFS, "nfs", &[&args[..], &lease[..]].concat());
    let volume = bound(&cluster, "nfs-claim", "nfs");
    assert_eq!(volume["spec"]["nfs"]["path"], "/export/default/nfs-claim");
    assert_eq!(volume["spec"]["mountOptions"][0], "nfsvers=4.1");
    assert!(export.join("default/nfs-claim").is_dir());
    every_manifest_is_accepted(&cluster);
    goes(cluster, &NFS, "nfs-claim", &volume, "nfs");
}

/// The API server takes every file that is shipped, as it is.
fn every_manifest_is_accepted(cluster: &Cluster) {
    let deploy = root().join("deploy");
    let mut files = Vec::new();
    for directory in fs::read_dir(&deploy).unwrap().flatten() {
        for file in fs::read_dir(directory.path()).into_iter().flatten().flatten() {
            files.push(file.path());
        }
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    assert!(files.len() >= 20, "{files:?}");
    for file in files {
        let file = file.display().to_string();
        kubectl(cluster, &["apply", "--dry-run=server", "-f", &file]);
    }
}
