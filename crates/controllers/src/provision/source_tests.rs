//! Claims that are filled from snapshots and other claims, over the real API server.

use std::time::Duration;

use longshore_cluster::{DeleteParams, Patch};
use longshore_core::model::{
    Kind, ObjectKey,
    keys::finalizers::{CLONING_PROTECTION, SNAPSHOT_SOURCE_PROTECTION},
    kinds::{Event, VolumeAttributesClass, VolumeSnapshot, VolumeSnapshotContent},
};
use longshore_csi::{Call, capabilities::ControllerCapability as Cap, fake::Fault, v1};
use serde_json::{Value, json};

use super::testing::{Bench, DRIVER};
use crate::Driver;

const GROUP: &str = "snapshot.storage.k8s.io";

/// A snapshot `snap` of the volume of claim `origin`, as a snapshot controller would leave it.
async fn take_snapshot(bench: &Bench) -> String {
    let handle = bench.until_bound("origin").await.spec.csi.unwrap().volume_handle;
    let request = v1::CreateSnapshotRequest {
        name: "snap".into(),
        source_volume_id: handle.to_string(),
        ..Default::default()
    };
    let made = bench.driver.client().create_snapshot(request).await.unwrap().snapshot.unwrap();
    let snapshot = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": "snap", "namespace": "default"},
        "spec": {"source": {"persistentVolumeClaimName": "origin"}}});
    let snapshot = bench.api.create::<VolumeSnapshot>(&snapshot).await.unwrap();
    let content = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": "content"},
        "spec": {"deletionPolicy": "Delete", "driver": DRIVER, "source": {"volumeHandle": handle},
            "volumeSnapshotRef": {"namespace": "default", "name": "snap",
                "uid": snapshot["metadata"]["uid"]}}});
    bench.api.create::<VolumeSnapshotContent>(&content).await.unwrap();
    let status = json!({"status": {"snapshotHandle": made.snapshot_id, "readyToUse": true}});
    status_of::<VolumeSnapshotContent>(bench, &ObjectKey::cluster("content"), &status).await;
    let status = json!({"status": {"boundVolumeSnapshotContentName": "content", "readyToUse": true,
        "restoreSize": "10Mi"}});
    status_of::<VolumeSnapshot>(bench, &snap(), &status).await;
    made.snapshot_id
}

async fn status_of<T: Kind>(bench: &Bench, key: &ObjectKey, status: &Value) {
    bench.api.patch_status::<T>(key, Patch::Merge(status)).await.unwrap();
}

fn snap() -> ObjectKey {
    ObjectKey::new("default", "snap")
}

fn restore() -> Value {
    json!({"storageClassName": "fast",
        "dataSource": {"apiGroup": GROUP, "kind": "VolumeSnapshot", "name": "snap"}})
}

fn clone() -> Value {
    json!({"storageClassName": "fast",
        "dataSource": {"kind": "PersistentVolumeClaim", "name": "origin"}})
}

async fn is_held(bench: &Bench) -> bool {
    let snapshot = bench.api.get::<VolumeSnapshot>(&snap()).await.unwrap().unwrap();
    snapshot.metadata.has_finalizer(SNAPSHOT_SOURCE_PROTECTION)
}

async fn origin_is_held(bench: &Bench) -> bool {
    let origin = bench.get_claim("origin").await;
    origin.is_some_and(|claim| claim.metadata.has_finalizer(CLONING_PROTECTION))
}

