//! Cases of what a new controller makes of what it finds.

use std::time::Duration;

use longshore_core::{
    attach::AttachState::{Attached, Detached, Uncertain},
    model::{
        ObjectKey,
        kinds::{Claim, Node, Volume, VolumeAttachment},
    },
    names::{UniqueName, attachment_name},
};
use serde_json::{Value, json};

use super::attachment;
use super::rig::Rig;
use crate::{
    attach::Config,
    testing::{Bench, DRIVER, key},
};

const SECOND: Duration = Duration::from_secs(1);
const GCE: &str = "pd.csi.storage.gke.io";
const DISK: &str = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk";

async fn put_attachment(bench: &Bench, name: &str, driver: &str, source: Value, attached: bool) {
    let finalizer = "external-attacher/test";
    bench
        .create::<VolumeAttachment>(json!({
            "metadata": {"name": name, "finalizers": [finalizer]},
            "spec": {"attacher": driver, "nodeName": "n1", "source": source}}))
        .await;
    let status = json!({"status": {"attached": attached}});
    bench.merge_status::<VolumeAttachment>(&ObjectKey::cluster(name), status).await;
}

/// A claim on a Google disk as older clusters wrote it.
async fn in_tree_volume(bench: &Bench) {
    let uid = bench.claim("data", "").await;
    bench
        .create::<Volume>(json!({"metadata": {"name": "pv1"}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "gcePersistentDisk": {"pdName": "disk"},
            "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1",
                "namespace": "default", "name": "data", "uid": uid}}}))
        .await;
    bench.merge::<Claim>(&key("data"), json!({"spec": {"volumeName": "pv1"}})).await;
    bench.merge_status::<Claim>(&key("data"), json!({"status": {"phase": "Bound"}})).await;
}

#[tokio::test(start_paused = true)]
async fn an_attachment_that_nobody_wants_is_removed() {
    // case: attach-detach/V2
    let bench = Bench::start().await;
    bench.driver().await;
    bench.node("n1").await;
    bench.claim("data", "").await;
    bench.bind("data", "pv1", "h1").await;
    let (va, source) = (attachment("h1", "n1"), json!({"persistentVolumeName": "pv1"}));
    put_attachment(&bench, &va.name, DRIVER, source, true).await;
    let rig = Rig::on(bench, Config::default());
    rig.bench.until::<VolumeAttachment>(&va, |va| va.metadata.deleting()).await;
    assert_eq!(rig.state("h1", "n1"), Uncertain);
    rig.bench.merge::<VolumeAttachment>(&va, json!({"metadata": {"finalizers": null}})).await;
    rig.until_state("h1", "n1", Detached).await;
}

