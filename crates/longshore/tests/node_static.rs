//! Volumes that somebody made by hand, of every kind that a pod can use: csi, local (a directory and a
//! disk), hostPath and nfs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use std::{fs, path::Path, process::Command};

use common::*;
use longshore_csi::{Client, ConnectOptions, fake, v1};
use longshore_testing::{Need, need};
use serde_json::Value;

const DRIVER: &str = "local.csi.longshore.dev";

fn node_name(up: &Instance) -> String {
    let nodes = fs::read_dir(up.data_dir.join("nodes")).unwrap();
    nodes.flatten().next().unwrap().file_name().into_string().unwrap()
}

/// A volume with this source and a claim that names it.
fn by_hand(up: &Instance, name: &str, source: &str, node: Option<&str>) {
    let affinity = node.map(|node| {
        format!(
            "  nodeAffinity:\n    required:\n      nodeSelectorTerms:\n      - matchFields:\n        - \
             {{key: metadata.name, operator: In, values: [{node}]}}\n"
        )
    });
    up.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec:\n  \
         capacity: {{storage: 16Mi}}\n  accessModes: [ReadWriteOnce]\n  storageClassName: \"\"\n  \
         persistentVolumeReclaimPolicy: Retain\n  {source}\n{}",
        affinity.unwrap_or_default()
    ));
    let claim = claim(name, "\"\"") + &format!("  volumeName: {name}\n");
    up.apply(&claim);
}

fn running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running"
}

fn gone(up: &Instance, pod: &str) {
    assert!(up.cli(&["delete", "pod", pod]).status.success());
    up.wait("pod", pod, "went", Value::is_null);
}

async fn csi_client(up: &Instance) -> Client {
    let node = up.data_dir.join("nodes").join(node_name(up));
    let socket = node.join("plugins").join(DRIVER).join("csi.sock");
    Client::connect(ConnectOptions::from(socket.display().to_string())).await.unwrap()
}

fn write_and_stay(word: &str) -> String {
    format!("echo {word} > /data/file; sync; sleep 1000")
}

