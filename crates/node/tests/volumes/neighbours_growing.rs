//! Neighbours of the recorded scenarios: growing.

use longshore_cluster::Patch;
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::{Claim, Volume};
use longshore_csi::Call;
use longshore_csi::capabilities::NodeCapability;
use longshore_csi::fake::Fault;
use longshore_testing::{Need, need};
use serde_json::{Value, json};
use tonic::Code;

use crate::recorded::{Names, pod_of, recorded, unstaged, volume};
use crate::rig::Rig;
use crate::{STAY, block, grow, quick};

#[tokio::test]
async fn growing_of_drivers_that_do_not_stage_and_of_devices() {
    if !need("growing_of_drivers_that_do_not_stage_and_of_devices", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    rig.driver.configure(|config| config.node.remove(NodeCapability::StageUnstageVolume));
    volume(&rig, json!({"request": "2Mi"})).await;
    let uid = rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    grow::resize(&rig).await;
    rig.until("grown", async || !rig.heard.of("NodeExpandVolume").is_empty()).await;
    let names = Names::new(&rig, false);
    // As the kubelet does: the staging path comes along although nothing is staged there.
    let expand = json!({"volume_id": rig.handle("data"), "path": names.target(&uid),
        "staging": names.staging(), "required_bytes": 2 << 20, "capability": names.capability()});
    assert_eq!(rig.heard.of("NodeExpandVolume"), [expand]);
    rig.end("p").await;
    rig.stop(true).await;

    let rig = recorded(false, json!({})).await;
    volume(&rig, json!({"request": "2Mi", "volumeMode": "Block"})).await;
    let uid = rig.create_pod(block::pod("p")).await;
    rig.wait_phase("p", "Running").await;
    grow::resize(&rig).await;
    rig.until("grown", async || !rig.heard.of("NodeExpandVolume").is_empty()).await;
    let root = rig.root().join("plugins/kubernetes.io/csi/volumeDevices");
    let expand = json!({"volume_id": rig.handle("data"), "path": root.join("publish/pv-data").join(uid),
        "staging": root.join("staging/pv-data"), "required_bytes": 2 << 20,
        "capability": {"block": true, "mode": "SINGLE_NODE_MULTI_WRITER"}});
    assert_eq!(rig.heard.of("NodeExpandVolume"), [expand]);
    rig.end("p").await;
    rig.stop(true).await;
}

async fn claim(rig: &Rig) -> Value {
    rig.api.get_raw::<Claim>(&ObjectKey::new("default", "data")).await.unwrap().unwrap()
}

#[tokio::test]
async fn growing_that_waits_for_the_next_attachment() {
    if !need("growing_that_waits_for_the_next_attachment", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    volume(&rig, json!({"request": "2Mi"})).await;
    rig.driver.script(Call::NodeExpandVolume, [Fault::before(Code::FailedPrecondition)]);
    grow::resize(&rig).await;
    // case: node/N31 (with the mount: it is not held up, and nothing is said)
    rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    assert_eq!(rig.heard.of("NodeExpandVolume").len(), 1);
    let seen = claim(&rig).await;
    assert_eq!(seen["status"]["allocatedResourceStatuses"]["storage"], "NodeResizeInProgress");
    let conditions = seen["status"]["conditions"].to_string();
    assert!(conditions.contains("NodeResizeError"), "{conditions}");
    assert!(
        !rig.has_event("VolumeResizeFailed", "").await && !rig.has_event("FailedMount", "").await
    );
    rig.end("p").await;
    unstaged(&rig).await;
    rig.pod("q", STAY, quick()).await;
    rig.wait_phase("q", "Running").await;
    assert_eq!(claim(&rig).await["status"]["capacity"]["storage"], "2Mi");
    rig.end("q").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn growing_of_what_is_only_read() {
    if !need("growing_of_what_is_only_read", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    volume(&rig, json!({"request": "2Mi"})).await;
    grow::resize(&rig).await;
    let mut reader = pod_of("reader", &["data"], STAY);
    reader["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"] = true.into();
    rig.create_pod(reader).await;
    rig.wait_phase("reader", "Running").await;
    let text = "MountVolume.NodeExpandVolume failed for volume \"pv-data\" requested read-only file system";
    rig.until("said of both", async || rig.event_count("FileSystemResizeFailed", text).await == 2)
        .await;
    assert!(rig.heard.of("NodeExpandVolume").is_empty());
    assert_eq!(claim(&rig).await["status"]["capacity"]["storage"], "1Mi");
    // A pod that writes brings the size along.
    rig.create_pod(pod_of("writer", &["data"], STAY)).await;
    rig.wait_phase("writer", "Running").await;
    assert_eq!(rig.heard.of("NodeExpandVolume").len(), 1);
    assert_eq!(claim(&rig).await["status"]["capacity"]["storage"], "2Mi");
    for name in ["reader", "writer"] {
        rig.end(name).await;
    }
    rig.stop(true).await;
}

#[tokio::test]
async fn growing_that_another_node_did_already() {
    if !need("growing_that_another_node_did_already", &[Need::Root]) {
        return;
    }
    tokio::join!(done_elsewhere(false), done_elsewhere(true));
}

async fn done_elsewhere(annotated: bool) {
    let rig = recorded(false, json!({})).await;
    volume(&rig, json!({"request": "2Mi", "accessModes": ["ReadWriteMany"]})).await;
    rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    let key = ObjectKey::new("default", "data");
    if annotated {
        let note = "volume.kubernetes.io/node-expansion-not-required";
        let patch = json!({"metadata": {"annotations": {note: ""}}});
        rig.api.patch::<Claim>(&key, Patch::Merge(&patch)).await.unwrap();
    }
    let request = longshore_csi::v1::ControllerExpandVolumeRequest {
        volume_id: rig.handle("data").into(),
        capacity_range: Some(longshore_csi::v1::CapacityRange {
            required_bytes: 2 << 20,
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    rig.driver.client().controller_expand_volume(request).await.unwrap();
    let capacity = json!({"spec": {"capacity": {"storage": "2Mi"}}});
    rig.api.patch::<Volume>(&ObjectKey::cluster("pv-data"), Patch::Merge(&capacity)).await.unwrap();
    // The other node is done: size and all, and the last thing to change is a condition of it.
    let status = json!({"status": {"capacity": {"storage": "2Mi"},
        "allocatedResources": {"storage": "2Mi"},
        "conditions": [{"type": "FileSystemResizePending", "status": "True"}]}});
    rig.api.patch_status::<Claim>(&key, Patch::Merge(&status)).await.unwrap();
    // case: node/N38
    if !annotated {
        rig.until("asked", async || !rig.heard.of("NodeExpandVolume").is_empty()).await;
    }
    rig.end("p").await;
    assert_eq!(rig.heard.of("NodeExpandVolume").is_empty(), annotated);
    rig.stop(true).await;
}
