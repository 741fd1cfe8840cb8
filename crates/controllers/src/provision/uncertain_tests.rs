//! Refusals by a driver whose earlier response was lost, so that it may have the volume.

use std::time::Duration;

use longshore_core::model::kinds::ConfigMap;
use longshore_csi::{
    Call,
    fake::{Fault, Fault as F},
};
use serde_json::json;

use super::testing::Bench;

const INVALID: i32 = 3;
const EXHAUSTED: i32 = 8;
const INTERNAL: i32 = 13;
const UNAVAILABLE: i32 = 14;

fn fails(code: i32) -> F {
    F::Before(code.into(), "scripted".into())
}

fn loses(code: i32) -> F {
    F::After(code.into(), "scripted".into())
}

impl Bench {
    fn creations(&self) -> usize {
        self.driver.calls_of(Call::CreateVolume).len()
    }

    /// Deletes a claim whose volume is being made. Its calls must go on meanwhile without a verdict.
    async fn until_claim_is_gone(&self) {
        self.delete_claim("data").await;
        self.until("the claim is gone", || async { self.get_claim("data").await.is_none() }).await;
    }

    async fn until_creations(&self, count: usize) {
        let what = format!("CreateVolume is called {count} times");
        self.until(&what, || async { self.creations() >= count }).await;
    }
}

#[tokio::test(start_paused = true)]
async fn refusal_after_a_lost_response_leaves_nothing_of_a_deleted_claim() {
    let mut bench = Bench::new().await;
    let script = [loses(UNAVAILABLE), fails(UNAVAILABLE), fails(UNAVAILABLE), fails(INTERNAL)];
    bench.driver.script(Call::CreateVolume, script);
    bench.start();
    bench.claim("data", "fast").await;
    bench.until_creations(1).await;
    bench.until_claim_is_gone().await;
    assert!(bench.creations() < 4, "the claim was there when the driver said no");
    bench.until_creations(4).await;
    bench.until_clean().await;
    assert_eq!(bench.driver.calls_of(Call::DeleteVolume).len(), 1);
}

/// Found by the simulator: the claim's reconciles had nothing to do any more, and the resolver left
/// the record to them.
#[tokio::test(start_paused = true)]
async fn claim_bound_to_another_volume_after_a_lost_response_leaves_nothing() {
    let mut bench = Bench::new().await;
    bench.driver.script(Call::CreateVolume, [loses(UNAVAILABLE), fails(UNAVAILABLE)]);
    bench.start();
    let claim = bench.claim("data", "fast").await;
    bench.until_creations(1).await;
    let spec = json!({"storageClassName": "fast", "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1",
        "namespace": claim.metadata.namespace, "name": "data", "uid": claim.metadata.uid}});
    bench.volume("by-hand", spec).await;
    assert_eq!(bench.until_bound("data").await.metadata.name, "by-hand");
    bench.until("the intent is dropped", || async { bench.intents().await == 0 }).await;
    assert!(bench.driver.volumes().is_empty(), "what was begun for the claim is deleted");
}

#[tokio::test(start_paused = true)]
async fn claim_deleted_after_the_refusal_leaves_nothing() {
    let mut bench = Bench::new().await;
    bench.driver.script(Call::CreateVolume, [loses(UNAVAILABLE), fails(INTERNAL)]);
    bench.start();
    bench.claim("data", "fast").await;
    bench.until_creations(2).await;
    bench
        .until("the refusal is reported", || async {
            let told = bench.events("data").await;
            told.iter().filter(|event| *event == "Warning ProvisioningFailed").count() >= 2
        })
        .await;
    assert_eq!(bench.intents().await, 1, "the record stands for what may exist");
    bench.until_claim_is_gone().await;
    bench.until_clean().await;
}

