//! Cases of the reconciler.

use std::time::Duration;

use longshore_core::{
    attach::AttachState::{Attached, Detached, Uncertain},
    model::{
        ObjectKey,
        kinds::{Node, Pod, Volume, VolumeAttachment},
    },
};
use serde_json::json;

use super::rig::{Fate, Rig, forced, is_detach, is_report};
use super::{attachment, one_pod, say_attached, unique, until_reported};
use crate::{attach::Config, testing::key};

const SECOND: Duration = Duration::from_secs(1);

/// A second node, and the volume free for any number of nodes.
async fn shared_volume(rig: &Rig) {
    let modes = json!({"spec": {"accessModes": ["ReadWriteMany"]}});
    rig.bench.driver().await;
    rig.bench.node("n1").await;
    rig.bench.node("n2").await;
    rig.bench.claim("data", "").await;
    rig.bench.bind("data", "pv1", "h1").await;
    rig.bench.merge::<Volume>(&ObjectKey::cluster("pv1"), modes).await;
}

#[tokio::test(start_paused = true)]
async fn without_desired_volumes_nothing_is_attached() {
    // case: attach-detach/R1
    let rig = Rig::start().await;
    rig.bench.driver().await;
    rig.bench.node("n1").await;
    rig.bench.pass(300 * SECOND).await;
    assert!(rig.wire.sent("").is_empty(), "{:?}", rig.wire.sent(""));
}

#[tokio::test(start_paused = true)]
async fn no_detach_while_the_report_cannot_be_written() {
    // case: attach-detach/R5, attach-detach/R9
    let rig = Rig::start().await;
    rig.attached().await;
    let refuse = |method: &str, path: &str| match is_report(method, path) {
        true => Fate::Refuse(500),
        false => Fate::Pass,
    };
    rig.wire.script(refuse);
    rig.bench.delete::<Pod>(&key("web")).await;
    rig.bench.pass(300 * SECOND).await;
    let tries = rig.wire.sent("PATCH /api/v1/nodes/n1").len();
    assert!(tries > 2, "{tries}");
    assert!(rig.wire.sent("DELETE").is_empty());
    assert_eq!(rig.state("h1", "n1"), Attached);
    until_reported(&rig.bench, "n1", "h1", true).await;
    // Once the report can be written, the detach goes its way.
    rig.wire.calm();
    rig.until_state("h1", "n1", Detached).await;
    until_reported(&rig.bench, "n1", "h1", false).await;
}