fn creations(bench: &Bench) -> Vec<String> {
    bench.driver.calls_of(Call::CreateVolume).into_iter().map(|call| call.request).collect()
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_restored() {
    // case: provisioner/85
    let mut bench = Bench::with_snapshots().await;
    bench.start();
    bench.claim("origin", "fast").await;
    let handle = take_snapshot(&bench).await;
    bench.driver.clear_calls();
    bench.driver.script(Call::CreateVolume, [Fault::Delay(Duration::from_secs(5))]);
    bench.claim_with("data", restore()).await;
    bench.until("the call is under way", || async { !creations(&bench).is_empty() }).await;
    assert!(is_held(&bench).await, "the finalizer is there before the driver is asked");
    bench.until_bound("data").await;
    assert!(creations(&bench)[0].contains(handle.as_str()), "{:?}", creations(&bench));
    bench.until("the snapshot may go", || async { !is_held(&bench).await }).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_becomes_ready_later_is_restored_then() {
    // case: provisioner/86
    let mut bench = Bench::with_snapshots().await;
    bench.start();
    bench.claim("origin", "fast").await;
    take_snapshot(&bench).await;
    status_of::<VolumeSnapshot>(&bench, &snap(), &json!({"status": {"readyToUse": false}})).await;
    bench.driver.clear_calls();
    bench.claim_with("data", restore()).await;
    let start = "error getting handle for DataSource Type VolumeSnapshot by Name snap: ";
    bench.until_told("data", &format!("{start}snapshot snap is not Ready")).await;
    assert!(creations(&bench).is_empty() && !is_held(&bench).await);
    status_of::<VolumeSnapshot>(&bench, &snap(), &json!({"status": {"readyToUse": true}})).await;
    bench.until_bound("data").await;
    // One that is not there at all.
    let missing = json!({"storageClassName": "fast",
        "dataSource": {"apiGroup": GROUP, "kind": "VolumeSnapshot", "name": "none"}});
    bench.claim_with("lost", missing).await;
    let text = "error getting handle for DataSource Type VolumeSnapshot by Name none: error getting snapshot none from api server: volumesnapshots.snapshot.storage.k8s.io \"none\" not found";
    bench.until_told("lost", text).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_the_source_is_not_taken() {
    // case: provisioner/88
    let mut bench = Bench::with_snapshots().await;
    bench.start();
    bench.claim("origin", "fast").await;
    take_snapshot(&bench).await;
    bench.driver.configure(|config| {
        config.alter_created_volume = Some(|volume| volume.content_source = None)
    });
    bench.claim_with("data", restore()).await;
    bench.until_told("data", "volume content source missing").await;
    bench.until("it is deleted", || async { bench.driver.volumes().len() == 1 }).await;
    assert_eq!(bench.intents().await, 0);
    assert!(is_held(&bench).await, "a failed restore keeps the snapshot");
    // The driver cannot even delete it: the sentence says so, and later nothing is left anyway.
    bench.driver.always(Call::DeleteVolume, Fault::Before(13.into(), "stuck".into()));
    bench
        .until("the orphan is told of", || async {
            let all = bench.all::<Event>().await;
            all.iter().any(|event| {
                event.message.starts_with("volume content source missing. cleanup of volume pvc-")
                    && event.message.ends_with(
                        " failed, volume is orphaned: rpc error: code = Internal desc = stuck",
                    )
            })
        })
        .await;
    bench.driver.clear_faults();
    bench.driver.configure(|config| config.alter_created_volume = None);
    bench.until_bound("data").await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_too_small_is_removed() {
    // case: provisioner/76
    let mut bench = Bench::new().await;
    bench.driver.configure(|config| {
        config.alter_created_volume = Some(|volume| volume.capacity_bytes -= 1)
    });
    bench.start();
    bench.claim("data", "fast").await;
    let text = "created volume capacity 10485759 less than requested capacity 10485760";
    bench.until_told("data", text).await;
    bench.until("it is gone", || async { bench.driver.volumes().is_empty() }).await;
    assert_eq!(bench.driver.calls_of(Call::DeleteVolume).len(), creations(&bench).len());
    bench.driver.clear_calls();
    bench.driver.always(Call::DeleteVolume, Fault::Before(13.into(), "stuck".into()));
    bench
        .until("five attempts were made", || async {
            bench.driver.calls_of(Call::DeleteVolume).len() >= 5
        })
        .await;
    assert_eq!(creations(&bench).len(), 1, "all five for one answer");
    bench
        .until("the orphan is told of", || async {
            let all = bench.all::<Event>().await;
            all.iter()
                .any(|event| event.message.starts_with(&format!("{text}. Cleanup of volume ")))
        })
        .await;
    // The record stands for it, also when the claim goes.
    assert_eq!(bench.intents().await, 1);
    bench.delete_claim("data").await;
    bench.driver.clear_faults();
    bench.driver.configure(|config| config.alter_created_volume = None);
    bench.until_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_may_not_be_marked_is_restored_anyway() {
    // case: provisioner/91
    let mut bench = Bench::with_snapshots().await;
    bench.start();
    bench.claim("origin", "fast").await;
    take_snapshot(&bench).await;
    bench.crash().await;
    bench.forbidden = Some("volumesnapshots".into());
    bench.start();
    bench.claim_with("data", restore()).await;
    bench.until_bound("data").await;
    assert!(!is_held(&bench).await);
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_cloned() {
    // case: provisioner/93
    let mut bench = Bench::new().await;
    bench.class("other", "Immediate", json!({})).await;
    bench.start();
    bench.claim("origin", "fast").await;
    let handle = bench.until_bound("origin").await.spec.csi.unwrap().volume_handle;
    bench.driver.clear_calls();
    bench.claim_with("data", clone()).await;
    bench.until_bound("data").await;
    assert!(creations(&bench)[0].contains(handle.as_str()), "{:?}", creations(&bench));
    assert!(origin_is_held(&bench).await);
    // case: provisioner/94
    let mut other = clone();
    other["storageClassName"] = json!("other");
    bench.claim_with("more", other).await;
    bench.until_bound("more").await;
    // A live source keeps the finalizer; a deleted one loses it at once (case: provisioner/98).
    bench.delete_claim("origin").await;
    bench.until("the source is gone", || async { bench.get_claim("origin").await.is_none() }).await;
    for name in ["data", "more"] {
        bench.delete_claim(name).await;
    }
    bench.until_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_source_that_does_not_fit_is_not_marked() {
    // case: provisioner/95
    let mut bench = Bench::new().await;
    bench.start();
    bench.claim("origin", "fast").await;
    bench.until_bound("origin").await;
    bench.driver.clear_calls();
    let start = "error getting handle for DataSource Type PersistentVolumeClaim by Name ";
    let mut small = clone();
    small["resources"] = json!({"requests": {"storage": "1Mi"}});
    bench.claim_with("small", small).await;
    let text = "origin: error, new PVC request must be greater than or equal in size to the specified PVC data source, requested 1048576 but source is 10485760";
    bench.until_told("small", &format!("{start}{text}")).await;
    let mut missing = clone();
    missing["dataSource"]["name"] = json!("none");
    bench.claim_with("lost", missing).await;
    let text = "none: error getting PVC none (namespace \"default\") from api server: persistentvolumeclaim \"none\" not found";
    bench.until_told("lost", &format!("{start}{text}")).await;
    assert!(!origin_is_held(&bench).await && creations(&bench).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_clone_that_is_too_small_keeps_its_source() {
    // case: provisioner/97
    let mut bench = Bench::new().await;
    bench.start();
    bench.claim("origin", "fast").await;
    bench.until_bound("origin").await;
    bench.driver.configure(|config| {
        config.alter_created_volume = Some(|volume| volume.capacity_bytes -= 1)
    });
    bench.claim_with("data", clone()).await;
    let text = "created volume capacity 10485759 less than requested capacity 10485760";
    bench.until_told("data", text).await;
    assert!(origin_is_held(&bench).await);
    assert!(!bench.driver.calls_of(Call::DeleteVolume).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_source_stays_until_its_clones_are_there() {
    // case: provisioner/98
    let mut bench = Bench::new().await;
    bench.start();
    bench.claim("origin", "fast").await;
    bench.until_bound("origin").await;
    bench.driver.script(Call::CreateVolume, [Fault::Delay(Duration::from_secs(9))]);
    bench.claim_with("data", clone()).await;
    bench.until("the source is held", || async { origin_is_held(&bench).await }).await;
    bench.delete_claim("origin").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(origin_is_held(&bench).await, "the clone is pending");
    bench.until_bound("data").await;
    bench.until("the source is gone", || async { bench.get_claim("origin").await.is_none() }).await;
    bench.delete_claim("data").await;
    bench.until_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_source_does_not_stop_a_clone_that_was_begun() {
    // Without the record of the call both would wait for each other for ever.
    let mut bench = Bench::new().await;
    bench.start();
    bench.claim("origin", "fast").await;
    bench.until_bound("origin").await;
    bench.driver.script(Call::CreateVolume, [Fault::HangAfter]);
    bench.claim_with("data", clone()).await;
    bench.until("the clone is made", || async { bench.driver.volumes().len() == 2 }).await;
    bench.crash().await;
    bench.delete_claim("origin").await;
    bench.start();
    bench.until_bound("data").await;
    bench.until("the source is gone", || async { bench.get_claim("origin").await.is_none() }).await;
    bench.until("so is its volume", || async { bench.driver.volumes().len() == 1 }).await;
}

#[tokio::test(start_paused = true)]
async fn the_sweep_frees_snapshots_that_nobody_restores() {
    // case: provisioner/99
    let mut bench = Bench::with_snapshots().await;
    bench.start();
    bench.claim("origin", "fast").await;
    take_snapshot(&bench).await;
    bench.driver.always(Call::CreateVolume, Fault::Before(13.into(), "no".into()));
    bench.claim_with("data", restore()).await;
    bench.until("the snapshot is held", || async { is_held(&bench).await }).await;
    tokio::time::sleep(Duration::from_secs(700)).await;
    assert!(is_held(&bench).await, "a claim waits for it");
    let foreign =
        json!({"metadata": {"finalizers": ["example.com/other", SNAPSHOT_SOURCE_PROTECTION]}});
    bench.api.patch::<VolumeSnapshot>(&snap(), Patch::Merge(&foreign)).await.unwrap();
    bench.delete_claim("data").await;
    bench.until("the snapshot is free", || async { !is_held(&bench).await }).await;
    let left = bench.api.get::<VolumeSnapshot>(&snap()).await.unwrap().unwrap();
    assert_eq!(left.metadata.finalizers, ["example.com/other"]);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_held_until_the_last_claim_that_waits_for_it_has_its_volume() {
    let mut bench = Bench::with_snapshots().await;
    bench.start();
    bench.claim("origin", "fast").await;
    take_snapshot(&bench).await;
    let mut later = restore();
    later["storageClassName"] = json!("late");
    bench.claim_with("later", later).await;
    bench.claim_with("now", restore()).await;
    bench.until_bound("now").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(is_held(&bench).await, "it would be gone when the other claim is filled from it");
    bench.delete_claim("later").await;
    bench.until("the snapshot is free", || async { !is_held(&bench).await }).await;
    for name in ["a", "b"] {
        bench.claim_with(name, restore()).await;
    }
    for name in ["a", "b"] {
        bench.until_bound(name).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!is_held(&bench).await, "the last one frees it, not a sweep");
}

#[tokio::test(start_paused = true)]
async fn the_sweep_lists_snapshots_once() {
    let mut bench = Bench::with_snapshots().await;
    bench.start();
    bench.claim("origin", "fast").await;
    take_snapshot(&bench).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    // Put on behind our back, after the only list: nobody knows of it until the next start.
    let foreign = json!({"metadata": {"finalizers": [SNAPSHOT_SOURCE_PROTECTION]}});
    bench.api.patch::<VolumeSnapshot>(&snap(), Patch::Merge(&foreign)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(700)).await;
    assert!(is_held(&bench).await);
    bench.crash().await;
    bench.start();
    bench.until("the snapshot is free", || async { !is_held(&bench).await }).await;
}

#[tokio::test(start_paused = true)]
async fn a_driver_without_snapshots_sweeps_nothing() {
    // case: provisioner/99
    let mut bench = Bench::with_snapshots().await;
    bench.driver.configure(|config| config.controller.remove(Cap::CreateDeleteSnapshot));
    let snapshot = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": "snap", "namespace": "default", "finalizers": [SNAPSHOT_SOURCE_PROTECTION]},
        "spec": {"source": {"persistentVolumeClaimName": "origin"}}});
    bench.api.create::<VolumeSnapshot>(&snapshot).await.unwrap();
    bench.start();
    tokio::time::sleep(Duration::from_secs(700)).await;
    assert!(is_held(&bench).await);
    bench.crash().await;
    bench.driver.configure(|config| config.controller.insert(Cap::CreateDeleteSnapshot));
    bench.start();
    bench.until("the snapshot is free", || async { !is_held(&bench).await }).await;
}

#[tokio::test(start_paused = true)]
async fn attributes_of_a_class_reach_the_driver() {
    let mut bench = Bench::new().await;
    bench.start();
    let named = |name: &str| json!({"storageClassName": "fast", "volumeAttributesClassName": name});
    bench.claim_with("data", named("silver")).await;
    // case: provisioner/82
    bench.until_told("data", "volumeattributesclasses.storage.k8s.io \"silver\" not found").await;
    let class = |name: &str, driver: &str, key: &str| {
        json!({"apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttributesClass", "metadata": {"name": name}, "driverName": driver,
            "parameters": {key: "500"}})
    };
    let all = [("silver", DRIVER, "iops"), ("alien", "other.test", "iops"), ("odd", DRIVER, "bad")];
    for (name, driver, key) in all {
        bench.api.create::<VolumeAttributesClass>(&class(name, driver, key)).await.unwrap();
    }
    // case: provisioner/81
    let volume = bench.until_bound("data").await;
    assert_eq!(volume.spec.volume_attributes_class_name.as_deref(), Some("silver"));
    let made = bench.driver.volume_named(&volume.metadata.name).unwrap();
    assert_eq!(made.mutable_parameters["iops"], "500");
    // case: provisioner/82
    bench.claim_with("alien", named("alien")).await;
    let text = format!(
        "VAC alien referenced in PVC is for driver other.test which does not match driver name {DRIVER}"
    );
    bench.until_told("alien", &text).await;
    // A class that the driver refuses rests, as any infeasible request does.
    bench.driver.configure(|config| config.refused_parameters = vec!["bad".into()]);
    bench.claim_with("odd", named("odd")).await;
    let text = "Volume provisioning failed with infeasible error. Retries will be delayed. rpc error: code = InvalidArgument desc = parameter bad is not supported";
    bench.until_told("odd", text).await;
}

#[tokio::test(start_paused = true)]
async fn attributes_are_passed_over_without_the_feature() {
    // case: provisioner/81 gate off
    let mut bench = Bench::new().await;
    bench.config.plan.attributes_classes = false;
    bench.driver.configure(|config| config.controller.remove(Cap::ModifyVolume));
    bench.start();
    let spec = json!({"storageClassName": "fast", "volumeAttributesClassName": "silver"});
    bench.claim_with("data", spec).await;
    bench.until("a volume is made", || async { !bench.driver.volumes().is_empty() }).await;
    let made = bench.driver.volumes().into_values().next().unwrap();
    assert!(made.mutable_parameters.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_driver_without_a_name_is_not_started_with() {
    // case: provisioner/84
    let bench = Bench::new().await;
    let wait = Duration::from_secs(10);
    bench.driver.configure(|config| config.name = String::new());
    assert!(Driver::describe_when_ready(&bench.driver.client(), wait).await.is_err());
    bench.driver.configure(|config| config.name = DRIVER.into());
    bench.driver.script(Call::GetPluginInfo, [Fault::Before(13.into(), "no".into())]);
    assert!(Driver::describe_when_ready(&bench.driver.client(), wait).await.is_err());
    assert!(Driver::describe_when_ready(&bench.driver.client(), wait).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_is_no_status_has_no_verdict() {
    // case: provisioner/79
    let mut bench = Bench::new().await;
    bench.driver.script(Call::CreateVolume, [Fault::HangAfter]);
    bench.start();
    bench.claim("data", "fast").await;
    bench.until("the volume is made", || async { !bench.driver.volumes().is_empty() }).await;
    // The connection breaks under the call: no status ever arrives.
    bench.driver.sever();
    bench
        .until("it is told", || async {
            let told = bench.events("data").await;
            told.iter().any(|event| event == "Warning ProvisioningFailed")
        })
        .await;
    assert_eq!(bench.intents().await, 1, "what may have been made is not forgotten");
    bench.until_bound("data").await;
    assert_eq!(bench.driver.volumes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn only_attachments_of_the_volume_count() {
    // case: provisioner/116
    type Attachment = longshore_core::model::kinds::VolumeAttachment;
    let mut bench = Bench::new().await;
    bench.start();
    bench.claim("data", "fast").await;
    let volume = bench.until_bound("data").await.metadata.name;
    let attachment = |name: &str, volume: &str| {
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": name, "finalizers": ["test/keep"]},
            "spec": {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": volume}}})
    };
    for (name, volume) in [("ours", volume.as_str()), ("another", "another")] {
        bench.api.create::<Attachment>(&attachment(name, volume)).await.unwrap();
    }
    let ours = ObjectKey::cluster("ours");
    bench.delete_claim("data").await;
    let text = format!("persistentvolume {volume} is still attached to node n1");
    bench.until_told(&volume, &text).await;
    status_of::<Attachment>(&bench, &ours, &json!({"status": {"attached": true}})).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    bench.api.delete::<Attachment>(&ours, &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(bench.driver.calls_of(Call::DeleteVolume).is_empty(), "it goes, but is there");
    let free = json!({"metadata": {"finalizers": null}});
    bench.api.patch::<Attachment>(&ours, Patch::Merge(&free)).await.unwrap();
    bench.until_clean().await;
}