#[tokio::test(start_paused = true)]
async fn final_error_after_restart_leaves_nothing_of_a_deleted_claim() {
    let mut bench = Bench::new().await;
    bench.driver.script(Call::CreateVolume, [Fault::HangAfter, fails(INTERNAL)]);
    bench.start();
    bench.claim("data", "fast").await;
    bench.until("the volume is made", || async { !bench.driver.volumes().is_empty() }).await;
    bench.crash().await;
    bench.delete_claim_now("data").await;
    bench.start();
    bench.until_clean().await;
}

#[tokio::test(start_paused = true)]
async fn final_error_after_restart_is_retried_while_claim_is_pending() {
    let mut bench = Bench::new().await;
    bench.driver.script(Call::CreateVolume, [Fault::HangAfter, fails(INTERNAL), fails(INTERNAL)]);
    bench.start();
    bench.claim("data", "fast").await;
    bench.until("the volume is made", || async { !bench.driver.volumes().is_empty() }).await;
    bench.crash().await;
    bench.start();
    bench.until_creations(2).await;
    bench.until_bound("data").await;
    assert_eq!((bench.creations(), bench.driver.volumes().len()), (4, 1));
    bench.until("the intent is dropped", || async { bench.intents().await == 0 }).await;
}

#[tokio::test(start_paused = true)]
async fn refusal_from_previous_node_is_confirmed() {
    let mut bench = Bench::new().await;
    bench.zones(&[("a", None), ("b", None)]);
    bench.node("n1", "a").await;
    bench.node("n2", "b").await;
    bench.driver.script(Call::CreateVolume, [loses(UNAVAILABLE), fails(EXHAUSTED)]);
    bench.start();
    bench.claim("data", "late").await;
    bench.select_node("data", "n1").await;
    bench
        .until("the choice is taken off", || async {
            let claim = bench.get_claim("data").await.unwrap();
            let none = claim.metadata.annotation("volume.kubernetes.io/selected-node").is_none();
            none && bench.creations() == 2
        })
        .await;
    bench.select_node("data", "n2").await;
    let volume = bench.until_bound("data").await;
    let labels = [("topology.test/zone".to_string(), "b".to_string())].into();
    assert!(volume.reachable_from("n2", &labels));
    assert_eq!(bench.driver.volumes().len(), 1, "the one on the first node is gone");
    bench.delete_claim("data").await;
    bench.until_clean().await;
}

#[tokio::test(start_paused = true)]
async fn three_refusals_from_previous_node_free_the_claim() {
    let mut bench = Bench::new().await;
    bench.zones(&[("a", None), ("b", None)]);
    bench.node("n1", "a").await;
    bench.node("n2", "b").await;
    // Nothing is made on the first node, but it takes three refusals to be certain.
    let script = [fails(UNAVAILABLE), fails(EXHAUSTED), fails(EXHAUSTED), fails(EXHAUSTED)];
    bench.driver.script(Call::CreateVolume, script);
    bench.start();
    bench.claim("data", "late").await;
    bench.select_node("data", "n1").await;
    bench.until_creations(2).await;
    bench.select_node("data", "n2").await;
    bench.until_bound("data").await;
    assert_eq!(bench.creations(), 5);
}

#[tokio::test(start_paused = true)]
async fn ten_refusals_end_the_record_of_a_deleted_claim() {
    let mut bench = Bench::new().await;
    let script = (0..100).map(|call| fails(if call < 3 { UNAVAILABLE } else { INTERNAL }));
    bench.driver.script(Call::CreateVolume, script.collect::<Vec<_>>());
    bench.start();
    bench.claim("data", "fast").await;
    bench.until_creations(1).await;
    bench.until_claim_is_gone().await;
    bench.until_creations(7).await;
    assert_eq!(bench.intents().await, 1, "three times are not enough when no claim waits");
    bench.until("the intent is dropped", || async { bench.intents().await == 0 }).await;
    let calls = bench.creations();
    assert_eq!(calls, 13);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(bench.creations(), calls);
}

