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
    let expander = Expander {
        api: process.api.clone(),
        claims: process.caches.of(),
        recorder: bench.recorder("volume_expand"),
        metrics: None,
    };
    let shutdown = process.shutdown.clone();
    process.spawn(expander.run(shutdown));
    process
}

/// A bound claim of 1Gi whose class lets it grow; `source` is the volume's.
async fn bound(bench: &Bench, name: &str, source: Value) {
    let uid = bench.claim(name, "grows").await;
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
