//! The scheduler over a real API server; tests play provisioner and binder.

use std::time::Duration;

use longshore_cluster::DeleteParams;
use longshore_core::model::{
    ObjectKey,
    keys::annotations,
    kinds::{Claim, CsiNode, Node, Pod, Volume, VolumeAttachment},
};
use serde_json::json;

use super::{Config, Scheduler};
use crate::testing::{Bench, DRIVER, Process, key};

fn start(bench: &Bench) -> Process {
    let mut process = bench.process();
    let scheduler = Scheduler::new(&process.context, Config::default());
    let shutdown = process.shutdown.clone();
    process.spawn(scheduler.run(shutdown));
    process
}

async fn until_on(bench: &Bench, pod: &str, node: &str) {
    bench.until::<Pod>(&key(pod), |pod| pod.spec.node_name == node).await;
}

async fn until_unschedulable(bench: &Bench, pod: &str) -> String {
    let said = |pod: &Pod| {
        let mut conditions = pod.status.conditions.iter();
        conditions.any(|one| one.kind == "PodScheduled" && one.status == "False")
    };
    let pod = bench.until::<Pod>(&key(pod), said).await;
    let condition = pod.status.conditions.into_iter().find(|one| one.kind == "PodScheduled");
    let condition = condition.expect("just seen");
    assert_eq!(condition.reason, "Unschedulable");
    condition.message
}

async fn until_selected(bench: &Bench, claim: &str, node: &str) {
    let chosen =
        |claim: &Claim| claim.metadata.annotation(annotations::SELECTED_NODE) == Some(node);
    bench.until::<Claim>(&key(claim), chosen).await;
}

#[tokio::test(start_paused = true)]
async fn pods_spread_over_nodes() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    bench.node("n1").await;
    bench.node("n2").await;
    bench.pass(Duration::from_millis(10)).await;
    bench.pod("a", None, &[]).await;
    until_on(&bench, "a", "n1").await;
    bench.pod("b", None, &[]).await;
    until_on(&bench, "b", "n2").await;
    let events = bench.events("Scheduled").await;
    assert!(events.contains(&"Successfully assigned default/a to n1".to_owned()), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn placement_without_regard_to_a_wish_is_an_event() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    bench.node("n1").await;
    bench.pod("plain", None, &[]).await;
    until_on(&bench, "plain", "n1").await;
    let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "x"}}});
    bench
        .create::<Pod>(json!({"metadata": {"name": "apart", "namespace": "default"}, "spec": {
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
            "containers": [{"name": "main", "image": "host"}]}}))
        .await;
    until_on(&bench, "apart", "n1").await;
    bench.pass(Duration::from_secs(1)).await;
    let events = bench.events("NotEnforced").await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].contains("without regard to: podAntiAffinity;"), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_late_binding_claim_gets_its_node_and_then_the_pod() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    bench.node("n1").await;
    bench.class("wait", "WaitForFirstConsumer").await;
    bench.claim("data", "wait").await;
    bench.pass(Duration::from_millis(10)).await;
    let before = tokio::time::Instant::now();
    bench.pod("web", None, &["data"]).await;
    until_selected(&bench, "data", "n1").await;
    let pod = bench.get::<Pod>(&key("web")).await.expect("there");
    assert_eq!(pod.spec.node_name, "", "not before the volume is there");
    bench.bind("data", "pv1", "h1").await;
    until_on(&bench, "web", "n1").await;
    assert!(before.elapsed() < Duration::from_millis(100), "no step waits for a timer");
}

#[tokio::test(start_paused = true)]
async fn a_choice_given_back_is_made_again() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    bench.node("n1").await;
    bench.class("wait", "WaitForFirstConsumer").await;
    bench.claim("data", "wait").await;
    bench.pod("web", None, &["data"]).await;
    until_selected(&bench, "data", "n1").await;
    // The provisioner has no room on n1; meanwhile n1 is cordoned and n2 joins.
    bench.node("n2").await;
    let cordon = json!({"spec": {"unschedulable": true}});
    bench.merge::<Node>(&ObjectKey::cluster("n1"), cordon).await;
    let give_back = json!({"metadata": {"annotations": {annotations::SELECTED_NODE: null}}});
    bench.merge::<Claim>(&key("data"), give_back).await;
    until_selected(&bench, "data", "n2").await;
    bench.bind("data", "pv1", "h1").await;
    until_on(&bench, "web", "n2").await;
    let events = bench.events("FailedScheduling").await;
    let want = "binding volumes: provisioning failed for PVC \"data\"";
    assert!(events.iter().any(|event| event == want), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn existing_volumes_are_kept_for_their_claim() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    bench.node("n1").await;
    bench
        .create::<longshore_core::model::kinds::StorageClass>(json!({
            "metadata": {"name": "hand"}, "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer"}))
        .await;
    bench
        .create::<Volume>(json!({"metadata": {"name": "disk"}, "spec": {
            "capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": "hand", "csi": {"driver": DRIVER, "volumeHandle": "h"}}}))
        .await;
    let available = json!({"status": {"phase": "Available"}});
    bench.merge_status::<Volume>(&ObjectKey::cluster("disk"), available).await;
    let uid = bench.claim("data", "hand").await;
    bench.pod("web", None, &["data"]).await;
    let disk = ObjectKey::cluster("disk");
    let kept = bench.until::<Volume>(&disk, |volume| volume.spec.claim_ref.is_some()).await;
    assert_eq!(kept.spec.claim_ref.expect("just seen").uid, uid);
    assert!(kept.metadata.annotation(annotations::BOUND_BY_CONTROLLER).is_some());
    let bound = json!({"metadata": {"annotations": {annotations::BIND_COMPLETED: "yes"}},
        "spec": {"volumeName": "disk"}});
    bench.merge::<Claim>(&key("data"), bound).await;
    until_on(&bench, "web", "n1").await;
}