#[tokio::test(start_paused = true)]
async fn infeasible_error_is_conclusive_while_claim_is_pending() {
    // The class may be made anew meanwhile, so the old request must not be held on to.
    let mut bench = Bench::new().await;
    bench.driver.script(Call::CreateVolume, [fails(UNAVAILABLE), fails(INVALID)]);
    bench.start();
    bench.claim("data", "fast").await;
    bench.until_creations(2).await;
    bench.until("the intent is dropped", || async { bench.intents().await == 0 }).await;
    bench.until_bound("data").await;
}

#[tokio::test(start_paused = true)]
async fn without_the_guard_the_first_refusal_is_conclusive_as_upstream() {
    let mut bench = Bench::new().await;
    bench.config.leak_guard = None;
    let script = [fails(UNAVAILABLE), fails(UNAVAILABLE), fails(UNAVAILABLE), fails(INTERNAL)];
    bench.driver.script(Call::CreateVolume, script);
    bench.start();
    bench.claim("data", "fast").await;
    bench.until_creations(1).await;
    bench.until_claim_is_gone().await;
    bench.until_creations(4).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(bench.creations(), 4);
}

/// Ten refusals prove something only in a row: a volume that the driver returned in between is there.
#[tokio::test(start_paused = true)]
async fn refusals_start_anew_when_the_driver_returns_a_volume_that_cannot_be_deleted() {
    let mut bench = Bench::new().await;
    let mut script = vec![loses(UNAVAILABLE)];
    script.extend((0..9).map(|_| fails(INTERNAL)));
    script.extend([Fault::None, fails(INTERNAL)]);
    bench.driver.script(Call::CreateVolume, script);
    bench.driver.script(Call::DeleteVolume, [fails(UNAVAILABLE)]);
    bench.start();
    bench.claim("data", "fast").await;
    bench.until_creations(1).await;
    bench.until_claim_is_gone().await;
    assert!(bench.creations() < 4, "the claim was there when the driver refused");
    bench.until_creations(12).await;
    bench.until_clean().await;
    assert_eq!(bench.driver.calls_of(Call::DeleteVolume).len(), 2);
}

/// A record as version 0.1.0 wrote it, letter by letter.
#[tokio::test(start_paused = true)]
async fn record_of_the_first_version_is_settled_when_its_claim_is_gone() {
    let mut bench = Bench::new().await;
    let plan = r#"{"driver":"test.csi.longshore.dev","claim":{"namespace":"default","name":"plain","uid":"eb0ae8ec-f606-4cf9-b619-f7197634f106"},"volume":"pvc-eb0ae8ec-f606-4cf9-b619-f7197634f106","bytes":10485760,"parameters":{},"capabilities":[{"mode":"SINGLE_NODE_WRITER","access":{"mount":{"fsType":"","flags":[]}}}],"topologyInUse":false,"secrets":{},"accessModes":["ReadWriteOnce"],"volumeMode":"Filesystem","fsType":"","mountOptions":[],"reclaimPolicy":"Delete","readOnly":false,"contentInAnswer":false,"inTree":false}"#;
    let record = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"plan": plan},
        "metadata": {
            "annotations": {"longshore.dev/claim": "default/plain"},
            "labels": {"longshore.dev/driver": "test.csi.longshore.dev",
                "longshore.dev/intent": "create-volume"},
            "name": "longshore-create-volume-eb0ae8ec-f606-4cf9-b619-f7197634f106",
            "namespace": "kube-system"}});
    bench.api.create::<ConfigMap>(&record).await.unwrap();
    bench.start();
    bench.until_creations(1).await;
    bench.until_clean().await;
    let asked = bench.driver.calls_of(Call::CreateVolume);
    assert!(asked[0].request.contains("pvc-eb0ae8ec-f606-4cf9-b619-f7197634f106"), "{asked:?}");
    assert_eq!(bench.driver.calls_of(Call::DeleteVolume).len(), 1);
}
