//! What a pod is told that waits for a volume which another node holds.

use std::time::Duration;

use longshore_core::model::kinds::{Pod, VolumeAttachment};
use serde_json::json;

use super::rig::Rig;
use super::{attachment, unique};
use crate::{attach::Config, testing::key};

const SECOND: Duration = Duration::from_secs(1);

/// `web` on n1 has the volume, `late` on n2 wants it; told after ten seconds.
async fn waiting() -> Rig {
    let notice = Some(10 * SECOND);
    let config = Config { holder_notice: notice, failed_detach_events: true, ..Config::default() };
    let rig = Rig::with(config).await;
    rig.attached().await;
    rig.bench.in_use("n1", &[unique("h1")]).await;
    rig.bench.node("n2").await;
    rig.bench.pod("late", Some("n2"), &["data"]).await;
    rig
}

async fn notices(rig: &Rig) -> Vec<String> {
    let mut texts = rig.bench.events("FailedAttachVolume").await;
    texts.retain(|text| text.starts_with("Waiting for volume"));
    texts
}

#[tokio::test(start_paused = true)]
async fn the_holder_is_named_after_a_while() {
    let rig = waiting().await;
    rig.bench.pass(9 * SECOND).await;
    assert!(notices(&rig).await.is_empty(), "not yet");
    rig.bench.pass(2 * SECOND).await;
    let want = "Waiting for volume \"pv1\" for 10s: it is attached to node \"n1\", used by pod(s) \
                web. It can move once they have ended";
    assert_eq!(notices(&rig).await, [want]);
    rig.bench.pass(10 * SECOND).await;
    assert_eq!(notices(&rig).await.len(), 2, "again when the wait has doubled");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_let_go_is_named_too() {
    let rig = waiting().await;
    rig.bench.delete::<Pod>(&key("web")).await;
    rig.bench.ready("n1", false).await;
    rig.bench.pass(11 * SECOND).await;
    let texts = notices(&rig).await;
    assert!(texts[0].contains("node \"n1\". The node is not ready"), "{texts:?}");
    rig.bench.ready("n1", true).await;
    rig.bench.pass(10 * SECOND).await;
    let texts = notices(&rig).await;
    let unmount = |text: &String| text.ends_with("The node has yet to unmount it");
    assert!(texts.iter().any(unmount), "{texts:?}");
    // The driver's own words, when it is the driver that holds on.
    let va = attachment("h1", "n1");
    let finalizer = json!({"metadata": {"finalizers": ["external-attacher/test"]}});
    rig.bench.merge::<VolumeAttachment>(&va, finalizer).await;
    rig.bench.in_use("n1", &[]).await;
    rig.bench.until::<VolumeAttachment>(&va, |va| va.metadata.deleting()).await;
    let failed = json!({"status": {"detachError": {"message": "disk is stuck"}}});
    rig.bench.merge_status::<VolumeAttachment>(&va, failed).await;
    rig.bench.pass(20 * SECOND).await;
    let texts = notices(&rig).await;
    assert!(texts.iter().any(|text| text.ends_with("tried again: disk is stuck")), "{texts:?}");
    let told = rig.bench.events("FailedDetach").await;
    assert_eq!(told.len(), 2, "the volume and the pod that waits for it: {told:?}");
    let words = "from node \"n1\" : disk is stuck. The log";
    assert!(told.iter().all(|text| text.contains(words)), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn it_can_be_turned_off() {
    let rig = Rig::with(Config { holder_notice: None, ..Config::default() }).await;
    rig.attached().await;
    rig.bench.in_use("n1", &[unique("h1")]).await;
    rig.bench.node("n2").await;
    rig.bench.pod("late", Some("n2"), &["data"]).await;
    rig.bench.pass(1800 * SECOND).await;
    assert!(notices(&rig).await.is_empty());
    assert_eq!(rig.bench.events("FailedAttachVolume").await.len(), 1, "only the first report");
}
