//! Protection over a real API server.

use std::time::Duration;

use longshore_cluster::Api;
use longshore_core::model::{
    ObjectKey,
    keys::finalizers::{PV_PROTECTION, PVC_PROTECTION, VAC_PROTECTION},
    kinds::{Claim, Pod, Secret, Volume, VolumeAttributesClass},
};
use serde_json::json;

use super::{
    ApiError, ClaimProtection, ClassProtection, EphemeralClaims, Finalizer, Outcome,
    VolumeProtection, apply, outcome,
};
use crate::testing::{Bench, Process, key, slow_secrets};

fn start(bench: &Bench) -> Process {
    start_with(bench, Api::new(bench.api.client().clone()))
}

fn start_with(bench: &Bench, api: Api) -> Process {
    let mut process = bench.process_with(api);
    let context = process.context.clone();
    let claims = ClaimProtection::new(&context, true);
    let volumes = VolumeProtection::new(&context);
    let ephemeral = EphemeralClaims::new(&context, 5);
    let classes = ClassProtection::new(&context);
    let shutdown = process.shutdown.clone();
    process.spawn(claims.run(shutdown.clone()));
    process.spawn(volumes.run(shutdown.clone()));
    process.spawn(ephemeral.run(shutdown.clone()));
    process.spawn(classes.run(shutdown));
    process
}

fn protected(claim: &Claim) -> bool {
    claim.metadata.has_finalizer(PVC_PROTECTION)
}

#[tokio::test(start_paused = true)]
async fn a_claim_in_use_stays_until_its_pod_is_gone() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    bench.claim("data", "").await;
    bench.until::<Claim>(&key("data"), protected).await;
    bench.pod("web", Some("n1"), &["data"]).await;
    let ended = json!({"status": {"phase": "Succeeded"}});
    bench.merge_status::<Pod>(&key("web"), ended).await;
    bench.delete::<Claim>(&key("data")).await;
    bench.pass(Duration::from_secs(60)).await;
    assert!(bench.get::<Claim>(&key("data")).await.is_some(), "an ended pod still holds it");
    bench.delete::<Pod>(&key("web")).await;
    bench.until_gone::<Claim>(&key("data")).await;
}

/// Two that take their finalizers off one object get in each other's way. That is no failure, and
/// no reason to be slowed down; a patch that can never succeed is.
#[tokio::test(start_paused = true)]
async fn a_conflict_is_no_failure() {
    let bench = Bench::start().await;
    bench.claim("data", "").await;
    let mut seen = bench.get::<Claim>(&key("data")).await.expect("just made").metadata;
    seen.finalizers.insert(0, "example.com/not-there".to_owned());
    let process = bench.process();
    let claims = process.context.cache::<Claim>();
    let remove = || apply(&bench.api, &claims, &seen, PVC_PROTECTION, Finalizer::Remove);
    let refused = remove().await.expect_err("its finalizers are others");
    assert!(matches!(refused, ApiError::Invalid { .. }), "{refused}");
    assert!(matches!(outcome(Err(refused)), Outcome::Retry(_)));

    let labels = json!({"metadata": {"labels": {"changed": "since"}}});
    bench.merge::<Claim>(&key("data"), labels).await;
    let refused = remove().await.expect_err("they still are");
    assert!(refused.is_conflict(), "{refused}");
    assert!(matches!(outcome(Err(refused)), Outcome::After(_)));
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_a_node_does_not_hold_a_claim() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    bench.claim("data", "").await;
    bench.until::<Claim>(&key("data"), protected).await;
    bench.pod("web", None, &["data"]).await;
    bench.delete::<Claim>(&key("data")).await;
    bench.until_gone::<Claim>(&key("data")).await;
}

#[tokio::test(start_paused = true)]
async fn claims_say_whether_they_are_used() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    bench.claim("data", "").await;
    bench.bind("data", "pv1", "h1").await;
    let says = |want: &'static str| {
        move |claim: &Claim| {
            let mut conditions = claim.status.conditions.iter();
            conditions.any(|one| one.kind == "Unused" && one.status == want)
        }
    };
    bench.until::<Claim>(&key("data"), says("True")).await;
    bench.pod("web", None, &["data"]).await;
    bench.until::<Claim>(&key("data"), says("False")).await;
    bench.delete::<Pod>(&key("web")).await;
    bench.until::<Claim>(&key("data"), says("True")).await;
}

