//! The expansion controller over the real API server.

use std::time::Duration;

use longshore_core::model::{
    ObjectKey,
    kinds::{Claim, StorageClass, Volume},
};
use serde_json::{Value, json};

use super::Expander;
use crate::testing::{Bench, DRIVER, Process, key};

fn start(bench: &Bench) -> Process {
    let mut process = bench.process();
    let expander = Expander::new(&process.context);
    let shutdown = process.shutdown.clone();
    process.spawn(expander.run(shutdown));
    process
}

/// A bound claim of 1Gi whose class lets it grow; `source` is the volume's.
async fn bound(bench: &Bench, name: &str, source: Value) {
    let uid = bench.claim(name, "grows").await;
    bind(bench, name, &uid, source).await;
}

/// Binds a claim to a volume with this source.
async fn bind(bench: &Bench, name: &str, uid: &str, source: Value) {
    let mut spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "storageClassName": "grows",
        "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1",
            "namespace": "default", "name": name, "uid": uid}});
    spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    let volume = format!("pv-{name}");
    bench.create::<Volume>(json!({"metadata": {"name": volume}, "spec": spec})).await;
    let named = json!({"spec": {"volumeName": volume},
        "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}});
    bench.merge::<Claim>(&key(name), named).await;
    let status = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
    bench.merge_status::<Claim>(&key(name), status).await;
}

async fn grow(bench: &Bench, name: &str) {
    let more = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    bench.merge::<Claim>(&key(name), more).await;
}

async fn world() -> Bench {
    let bench = Bench::start().await;
    bench
        .create::<StorageClass>(json!({"metadata": {"name": "grows"}, "provisioner": DRIVER,
            "allowVolumeExpansion": true}))
        .await;
    bench
}

#[tokio::test(start_paused = true)]
async fn a_growing_claim_is_told_whom_it_waits_for() {
    // case: pv-controller/exp-csi
    let bench = world().await;
    let _process = start(&bench);
    bound(&bench, "data", json!({"csi": {"driver": DRIVER, "volumeHandle": "h"}})).await;
    bench.pass(Duration::from_secs(5)).await;
    assert_eq!(bench.events("ExternalExpanding").await, [""; 0], "it has what it asks for");
    grow(&bench, "data").await;
    bench.pass(Duration::from_secs(5)).await;
    let want = "waiting for an external controller to expand this PVC";
    assert_eq!(bench.events("ExternalExpanding").await, [want]);
    let claim = bench.get::<Claim>(&key("data")).await.expect("there");
    assert_eq!(claim.metadata.annotation("volume.kubernetes.io/storage-resizer"), None);
}

#[tokio::test(start_paused = true)]
async fn the_driver_that_took_over_is_written_down() {
    // case: pv-controller/exp-mig
    let bench = world().await;
    let _process = start(&bench);
    bound(&bench, "data", json!({"awsElasticBlockStore": {"volumeID": "vol-1"}})).await;
    grow(&bench, "data").await;
    let named = |claim: &Claim| {
        claim.metadata.annotation("volume.kubernetes.io/storage-resizer") == Some("ebs.csi.aws.com")
    };
    bench.until::<Claim>(&key("data"), named).await;
    let want = "CSI migration enabled for kubernetes.io/aws-ebs; waiting for external resizer to expand the pvc";
    assert_eq!(bench.events("ExternalExpanding").await, [want]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_another_claim_is_asked_about_until_it_is_ours() {
    // case: pv-controller/exp-unbound
    let bench = world().await;
    bound(&bench, "data", json!({"csi": {"driver": DRIVER, "volumeHandle": "h"}})).await;
    let pv = ObjectKey::cluster("pv-data");
    let ours = bench.get::<Volume>(&pv).await.and_then(|pv| pv.spec.claim_ref).expect("bound");
    bench.merge::<Volume>(&pv, json!({"spec": {"claimRef": {"uid": "other"}}})).await;
    grow(&bench, "data").await;
    let _process = start(&bench);
    bench.pass(Duration::from_secs(5)).await;
    assert_eq!(bench.events("ExternalExpanding").await, [""; 0]);
    bench.merge::<Volume>(&pv, json!({"spec": {"claimRef": {"uid": ours.uid}}})).await;
    // No change of the claim: the turn that failed comes back by itself.
    bench.pass(Duration::from_secs(60)).await;
    assert_eq!(bench.events("ExternalExpanding").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_flex_volume_is_left_to_its_node() {
    let bench = world().await;
    let _process = start(&bench);
    bound(&bench, "data", json!({"flexVolume": {"driver": "example.com/flex"}})).await;
    grow(&bench, "data").await;
    let stands = |status: &'static str| {
        move |claim: &Claim| {
            let now = claim.status.allocated_resource_statuses.get("storage");
            now.map(String::as_str).unwrap_or_default() == status
        }
    };
    let claim = bench.until::<Claim>(&key("data"), stands("NodeResizePending")).await;
    let resizer = claim.metadata.annotation("volume.kubernetes.io/storage-resizer");
    assert_eq!(resizer, Some("example.com/flex"));
    let size = |amounts: &std::collections::BTreeMap<String, _>| {
        amounts.get("storage").map(ToString::to_string)
    };
    assert_eq!(size(&claim.status.allocated_resources).as_deref(), Some("2Gi"));
    assert_eq!(size(&claim.status.capacity).as_deref(), Some("1Gi"));
    let kinds: Vec<&str> = claim.status.conditions.iter().map(|one| one.kind.as_str()).collect();
    assert_eq!(kinds, ["Resizing", "FileSystemResizePending"]);
    let (pv, note) =
        (ObjectKey::cluster("pv-data"), "volume.alpha.kubernetes.io/pre-resize-capacity");
    let volume = bench.get::<Volume>(&pv).await.expect("there");
    assert_eq!(volume.capacity().to_string(), "2Gi");
    assert_eq!(volume.metadata.annotation(note), Some("1Gi"));

    // The node is done.
    let done = json!({"status": {"capacity": {"storage": "2Gi"}, "conditions": null,
        "allocatedResourceStatuses": null}});
    bench.merge_status::<Claim>(&key("data"), done).await;
    bench.until::<Volume>(&pv, |volume| volume.metadata.annotation(note).is_none()).await;
    for reason in ["ExternalExpanding", "VolumeResizeFailed", "VolumeResizeSuccessful"] {
        assert_eq!(bench.events(reason).await, [""; 0], "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_raw_flex_volume_has_grown_at_once() {
    let bench = world().await;
    let _process = start(&bench);
    let block = json!({"metadata": {"name": "raw", "namespace": "default"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "grows", "volumeMode": "Block",
        "resources": {"requests": {"storage": "1Gi"}}}});
    let made = bench.create::<Claim>(block).await;
    bind(
        &bench,
        "raw",
        made["metadata"]["uid"].as_str().expect("a uid"),
        json!({"flexVolume": {"driver": "example.com/flex"}, "volumeMode": "Block"}),
    )
    .await;
    grow(&bench, "raw").await;
    let grown = |claim: &Claim| {
        claim.status.capacity.get("storage").is_some_and(|size| size.to_string() == "2Gi")
    };
    let claim = bench.until::<Claim>(&key("raw"), grown).await;
    assert!(
        claim.status.conditions.is_empty() && claim.status.allocated_resource_statuses.is_empty()
    );
    let volume = bench.get::<Volume>(&ObjectKey::cluster("pv-raw")).await.expect("there");
    assert_eq!(volume.capacity().to_string(), "2Gi");
    let want = "ExpandVolume succeeded for volume default/raw";
    assert_eq!(bench.events("VolumeResizeSuccessful").await, [want]);
}