#[test]
fn a_hand_made_csi_volume_serves_a_pod() {
    if !can_run("static-csi") {
        return;
    }
    let home = Home::new("static-csi");
    let up = Instance::up(&home, "data");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let csi = runtime.block_on(csi_client(&up));
    let made = runtime.block_on(csi.create_volume(fake::create_request("by-hand", 16 << 20)));
    let handle = made.unwrap().volume.unwrap().volume_id;
    let source = format!("csi: {{driver: {DRIVER}, volumeHandle: {handle}, fsType: ext4}}");
    by_hand(&up, "by-hand", &source, None);
    up.apply(&pod("writer", "by-hand", &write_and_stay("kept")));
    up.wait("pod", "writer", "ran", running);
    gone(&up, "writer");
    up.apply(&pod("reader", "by-hand", "grep kept /data/file"));
    up.wait("pod", "reader", "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
    gone(&up, "reader");
    let request = v1::DeleteVolumeRequest { volume_id: handle, ..Default::default() };
    runtime.block_on(csi.delete_volume(request)).unwrap();
    drop(csi);
    assert_eq!(up.stop(), Some(0));
    assert_eq!(mounts_below(home.path()), Vec::<String>::new());
}

#[test]
fn hand_made_directories_serve_pods_through_a_crash() {
    if !can_run("static-dirs") {
        return;
    }
    let home = Home::new("static-dirs");
    let up = Instance::up(&home, "data");
    let node = node_name(&up);
    for kind in ["local", "host"] {
        let dir = home.path().join(kind);
        fs::create_dir(&dir).unwrap();
        let source = match kind {
            "local" => format!("local: {{path: {}}}", dir.display()),
            _ => format!("hostPath: {{path: {}, type: Directory}}", dir.display()),
        };
        by_hand(&up, kind, &source, (kind == "local").then_some(node.as_str()));
        up.apply(&pod(kind, kind, &write_and_stay(kind)));
    }
    for kind in ["local", "host"] {
        up.wait("pod", kind, "ran", running);
        eventually("the file is in the directory", || {
            fs::read_to_string(home.path().join(kind).join("file"))
                .is_ok_and(|text| text.trim() == kind)
        });
    }
    let uid = up.json("pod", "local")["metadata"]["uid"].as_str().unwrap().to_owned();
    let target = format!("pods/{uid}/volumes/kubernetes.io~local-volume/local");
    let target = up.data_dir.join("nodes").join(&node).join(target).display().to_string();
    let bound = || mounts_below(&up.data_dir).contains(&target);
    assert!(bound(), "{target} is a mount of its own");

    up.kill();
    let up = Instance::up(&home, "data");
    for kind in ["local", "host"] {
        up.wait("pod", kind, "was adopted", running);
        gone(&up, kind);
    }
    assert_eq!(mounts_below(&up.data_dir.join("nodes")), Vec::<String>::new());
    assert!(home.path().join("local/file").exists(), "what was bound is left alone");

    // What is missing is said, and nothing is made in its place.
    let missing = home.path().join("missing");
    by_hand(&up, "missing", &format!("local: {{path: {}}}", missing.display()), Some(&node));
    up.apply(&pod("waits", "missing", "true"));
    up.event("waits", &["FailedMount", "does not exist on node", "nodeAffinity"]);
    assert!(!missing.exists());
    fs::create_dir(&missing).unwrap();
    up.wait("pod", "waits", "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
    gone(&up, "waits");
    assert_eq!(up.stop(), Some(0));
    assert_eq!(mounts_below(home.path()), Vec::<String>::new());
}

fn attach_loop(image: &Path) -> String {
    let done = Command::new("losetup").args(["-f", "--show"]).arg(image).output().unwrap();
    assert!(done.status.success(), "{}", text(&done));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_hand_made_disk_is_formatted_once_and_serves_two_pods() {
    if !can_run("static-disk")
        || !need("static-disk", &[Need::Tool("losetup"), Need::Tool("blkid")])
    {
        return;
    }
    let home = Home::new("static-disk");
    let image = home.path().join("disk");
    fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
    let device = attach_loop(&image);
    let up = Instance::up(&home, "data");
    let node = node_name(&up);
    by_hand(&up, "disk", &format!("local: {{path: {device}, fsType: ext4}}"), Some(&node));
    for (name, script) in [
        ("first", "test ! -e /data/file; echo kept > /data/file; sync; sleep 1000"),
        ("second", "while ! grep -q kept /data/file; do sleep 0.05; done; sleep 1000"),
    ] {
        up.apply(&pod(name, "disk", script));
        up.wait("pod", name, "ran", running);
    }
    let staged = up
        .data_dir
        .join("nodes")
        .join(&node)
        .join("plugins/kubernetes.io/local-volume/mounts/disk");
    assert!(staged.join("file").exists());
    gone(&up, "first");
    assert!(staged.join("file").exists(), "the other pod still uses it");
    gone(&up, "second");
    eventually("the disk is unmounted", || !staged.exists());
    // A second use finds what the first wrote.
    up.apply(&pod("third", "disk", "grep kept /data/file"));
    up.wait("pod", "third", "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
    gone(&up, "third");
    assert_eq!(up.stop(), Some(0));
    assert_eq!(mounts_below(home.path()), Vec::<String>::new());
    assert!(Command::new("losetup").args(["-d", &device]).status().unwrap().success());
}

/// Whether this machine can mount NFS at all: then the event is the server's, otherwise the node's.
fn nfs_words() -> &'static [&'static str] {
    let helper =
        ["/sbin/mount.nfs", "/usr/sbin/mount.nfs"].iter().any(|path| Path::new(path).exists());
    if helper {
        &["FailedMount", "mount of 127.0.0.1:/export"]
    } else {
        &["FailedMount", "has no NFS client", "mount.nfs", "install"]
    }
}

#[test]
fn an_nfs_volume_that_cannot_be_mounted_says_why() {
    if !can_run("static-nfs") {
        return;
    }
    let home = Home::new("static-nfs");
    let up = Instance::up(&home, "data");
    by_hand(
        &up,
        "share",
        "nfs: {server: 127.0.0.1, path: /export}\n  mountOptions: [nfsvers=4, retry=0]",
        None,
    );
    up.apply(&pod("waits", "share", "true"));
    let event = up.event("waits", nfs_words());
    assert!(event.contains("MountVolume.SetUp failed for volume \"share\""), "{event}");
    gone(&up, "waits");
    assert_eq!(up.stop(), Some(0));
    assert_eq!(mounts_below(home.path()), Vec::<String>::new());
}
