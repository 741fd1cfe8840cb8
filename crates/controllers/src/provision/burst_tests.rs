//! A burst of claims: in the end each has its event.

use std::{collections::BTreeMap, time::Duration};

use kube::client::Body;
use longshore_cluster::{
    Api,
    limit::{Limit, limited},
};
use longshore_core::model::kinds::Event;
use serde_json::json;

use super::testing::Bench;

/// How long the API server takes for a response.
const LATENCY: Duration = Duration::from_millis(5);
/// Claims made at once.
const CLAIMS: usize = 2000;
/// Claims that cannot be provisioned, made after all others.
const FAILING: usize = 20;

fn delayed(client: kube::Client) -> kube::Client {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let client = client.clone();
        async move {
            tokio::time::sleep(LATENCY).await;
            client.send(request).await
        }
    });
    kube::Client::new(service, "default")
}

impl Bench {
    /// How many events each object of `prefix` has for this reason.
    async fn told(&self, prefix: &str, reason: &str) -> BTreeMap<String, usize> {
        let mut told = BTreeMap::new();
        for event in self.all::<Event>().await {
            let object = event.involved_object.name;
            if event.reason == reason && object.starts_with(prefix) {
                *told.entry(object).or_default() += 1;
            }
        }
        told
    }

    /// Waits until so many objects have such an event.
    async fn until_all_told(
        &self,
        prefix: &str,
        reason: &str,
        objects: usize,
    ) -> BTreeMap<String, usize> {
        for _ in 0..3000 {
            let told = self.told(prefix, reason).await;
            if told.len() == objects {
                return told;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let told = self.told(prefix, reason).await;
        panic!("{} of {objects} objects have an event {reason}", told.len());
    }
}

#[tokio::test(start_paused = true)]
async fn every_claim_of_a_burst_has_its_event_and_warnings_come_first() {
    let mut bench = Bench::new().await;
    let secret = json!({"csi.storage.k8s.io/provisioner-secret-name": "missing",
        "csi.storage.k8s.io/provisioner-secret-namespace": "default"});
    bench.class("failing", "Immediate", secret).await;
    let direct = bench.api.clone();
    bench.api = Api::new(limited(delayed(direct.client().clone()), Limit::Adaptive, None));
    bench.start();
    bench.api = direct;
    for number in 0..CLAIMS {
        bench.claim(&format!("good-{number}"), "fast").await;
    }
    for number in 0..FAILING {
        bench.claim(&format!("bad-{number}"), "failing").await;
    }
    bench.until_all_told("bad-", "ProvisioningFailed", FAILING).await;
    let by_then = bench.told("good-", "ProvisioningSucceeded").await.len();
    assert!(by_then < CLAIMS, "the last claims' warnings wait for {by_then} other events");
    let told = bench.until_all_told("good-", "ProvisioningSucceeded", CLAIMS).await;
    assert!(told.values().all(|times| *times == 1), "{told:?}");
    assert_eq!(bench.driver.volumes().len(), CLAIMS, "one volume a claim");
}
