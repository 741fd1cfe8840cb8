//! Every program of ours with the rights of `deploy/rbac` and no more, on a real API server, with
//! none of Kubernetes' own controllers: a pod's whole life, attach included.

use std::path::{Path, PathBuf};
use std::process::Command;

use longshore_real_kube::tools::{self, Tool};
use longshore_real_kube::{Cluster, Options, longshore};
use longshore_testing::{Need, need};

use super::support::*;

const fn account(name: &'static str) -> Account {
    Account { namespace: "longshore-system", name }
}

const PROVISIONER: Account = account("longshore-provisioner");
const ATTACHER: Account = account("longshore-attacher");
const CONTROLLERS: Account = account("longshore-controllers");
const NODE: Account = account("longshore-node");

const OBJECTS: &str = r#"
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: hostpath.csi.k8s.io}
spec: {attachRequired: true, podInfoOnMount: true}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: late}
provisioner: hostpath.csi.k8s.io
reclaimPolicy: Delete
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: ConfigMap
metadata: {name: words, namespace: default}
data: {word: kept}
---
apiVersion: v1
kind: Secret
metadata: {name: hidden, namespace: default}
stringData: {word: hidden}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: default}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: late
  resources: {requests: {storage: 3Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: worker, namespace: default}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  # On a real server a new node is "not ready" until a controller of Kubernetes says otherwise.
  tolerations: [{operator: Exists}]
  containers:
  - name: main
    image: host
    command: [/bin/sh, -c, 'test "$HIDDEN" = hidden && echo $WORD > /data/file && echo $WORD > /own/file && grep -q kept /data/file /own/file']
    env:
    - {name: WORD, valueFrom: {configMapKeyRef: {name: words, key: word}}}
    - {name: HIDDEN, valueFrom: {secretKeyRef: {name: hidden, key: word}}}
    volumeMounts: [{name: data, mountPath: /data}, {name: own, mountPath: /own}]
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: data}
  - name: own
    ephemeral:
      volumeClaimTemplate:
        spec:
          accessModes: [ReadWriteOnce]
          storageClassName: late
          resources: {requests: {storage: 2Mi}}
"#;

/// Ends what a failed test leaves on the node before the cluster's directory goes.
struct Unmounted<'a>(&'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        for mount in mounts_below(self.0).into_iter().rev() {
            let _ = Command::new("umount").arg("-l").arg(&mount).status();
        }
    }
}

fn start_all(cluster: &mut Cluster, socket: &str, node_dir: &Path) {
    let dir = node_dir.display().to_string();
    let election = ["--leader-election", "--leader-election-namespace", PROVISIONER.namespace];
    let mut provisioner = vec!["provisioner", "--csi-address", socket, "--leak-guard"];
    provisioner.extend(election);
    let mut attacher = vec!["attacher", "--csi-address", socket];
    attacher.extend(election);
    let controllers = ["controllers", "--controllers=*,scheduler"];
    let node = ["node", "--node-name", "node-a", "--root-dir", &dir];
    start_ours(cluster, &NODE, "node", &node);
    start_ours(cluster, &CONTROLLERS, "controllers", &controllers);
    start_ours(cluster, &PROVISIONER, "provisioner", &provisioner);
    start_ours(cluster, &ATTACHER, "attacher", &attacher);
    let mut registrar = Command::new(longshore());
    registrar.args(["node-registrar", "--csi-address", socket]);
    registrar.args(["--kubelet-registration-path", socket]);
    let registry = node_dir.join("plugins_registry");
    // As the kubelet, the node makes this directory; a registrar in a pod is restarted until it has.
    eventually("the node has a registry", || log_of(cluster, "node"), || registry.is_dir());
    registrar.arg("--plugin-registration-path").arg(&registry);
    cluster.add("registrar", registrar).unwrap();
}

#[test]
fn a_pod_lives_with_every_program_under_its_own_rights() {
    let machine = [Need::Root];
    let programs = [Tool::Etcd, Tool::KubeApiserver, Tool::Kubectl, Tool::Hostpath];
    if !need("rights", &machine) || !tools::need(&programs) {
        return;
    }
    let options =
        Options { rbac: true, audit: true, etcd_without_fsync: true, ..Options::default() };
    let mut cluster = Cluster::start(&options).unwrap();
    apply_deploy_rbac(&cluster);
    let node_dir = tempfile::Builder::new().prefix("longshore-rights-").tempdir().unwrap();
    let unmounted = Unmounted(node_dir.path());
    let driver = Hostpath::start(cluster.dir(), &["--enable-attach"]);
    let socket = driver.socket.display().to_string();
    start_all(&mut cluster, &socket, node_dir.path());
    kubectl_with(&cluster, &["apply", "-f", "-"], OBJECTS);

    let logs = || {
        let names = ["node", "controllers", "provisioner", "attacher", "registrar"];
        names.map(|name| format!("== {name}\n{}", log_of(&cluster, name))).join("\n")
    };
    let done = ["wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/worker", "--timeout=120s"];
    let waited = cluster.kubectl(&done).unwrap();
    assert!(waited.status.success(), "the pod did not end:\n{}", logs());
    assert_eq!(driver.volumes().len(), 2);
    assert_eq!(driver.calls("ControllerPublishVolume"), 2);
    for args in
        [["delete", "pod", "worker"], ["delete", "pvc", "data"], ["delete", "pvc", "worker-own"]]
    {
        let done = cluster.kubectl(&[&args[..], &["--timeout=120s"]].concat()).unwrap();
        assert!(done.status.success(), "{args:?}:\n{}", logs());
    }
    eventually("nothing is left", logs, || {
        let left = kubectl(&cluster, &["get", "pv,pvc,pod,volumeattachment", "-A", "-o", "name"]);
        left.is_empty() && driver.volumes().is_empty()
    });
    assert_eq!(driver.calls("ControllerUnpublishVolume"), 2);
    assert_eq!(mounts_below(node_dir.path()), Vec::<PathBuf>::new());
    for account in [PROVISIONER, ATTACHER, CONTROLLERS, NODE] {
        let (all, forbidden) = requests(&cluster, &account);
        assert!(all.len() >= 10, "the audit log shows only {all:?} of {}", account.user());
        assert_eq!(forbidden, Vec::<PathBuf>::new(), "{}:\n{}", account.user(), logs());
    }
    drop(unmounted);
    driver.stop();
    cluster.stop().unwrap();
}