#[tokio::test(start_paused = true)]
async fn a_shared_volume_is_on_both_nodes() {
    // case: attach-detach/R6, attach-detach/R20
    let rig = Rig::start().await;
    shared_volume(&rig).await;
    rig.bench.pod("a", Some("n1"), &["data"]).await;
    rig.bench.pod("b", Some("n2"), &["data"]).await;
    for node in ["n1", "n2"] {
        say_attached(&rig.bench, &attachment("h1", node)).await;
        rig.until_state("h1", node, Attached).await;
        rig.bench.in_use(node, &[]).await;
        // The attacher's finalizer keeps both detaches under way.
        let finalizer = json!({"metadata": {"finalizers": ["external-attacher/test"]}});
        rig.bench.merge::<VolumeAttachment>(&attachment("h1", node), finalizer).await;
    }
    rig.bench.delete::<Pod>(&key("a")).await;
    rig.bench.delete::<Pod>(&key("b")).await;
    for node in ["n1", "n2"] {
        let va = attachment("h1", node);
        rig.bench.until::<VolumeAttachment>(&va, |va| va.metadata.deleting()).await;
    }
    let running = "workqueue_longest_running_processor_seconds{name=\"attachdetach-detach\"}";
    assert!(rig.metric(running).is_some());
    for node in ["n1", "n2"] {
        let va = attachment("h1", node);
        rig.bench.merge::<VolumeAttachment>(&va, json!({"metadata": {"finalizers": null}})).await;
        rig.until_state("h1", node, Detached).await;
    }
    assert_eq!(rig.wire.sent("POST /apis/storage.k8s.io/v1/volumeattachments").len(), 2);
    assert_eq!(rig.wire.sent("DELETE").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_detach_of_an_exclusive_volume_is_alone() {
    // case: attach-detach/R20 (exclusive half)
    let rig = Rig::start().await;
    rig.bench.driver().await;
    rig.bench.node("n1").await;
    rig.bench.node("n2").await;
    rig.bench.claim("data", "").await;
    rig.bench.bind("data", "pv1", "h1").await;
    let rig = {
        for node in ["n1", "n2"] {
            let va = json!({"metadata": {"name": attachment("h1", node).name,
                "finalizers": ["external-attacher/test"]}, "spec": {"attacher": crate::testing::DRIVER,
                "nodeName": node, "source": {"persistentVolumeName": "pv1"}}});
            rig.bench.create::<VolumeAttachment>(va).await;
        }
        rig.restart()
    };
    rig.bench.pass(30 * SECOND).await;
    assert_eq!(rig.wire.sent("DELETE").len(), 1, "the other one has to wait");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_moves_takes_its_volume_along() {
    // case: attach-detach/R8
    let rig = Rig::start().await;
    one_pod(&rig.bench).await;
    rig.bench.node("n2").await;
    rig.until_state("h1", "n1", Uncertain).await;
    say_attached(&rig.bench, &attachment("h1", "n1")).await;
    rig.until_state("h1", "n1", Attached).await;
    rig.bench.in_use("n1", &[]).await;
    rig.bench.delete::<Pod>(&key("web")).await;
    rig.bench.pod("web2", Some("n2"), &["data"]).await;
    say_attached(&rig.bench, &attachment("h1", "n2")).await;
    until_reported(&rig.bench, "n2", "h1", true).await;
    assert_eq!(rig.state("h1", "n1"), Detached);
    let line = |request: &str, node: &str| {
        let name = attachment("h1", node).name;
        let sent = rig.wire.sent("volumeattachments");
        let post = "POST /apis/storage.k8s.io/v1/volumeattachments";
        match request {
            "POST" => sent.iter().rposition(|line| line == post),
            _ => sent.iter().position(|line| line.starts_with(request) && line.ends_with(&name)),
        }
    };
    assert!(line("DELETE", "n1") < line("POST", "n2"), "{:?}", rig.wire.sent("volumeattach"));
}

#[tokio::test(start_paused = true)]
async fn a_failed_detach_leaves_doubt() {
    // case: attach-detach/R10, attach-detach/C11
    let rig = Rig::start().await;
    rig.attached().await;
    rig.bench.node("n2").await;
    let refuse = |method: &str, path: &str| match is_detach(method, path) {
        true => Fate::Refuse(403),
        false => Fate::Pass,
    };
    rig.wire.script(refuse);
    rig.bench.delete::<Pod>(&key("web")).await;
    rig.until_state("h1", "n1", Uncertain).await;
    until_reported(&rig.bench, "n1", "h1", false).await;
    assert!(!rig.reported("h1", "n1"));
    // Another node must wait: nobody knows whether the first one has let go.
    rig.bench.pod("far", Some("n2"), &["data"]).await;
    rig.bench.pass(20 * SECOND).await;
    assert!(rig.attachment("h1", "n2").await.is_none());
    // The same node may have it again: the attachment is found, and confirmed.
    rig.bench.pod("near", Some("n1"), &["data"]).await;
    rig.until_state("h1", "n1", Attached).await;
    until_reported(&rig.bench, "n1", "h1", true).await;
    assert!(rig.attachment("h1", "n2").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_attach_without_an_answer_is_taken_back() {
    // case: attach-detach/R11
    let rig = Rig::start().await;
    one_pod(&rig.bench).await;
    rig.bench.node("n2").await;
    rig.until_state("h1", "n1", Uncertain).await;
    assert!(!rig.reported("h1", "n1"));
    let want = format!(
        "AttachVolume.Attach failed for volume \"pv1\" : timed out waiting for external-attacher \
         of {} CSI driver to attach volume h1",
        crate::testing::DRIVER
    );
    assert_eq!(rig.bench.events("FailedAttachVolume").await, [want]);
    rig.bench.in_use("n1", &[]).await;
    rig.bench.delete::<Pod>(&key("web")).await;
    rig.until_state("h1", "n1", Detached).await;
    assert!(rig.attachment("h1", "n1").await.is_none());
    rig.bench.pod("web2", Some("n2"), &["data"]).await;
    say_attached(&rig.bench, &attachment("h1", "n2")).await;
    rig.until_state("h1", "n2", Attached).await;
}

#[tokio::test(start_paused = true)]
async fn an_uncertain_attach_elsewhere_does_not_block_forever() {
    // case: attach-detach/R16
    let rig = Rig::start().await;
    one_pod(&rig.bench).await;
    rig.bench.node("n2").await;
    rig.until_state("h1", "n1", Uncertain).await;
    // The node is assumed to use it, so the detach does not come.
    rig.bench.in_use("n1", &[unique("h1")]).await;
    rig.bench.delete::<Pod>(&key("web")).await;
    rig.bench.pod("web2", Some("n2"), &["data"]).await;
    rig.bench.until::<VolumeAttachment>(&attachment("h1", "n2"), |_| true).await;
    assert_eq!(rig.state("h1", "n1"), Uncertain);
}

/// Its attacher may succeed at any moment on the node where it is wanted, so no other node may have
/// it meanwhile.
#[tokio::test(start_paused = true)]
async fn where_verdicts_are_awaited_an_unclear_attach_keeps_others_away() {
    let rig = Rig::with(Config { await_verdict: true, ..Config::default() }).await;
    one_pod(&rig.bench).await;
    rig.bench.node("n2").await;
    rig.until_state("h1", "n1", Uncertain).await;
    rig.bench.pod("web2", Some("n2"), &["data"]).await;
    rig.bench.pass(300 * SECOND).await;
    let other = rig.bench.get::<VolumeAttachment>(&attachment("h1", "n2")).await;
    assert!(other.is_none(), "{other:?}");
    let told = rig.bench.events("FailedAttachVolume").await;
    assert!(told.iter().any(|text| text.contains("its attach has no result yet on node \"n1\"")));
    let claimed = ["it is attached to", "Waiting for detach"];
    assert!(!told.iter().any(|text| claimed.iter().any(|part| text.contains(part))), "{told:?}");
    rig.bench.delete::<Pod>(&key("web")).await;
    // The pauses after so many failures are long.
    rig.bench.pass(300 * SECOND).await;
    rig.bench.until::<VolumeAttachment>(&attachment("h1", "n2"), |_| true).await;
    assert_eq!(rig.state("h1", "n1"), Detached);
}

#[tokio::test(start_paused = true)]
async fn a_final_error_frees_the_volume_for_another_node_at_once() {
    let rig = Rig::with(Config { await_verdict: true, ..Config::default() }).await;
    one_pod(&rig.bench).await;
    rig.bench.node("n2").await;
    refuse(&rig, "n1", 14).await;
    rig.until_state("h1", "n1", Uncertain).await;
    rig.bench.pod("web2", Some("n2"), &["data"]).await;
    rig.bench.pass(60 * SECOND).await;
    let other = rig.bench.get::<VolumeAttachment>(&attachment("h1", "n2")).await;
    assert!(other.is_none(), "the driver was only not there: {other:?}");
    refuse(&rig, "n1", 8).await;
    rig.bench.pass(SECOND).await;
    let other = rig.bench.get::<VolumeAttachment>(&attachment("h1", "n2")).await;
    assert!(other.is_some(), "the node is full");
}

#[tokio::test(start_paused = true)]
async fn without_awaiting_verdicts_only_confirmed_attachments_count() {
    let rig = Rig::start().await;
    one_pod(&rig.bench).await;
    rig.bench.node("n2").await;
    refuse(&rig, "n1", 14).await;
    rig.until_state("h1", "n1", Uncertain).await;
    rig.bench.pod("web2", Some("n2"), &["data"]).await;
    rig.bench.until::<VolumeAttachment>(&attachment("h1", "n2"), |_| true).await;
    let told = rig.bench.events("FailedAttachVolume").await;
    assert!(!told.iter().any(|text| text.contains("is attached")), "{told:?}");
}

/// The attacher notes an error of this gRPC code.
async fn refuse(rig: &Rig, node: &str, code: i32) {
    let at = attachment("h1", node);
    rig.bench.until::<VolumeAttachment>(&at, |_| true).await;
    let error = json!({"status": {"attached": false, "attachError": {
        "message": format!("code {code}"), "errorCode": code, "time": "2026-01-01T00:00:00Z"}}});
    rig.bench.merge_status::<VolumeAttachment>(&at, error).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_wanted_again_stays() {
    // case: attach-detach/R17
    let rig = Rig::start().await;
    rig.attached().await;
    rig.bench.in_use("n1", &[unique("h1")]).await;
    rig.bench.delete::<Pod>(&key("web")).await;
    rig.bench.pass(300 * SECOND).await;
    let requested = |rig: &Rig| rig.controller.state.lock().actual.all()[0].detach_requested;
    assert!(requested(&rig).is_some());
    rig.bench.pod("web2", Some("n1"), &["data"]).await;
    rig.bench.pass(SECOND).await;
    assert_eq!(requested(&rig), None, "the wait starts anew next time");
    rig.bench.in_use("n1", &[]).await;
    rig.bench.pass(10 * SECOND).await;
    assert!(rig.wire.sent("DELETE").is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_nodes_own_word_counts_last() {
    // case: attach-detach/R19
    let bench = crate::testing::Bench::start().await;
    let rig = Rig::on(bench, Config::default());
    rig.attached().await;
    // The node starts to use it again, but its object shows that only to those who ask.
    let live = rig.bench.get::<Node>(&ObjectKey::cluster("n1")).await.expect("there");
    assert!(live.status.volumes_in_use.is_empty());
    let late = |method: &str, path: &str| match method == "GET" && path == "/api/v1/nodes/n1" {
        true => Fate::Slow(5 * SECOND),
        false => Fate::Pass,
    };
    rig.wire.script(late);
    rig.bench.delete::<Pod>(&key("web")).await;
    rig.bench.pass(SECOND).await;
    assert_eq!(rig.wire.sent("GET /api/v1/nodes/n1").len(), 1, "it is being asked");
    rig.bench.in_use("n1", &[unique("h1")]).await;
    rig.until_state("h1", "n1", Uncertain).await;
    assert!(rig.attachment("h1", "n1").await.is_some(), "nothing was deleted");
    assert!(rig.wire.sent("DELETE").is_empty());
    // Retried after a pause, and this time the node has let go.
    rig.bench.in_use("n1", &[]).await;
    rig.until_state("h1", "n1", Detached).await;
}

#[tokio::test(start_paused = true)]
async fn force_is_not_for_a_node_that_has_come_back() {
    let rig = Rig::start().await;
    rig.attached().await;
    rig.bench.in_use("n1", &[unique("h1")]).await;
    rig.bench.ready("n1", false).await;
    let late = |method: &str, path: &str| match method == "GET" && path == "/api/v1/nodes/n1" {
        true => Fate::Slow(5 * SECOND),
        false => Fate::Pass,
    };
    rig.wire.script(late);
    rig.bench.delete::<Pod>(&key("web")).await;
    rig.bench.pass(361 * SECOND).await;
    assert_eq!(forced(&rig, "timeout"), 1.0);
    rig.bench.ready("n1", true).await;
    rig.bench.pass(600 * SECOND).await;
    assert!(rig.wire.sent("DELETE").is_empty(), "it is ready and uses its volume");
    rig.bench.in_use("n1", &[]).await;
    rig.until_state("h1", "n1", Detached).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_timer_only_an_operator_forces() {
    // case: attach-detach/R14, attach-detach/R15
    let config = Config { disable_force_detach_on_timeout: true, ..Config::default() };
    let rig = Rig::with(config).await;
    rig.attached().await;
    rig.bench.in_use("n1", &[unique("h1")]).await;
    rig.bench.delete::<Pod>(&key("web")).await;
    rig.bench.ready("n1", false).await;
    rig.bench.pass(7200 * SECOND).await;
    assert!(rig.wire.sent("DELETE").is_empty());
    let taint = json!({"spec": {"taints": [
        {"key": "node.kubernetes.io/out-of-service", "value": "x", "effect": "NoExecute"}]}});
    rig.bench.merge::<Node>(&ObjectKey::cluster("n1"), taint).await;
    rig.until_state("h1", "n1", Detached).await;
    assert_eq!((forced(&rig, "timeout"), forced(&rig, "out-of-service")), (0.0, 1.0));
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure() {
    // case: attach-detach/O7
    let rig = Rig::start().await;
    rig.wire.script(|method, _| if method == "POST" { Fate::Panic } else { Fate::Pass });
    one_pod(&rig.bench).await;
    rig.until_state("h1", "n1", Uncertain).await;
    let want = "AttachVolume.Attach failed for volume \"pv1\" : the operation panicked";
    assert_eq!(rig.bench.events("FailedAttachVolume").await, [want]);
    // The slot is free after its pause, and the lane has lost no place.
    rig.wire.calm();
    say_attached(&rig.bench, &attachment("h1", "n1")).await;
    rig.until_state("h1", "n1", Attached).await;
    let unfinished = "workqueue_unfinished_work_seconds{name=\"attachdetach-attach\"}";
    assert_eq!(rig.metric(unfinished), Some(0.0));
}
