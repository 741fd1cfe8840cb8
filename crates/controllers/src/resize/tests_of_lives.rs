//! Claims that come, go and fail in numbers; a driver that says which parameters it can change.

use std::time::Duration;

use longshore_core::model::{
    ObjectKey,
    keys::{annotations, manifest},
    kinds::{Claim, Pod, Volume, VolumeAttributesClass},
};
use longshore_csi::{
    capabilities::{ControllerCapability, NodeCapability},
    fake::Fault,
};
use serde_json::json;
use tonic::Code;

use super::{
    Config,
    tests::{MODIFIED, RESIZED, World, attributes, kinds, size, stage},
};
use crate::testing::key;

/// A claim that a volume, whose node was not done yet, is bound to anew: the binder has given it the size from
/// before the expansion.
async fn rebound(world: &World, has: &str, asks: &str) -> ObjectKey {
    let volume = ObjectKey::cluster("pv-data");
    let free = json!({"metadata": {"finalizers": null}});
    world.bench.merge::<Claim>(&key("data"), free).await;
    world.bench.delete::<Claim>(&key("data")).await;
    world.bench.until_gone::<Claim>(&key("data")).await;
    let uid = world.bench.claim("again", "fast").await;
    let claim = key("again");
    let reference =
        json!({"spec": {"claimRef": {"namespace": "default", "name": "again", "uid": uid}}});
    world.bench.merge::<Volume>(&volume, reference).await;
    world.bench.merge::<Claim>(&claim, json!({"spec": {"volumeName": "pv-data"}})).await;
    let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": has}}});
    world.bench.merge_status::<Claim>(&claim, bound).await;
    if asks != "1Gi" {
        world.ask(&claim, asks).await;
    }
    claim
}

#[tokio::test(start_paused = true)]
async fn volume_whose_node_was_not_done_is_finished_for_its_next_claim() {
    for (annotates, has, asks, want) in [
        // case: resizer/61
        (true, "1Gi", "2Gi", vec![2, 2]),
        // case: resizer/62
        (true, "1Gi", "1Gi", vec![2]),
        // case: resizer/64
        (false, "2Gi", "2Gi", vec![2]),
    ] {
        let config = Config { annotates, ..Config::default() };
        let world = World::start_with(config, |driver| driver.node_expansion_required = true).await;
        let claim = world.claim("data").await;
        world.ask(&claim, "2Gi").await;
        world.until_stage(&claim, "NodeResizePending").await;
        let noted = world.volume("pv-data").await;
        let noted = noted.metadata.annotation(annotations::PRE_RESIZE_CAPACITY).map(str::to_owned);
        assert_eq!(noted.as_deref(), annotates.then_some("1Gi"));
        let claim = rebound(&world, has, asks).await;
        world.bench.pass(Duration::from_secs(30)).await;
        assert_eq!(world.sizes(), want, "{annotates} {has} {asks}");
        let seen = world.bench.get::<Claim>(&claim).await.expect("there");
        let waits = if want.len() > 1 { "NodeResizePending" } else { "" };
        assert_eq!(stage(&seen), waits, "{annotates} {has} {asks}");
        if want.len() > 1 {
            let done = json!({"status": {"capacity": {"storage": "2Gi"}, "conditions": null,
                "allocatedResourceStatuses": null}});
            world.bench.merge_status::<Claim>(&claim, done).await;
            world.bench.pass(Duration::from_secs(1)).await;
        }
        let left = world.volume("pv-data").await;
        let left = left.metadata.annotation(annotations::PRE_RESIZE_CAPACITY).is_some();
        assert_eq!(left, annotates && want.len() == 1, "{annotates} {has} {asks}");
    }
}

#[tokio::test(start_paused = true)]
async fn claims_that_fail_in_numbers_lose_nothing_and_recover() {
    // case: resizer/50
    let often = Duration::from_secs(2);
    let config = Config {
        retry_interval_max: often,
        workers: 100.try_into().expect("not zero"),
        ..Config::default()
    };
    let world = World::start(config).await;
    let mut claims = Vec::new();
    for number in 0..100 {
        claims.push(world.claim(&format!("data-{number}")).await);
    }
    for call in [RESIZED, MODIFIED] {
        world.driver.always(call, Fault::Before(Code::Internal, "no".into()));
    }
    for claim in &claims {
        let both = json!({"spec": {"volumeAttributesClassName": "b",
            "resources": {"requests": {"storage": "2Gi"}}}});
        world.bench.merge::<Claim>(claim, both).await;
    }
    world.bench.pass(Duration::from_secs(20)).await;
    for claim in &claims {
        let seen = world.bench.get::<Claim>(claim).await.expect("there");
        for kind in ["ControllerResizeError", "ModifyVolumeError"] {
            assert!(kinds(&seen).contains(&kind), "{claim}: {:?}", kinds(&seen));
        }
    }
    world.driver.clear_faults();
    for claim in &claims {
        world.until_class(claim, "b").await;
        let seen =
            world.until(claim, |claim| size(claim) == "2Gi" && stage(claim).is_empty()).await;
        assert!(kinds(&seen).is_empty(), "{claim}: {:?}", kinds(&seen));
    }
}

