//! The attacher over a real API server and a driver in memory.

use std::{collections::BTreeMap, time::Duration};

use longshore_core::model::{
    ObjectKey,
    keys::annotations,
    kinds::{CsiNode, Secret, Volume, VolumeAttachment},
};
use longshore_csi::{
    Call,
    capabilities::{ControllerCapability, PluginService},
    fake::{self, Driver, Fault},
};
use serde_json::{Value, json};

use super::{Attacher, Config, Sidecar};
use crate::testing::{Bench, DRIVER, Process};

pub(super) const FINALIZER: &str = "external-attacher/test-csi-example";

pub(super) fn driver() -> Driver {
    let driver = Driver::new(DRIVER);
    driver.on_node("id-of-n1", BTreeMap::new());
    driver
}

pub(super) fn start(bench: &Bench, driver: &Driver, config: Config) -> Process {
    run_in(bench.process(), driver, config)
}

/// The attacher in a process whose API may have been changed.
pub(super) fn run_in(mut process: Process, driver: &Driver, config: Config) -> Process {
    let context = process.context.with_api(process.api.clone());
    let client = driver.client();
    let attacher = Attacher::new(&context, client.clone(), config);
    let shutdown = process.shutdown.clone();
    process.spawn(async move {
        let driver = crate::Driver::describe(&client, Duration::from_secs(1)).await;
        attacher.run(driver.expect("the driver answers"), shutdown).await;
    });
    process
}

/// The parts of an attacher, for steps by hand.
pub(super) fn by_hand<const N: usize>(
    process: &Process,
    driver: &Driver,
    config: Config,
    capabilities: [ControllerCapability; N],
) -> Sidecar {
    use ControllerCapability::{CreateDeleteVolume, PublishUnpublishVolume};
    driver.configure(|config| {
        config.controller = [CreateDeleteVolume, PublishUnpublishVolume].into();
        capabilities.into_iter().for_each(|one| config.controller.insert(one));
    });
    let context = process.context.with_api(process.api.clone());
    let attacher = Attacher::new(&context, driver.client(), config);
    attacher.into_sidecar(DRIVER.to_owned())
}

/// A node and a bound volume of the driver; returns the handle.
pub(super) async fn volume(bench: &Bench, driver: &Driver) -> String {
    bench.node("n1").await;
    bench.claim("data", "").await;
    let request = fake::create_request("v1", 1 << 30);
    let made = driver.client().create_volume(request).await.expect("made");
    let handle = made.volume.expect("a volume").volume_id;
    bench.bind("data", "pv1", &handle).await;
    handle
}

pub(super) async fn attachment(bench: &Bench, source: Value) -> ObjectKey {
    bench
        .create::<VolumeAttachment>(json!({"metadata": {"name": "va1"}, "spec":
            {"attacher": DRIVER, "nodeName": "n1", "source": source}}))
        .await;
    ObjectKey::cluster("va1")
}

pub(super) fn of_pv1() -> Value {
    json!({"persistentVolumeName": "pv1"})
}

pub(super) fn published(driver: &Driver, handle: &str) -> bool {
    driver.volumes().get(handle).is_some_and(|volume| volume.published.contains_key("id-of-n1"))
}

pub(super) async fn until_attached(bench: &Bench, key: &ObjectKey) -> VolumeAttachment {
    bench.until::<VolumeAttachment>(key, |va| va.status.attached).await
}

pub(super) async fn until_error(bench: &Bench, key: &ObjectKey) -> String {
    let failed = |va: &VolumeAttachment| va.status.attach_error.is_some();
    let va = bench.until::<VolumeAttachment>(key, failed).await;
    va.status.attach_error.expect("just seen").message
}

