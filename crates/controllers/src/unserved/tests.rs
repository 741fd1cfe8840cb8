//! The loop over the real API server, in virtual time.

use std::path::Path;
use std::time::Duration;

use longshore_cluster::clock;
use longshore_core::model::kinds::{
    Claim, Event, Lease, Pod, Volume, VolumeSnapshot, VolumeSnapshotContent,
};
use longshore_core::model::{ObjectKey, keys::annotations};
use longshore_core::unserved::Server;
use serde_json::json;

use super::{REASON, Serving, Unserved};
use crate::testing::{Bench, DRIVER, Process, key};

const SOON: Duration = Duration::from_secs(5);

fn start(bench: &Bench, serving: &Serving) -> Process {
    let mut process = bench.process();
    let unserved = Unserved::new(&process.context, serving.clone());
    let shutdown = process.shutdown.clone();
    process.spawn(unserved.run(shutdown));
    process
}

fn serving() -> Serving {
    let serving = Serving::new(Path::new("/data/kubeconfig"));
    serving.add_driver(DRIVER, Path::new("/data/csi.sock"));
    serving
}

/// A bound claim of 1Gi that asks for `size`.
async fn growing(bench: &Bench, size: &str) {
    bench
        .create::<longshore_core::model::kinds::StorageClass>(json!({"metadata": {"name": "grows"},
        "provisioner": DRIVER, "allowVolumeExpansion": true}))
        .await;
    bench.claim("data", "grows").await;
    bench.bind("data", "pv-data", "h").await;
    let status = json!({"status": {"capacity": {"storage": "1Gi"}}});
    bench.merge_status::<Claim>(&key("data"), status).await;
    grow(bench, size).await;
}

async fn grow(bench: &Bench, size: &str) {
    let more = json!({"spec": {"resources": {"requests": {"storage": size}}}});
    bench.merge::<Claim>(&key("data"), more).await;
}

async fn lease(bench: &Bench, name: &str) {
    let now = format!("{:.6}", clock::now());
    bench
        .create::<Lease>(json!({"metadata": {"name": name, "namespace": "default"},
            "spec": {"holderIdentity": "other", "leaseDurationSeconds": 15, "renewTime": now}}))
        .await;
}

#[tokio::test(start_paused = true)]
async fn expansion_without_a_resizer_gets_one_event_per_size_across_restarts() {
    let bench = Bench::start().await;
    let process = start(&bench, &serving());
    growing(&bench, "2Gi").await;
    bench.pass(Duration::from_secs(2)).await;
    assert!(bench.events(REASON).await.is_empty(), "a resizer may still begin");
    bench.pass(SOON).await;
    let text = format!(
        "The expansion from 1Gi to 2Gi waits: no csi-resizer runs for driver {DRIVER}. Start the official \
         one beside this instance: csi-resizer --kubeconfig=/data/kubeconfig --csi-address=/data/csi.sock"
    );
    assert_eq!(bench.events(REASON).await, [text.as_str()]);
    process.kill();
    let _process = start(&bench, &serving());
    bench.pass(SOON).await;
    assert_eq!(bench.events(REASON).await, [text.as_str()], "not repeated by the next process");
    grow(&bench, "3Gi").await;
    bench.pass(SOON).await;
    assert_eq!(bench.events(REASON).await.len(), 2, "another size is another request");
}

