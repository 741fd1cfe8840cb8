//! Cases of observed changes and the desired state.

use std::{sync::Arc, time::Duration};

use longshore_cluster::Change;
use longshore_core::{
    attach::AttachState::{Attached, Detached},
    model::{
        ObjectKey,
        kinds::{CsiDriver, Pod, VolumeAttachment},
    },
};
use serde_json::json;

use super::rig::Rig;
use super::{attachment, one_pod, unique};
use crate::testing::{DRIVER, key};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_ended_wants_nothing() {
    // case: attach-detach/F1
    let rig = Rig::start().await;
    rig.attached().await;
    assert!(rig.wanted("h1", "n1"));
    let done = json!({"status": {"phase": "Succeeded"}});
    rig.bench.merge_status::<Pod>(&key("web"), done).await;
    rig.until_state("h1", "n1", Detached).await;
    assert!(!rig.wanted("h1", "n1"));
}

#[tokio::test(start_paused = true)]
async fn the_slow_pass_finds_what_events_missed() {
    // case: attach-detach/F1 (pods that nobody announced)
    let rig = Rig::start().await;
    rig.attached().await;
    let volume = longshore_core::names::UniqueName::new(&DRIVER.into(), &"h1".into());
    let uid = rig.bench.get::<Pod>(&key("web")).await.expect("there").metadata.uid;
    rig.controller.state.change(|state| state.desired.remove_pod(&uid));
    rig.controller.populate(true);
    assert!(rig.wanted("h1", "n1"));
    // case: attach-detach/F3
    rig.controller.state.change(|state| {
        let mut old = state.desired.pods()[0].clone();
        old.uid = "of an earlier pod".into();
        let spec = state.desired.get(&volume, &"n1".into()).expect("wanted").spec.clone();
        state.desired.add_pod(&old, &volume, &spec, &"n1".into()).expect("managed");
    });
    rig.controller.populate(false);
    let pods = rig.controller.state.lock().desired.pods();
    assert_eq!(pods.iter().map(|pod| pod.uid.as_str()).collect::<Vec<_>>(), [uid.as_str()]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_made_anew_is_another_pod() {
    // case: attach-detach/F3
    let rig = Rig::start().await;
    rig.attached().await;
    rig.bench.claim("other", "").await;
    rig.bench.bind("other", "pv2", "h2").await;
    rig.bench.delete::<Pod>(&key("web")).await;
    rig.bench.pod("web", Some("n1"), &["other"]).await;
    rig.bench.until::<VolumeAttachment>(&attachment("h2", "n1"), |_| true).await;
    rig.until_state("h1", "n1", Detached).await;
    assert!(rig.wanted("h2", "n1") && !rig.wanted("h1", "n1"));
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_no_longer_attaches_is_believed() {
    // case: attach-detach/F2
    let rig = Rig::start().await;
    rig.attached().await;
    // The field cannot be changed, so a driver that does is made anew.
    rig.bench.delete::<CsiDriver>(&ObjectKey::cluster(DRIVER)).await;
    let driver = json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": false}});
    rig.bench.create::<CsiDriver>(driver).await;
    rig.until_state("h1", "n1", Detached).await;
    assert!(!rig.wanted("h1", "n1"));
    assert!(rig.attachment("h1", "n1").await.is_none(), "detached although it is not attachable");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_was_away_for_a_moment_leaves_no_attachment() {
    let rig = Rig::start().await;
    let driver = ObjectKey::cluster(DRIVER);
    let without = json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": false}});
    one_pod(&rig.bench).await;
    rig.bench.delete::<CsiDriver>(&driver).await;
    rig.bench.until::<VolumeAttachment>(&attachment("h1", "n1"), |_| true).await;
    rig.bench.create::<CsiDriver>(without).await;
    // The node goes on at once and uses the volume: the attachment means nothing to it.
    rig.bench.in_use("n1", &[unique("h1")]).await;
    rig.bench.until_gone::<VolumeAttachment>(&attachment("h1", "n1")).await;
    assert!(!rig.wanted("h1", "n1"));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_nobody_saw_is_taken_in() {
    // case: attach-detach/F5: what comes is the last state that was seen, here an old one.
    let rig = Rig::start().await;
    one_pod(&rig.bench).await;
    let seen = rig.bench.get::<Pod>(&key("web")).await.expect("there");
    rig.bench.pass(SECOND).await;
    let labels = json!({"metadata": {"labels": {"new": "yes"}}});
    rig.bench.merge::<Pod>(&key("web"), labels).await;
    rig.bench.pass(SECOND).await;
    assert!(rig.wanted("h1", "n1"));
    rig.controller.pod_changed(&Change::Deleted { old: Arc::new(seen.clone()) });
    assert!(!rig.wanted("h1", "n1"));
    // Once more, about a pod that is not known at all.
    rig.controller.pod_changed(&Change::Deleted { old: Arc::new(seen) });
    assert_ne!(rig.state("h1", "n1"), Attached);
}