#[tokio::test(start_paused = true)]
async fn attach_and_detach() {
    let (bench, driver) = (Bench::start().await, driver());
    let _process = start(&bench, &driver, Config::default());
    let handle = volume(&bench, &driver).await;
    let key = attachment(&bench, of_pv1()).await;
    // case: attacher/1
    let va = until_attached(&bench, &key).await;
    assert_eq!(va.metadata.finalizers, [FINALIZER]);
    assert_eq!(va.metadata.annotation(annotations::ATTACH_NODE_ID), Some("id-of-n1"));
    let pv = bench.get::<Volume>(&ObjectKey::cluster("pv1")).await.expect("a volume");
    assert!(pv.metadata.has_finalizer(FINALIZER));
    assert!(published(&driver, &handle));
    assert_eq!(driver.calls_of(Call::ControllerPublishVolume).len(), 1);
    // case: attacher/26
    bench.delete::<VolumeAttachment>(&key).await;
    bench.until_gone::<VolumeAttachment>(&key).await;
    assert!(!published(&driver, &handle));
    assert_eq!(driver.calls_of(Call::ControllerUnpublishVolume).len(), 1);
    assert!(driver.violations().is_empty(), "{:?}", driver.violations());
}

#[tokio::test(start_paused = true)]
async fn attachments_of_others_are_left_alone() {
    // case: attacher/4
    let (bench, driver) = (Bench::start().await, driver());
    let _process = start(&bench, &driver, Config::default());
    volume(&bench, &driver).await;
    bench
        .create::<VolumeAttachment>(json!({"metadata": {"name": "other"}, "spec":
            {"attacher": "other.example", "nodeName": "n1", "source": of_pv1()}}))
        .await;
    bench.pass(Duration::from_secs(60)).await;
    assert!(driver.calls_of(Call::ControllerPublishVolume).is_empty());
    let va = bench.get::<VolumeAttachment>(&ObjectKey::cluster("other")).await.expect("there");
    assert!(va.metadata.finalizers.is_empty() && !va.status.attached);
}

#[tokio::test(start_paused = true)]
async fn a_failed_attach_is_noted_retried_and_still_owed_a_detach() {
    let (bench, driver) = (Bench::start().await, driver());
    let _process = start(&bench, &driver, Config::default());
    let handle = volume(&bench, &driver).await;
    // The work is done, but the answer says otherwise.
    let fault = Fault::After(tonic::Code::ResourceExhausted, "full".into());
    driver.always(Call::ControllerPublishVolume, fault);
    let key = attachment(&bench, of_pv1()).await;
    // case: attacher/15
    let text = until_error(&bench, &key).await;
    assert_eq!(text, "rpc error: code = ResourceExhausted desc = full");
    let va = bench.get::<VolumeAttachment>(&key).await.expect("there");
    assert_eq!(va.status.attach_error.and_then(|error| error.error_code), Some(8));
    assert_eq!(va.metadata.finalizers, [FINALIZER]);
    bench.pass(Duration::from_secs(10)).await;
    let tries = driver.calls_of(Call::ControllerPublishVolume).len();
    assert!((4..=5).contains(&tries), "1 s, 2 s, 4 s: {tries} tries in 10 s");
    bench.delete::<VolumeAttachment>(&key).await;
    bench.until_gone::<VolumeAttachment>(&key).await;
    assert!(!published(&driver, &handle), "nothing is leaked");
}

#[tokio::test(start_paused = true)]
async fn an_error_is_cleared_by_success() {
    // case: attacher/18
    let (bench, driver) = (Bench::start().await, driver());
    let _process = start(&bench, &driver, Config::default());
    volume(&bench, &driver).await;
    driver.script(Call::ControllerPublishVolume, [Fault::Hang]);
    let key = attachment(&bench, of_pv1()).await;
    let failed = |va: &VolumeAttachment| va.status.attach_error.is_some();
    let va = bench.until::<VolumeAttachment>(&key, failed).await;
    assert_eq!(va.status.attach_error.and_then(|error| error.error_code), Some(4));
    let va = until_attached(&bench, &key).await;
    assert!(va.status.attach_error.is_none());
}

