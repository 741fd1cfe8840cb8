//! A claim that is filled from a snapshot of another namespace, which has to allow it.

use std::process::Command;

use longshore_real_kube::{Cluster, Controllers, Options, longshore, tools};

use super::sources::*;
use super::support::*;

/// As little of the definition as a grant needs.
const GRANTS: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: referencegrants.gateway.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, for a test"}
spec:
  group: gateway.networking.k8s.io
  scope: Namespaced
  names: {kind: ReferenceGrant, listKind: ReferenceGrantList, plural: referencegrants, singular: referencegrant}
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
"#;

const OBJECTS: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: proof}
provisioner: hostpath.csi.k8s.io
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: proof}
driver: hostpath.csi.k8s.io
deletionPolicy: Delete
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: origin}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: proof
  resources: {requests: {storage: 3Mi}}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: cut, namespace: origin}
spec:
  volumeSnapshotClassName: proof
  source: {persistentVolumeClaimName: data}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: abroad, namespace: default}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: proof
  dataSourceRef: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: cut, namespace: origin}
  resources: {requests: {storage: 3Mi}}
"#;

const GRANT: &str = r#"
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: abroad, namespace: origin}
spec:
  from: [{group: "", kind: PersistentVolumeClaim, namespace: default}]
  to: [{group: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: cut}]
"#;

#[test]
fn a_snapshot_of_another_namespace_is_a_source_once_that_namespace_allows_it() {
    if !tools::need(&TOOLS) {
        return;
    }
    let gate = "--feature-gates=CrossNamespaceVolumeDataSource=true";
    let options = Options {
        controllers: Controllers::Volumes,
        etcd_without_fsync: true,
        more_apiserver_args: vec![gate.to_owned()],
        ..Options::default()
    };
    let mut cluster = Cluster::start(&options).unwrap();
    kubectl_with(&cluster, &["apply", "-f", "-"], GRANTS);
    wait(&cluster, "crd/referencegrants.gateway.networking.k8s.io", "--for=condition=Established");
    let (driver, address) = add_snapshotting(&mut cluster);
    let mut ours = Command::new(longshore());
    ours.args(["provisioner", &address, gate, "--kubeconfig"]).arg(cluster.kubeconfig());
    cluster.add("provisioner", ours).unwrap();

    kubectl(&cluster, &["create", "namespace", "origin"]);
    kubectl_with(&cluster, &["apply", "-f", "-"], OBJECTS);
    let path = "jsonpath={.items[?(@.involvedObject.name=='abroad')].message}";
    let events = || kubectl(&cluster, &["get", "events", "-o", path]);
    eventually("the claim gets an event that it is not allowed", events, || {
        events().contains("isn't allowed")
    });
    assert_eq!(driver.volumes().len(), 1, "nothing was made for it");

    kubectl_with(&cluster, &["apply", "-f", "-"], GRANT);
    wait(&cluster, "pvc/abroad", "--for=jsonpath={.status.phase}=Bound");
    assert_eq!(driver.volumes().len(), 2);

    kubectl(&cluster, &["delete", "pvc", "abroad", "--timeout=120s"]);
    kubectl(&cluster, &["delete", "volumesnapshot", "cut", "-n", "origin", "--timeout=120s"]);
    kubectl(&cluster, &["delete", "pvc", "data", "-n", "origin", "--timeout=120s"]);
    let left = || kubectl(&cluster, &["get", "pv,volumesnapshotcontent", "-A", "-o", "name"]);
    eventually("nothing is left", left, || left().trim().is_empty());
    assert_eq!(driver.volumes(), Vec::<String>::new());
    driver.stop();
    cluster.stop().unwrap();
}
