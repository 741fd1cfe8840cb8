//! A real API server without Kubernetes' own volume controllers: ours bind, protect, reclaim and
//! expand the claims of the official provisioner and resizer, and claims of volumes made by hand.

use std::process::Command;

use longshore_real_kube::tools::{self, Tool};
use longshore_real_kube::{Cluster, Options};

use super::support::*;

/// The account of `longshore controllers` in `deploy/rbac`.
pub const CONTROLLERS: Account =
    Account { namespace: "longshore-system", name: "longshore-controllers" };

const OBJECTS: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: proof}
provisioner: hostpath.csi.k8s.io
reclaimPolicy: Delete
allowVolumeExpansion: true
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: kept}
provisioner: hostpath.csi.k8s.io
reclaimPolicy: Retain
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: proof
  resources: {requests: {storage: 3Mi}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: kept}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: kept
  resources: {requests: {storage: 3Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  nodeName: node-a
  automountServiceAccountToken: false
  containers: [{name: main, image: none}]
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data}}
  - name: scratch
    ephemeral:
      volumeClaimTemplate:
        spec:
          accessModes: [ReadWriteOnce]
          storageClassName: proof
          resources: {requests: {storage: 2Mi}}
"#;

/// Sources of volumes that administrators create by hand.
const BY_HAND: [(&str, &str); 4] = [
    ("csi", "csi: {driver: hostpath.csi.k8s.io, volumeHandle: by-hand}"),
    (
        "local",
        "local: {path: /mnt/disk}\n  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node-a]}]}]}}",
    ),
    ("hostpath", "hostPath: {path: /srv/by-hand}"),
    ("nfs", "nfs: {server: 198.51.100.1, path: /export}"),
];

fn made_by_hand(name: &str, source: &str) -> String {
    format!(
        r#"
---
apiVersion: v1
kind: PersistentVolume
metadata: {{name: hand-{name}, labels: {{source: {name}}}}}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {{storage: 1Gi}}
  storageClassName: by-hand
  {source}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: hand-{name}}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: by-hand
  selector: {{matchLabels: {{source: {name}}}}}
  resources: {{requests: {{storage: 1Gi}}}}
"#
    )
}

fn wait(cluster: &Cluster, object: &str, path: &str, value: &str) {
    let wish = format!("--for=jsonpath={{{path}}}={value}");
    let waited = cluster.kubectl(&["wait", &wish, object, "--timeout=120s"]).unwrap();
    let now = || kubectl(cluster, &["get", object, "-o", "yaml"]);
    let log = || log_of(cluster, "controllers");
    assert!(waited.status.success(), "{object} {path} is not {value}:\n{}\n{}", now(), log());
}

fn add_official(cluster: &mut Cluster, tool: Tool, socket: &str) {
    let mut command = Command::new(tools::path(tool).unwrap());
    command.arg(format!("--kubeconfig={}", cluster.kubeconfig().display()));
    command.arg(format!("--csi-address={socket}"));
    cluster.add(tool.program(), command).unwrap();
}

fn grown(cluster: &Cluster, volume: &str) {
    let bigger = r#"{"spec":{"resources":{"requests":{"storage":"5Mi"}}}}"#;
    kubectl(cluster, &["patch", "pvc", "data", "-p", bigger]);
    wait(cluster, &format!("pv/{volume}"), ".spec.capacity.storage", "5Mi");
    let path = "jsonpath={.items[?(@.reason=='ExternalExpanding')].message}";
    let said = || kubectl(cluster, &["get", "events", "-o", path]);
    let want = "waiting for an external controller to expand this PVC";
    eventually("the claim gets an event that names who expands it", said, || said().contains(want));
}

