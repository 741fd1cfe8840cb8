//! Three defects of the original that must not be here.

use std::sync::Arc;
use std::time::Duration;

use longshore_core::backoff::Backoff;
use longshore_core::stage::forgotten::ANSWERS;
use longshore_csi::Call;
use longshore_csi::fake::{Action, Fault, Phase};
use longshore_testing::{Need, need};
use parking_lot::Mutex;
use serde_json::json;

use crate::recorded::attach_and_run;
use crate::rig::{Rig, is_alive};
use crate::{STAY, quick};

/// With a back-off that does not hold up a test.
pub async fn hasty_rig() -> Rig {
    const MOMENT: Duration = Duration::from_millis(10);
    let hasty = |settings: &mut longshore_node::Settings| {
        settings.volume_backoff = Backoff::new(MOMENT, MOMENT);
    };
    Rig::start_tweaked(false, json!({}), hasty).await
}

#[tokio::test]
async fn staging_is_not_leaked_by_a_kill_between_unpublish_and_unstage() {
    if !need("staging_is_not_leaked_by_a_kill_between_unpublish_and_unstage", &[Need::Root]) {
        return;
    }
    let mut rig = Rig::start(true).await;
    rig.volume("data").await;
    rig.pod("p", STAY, quick()).await;
    attach_and_run(&rig, "p").await;
    rig.driver.script(Call::NodeUnstageVolume, [Fault::Hang]);
    rig.delete_pod("p").await;
    rig.until("unstaging", async || !rig.heard.of("NodeUnstageVolume").is_empty()).await;
    assert_eq!(rig.heard.of("NodeUnpublishVolume").len(), 1);
    rig.kill_agent().await;
    assert_eq!(rig.staged_dirs().len(), 1, "the kill came in between");
    rig.start_agent().await;
    // Staged counts as in use, so nobody detaches it; and it is unstaged although no pod is left.
    rig.until("unstaged", async || rig.staged_dirs().is_empty()).await;
    assert_eq!(rig.heard.names(), ["NodeUnstageVolume"]);
    rig.until("released", async || rig.in_use().await.is_empty()).await;
    rig.stop(true).await;
}

/// Notes for every unpublish whether a process of the pod was still there.
fn watch_processes(rig: &Rig, pids: Vec<i32>) -> Arc<Mutex<Vec<bool>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = seen.clone();
    rig.driver.hook(move |moment| {
        if moment.call == Call::NodeUnpublishVolume && moment.phase == Phase::Before {
            let alive = pids.iter().any(|pid| is_alive(*pid));
            notes.lock().push(alive);
        }
        Action::Continue
    });
    seen
}

#[tokio::test]
async fn nothing_is_unpublished_under_a_running_container() {
    if !need("nothing_is_unpublished_under_a_running_container", &[Need::Root]) {
        return;
    }
    let mut rig = Rig::start(false).await;
    rig.volume("data").await;
    // Deaf to TERM, so that it lives as long as its grace.
    let deaf = "trap '' TERM; while true; do sleep 0.1; done";
    let uid = rig.pod("p", deaf, json!({"terminationGracePeriodSeconds": 1})).await;
    rig.wait_phase("p", "Running").await;
    let seen = watch_processes(&rig, rig.pids(&uid));
    rig.end("p").await;
    assert_eq!(*seen.lock(), [false], "deleted");
    // The pod vanishes while the agent is dead: its container is ended first all the same.
    let uid = rig.pod("q", deaf, json!({"terminationGracePeriodSeconds": 1})).await;
    rig.wait_phase("q", "Running").await;
    let pids = rig.pids(&uid);
    rig.kill_agent().await;
    rig.force_delete_pod("q").await;
    assert!(pids.iter().all(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists()));
    let seen = watch_processes(&rig, pids);
    rig.start_agent().await;
    rig.until("unpublished", async || !seen.lock().is_empty()).await;
    assert_eq!(*seen.lock(), [false], "vanished");
    rig.until("unstaged", async || rig.staged_dirs().is_empty()).await;
    rig.stop(true).await;
}

#[tokio::test]
async fn a_volume_that_was_deleted_too_early_is_taken_down_all_the_same() {
    if !need("a_volume_that_was_deleted_too_early_is_taken_down_all_the_same", &[Need::Root]) {
        return;
    }
    let rig = hasty_rig().await;
    rig.volume("data").await;
    let uid = rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    // Somebody deleted it behind the node's back; the driver knows it no longer.
    rig.driver.always(Call::NodeUnpublishVolume, Fault::before(tonic::Code::NotFound));
    rig.driver.always(Call::NodeUnstageVolume, Fault::before(tonic::Code::NotFound));
    let mount = rig.publish_dir(&uid, "data").join("mount");
    assert!(mount.exists());
    rig.end("p").await;
    rig.until("nothing is staged", async || rig.staged_dirs().is_empty()).await;
    let answers = ANSWERS as usize;
    assert_eq!(rig.heard.of("NodeUnpublishVolume").len(), answers, "and it is not asked for ever");
    assert_eq!(rig.heard.of("NodeUnstageVolume").len(), answers);
    rig.stop(true).await;
}

#[tokio::test]
async fn a_driver_that_does_not_know_its_volumes_while_it_starts_is_not_believed() {
    if !need(
        "a_driver_that_does_not_know_its_volumes_while_it_starts_is_not_believed",
        &[Need::Root],
    ) {
        return;
    }
    let rig = hasty_rig().await;
    rig.volume("data").await;
    let uid = rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    let mount = rig.publish_dir(&uid, "data").join("mount");
    rig.driver.always(Call::NodeUnpublishVolume, Fault::before(tonic::Code::NotFound));
    // It never says often enough in a row that it does not know the volume.
    let answers = ANSWERS as usize;
    let mut faults = vec![Fault::before(tonic::Code::NotFound); answers - 1];
    faults.push(Fault::before(tonic::Code::Unavailable));
    faults.extend(vec![Fault::before(tonic::Code::NotFound); answers - 1]);
    rig.driver.script(Call::NodeUnpublishVolume, faults);
    // Then it does, but is not ready, or does not even say that.
    rig.driver.configure(|config| config.ready = Some(false));
    rig.driver.script(Call::Probe, [Fault::before(tonic::Code::Internal)]);
    rig.delete_pod("p").await;
    let asked = || rig.heard.of("NodeUnpublishVolume").len();
    rig.until("asked again and again", async || asked() >= 4 * answers).await;
    assert!(mount.exists(), "nothing was taken from the driver");
    let text = "UnmountVolume.TearDown failed for volume \"pv-data\"";
    rig.until("told", async || rig.has_event("FailedUnmount", text).await).await;
    rig.driver.clear_faults();
    rig.wait_gone("p").await;
    rig.stop(true).await;
}