#[tokio::test(start_paused = true)]
async fn parameter_that_a_class_leaves_out_is_named_where_the_driver_says_that_it_is_mutable() {
    for (says, want) in [("tier,speed", true), ("", false)] {
        let world = World::start_with(Config::default(), |driver| {
            driver.manifest.insert(manifest::MUTABLE_PARAMETERS.to_owned(), says.to_owned());
        })
        .await;
        let claim = world.claim("data").await;
        world.want(&claim, "b").await;
        world.until_class(&claim, "b").await;
        let request = &world.driver.calls_of(MODIFIED)[0].request;
        assert!(request.contains("\"tier\":\"b\""), "{request}");
        assert_eq!(request.contains("\"speed\":\"\""), want, "{request}");
    }
}

#[tokio::test(start_paused = true)]
async fn change_refused_for_a_volume_in_use_is_tried_when_its_pod_has_ended() {
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    world.bench.pod("p", None, &["data"]).await;
    world.driver.always(MODIFIED, Fault::Before(Code::FailedPrecondition, "in use".into()));
    world.want(&claim, "b").await;
    world.bench.pass(Duration::from_secs(200)).await;
    let (before, seen) = (world.classes().len(), world.bench.get::<Claim>(&claim).await);
    assert!(kinds(&seen.expect("there")).contains(&"ModifyVolumeError"));
    world.driver.clear_faults();
    world.bench.delete::<Pod>(&key("p")).await;
    world.bench.pass(Duration::from_secs(1)).await;
    assert_eq!(world.classes().len(), before + 1);
    world.until_class(&claim, "b").await;
}