/// While much else is under way a claim's use is told of a few seconds later, and its protection is
/// taken off as quickly as ever.
#[tokio::test(start_paused = true)]
async fn in_a_burst_only_the_use_of_claims_waits() {
    let said = |claim: &Claim| claim.status.conditions.iter().any(|one| one.kind == "Unused");
    for (busy, early, late) in [(5, false, true), (4, true, true)] {
        let bench = Bench::start().await;
        let process = start_with(&bench, slow_secrets(&bench.api));
        let under_way = (0..busy).map(|_| {
            let api = process.api.clone();
            tokio::spawn(async move { api.get::<Secret>(&key("slow")).await.map(drop) })
        });
        let under_way: Vec<_> = under_way.collect();
        bench.pass(Duration::from_secs(1)).await;
        bench.claim("data", "").await;
        bench.bind("data", "pv1", "h1").await;
        bench.pass(Duration::from_secs(3)).await;
        let claim = bench.get::<Claim>(&key("data")).await.expect("it is there");
        assert_eq!(said(&claim), early, "{busy} under way, after three seconds");
        bench.claim("gone", "").await;
        bench.until::<Claim>(&key("gone"), protected).await;
        bench.delete::<Claim>(&key("gone")).await;
        bench.pass(Duration::from_secs(1)).await;
        assert!(bench.get::<Claim>(&key("gone")).await.is_none(), "{busy} under way");
        bench.pass(Duration::from_secs(3)).await;
        let claim = bench.get::<Claim>(&key("data")).await.expect("it is there");
        assert_eq!(said(&claim), late, "{busy} under way, after seven seconds");
        under_way.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

#[tokio::test(start_paused = true)]
async fn a_bound_volume_stays() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    bench.claim("data", "").await;
    bench.bind("data", "pv1", "h1").await;
    let pv = ObjectKey::cluster("pv1");
    bench.until::<Volume>(&pv, |volume| volume.metadata.has_finalizer(PV_PROTECTION)).await;
    bench.delete::<Volume>(&pv).await;
    bench.pass(Duration::from_secs(60)).await;
    assert!(bench.get::<Volume>(&pv).await.is_some());
    bench.merge_status::<Volume>(&pv, json!({"status": {"phase": "Released"}})).await;
    bench.until_gone::<Volume>(&pv).await;
}

async fn ephemeral_pod(bench: &Bench, name: &str) {
    bench
        .create::<Pod>(json!({"metadata": {"name": name, "namespace": "default"}, "spec": {
            "containers": [{"name": "main", "image": "host"}],
            "volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {
                "metadata": {"labels": {"of": name}},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "",
                    "resources": {"requests": {"storage": "1Gi"}}}}}}]}}))
        .await;
}

