//! Cases of what nodes are told: `status.volumesAttached`.

use std::time::Duration;

use longshore_core::{
    model::{NodeName, ObjectKey, kinds::Node},
    names::UniqueName,
};

use super::rig::{Fate, Rig, is_report};
use super::{unique, until_reported};
use crate::testing::DRIVER;

const SECOND: Duration = Duration::from_secs(1);

/// Two nodes, each with one volume that has to be reported.
async fn two_nodes(rig: &Rig) {
    for node in ["n1", "n2"] {
        rig.bench.node(node).await;
        // What a node uses stays.
        rig.bench.in_use(node, &[unique(&format!("of-{node}"))]).await;
    }
    rig.bench.pass(SECOND).await;
    for node in ["n1", "n2"] {
        let volume = UniqueName::new(&DRIVER.into(), &format!("of-{node}").into());
        rig.controller.state.lock().actual.mark_attached(&volume, None, &node.into(), "");
    }
}

fn unwritten(rig: &Rig) -> Vec<NodeName> {
    rig.controller.state.lock().actual.dirty_reports()
}

/// Lets the loop see what the test has put into its memory.
fn wake(rig: &Rig) {
    rig.controller.state.change(|_| ());
}

async fn listed(rig: &Rig, node: &str) -> Vec<UniqueName> {
    let node = rig.bench.get::<Node>(&ObjectKey::cluster(node)).await.expect("there");
    node.status.volumes_attached.into_iter().map(|volume| volume.name).collect()
}

#[tokio::test(start_paused = true)]
async fn every_node_hears_of_its_own() {
    // case: attach-detach/S1
    let rig = Rig::start().await;
    two_nodes(&rig).await;
    wake(&rig);
    for node in ["n1", "n2"] {
        until_reported(&rig.bench, node, &format!("of-{node}"), true).await;
        assert_eq!(listed(&rig, node).await, [unique(&format!("of-{node}"))]);
    }
    assert!(unwritten(&rig).is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_failure_does_not_stop_the_others() {
    // case: attach-detach/S2
    let rig = Rig::start().await;
    two_nodes(&rig).await;
    rig.wire.script(|method, path| match is_report(method, path) && path.contains("n1") {
        true => Fate::Refuse(500),
        false => Fate::Pass,
    });
    wake(&rig);
    until_reported(&rig.bench, "n2", "of-n2", true).await;
    rig.bench.pass(30 * SECOND).await;
    assert_eq!(unwritten(&rig), ["n1"]);
    let tries = rig.wire.sent("PATCH /api/v1/nodes/n1").len();
    assert!((3..=20).contains(&tries), "{tries}: tried again, with pauses");
    rig.wire.calm();
    until_reported(&rig.bench, "n1", "of-n1", true).await;
    assert!(unwritten(&rig).is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_node_can_be_written_alone() {
    // case: attach-detach/S3
    let rig = Rig::start().await;
    two_nodes(&rig).await;
    rig.controller.report(&"n1".into()).await.expect("written");
    assert_eq!(unwritten(&rig), ["n2"]);
    assert_eq!(rig.wire.sent("PATCH"), ["PATCH /api/v1/nodes/n1/status"]);
    assert_eq!(listed(&rig, "n1").await, [unique("of-n1")]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_hears_nothing() {
    // case: attach-detach/S4
    let rig = Rig::start().await;
    two_nodes(&rig).await;
    // Gone from the API, while the cache still shows it.
    rig.wire.script(|method, path| match is_report(method, path) {
        true => Fate::Refuse(404),
        false => Fate::Pass,
    });
    rig.controller.report(&"n1".into()).await.expect("nothing to do");
    assert_eq!(unwritten(&rig), ["n2"], "not tried again");
    // Gone from the cache too.
    rig.bench.delete::<Node>(&ObjectKey::cluster("n2")).await;
    rig.bench.pass(SECOND).await;
    let before = rig.wire.sent("PATCH").len();
    wake(&rig);
    rig.bench.pass(30 * SECOND).await;
    assert!(unwritten(&rig).is_empty());
    assert_eq!(rig.wire.sent("PATCH").len(), before);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_registers_anew_hears_again() {
    let rig = Rig::start().await;
    rig.attached().await;
    rig.bench.in_use("n1", &[unique("h1")]).await;
    until_reported(&rig.bench, "n1", "h1", true).await;
    rig.bench.delete::<Node>(&ObjectKey::cluster("n1")).await;
    let managed = serde_json::json!({"metadata": {"name": "n1", "annotations":
        {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}}});
    rig.bench.create::<Node>(managed).await;
    until_reported(&rig.bench, "n1", "h1", true).await;
}