#[tokio::test(start_paused = true)]
async fn request_that_a_part_a_lease_or_a_mark_answers_for_gets_no_event() {
    let part = serving();
    part.add(Server::Resizer(DRIVER.to_owned()));
    for (name, serving, leased, marked) in [
        ("part", part, false, false),
        ("lease", serving(), true, false),
        ("mark", serving(), false, true),
    ] {
        let bench = Bench::start().await;
        let _process = start(&bench, &serving);
        if leased {
            lease(&bench, &format!("external-resizer-{}", DRIVER.replace('.', "-"))).await;
        }
        growing(&bench, "2Gi").await;
        bench.pass(Duration::from_secs(1)).await;
        if marked {
            let resizing =
                json!({"status": {"conditions": [{"type": "Resizing", "status": "True"}]}});
            bench.merge_status::<Claim>(&key("data"), resizing).await;
        }
        bench.pass(SOON).await;
        assert!(bench.events(REASON).await.is_empty(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn lease_that_ran_out_serves_nothing() {
    let bench = Bench::start().await;
    lease(&bench, &format!("external-resizer-{}", DRIVER.replace('.', "-"))).await;
    let _process = start(&bench, &serving());
    growing(&bench, "2Gi").await;
    bench.pass(Duration::from_secs(50)).await;
    assert_eq!(bench.events(REASON).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn provisioner_that_writes_events_runs_even_without_a_lease() {
    let bench = Bench::start().await;
    let _process = start(&bench, &serving());
    for (claim, writer) in [("heard", Some("far.example_host_1")), ("silent", None)] {
        let uid = bench.claim(claim, "far").await;
        if let Some(component) = writer {
            let now = clock::seconds(clock::now());
            bench
                .create::<Event>(json!({"metadata": {"name": "e", "namespace": "default"},
                    "involvedObject": {"kind": "PersistentVolumeClaim", "namespace": "default",
                        "name": claim, "uid": uid},
                    "reason": "Provisioning", "type": "Normal", "message": "at it", "count": 1,
                    "firstTimestamp": now, "lastTimestamp": now, "source": {"component": component}}))
                .await;
        }
        let asked =
            json!({"metadata": {"annotations": {annotations::STORAGE_PROVISIONER: "far.example"}}});
        bench.merge::<Claim>(&key(claim), asked).await;
    }
    bench.pass(SOON).await;
    let events = bench.events(REASON).await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].contains("no driver of that name is here (there are: test.csi.example)"));
}

#[tokio::test(start_paused = true)]
async fn deletion_of_a_volume_and_placement_of_a_pod_get_their_events() {
    let bench = Bench::start().await;
    let _process = start(&bench, &serving());
    bench
        .create::<Volume>(json!({"metadata": {"name": "old",
            "annotations": {annotations::PROVISIONED_BY: DRIVER}}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete", "csi": {"driver": DRIVER, "volumeHandle": "h"}}}))
        .await;
    let released = json!({"status": {"phase": "Released"}});
    bench.merge_status::<Volume>(&ObjectKey::cluster("old"), released).await;
    bench
        .create::<Pod>(json!({"metadata": {"name": "p", "namespace": "default"}, "spec": {
            "schedulerName": "mine", "containers": [{"name": "main", "image": "host"}]}}))
        .await;
    bench.pass(SOON).await;
    let mut events = bench.events(REASON).await;
    events.sort();
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(events[0].starts_with("The deletion of this volume waits: no csi-provisioner runs"));
    assert!(events[1].starts_with("The placement of this pod waits: no scheduler \"mine\" runs"));
}

#[tokio::test(start_paused = true)]
async fn pod_on_a_node_that_is_not_there_gets_one_event_within_seconds() {
    let bench = Bench::start().await;
    let _process = start(&bench, &serving());
    bench.node("n1").await;
    for (pod, node) in [("lost", "nosuch"), ("placed", "n1"), ("early", "n2")] {
        bench
            .create::<Pod>(json!({"metadata": {"name": pod, "namespace": "default"}, "spec": {
                "nodeName": node, "containers": [{"name": "main", "image": "host"}]}}))
            .await;
    }
    bench.pass(Duration::from_secs(1)).await;
    bench.node("n2").await;
    bench.pass(Duration::from_secs(4)).await;
    let text = "The start of this pod waits: there is no node \"nosuch\" (there are: n1, n2). Delete \
                the pod with --force, and leave spec.nodeName out or name a node that is there";
    assert_eq!(bench.events(REASON).await, [text]);
    bench.pass(Duration::from_secs(60)).await;
    assert_eq!(bench.events(REASON).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn snapshot_that_its_driver_cannot_take_is_told_on_the_snapshot_too() {
    let bench = Bench::with_snapshots().await;
    let serving = serving();
    serving.add(Server::SnapshotController);
    serving.cannot(Server::Snapshotter(DRIVER.to_owned()));
    let _process = start(&bench, &serving);
    bench
        .create::<VolumeSnapshot>(json!({"metadata": {"name": "s", "namespace": "default"},
            "spec": {"source": {"persistentVolumeClaimName": "data"}}}))
        .await;
    let bound = json!({"status": {"boundVolumeSnapshotContentName": "c", "readyToUse": false}});
    bench.merge_status::<VolumeSnapshot>(&key("s"), bound).await;
    bench.pass(SOON).await;
    assert!(bench.events(REASON).await.is_empty(), "the snapshot controller serves it");
    bench
        .create::<VolumeSnapshotContent>(json!({"metadata": {"name": "c"}, "spec": {
            "driver": DRIVER, "deletionPolicy": "Delete", "source": {"volumeHandle": "h"},
            "volumeSnapshotRef": {"name": "s", "namespace": "default"}}}))
        .await;
    bench.pass(SOON).await;
    let text = format!(
        "This snapshot is not carried out: driver {DRIVER} takes no snapshots. Copy the data to another \
         volume while no pod writes to it"
    );
    assert_eq!(bench.events(REASON).await, [text.as_str(), text.as_str()]);
}