#[tokio::test(start_paused = true)]
async fn ephemeral_volumes_get_a_claim_of_their_own() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    // case: pv-controller/eph-create
    ephemeral_pod(&bench, "web").await;
    let pod = bench.get::<Pod>(&key("web")).await.expect("there");
    let claim = bench.until::<Claim>(&key("web-scratch"), |_| true).await;
    let [owner] = &claim.metadata.owner_references[..] else { panic!("one owner: {claim:?}") };
    assert_eq!(owner.uid, pod.metadata.uid);
    assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
    assert_eq!(claim.metadata.labels.get("of").map(String::as_str), Some("web"));
    assert_eq!(claim.request().bytes(), 1 << 30);
    // case: pv-controller/eph-wrong-owner
    bench.claim("api-scratch", "").await;
    bench.pass(Duration::from_millis(50)).await;
    ephemeral_pod(&bench, "api").await;
    bench.pass(Duration::from_secs(1)).await;
    let events = bench.events("FailedBinding").await;
    let want = "ephemeral volume scratch: PVC default/api-scratch was not created for pod \
                default/api (pod is not owner)";
    assert_eq!(events, [want]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_goes_gets_no_claim() {
    // case: pv-controller/eph-deleted
    let bench = Bench::start().await;
    ephemeral_pod(&bench, "web").await;
    let held = json!({"metadata": {"finalizers": ["test/held"]}});
    bench.merge::<Pod>(&key("web"), held).await;
    bench.delete::<Pod>(&key("web")).await;
    let pod = bench.get::<Pod>(&key("web")).await.expect("held");
    assert!(pod.metadata.deleting());
    let _process = start(&bench);
    bench.pass(Duration::from_secs(60)).await;
    assert!(bench.get::<Claim>(&key("web-scratch")).await.is_none());
    assert_eq!(bench.events("FailedBinding").await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_deleted_under_its_pod_is_made_again() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    ephemeral_pod(&bench, "web").await;
    let first = bench.until::<Claim>(&key("web-scratch"), protected).await;
    bench.delete::<Claim>(&key("web-scratch")).await;
    bench.until::<Claim>(&key("web-scratch"), |c| c.metadata.uid != first.metadata.uid).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_the_cache_has_not_seen_holds_its_claim() {
    // case: pv-controller/pvcp-late
    let bench = Bench::start().await;
    bench.claim("data", "").await;
    bench.delete::<Claim>(&key("data")).await;
    bench.pod("web", Some("n1"), &["data"]).await;
    let late = start_deaf_to_pods(&bench);
    bench.pass(Duration::from_secs(60)).await;
    assert!(bench.get::<Claim>(&key("data")).await.is_some(), "the live list knows the pod");
    late.kill();
    // The loop would have let it go, had it believed its cache.
    bench.delete::<Pod>(&key("web")).await;
    let _late = start_deaf_to_pods(&bench);
    bench.until_gone::<Claim>(&key("data")).await;
}

/// Claim protection whose cache of pods stays empty: it watches a namespace where there are none.
fn start_deaf_to_pods(bench: &Bench) -> Process {
    let mut process = bench.process();
    process.caches.put::<Pod>(bench.blind());
    let claims = ClaimProtection::new(&process.context, true);
    let shutdown = process.shutdown.clone();
    process.spawn(claims.run(shutdown));
    process
}

async fn attributes_class(bench: &Bench, name: &str) -> ObjectKey {
    bench
        .create::<VolumeAttributesClass>(json!({"metadata": {"name": name},
            "driverName": "test.csi.example", "parameters": {"iops": "1"}}))
        .await;
    ObjectKey::cluster(name)
}

#[tokio::test(start_paused = true)]
async fn an_attributes_class_stays_while_a_claim_has_it() {
    // case: pv-controller/vac
    let bench = Bench::start().await;
    let _process = start(&bench);
    let gold = attributes_class(&bench, "gold").await;
    let held = |class: &VolumeAttributesClass| class.metadata.has_finalizer(VAC_PROTECTION);
    bench.until::<VolumeAttributesClass>(&gold, held).await;
    bench.claim("data", "").await;
    bench.bind("data", "pv1", "h1").await;
    let has = json!({"status": {"currentVolumeAttributesClassName": "gold"}});
    bench.merge_status::<Claim>(&key("data"), has).await;
    bench.pass(Duration::from_secs(1)).await;
    bench.delete::<VolumeAttributesClass>(&gold).await;
    bench.pass(Duration::from_secs(60)).await;
    assert!(bench.get::<VolumeAttributesClass>(&gold).await.is_some(), "named by a status only");
    let on_the_way = json!({"status": {"currentVolumeAttributesClassName": null,
        "modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold", "status": "Pending"}}});
    bench.merge_status::<Claim>(&key("data"), on_the_way).await;
    bench.pass(Duration::from_secs(60)).await;
    assert!(bench.get::<VolumeAttributesClass>(&gold).await.is_some(), "wanted by a change");
    bench
        .merge_status::<Claim>(&key("data"), json!({"status": {"modifyVolumeStatus": null}}))
        .await;
    bench.until_gone::<VolumeAttributesClass>(&gold).await;
}

#[tokio::test(start_paused = true)]
async fn an_attributes_class_goes_with_the_last_object_that_names_it() {
    let bench = Bench::start().await;
    let _process = start(&bench);
    let gold = attributes_class(&bench, "gold").await;
    bench
        .create::<Volume>(json!({"metadata": {"name": "pv1"}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "volumeAttributesClassName": "gold",
            "csi": {"driver": "test.csi.example", "volumeHandle": "h"}}}))
        .await;
    bench.pass(Duration::from_secs(1)).await;
    bench.delete::<VolumeAttributesClass>(&gold).await;
    bench.pass(Duration::from_secs(60)).await;
    assert!(bench.get::<VolumeAttributesClass>(&gold).await.is_some());
    bench.delete::<Volume>(&ObjectKey::cluster("pv1")).await;
    bench.until_gone::<VolumeAttributesClass>(&gold).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_made_anew_keeps_its_protection() {
    let bench = Bench::start().await;
    bench.claim("data", "").await;
    let old = bench.get::<Claim>(&key("data")).await.expect("there");
    bench.merge::<Claim>(&key("data"), json!({"metadata": {"finalizers": null}})).await;
    bench.delete::<Claim>(&key("data")).await;
    bench.claim("data", "").await;
    let step = longshore_core::protect::Finalizer::Remove;
    let process = bench.process();
    let claims = process.context.cache::<Claim>();
    let done = apply(&bench.api, &claims, &old.metadata, PVC_PROTECTION, step).await;
    assert!(done.is_err(), "{done:?}");
    let now = bench.get::<Claim>(&key("data")).await.expect("there");
    assert!(now.metadata.has_finalizer(PVC_PROTECTION));
}