#[tokio::test(start_paused = true)]
async fn driver_whose_nodes_expand_is_not_called_for_a_smaller_size() {
    // case: resizer/12
    let world = World::start_with(Config::default(), |driver| {
        driver.controller.remove(ControllerCapability::ExpandVolume);
        driver.node.insert(NodeCapability::ExpandVolume);
    })
    .await;
    let claim = world.claim("data").await;
    let volume = ObjectKey::cluster("pv-data");
    world.bench.merge::<Volume>(&volume, json!({"spec": {"capacity": {"storage": "10Gi"}}})).await;
    let infeasible = json!({"status": {"capacity": {"storage": "3Gi"},
        "allocatedResources": {"storage": "10Gi"},
        "allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}});
    world.bench.merge_status::<Claim>(&claim, infeasible).await;
    world.ask(&claim, "5Gi").await;
    let seen = world.until_stage(&claim, "NodeResizePending").await;
    assert_eq!(seen.status.allocated_resources["storage"].to_string(), "5Gi");
    assert_eq!(size(&seen), "3Gi");
    assert!(kinds(&seen).contains(&"FileSystemResizePending"), "{:?}", kinds(&seen));
    assert_eq!(world.volume("pv-data").await.capacity().to_string(), "5Gi");
    world.bench.pass(Duration::from_secs(60)).await;
    assert!(world.sizes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn claim_waits_for_its_volume_and_for_being_bound() {
    // case: resizer/16
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    let volume = ObjectKey::cluster("pv-data");
    let mut raw = world.bench.api.get_raw::<Volume>(&volume).await.expect("read").expect("there");
    world.bench.merge::<Volume>(&volume, json!({"metadata": {"finalizers": null}})).await;
    world.bench.delete::<Volume>(&volume).await;
    world.bench.until_gone::<Volume>(&volume).await;
    let phase = |phase: &str| json!({"status": {"phase": phase}});
    world.ask(&claim, "2Gi").await;
    world.bench.pass(Duration::from_secs(100)).await;
    let seen = world.bench.get::<Claim>(&claim).await.expect("there");
    assert_eq!((world.sizes(), stage(&seen)), (vec![], ""));
    world.bench.merge_status::<Claim>(&claim, phase("Pending")).await;
    for field in ["resourceVersion", "uid", "creationTimestamp"] {
        raw["metadata"][field].take();
    }
    world.bench.create::<Volume>(raw).await;
    world.bench.pass(Duration::from_secs(100)).await;
    let seen = world.bench.get::<Claim>(&claim).await.expect("there");
    assert_eq!((world.sizes(), stage(&seen)), (vec![], ""), "not bound");
    world.bench.merge_status::<Claim>(&claim, phase("Bound")).await;
    world.until(&claim, |claim| size(claim) == "2Gi").await;
    assert_eq!(world.sizes(), [2]);
}

#[tokio::test(start_paused = true)]
async fn only_news_and_the_resync_bring_a_claim_back() {
    // case: resizer/33
    // Longer than the test: no attempt is one of the backoff.
    let never = Duration::from_secs(36_000);
    let config =
        Config { retry_interval_start: never, retry_interval_max: never, ..Config::default() };
    let world = World::start(config).await;
    let claim = world.claim("data").await;
    world.driver.always(RESIZED, Fault::Before(Code::Internal, "no".into()));
    world.ask(&claim, "2Gi").await;
    world.bench.pass(Duration::from_secs(200)).await;
    world.driver.clear_calls();
    let label = json!({"metadata": {"labels": {"seen": "yes"}}});
    world.bench.merge::<Claim>(&claim, label).await;
    world.bench.pass(Duration::from_secs(200)).await;
    assert!(world.sizes().is_empty(), "a label is no news");
    world.bench.pass(Duration::from_secs(300)).await;
    assert_eq!(world.sizes(), [2], "the resync after ten minutes");
    world.driver.clear_faults();
    let grown = json!({"status": {"capacity": {"storage": "1500Mi"}}});
    world.bench.merge_status::<Claim>(&claim, grown).await;
    world.bench.pass(Duration::from_secs(1)).await;
    assert_eq!(world.sizes(), [2, 2], "it has more than it had");
    world.until(&claim, |claim| size(claim) == "2Gi").await;
}

#[tokio::test(start_paused = true)]
async fn class_that_is_taken_back_while_it_is_set_is_set_to_the_end() {
    for (code, want) in [
        // case: resizer/44
        (Code::Unavailable, ["b", "b"]),
        (Code::Internal, ["b", "b"]),
    ] {
        let world = World::start(Config::default()).await;
        let claim = world.claim_of("data", "").await;
        world.fail(MODIFIED, code);
        world.want(&claim, "b").await;
        world.until(&claim, |claim| kinds(claim).contains(&"ModifyVolumeError")).await;
        let none = json!({"spec": {"volumeAttributesClassName": null}});
        world.bench.merge::<Claim>(&claim, none).await;
        let seen = world.until_class(&claim, "b").await;
        assert!(kinds(&seen).is_empty(), "{code:?}: {:?}", kinds(&seen));
        world.bench.pass(Duration::from_secs(60)).await;
        assert_eq!(world.classes(), want, "{code:?}");
        assert!(world.bench.events("VolumeModifyCanceled").await.is_empty(), "{code:?}");
    }
}

/// Row 3 of the decision: what goes on is not begun again, and needs its class.
#[tokio::test(start_paused = true)]
async fn change_without_a_verdict_goes_on_in_silence_and_waits_for_its_class() {
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    world.driver.always(MODIFIED, Fault::Before(Code::Unavailable, "away".into()));
    world.want(&claim, "b").await;
    world.until(&claim, |claim| kinds(claim).contains(&"ModifyVolumeError")).await;
    world.bench.pass(Duration::from_secs(10)).await;
    assert!(world.classes().len() > 2, "{:?}", world.classes());
    assert_eq!(world.bench.events("VolumeModify").await.len(), 1, "begun once");
    let class = ObjectKey::cluster("b");
    let free = json!({"metadata": {"finalizers": null}});
    world.bench.merge::<VolumeAttributesClass>(&class, free).await;
    world.bench.delete::<VolumeAttributesClass>(&class).await;
    world.bench.until_gone::<VolumeAttributesClass>(&class).await;
    world.bench.pass(Duration::from_secs(1)).await;
    world.driver.clear_faults();
    world.driver.clear_calls();
    world.bench.pass(Duration::from_secs(100)).await;
    let seen = world.bench.get::<Claim>(&claim).await.expect("there");
    let begun = seen.status.modify_volume_status.as_ref().expect("begun");
    assert_eq!(begun.status, "InProgress", "not Pending: the driver may be at it");
    assert_eq!(world.classes(), [""; 0]);
    let told = world.bench.events("VolumeModifyFailed").await;
    assert!(told.contains(&"VAC \"b\" does not exist.".to_owned()), "{told:?}");
    attributes(&world.bench, "b").await;
    world.until_class(&claim, "b").await;
}
