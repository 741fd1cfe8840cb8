//! The recorded scenario about statistics and metrics: G25.

use std::time::Duration;

use longshore_core::names::inline_handle;
use longshore_csi::capabilities::NodeCapability;
use longshore_testing::{Need, need};
use serde_json::{Value, json};

use crate::recorded::{pod_of, volume, volume_named};
use crate::rig::{DRIVER, Rig};
use crate::{STAY, block};

async fn quick_stats() -> Rig {
    let modes = json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]});
    let rig = Rig::start_tweaked(false, modes, |settings| {
        settings.stats_period = Duration::from_millis(50);
    })
    .await;
    rig.driver.configure(|config| config.node.insert(NodeCapability::SingleNodeMultiWriter));
    rig
}

/// The summary's entry of a pod.
fn in_summary(rig: &Rig, pod: &str) -> Value {
    let summary = rig.stats.as_ref().unwrap().summary();
    let pods = summary["pods"].as_array().cloned().unwrap_or_default();
    pods.into_iter().find(|one| one["podRef"]["name"] == pod).unwrap_or_default()
}

#[tokio::test]
async fn g25_how_full_volumes_are() {
    if !need("g25_how_full_volumes_are", &[Need::Root]) {
        return;
    }
    let rig = quick_stats().await;
    volume(&rig, json!({"volumeMode": "Block"})).await;
    volume_named(&rig, "files", json!({})).await;
    let device = rig.create_pod(block::pod("device")).await;
    let a = rig.create_pod(pod_of("a", &["files"], STAY)).await;
    let b = rig.create_pod(pod_of("b", &["files"], STAY)).await;
    let mut inline = pod_of("inline", &[], STAY);
    inline["spec"]["volumes"] = json!([{"name": "v", "csi": {"driver": DRIVER}}]);
    inline["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    let inline = rig.create_pod(inline).await;
    for name in ["device", "a", "b", "inline"] {
        rig.wait_phase(name, "Running").await;
    }
    // Per pod and volume, without the staging path.
    let target = |uid: &str| rig.publish_dir(uid, "files").join("mount");
    let dev =
        rig.root().join(format!("plugins/kubernetes.io/csi/volumeDevices/pv-data/dev/{device}"));
    let own = rig.root().join(format!("pods/{inline}/volumes/kubernetes.io~csi/v/mount"));
    for asked in [
        json!({"volume_id": rig.handle("files"), "path": target(&a)}),
        json!({"volume_id": rig.handle("files"), "path": target(&b)}),
        json!({"volume_id": rig.handle("data"), "path": dev}),
        json!({"volume_id": inline_handle(&inline.as_str().into(), "v"), "path": own}),
    ] {
        rig.until("asked", async || rig.heard.stats().contains(&asked)).await;
    }
    rig.until("all are in the summary", async || {
        ["device", "a", "b", "inline"].iter().all(|pod| in_summary(&rig, pod)["volume"].is_array())
    })
    .await;
    check_summary(&rig, &a);
    check_gauges(&rig);
    for name in ["a", "b", "device", "inline"] {
        rig.end(name).await;
    }
    rig.until("forgotten", async || rig.metric("kubelet_volume_stats_capacity_bytes{") == 0.0)
        .await;
    rig.stop(true).await;
}

fn check_summary(rig: &Rig, a: &str) {
    let pod = in_summary(rig, "a");
    assert_eq!(pod["podRef"], json!({"name": "a", "namespace": "default", "uid": a}));
    let mut volume = pod["volume"][0].clone();
    assert!(volume.as_object_mut().unwrap().remove("time").is_some_and(|time| time.is_string()));
    let expected = json!({"name": "files", "capacityBytes": 1 << 20, "availableBytes": 1 << 20, "usedBytes": 0,
        "inodes": 0, "inodesFree": 0, "inodesUsed": 0,
        "pvcRef": {"name": "files", "namespace": "default"}});
    assert_eq!(volume, expected);
    let device = in_summary(rig, "device");
    assert_eq!(device["volume"][0]["capacityBytes"], 10);
    assert_eq!(device["volume"][0]["pvcRef"]["name"], "data");
    let inline = in_summary(rig, "inline");
    assert_eq!(inline["volume"][0]["inodesFree"], 9);
    assert!(inline["volume"][0]["pvcRef"].is_null());
}

fn check_gauges(rig: &Rig) {
    let text = rig.metrics.render();
    for name in
        ["capacity_bytes", "available_bytes", "used_bytes", "inodes", "inodes_free", "inodes_used"]
    {
        let head = format!("kubelet_volume_stats_{name}{{");
        let mut lines: Vec<&str> = text.lines().filter(|line| line.starts_with(&head)).collect();
        lines.sort_unstable();
        assert_eq!(lines.len(), 2, "one for each claim, none for inline volumes: {lines:?}");
        assert!(lines[0].contains("namespace=\"default\",persistentvolumeclaim=\"data\""));
        assert!(lines[1].contains("namespace=\"default\",persistentvolumeclaim=\"files\""));
    }
    let plugin = format!("kubernetes.io/csi:{DRIVER}");
    for state in ["actual_state_of_world", "desired_state_of_world"] {
        let line =
            format!("volume_manager_total_volumes{{plugin_name=\"{plugin}\",state=\"{state}\"}}");
        assert_eq!(rig.metric(&line), 4.0, "{text}");
    }
    for (operation, count) in
        [("volume_mount", 3.0), ("map_volume", 1.0), ("verify_controller_attached_volume", 3.0)]
    {
        let line = format!(
            "storage_operation_duration_seconds_count{{volume_plugin=\"{plugin}\",operation_name=\"{operation}\",\
             status=\"success\",migrated=\"false\"}}"
        );
        assert_eq!(rig.metric(&line), count, "{operation} in {text}");
    }
    let line = format!(
        "volume_operation_total_seconds_count{{plugin_name=\"{plugin}\",operation_name=\"overall_volume_mount\"}}"
    );
    assert_eq!(rig.metric(&line), 3.0, "{text}");
    for method in [
        "NodeGetInfo",
        "NodeGetCapabilities",
        "NodeGetVolumeStats",
        "NodeStageVolume",
        "NodePublishVolume",
    ] {
        let line = format!(
            "csi_operations_seconds_count{{driver_name=\"{DRIVER}\",method_name=\"/csi.v1.Node/{method}\",\
             grpc_status_code=\"OK\",migrated=\"false\"}}"
        );
        assert!(rig.metric(&line) >= 1.0, "{method} in {text}");
    }
}

#[tokio::test]
async fn g25_a_driver_that_cannot_say() {
    if !need("g25_a_driver_that_cannot_say", &[Need::Root]) {
        return;
    }
    let rig = quick_stats().await;
    rig.driver.configure(|config| config.node.remove(NodeCapability::GetVolumeStats));
    volume(&rig, json!({})).await;
    rig.create_pod(pod_of("p", &["data"], STAY)).await;
    rig.wait_phase("p", "Running").await;
    rig.until("it is in the summary", async || in_summary(&rig, "p")["podRef"]["name"] == "p")
        .await;
    assert!(in_summary(&rig, "p")["volume"].is_null());
    assert!(rig.heard.stats().is_empty());
    assert!(!rig.metrics.render().contains("kubelet_volume_stats_capacity_bytes{"));
    rig.end("p").await;
    for operation in ["volume_unmount", "unmount_device"] {
        let line = format!(
            "storage_operation_duration_seconds_count{{volume_plugin=\"kubernetes.io/csi:{DRIVER}\",\
             operation_name=\"{operation}\",status=\"success\",migrated=\"false\"}}"
        );
        rig.until(operation, async || rig.metric(&line) == 1.0).await;
    }
    rig.stop(true).await;
}
