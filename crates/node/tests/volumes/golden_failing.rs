//! Recorded scenarios about what is missing or fails around the node: G17, G21, G22, G24, G13's failures.

use longshore_cluster::Patch;
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::{Claim, CsiDriver, Pod, VolumeAttachment};
use longshore_core::names::attachment_name;
use longshore_core::testing::{Need, need};
use longshore_csi::Call;
use longshore_csi::fake::Fault;
use serde_json::json;
use tonic::Code;

use crate::recorded::{Names, attach_and_run, detach, heard, recorded, unstaged, volume};
use crate::rig::proxy::tree;
use crate::rig::{DRIVER, Rig};
use crate::{STAY, grow, quick};

async fn attached_pod(rig: &Rig, name: &str, script: &str, extra: serde_json::Value) -> String {
    let uid = rig.pod(name, script, extra).await;
    attach_and_run(rig, name).await;
    uid
}

/// Lines of a tree below the volume's two directories.
fn of_volume(rig: &Rig) -> Vec<String> {
    tree(&rig.root()).into_iter().filter(|line| line.contains("kubernetes.io")).collect()
}

#[tokio::test]
async fn g17_the_drivers_socket_is_gone() {
    if !need("g17_the_drivers_socket_is_gone", &[Need::Root]) {
        return;
    }
    let mut rig = recorded(true, json!({})).await;
    volume(&rig, json!({})).await;
    let uid = attached_pod(&rig, "p", STAY, quick()).await;
    let before = of_volume(&rig);
    rig.driver_down().await;
    rig.delete_pod("p").await;
    rig.wait_gone("p").await;
    let failed = format!(
        "csi_operations_seconds_count{{driver_name=\"{DRIVER}\",method_name=\"/csi.v1.Node/NodeUnpublishVolume\",\
         grpc_status_code=\"Unavailable\",migrated=\"false\"}}"
    );
    rig.until("tried twice", async || rig.metric(&failed) >= 2.0).await;
    // It is tried again, and nothing is forgotten.
    assert_eq!(of_volume(&rig), before);
    assert_eq!(rig.in_use().await, [rig.unique("data")]);
    assert_eq!(rig.event_count("FailedMount", "").await, 0);
    assert_eq!(rig.csi_node().await["spec"]["drivers"][0]["name"], DRIVER);
    rig.driver_up();
    unstaged(&rig).await;
    let names = Names::new(&rig, true);
    assert_eq!(heard(&rig), names.life(&uid));
    detach(&rig).await;
    rig.stop(true).await;
}

#[tokio::test]
async fn g21_a_graceful_end() {
    if !need("g21_a_graceful_end", &[Need::Root]) {
        return;
    }
    let rig = recorded(true, json!({})).await;
    volume(&rig, json!({})).await;
    let stay = "trap 'exit 0' TERM; echo set; sleep 1000 & wait";
    let uid = attached_pod(&rig, "p", stay, json!({"terminationGracePeriodSeconds": 10})).await;
    // A shell that is told to end before it has set its trap has failed.
    rig.until("the trap is set", async || rig.log(&uid) == "set\n").await;
    let key = ObjectKey::new("default", "p");
    rig.driver.always(Call::NodeUnpublishVolume, Fault::before(Code::Aborted));
    rig.driver.always(Call::NodeUnstageVolume, Fault::before(Code::Aborted));
    rig.delete_pod("p").await;
    // The object outlives its mounts, so its claim cannot go before them.
    for (call, next) in [
        ("NodeUnpublishVolume", Call::NodeUnpublishVolume),
        ("NodeUnstageVolume", Call::NodeUnstageVolume),
    ] {
        rig.until(call, async || !rig.heard.of(call).is_empty()).await;
        let pod = rig.api.get_raw::<Pod>(&key).await.unwrap().unwrap();
        assert!(pod["metadata"]["deletionTimestamp"].is_string(), "{call}");
        assert_eq!(pod["status"]["phase"], "Succeeded", "{call}");
        rig.driver.always(next, Fault::None);
    }
    rig.wait_gone("p").await;
    let names = Names::new(&rig, true);
    assert_eq!(heard(&rig), names.life(&uid));
    assert!(rig.staged_dirs().is_empty(), "unstaged before the object went");
    detach(&rig).await;
    rig.stop(true).await;
}

#[tokio::test]
async fn g21_g04_an_end_by_force_and_a_successor() {
    if !need("g21_g04_an_end_by_force_and_a_successor", &[Need::Root]) {
        return;
    }
    let rig = recorded(true, json!({})).await;
    volume(&rig, json!({})).await;
    let deaf = "trap '' TERM; while true; do sleep 0.1; done";
    let old = attached_pod(&rig, "p", deaf, json!({"terminationGracePeriodSeconds": 30})).await;
    rig.force_delete_pod("p").await;
    rig.wait_gone("p").await;
    assert!(rig.heard.of("NodeUnpublishVolume").is_empty(), "its container is still there");
    // A pod of the same name gets the volume while the old container dies.
    let new = rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    rig.until("the old one is gone", async || !rig.heard.of("NodeUnpublishVolume").is_empty())
        .await;
    assert_eq!(rig.in_use().await, [rig.unique("data")]);
    rig.end("p").await;
    unstaged(&rig).await;
    let names = Names::new(&rig, true);
    assert_eq!(heard(&rig), names.shared_life(&old, &new));
    detach(&rig).await;
    rig.stop(true).await;
}

