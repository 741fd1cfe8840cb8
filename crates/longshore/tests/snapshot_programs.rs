//! The programs for snapshots as processes of their own, beside a driver in memory: how they end.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;
mod sidecar;

use std::time::Duration;

use common::{Home, Instance, can_run, eventually};
use longshore_csi::{
    Call,
    capabilities::{ControllerCapability, GroupCapability, PluginService},
    fake::{self, Fault},
};
use sidecar::{Program, Served};

const DRIVER: &str = "ends.csi.test";

/// A class and a content of each kind; the content's class is its driver's.
const OBJECTS: &str = "apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: ends}
driver: ends.csi.test
deletionPolicy: Delete
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata: {name: ends}
driver: ends.csi.test
deletionPolicy: Delete
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotContent
metadata: {name: group}
spec:
  driver: ends.csi.test
  deletionPolicy: Delete
  volumeGroupSnapshotClassName: ends
  source: {volumeHandles: [HANDLE]}
  volumeGroupSnapshotRef: {name: g, namespace: default, uid: g-uid}
";

const CONTENT: &str = "apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata: {name: single}
spec:
  driver: ends.csi.test
  deletionPolicy: Delete
  volumeSnapshotClassName: ends
  source: {volumeHandle: HANDLE}
  volumeSnapshotRef: {name: s, namespace: default, uid: s-uid}
";

fn holder(api: &Instance) -> String {
    let lease = api.json("lease", "external-snapshotter-leader-ends-csi-test");
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

fn snapshotter(served: &Served, api: &Instance) -> Program {
    Program::start(&[
        "snapshotter".to_owned(),
        format!("--csi-address={}", served.socket().display()),
        format!("--kubeconfig={}", api.kubeconfig.display()),
        "--leader-election".to_owned(),
        "--leader-election-namespace=default".to_owned(),
        "--feature-gates=CSIVolumeGroupSnapshot=true,ReleaseLeaderElectionOnExit=true".to_owned(),
        "-v=3".to_owned(),
    ])
}

/// The official one never ends here: its workers for groups wait for a queue that nobody shuts down.
/// case: snapshotter/68
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshotter_with_groups_ends_when_its_calls_have() {
    let home = Home::new("snapshotter-ends");
    let api = Instance::start(&home, "api", &["apiserver"]);
    let served = Served::new(DRIVER);
    served.driver.configure(|config| {
        config.plugin.services.insert(PluginService::GroupControllerService);
        config.group = [GroupCapability::CreateDeleteGetVolumeGroupSnapshot].into();
    });
    let made = served.driver.client().create_volume(fake::create_request("v", 1 << 30)).await;
    let handle = made.unwrap().volume.unwrap().volume_id;
    let done = |kind: &str, name: &str| api.json(kind, name)["status"]["readyToUse"] == true;

    let idle = snapshotter(&served, &api);
    idle.says("became leader").await;
    api.apply(&OBJECTS.replace("HANDLE", &handle));
    eventually("the group is taken", || done("volumegroupsnapshotcontent", "group"));
    assert_ne!(holder(&api), "");
    assert_eq!(idle.terminate().await, Some(0));
    assert_eq!(holder(&api), "", "the lease is released");

    served.driver.always(Call::CreateSnapshot, Fault::Delay(Duration::from_secs(3)));
    let busy = snapshotter(&served, &api);
    busy.says("became leader").await;
    api.apply(&CONTENT.replace("HANDLE", &handle));
    eventually("the driver is asked", || !served.driver.calls_of(Call::CreateSnapshot).is_empty());
    assert_eq!(busy.terminate().await, Some(0));
    let calls = served.driver.calls_of(Call::CreateSnapshot);
    assert!(matches!(&calls[..], [one] if matches!(one.result, Some(Ok(_)))), "{calls:?}");
    assert!(done("volumesnapshotcontent", "single"), "what the driver said is written down");
    assert_eq!(holder(&api), "");
}

const OF_ITS_CLASS: &str = "apiVersion: v1
kind: PersistentVolume
metadata: {name: by-hand}
spec:
  capacity: {storage: 16Mi}
  accessModes: [ReadWriteOnce]
  storageClassName: ends
  csi: {driver: ends.csi.test, volumeHandle: h}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: default}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ends
  volumeName: by-hand
  resources: {requests: {storage: 16Mi}}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: ends}
driver: ends.csi.test
deletionPolicy: Delete
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: asked, namespace: default}
spec: {volumeSnapshotClassName: ends, source: {persistentVolumeClaimName: data}}
";

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_of_a_foreign_driver_that_takes_none_gets_an_event() {
    if !can_run("snapshot-of-none") {
        return;
    }
    let home = Home::new("snapshot-of-none");
    let served = Served::new(DRIVER);
    served.driver.configure(|config| {
        config.controller.remove(ControllerCapability::CreateDeleteSnapshot);
    });
    let endpoint = format!("unix://{}", served.socket().display());
    let up =
        Instance::start(&home, "data", &["up", "--node-name", "n", "--csi-endpoint", &endpoint]);
    up.apply(OF_ITS_CLASS);
    let text = "driver ends.csi.test takes no snapshots";
    eventually("the snapshot is told", || {
        let done = up.cli(&["get", "events", "-o", "json"]);
        let list: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
        list["items"].as_array().is_some_and(|all| {
            all.iter().any(|one| {
                one["reason"] == "NotServed"
                    && one["involvedObject"]["kind"] == "VolumeSnapshot"
                    && one["message"].as_str().is_some_and(|told| told.contains(text))
            })
        })
    });
    assert_eq!(up.stop(), Some(0));
}
