//! Claims that are filled from a snapshot and from another claim, with the real binary and real data.
//!
//! There is no snapshot controller yet: the test cuts the snapshot itself, with the driver's own
//! socket, and writes the objects that a controller would.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use std::path::PathBuf;

use common::*;
use longshore_cluster::{Api, ObjectKey, Patch, config::ClientConfig};
use longshore_core::model::kinds::{VolumeSnapshot, VolumeSnapshotContent};
use longshore_csi::{Client, ConnectOptions, v1};
use serde_json::{Value, json};

const HELD: &str = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";

fn succeeded(pod: &Value) -> bool {
    pod["status"]["phase"] == "Succeeded"
}

/// A claim like [`claim`], filled from something.
fn filled(name: &str, class: &str, source: &str) -> String {
    format!("{}\n  dataSource: {source}\n", claim(name, class).trim_end())
}

fn socket(up: &Instance, driver: &str) -> PathBuf {
    let nodes = std::fs::read_dir(up.data_dir.join("nodes")).unwrap();
    let node = nodes.flatten().next().unwrap().path();
    node.join("plugins").join(driver).join("csi.sock")
}

/// Cuts a snapshot of a volume and makes it known as `snap`.
async fn take_snapshot(up: &Instance, driver: &str, handle: &str) -> (Client, String) {
    let path = socket(up, driver).display().to_string();
    let csi = Client::connect(ConnectOptions::from(path)).await.unwrap();
    let request = v1::CreateSnapshotRequest {
        name: "by-hand".into(),
        source_volume_id: handle.into(),
        ..Default::default()
    };
    let cut = csi.create_snapshot(request).await.unwrap().snapshot.unwrap();
    assert!(cut.ready_to_use);
    let config = ClientConfig::from_kubeconfig(up.data_dir.join("kubeconfig"));
    let api = Api::new(config.client().await.unwrap());
    let snapshot = json!({"metadata": {"name": "snap", "namespace": "default"},
        "spec": {"source": {"volumeSnapshotContentName": "content"}}});
    let snapshot = api.create::<VolumeSnapshot>(&snapshot).await.unwrap();
    let content = json!({"metadata": {"name": "content"}, "spec": {"deletionPolicy": "Retain",
        "driver": driver, "source": {"snapshotHandle": cut.snapshot_id},
        "sourceVolumeMode": "Filesystem",
        "volumeSnapshotRef": {"namespace": "default", "name": "snap",
            "uid": snapshot["metadata"]["uid"]}}});
    api.create::<VolumeSnapshotContent>(&content).await.unwrap();
    let status = json!({"status": {"snapshotHandle": cut.snapshot_id, "readyToUse": true,
        "restoreSize": cut.size_bytes}});
    let key = ObjectKey::cluster("content");
    api.patch_status::<VolumeSnapshotContent>(&key, Patch::Merge(&status)).await.unwrap();
    let status = json!({"status": {"boundVolumeSnapshotContentName": "content", "readyToUse": true,
        "restoreSize": cut.size_bytes.to_string()}});
    let key = ObjectKey::new("default", "snap");
    api.patch_status::<VolumeSnapshot>(&key, Patch::Merge(&status)).await.unwrap();
    (csi, cut.snapshot_id)
}

fn from_snapshot_and_claim(test: &str, class: &str, driver: &str) {
    if !can_run(test) {
        return;
    }
    let home = Home::new(test);
    let up = Instance::up(&home, "data");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    up.apply(&claim("origin", class));
    let write =
        "head -c 2000000 /dev/urandom > /data/file && sha256sum /data/file > /data/sum && sync";
    up.apply(&pod("writer", "origin", write));
    up.wait("pod", "writer", "succeeded", succeeded);
    assert!(up.cli(&["delete", "pod", "writer"]).status.success());
    up.wait("pod", "writer", "went", Value::is_null);
    let name = up.json("pvc", "origin")["spec"]["volumeName"].as_str().unwrap().to_owned();
    let handle = up.json("pv", &name)["spec"]["csi"]["volumeHandle"].as_str().unwrap().to_owned();
    let (csi, snapshot) = runtime.block_on(take_snapshot(&up, driver, &handle));

    // What is written after the snapshot is in the clone, and not in what is restored.
    up.apply(&pod("later", "origin", "echo later > /data/later && sync"));
    up.wait("pod", "later", "succeeded", succeeded);
    assert!(up.cli(&["delete", "pod", "later"]).status.success());
    up.wait("pod", "later", "went", Value::is_null);
    let from = "{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: snap}";
    up.apply(&filled("restored", class, from));
    up.apply(&filled("cloned", class, "{kind: PersistentVolumeClaim, name: origin}"));
    let restored = "sha256sum -c /data/sum && test ! -e /data/later && rm /data/file && sync";
    up.apply(&pod("reads-restored", "restored", restored));
    let cloned = "sha256sum -c /data/sum && grep -q later /data/later && rm /data/file && sync";
    up.apply(&pod("reads-cloned", "cloned", cloned));
    for name in ["reads-restored", "reads-cloned"] {
        up.wait("pod", name, "succeeded", succeeded);
        assert!(up.cli(&["delete", "pod", name]).status.success());
        up.wait("pod", name, "went", Value::is_null);
    }
    up.wait("volumesnapshot", "snap", "is free", |one| {
        let finalizers = one["metadata"]["finalizers"].as_array();
        finalizers.is_none_or(|all| !all.iter().any(|finalizer| finalizer == HELD))
    });

    // The source is as it was, and goes before its copies without harm.
    up.apply(&pod("reads-origin", "origin", "sha256sum -c /data/sum"));
    up.wait("pod", "reads-origin", "succeeded", succeeded);
    assert!(up.cli(&["delete", "pod", "reads-origin"]).status.success());
    up.wait("pod", "reads-origin", "went", Value::is_null);
    assert!(up.cli(&["delete", "pvc", "origin"]).status.success());
    up.wait("pv", &name, "went", Value::is_null);
    up.apply(&pod("reads-again", "cloned", "grep -q later /data/later"));
    up.wait("pod", "reads-again", "succeeded", succeeded);
    assert!(up.cli(&["delete", "pod", "reads-again"]).status.success());
    for claim in ["restored", "cloned"] {
        assert!(up.cli(&["delete", "pvc", claim]).status.success());
        up.wait("pvc", claim, "went", Value::is_null);
    }
    let request = v1::DeleteSnapshotRequest { snapshot_id: snapshot, ..Default::default() };
    runtime.block_on(csi.delete_snapshot(request)).unwrap();
    drop(csi);
    eventually("no image file is left", || images_below(&up.data_dir).is_empty());
    assert_eq!(up.stop(), Some(0));
    assert_eq!(mounts_below(home.path()), Vec::<String>::new());
    assert_eq!(loops_below(home.path()), Vec::<String>::new());
}

#[test]
fn on_the_local_driver() {
    from_snapshot_and_claim("sources-local", "longshore-local", "local.csi.longshore.dev");
}

#[test]
fn on_the_shared_driver() {
    from_snapshot_and_claim("sources-shared", "longshore-shared", "shared.csi.longshore.dev");
}
