//! The binder over the real API server.

use std::time::Duration;

use longshore_core::model::{AccessMode, ClaimPhase, VolumePhase};
use serde_json::json;

use crate::provision::testing::Bench;

#[tokio::test(start_paused = true)]
async fn a_claim_takes_the_smallest_free_volume() {
    // case: pv-controller/5-2 case: pv-controller/5-2-2 case: pv-controller/10-1
    let mut bench = Bench::new().await;
    bench.volume("big", json!({"capacity": {"storage": "1Gi"}})).await;
    bench.volume("small", json!({})).await;
    bench.claim_with("before", json!({})).await;
    bench.start();
    assert_eq!(bench.until_bound("before").await.metadata.name, "small");
    bench.claim_with("after", json!({})).await;
    let volume = bench.until_bound("after").await;
    assert_eq!(volume.metadata.name, "big");
    assert_eq!(volume.metadata.annotation("pv.kubernetes.io/bound-by-controller"), Some("yes"));
    let claim = bench.get_claim("after").await.unwrap();
    assert_eq!(claim.status.capacity["storage"].to_string(), "1Gi");
    assert_eq!(claim.status.access_modes, [AccessMode::ReadWriteOnce]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_does_not_complain_while_its_volume_is_new() {
    let mut bench = Bench::new().await;
    bench.volume("pv", json!({})).await;
    bench.claim_with("data", json!({})).await;
    bench.start();
    bench.until_bound("data").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(bench.events("data").await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_claim_hears_of_a_new_volume() {
    let mut bench = Bench::new().await;
    bench.start();
    bench.claim_with("data", json!({})).await;
    bench
        .until("nothing fits", || async {
            bench.events("data").await.iter().any(|event| event == "Normal FailedBinding")
        })
        .await;
    assert_eq!(bench.get_claim("data").await.unwrap().status.phase, ClaimPhase::Pending);
    let before = tokio::time::Instant::now();
    bench.volume("pv", json!({})).await;
    bench.until_bound("data").await;
    assert!(before.elapsed() < Duration::from_secs(10), "woken by the event, not by the clock");
}

#[tokio::test(start_paused = true)]
async fn many_claims_never_share_a_volume() {
    let mut bench = Bench::new().await;
    for index in 0..30 {
        bench.volume(&format!("pv-{index}"), json!({})).await;
        bench.claim_with(&format!("data-{index}"), json!({})).await;
    }
    bench.start();
    let mut taken = std::collections::BTreeSet::new();
    for index in 0..30 {
        let volume = bench.until_bound(&format!("data-{index}")).await;
        assert!(taken.insert(volume.metadata.name), "a volume was given twice");
    }
}

#[tokio::test(start_paused = true)]
async fn a_retained_volume_is_released_and_kept() {
    // case: pv-controller/5-3
    let mut bench = Bench::new().await;
    bench.volume("pv", json!({})).await;
    bench.start();
    bench.claim_with("data", json!({})).await;
    bench.until_bound("data").await;
    bench.delete_claim("data").await;
    bench
        .until("it is released", || async {
            bench.get_volume("pv").await.unwrap().status.phase == VolumePhase::Released
        })
        .await;
    let volume = bench.get_volume("pv").await.unwrap();
    assert_eq!(volume.metadata.annotation("pv.kubernetes.io/bound-by-controller"), Some("yes"));
    // A new claim of the same name is another claim, and does not get the data.
    bench.claim_with("data", json!({})).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bench.get_claim("data").await.unwrap().status.phase, ClaimPhase::Pending);
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_volume_is_deleted_is_lost() {
    // case: pv-controller/5-4
    let mut bench = Bench::new().await;
    bench.volume("pv", json!({})).await;
    bench.start();
    bench.claim_with("data", json!({})).await;
    bench.until_bound("data").await;
    type Volume = longshore_core::model::kinds::Volume;
    let key = longshore_core::model::ObjectKey::cluster("pv");
    let patch = json!({"metadata": {"finalizers": null}});
    bench.api.delete::<Volume>(&key, &Default::default()).await.unwrap();
    bench.api.patch::<Volume>(&key, longshore_cluster::Patch::Merge(&patch)).await.unwrap();
    bench
        .until("the claim is lost", || async {
            bench.get_claim("data").await.unwrap().status.phase == ClaimPhase::Lost
        })
        .await;
    bench
        .until("it is told", || async {
            bench.events("data").await.iter().any(|event| event == "Warning ClaimLost")
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_default_class_comes_late() {
    let mut bench = Bench::new().await;
    bench.start();
    bench.claim_with("data", json!({})).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(bench.get_claim("data").await.unwrap().spec.storage_class_name, None);
    let patch = json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}});
    type Class = longshore_core::model::kinds::StorageClass;
    let key = longshore_core::model::ObjectKey::cluster("fast");
    bench.api.patch::<Class>(&key, longshore_cluster::Patch::Merge(&patch)).await.unwrap();
    bench.until_bound("data").await;
    let class = bench.get_claim("data").await.unwrap().spec.storage_class_name;
    assert_eq!(class.as_deref(), Some("fast"));
}

#[tokio::test(start_paused = true)]
async fn a_kept_volume_waits_for_its_claim() {
    let mut bench = Bench::new().await;
    let kept = json!({"claimRef": {"namespace": "default", "name": "data"}, "capacity": {"storage": "1Gi"}});
    bench.volume("kept", kept).await;
    bench.volume("free", json!({})).await;
    bench.start();
    bench.claim_with("data", json!({})).await;
    let volume = bench.until_bound("data").await;
    assert_eq!(volume.metadata.name, "kept");
    assert_eq!(volume.metadata.annotation("pv.kubernetes.io/bound-by-controller"), None);
}

#[tokio::test(start_paused = true)]
async fn a_second_volume_of_one_claim_is_let_go() {
    // case: pv-controller/10-2
    let mut bench = Bench::new().await;
    let claim = bench.claim_with("data", json!({"volumeName": "first"})).await;
    let reference = json!({"namespace": "default", "name": "data", "uid": claim.metadata.uid});
    for name in ["first", "second"] {
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": name, "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Mi"},
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/srv"},
                "claimRef": reference}});
        bench.api.create::<longshore_core::model::kinds::Volume>(&volume).await.unwrap();
    }
    bench.start();
    assert_eq!(bench.until_bound("data").await.metadata.name, "first");
    bench
        .until("the second is free", || async {
            let second = bench.get_volume("second").await.unwrap();
            second.status.phase == VolumePhase::Available && second.spec.claim_ref.is_none()
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_the_same_name_is_another_claim() {
    // case: pv-controller/4-4
    let mut bench = Bench::new().await;
    let reference = json!({"namespace": "default", "name": "data", "uid": "an-earlier-one"});
    bench.volume("pv", json!({"claimRef": reference})).await;
    bench.claim_with("data", json!({})).await;
    bench.start();
    bench
        .until("it is released", || async {
            bench.get_volume("pv").await.unwrap().status.phase == VolumePhase::Released
        })
        .await;
    let claim = bench.get_claim("data").await.unwrap();
    assert_eq!((claim.spec.volume_name.as_str(), claim.status.phase.as_str()), ("", "Pending"));
}

#[tokio::test(start_paused = true)]
async fn a_provisioner_is_asked_before_the_claim_is_bound() {
    // case: pv-controller/12-2 (at once) case: pv-controller/12-4 (once a node is chosen)
    let mut bench = Bench::new().await;
    bench.node("n1", "a").await;
    bench.start();
    bench.claim("now", "fast").await;
    bench.claim("late", "late").await;
    let asked = "Normal ExternalProvisioning".to_owned();
    for claim in ["now", "late"] {
        if claim == "late" {
            bench.select_node("late", "n1").await;
        }
        bench.until_bound(claim).await;
        assert!(bench.events(claim).await.contains(&asked), "{claim}");
    }
    let provision = "volume_operation_total_seconds_count{plugin_name=\"test.csi.longshore.dev\",operation_name=\"provision\"} 2";
    let text = bench.metrics.render();
    assert!(text.contains(provision), "{text}");
    for line in [
        "pv_collector_bound_pv_count{storage_class=\"fast\"} 1",
        "pv_collector_bound_pvc_count{namespace=\"default\",storage_class=\"late\",volume_attributes_class=\"\"} 1",
        "pv_collector_total_pv_count{plugin_name=\"N/A\",volume_mode=\"Filesystem\"} 2",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}
