//! Volumes that pods use as devices.

use longshore_csi::Call;
use longshore_csi::fake::Fault;
use longshore_testing::{Need, need};
use serde_json::{Value, json};

use crate::STAY;
use crate::rig::{Rig, mounts_below};

pub fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": {
        "nodeName": "n1", "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        "containers": [{"name": "main", "image": "host",
            "command": ["sh", "-c", format!("test -e /dev/xvda && echo found; {STAY}")],
            "volumeDevices": [{"name": "v", "devicePath": "/dev/xvda"}]}],
    }})
}

#[tokio::test]
async fn a_device_is_mapped_and_taken_away_as_recorded() {
    if !need("a_device_is_mapped_and_taken_away_as_recorded", &[Need::Root]) {
        return;
    }
    let mut rig = Rig::start(false).await;
    rig.volume_with("data", json!({"volumeMode": "Block"})).await;
    let uid = rig.create_pod(pod("p")).await;
    rig.wait_phase("p", "Running").await;
    rig.until("the container saw it", async || rig.log(&uid) == "found\n").await;
    let root = rig.root().join("plugins/kubernetes.io/csi/volumeDevices");
    let (staging, publish) = (root.join("staging/pv-data"), root.join("publish/pv-data"));
    let target = publish.join(&uid);
    // case: node/N28
    let capability = json!({"block": true, "mode": "SINGLE_NODE_WRITER"});
    let stage =
        json!({"volume_id": rig.handle("data"), "staging": staging, "capability": capability});
    assert_eq!(rig.heard.of("NodeStageVolume"), [stage]);
    // case: node/N30 (there is no attachment, and nobody asked for one)
    let expected = json!({"volume_id": rig.handle("data"), "staging": staging, "target": target,
        "capability": capability});
    assert_eq!(rig.heard.of("NodePublishVolume"), [expected]);
    let link = rig.root().join(format!("pods/{uid}/volumeDevices/kubernetes.io~csi/pv-data"));
    assert_eq!(std::fs::read_link(&link).unwrap(), target);
    assert_eq!(mounts_below(root.join("pv-data/dev")), 1);
    for place in ["globalMapPath", "volumeMapPath"] {
        let text = format!("MapVolume.MapPodDevice succeeded for volume \"pv-data\" {place} \"");
        rig.until("an event", async || rig.has_event("SuccessfulMountVolume", &text).await).await;
    }
    // A restarted agent tells the driver again and takes the device down as any other.
    rig.kill_agent().await;
    rig.start_agent().await;
    rig.until("mapped again", async || rig.heard.names().len() == 2).await;
    assert_eq!(rig.heard.names(), ["NodeStageVolume", "NodePublishVolume"]);
    rig.end("p").await;
    rig.until("all gone", async || !root.join("pv-data").exists()).await;
    let calls = rig.heard.all();
    assert_eq!(rig.heard.names()[2..], ["NodeUnpublishVolume", "NodeUnstageVolume"]);
    assert_eq!(calls[3].request["staging"], json!(staging));
    let tree = &calls[2].tree;
    assert!(
        !tree.iter().any(|line| line.contains("pv-data/dev/") || line.contains(" link ")),
        "{tree:?}"
    );
    assert!(!staging.exists() && !publish.exists() && root.join("staging").exists());
    rig.stop(true).await;
}

#[tokio::test]
async fn a_refused_stage_of_a_device_leaves_nothing() {
    if !need("a_refused_stage_of_a_device_leaves_nothing", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.volume_with("data", json!({"volumeMode": "Block"})).await;
    rig.driver.always(Call::NodeStageVolume, Fault::before(tonic::Code::Internal));
    rig.create_pod(pod("p")).await;
    let root = rig.root().join("plugins/kubernetes.io/csi/volumeDevices");
    // case: node/N29
    rig.until("refused, and the directories are gone", async || {
        let gone = !root.join("pv-data").exists()
            && !root.join("staging/pv-data").exists()
            && !root.join("publish/pv-data").exists();
        !rig.heard.of("NodeStageVolume").is_empty() && gone
    })
    .await;
    rig.until("an event", async || {
        rig.has_event("FailedMapVolume", "MapVolume.SetUpDevice failed for volume \"pv-data\"")
            .await
    })
    .await;
    rig.driver.clear_faults();
    rig.wait_phase("p", "Running").await;
    rig.stop(true).await;
}