#[tokio::test]
async fn g22_a_driver_with_a_limit_and_no_object() {
    if !need("g22_a_driver_with_a_limit_and_no_object", &[Need::Root]) {
        return;
    }
    let mut rig = recorded(true, json!({})).await;
    let key = ObjectKey::cluster(DRIVER);
    rig.api.delete::<CsiDriver>(&key, &Default::default()).await.unwrap();
    rig.driver.configure(|config| config.max_volumes_per_node = 2);
    rig.kill_agent().await;
    rig.start_agent().await;
    // What the scheduler counts with; how it does is in its own tests.
    rig.until("the limit is there", async || {
        rig.csi_node().await["spec"]["drivers"][0]["allocatable"]["count"] == 2
    })
    .await;
    volume(&rig, json!({})).await;
    // Without an object a driver attaches, stages and is told nothing of pods.
    let uid = attached_pod(&rig, "p", STAY, quick()).await;
    rig.end("p").await;
    unstaged(&rig).await;
    let names = Names::new(&rig, true);
    assert_eq!(heard(&rig), names.life(&uid));
    detach(&rig).await;
    rig.stop(true).await;
}

#[tokio::test]
async fn g24_attaching_fails_for_a_while() {
    if !need("g24_attaching_fails_for_a_while", &[Need::Root]) {
        return;
    }
    let rig = recorded(true, json!({})).await;
    volume(&rig, json!({})).await;
    let uid = rig.pod("p", STAY, quick()).await;
    rig.until("in use", async || rig.in_use().await == [rig.unique("data")]).await;
    let va = attachment_name(&rig.handle("data"), &DRIVER.into(), &"n1".into());
    let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": va},
        "spec": {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv-data"}}});
    rig.api.create::<VolumeAttachment>(&object).await.unwrap();
    let key = ObjectKey::cluster(&va);
    let failed = json!({"status": {"attached": false, "attachError": {"errorCode": 13,
        "message": "rpc error: code = Internal desc = scripted failure"}}});
    rig.api.patch_status::<VolumeAttachment>(&key, Patch::Merge(&failed)).await.unwrap();
    // Even when the node's list is ahead of the attachment, the node looks at the attachment itself.
    rig.list_attached("data").await;
    rig.until("said", async || {
        rig.has_event("FailedMount", "MountVolume.WaitForAttach failed for volume \"pv-data\" : ")
            .await
    })
    .await;
    assert!(heard(&rig).is_empty(), "the driver hears nothing before");
    let attached = json!({"status": {"attached": true, "attachError": null,
        "attachmentMetadata": {"golden/attach": "slot-7"}}});
    rig.api.patch_status::<VolumeAttachment>(&key, Patch::Merge(&attached)).await.unwrap();
    rig.wait_phase("p", "Running").await;
    rig.end("p").await;
    unstaged(&rig).await;
    let names = Names::new(&rig, true);
    assert_eq!(heard(&rig), names.life(&uid));
    detach(&rig).await;
    rig.stop(true).await;
}

#[tokio::test]
async fn g13_growing_fails_twice() {
    if !need("g13_growing_fails_twice", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({})).await;
    volume(&rig, json!({"request": "2Mi"})).await;
    let uid = rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    let failure = Fault::before(Code::Internal);
    rig.driver.script(Call::NodeExpandVolume, [failure.clone(), failure]);
    grow::resize(&rig).await;
    rig.until("grown", async || rig.has_event("FileSystemResizeSuccessful", "n1").await).await;
    let text = "NodeExpandVolume.NodeExpandVolume failed for volume \"pv-data\" : Expander.NodeExpand failed to \
        expand the volume : rpc error: code = Internal desc = ";
    rig.until("both are said", async || rig.event_count("VolumeResizeFailed", text).await == 2)
        .await;
    assert_eq!(rig.heard.of("NodeExpandVolume").len(), 3);
    // On the pod and on the claim.
    let text = "MountVolume.NodeExpandVolume succeeded for volume \"pv-data\" n1";
    rig.until("said", async || rig.event_count("FileSystemResizeSuccessful", text).await == 2)
        .await;
    let key = ObjectKey::new("default", "data");
    let status = &rig.api.get_raw::<Claim>(&key).await.unwrap().unwrap()["status"];
    assert_eq!(status["capacity"]["storage"], "2Mi");
    assert_eq!(status["allocatedResources"]["storage"], "2Mi", "it stays");
    let pod = rig.wait_phase("p", "Running").await;
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
    rig.end("p").await;
    unstaged(&rig).await;
    let names = Names::new(&rig, false);
    let calls = heard(&rig);
    assert_eq!(calls[..2], [names.stage(), names.publish(&uid)]);
    assert_eq!(calls[3..], [names.unpublish(&uid), names.unstage()]);
    rig.stop(true).await;
}
