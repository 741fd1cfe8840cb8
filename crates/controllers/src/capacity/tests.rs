//! The publisher over a real API server and a driver in memory.

use std::{collections::BTreeMap, time::Duration};

use longshore_cluster::{ListParams, Metrics};
use longshore_core::{
    model::{
        ObjectKey,
        kinds::{ConfigMap, CsiNode, CsiStorageCapacity, Node, OwnerReference, Pod, StorageClass},
    },
    provision::capacity::MANAGER,
};
use longshore_csi::{
    Call,
    fake::{Driver, Fault},
};
use serde_json::{Value, json};

use super::*;
use crate::testing::{Bench, DRIVER, Process};

const NAMESPACE: &str = "default";
const GIB: i64 = 1 << 30;

/// A driver with room for a GiB in each zone.
fn driver(zones: &[&str]) -> Driver {
    let driver = Driver::new(DRIVER);
    driver.with_pools(zones.iter().map(|zone| (term(&[("zone", zone)]), Some(GIB))));
    driver
}

fn term(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn config() -> Config {
    Config { poll: Duration::from_secs(3600), ..Config::new(NAMESPACE, MANAGER) }
}

struct Running {
    process: Process,
    waker: CapacityWaker,
    metrics: Metrics,
}

fn start(bench: &Bench, driver: &Driver, config: Config) -> Running {
    let mut process = bench.process();
    let context = &process.context;
    let metrics = context.metrics.clone();
    let places = Places::Watched(context.cache(), context.cache());
    let publisher = CapacityPublisher::new(config, context, &driver.client(), places, DRIVER);
    let waker = publisher.waker();
    let shutdown = process.shutdown.clone();
    process.spawn(publisher.run(shutdown));
    Running { process, waker, metrics }
}

async fn node(bench: &Bench, name: &str, zone: &str) {
    bench.create::<Node>(json!({"metadata": {"name": name, "labels": {"zone": zone}}})).await;
    bench
        .create::<CsiNode>(json!({"metadata": {"name": name}, "spec": {"drivers": [
            {"name": DRIVER, "nodeID": name, "topologyKeys": ["zone"]}]}}))
        .await;
}

async fn objects(bench: &Bench) -> Vec<CsiStorageCapacity> {
    bench.api.list(Some(NAMESPACE), &ListParams::default()).await.expect("a list")
}

/// Waits until the objects look as wanted, and stay so: whatever is queued is done by then.
async fn until(
    bench: &Bench,
    what: &str,
    want: impl Fn(&[CsiStorageCapacity]) -> bool,
) -> Vec<CsiStorageCapacity> {
    for _ in 0..4_000 {
        let found = objects(bench).await;
        if want(&found) {
            bench.pass(Duration::from_secs(3)).await;
            let later = objects(bench).await;
            assert!(want(&later), "did not stay: {what}: {later:#?}");
            return later;
        }
        bench.pass(Duration::from_millis(5)).await;
    }
    panic!("never: {what}: {:#?}", objects(bench).await);
}

fn about(objects: &[CsiStorageCapacity]) -> Vec<(String, String)> {
    let zone = |one: &CsiStorageCapacity| {
        one.node_topology.as_ref().and_then(|t| t.match_labels.get("zone").cloned())
    };
    let pair =
        |one| (CsiStorageCapacity::clone(one).storage_class_name, zone(one).unwrap_or_default());
    let mut all: Vec<_> = objects.iter().map(pair).collect();
    all.sort();
    all
}

fn is(pairs: &[(&str, &str)]) -> impl Fn(&[CsiStorageCapacity]) -> bool {
    let want: Vec<(String, String)> =
        pairs.iter().map(|(class, zone)| ((*class).to_owned(), (*zone).to_owned())).collect();
    move |objects| about(objects) == want
}

fn bytes(object: &CsiStorageCapacity) -> i64 {
    object.capacity.expect("a capacity").bytes()
}

/// case: provisioner/125
#[tokio::test(start_paused = true)]
async fn one_object_for_each_class_and_place() {
    let bench = Bench::start().await;
    let driver = driver(&["z1"]);
    driver.configure(|config| config.max_volume_size = Some(GIB / 2));
    let owner = OwnerReference {
        api_version: "apps/v1".into(),
        kind: "StatefulSet".into(),
        name: "driver".into(),
        uid: "uid-1".into(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let running = start(&bench, &driver, Config { owner: Some(owner.clone()), ..config() });
    until(&bench, "neither class nor place", <[_]>::is_empty).await;
    node(&bench, "n1", "z1").await;
    until(&bench, "no class", <[_]>::is_empty).await;
    assert!(driver.calls_of(Call::GetCapacity).is_empty());
    let class = json!({"metadata": {"name": "late"}, "provisioner": DRIVER,
        "volumeBindingMode": "WaitForFirstConsumer",
        "parameters": {"a": "b", "csi.storage.k8s.io/fstype": "xfs"}});
    bench.create::<StorageClass>(class).await;
    let all = until(&bench, "one object", is(&[("late", "z1")])).await;
    let [one] = &all[..] else { panic!("{all:?}") };
    assert!(one.metadata.name.starts_with("csisc-"), "{one:?}");
    let labels = term(&[
        ("csi.storage.k8s.io/drivername", DRIVER),
        ("csi.storage.k8s.io/managed-by", "external-provisioner"),
    ]);
    assert_eq!(one.metadata.labels, labels);
    assert_eq!(one.capacity.expect("a capacity").to_string(), "1Gi");
    assert_eq!(one.maximum_volume_size.expect("a maximum").bytes(), GIB / 2);
    assert_eq!(one.metadata.owner_references, [owner]);
    // The class's parameters are passed as they are, and no capabilities.
    let request = &driver.calls_of(Call::GetCapacity)[0].request;
    assert!(request.contains("csi.storage.k8s.io/fstype"), "{request}");
    assert!(!request.contains("volume_capabilities"), "{request}");
    let text = running.metrics.render();
    for (name, count) in [("desired_goal", 1), ("desired_current", 1), ("obsolete", 0)] {
        let line = format!("csistoragecapacities_{name} {count}\n");
        assert!(text.contains(&line), "{line} in {text}");
    }
    for queue in ["csistoragecapacity", "csitopology"] {
        assert!(text.contains(&format!("workqueue_adds_total{{name=\"{queue}\"}}")), "{queue}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_an_owner_there_is_none_and_zero_is_told_too() {
    let bench = Bench::start().await;
    let driver = driver(&["z1"]);
    driver.configure(|config| config.pools[0].capacity = Some(0));
    node(&bench, "n1", "z1").await;
    bench.class("late", "WaitForFirstConsumer").await;
    bench.class("now", "Immediate").await;
    let _running = start(&bench, &driver, config());
    // Half of case 126: Immediate classes are left out.
    let all = until(&bench, "one object", is(&[("late", "z1")])).await;
    assert_eq!((bytes(&all[0]), all[0].metadata.owner_references.len()), (0, 0));
    assert_eq!(all[0].maximum_volume_size, None);
}

#[tokio::test(start_paused = true)]
async fn immediate_classes_when_asked_for() {
    let bench = Bench::start().await;
    node(&bench, "n1", "z1").await;
    bench.class("late", "WaitForFirstConsumer").await;
    bench.class("now", "Immediate").await;
    let _running = start(&bench, &driver(&["z1"]), Config { for_immediate: true, ..config() });
    until(&bench, "both", is(&[("late", "z1"), ("now", "z1")])).await;
}

fn made(class: &str, zone: &str, capacity: &str, over: Value) -> Value {
    let mut object = json!({"metadata": {"generateName": "csisc-", "namespace": NAMESPACE,
        "labels": {DRIVER_LABEL: DRIVER, MANAGER_LABEL: MANAGER}}, "storageClassName": class,
        "nodeTopology": {"matchLabels": {"zone": zone}}, "capacity": capacity});
    for (key, value) in over.as_object().expect("an object") {
        object["metadata"][key] = value.clone();
    }
    object
}

async fn config_map(bench: &Bench, name: &str) -> OwnerReference {
    let object = json!({"metadata": {"name": name, "namespace": NAMESPACE}});
    let made = bench.create::<ConfigMap>(object).await;
    OwnerReference {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        name: name.into(),
        uid: made["metadata"]["uid"].as_str().expect("a uid").into(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// case: provisioner/127
#[tokio::test(start_paused = true)]
async fn objects_that_are_there_are_kept_and_corrected() {
    let bench = Bench::start().await;
    let driver = driver(&["z1", "z2"]);
    for (name, zone) in [("n1", "z1"), ("n2", "z2")] {
        node(&bench, name, zone).await;
    }
    bench.class("late", "WaitForFirstConsumer").await;
    // Owners must exist, or what belongs to them is removed.
    let (theirs, ours) = (config_map(&bench, "theirs").await, config_map(&bench, "ours").await);
    let foreign = OwnerReference { controller: None, ..theirs.clone() };
    let foreign = json!({"ownerReferences": [foreign]});
    let right = bench.create::<CsiStorageCapacity>(made("late", "z1", "1Gi", json!({}))).await;
    let wrong = bench.create::<CsiStorageCapacity>(made("late", "z2", "5Gi", foreign)).await;
    let running = start(&bench, &driver, config());
    let all = until(&bench, "two, corrected", |all| all.iter().all(|one| bytes(one) == GIB)).await;
    let version = |all: &[CsiStorageCapacity], object: &Value| {
        let found = all.iter().find(|one| object["metadata"]["uid"] == one.metadata.uid.as_str());
        found.expect("still there").metadata.resource_version.clone()
    };
    assert_eq!(version(&all, &right), right["metadata"]["resourceVersion"], "not written");
    assert_ne!(version(&all, &wrong), wrong["metadata"]["resourceVersion"], "written");
    running.process.kill();
    // With an owner from now on: appended, and those of others kept.
    let running = start(&bench, &driver, Config { owner: Some(ours.clone()), ..config() });
    let owners = |one: &CsiStorageCapacity| -> Vec<longshore_core::model::Uid> {
        one.metadata.owner_references.iter().map(|one| one.uid.clone()).collect()
    };
    let owned = |all: &[CsiStorageCapacity]| {
        all.len() == 2 && all.iter().all(|one| owners(one).contains(&ours.uid))
    };
    let all = until(&bench, "owned", owned).await;
    assert!(all.iter().any(|one| owners(one) == [theirs.uid.clone(), ours.uid.clone()]), "{all:?}");
    running.process.kill();
    let _running = start(&bench, &driver, config());
    until(&bench, "still owned", owned).await;
}

/// case: provisioner/128
#[tokio::test(start_paused = true)]
async fn objects_about_nothing_go() {
    let bench = Bench::start().await;
    node(&bench, "n1", "z1").await;
    bench.class("late", "WaitForFirstConsumer").await;
    let theirs = json!({"labels": {DRIVER_LABEL: DRIVER, MANAGER_LABEL: "somebody"}});
    let nobodys = json!({"labels": {}});
    for object in [
        made("gone", "z1", "1Gi", json!({})),
        made("late", "elsewhere", "1Gi", json!({})),
        made("late", "z1", "1Gi", json!({})),
        made("late", "z1", "1Gi", json!({})),
        made("gone", "z1", "1Gi", theirs),
        made("gone", "z2", "1Gi", nobodys),
    ] {
        bench.create::<CsiStorageCapacity>(object).await;
    }
    let _running = start(&bench, &driver(&["z1"]), config());
    until(&bench, "one of ours", is(&[("gone", "z1"), ("gone", "z2"), ("late", "z1")])).await;
}

/// case: provisioner/129
#[tokio::test(start_paused = true)]
async fn what_others_do_to_objects() {
    let bench = Bench::start().await;
    node(&bench, "n1", "z1").await;
    bench.class("late", "WaitForFirstConsumer").await;
    let _running = start(&bench, &driver(&["z1"]), config());
    let all = until(&bench, "one", is(&[("late", "z1")])).await;
    let first = all[0].metadata.clone();
    bench.delete::<CsiStorageCapacity>(&first.key()).await;
    let again = |all: &[CsiStorageCapacity]| matches!(all, [one] if one.metadata.uid != first.uid);
    let all = until(&bench, "made again", again).await;
    // Deleted, and made by somebody else with a wrong value before anybody looked.
    let second = all[0].metadata.clone();
    bench.delete::<CsiStorageCapacity>(&second.key()).await;
    bench.create::<CsiStorageCapacity>(made("late", "z1", "7Gi", json!({}))).await;
    until(&bench, "corrected", |all| matches!(all, [one] if bytes(one) == GIB)).await;
    // Without our labels it is not ours.
    let ours = objects(&bench).await[0].metadata.clone();
    bench.merge::<CsiStorageCapacity>(&ours.key(), json!({"metadata": {"labels": null}})).await;
    let all = until(&bench, "a new one", is(&[("late", "z1"), ("late", "z1")])).await;
    let left = all.iter().find(|one| one.metadata.uid == ours.uid).expect("left alone");
    assert!(left.metadata.labels.is_empty());
}

/// case: provisioner/130
#[tokio::test(start_paused = true)]
async fn places_and_classes_come_and_go() {
    let bench = Bench::start().await;
    node(&bench, "n1", "z1").await;
    bench.class("late", "WaitForFirstConsumer").await;
    bench.class("now", "Immediate").await;
    let _running = start(&bench, &driver(&["z1", "z2", "z3"]), config());
    until(&bench, "one", is(&[("late", "z1")])).await;
    node(&bench, "n2", "z2").await;
    until(&bench, "another place", is(&[("late", "z1"), ("late", "z2")])).await;
    bench.delete::<CsiNode>(&ObjectKey::cluster("n1")).await;
    until(&bench, "a place less", is(&[("late", "z2")])).await;
    bench
        .merge::<Node>(&ObjectKey::cluster("n2"), json!({"metadata": {"labels": {"zone": "z3"}}}))
        .await;
    until(&bench, "a place moved", is(&[("late", "z3")])).await;
    bench.class("later", "WaitForFirstConsumer").await;
    until(&bench, "another class", is(&[("late", "z3"), ("later", "z3")])).await;
    bench.delete::<StorageClass>(&ObjectKey::cluster("late")).await;
    until(&bench, "a class less", is(&[("later", "z3")])).await;
    let drivers = json!({"spec": {"drivers": []}});
    bench.merge::<CsiNode>(&ObjectKey::cluster("n2"), drivers).await;
    until(&bench, "nowhere", <[_]>::is_empty).await;
}

fn affinity(pairs: &[(&str, &str)]) -> VolumeNodeAffinity {
    let one =
        |(key, value): &(&str, &str)| json!({"key": key, "operator": "In", "values": [value]});
    let all: Vec<Value> = pairs.iter().map(one).collect();
    serde_json::from_value(json!({"required": {"nodeSelectorTerms": [{"matchExpressions": all}]}}))
        .expect("an affinity")
}

/// case: provisioner/131
#[tokio::test(start_paused = true)]
async fn volumes_refresh_what_they_touch() {
    let bench = Bench::start().await;
    let driver = driver(&["z1", "z2"]);
    for (name, zone) in [("n1", "z1"), ("n2", "z2")] {
        node(&bench, name, zone).await;
    }
    for class in ["a", "b"] {
        bench.class(class, "WaitForFirstConsumer").await;
    }
    let running = start(&bench, &driver, config());
    until(&bench, "all", |all| all.len() == 4).await;
    let asked = async |act: &dyn Fn(&CapacityWaker)| {
        driver.clear_calls();
        act(&running.waker);
        bench.pass(Duration::from_secs(3)).await;
        driver.calls_of(Call::GetCapacity).len()
    };
    let nowhere = VolumeNodeAffinity::default();
    assert_eq!(asked(&|waker| waker.not_made("a")).await, 2, "a class");
    assert_eq!(asked(&|waker| waker.not_made("unknown")).await, 0, "an unknown class");
    assert_eq!(asked(&|waker| waker.made("a", &nowhere)).await, 2, "made somewhere");
    assert_eq!(asked(&|waker| waker.deleted(&nowhere)).await, 0, "deleted somewhere");
    let z1 = affinity(&[("zone", "z1")]);
    assert_eq!(asked(&|waker| waker.made("a", &z1)).await, 2, "a place, all classes");
    assert_eq!(asked(&|waker| waker.deleted(&z1)).await, 2, "a place");
    let more = affinity(&[("zone", "z1"), ("rack", "r")]);
    assert_eq!(asked(&|waker| waker.deleted(&more)).await, 0, "an unknown place");
    assert_eq!(asked(&|waker| waker.deleted(&affinity(&[]))).await, 0, "less than a place");
}

#[tokio::test(start_paused = true)]
async fn many_volumes_at_once_are_few_questions_and_the_last_is_counted() {
    let bench = Bench::start().await;
    let driver = driver(&["z1"]);
    node(&bench, "n1", "z1").await;
    bench.class("late", "WaitForFirstConsumer").await;
    let running = start(&bench, &driver, config());
    until(&bench, "one", is(&[("late", "z1")])).await;
    driver.clear_calls();
    let z1 = affinity(&[("zone", "z1")]);
    for left in (0..1000).rev() {
        driver.configure(|config| config.pools[0].capacity = Some(GIB + left));
        running.waker.made("late", &z1);
        bench.pass(Duration::from_millis(1)).await;
    }
    until(&bench, "the last", |all| matches!(all, [one] if bytes(one) == GIB)).await;
    let asked = driver.calls_of(Call::GetCapacity).len();
    assert!((2..=20).contains(&asked), "{asked} questions");
}

#[tokio::test(start_paused = true)]
async fn the_driver_is_asked_again_now_and_then_and_after_failures() {
    let bench = Bench::start().await;
    let driver = driver(&["z1"]);
    driver.script(Call::GetCapacity, [Fault::Before(13.into(), "scripted".into())]);
    node(&bench, "n1", "z1").await;
    bench.class("late", "WaitForFirstConsumer").await;
    let poll = Duration::from_secs(30);
    let _running = start(&bench, &driver, Config { poll, ..config() });
    until(&bench, "one", is(&[("late", "z1")])).await;
    driver.configure(|config| config.pools[0].capacity = Some(2 * GIB));
    bench.pass(poll).await;
    until(&bench, "told", |all| matches!(all, [one] if bytes(one) == 2 * GIB)).await;
}

#[tokio::test(start_paused = true)]
async fn one_node_publishes_for_itself() {
    let bench = Bench::start().await;
    bench.class("late", "WaitForFirstConsumer").await;
    let mut process = bench.process();
    let config = Config { manager: "external-provisioner-n1".into(), ..config() };
    let (csi, places) = (driver(&["z1"]).client(), Places::Fixed(term(&[("zone", "z1")])));
    let publisher = CapacityPublisher::new(config, &process.context, &csi, places, DRIVER);
    let shutdown = process.shutdown.clone();
    process.spawn(publisher.run(shutdown));
    let all = until(&bench, "one", is(&[("late", "z1")])).await;
    assert_eq!(all[0].metadata.labels[MANAGER_LABEL], "external-provisioner-n1");
}

/// case: provisioner/134
#[tokio::test(start_paused = true)]
async fn the_owner_is_found_by_following_controllers() {
    let bench = Bench::start().await;
    let pod = |name: &str, owners: Value| {
        json!({"metadata": {"name": name, "namespace": NAMESPACE, "ownerReferences": owners},
            "spec": {"containers": [{"name": "c", "image": "host"}]}})
    };
    let settings = config_map(&bench, "settings").await;
    let uncontrolled = OwnerReference { controller: None, ..settings.clone() };
    let top = bench.create::<Pod>(pod("top", json!([settings]))).await;
    bench.create::<Pod>(pod("alone", json!([uncontrolled]))).await;
    let uid = top["metadata"]["uid"].as_str().expect("a uid");
    let to_top =
        json!({"apiVersion": "v1", "kind": "Pod", "name": "top", "uid": uid, "controller": true});
    bench.create::<Pod>(pod("mine", json!([uncontrolled, to_top]))).await;
    let missing = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "missing",
        "uid": "uid-1", "controller": true});
    bench.create::<Pod>(pod("orphan", json!([missing]))).await;
    let look =
        async |name: &'static str, level: u32| owner(&bench.api, NAMESPACE, name, level).await;
    let itself = look("top", 0).await.expect("itself");
    assert_eq!((itself.kind.as_str(), itself.uid.as_str()), ("Pod", uid));
    assert_eq!(itself.controller, Some(true));
    let first = look("mine", 1).await.expect("its owner");
    assert_eq!((first.name.as_str(), first.uid.as_str()), ("top", uid));
    let second = look("mine", 2).await.expect("its owner's owner");
    assert_eq!((second.kind.as_str(), second.name.as_str()), ("ConfigMap", "settings"));
    // The last one is not read, the ones before are.
    assert_eq!(look("orphan", 1).await.expect("not read").name, "missing");
    assert!(matches!(look("orphan", 2).await, Err(OwnerError::Unreadable { .. })));
    assert!(matches!(look("none", 0).await, Err(OwnerError::Unreadable { .. })));
    let error = look("alone", 1).await.expect_err("nobody controls it").to_string();
    assert!(
        error.contains("has no controlling owner, cannot unwind the ownership further"),
        "{error}"
    );
}
