//! What the resizer asks for: the API server for as little as upstream, the driver with the right secrets.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::Method;
use longshore_cluster::Api;
use longshore_core::model::{
    ObjectKey,
    keys::annotations,
    kinds::{Claim, Secret, Volume, VolumeAttributesClass},
};
use longshore_csi::capabilities::ControllerCapability;
use parking_lot::Mutex;
use serde_json::json;

use super::{
    Config,
    tests::{MODIFIED, World, kinds, refusing, size},
};
use crate::testing::key;

/// Requests that reached the API, as method and path.
type Log = Arc<Mutex<Vec<(Method, String)>>>;

/// A way to the API on which every request is noted.
fn noted(log: &Log) -> impl FnOnce(&Api) -> Api {
    let log = log.clone();
    move |api| {
        refusing(api, move |request| {
            log.lock().push((request.method().clone(), request.uri().path().to_owned()));
            None
        })
    }
}

#[tokio::test(start_paused = true)]
async fn size_and_class_of_one_patch_cost_six_writes_at_most() {
    // case: resizer/67
    let log = Log::default();
    let world = World::start(Config::default()).await.through(Config::default(), noted(&log)).await;
    let claim = world.claim("data").await;
    let patch = json!({"spec": {"volumeAttributesClassName": "b",
        "resources": {"requests": {"storage": "2Gi"}}}});
    world.bench.merge::<Claim>(&claim, patch).await;
    world.until_class(&claim, "b").await;
    world.until(&claim, |claim| size(claim) == "2Gi" && kinds(claim).is_empty()).await;
    let all = log.lock();
    let of_claim = |(method, path): &&(Method, String)| {
        *method == Method::PATCH && path.contains("/persistentvolumeclaims/data")
    };
    let writes = all.iter().filter(of_claim).count();
    assert!((1..=6).contains(&writes), "{writes} writes");
}

#[tokio::test(start_paused = true)]
async fn pods_are_watched_only_where_they_matter() {
    for (expands, in_use_matters, want) in [
        (true, true, true),
        // case: resizer/18
        (true, false, false),
        // case: resizer/56
        (false, true, false),
    ] {
        let log = Log::default();
        let config = Config { handle_volume_inuse_error: in_use_matters, ..Config::default() };
        let world = World::start_with(config.clone(), |driver| {
            if !expands {
                driver.controller.remove(ControllerCapability::ExpandVolume);
                driver.node = Default::default();
            }
        })
        .await;
        let world = world.through(config, noted(&log)).await;
        world.bench.pass(Duration::from_secs(60)).await;
        let all = log.lock();
        assert!(all.iter().any(|(_, path)| path.ends_with("/persistentvolumeclaims")));
        let watched = all.iter().any(|(_, path)| path.ends_with("/pods"));
        assert_eq!(watched, want, "expands: {expands}, in use matters: {in_use_matters}");
    }
}

async fn secret(world: &World, name: &str) {
    let secret = json!({"metadata": {"name": name, "namespace": "default"},
        "stringData": {"is": name}});
    world.bench.create::<Secret>(secret).await;
}

#[tokio::test(start_paused = true)]
async fn secrets_of_a_change_are_those_of_the_annotations_else_those_of_expansion() {
    // case: resizer/47
    // case: resizer/58
    for (name, namespace, expansion, want) in [
        (true, true, true, Some("modify")),
        (true, true, false, Some("modify")),
        (true, false, true, Some("expand")),
        (false, true, true, Some("expand")),
        (false, false, true, Some("expand")),
        (true, false, false, None),
        (false, false, false, None),
    ] {
        let world = World::start(Config::default()).await;
        secret(&world, "modify").await;
        secret(&world, "expand").await;
        let claim = world.claim("data").await;
        let note = |given: bool, value: &str| given.then(|| value.to_owned());
        let reference = expansion.then(|| json!({"name": "expand", "namespace": "default"}));
        let patch = json!({
            "metadata": {"annotations": {
                annotations::MODIFY_SECRET_NAME: note(name, "modify"),
                annotations::MODIFY_SECRET_NAMESPACE: note(namespace, "default"),
            }},
            "spec": {"csi": {"controllerExpandSecretRef": reference}},
        });
        world.bench.merge::<Volume>(&ObjectKey::cluster("pv-data"), patch).await;
        let want: BTreeMap<String, String> =
            want.iter().map(|name| ("is".to_owned(), (*name).to_owned())).collect();
        world.driver.configure(|driver| driver.modify_secrets = Some(want.clone()));
        world.want(&claim, "b").await;
        world.until_class(&claim, "b").await;
        let asked = world.driver.calls_of(MODIFIED).len();
        assert_eq!(asked, 1, "{name} {namespace} {expansion}: other secrets than {want:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn secret_that_goes_between_two_changes_is_waited_for_in_silence() {
    // case: resizer/58
    let world = World::start(Config::default()).await;
    secret(&world, "modify").await;
    let claim = world.claim("data").await;
    let notes = json!({"metadata": {"annotations": {
        annotations::MODIFY_SECRET_NAME: "modify",
        annotations::MODIFY_SECRET_NAMESPACE: "default",
    }}});
    world.bench.merge::<Volume>(&ObjectKey::cluster("pv-data"), notes).await;
    world.want(&claim, "b").await;
    world.until_class(&claim, "b").await;
    world.bench.delete::<Secret>(&key("modify")).await;
    world.want(&claim, "c").await;
    world.bench.pass(Duration::from_secs(30)).await;
    assert_eq!(world.classes(), ["b"]);
    let seen = world.bench.get::<Claim>(&claim).await.expect("there");
    assert_eq!(kinds(&seen), ["ModifyingVolume"], "no condition of an error");
    assert!(world.bench.events("VolumeModifyFailed").await.is_empty());
    secret(&world, "modify").await;
    world.until_class(&claim, "c").await;
    assert_eq!(world.classes(), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn names_of_claim_and_volume_are_added_to_a_copy_of_the_parameters() {
    // case: resizer/38
    let config = Config { extra_modify_metadata: true, ..Config::default() };
    let world = World::start(config).await;
    let claims = [world.claim("one").await, world.claim("two").await];
    for (claim, name) in claims.iter().zip(["one", "two"]) {
        world.want(claim, "b").await;
        world.until_class(claim, "b").await;
        let calls = world.driver.calls_of(MODIFIED);
        let request = &calls.last().expect("a call").request;
        for (key, value) in
            [("pvc/name", name), ("pvc/namespace", "default"), ("pv/name", &format!("pv-{name}"))]
        {
            let part = format!("\"csi.storage.k8s.io/{key}\":\"{value}\"");
            assert!(request.contains(&part), "{request}");
        }
    }
    let class = world.bench.get::<VolumeAttributesClass>(&ObjectKey::cluster("b")).await;
    let parameters = class.expect("there").parameters;
    assert_eq!(parameters, [("tier".to_owned(), "b".to_owned())].into());
}
