//! The health monitor among others: idle beside a driver that reports no conditions, and at work beside one that does.

use longshore_csi::capabilities::ControllerCapability as Can;
use longshore_csi::{fake::Version, v1};

use crate::rig::{DRIVER, Rig, USUAL, until};

const LEASE: &str = "external-health-monitor-leader-many-example-com";

/// Events of one reason about a claim.
fn events(rig: &Rig, claim: &str, reason: &str) -> usize {
    let done = rig.api.cli(&["get", "events", "-o", "json"]);
    let all: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
    let all = all["items"].as_array().cloned().unwrap_or_default();
    let about = |event: &&serde_json::Value| {
        event["reason"] == reason && event["involvedObject"]["name"] == claim
    };
    all.iter().filter(about).count()
}

// case: sidecars/A29
#[tokio::test(flavor = "multi_thread")]
async fn the_health_monitor_works_once_the_driver_reports_conditions() {
    let mut rig = Rig::new("sidecars-condition");
    let often = "--health-monitor-list-volumes-interval=200ms";
    let sidecars = rig.sidecars(&format!("{USUAL} {often}")).await;
    sidecars.all_lead().await;
    let (status, line) = sidecars.is("health-monitor", "idle").await;
    let why = format!("CSI driver {DRIVER} does not support VOLUME_CONDITION");
    assert!(status == 200 && line.contains(&why), "{status} {line}");
    assert_eq!(rig.holder(LEASE), "", "who is idle does not lead");
    let volume = rig.bound("a").await;
    rig.patch_status("pv", &volume, r#"{"status": {"phase": "Bound"}}"#);
    // The driver learns it.
    rig.served.stop().await;
    rig.served.driver.configure(|config| {
        config.version = Version::V1_12;
        config.controller.insert(Can::VolumeCondition);
    });
    rig.served.start();
    sidecars.is("health-monitor", "leading").await;
    assert!(!rig.holder(LEASE).is_empty());
    let handle = rig.handle(&volume);
    rig.served.driver.edit(|state| {
        let condition = v1::VolumeCondition { abnormal: true, message: "it smokes".to_owned() };
        state.volumes.get_mut(&handle).unwrap().condition = Some(condition);
    });
    let told = || (events(&rig, "a", "VolumeConditionAbnormal") > 0).then_some(());
    until("the claim's owner hears of it", told).await;
    sidecars.all_lead().await;
    assert_eq!(sidecars.program.terminate().await, Some(0));
    assert_eq!(rig.holder(LEASE), "");
}