#[tokio::test(start_paused = true)]
async fn a_migrated_volume_goes_by_the_name_of_its_driver() {
    // case: attach-detach/V4
    let bench = Bench::start().await;
    bench.node("n1").await;
    in_tree_volume(&bench).await;
    let (volume, in_tree) =
        (UniqueName::new(&GCE.into(), &DISK.into()), UniqueName::from("kubernetes.io/gce-pd/disk"));
    let va = ObjectKey::cluster(attachment_name(&DISK.into(), &GCE.into(), &"n1".into()));
    put_attachment(&bench, &va.name, GCE, json!({"persistentVolumeName": "pv1"}), true).await;
    let status = json!({"status": {"volumesInUse": [volume.as_str()],
        "volumesAttached": [{"name": volume.as_str(), "devicePath": ""}]}});
    bench.merge_status::<Node>(&ObjectKey::cluster("n1"), status).await;
    bench.pod("web", Some("n1"), &["data"]).await;
    let rig = Rig::on(bench, Config::default());
    rig.bench.pass(90 * SECOND).await;
    let state = |name: &UniqueName| rig.controller.state.lock().actual.state(name, &"n1".into());
    assert_eq!((state(&volume), state(&in_tree)), (Attached, Detached));
    assert!(rig.wire.sent("volumeattachments").is_empty(), "nothing to do");
    for state in ["actual", "desired"] {
        let plugin = "plugin_name=\"kubernetes.io/csi:pd.csi.storage.gke.io\"";
        let state = format!("state=\"{state}_state_of_world\"");
        let line = format!("attachdetach_controller_total_volumes{{{plugin},{state}}}");
        assert_eq!(rig.metric(&line), Some(1.0), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_migrated_volume_without_its_pod_is_uncertain() {
    // case: attach-detach/V5
    let bench = Bench::start().await;
    bench.node("n1").await;
    in_tree_volume(&bench).await;
    let va = ObjectKey::cluster(attachment_name(&DISK.into(), &GCE.into(), &"n1".into()));
    put_attachment(&bench, &va.name, GCE, json!({"persistentVolumeName": "pv1"}), true).await;
    let rig = Rig::on(bench, Config::default());
    rig.bench.until::<VolumeAttachment>(&va, |va| va.metadata.deleting()).await;
    let volume = UniqueName::new(&GCE.into(), &DISK.into());
    assert_eq!(rig.controller.state.lock().actual.state(&volume, &"n1".into()), Uncertain);
}

#[tokio::test(start_paused = true)]
async fn an_attachment_without_a_volume_object_is_left_alone() {
    // case: attach-detach/V6
    let bench = Bench::start().await;
    bench.node("n1").await;
    let va = ObjectKey::cluster(attachment_name(&DISK.into(), &GCE.into(), &"n1".into()));
    let source = json!({"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"],
        "csi": {"driver": GCE, "volumeHandle": DISK}}});
    put_attachment(&bench, &va.name, GCE, source, true).await;
    let rig = Rig::on(bench, Config::default());
    rig.bench.pass(300 * SECOND).await;
    assert!(rig.controller.state.lock().actual.all().is_empty());
    assert!(rig.wire.sent("").is_empty(), "{:?}", rig.wire.sent(""));
}

#[tokio::test(start_paused = true)]
async fn a_detach_that_was_cut_off_is_finished() {
    let rig = Rig::start().await;
    rig.attached().await;
    let va = attachment("h1", "n1");
    let finalizer = json!({"metadata": {"finalizers": ["external-attacher/test"]}});
    rig.bench.merge::<VolumeAttachment>(&va, finalizer).await;
    rig.bench.node("n2").await;
    rig.bench.delete::<longshore_core::model::kinds::Pod>(&key("web")).await;
    rig.bench.until::<VolumeAttachment>(&va, |va| va.metadata.deleting()).await;
    let rig = rig.restart();
    // Nobody has confirmed the detach, so the next node waits.
    rig.bench.pod("web2", Some("n2"), &["data"]).await;
    rig.bench.pass(20 * SECOND).await;
    assert!(rig.attachment("h1", "n2").await.is_none());
    rig.bench.merge::<VolumeAttachment>(&va, json!({"metadata": {"finalizers": null}})).await;
    rig.bench.until::<VolumeAttachment>(&attachment("h1", "n2"), |_| true).await;
}

/// A volume went before anybody acted on its attachment, and so did the controller that had asked
/// for it. What an attacher holds, or a user made, stays.
#[tokio::test(start_paused = true)]
async fn attachments_of_volumes_that_are_gone_are_swept_up() {
    let bench = Bench::start().await;
    bench.driver().await;
    bench.node("n1").await;
    bench.claim("data", "").await;
    bench.bind("data", "pv1", "h1").await;
    let names = ["gone", "held", "h1"]
        .map(|handle| attachment_name(&handle.into(), &DRIVER.into(), &"n1".into()));
    let [gone, held, there] = &names;
    for (name, pv, finalizers) in [
        (gone.as_str(), "pv-gone", json!([])),
        (held, "pv-gone", json!(["external-attacher/test"])),
        (there, "pv1", json!(["external-attacher/test"])),
        ("by-hand", "pv-gone", json!([])),
    ] {
        let object = json!({"metadata": {"name": name, "finalizers": finalizers}, "spec": {
            "attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": pv}}});
        bench.create::<VolumeAttachment>(object).await;
    }
    let rig = Rig::on(bench, Config { verify_period: Some(SECOND), ..Config::default() });
    rig.bench.until_gone::<VolumeAttachment>(&ObjectKey::cluster(gone)).await;
    for name in [held, "by-hand"] {
        let left = rig.bench.get::<VolumeAttachment>(&ObjectKey::cluster(name)).await;
        assert!(left.is_some_and(|left| !left.metadata.deleting()), "{name} stays");
    }
}
