//! Claims that are filled from a snapshot and from another claim, by our provisioner beside the
//! official programs for snapshots, under the rights that the official provisioner documents.

use std::process::Command;

use longshore_real_kube::Cluster;
use longshore_real_kube::tools::{self, Tool};
use serde_json::json;

use super::support::*;
use super::{OBJECTS, OFFICIAL};

const SNAPSHOT: &str = r#"
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: proof}
driver: hostpath.csi.k8s.io
deletionPolicy: Delete
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: cut, namespace: default}
spec:
  volumeSnapshotClassName: proof
  source: {persistentVolumeClaimName: data}
"#;

fn filled(name: &str, source: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: default}}\n\
         spec:\n  accessModes: [ReadWriteOnce]\n  storageClassName: proof\n  dataSource: {source}\n  \
         resources: {{requests: {{storage: 3Mi}}}}\n"
    )
}

/// What snapshots take.
pub const TOOLS: [Tool; 7] = [
    Tool::Etcd,
    Tool::KubeApiserver,
    Tool::KubeControllerManager,
    Tool::Kubectl,
    Tool::Hostpath,
    Tool::CsiSnapshotter,
    Tool::SnapshotController,
];

/// The official driver and the programs that snapshot its volumes; also the flag with its address.
pub fn add_snapshotting(cluster: &mut Cluster) -> (Hostpath, String) {
    make_snapshot_kinds(cluster);
    let driver = Hostpath::start(cluster.dir(), &["--enable-topology=false"]);
    let address = format!("--csi-address={}", driver.socket.display());
    add_official(cluster, Tool::CsiSnapshotter, &[&address]);
    add_official(cluster, Tool::SnapshotController, &[]);
    (driver, address)
}

/// The kinds for snapshots.
fn make_snapshot_kinds(cluster: &Cluster) {
    let kinds = root().join("deploy/crds").display().to_string();
    kubectl(cluster, &["apply", "--server-side", "-f", &kinds]);
    let names = ["volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"];
    for name in names {
        let object = format!("crd/{name}.snapshot.storage.k8s.io");
        wait(cluster, &object, "--for=condition=Established");
    }
}

pub fn add_official(cluster: &mut Cluster, tool: Tool, flags: &[&str]) {
    let mut command = Command::new(tools::path(tool).unwrap());
    command.arg(format!("--kubeconfig={}", cluster.kubeconfig().display())).args(flags);
    cluster.add(tool.program(), command).unwrap();
}

pub fn wait(cluster: &Cluster, object: &str, wish: &str) {
    let waited = cluster.kubectl(&["wait", wish, object, "--timeout=120s"]).unwrap();
    let events = || kubectl(cluster, &["get", "events"]);
    let log = || log_of(cluster, "provisioner");
    assert!(waited.status.success(), "{object} {wish}\n{}\n{}", events(), log());
}

#[test]
fn snapshots_and_claims_are_sources_under_the_official_rights() {
    if !tools::need(&TOOLS) {
        return;
    }
    let mut cluster = guarded_cluster();
    let rules = root().join("tests/real-kube/rbac/official-provisioner.yaml");
    kubectl(&cluster, &["apply", "-f", &rules.display().to_string()]);
    let (driver, address) = add_snapshotting(&mut cluster);
    start_ours(&mut cluster, &OFFICIAL, "provisioner", &["provisioner", &address]);

    kubectl_with(&cluster, &["apply", "-f", "-"], OBJECTS);
    wait(&cluster, "pvc/data", "--for=jsonpath={.status.phase}=Bound");
    kubectl_with(&cluster, &["apply", "-f", "-"], SNAPSHOT);
    wait(&cluster, "volumesnapshot/cut", "--for=jsonpath={.status.readyToUse}=true");
    let snapshot = "{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: cut}";
    let both = filled("restored", snapshot)
        + &filled("cloned", "{kind: PersistentVolumeClaim, name: data}");
    kubectl_with(&cluster, &["apply", "-f", "-"], &both);
    for claim in ["pvc/restored", "pvc/cloned"] {
        wait(&cluster, claim, "--for=jsonpath={.status.phase}=Bound");
    }
    assert_eq!(driver.volumes().len(), 3);
    let ours = json!("provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection");
    let held = || text_of_finalizers(&cluster, "volumesnapshot", "cut");
    eventually("the snapshot may go", held, || !held().contains(ours.as_str().unwrap()));
    let origin = text_of_finalizers(&cluster, "pvc", "data");
    assert!(origin.contains("provisioner.storage.kubernetes.io/cloning-protection"), "{origin}");

    // The source first: it is free as soon as its clone is there.
    kubectl(&cluster, &["delete", "pvc", "data", "--timeout=120s"]);
    kubectl(&cluster, &["delete", "volumesnapshot", "cut", "--timeout=120s"]);
    kubectl(&cluster, &["delete", "pvc", "restored", "cloned", "--timeout=120s"]);
    let left = || kubectl(&cluster, &["get", "pv,pvc,volumesnapshotcontent", "-A", "-o", "name"]);
    eventually("nothing is left", left, || left().trim().is_empty());
    assert_eq!(driver.volumes(), Vec::<String>::new());

    let (all, forbidden) = requests(&cluster, &OFFICIAL);
    assert_eq!(forbidden, Vec::<String>::new(), "requests were forbidden");
    for one in ["update volumesnapshots", "list volumesnapshots", "update persistentvolumeclaims"] {
        assert!(all.iter().any(|seen| seen == one), "no {one} in {all:?}");
    }
    driver.stop();
    cluster.stop().unwrap();
}

fn text_of_finalizers(cluster: &Cluster, kind: &str, name: &str) -> String {
    object(cluster, kind, name)["metadata"]["finalizers"].to_string()
}
