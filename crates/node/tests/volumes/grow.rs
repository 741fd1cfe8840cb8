//! Growing under a pod.

use longshore_cluster::Patch;
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::{Claim, Volume};
use longshore_csi::Call;
use longshore_csi::fake::Fault;
use longshore_csi::v1;
use longshore_testing::{Need, need};
use serde_json::{Value, json};

use crate::rig::Rig;
use crate::{STAY, quick};

/// What the resizer does, up to the node's part.
pub async fn resize(rig: &Rig) {
    let request = v1::ControllerExpandVolumeRequest {
        volume_id: rig.handle("data").into(),
        capacity_range: Some(v1::CapacityRange { required_bytes: 2 << 20, limit_bytes: 0 }),
        ..Default::default()
    };
    rig.driver.client().controller_expand_volume(request).await.unwrap();
    let capacity = json!({"spec": {"capacity": {"storage": "2Mi"}}});
    rig.api.patch::<Volume>(&ObjectKey::cluster("pv-data"), Patch::Merge(&capacity)).await.unwrap();
    pending(rig).await;
}

async fn pending(rig: &Rig) {
    let status = json!({"status": {"allocatedResources": {"storage": "2Mi"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        "conditions": [{"type": "FileSystemResizePending", "status": "True"}]}});
    let key = ObjectKey::new("default", "data");
    rig.api.patch_status::<Claim>(&key, Patch::Merge(&status)).await.unwrap();
}

async fn claim(rig: &Rig) -> Value {
    rig.api.get_raw::<Claim>(&ObjectKey::new("default", "data")).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_volume_grows_under_its_pod() {
    if !need("a_volume_grows_under_its_pod", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.volume_with("data", json!({"request": "2Mi"})).await;
    let uid = rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    rig.driver.script(Call::NodeExpandVolume, [Fault::before(tonic::Code::Internal)]);
    resize(&rig).await;
    // case: node/N34
    rig.until("the claim has the size", async || {
        claim(&rig).await["status"]["capacity"]["storage"] == "2Mi"
    })
    .await;
    let claim = claim(&rig).await;
    assert!(claim["status"]["allocatedResourceStatuses"]["storage"].is_null(), "{claim}");
    let conditions = claim["status"]["conditions"].as_array().cloned().unwrap_or_default();
    assert_eq!(conditions, Vec::<Value>::new());
    let calls = rig.heard.of("NodeExpandVolume");
    let target = rig.publish_dir(&uid, "data").join("mount");
    let staging = rig.staged_dirs()[0].join("globalmount");
    let expected = json!({"volume_id": rig.handle("data"), "path": target, "staging": staging,
        "required_bytes": 2 << 20, "capability": {"mount": {"fs_type": "ext4"}, "mode": "SINGLE_NODE_WRITER"}});
    // case: node/N37 (refused once, tried again)
    assert_eq!(calls, [expected.clone(), expected]);
    assert!(
        rig.has_event(
            "VolumeResizeFailed",
            "NodeExpandVolume.NodeExpandVolume failed for volume \"pv-data\" : Expander.NodeExpand failed"
        )
        .await
    );
    rig.until("an event", async || {
        let text = "MountVolume.NodeExpandVolume succeeded for volume \"pv-data\" n1";
        rig.has_event("FileSystemResizeSuccessful", text).await
    })
    .await;
    rig.stop(true).await;
}

#[tokio::test]
async fn an_infeasible_size_is_written_to_the_claim() {
    if !need("an_infeasible_size_is_written_to_the_claim", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.volume_with("data", json!({"request": "2Mi"})).await;
    rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    rig.driver.always(Call::NodeExpandVolume, Fault::before(tonic::Code::OutOfRange));
    resize(&rig).await;
    // case: node/N36
    rig.until("infeasible", async || {
        claim(&rig).await["status"]["allocatedResourceStatuses"]["storage"]
            == "NodeResizeInfeasible"
    })
    .await;
    let seen = claim(&rig).await;
    assert_eq!(seen["status"]["capacity"]["storage"], "1Mi");
    let conditions = seen["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|one| one["type"] == "NodeResizeError"), "{conditions:?}");
    // The resizer puts it back to pending; then it works.
    rig.driver.clear_faults();
    pending(&rig).await;
    rig.until("the claim has the size", async || {
        claim(&rig).await["status"]["capacity"]["storage"] == "2Mi"
    })
    .await;
    rig.stop(true).await;
}

#[tokio::test]
async fn a_volume_that_grew_before_its_pod_grows_with_the_mount() {
    if !need("a_volume_that_grew_before_its_pod_grows_with_the_mount", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.volume_with("data", json!({"request": "2Mi"})).await;
    resize(&rig).await;
    rig.driver.script(Call::NodeExpandVolume, [Fault::before(tonic::Code::Internal)]);
    rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    // The pod did not start before the size was there; publish is repeated, stage is not.
    assert_eq!(
        rig.heard.names(),
        [
            "NodeStageVolume",
            "NodePublishVolume",
            "NodeExpandVolume",
            "NodePublishVolume",
            "NodeExpandVolume"
        ]
    );
    assert_eq!(claim(&rig).await["status"]["capacity"]["storage"], "2Mi");
    assert!(
        rig.has_event(
            "FailedMount",
            "MountVolume.Setup failed while expanding volume for volume \"pv-data\" : "
        )
        .await
    );
    rig.stop(true).await;
}
