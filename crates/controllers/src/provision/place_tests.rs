//! Where volumes are asked for, while nodes come and go.

use longshore_cluster::{DeleteParams, Patch};
use longshore_core::model::{
    ObjectKey,
    kinds::{CsiNode, Node},
};
use longshore_csi::{Call, fake::Fault};
use serde_json::{Value, json};

use super::testing::Bench;

fn creations(bench: &Bench) -> Vec<String> {
    bench.driver.calls_of(Call::CreateVolume).into_iter().map(|call| call.request).collect()
}

#[tokio::test(start_paused = true)]
async fn labels_count_also_where_the_driver_is_not() {
    // case: provisioner/103
    let mut bench = Bench::new().await;
    bench.zones(&[("a", None), ("b", None)]);
    bench.node("n1", "a").await;
    let label = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n2", "labels": {"topology.test/zone": "b"}}});
    bench.api.create::<Node>(&label).await.unwrap();
    let empty = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
        "metadata": {"name": "n2"}, "spec": {"drivers": []}});
    bench.api.create::<CsiNode>(&empty).await.unwrap();
    bench.start();
    bench.claim("data", "fast").await;
    bench.until_bound("data").await;
    let asked = &creations(&bench)[0];
    for zone in ["a", "b"] {
        assert!(asked.contains(&format!("\"topology.test/zone\":\"{zone}\"")), "{asked}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_places_are_asked_for_again() {
    // case: provisioner/111
    let mut bench = Bench::new().await;
    bench.zones(&[("a", None), ("b", None)]);
    bench.node("n1", "a").await;
    bench.node("n2", "b").await;
    bench.config.leak_guard = None;
    bench.driver.script(Call::CreateVolume, [Fault::After(14.into(), "late".into())]);
    bench.start();
    for (name, class, node) in [("now", "fast", None), ("late", "late", Some("n1"))] {
        bench.driver.clear_calls();
        bench.claim(name, class).await;
        if let Some(node) = node {
            bench.select_node(name, node).await;
        }
        bench.until("the driver is asked", || async { !creations(&bench).is_empty() }).await;
        for node in ["n1", "n2"] {
            let key = ObjectKey::cluster(node);
            bench.api.delete::<Node>(&key, &DeleteParams::default()).await.unwrap();
            bench.api.delete::<CsiNode>(&key, &DeleteParams::default()).await.unwrap();
        }
        bench.until_bound(name).await;
        let all = creations(&bench);
        assert!(all.len() > 1 && all.iter().all(|one| *one == all[0]), "{all:?}");
        bench.node("n1", "a").await;
        bench.node("n2", "b").await;
        bench.driver.script(Call::CreateVolume, [Fault::After(14.into(), "late".into())]);
    }
}

#[tokio::test(start_paused = true)]
async fn labels_that_come_later_are_seen() {
    // case: provisioner/112
    let mut bench = Bench::new().await;
    bench.zones(&[("a", None)]);
    bench.node("n1", "a").await;
    let key = ObjectKey::cluster("n1");
    let label = |zone: Value| json!({"metadata": {"labels": {"topology.test/zone": zone}}});
    bench.api.patch::<Node>(&key, Patch::Merge(&label(Value::Null))).await.unwrap();
    bench.start();
    bench.claim("data", "late").await;
    bench.select_node("data", "n1").await;
    bench
        .until("it is told", || async {
            let told = bench.events("data").await;
            told.iter().any(|event| event == "Warning ProvisioningFailed")
        })
        .await;
    assert!(creations(&bench).is_empty());
    bench.api.patch::<Node>(&key, Patch::Merge(&label(json!("a")))).await.unwrap();
    bench.until_bound("data").await;
}

/// A node that is there before its driver: what was seen then must not be remembered.
#[tokio::test(start_paused = true)]
async fn a_driver_that_comes_later_is_seen() {
    // case: provisioner/112
    let mut bench = Bench::new().await;
    bench.zones(&[("a", None)]);
    let bare = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    bench.api.create::<Node>(&bare).await.unwrap();
    bench.start();
    bench.claim("data", "fast").await;
    bench
        .until("it is told", || async {
            let told = bench.events("data").await;
            told.iter().any(|event| event == "Warning ProvisioningFailed")
        })
        .await;
    bench.api.delete::<Node>(&ObjectKey::cluster("n1"), &DeleteParams::default()).await.unwrap();
    bench.node("n1", "a").await;
    bench.until_bound("data").await;
}
