//! A "no" from a driver that may have said "yes" before, and nobody heard it.

use std::time::Duration;

use longshore_csi::{
    Call,
    fake::{Fault, Fault as F},
};

use super::bench::Bench;

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
async fn a_no_after_a_lost_answer_leaves_nothing_of_a_deleted_claim() {
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

#[tokio::test(start_paused = true)]
async fn the_claim_may_also_be_deleted_after_the_no() {
    let mut bench = Bench::new().await;
    bench.driver.script(Call::CreateVolume, [loses(UNAVAILABLE), fails(INTERNAL)]);
    bench.start();
    bench.claim("data", "fast").await;
    bench.until_creations(2).await;
    bench
        .until("the no is told", || async {
            let told = bench.events("data").await;
            told.iter().filter(|event| *event == "Warning ProvisioningFailed").count() >= 2
        })
        .await;
    assert_eq!(bench.intents().await, 1, "the record stands for what may exist");
    bench.until_claim_is_gone().await;
    bench.until_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_no_to_the_next_life_leaves_nothing() {
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
async fn a_no_to_the_next_life_is_repeated_for_a_claim_that_waits() {
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
async fn a_place_that_is_left_is_asked_again_when_it_says_no() {
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
    assert_eq!(bench.driver.volumes().len(), 1, "the one at the first place is gone");
    bench.delete_claim("data").await;
    bench.until_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_place_does_not_hold_a_claim_for_ever() {
    let mut bench = Bench::new().await;
    bench.zones(&[("a", None), ("b", None)]);
    bench.node("n1", "a").await;
    bench.node("n2", "b").await;
    // Nothing is made at the first place, but it takes three times "no" to believe that.
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
async fn a_no_that_stays_ends_the_record_of_a_deleted_claim() {
    let mut bench = Bench::new().await;
    let script = (0..100).map(|call| fails(if call < 3 { UNAVAILABLE } else { INTERNAL }));
    bench.driver.script(Call::CreateVolume, script.collect::<Vec<_>>());
    bench.start();
    bench.claim("data", "fast").await;
    bench.until_creations(1).await;
    bench.until_claim_is_gone().await;
    bench.until_creations(7).await;
    assert_eq!(bench.intents().await, 1, "three times are not enough when nobody waits");
    bench.until("the intent is dropped", || async { bench.intents().await == 0 }).await;
    let calls = bench.creations();
    assert_eq!(calls, 13);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(bench.creations(), calls);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_can_never_succeed_did_not() {
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
async fn without_the_guard_a_no_is_believed_as_upstream_does() {
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
