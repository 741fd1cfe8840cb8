//! What one event costs among many objects: the records that all loops together look at must not grow
//! with the number of objects.

mod store;

use std::{collections::BTreeMap, time::Duration};

use longshore_cluster::{Api, Context, Metrics};
use longshore_core::{model::keys::annotations, visits};
use longshore_csi::{capabilities::ControllerCapability, fake};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::store::Store;
use crate::{
    attach::{self, AttachDetach},
    attacher::{self, Attacher},
    bind, capacity,
    expand::Expander,
    protect::{ClaimProtection, ClassProtection, EphemeralClaims, VolumeProtection},
    provision,
    testing::DRIVER,
};

const ZONE: &str = "topology.test/zone";
const CLASSES: usize = 5;
const FREE: &str = "free";

/// Every loop and sidecar in one process, over many objects.
struct World {
    store: Store,
    driver: fake::Driver,
    stop: CancellationToken,
    _loops: JoinSet<()>,
}

impl World {
    /// So many volumes and claims; a third of them attached, for a pod each; a node for every twenty.
    async fn of(volumes: usize) -> Self {
        let (store, driver) = (Store::default(), driver());
        let nodes = volumes / 20;
        (0..nodes).for_each(|at| node(&store, at));
        (0..CLASSES).for_each(|at| {
            store.put(
                "storageclasses",
                json!({"metadata": {"name": format!("c{at}")},
                "provisioner": DRIVER, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer"}),
            );
        });
        store.put(
            "csidrivers",
            json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": true}}),
        );
        for at in 0..volumes {
            bound(&store, &at.to_string(), &format!("h{at}"), at % CLASSES);
            if at < volumes / 3 {
                attached(&store, at, at % nodes);
            }
        }
        // One more that the driver really has, and nothing uses.
        let made = driver.client().create_volume(fake::create_request(FREE, 1 << 30)).await;
        let handle = made.expect("made").volume.expect("a volume").volume_id;
        bound(&store, FREE, &handle, 0);
        let stop = CancellationToken::new();
        let _loops = loops(&store, &driver, &stop);
        let world = Self { store, driver, stop, _loops };
        world.settle().await;
        world
    }

    /// Waits, in virtual time, until the loops have nothing to do. What is timed comes later.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mut writes = self.store.take_writes();
        writes.retain(|write| !write.ends_with("/csistoragecapacities"));
        assert!(writes.is_empty(), "all is as it shall be: {} {:?}", writes.len(), writes.first());
    }

    /// How many records the loops look at because of what `happen` changes; and all writes.
    async fn cost(&self, happen: impl FnOnce(&Store)) -> (usize, Vec<String>) {
        let before = visits::total();
        happen(&self.store);
        tokio::time::sleep(Duration::from_secs(1)).await;
        (visits::total() - before, self.store.take_writes())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn driver() -> fake::Driver {
    let driver = fake::Driver::new(DRIVER);
    driver.configure(|config| {
        config.controller.insert(ControllerCapability::PublishUnpublishVolume);
        // It does not have the volumes of the many, so it must not list them either.
        config.controller.remove(ControllerCapability::ListVolumesPublishedNodes);
    });
    driver.with_pools((0..4).map(|zone| (zone_of(zone), Some(1 << 50))));
    driver.on_node("id-of-n0", zone_of(0));
    driver
}

fn zone_of(node: usize) -> BTreeMap<String, String> {
    [(ZONE.to_owned(), format!("z{}", node % 4))].into()
}

fn loops(store: &Store, driver: &fake::Driver, stop: &CancellationToken) -> JoinSet<()> {
    let context = Context::new(Api::new(store.client()), Metrics::new(), stop);
    let mut loops = JoinSet::new();
    let config = attach::Config {
        verify_period: None,
        populate_period: Duration::from_secs(3600),
        ..attach::Config::default()
    };
    loops.spawn(AttachDetach::new(&context, config).run(stop.clone()));
    loops.spawn(bind::Binder::new(&context, bind::Config::default(), None).run(stop.clone()));
    loops.spawn(ClaimProtection::new(&context, false).run(stop.clone()));
    loops.spawn(VolumeProtection::new(&context).run(stop.clone()));
    loops.spawn(ClassProtection::new(&context).run(stop.clone()));
    loops.spawn(EphemeralClaims::new(&context, 1).run(stop.clone()));
    loops.spawn(Expander::new(&context).run(stop.clone()));
    let attacher = Attacher::new(&context, driver.client(), attacher::Config::default());
    loops.spawn(attacher.run_with_retries(stop.clone()));
    let publish = capacity::Config::new("default", "external-provisioner");
    let parts = provision::Parts {
        capacity: Some(provision::CapacityParts {
            config: capacity::Config { poll: Duration::from_secs(3600), ..publish },
            api: context.api.clone(),
            place: None,
        }),
        ..provision::Parts::new(&context, driver.client(), "test")
    };
    let config = provision::Config { check_volumes_in_use: true, ..provision::Config::default() };
    loops.spawn(provision::run(config, parts, stop.clone()));
    loops
}

fn node(store: &Store, at: usize) {
    let name = format!("n{at}");
    store.put(
        "nodes",
        json!({"metadata": {"name": name, "labels": zone_of(at),
        "annotations": {annotations::CONTROLLER_MANAGED_ATTACH: "true"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
    );
    store.put(
        "csinodes",
        json!({"metadata": {"name": name}, "spec": {"drivers": [{"name": DRIVER,
        "nodeID": format!("id-of-{name}"), "topologyKeys": [ZONE]}]}}),
    );
}

fn claim(store: &Store, name: &str, class: usize, volume: Option<&str>) -> Value {
    let mut claim = json!({"metadata": {"name": name, "namespace": "default",
            "finalizers": ["kubernetes.io/pvc-protection"]},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": format!("c{class}"),
            "volumeMode": "Filesystem", "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"}});
    if let Some(volume) = volume {
        claim["metadata"]["annotations"] = json!({annotations::BIND_COMPLETED: "yes",
            annotations::BOUND_BY_CONTROLLER: "yes"});
        claim["spec"]["volumeName"] = json!(volume);
        claim["status"] = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"}});
    }
    store.put("persistentvolumeclaims", claim.clone());
    claim
}

/// A claim and its volume, bound to each other.
fn bound(store: &Store, name: &str, handle: &str, class: usize) {
    let (claim_name, volume) = (format!("claim-{name}"), format!("pv-{name}"));
    claim(store, &claim_name, class, Some(&volume));
    let uid = format!("uid-persistentvolumeclaims-{claim_name}");
    store.put(
        "persistentvolumes",
        json!({"metadata": {"name": volume,
            "annotations": {annotations::PROVISIONED_BY: DRIVER},
            "finalizers": ["kubernetes.io/pv-protection",
                "external-provisioner.volume.kubernetes.io/finalizer",
                "external-attacher/test-csi-example"]},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete", "storageClassName": format!("c{class}"),
            "volumeMode": "Filesystem",
            "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1",
                "namespace": "default", "name": claim_name, "uid": uid},
            "csi": {"driver": DRIVER, "volumeHandle": handle}},
        "status": {"phase": "Bound"}}),
    );
}

fn pod(store: &Store, name: &str, node: usize, claim: &str) {
    store.put(
        "pods",
        json!({"metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": format!("n{node}"), "containers": [{"name": "main", "image": "x"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]},
        "status": {"phase": "Running"}}),
    );
}

/// A volume on its node, with a pod that uses it.
fn attached(store: &Store, at: usize, node: usize) {
    pod(store, &format!("pod-{at}"), node, &format!("claim-{at}"));
    let (name, handle) = (format!("n{node}"), format!("h{at}"));
    let unique = format!("kubernetes.io/csi/{DRIVER}^{handle}");
    let attachment = longshore_core::names::attachment_name(
        &handle.as_str().into(),
        &DRIVER.into(),
        &name.as_str().into(),
    );
    store.put(
        "volumeattachments",
        json!({"metadata": {"name": attachment,
            "finalizers": ["external-attacher/test-csi-example"],
            "annotations": {"csi.alpha.kubernetes.io/node-id": format!("id-of-{name}")}},
        "spec": {"attacher": DRIVER, "nodeName": name,
            "source": {"persistentVolumeName": format!("pv-{at}")}},
        "status": {"attached": true}}),
    );
    store.change("nodes", "", &name, |node| {
        for (list, item) in [
            ("volumesInUse", json!(unique)),
            ("volumesAttached", json!({"name": unique, "devicePath": ""})),
        ] {
            let list = &mut node["status"][list];
            if list.is_null() {
                *list = json!([]);
            }
            list.as_array_mut().expect("a list").push(item);
        }
    });
}

/// Touches an object without a change that matters.
fn touch(store: &Store, plural: &str, namespace: &str, name: &str) {
    store.change(plural, namespace, name, |object| {
        object["metadata"]["labels"]["touched"] = json!("yes");
    });
}

/// What each kind of event costs, by name.
async fn costs(volumes: usize) -> BTreeMap<&'static str, usize> {
    let world = World::of(volumes).await;
    let mut costs = BTreeMap::new();
    let mut note = |what, (cost, writes): (usize, Vec<String>), expected: &[&str]| {
        for part in expected {
            assert!(
                writes.iter().any(|write| write.contains(part)),
                "{what}: {part} in {writes:?}"
            );
        }
        assert!(!expected.is_empty() || writes.is_empty(), "{what}: {writes:?}");
        assert!(cost > 0, "{what}: nobody looked");
        costs.insert(what, cost);
    };
    for (what, plural, namespace, name) in [
        ("claim touched", "persistentvolumeclaims", "default", "claim-7"),
        ("volume touched", "persistentvolumes", "", "pv-7"),
        ("pod touched", "pods", "default", "pod-7"),
    ] {
        note(what, world.cost(|store| touch(store, plural, namespace, name)).await, &[]);
    }
    let moved = |store: &Store| {
        store.change("nodes", "", "n1", |node| node["metadata"]["labels"][ZONE] = json!("z0"));
    };
    note("node moved", world.cost(moved).await, &[]);
    let released = |store: &Store| {
        store.change("nodes", "", "n3", |node| {
            node["status"]["volumesInUse"].as_array_mut().expect("a list").pop();
        });
    };
    note("node's volumes changed", world.cost(released).await, &[]);
    let started = |store: &Store| pod(store, "new", 0, &format!("claim-{FREE}"));
    let expected = ["POST /apis/storage.k8s.io/v1/volumeattachments", "/status", "nodes/n0/status"];
    note("pod started", world.cost(started).await, &expected);
    // The node does not say that it uses the volume, so the end of the pod is enough.
    let ended = |store: &Store| store.delete("pods", "default", "new");
    let expected = ["DELETE /apis/storage.k8s.io/v1/volumeattachments"];
    note("pod ended", world.cost(ended).await, &expected);
    let asked = |store: &Store| {
        claim(store, "new", 1, None);
        store.change("persistentvolumeclaims", "default", "new", |claim| {
            claim["metadata"]["annotations"] = json!({annotations::SELECTED_NODE: "n2",
                annotations::STORAGE_PROVISIONER: DRIVER});
        });
    };
    let before = world.driver.volumes().len();
    note("claim provisioned", world.cost(asked).await, &["POST /api/v1/persistentvolumes"]);
    assert_eq!(world.driver.volumes().len(), before + 1);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let dropped = |store: &Store| store.delete("persistentvolumeclaims", "default", "new");
    let deleted = world.cost(dropped).await;
    note("claim deleted", deleted, &["DELETE /api/v1/persistentvolumes"]);
    assert_eq!(world.driver.volumes().len(), before);
    costs
}

#[tokio::test(start_paused = true)]
async fn an_event_costs_no_more_looks_among_ten_thousand_objects_than_among_a_thousand() {
    let (few, many) = (costs(1_000).await, costs(10_000).await);
    for (what, among_few) in &few {
        let among_many = many[what];
        println!("{what}: {among_few} records among 1,000 volumes, {among_many} among 10,000");
    }
    for (what, among_few) in &few {
        assert!(many[what] <= 2 * among_few, "{what}: {among_few}, then {}", many[what]);
    }
}
