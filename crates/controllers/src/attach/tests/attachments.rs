//! Cases of `VolumeAttachment` objects: made, waited for, compared, deleted.

use std::time::Duration;

use longshore_core::{
    attach::{
        AttachSpec,
        AttachState::{Attached, Detached, Uncertain},
        OnNode,
    },
    model::{
        AccessMode, ObjectKey,
        kinds::{CsiDriver, Pod, VolumeAttachment},
    },
    names::attachment_name,
};
use serde_json::{Value, json};

use super::rig::{Fate, Rig};
use super::{attachment, one_pod, say_attached};
use crate::testing::{Bench, DRIVER, key};

const SECOND: Duration = Duration::from_secs(1);

fn confirmed(driver: &str, handle: &str) -> OnNode {
    let spec = AttachSpec {
        name: "pv".into(),
        driver: driver.into(),
        handle: handle.into(),
        shareable: false,
        migrated: false,
        inline: None,
    };
    OnNode {
        volume: spec.unique_name(),
        node: "n1".into(),
        spec: Some(spec),
        confirmed: true,
        mounted: false,
        detach_requested: None,
    }
}

async fn foreign(rig: &Rig, name: &str, attached: bool) {
    let spec = json!({"attacher": DRIVER, "nodeName": "n1",
        "source": {"persistentVolumeName": "any"}});
    rig.bench.create::<VolumeAttachment>(json!({"metadata": {"name": name}, "spec": spec})).await;
    let status = json!({"status": {"attached": attached}});
    rig.bench.merge_status::<VolumeAttachment>(&ObjectKey::cluster(name), status).await;
}

#[tokio::test(start_paused = true)]
async fn only_the_right_attachment_counts() {
    // case: attach-detach/C2
    let rig = Rig::start().await;
    for name in [
        attachment_name(&"other".into(), &DRIVER.into(), &"n1".into()),
        attachment_name(&"h1".into(), &"other.example".into(), &"n1".into()),
        attachment_name(&"h1".into(), &DRIVER.into(), &"n2".into()),
    ] {
        foreign(&rig, &name, true).await;
    }
    one_pod(&rig.bench).await;
    rig.bench.pass(119 * SECOND).await;
    assert_eq!(rig.state("h1", "n1"), Detached, "it waits");
    rig.until_state("h1", "n1", Uncertain).await;
    let events = rig.bench.events("FailedAttachVolume").await;
    assert!(events.iter().any(|text| text.contains("timed out waiting")), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn attachments_are_compared_with_their_objects() {
    // case: attach-detach/C7
    let rig = Rig::start().await;
    for (handle, attached) in [("a", true), ("b", true), ("c", false)] {
        foreign(&rig, &attachment_name(&handle.into(), &DRIVER.into(), &"n1".into()), attached)
            .await;
    }
    rig.bench.pass(SECOND).await;
    for (handle, want) in [("a", true), ("b", true), ("c", false), ("missing", false)] {
        let found = rig.controller.is_attached(&confirmed(DRIVER, handle)).await;
        assert_eq!(found, Some(want), "{handle}");
    }
    // Nobody can tell: nothing may change because of that.
    rig.wire.script(|_, _| Fate::Refuse(500));
    assert_eq!(rig.controller.is_attached(&confirmed(DRIVER, "missing")).await, None);
    // case: attach-detach/C8
    let plain = json!({"metadata": {"name": "plain.example"}, "spec": {"attachRequired": false}});
    rig.bench.create::<CsiDriver>(plain).await;
    rig.bench.pass(SECOND).await;
    assert_eq!(rig.controller.is_attached(&confirmed("plain.example", "any")).await, Some(true));
}

#[tokio::test(start_paused = true)]
async fn comparisons_do_not_wait_for_each_other() {
    // case: attach-detach/O3
    let rig = Rig::start().await;
    rig.attached().await;
    let gone = longshore_cluster::DeleteParams::default();
    let va = attachment("h1", "n1");
    rig.bench.api.delete::<VolumeAttachment>(&va, &gone).await.expect("deleted");
    rig.bench.pass(SECOND).await;
    rig.wire.script(|method, _| match method {
        "GET" => Fate::Slow(10 * SECOND),
        _ => Fate::Pass,
    });
    let before = tokio::time::Instant::now();
    tokio::join!(rig.controller.clone().verify(), rig.controller.clone().verify());
    assert_eq!(before.elapsed().as_secs(), 10, "both at once");
    assert_eq!(rig.wire.sent("GET").len(), 2);
    rig.bench.until::<VolumeAttachment>(&va, |_| true).await;
    let line = "storage_operation_duration_seconds_count{volume_plugin=\"<n/a>\",\
        operation_name=\"verify_volumes_are_attached_per_node\",status=\"success\",\
        migrated=\"false\"}";
    assert_eq!(rig.metric(line), Some(2.0));
}

#[tokio::test(start_paused = true)]
async fn a_detach_of_what_is_gone_is_done() {
    // case: attach-detach/C10
    let rig = Rig::start().await;
    rig.attached().await;
    let gone = longshore_cluster::DeleteParams::default();
    let va = attachment("h1", "n1");
    rig.bench.api.delete::<VolumeAttachment>(&va, &gone).await.expect("deleted");
    rig.bench.delete::<Pod>(&key("web")).await;
    let before = tokio::time::Instant::now();
    rig.until_state("h1", "n1", Detached).await;
    assert!(before.elapsed() < SECOND, "at once");
    assert_eq!(rig.wire.sent("DELETE").len(), 1);
    let count = |operation: &str| {
        let labels = format!(
            "volume_plugin=\"kubernetes.io/csi:{DRIVER}\",operation_name=\"{operation}\",\
             status=\"success\",migrated=\"false\""
        );
        rig.metric(&format!("storage_operation_duration_seconds_count{{{labels}}}"))
    };
    assert_eq!((count("volume_attach"), count("volume_detach")), (Some(1.0), Some(1.0)));
}

#[tokio::test(start_paused = true)]
async fn an_in_tree_source_in_a_pod_is_attached_by_its_driver() {
    // case: attach-detach/C14
    let rig = Rig::start().await;
    rig.bench.node("n1").await;
    rig.bench
        .create::<Pod>(json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {
            "nodeName": "n1", "containers": [{"name": "main", "image": "host"}],
            "volumes": [{"name": "v", "gcePersistentDisk": {"pdName": "disk"}}]}}))
        .await;
    let (driver, handle) =
        ("pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk");
    let va = ObjectKey::cluster(attachment_name(&handle.into(), &driver.into(), &"n1".into()));
    let made = rig.bench.until::<VolumeAttachment>(&va, |_| true).await;
    assert_eq!(made.spec.source.persistent_volume_name, None);
    let inline = made.spec.source.inline_volume_spec.expect("its own description");
    let csi = inline.csi.expect("a CSI source");
    assert_eq!((csi.driver.as_str(), csi.volume_handle.as_str()), (driver, handle));
    assert_eq!(inline.access_modes, [AccessMode::ReadWriteOnce]);
    say_attached(&rig.bench, &va).await;
    let volume = longshore_core::names::UniqueName::new(&driver.into(), &handle.into());
    let attached = |node: &longshore_core::model::kinds::Node| {
        node.status.volumes_attached.iter().any(|found| found.name == volume.as_str())
    };
    rig.bench.until(&ObjectKey::cluster("n1"), attached).await;
    let in_use = format!(
        "storage_count_attachable_volumes_in_use{{node=\"n1\",\
         volume_plugin=\"kubernetes.io/csi:{driver}\"}}"
    );
    assert_eq!(rig.metric(&in_use), Some(1.0));
    assert_eq!(rig.controller.state.lock().actual.state(&volume, &"n1".into()), Attached);
}

