//! The controller over a real API server, with a stand-in for the driver's attacher.

mod attachments;
mod fairness;
mod notices;
mod observing;
mod reconciler;
mod recovery;
mod reports;
mod rig;

use std::time::Duration;

use longshore_cluster::DeleteParams;
use longshore_core::{
    model::{
        ObjectKey,
        kinds::{Node, Pod, VolumeAttachment},
    },
    names::{UniqueName, attachment_name},
};
use serde_json::json;

use super::{AttachDetach, Config};
use crate::testing::{Bench, DRIVER, Process, key};

fn unique(handle: &str) -> String {
    UniqueName::new(&DRIVER.into(), &handle.into()).to_string()
}

fn attachment(handle: &str, node: &str) -> ObjectKey {
    ObjectKey::cluster(attachment_name(&handle.into(), &DRIVER.into(), &node.into()))
}

fn controller(process: &Process) -> AttachDetach {
    AttachDetach::new(&process.context, Config::default())
}

fn start(bench: &Bench) -> Process {
    let mut process = bench.process();
    let controller = controller(&process);
    let shutdown = process.shutdown.clone();
    process.spawn(controller.run(shutdown));
    process
}

/// A node, a bound claim and a pod on the node that names it.
async fn one_pod(bench: &Bench) {
    bench.driver().await;
    bench.node("n1").await;
    bench.claim("data", "").await;
    bench.bind("data", "pv1", "h1").await;
    bench.pod("web", Some("n1"), &["data"]).await;
}

/// The same, with a controller that has attached the volume.
async fn attached_pod() -> (Bench, Process, ObjectKey) {
    let bench = Bench::start().await;
    let process = start(&bench);
    one_pod(&bench).await;
    let va = attachment("h1", "n1");
    say_attached(&bench, &va).await;
    until_reported(&bench, "n1", "h1", true).await;
    (bench, process, va)
}

async fn say_attached(bench: &Bench, key: &ObjectKey) {
    bench.until::<VolumeAttachment>(key, |_| true).await;
    let attached = json!({"status": {"attached": true, "attachError": null}});
    bench.merge_status::<VolumeAttachment>(key, attached).await;
}

fn reports(node: &Node, handle: &str) -> bool {
    node.status.volumes_attached.iter().any(|volume| volume.name == unique(handle))
}

async fn until_reported(bench: &Bench, node: &str, handle: &str, want: bool) {
    let key = ObjectKey::cluster(node);
    bench.until::<Node>(&key, |node| reports(node, handle) == want).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_gets_its_volume_attached_and_detached() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    one_pod(&bench).await;
    let va = attachment("h1", "n1");
    // case: attach-detach/C1
    let made = bench.until::<VolumeAttachment>(&va, |_| true).await;
    assert_eq!(made.spec.attacher, DRIVER);
    assert_eq!(made.spec.node_name, "n1");
    assert_eq!(made.spec.source.persistent_volume_name.as_deref(), Some("pv1"));
    let node = bench.get::<Node>(&ObjectKey::cluster("n1")).await.expect("a node");
    assert!(!reports(&node, "h1"), "not before the attach is confirmed");
    say_attached(&bench, &va).await;
    until_reported(&bench, "n1", "h1", true).await;
    let events = bench.events("SuccessfulAttachVolume").await;
    assert_eq!(events, ["AttachVolume.Attach succeeded for volume \"pv1\" "]);

    bench.in_use("n1", &[unique("h1")]).await;
    bench.delete::<Pod>(&key("web")).await;
    bench.pass(Duration::from_secs(3600)).await;
    // case: attach-detach/R13
    let held = bench.get::<VolumeAttachment>(&va).await.expect("in use by a healthy node");
    assert!(!held.metadata.deleting());
    // case: attach-detach/C9
    bench.in_use("n1", &[]).await;
    until_reported(&bench, "n1", "h1", false).await;
    bench.until_gone::<VolumeAttachment>(&va).await;
}