#[tokio::test(start_paused = true)]
async fn an_unbound_immediate_claim_holds_the_pod() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    bench.node("n1").await;
    bench.class("now", "Immediate").await;
    bench.claim("data", "now").await;
    bench.pod("web", None, &["data"]).await;
    let message = until_unschedulable(&bench, "web").await;
    let want = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.";
    assert_eq!(message, want);
    let events = bench.events("FailedScheduling").await;
    assert_eq!(events, [want]);
    bench.bind("data", "pv1", "h1").await;
    until_on(&bench, "web", "n1").await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_a_node_waits_for_one() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    bench.pod("web", None, &[]).await;
    assert_eq!(until_unschedulable(&bench, "web").await, "no nodes available to schedule pods");
    bench.node("n1").await;
    until_on(&bench, "web", "n1").await;
}

#[tokio::test(start_paused = true)]
async fn a_full_node_takes_no_more_volumes_until_one_is_detached() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    bench.node("n1").await;
    let limit = json!({"spec": {"drivers": [
        {"name": DRIVER, "nodeID": "id-of-n1", "allocatable": {"count": 1}}]}});
    bench.merge::<CsiNode>(&ObjectKey::cluster("n1"), limit).await;
    for (claim, volume, handle) in [("c1", "pv1", "h1"), ("c2", "pv2", "h2")] {
        bench.claim(claim, "").await;
        bench.bind(claim, volume, handle).await;
    }
    bench.pod("one", None, &["c1"]).await;
    until_on(&bench, "one", "n1").await;
    bench
        .create::<VolumeAttachment>(
            json!({"metadata": {"name": "va1"}, "spec": {"attacher": DRIVER,
            "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}}}),
        )
        .await;
    bench.pod("two", None, &["c2"]).await;
    let message = until_unschedulable(&bench, "two").await;
    assert_eq!(message, "0/1 nodes are available: 1 node(s) exceed max volume count.");
    bench.delete::<Pod>(&key("one")).await;
    bench.pass(Duration::from_secs(5)).await;
    let waiting = bench.get::<Pod>(&key("two")).await.expect("there");
    assert_eq!(waiting.spec.node_name, "", "the attachment counts");
    let now = DeleteParams::default();
    let va = ObjectKey::cluster("va1");
    bench.api.delete::<VolumeAttachment>(&va, &now).await.expect("deleted");
    until_on(&bench, "two", "n1").await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_for_one_pod_only() {
    // case: scheduler-and-api/S40
    let bench = Bench::start().await;
    let _process = start(&bench);
    bench.node("n1").await;
    bench
        .create::<Claim>(json!({"metadata": {"name": "lone", "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteOncePod"], "storageClassName": "",
                "resources": {"requests": {"storage": "1Gi"}}}}))
        .await;
    bench.bind("lone", "pv1", "h1").await;
    bench.pod("first", None, &["lone"]).await;
    until_on(&bench, "first", "n1").await;
    bench.pod("second", None, &["lone"]).await;
    let message = until_unschedulable(&bench, "second").await;
    assert!(message.contains("ReadWriteOncePod access mode already in-use"), "{message}");
    bench.delete::<Pod>(&key("first")).await;
    until_on(&bench, "second", "n1").await;
}

#[tokio::test(start_paused = true)]
async fn a_new_scheduler_goes_on_where_the_old_one_died() {
    let bench = Bench::start().await;
    bench.node("n1").await;
    bench.class("wait", "WaitForFirstConsumer").await;
    for steps in [0, 5, 10, 20, 40, 80] {
        let (claim, pod, volume) = (format!("c{steps}"), format!("p{steps}"), format!("pv{steps}"));
        bench.claim(&claim, "wait").await;
        bench.pod(&pod, None, &[&claim]).await;
        let first = start(&bench);
        for _ in 0..steps {
            tokio::task::yield_now().await;
        }
        first.kill();
        let second = start(&bench);
        until_selected(&bench, &claim, "n1").await;
        bench.bind(&claim, &volume, &volume).await;
        until_on(&bench, &pod, "n1").await;
        second.kill();
    }
}

/// A pod with one container that requests so many processors.
async fn busy_pod(bench: &Bench, name: &str, cpu: &str) {
    let resources = json!({"requests": {"cpu": cpu}});
    bench
        .create::<Pod>(
            json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [
            {"name": "main", "image": "i", "resources": resources}]}}),
        )
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_requests_more_than_is_left_says_so_and_waits_for_room() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    bench.node("n1").await;
    let room = json!({"status": {"allocatable": {"cpu": "2", "memory": "4Gi"}}});
    bench.merge_status::<Node>(&ObjectKey::cluster("n1"), room).await;
    bench.pass(Duration::from_millis(10)).await;
    busy_pod(&bench, "huge", "3").await;
    let text = until_unschedulable(&bench, "huge").await;
    assert_eq!(text, "0/1 nodes are available: 1 Insufficient cpu.");
    busy_pod(&bench, "first", "1500m").await;
    until_on(&bench, "first", "n1").await;
    busy_pod(&bench, "second", "1").await;
    assert_eq!(until_unschedulable(&bench, "second").await, text);
    let events = bench.events("FailedScheduling").await;
    assert!(events.contains(&text), "{events:?}");
    bench.delete::<Pod>(&key("first")).await;
    until_on(&bench, "second", "n1").await;
    // A node that grows is news, too.
    let room = json!({"status": {"allocatable": {"cpu": "4"}}});
    bench.merge_status::<Node>(&ObjectKey::cluster("n1"), room).await;
    until_on(&bench, "huge", "n1").await;
}
