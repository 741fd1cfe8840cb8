//! One provisioner on each node, topology that is remembered, and drivers that took over from
//! in-tree plugins.

use std::{collections::BTreeMap, time::Duration};

use longshore_core::model::{
    ClaimPhase, ObjectKey,
    kinds::{Claim, CsiNode, Event, Node, StorageClass, Volume, VolumeAttachment},
};
use longshore_csi::{Call, fake};
use serde_json::{Value, json};

use super::{
    Config, NodeDeployment,
    testing::{Bench, DRIVER},
};

const ZONE: &str = "topology.test/zone";
const AWS: &str = "ebs.csi.aws.com";

fn on_node(node: &str, zone: &str) -> NodeDeployment {
    NodeDeployment {
        node: node.into(),
        segments: BTreeMap::from([(ZONE.to_owned(), zone.to_owned())]),
        immediate_binding: true,
        base_delay: Duration::from_secs(20),
        max_delay: Duration::from_secs(60),
    }
}

async fn with_deployment(deployment: NodeDeployment) -> Bench {
    let mut bench = Bench::new().await;
    bench.config =
        Config { deployment: Some(deployment), spare_watches: true, ..bench.config.clone() };
    bench.zones(&[("z1", Some(100 << 20)), ("z2", None)]);
    bench
}

fn node_of(claim: &Claim) -> Option<&str> {
    claim.metadata.annotation("volume.kubernetes.io/selected-node")
}

/// case: provisioner/121
#[tokio::test(start_paused = true)]
async fn only_claims_of_the_own_node_are_answered() {
    let mut bench = with_deployment(on_node("n1", "z1")).await;
    bench.start();
    for (name, node) in [("mine", "n1"), ("theirs", "n2")] {
        bench.claim(name, "late").await;
        bench.select_node(name, node).await;
    }
    bench.claim("waiting", "late").await;
    let volume = bench.until_bound("mine").await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(bench.driver.calls_of(Call::CreateVolume).len(), 1);
    for name in ["theirs", "waiting"] {
        let claim = bench.get_claim(name).await.unwrap();
        assert_eq!(claim.status.phase, ClaimPhase::Pending, "{name}");
        let events = bench.events(name).await;
        assert!(!events.iter().any(|event| event == "Normal Provisioning"), "{events:?}");
    }
    assert_eq!(node_of(&bench.get_claim("waiting").await.unwrap()), None);
    // Where the volume is asked for comes from the driver, not from the API, which has no nodes.
    let request = &bench.driver.calls_of(Call::CreateVolume)[0].request;
    assert!(request.contains("z1") && !request.contains("z2"), "{request}");
    let identity =
        &volume.spec.csi.unwrap().volume_attributes["storage.kubernetes.io/csiProvisionerIdentity"];
    assert!(identity.ends_with(&format!("-{DRIVER}-n1")), "{identity}");
}

/// case: provisioner/122
#[tokio::test(start_paused = true)]
async fn claims_without_a_node_are_fought_for() {
    let mut bench = with_deployment(on_node("n1", "z1")).await;
    bench.start();
    bench.claim("data", "fast").await;
    bench.until_bound("data").await;
    assert_eq!(node_of(&bench.get_claim("data").await.unwrap()), Some("n1"));
    assert_eq!(bench.driver.calls_of(Call::CreateVolume).len(), 1);
    let asked = &bench.driver.calls_of(Call::GetCapacity)[0].request;
    assert!(asked.contains("SINGLE_NODE_WRITER") && asked.contains("z1"), "{asked}");
    // 10 MiB are taken; one byte more than the rest is too much here, and that is said nowhere.
    let size = (90 << 20) + 1;
    let spec = json!({"storageClassName": "fast", "resources": {"requests": {"storage": size.to_string()}}});
    bench.claim_with("large", spec).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(node_of(&bench.get_claim("large").await.unwrap()), None);
    let spec = json!({"storageClassName": "fast", "resources": {"requests": {"storage": "90Mi"}}});
    bench.claim_with("fits", spec).await;
    bench.until_bound("fits").await;
    assert_eq!(bench.driver.calls_of(Call::CreateVolume).len(), 2);
}

async fn class_in(bench: &Bench, name: &str, zone: &str) {
    let class = json!({"metadata": {"name": name}, "provisioner": DRIVER,
        "volumeBindingMode": "Immediate", "reclaimPolicy": "Delete", "allowedTopologies": [
            {"matchLabelExpressions": [{"key": ZONE, "values": [zone]}]}]});
    bench.api.create::<StorageClass>(&class).await.expect("a class");
}