#[tokio::test(start_paused = true)]
async fn the_report_shrinks_before_the_detach_begins() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    one_pod(&bench).await;
    let va = attachment("h1", "n1");
    // The attacher's finalizer keeps the object until the driver has let go.
    bench.until::<VolumeAttachment>(&va, |_| true).await;
    let finalizer = json!({"metadata": {"finalizers": ["external-attacher/test"]}});
    bench.merge::<VolumeAttachment>(&va, finalizer).await;
    say_attached(&bench, &va).await;
    until_reported(&bench, "n1", "h1", true).await;
    bench.delete::<Pod>(&key("web")).await;
    bench.in_use("n1", &[]).await;
    bench.until::<VolumeAttachment>(&va, |va| va.metadata.deleting()).await;
    let node = bench.get::<Node>(&ObjectKey::cluster("n1")).await.expect("a node");
    assert!(!reports(&node, "h1"));
    // The attempt fails, and is repeated.
    let failed = json!({"status": {"detachError": {"message": "busy"}}});
    bench.merge_status::<VolumeAttachment>(&va, failed).await;
    bench.pass(Duration::from_secs(5)).await;
    let told = bench.events("FailedDetach").await;
    assert!(told.is_empty(), "as in kube-controller-manager: {told:?}");
    bench.merge::<VolumeAttachment>(&va, json!({"metadata": {"finalizers": null}})).await;
    bench.until_gone::<VolumeAttachment>(&va).await;
    // Wanted again, it is attached anew.
    bench.pod("web2", Some("n1"), &["data"]).await;
    say_attached(&bench, &va).await;
    until_reported(&bench, "n1", "h1", true).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_attach_is_told_and_retried() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    one_pod(&bench).await;
    let va = attachment("h1", "n1");
    bench.until::<VolumeAttachment>(&va, |_| true).await;
    let failed = json!({"status": {"attached": false, "attachError": {"message": "no room"}}});
    bench.merge_status::<VolumeAttachment>(&va, failed).await;
    bench.pass(Duration::from_secs(60)).await;
    let events = bench.events("FailedAttachVolume").await;
    assert_eq!(events, ["AttachVolume.Attach failed for volume \"pv1\" : no room"]);
    assert!(bench.get::<VolumeAttachment>(&va).await.is_some(), "the attachment stays");
    say_attached(&bench, &va).await;
    let before = tokio::time::Instant::now();
    until_reported(&bench, "n1", "h1", true).await;
    assert!(before.elapsed() < Duration::from_secs(1), "the change ends the pause");
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_volume_waits_for_its_first_node() {
    // case: attach-detach/R7
    let (bench, _process, _) = attached_pod().await;
    bench.node("n2").await;
    bench.in_use("n1", &[unique("h1")]).await;
    bench.pod("web2", Some("n2"), &["data"]).await;
    bench.pass(Duration::from_secs(29)).await;
    assert!(bench.get::<VolumeAttachment>(&attachment("h1", "n2")).await.is_none());
    let events = bench.events("FailedAttachVolume").await;
    let want = "Waiting for detach for volume \"pv1\" Volume is already used by pod(s) web";
    assert_eq!(events, [want], "told once");
    bench.delete::<Pod>(&key("web")).await;
    bench.in_use("n1", &[]).await;
    bench.until_gone::<VolumeAttachment>(&attachment("h1", "n1")).await;
    say_attached(&bench, &attachment("h1", "n2")).await;
    until_reported(&bench, "n2", "h1", true).await;
}

