//! Two PersistentVolumes with one handle: one volume for the driver, two names for directories.

use longshore_testing::{Need, need};
use serde_json::{Value, json};

use crate::recorded::pod_of;
use crate::rig::{DRIVER, Rig};
use crate::{STAY, block};

/// The claims `data` and `other`, whose volumes have one handle.
async fn rig(mode: &str) -> Rig {
    let rig = Rig::start(false).await;
    let many = json!(["ReadWriteMany"]);
    rig.volume_with("data", json!({"volumeMode": mode, "accessModes": many})).await;
    let csi = json!({"driver": DRIVER, "volumeHandle": rig.handle("data"), "fsType": "ext4"});
    let other = json!({"volumeMode": mode, "accessModes": many, "csi": csi});
    rig.volume_with("other", other).await;
    rig
}

fn targets(rig: &Rig, call: &str) -> Vec<Value> {
    rig.heard.of(call).iter().map(|request| request["target"].clone()).collect()
}

#[tokio::test]
async fn pods_of_two_persistent_volumes_with_one_handle_come_and_go() {
    if !need("pods_of_two_persistent_volumes_with_one_handle_come_and_go", &[Need::Root]) {
        return;
    }
    let rig = rig("Filesystem").await;
    let a = rig.create_pod(pod_of("a", &["data"], STAY)).await;
    rig.wait_phase("a", "Running").await;
    let b = rig.create_pod(pod_of("b", &["other"], STAY)).await;
    rig.wait_phase("b", "Running").await;
    let paths = json!([
        rig.publish_dir(&a, "data").join("mount"),
        rig.publish_dir(&b, "other").join("mount")
    ]);
    assert_eq!(json!(targets(&rig, "NodePublishVolume")), paths);
    rig.end("a").await;
    rig.end("b").await;
    assert_eq!(json!(targets(&rig, "NodeUnpublishVolume")), paths);
    assert_eq!(rig.heard.of("NodeStageVolume").len(), 1);
    assert_eq!(rig.heard.of("NodeUnstageVolume").len(), 1);
    rig.stop(true).await;
}

#[tokio::test]
async fn they_are_told_apart_after_a_restart_too() {
    if !need("they_are_told_apart_after_a_restart_too", &[Need::Root]) {
        return;
    }
    let mut rig = rig("Filesystem").await;
    for (pod, claim) in [("a", "data"), ("b", "other")] {
        rig.create_pod(pod_of(pod, &[claim], STAY)).await;
        rig.wait_phase(pod, "Running").await;
    }
    rig.kill_agent().await;
    // One goes while there is no agent.
    rig.force_delete_pod("a").await;
    rig.start_agent().await;
    rig.until("a is unpublished", async || targets(&rig, "NodeUnpublishVolume").len() == 1).await;
    rig.end("b").await;
    assert_eq!(targets(&rig, "NodeUnpublishVolume").len(), 2);
    rig.stop(true).await;
}

#[tokio::test]
async fn a_pod_with_both_finds_the_volume_under_both_names() {
    if !need("a_pod_with_both_finds_the_volume_under_both_names", &[Need::Root]) {
        return;
    }
    let rig = rig("Filesystem").await;
    let mut pod = pod_of("p", &["data", "other"], STAY);
    let script = "echo one > /data/x; cat /other/x; trap 'exit 0' TERM; sleep 1000 & wait";
    pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
    let uid = rig.create_pod(pod).await;
    rig.wait_phase("p", "Running").await;
    rig.until("read through the other", async || rig.log(&uid) == "one\n").await;
    rig.end("p").await;
    assert_eq!(targets(&rig, "NodeUnpublishVolume").len(), 1);
    rig.stop(true).await;
}

#[tokio::test]
async fn devices_of_two_persistent_volumes_with_one_handle_come_and_go() {
    if !need("devices_of_two_persistent_volumes_with_one_handle_come_and_go", &[Need::Root]) {
        return;
    }
    let mut rig = rig("Block").await;
    let with = |name: &str, claim: &str| {
        let mut pod = block::pod(name);
        pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] = claim.into();
        pod
    };
    rig.create_pod(with("a", "data")).await;
    rig.wait_phase("a", "Running").await;
    let b = rig.create_pod(with("b", "other")).await;
    rig.wait_phase("b", "Running").await;
    let root = rig.root().join("plugins/kubernetes.io/csi/volumeDevices");
    // Staged once, under the name of the first.
    let published = rig.heard.of("NodePublishVolume");
    assert_eq!(published[1]["staging"], json!(root.join("staging/pv-data")));
    assert_eq!(published[1]["target"], json!(root.join("publish/pv-other").join(&b)));
    rig.end("a").await;
    rig.kill_agent().await;
    rig.start_agent().await;
    rig.until("mapped again", async || rig.heard.of("NodePublishVolume").len() == 1).await;
    assert_eq!(rig.heard.of("NodeStageVolume")[0]["staging"], json!(root.join("staging/pv-data")));
    rig.end("b").await;
    for name in ["pv-data", "pv-other", "staging/pv-data", "publish/pv-other"] {
        rig.until(name, async || !root.join(name).exists()).await;
    }
    rig.stop(true).await;
}