/// A claim in use outlives its deletion; then volume and data go, or stay, as the class says.
fn reclaimed(cluster: &Cluster, driver: &Hostpath, data: &str, kept: &str) {
    kubectl(cluster, &["delete", "pvc", "data", "kept", "--wait=false"]);
    wait(cluster, &format!("pv/{kept}"), ".status.phase", "Released");
    let claim = object(cluster, "pvc", "data");
    assert!(claim["metadata"]["deletionTimestamp"].is_string(), "{claim}");
    wait(cluster, &format!("pv/{data}"), ".status.phase", "Bound");
    // There is no kubelet here to end the pod, and no garbage collector.
    kubectl(cluster, &["delete", "pod", "user", "--force", "--grace-period=0"]);
    kubectl(cluster, &["delete", "pvc", "user-scratch", "--timeout=120s"]);
    let gone = ["wait", "--for=delete", &format!("pv/{data}"), "--timeout=120s"];
    kubectl(cluster, &gone);
    eventually(
        "only the kept volume is left at the driver",
        || format!("{:?}", driver.volumes()),
        || driver.volumes().len() == 1,
    );
}

#[test]
fn official_sidecars_are_served_by_our_controllers() {
    let mine = [Tool::CsiProvisioner, Tool::CsiResizer, Tool::Hostpath, Tool::Kubectl];
    if !tools::need(&mine) || !tools::need(&[Tool::Etcd, Tool::KubeApiserver]) {
        return;
    }
    let options =
        Options { rbac: true, audit: true, etcd_without_fsync: true, ..Options::default() };
    let mut cluster = Cluster::start(&options).unwrap();
    apply_deploy_rbac(&cluster);
    let driver = Hostpath::start(cluster.dir(), &["--enable-topology=false"]);
    let socket = driver.socket.display().to_string();
    start_ours(&mut cluster, &CONTROLLERS, "controllers", &["controllers", "-v=2"]);
    add_official(&mut cluster, Tool::CsiProvisioner, &socket);
    add_official(&mut cluster, Tool::CsiResizer, &socket);
    let by_hand: String = BY_HAND.iter().map(|(name, source)| made_by_hand(name, source)).collect();
    kubectl_with(&cluster, &["apply", "-f", "-"], &format!("{OBJECTS}{by_hand}"));

    for claim in
        ["data", "kept", "user-scratch", "hand-csi", "hand-local", "hand-hostpath", "hand-nfs"]
    {
        wait(&cluster, &format!("pvc/{claim}"), ".status.phase", "Bound");
    }
    for (name, _) in BY_HAND {
        let claim = object(&cluster, "pvc", &format!("hand-{name}"));
        assert_eq!(claim["spec"]["volumeName"], format!("hand-{name}"));
    }
    let volume_of = |claim: &str| text_of(&object(&cluster, "pvc", claim)["spec"]["volumeName"]);
    let (data, kept) = (volume_of("data"), volume_of("kept"));
    grown(&cluster, &data);
    reclaimed(&cluster, &driver, &data, &kept);

    let (all, forbidden) = requests(&cluster, &CONTROLLERS);
    for one in ["update persistentvolumes", "update persistentvolumeclaims", "create events"] {
        assert!(all.iter().any(|seen| seen == one), "no {one} in {all:?}");
    }
    assert_eq!(forbidden, Vec::<String>::new(), "requests were forbidden");
    driver.stop();
    cluster.stop().unwrap();
}

/// Controllers of ours that leave the work to Kubernetes' own.
pub const PASSIVE: &str = "--controllers=*,-persistentvolume-binder-controller,\
    -persistentvolume-attach-detach-controller,-persistentvolume-expander-controller,\
    -persistentvolumeclaim-protection-controller,-persistentvolume-protection-controller,\
    -ephemeral-volume-controller";

/// They ran, and wrote nothing about volumes.
pub fn stayed_passive(cluster: &Cluster) {
    let (all, forbidden) = requests(cluster, &CONTROLLERS);
    assert!(all.iter().any(|one| one == "watch volumeattributesclasses"), "{all:?}");
    let reads = ["get", "list", "watch"];
    let writes: Vec<&String> = all
        .iter()
        .filter(|one| {
            let (verb, resource) = one.split_once(' ').unwrap_or((one, ""));
            !reads.contains(&verb) && resource != "leases"
        })
        .collect();
    assert_eq!(writes, Vec::<&String>::new(), "ours wrote although a flag forbids it");
    assert_eq!(forbidden, Vec::<String>::new());
}