/// The rules of the role that nodes are shipped with.
fn shipped_rules() -> Vec<Value> {
    let text = include_str!("../../../../../deploy/rbac/node.yaml");
    let role = text.split("---").find(|part| part.contains("kind: ClusterRole\n"));
    let lines = role.expect("a role").lines().map(|line| line.trim_start_matches(['-', ' ']));
    let mut rules: Vec<Value> = Vec::new();
    for (key, list) in lines.filter_map(|line| line.split_once(": [")) {
        let list = list.trim_end_matches(']').split(", ").map(|item| item.trim_matches('"'));
        if key == "apiGroups" {
            rules.push(json!({}));
        }
        rules.last_mut().expect("groups come first")[key] = list.collect();
    }
    rules
}

async fn post(bench: &Bench, kind: &str, plural: &str, mut object: Value) {
    object["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
    object["kind"] = json!(kind);
    let path = format!("/apis/rbac.authorization.k8s.io/v1/{plural}");
    let request = http::Request::post(path).header("content-type", "application/json");
    let request = request.body(object.to_string().into_bytes()).expect("a request");
    bench.api.client().request::<Value>(request).await.expect("made");
}

#[tokio::test(start_paused = true)]
async fn nodes_cannot_attach() {
    // case: attach-detach/C16: with the rights that nodes have, making an attachment is an error.
    let rig = Rig::start().await;
    let role = json!({"metadata": {"name": "node"}, "rules": shipped_rules()});
    post(&rig.bench, "ClusterRole", "clusterroles", role).await;
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"metadata": {"name": "node"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "node"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "the-node"}]});
    post(&rig.bench, "ClusterRoleBinding", "clusterrolebindings", binding).await;
    one_pod(&rig.bench).await;
    let va = rig.bench.until::<VolumeAttachment>(&attachment("h1", "n1"), |_| true).await;
    let node = rig.bench.api_as("the-node", &["system:authenticated"]);
    let seen = node.get::<VolumeAttachment>(&va.metadata.key()).await;
    assert!(seen.expect("nodes may look").is_some());
    let spec = json!({"attacher": DRIVER, "nodeName": "n1",
        "source": {"persistentVolumeName": "pv1"}});
    let object = json!({"metadata": {"name": "mine"}, "spec": spec});
    let refused = node.create::<VolumeAttachment>(&object).await.expect_err("not for nodes");
    assert!(refused.to_string().contains("cannot create"), "{refused}");
    let gone = longshore_cluster::DeleteParams::default();
    let refused = node.delete::<VolumeAttachment>(&va.metadata.key(), &gone).await;
    assert!(refused.expect_err("not for nodes").to_string().contains("cannot delete"));
}