#[tokio::test(start_paused = true)]
async fn codes_can_be_switched_off() {
    // case: attacher/16
    let (bench, driver) = (Bench::start().await, driver());
    let config = Config { error_codes: false, ..Config::default() };
    let _process = start(&bench, &driver, config);
    volume(&bench, &driver).await;
    driver.always(Call::ControllerPublishVolume, Fault::before(tonic::Code::Internal));
    let key = attachment(&bench, of_pv1()).await;
    until_error(&bench, &key).await;
    let va = bench.get::<VolumeAttachment>(&key).await.expect("there");
    assert_eq!(va.status.attach_error.and_then(|error| error.error_code), None);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_attached_says_why() {
    let (bench, driver) = (Bench::start().await, driver());
    let _process = start(&bench, &driver, Config::default());
    // case: attacher/8
    let key = attachment(&bench, json!({"persistentVolumeName": "missing"})).await;
    assert_eq!(until_error(&bench, &key).await, "persistentvolume \"missing\" not found");
    bench.delete::<VolumeAttachment>(&key).await;
    bench.until_gone::<VolumeAttachment>(&key).await;

    // case: attacher/17
    let handle = volume(&bench, &driver).await;
    bench
        .create::<Volume>(json!({"metadata": {"name": "pv2"}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": DRIVER, "volumeHandle": handle, "controllerPublishSecretRef":
                {"name": "keys", "namespace": "default"}}}}))
        .await;
    bench.pass(Duration::from_millis(50)).await;
    let key = attachment(&bench, json!({"persistentVolumeName": "pv2"})).await;
    let text = until_error(&bench, &key).await;
    assert!(text.starts_with("failed to load secret \"default/keys\":"), "{text}");
    let va = bench.get::<VolumeAttachment>(&key).await.expect("there");
    assert_eq!(va.status.attach_error.and_then(|error| error.error_code), None);
    bench
        .create::<Secret>(json!({"metadata": {"name": "keys", "namespace": "default"},
            "data": {"user": "bWU="}}))
        .await;
    until_attached(&bench, &key).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_must_know_the_driver() {
    let (bench, driver) = (Bench::start().await, driver());
    let _process = start(&bench, &driver, Config::default());
    volume(&bench, &driver).await;
    bench.delete::<CsiNode>(&ObjectKey::cluster("n1")).await;
    bench.pass(Duration::from_millis(50)).await;
    // case: attacher/12
    let key = attachment(&bench, of_pv1()).await;
    assert_eq!(until_error(&bench, &key).await, "csinode.storage.k8s.io \"n1\" not found");
    // case: attacher/13
    bench.create::<CsiNode>(json!({"metadata": {"name": "n1"}, "spec": {"drivers": []}})).await;
    let text = format!("CSINode n1 does not contain driver {DRIVER}");
    let told = |va: &VolumeAttachment| {
        va.status.attach_error.as_ref().is_some_and(|error| error.message == text)
    };
    bench.until::<VolumeAttachment>(&key, told).await;
    assert!(driver.calls_of(Call::ControllerPublishVolume).is_empty());
    // The registration itself ends the wait.
    bench.pass(Duration::from_secs(600)).await;
    let registered = json!({"spec": {"drivers": [{"name": DRIVER, "nodeID": "id-of-n1"}]}});
    bench.merge::<CsiNode>(&ObjectKey::cluster("n1"), registered).await;
    let before = tokio::time::Instant::now();
    until_attached(&bench, &key).await;
    assert!(before.elapsed() < Duration::from_secs(1), "no pause is sat out");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_goes_away_is_not_attached() {
    // case: attacher/9
    let (bench, driver) = (Bench::start().await, driver());
    let _process = start(&bench, &driver, Config::default());
    volume(&bench, &driver).await;
    let pv = ObjectKey::cluster("pv1");
    bench.merge::<Volume>(&pv, json!({"metadata": {"finalizers": ["example/keep"]}})).await;
    bench.delete::<Volume>(&pv).await;
    bench.pass(Duration::from_millis(50)).await;
    let key = attachment(&bench, of_pv1()).await;
    let text = until_error(&bench, &key).await;
    assert_eq!(text, "PersistentVolume \"pv1\" is marked for deletion");
    let va = bench.get::<VolumeAttachment>(&key).await.expect("there");
    assert!(va.metadata.finalizers.is_empty());
    let pv = bench.get::<Volume>(&pv).await.expect("held");
    assert_eq!(pv.metadata.finalizers, ["example/keep"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_detach_keeps_its_finalizer() {
    let (bench, driver) = (Bench::start().await, driver());
    let _process = start(&bench, &driver, Config::default());
    let handle = volume(&bench, &driver).await;
    let key = attachment(&bench, of_pv1()).await;
    until_attached(&bench, &key).await;
    // case: attacher/29
    driver.script(Call::ControllerUnpublishVolume, [Fault::before(tonic::Code::Internal)]);
    bench.delete::<VolumeAttachment>(&key).await;
    let failed = |va: &VolumeAttachment| va.status.detach_error.is_some();
    let va = bench.until::<VolumeAttachment>(&key, failed).await;
    assert_eq!(va.metadata.finalizers, [FINALIZER]);
    bench.until_gone::<VolumeAttachment>(&key).await;
    assert!(!published(&driver, &handle));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_is_remembered() {
    // case: attacher/31
    let (bench, driver) = (Bench::start().await, driver());
    let _process = start(&bench, &driver, Config::default());
    let handle = volume(&bench, &driver).await;
    let key = attachment(&bench, of_pv1()).await;
    until_attached(&bench, &key).await;
    bench.delete::<CsiNode>(&ObjectKey::cluster("n1")).await;
    bench.pass(Duration::from_millis(50)).await;
    bench.delete::<VolumeAttachment>(&key).await;
    bench.until_gone::<VolumeAttachment>(&key).await;
    assert!(!published(&driver, &handle));
}

#[tokio::test(start_paused = true)]
async fn foreign_finalizers_stay() {
    // case: attacher/33
    let (bench, driver) = (Bench::start().await, driver());
    let _process = start(&bench, &driver, Config::default());
    volume(&bench, &driver).await;
    let key = attachment(&bench, of_pv1()).await;
    until_attached(&bench, &key).await;
    let both = json!({"metadata": {"finalizers": ["example/keep", FINALIZER]}});
    bench.merge::<VolumeAttachment>(&key, both).await;
    bench.pass(Duration::from_millis(50)).await;
    bench.delete::<VolumeAttachment>(&key).await;
    let va = bench
        .until::<VolumeAttachment>(&key, |va| va.metadata.deleting() && !va.status.attached)
        .await;
    assert_eq!(va.metadata.finalizers, ["example/keep"]);
    bench.pass(Duration::from_secs(10)).await;
    assert_eq!(driver.calls_of(Call::ControllerUnpublishVolume).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_given_up_when_nothing_needs_it() {
    // case: attacher/36
    let (bench, driver) = (Bench::start().await, driver());
    let _process = start(&bench, &driver, Config::default());
    volume(&bench, &driver).await;
    let key = attachment(&bench, of_pv1()).await;
    until_attached(&bench, &key).await;
    let pv = ObjectKey::cluster("pv1");
    let both = json!({"metadata": {"finalizers": ["example/keep", FINALIZER]}});
    bench.merge::<Volume>(&pv, both).await;
    bench.delete::<Volume>(&pv).await;
    bench.pass(Duration::from_secs(10)).await;
    let held = bench.get::<Volume>(&pv).await.expect("an attachment needs it");
    assert!(held.metadata.has_finalizer(FINALIZER));
    bench.delete::<VolumeAttachment>(&key).await;
    let free = |volume: &Volume| volume.metadata.finalizers == ["example/keep"];
    bench.until::<Volume>(&pv, free).await;
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_hangs_on_attach_still_detaches() {
    let (bench, driver) = (Bench::start().await, driver());
    let config = Config { worker_threads: std::num::NonZeroUsize::MIN, ..Config::default() };
    let _process = start(&bench, &driver, config);
    let handle = volume(&bench, &driver).await;
    let key = attachment(&bench, of_pv1()).await;
    until_attached(&bench, &key).await;
    driver.always(Call::ControllerPublishVolume, Fault::Hang);
    bench.claim("other", "").await;
    bench.bind("other", "pv2", "h2").await;
    bench
        .create::<VolumeAttachment>(
            json!({"metadata": {"name": "va2"}, "spec": {"attacher": DRIVER,
            "nodeName": "n1", "source": {"persistentVolumeName": "pv2"}}}),
        )
        .await;
    bench.pass(Duration::from_millis(100)).await;
    bench.delete::<VolumeAttachment>(&key).await;
    bench.pass(Duration::from_millis(100)).await;
    assert!(!published(&driver, &handle), "the detach did not wait for the attach");
}

#[tokio::test(start_paused = true)]
async fn drivers_without_attach_get_the_trivial_handler() {
    // case: attacher/45
    let (bench, driver) = (Bench::start().await, driver());
    driver.configure(|config| {
        config.plugin.services.remove(PluginService::ControllerService);
    });
    let _process = start(&bench, &driver, Config::default());
    let key = attachment(&bench, of_pv1()).await;
    let va = until_attached(&bench, &key).await;
    assert!(va.metadata.finalizers.is_empty());
    assert!(driver.calls_of(Call::ControllerGetCapabilities).is_empty());
    assert!(driver.calls_of(Call::ControllerPublishVolume).is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_the_driver_lost_is_published_again() {
    let (bench, driver) = (Bench::start().await, driver());
    let _process = start(&bench, &driver, Config::default());
    let handle = volume(&bench, &driver).await;
    let key = attachment(&bench, of_pv1()).await;
    until_attached(&bench, &key).await;
    // case: attacher/42
    bench.pass(Duration::from_secs(130)).await;
    assert_eq!(driver.calls_of(Call::ControllerPublishVolume).len(), 1);
    // case: attacher/41
    driver.edit(|world| {
        world.volumes.get_mut(&handle).expect("there").published.clear();
    });
    bench.pass(Duration::from_secs(70)).await;
    assert!(published(&driver, &handle));
    assert_eq!(driver.calls_of(Call::ControllerPublishVolume).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_cannot_list_is_not_asked() {
    let (bench, driver) = (Bench::start().await, driver());
    driver.configure(|config| {
        config.controller.remove(ControllerCapability::ListVolumesPublishedNodes);
    });
    let _process = start(&bench, &driver, Config::default());
    bench.pass(Duration::from_secs(130)).await;
    assert!(driver.calls_of(Call::ListVolumes).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_driver_replaced_behind_its_socket_is_listed_if_it_can_be() {
    let (bench, driver) = (Bench::start().await, driver());
    let can_list = |can: bool| {
        driver.configure(|config| match can {
            true => config.controller.insert(ControllerCapability::ListVolumes),
            false => config.controller.remove(ControllerCapability::ListVolumes),
        });
        driver.sever();
    };
    can_list(false);
    let _process = start(&bench, &driver, Config::default());
    bench.pass(Duration::from_secs(130)).await;
    assert!(driver.calls_of(Call::ListVolumes).is_empty());
    can_list(true);
    bench.pass(Duration::from_secs(130)).await;
    let listed = driver.calls_of(Call::ListVolumes).len();
    assert!(listed > 0, "the new driver lists its volumes");
    can_list(false);
    bench.pass(Duration::from_secs(130)).await;
    assert_eq!(driver.calls_of(Call::ListVolumes).len(), listed, "the old one is back");
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_any_two_steps_leaks_nothing() {
    // The process dies once at every moment of an attach; the next one detaches all the same.
    for steps in 0..40 {
        let (bench, driver) = (Bench::start().await, driver());
        let handle = volume(&bench, &driver).await;
        let key = attachment(&bench, of_pv1()).await;
        let first = start(&bench, &driver, Config::default());
        for _ in 0..steps {
            tokio::task::yield_now().await;
        }
        first.kill();
        bench.delete::<VolumeAttachment>(&key).await;
        let _second = start(&bench, &driver, Config::default());
        bench.until_gone::<VolumeAttachment>(&key).await;
        assert!(!published(&driver, &handle), "killed after {steps} steps");
    }
}
