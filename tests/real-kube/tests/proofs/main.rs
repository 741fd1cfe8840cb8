//! First proofs against the official programs: our provisioner on a real API server that
//! checks rights, and the official hostpath driver under `longshore up`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod directory_provisioners;
mod official;
mod other_namespace;
mod resizers;
mod rights;
mod served;
mod snapshotters;
mod sources;
mod support;
mod up;

use longshore_real_kube::Cluster;
use longshore_real_kube::tools::{self, Tool};
use serde_json::{Value, json};
use served::{CONTROLLERS, PASSIVE, stayed_passive};
use support::*;

const OURS: Account = Account { namespace: "longshore-system", name: "longshore-provisioner" };
const OFFICIAL: Account = Account { namespace: "official", name: "csi-provisioner" };

const OBJECTS: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: proof}
provisioner: hostpath.csi.k8s.io
reclaimPolicy: Delete
volumeBindingMode: Immediate
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: default}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: proof
  resources: {requests: {storage: 3Mi}}
"#;

fn can_run() -> bool {
    tools::need(&[
        Tool::Etcd,
        Tool::KubeApiserver,
        Tool::KubeControllerManager,
        Tool::Kubectl,
        Tool::Hostpath,
    ])
}

/// A claim's whole life with our provisioner as an account that has the rules in `files`.
/// `check` looks at what else happened, at the end.
fn whole_life(mut cluster: Cluster, account: &Account, flags: &[&str], check: impl Fn(&Cluster)) {
    assert!(may(&cluster, account, &["create", "persistentvolumes"]));
    assert!(!may(&cluster, account, &["create", "pods"]), "the account is not bound by its rules");
    let driver = Hostpath::start(cluster.dir(), &["--enable-topology=false"]);
    let socket = driver.socket.display().to_string();
    let mut args = vec!["provisioner", "--csi-address", &socket];
    args.extend(flags);
    start_ours(&mut cluster, account, "provisioner", &args);
    kubectl_with(&cluster, &["apply", "-f", "-"], OBJECTS);

    let bound = ["wait", "--for=jsonpath={.status.phase}=Bound", "pvc/data", "--timeout=120s"];
    let waited = cluster.kubectl(&bound).unwrap();
    assert!(waited.status.success(), "not bound:\n{}", log_of(&cluster, "provisioner"));
    let claim = object(&cluster, "pvc", "data");
    let name = text_of(&claim["spec"]["volumeName"]);
    check_volume(&cluster, &claim, &object(&cluster, "pv", &name), &driver);

    kubectl(&cluster, &["delete", "pvc", "data", "--timeout=120s"]);
    let gone = ["wait", "--for=delete", &format!("pv/{name}"), "--timeout=120s"];
    let waited = cluster.kubectl(&gone).unwrap();
    assert!(waited.status.success(), "not deleted:\n{}", log_of(&cluster, "provisioner"));
    assert_eq!(driver.volumes(), Vec::<String>::new(), "the volume is gone at the driver");
    assert_eq!(driver.directories(), Vec::<String>::new());

    let (all, forbidden) = requests(&cluster, account);
    let work = [
        "watch persistentvolumeclaims",
        "create persistentvolumes",
        "create events",
        "delete persistentvolumes",
    ];
    for one in work {
        assert!(all.iter().any(|seen| seen == one), "no {one} of {} in {all:?}", account.user());
    }
    assert_eq!(forbidden, Vec::<String>::new(), "requests were forbidden");
    check(&cluster);
    driver.stop();
    cluster.stop().unwrap();
}

fn check_volume(cluster: &Cluster, claim: &Value, volume: &Value, driver: &Hostpath) {
    let uid = text_of(&claim["metadata"]["uid"]);
    assert_eq!(volume["metadata"]["name"], format!("pvc-{uid}"));
    assert_eq!(volume["spec"]["claimRef"]["uid"], uid);
    assert_eq!(volume["spec"]["claimRef"]["name"], "data");
    assert_eq!(volume["spec"]["capacity"]["storage"], "3Mi");
    assert_eq!(volume["spec"]["accessModes"], json!(["ReadWriteOnce"]));
    assert_eq!(volume["spec"]["storageClassName"], "proof");
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Delete");
    assert_eq!(volume["spec"]["csi"]["driver"], DRIVER);
    assert_eq!(volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"], DRIVER);
    let finalizers = &volume["metadata"]["finalizers"];
    let ours = json!("external-provisioner.volume.kubernetes.io/finalizer");
    assert!(finalizers.as_array().unwrap().contains(&ours), "{finalizers}");
    assert_eq!(driver.volumes(), [text_of(&volume["spec"]["csi"]["volumeHandle"])]);
    // Events are written in the background.
    let path = "jsonpath={.items[?(@.involvedObject.name=='data')].reason}";
    let reasons = || kubectl(cluster, &["get", "events", "-o", path]);
    eventually("the claim has its event", reasons, || reasons().contains("ProvisioningSucceeded"));
}

#[test]
fn a_claim_lives_with_the_rights_of_deploy_rbac() {
    if !can_run() {
        return;
    }
    let mut cluster = guarded_cluster();
    apply_deploy_rbac(&cluster);
    // Beside the controllers of Kubernetes ours do nothing, if a flag says so.
    start_ours(&mut cluster, &CONTROLLERS, "controllers", &["controllers", PASSIVE]);
    let flags =
        ["--leader-election", "--leader-election-namespace", OURS.namespace, "--leak-guard"];
    whole_life(cluster, &OURS, &flags, stayed_passive);
}

#[test]
fn a_claim_lives_with_the_rights_that_the_official_provisioner_documents() {
    if !can_run() {
        return;
    }
    let cluster = guarded_cluster();
    let rules = root().join("tests/real-kube/rbac/official-provisioner.yaml");
    kubectl(&cluster, &["apply", "-f", &rules.display().to_string()]);
    let flags = ["--leader-election", "--leader-election-namespace", OFFICIAL.namespace];
    whole_life(cluster, &OFFICIAL, &flags, |_| ());
}

/// The official manifests of drivers without topology or attach leave these rules out, and the
/// official provisioner works without them.
#[test]
fn a_driver_without_topology_or_attach_needs_no_right_to_nodes_or_attachments() {
    if !can_run() {
        return;
    }
    let cluster = guarded_cluster();
    let rules = root().join("tests/real-kube/rbac/official-provisioner.yaml");
    kubectl(&cluster, &["apply", "-f", &rules.display().to_string()]);
    let role = object(&cluster, "clusterrole", "official-provisioner");
    let kept: Vec<&Value> = role["rules"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|rule| {
            let name = &rule["resources"][0];
            !["nodes", "csinodes", "volumeattachments"].iter().any(|one| name == one)
        })
        .collect();
    let patch = json!({"rules": kept}).to_string();
    kubectl(
        &cluster,
        &["patch", "clusterrole", "official-provisioner", "--type=merge", "-p", &patch],
    );
    assert!(!may(&cluster, &OFFICIAL, &["list", "nodes"]));
    assert!(!may(&cluster, &OFFICIAL, &["list", "volumeattachments.storage.k8s.io"]));
    whole_life(cluster, &OFFICIAL, &[], |_| ());
}
