//! Registration: several drivers, sockets made anew, limits that change.

use std::collections::BTreeMap;

use longshore_cluster::{DeleteParams, Patch};
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::{CsiDriver, CsiNode, Node};
use longshore_csi::Call;
use longshore_testing::{Need, need};
use serde_json::{Value, json};

use crate::rig::{DRIVER, Rig};

async fn drivers(rig: &Rig) -> Vec<Value> {
    rig.csi_node().await["spec"]["drivers"].as_array().cloned().unwrap_or_default()
}

async fn names(rig: &Rig) -> Vec<String> {
    let name = |one: &Value| one["name"].as_str().unwrap().to_owned();
    drivers(rig).await.iter().map(name).collect()
}

#[tokio::test]
async fn the_node_info_of_an_earlier_node_is_replaced() {
    if !need("the_node_info_of_an_earlier_node_is_replaced", &[Need::Root]) {
        return;
    }
    let mut rig = Rig::start(false).await;
    rig.kill_agent().await;
    let key = ObjectKey::cluster("n1");
    rig.api.delete::<CsiNode>(&key, &DeleteParams::default()).await.unwrap();
    let foreign = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n1",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "another"}]},
        "spec": {"drivers": []}});
    rig.api.create::<CsiNode>(&foreign).await.unwrap();
    rig.start_agent().await;
    // case: node/N43
    let node = rig.api.get_raw::<Node>(&key).await.unwrap().unwrap();
    let csi_node = rig.csi_node().await;
    assert_eq!(csi_node["metadata"]["ownerReferences"][0]["uid"], node["metadata"]["uid"]);
    assert_eq!(names(&rig).await, [DRIVER]);
    rig.stop(true).await;
}

#[tokio::test]
async fn a_removed_socket_deregisters_only_its_driver() {
    if !need("a_removed_socket_deregisters_only_its_driver", &[Need::Root]) {
        return;
    }
    let mut rig = Rig::start(false).await;
    rig.kill_agent().await;
    let segments = BTreeMap::from([("topology.test/zone".to_owned(), "a".to_owned())]);
    rig.driver.with_pools([(segments.clone(), None)]);
    rig.driver.on_node("n1", segments);
    rig.start_agent().await;
    let second = rig.introduce("second.sock", "second.csi.test", "CSIPlugin");
    rig.until("both are there", async || names(&rig).await == [DRIVER, "second.csi.test"]).await;
    second.cancel();
    let socket = rig.root().join("plugins_registry/second.sock");
    if socket.exists() {
        std::fs::remove_file(socket).unwrap();
    }
    // case: node/N45
    rig.until("the second is gone", async || names(&rig).await == [DRIVER]).await;
    rig.until("its id too", async || {
        let node = rig.api.get_raw::<Node>(&ObjectKey::cluster("n1")).await.unwrap().unwrap();
        let ids = node["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"].as_str();
        assert_eq!(node["metadata"]["labels"]["topology.test/zone"], "a", "labels stay");
        ids == Some(&format!("{{\"{DRIVER}\":\"n1\"}}"))
    })
    .await;
    rig.stop(true).await;
}

#[tokio::test]
async fn a_replaced_socket_registers_its_driver_again() {
    if !need("a_replaced_socket_registers_its_driver_again", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    let second = rig.introduce("second.sock", "second.csi.test", "CSIPlugin");
    rig.until("both are there", async || names(&rig).await.len() == 2).await;
    let told =
        || rig.notes.lock().iter().filter(|note| note.0 == "second.csi.test" && note.1).count();
    rig.until("told", async || told() == 1).await;
    second.cancel();
    let socket = rig.root().join("plugins_registry/second.sock");
    if socket.exists() {
        std::fs::remove_file(&socket).unwrap();
    }
    let _again = rig.introduce("second.sock", "second.csi.test", "CSIPlugin");
    // case: node/N47
    rig.until("told again", async || told() == 2).await;
    assert_eq!(names(&rig).await, [DRIVER, "second.csi.test"]);
    rig.stop(true).await;
}

#[tokio::test]
async fn a_plugin_of_an_unknown_type_is_refused() {
    if !need("a_plugin_of_an_unknown_type_is_refused", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    let _foo = rig.introduce("foo.sock", "foo.test", "Foo");
    // case: node/N48
    rig.until("told no", async || {
        let notes = rig.notes.lock().clone();
        let text = "no handler registered for plugin type: Foo";
        notes.iter().any(|(name, ok, error)| name == "foo.test" && !ok && error.contains(text))
    })
    .await;
    assert_eq!(names(&rig).await, [DRIVER]);
    rig.stop(true).await;
}

#[tokio::test]
async fn limits_are_refreshed_as_often_as_the_csi_driver_says() {
    if !need("limits_are_refreshed_as_often_as_the_csi_driver_says", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    rig.driver.configure(|config| config.max_volumes_per_node = 7);
    let patch = json!({"spec": {"nodeAllocatableUpdatePeriodSeconds": 10}});
    rig.api.patch::<CsiDriver>(&ObjectKey::cluster(DRIVER), Patch::Merge(&patch)).await.unwrap();
    // case: node/N46
    rig.until("the new limit is there", async || {
        drivers(&rig).await[0]["allocatable"]["count"] == 7
    })
    .await;
    assert!(!rig.driver.calls_of(Call::NodeGetInfo).is_empty());
    rig.stop(true).await;
}