#[tokio::test(start_paused = true)]
async fn classes_that_leave_the_node_out_are_for_others() {
    let mut bench = with_deployment(on_node("n1", "z1")).await;
    class_in(&bench, "here", "z1").await;
    class_in(&bench, "elsewhere", "z2").await;
    bench.start();
    bench.claim("a", "here").await;
    bench.claim("b", "elsewhere").await;
    bench.until_bound("a").await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(node_of(&bench.get_claim("b").await.unwrap()), None);
}

#[tokio::test(start_paused = true)]
async fn immediate_binding_can_be_left_to_others() {
    let deployment = NodeDeployment { immediate_binding: false, ..on_node("n1", "z1") };
    let mut bench = with_deployment(deployment).await;
    bench.start();
    bench.claim("data", "fast").await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(node_of(&bench.get_claim("data").await.unwrap()), None);
    assert!(bench.driver.calls_of(Call::CreateVolume).is_empty());
}

/// A released volume in a zone.
async fn released(bench: &Bench, driver: &str, name: &str, over: Value) {
    let spec = json!({"persistentVolumeReclaimPolicy": "Delete",
        "claimRef": {"namespace": "default", "name": "gone", "uid": "gone"}, "hostPath": null});
    let mut volume = json!({"metadata": {"name": name, "annotations":
            {"pv.kubernetes.io/provisioned-by": driver}},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Mi"}}});
    for part in [spec, over] {
        for (key, value) in part.as_object().expect("an object") {
            volume["spec"][key] = value.clone();
        }
    }
    bench.api.create::<Volume>(&volume).await.expect("a volume");
}

fn csi_in(zone: &str, handle: &str) -> Value {
    json!({"csi": {"driver": DRIVER, "volumeHandle": handle}, "nodeAffinity": {"required":
        {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": ZONE, "operator": "In", "values": [zone]}]}]}}})
}

async fn make(driver: &fake::Driver, name: &str) -> String {
    let answer = driver.client().create_volume(fake::create_request(name, 1 << 20)).await;
    answer.expect("made").volume.expect("a volume").volume_id
}

/// case: provisioner/123
#[tokio::test(start_paused = true)]
async fn only_volumes_of_the_own_node_are_deleted() {
    let mut bench = with_deployment(on_node("n1", "z1")).await;
    let (here, there) = (make(&bench.driver, "a").await, make(&bench.driver, "b").await);
    released(&bench, DRIVER, "here", csi_in("z1", &here)).await;
    released(&bench, DRIVER, "there", csi_in("z2", &there)).await;
    bench.start();
    bench.until("ours is gone", || async { bench.get_volume("here").await.is_none() }).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(bench.get_volume("there").await.is_some());
    assert_eq!(bench.driver.volumes().into_keys().collect::<Vec<_>>(), [there]);
    let events = bench.events("there").await;
    assert!(!events.iter().any(|event| event.contains("VolumeFailedDelete")), "{events:?}");
}

/// case: provisioner/116
#[tokio::test(start_paused = true)]
async fn attached_volumes_are_not_deleted() {
    for (status, deleting) in [(true, false), (false, false), (true, true)] {
        let mut bench = Bench::new().await;
        let (held, free) = (make(&bench.driver, "a").await, make(&bench.driver, "b").await);
        let attachment = json!({"metadata": {"name": "va", "finalizers": ["test/held"]}, "spec":
            {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "held"}}});
        bench.api.create::<VolumeAttachment>(&attachment).await.expect("an attachment");
        let key = ObjectKey::cluster("va");
        let patch = json!({"status": {"attached": status}});
        let patch = longshore_cluster::Patch::Merge(&patch);
        bench.api.patch_status::<VolumeAttachment>(&key, patch).await.expect("a status");
        if deleting {
            bench.api.delete::<VolumeAttachment>(&key, &Default::default()).await.expect("going");
        }
        for (name, handle) in [("held", &held), ("free", &free)] {
            let source = json!({"csi": {"driver": DRIVER, "volumeHandle": handle}});
            released(&bench, DRIVER, name, source).await;
        }
        bench.start();
        bench
            .until("the other is gone", || async { bench.get_volume("free").await.is_none() })
            .await;
        let told = || async {
            bench.events("held").await.iter().any(|e| e.contains("VolumeFailedDelete"))
        };
        bench.until("it is said", told).await;
        assert!(bench.driver.volumes().contains_key(&held), "{status} {deleting}");
        let free = json!({"metadata": {"finalizers": null}});
        let patch = longshore_cluster::Patch::Merge(&free);
        bench.api.patch::<VolumeAttachment>(&key, patch).await.expect("let go");
        if !deleting {
            bench.api.delete::<VolumeAttachment>(&key, &Default::default()).await.expect("gone");
        }
        bench.until("it is gone too", || async { bench.get_volume("held").await.is_none() }).await;
    }
}

/// case: provisioner/111
#[tokio::test(start_paused = true)]
async fn a_node_that_goes_away_does_not_change_the_request() {
    for (class, strict, node) in [
        ("late", false, Some("n1")),
        ("late", true, Some("n1")),
        ("allowed", false, Some("n1")),
        ("fast", false, None),
    ] {
        let mut bench = Bench::new().await;
        bench.config.strict_topology = strict;
        bench.zones(&[("z1", None), ("z2", None)]);
        for (name, zone) in [("n1", "z1"), ("n2", "z2")] {
            bench.node(name, zone).await;
        }
        let secret = json!({"csi.storage.k8s.io/provisioner-secret-name": "later",
            "csi.storage.k8s.io/provisioner-secret-namespace": "default"});
        let mode = if node.is_some() { "WaitForFirstConsumer" } else { "Immediate" };
        let mut object = json!({"metadata": {"name": format!("{class}-with-secret")},
            "provisioner": DRIVER, "volumeBindingMode": mode, "parameters": secret});
        if class == "allowed" {
            object["allowedTopologies"] =
                json!([{"matchLabelExpressions": [{"key": ZONE, "values": ["z1"]}]}]);
        }
        bench.api.create::<StorageClass>(&object).await.expect("a class");
        // What the request would be without any trouble.
        bench.start();
        bench.claim("data", &format!("{class}-with-secret")).await;
        if let Some(node) = node {
            bench.select_node("data", node).await;
        }
        let failed = || async {
            bench.events("data").await.iter().any(|e| e == "Warning ProvisioningFailed")
        };
        bench.until("the secret is missing", failed).await;
        for name in ["n1", "n2"] {
            let key = ObjectKey::cluster(name);
            bench.api.delete::<Node>(&key, &Default::default()).await.expect("gone");
            bench.api.delete::<CsiNode>(&key, &Default::default()).await.expect("gone");
        }
        let secret = json!({"metadata": {"name": "later", "namespace": "default"}});
        bench.api.create::<longshore_core::model::kinds::Secret>(&secret).await.expect("a secret");
        bench.until_bound("data").await;
        let request = &bench.driver.calls_of(Call::CreateVolume)[0].request;
        let both = request.contains("z1") && request.contains("z2");
        let one_place = strict || class == "allowed";
        assert!(request.contains("z1") && both != one_place, "{class} {strict}: {request}");
    }
}

/// case: provisioner/103
#[tokio::test(start_paused = true)]
async fn one_node_with_keys_is_enough_for_all_with_labels() {
    let mut bench = Bench::new().await;
    bench.zones(&[("z1", None), ("z2", None)]);
    bench.node("n1", "z1").await;
    for (name, labels) in [("n2", json!({ZONE: "z2"})), ("n3", json!({}))] {
        let node = json!({"metadata": {"name": name, "labels": labels}});
        bench.api.create::<Node>(&node).await.expect("a node");
    }
    bench.start();
    bench.claim("data", "fast").await;
    bench.until_bound("data").await;
    let request = &bench.driver.calls_of(Call::CreateVolume)[0].request;
    assert!(request.contains("z1") && request.contains("z2"), "{request}");
}

/// case: provisioner/112
#[tokio::test(start_paused = true)]
async fn labels_that_were_missing_are_looked_for_again() {
    let mut bench = Bench::new().await;
    bench.zones(&[("z1", None)]);
    let node = json!({"metadata": {"name": "n1"}});
    bench.api.create::<Node>(&node).await.expect("a node");
    let csi = json!({"metadata": {"name": "n1"},
        "spec": {"drivers": [{"name": DRIVER, "nodeID": "n1", "topologyKeys": [ZONE]}]}});
    bench.api.create::<CsiNode>(&csi).await.expect("a CSINode");
    bench.start();
    bench.claim("data", "late").await;
    bench.select_node("data", "n1").await;
    let told = || async {
        let all = bench.all::<Event>().await;
        all.iter().any(|event| event.message.contains("does not match topology keys"))
    };
    bench.until("labels are missing", told).await;
    assert!(bench.driver.calls_of(Call::CreateVolume).is_empty());
    let labels = json!({"metadata": {"labels": {ZONE: "z1"}}});
    let patch = longshore_cluster::Patch::Merge(&labels);
    bench.api.patch::<Node>(&ObjectKey::cluster("n1"), patch).await.expect("labels");
    bench.until_bound("data").await;
}

async fn took_over() -> Bench {
    let mut bench = Bench::new().await;
    bench.driver = fake::Driver::new(AWS);
    for (name, provisioner, parameters) in [
        ("in-tree", "kubernetes.io/aws-ebs", json!({"type": "gp2", "fsType": "xfs"})),
        ("native", AWS, json!({"type": "gp2"})),
        ("other", "kubernetes.io/gce-pd", json!({})),
    ] {
        let class = json!({"metadata": {"name": name}, "provisioner": provisioner,
            "volumeBindingMode": "Immediate", "reclaimPolicy": "Delete", "parameters": parameters});
        bench.api.create::<StorageClass>(&class).await.expect("a class");
    }
    bench
}

/// case: provisioner/119 and case: provisioner/120
#[tokio::test(start_paused = true)]
async fn a_driver_answers_for_the_plugin_it_took_over_from() {
    let mut bench = took_over().await;
    bench.start();
    for (name, class) in [("old", "in-tree"), ("new", "native"), ("foreign", "other")] {
        bench.claim(name, class).await;
    }
    let old = bench.until_bound("old").await;
    let disk = old.spec.aws_elastic_block_store.as_ref().expect("an in-tree source");
    assert!(bench.driver.volumes().contains_key(&disk.volume_id));
    assert_eq!(disk.fs_type, "xfs");
    assert!(old.spec.csi.is_none());
    assert_eq!(
        old.metadata.annotation("pv.kubernetes.io/provisioned-by"),
        Some("kubernetes.io/aws-ebs")
    );
    let new = bench.until_bound("new").await;
    assert!(new.spec.csi.is_some() && new.spec.aws_elastic_block_store.is_none());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bench.driver.calls_of(Call::CreateVolume).len(), 2);
    for name in ["old", "new"] {
        bench.delete_claim(name).await;
    }
    bench.until_clean().await;
}

/// The rest of case 119: who the claim says shall answer it.
#[tokio::test(start_paused = true)]
async fn a_plugin_s_name_alone_is_not_enough() {
    let mut bench = took_over().await;
    // Without the binder, which would put the annotations right.
    let claim = |name: &str, notes: Value| {
        json!({"metadata": {"name": name, "namespace": "default", "annotations": notes},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "in-tree",
                "resources": {"requests": {"storage": "10Mi"}}}})
    };
    let provisioner = "volume.kubernetes.io/storage-provisioner";
    let moved = "pv.kubernetes.io/migrated-to";
    let plugin = "kubernetes.io/aws-ebs";
    for (name, notes) in [
        ("by-driver", json!({provisioner: AWS})),
        ("moved", json!({provisioner: plugin, moved: AWS})),
        ("moved-elsewhere", json!({provisioner: plugin, moved: "other"})),
        ("plugin-alone", json!({provisioner: plugin})),
    ] {
        bench.api.create::<Claim>(&claim(name, notes)).await.expect("a claim");
    }
    bench.start_provisioner_alone();
    bench.until("two volumes", || async { bench.all::<Volume>().await.len() == 2 }).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let volumes = bench.all::<Volume>().await;
    let mut made: Vec<&str> =
        volumes.iter().map(|v| v.spec.claim_ref.as_ref().unwrap().name.as_str()).collect();
    made.sort_unstable();
    assert_eq!(made, ["by-driver", "moved"]);
    assert!(volumes.iter().all(|volume| volume.spec.aws_elastic_block_store.is_some()));
}

#[tokio::test(start_paused = true)]
async fn a_volume_without_an_in_tree_form_is_given_back() {
    let mut bench = Bench::new().await;
    // The driver's handles are not what the in-tree form of this plugin needs.
    bench.driver = fake::Driver::new("pd.csi.storage.gke.io");
    let class = json!({"metadata": {"name": "in-tree"}, "provisioner": "kubernetes.io/gce-pd",
        "volumeBindingMode": "Immediate"});
    bench.api.create::<StorageClass>(&class).await.expect("a class");
    bench.start();
    bench.claim("data", "in-tree").await;
    let failed =
        || async { bench.events("data").await.iter().any(|e| e == "Warning ProvisioningFailed") };
    bench.until("it is said", failed).await;
    bench.delete_claim("data").await;
    bench.until_clean().await;
    assert!(!bench.driver.calls_of(Call::DeleteVolume).is_empty());
}
