//! What waits for a failed operation, and what does not. The first pause is an hour here: what comes
//! at all did not wait for one.

use std::time::Duration;

use longshore_core::backoff::Backoff;
use longshore_core::model::kinds::CsiDriver;
use longshore_csi::Call;
use longshore_csi::fake::Fault;
use longshore_testing::{Need, need};
use serde_json::json;
use tonic::Code;

use crate::mounts::inline;
use crate::rig::Rig;
use crate::{STAY, quick};

const HOUR: Duration = Duration::from_secs(3600);

async fn patient_rig() -> Rig {
    let patient = |settings: &mut longshore_node::Settings| {
        settings.volume_backoff = Backoff::new(HOUR, HOUR);
    };
    Rig::start_tweaked(false, json!({}), patient).await
}

#[tokio::test]
async fn a_read_write_once_pod_volume_goes_to_the_next_pod_as_soon_as_it_is_given_up() {
    if !need(
        "a_read_write_once_pod_volume_goes_to_the_next_pod_as_soon_as_it_is_given_up",
        &[Need::Root],
    ) {
        return;
    }
    let rig = patient_rig().await;
    rig.volume_with("data", json!({"accessModes": ["ReadWriteOncePod"]})).await;
    rig.pod("a", STAY, quick()).await;
    rig.wait_phase("a", "Running").await;
    rig.pod("b", STAY, quick()).await;
    let refused =
        "MountVolume.SetUp failed for volume \"pv-data\" : volume uses the ReadWriteOncePod";
    rig.until("b is refused", async || rig.has_event("FailedMount", refused).await).await;
    rig.end("a").await;
    rig.wait_phase("b", "Running").await;
    assert_eq!(rig.event_count("FailedMount", refused).await, 1);
    rig.end("b").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn a_failed_mount_does_not_hold_back_the_unpublish_of_its_pod() {
    if !need("a_failed_mount_does_not_hold_back_the_unpublish_of_its_pod", &[Need::Root]) {
        return;
    }
    let rig = patient_rig().await;
    rig.volume("data").await;
    rig.driver.always(Call::NodePublishVolume, Fault::after(Code::Unavailable));
    rig.pod("p", STAY, quick()).await;
    let failed = "MountVolume.SetUp failed for volume \"pv-data\" : rpc error: code = Unavailable";
    rig.until("no verdict", async || rig.has_event("FailedMount", failed).await).await;
    rig.end("p").await;
    assert_eq!(
        rig.heard.names(),
        ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"]
    );
    rig.stop(true).await;
}

#[tokio::test]
async fn the_event_names_the_step_that_lacks_its_driver() {
    if !need("the_event_names_the_step_that_lacks_its_driver", &[Need::Root]) {
        return;
    }
    let rig = patient_rig().await;
    let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
        "metadata": {"name": "absent.csi.test"},
        "spec": {"attachRequired": false, "volumeLifecycleModes": ["Persistent", "Ephemeral"]}});
    rig.api.create::<CsiDriver>(&object).await.unwrap();
    let csi = json!({"driver": "absent.csi.test", "volumeHandle": "h"});
    rig.volume_with("data", json!({"csi": csi})).await;
    rig.pod("staged", STAY, quick()).await;
    let mut pod = inline("inline");
    pod["spec"]["volumes"][0]["csi"]["driver"] = "absent.csi.test".into();
    rig.create_pod(pod).await;
    let why = "driver name absent.csi.test not found in the list of registered CSI drivers";
    for head in [
        "MountVolume.MountDevice failed for volume \"pv-data\"",
        "MountVolume.SetUp failed for volume \"v\"",
    ] {
        let text = format!("{head} : {why}");
        rig.until(head, async || rig.has_event("FailedMount", &text).await).await;
    }
    rig.stop(true).await;
}