#[tokio::test(start_paused = true)]
async fn only_a_sick_or_fenced_node_loses_a_mounted_volume() {
    let (bench, _process, va) = attached_pod().await;
    bench.in_use("n1", &[unique("h1")]).await;
    bench.delete::<Pod>(&key("web")).await;
    bench.ready("n1", false).await;
    bench.pass(Duration::from_secs(350)).await;
    assert!(bench.get::<VolumeAttachment>(&va).await.is_some(), "not before the limit");
    bench.pass(Duration::from_secs(15)).await;
    bench.until_gone::<VolumeAttachment>(&va).await;

    // case: attach-detach/R12
    bench.ready("n1", true).await;
    bench.in_use("n1", &[]).await;
    bench.pod("web2", Some("n1"), &["data"]).await;
    say_attached(&bench, &va).await;
    until_reported(&bench, "n1", "h1", true).await;
    bench.in_use("n1", &[unique("h1")]).await;
    bench.delete::<Pod>(&key("web2")).await;
    bench.pass(Duration::from_secs(30)).await;
    assert!(bench.get::<VolumeAttachment>(&va).await.is_some());
    let taint = json!({"spec": {"taints": [
        {"key": "node.kubernetes.io/out-of-service", "value": "x", "effect": "NoExecute"}]}});
    bench.merge::<Node>(&ObjectKey::cluster("n1"), taint).await;
    bench.until_gone::<VolumeAttachment>(&va).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_controller_takes_over_what_it_finds() {
    let (bench, first, va) = attached_pod().await;
    first.kill();

    // Wanted still: nothing happens. case: attach-detach/V1
    let second = start(&bench);
    bench.pass(Duration::from_secs(90)).await;
    let kept = bench.get::<VolumeAttachment>(&va).await.expect("kept");
    assert!(!kept.metadata.deleting());
    second.kill();

    // The pod goes while nobody looks: the next controller detaches.
    bench.delete::<Pod>(&key("web")).await;
    bench.in_use("n1", &[]).await;
    let _third = start(&bench);
    bench.until_gone::<VolumeAttachment>(&va).await;
    until_reported(&bench, "n1", "h1", false).await;
}

#[tokio::test(start_paused = true)]
async fn attachments_without_a_report_are_cleaned_up() {
    // case: attach-detach/V3
    let bench = Bench::start().await;
    bench.driver().await;
    bench.node("n1").await;
    bench.claim("data", "").await;
    bench.bind("data", "pv1", "h1").await;
    let va = attachment("h1", "n1");
    bench
        .create::<VolumeAttachment>(json!({"metadata": {"name": va.name}, "spec": {
            "attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}}}))
        .await;
    let _process = start(&bench);
    bench.until_gone::<VolumeAttachment>(&va).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_bound_late_is_noticed() {
    // case: attach-detach/F8
    let bench = Bench::start().await;
    let _process = start(&bench);
    bench.driver().await;
    bench.node("n1").await;
    bench.claim("data", "").await;
    bench.pod("web", Some("n1"), &["data"]).await;
    bench.pass(Duration::from_secs(1)).await;
    bench.bind("data", "pv1", "h1").await;
    let before = tokio::time::Instant::now();
    bench.until::<VolumeAttachment>(&attachment("h1", "n1"), |_| true).await;
    assert!(before.elapsed() < Duration::from_secs(1), "no need for the slow pass");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_did_not_ask_is_left_alone() {
    // case: attach-detach/F4
    let bench = Bench::start().await;
    let _process = start(&bench);
    bench.driver().await;
    bench.create::<Node>(json!({"metadata": {"name": "plain"}})).await;
    bench.claim("data", "").await;
    bench.bind("data", "pv1", "h1").await;
    bench.pod("web", Some("plain"), &["data"]).await;
    bench.pass(Duration::from_secs(300)).await;
    assert!(bench.get::<VolumeAttachment>(&attachment("h1", "plain")).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_attachment_that_vanished_is_made_again() {
    let (bench, _process, va) = attached_pod().await;
    let now = DeleteParams::default();
    bench.api.delete::<VolumeAttachment>(&va, &now).await.expect("deleted behind our back");
    bench.pass(Duration::from_secs(61)).await;
    bench.until::<VolumeAttachment>(&va, |va| !va.metadata.deleting()).await;
}
