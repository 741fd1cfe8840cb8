//! Intent records of other clusters, and large ones.

use longshore_core::model::{
    ObjectKey,
    kinds::{Claim, ConfigMap, Event, Namespace, StorageClass},
};
use longshore_csi::{Call, fake::Fault};
use serde_json::{Value, json};

use super::{
    guard::intent_name,
    testing::{Bench, DRIVER},
};

impl Bench {
    async fn cluster(&self) -> String {
        let found = self.api.get::<Namespace>(&ObjectKey::cluster("kube-system")).await.unwrap();
        found.unwrap().metadata.uid.to_string()
    }

    /// Puts a record there, as a backup would that brings everything of another cluster.
    async fn restore_record(&self, claim_uid: &str, cluster: Option<&str>) -> ObjectKey {
        let plan = json!({"driver": "test.csi.longshore.dev",
            "claim": {"namespace": "default", "name": "data", "uid": claim_uid},
            "volume": format!("pvc-{claim_uid}"), "bytes": 10_485_760, "parameters": {},
            "capabilities": [{"mode": "SINGLE_NODE_WRITER", "access": {"mount": {"fsType": "", "flags": []}}}],
            "topologyInUse": false, "secrets": {}, "accessModes": ["ReadWriteOnce"], "fsType": "",
            "mountOptions": [], "readOnly": false});
        let mut data = json!({"plan": plan.to_string()});
        if let Some(cluster) = cluster {
            data["cluster"] = json!(cluster);
        }
        let name = intent_name(&claim_uid.into());
        let record = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": {"name": name, "namespace": "kube-system",
                "labels": {"longshore.dev/driver": "test.csi.longshore.dev", "longshore.dev/intent": "create-volume"}}});
        self.api.create::<ConfigMap>(&record).await.unwrap();
        ObjectKey::new("kube-system", name)
    }
}

#[tokio::test(start_paused = true)]
async fn record_of_another_cluster_is_left_alone_with_its_volume() {
    let mut bench = Bench::new().await;
    // The other cluster has saved its volume; here nobody knows of it.
    let theirs = longshore_csi::fake::create_request("pvc-of-theirs", 10_485_760);
    bench.driver.client().create_volume(theirs).await.unwrap();
    bench.driver.clear_calls();
    let record = bench.restore_record("of-theirs", Some("another-cluster")).await;
    bench.start();
    let ours = bench.cluster().await;
    let text = format!(
        "the record is of another cluster (its namespace kube-system has the UID another-cluster, this one's {ours}); \
         its volume belongs there, so it is not touched. Delete the record if that cluster is gone"
    );
    bench.until_told(&record.name, &text).await;
    // Others are served meanwhile.
    bench.claim("other", "fast").await;
    bench.until_bound("other").await;
    tokio::time::sleep(std::time::Duration::from_secs(1800)).await;
    assert_eq!(bench.driver.calls_of(Call::CreateVolume).len(), 1, "only the one of the claim");
    assert!(bench.driver.calls_of(Call::DeleteVolume).is_empty());
    assert!(bench.driver.volume_named("pvc-of-theirs").is_some());
    assert!(bench.api.get::<ConfigMap>(&record).await.unwrap().is_some(), "for a person to see");
    assert_eq!(bench.events(&record.name).await, ["Warning ForeignIntent"]);
}

#[tokio::test(start_paused = true)]
async fn claim_whose_record_is_of_another_cluster_is_told_so() {
    let mut bench = Bench::new().await;
    let claim = bench.claim("data", "fast").await;
    let record = bench.restore_record(claim.metadata.uid.as_str(), Some("another-cluster")).await;
    bench.start();
    let said = "the record is of another cluster";
    bench
        .until("the claim is told", || async {
            let events = bench.all::<longshore_core::model::kinds::Event>().await;
            events
                .iter()
                .any(|event| event.involved_object.name == "data" && event.message.contains(said))
        })
        .await;
    assert!(bench.driver.calls_of(Call::CreateVolume).is_empty());
    bench.api.delete::<ConfigMap>(&record, &Default::default()).await.unwrap();
    bench.until_bound("data").await;
}

#[tokio::test(start_paused = true)]
async fn record_names_the_cluster_and_is_taken_up_by_the_next_process() {
    let mut bench = Bench::new().await;
    bench.driver.script(Call::CreateVolume, [Fault::HangAfter]);
    bench.start();
    let claim = bench.claim("data", "fast").await;
    bench.until("the volume is made", || async { !bench.driver.volumes().is_empty() }).await;
    let key = ObjectKey::new("kube-system", intent_name(&claim.metadata.uid));
    let record = bench.api.get_raw::<ConfigMap>(&key).await.unwrap().unwrap();
    assert_eq!(record["data"]["cluster"], Value::from(bench.cluster().await));
    bench.crash().await;
    bench.delete_claim_now("data").await;
    bench.start();
    bench.until_clean().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_know_the_cluster_only_records_without_one_are_settled() {
    let mut bench = Bench::new().await;
    bench.hidden = Some("/api/v1/namespaces/kube-system".into());
    let cluster = bench.cluster().await;
    let ours = bench.restore_record("of-this-cluster", Some(&cluster)).await;
    let old = bench.restore_record("of-the-first-version", None).await;
    bench.start();
    bench
        .until("the old record is settled", || async {
            bench.api.get::<ConfigMap>(&old).await.unwrap().is_none()
        })
        .await;
    assert_eq!(bench.driver.calls_of(Call::DeleteVolume).len(), 1);
    assert!(bench.api.get::<ConfigMap>(&ours).await.unwrap().is_some());
    assert_eq!(bench.events(&ours.name).await, ["Warning ForeignIntent"]);
    // New records do without.
    bench.driver.script(Call::CreateVolume, [Fault::HangAfter]);
    let claim: Claim = bench.claim("data", "fast").await;
    let key = ObjectKey::new("kube-system", intent_name(&claim.metadata.uid));
    bench
        .until("a record without a cluster", || async {
            let record = bench.api.get::<ConfigMap>(&key).await.unwrap();
            record.is_some_and(|record| !record.data.contains_key("cluster"))
        })
        .await;
}

/// A small class may stand for many places: all combinations of what it allows.
#[tokio::test(start_paused = true)]
async fn claim_whose_record_would_be_too_large_is_told_so_before_the_driver_is_asked() {
    let mut bench = Bench::new().await;
    bench.zones(&[("a", None)]);
    let values = |key: &str| -> Vec<String> {
        (0..130).map(|n| format!("{key}{n:03}{}", "x".repeat(58))).collect()
    };
    let expression =
        |key: &str| json!({"key": format!("topology.test/{key}"), "values": values(key)});
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "wide"}, "provisioner": DRIVER,
        "allowedTopologies": [{"matchLabelExpressions": [expression("r"), expression("s")]}]});
    bench.api.create::<StorageClass>(&class).await.unwrap();
    bench.claim("data", "wide").await;
    bench.start();
    let told = |message: &str| {
        message.contains("the intent record of claim default/data would have 1")
            && message.ends_with(
                "bytes, and a ConfigMap may have 1048576; the driver was not asked. Narrow the allowedTopologies of its \
                 class or shorten its parameters, or start the provisioner with --leak-guard=false",
            )
    };
    bench
        .until("the claim is told", || async {
            let events = bench.all::<Event>().await;
            events.iter().any(|event| event.involved_object.name == "data" && told(&event.message))
        })
        .await;
    assert!(bench.driver.calls_of(Call::CreateVolume).is_empty());
    assert_eq!(bench.intents().await, 0);
}
