//! The attacher over an API that fails at chosen writes, and a driver that fails at chosen calls.

use std::{sync::Arc, time::Duration};

use longshore_cluster::{Api, Outcome};
use longshore_core::model::{
    ObjectKey,
    kinds::{CsiNode, Volume, VolumeAttachment},
};
use longshore_csi::{
    Call,
    capabilities::{ControllerCapability, PluginService},
    fake::{self, Action, Driver, Fault, Phase},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Config, Lane, tests::*};
use crate::testing::{Bench, DRIVER, Process};

/// Which writes go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Write {
    /// A patch of a volume.
    Volume,
    /// A patch of an attachment itself.
    Attachment,
    /// A patch of an attachment's status.
    Status,
}

impl Write {
    fn of(request: &http::Request<kube::client::Body>) -> Option<Self> {
        let path = request.uri().path();
        match request.method() == http::Method::PATCH {
            true if path.contains("/persistentvolumes/") => Some(Self::Volume),
            true if path.ends_with("/status") => Some(Self::Status),
            true => Some(Self::Attachment),
            false => None,
        }
    }
}

/// What stands between the attacher and the API.
#[derive(Clone, Default)]
struct Wire(Arc<Mutex<Plan>>);

#[derive(Default)]
struct Plan {
    /// How many of these writes are still to fail.
    failing: Option<(Write, usize)>,
    /// What others write just before the first of these writes arrives.
    meddling: Option<(Write, Meddling)>,
    /// All requests that change or read one object.
    seen: Vec<String>,
}

/// Another client's merge patch.
#[derive(Clone)]
struct Meddling {
    path: &'static str,
    patch: Value,
}

impl Wire {
    fn fail(&self, write: Write, times: usize) {
        self.0.lock().failing = Some((write, times));
    }

    fn meddle(&self, write: Write, path: &'static str, patch: Value) {
        self.0.lock().meddling = Some((write, Meddling { path, patch }));
    }

    fn seen(&self, part: &str) -> usize {
        self.0.lock().seen.iter().filter(|line| line.contains(part)).count()
    }

    /// Notes a request, and says what is to happen to it.
    fn plan(&self, request: &http::Request<kube::client::Body>) -> (bool, Option<Meddling>) {
        let mut plan = self.0.lock();
        let write = Write::of(request);
        if request.uri().query().is_none_or(|query| !query.contains("watch=")) {
            plan.seen.push(format!("{} {}", request.method(), request.uri().path()));
        }
        let fails = match &mut plan.failing {
            Some((which, left)) if Some(*which) == write && *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        };
        let meddling = match plan.meddling.take() {
            Some((which, meddling)) if Some(which) == write => Some(meddling),
            other => {
                plan.meddling = other;
                None
            }
        };
        (fails, meddling)
    }

    /// A process that reaches the API through this wire.
    fn process(&self, bench: &Bench) -> Process {
        let (client, wire) = (bench.api.client().clone(), self.clone());
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let client = client.clone();
            let (fails, meddling) = wire.plan(&request);
            async move {
                if let Some(Meddling { path, patch }) = meddling {
                    let body = kube::client::Body::from(patch.to_string().into_bytes());
                    let other = http::Request::patch(path)
                        .header("content-type", "application/merge-patch+json")
                        .body(body)
                        .expect("a request");
                    assert!(client.send(other).await?.status().is_success(), "{path}");
                }
                if !fails {
                    return client.send(request).await;
                }
                let status = json!({"kind": "Status", "reason": "InternalError",
                    "message": "the disk is full", "code": 500});
                let body = kube::client::Body::from(status.to_string().into_bytes());
                let answer = http::Response::builder().status(500).body(body);
                Ok(answer.expect("an answer"))
            }
        });
        bench.process_with(Api::new(kube::Client::new(service, "default")))
    }

    fn start(&self, bench: &Bench, driver: &Driver) -> Process {
        run_in(self.process(bench), driver, Config::default())
    }
}

fn publishes(driver: &Driver) -> usize {
    driver.calls_of(Call::ControllerPublishVolume).len()
}

fn unpublishes(driver: &Driver) -> usize {
    driver.calls_of(Call::ControllerUnpublishVolume).len()
}

/// The moments of all calls of one kind.
fn moments(driver: &Driver, call: Call) -> Arc<Mutex<Vec<Instant>>> {
    let moments = Arc::new(Mutex::new(Vec::new()));
    let noted = moments.clone();
    driver.hook(move |moment| {
        if moment.call == call && moment.phase == Phase::Before {
            noted.lock().push(Instant::now());
        }
        Action::Continue
    });
    moments
}

fn pauses(moments: &[Instant]) -> Vec<u64> {
    moments.windows(2).map(|two| (two[1] - two[0]).as_secs()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_held_already_is_not_written() {
    // case: attacher/2
    let (bench, driver, wire) = (Bench::start().await, driver(), Wire::default());
    volume(&bench, &driver).await;
    let held = json!({"metadata": {"finalizers": [FINALIZER]}});
    bench.merge::<Volume>(&ObjectKey::cluster("pv1"), held).await;
    let _process = wire.start(&bench, &driver);
    let key = attachment(&bench, of_pv1()).await;
    until_attached(&bench, &key).await;
    assert_eq!(wire.seen("PATCH /api/v1/persistentvolumes/"), 0);
    assert_eq!(wire.seen("PATCH "), 2, "the attachment and its status");
}

#[tokio::test(start_paused = true)]
async fn inline_volumes_need_no_volume_object() {
    // case: attacher/5
    let (bench, driver, wire) = (Bench::start().await, driver(), Wire::default());
    bench.node("n1").await;
    let made = driver.client().create_volume(fake::create_request("v1", 1 << 30)).await;
    let handle = made.expect("made").volume.expect("a volume").volume_id;
    let _process = wire.start(&bench, &driver);
    let inline = json!({"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": DRIVER, "volumeHandle": handle}}});
    let key = attachment(&bench, inline).await;
    until_attached(&bench, &key).await;
    assert!(published(&driver, &handle));
    bench.delete::<VolumeAttachment>(&key).await;
    bench.until_gone::<VolumeAttachment>(&key).await;
    assert!(!published(&driver, &handle));
    assert_eq!(wire.seen("/persistentvolumes/"), 0);
}

/// Sources that the API refuses today. They may be stored, by a server that did not check.
#[tokio::test(start_paused = true)]
async fn sources_that_say_too_much_or_nothing_are_refused() {
    let inline = json!({"csi": {"driver": DRIVER, "volumeHandle": "h"}});
    let cases = [
        // case: attacher/6
        (
            json!({"persistentVolumeName": "pv1", "inlineVolumeSpec": inline}),
            "both InlineCSIVolumeSource and PersistentVolumeName specified in VA source",
        ),
        // case: attacher/7
        (
            json!({}),
            "neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source",
        ),
        (json!({"inlineVolumeSpec": {}}), "inline volume spec contains nil CSI source"),
    ];
    for (source, text) in cases {
        let (bench, driver) = (Bench::start().await, driver());
        let process = bench.process();
        let sidecar = by_hand(&process, &driver, Config::default(), []);
        process.caches.synced().await;
        volume(&bench, &driver).await;
        let key = attachment(&bench, of_pv1()).await;
        let mut seen = bench.api.get_raw::<VolumeAttachment>(&key).await.unwrap().expect("there");
        seen["spec"]["source"] = source;
        let version = seen["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok());
        let newer: u64 = version.unwrap_or(0_u64) + 1;
        seen["metadata"]["resourceVersion"] = json!(newer.to_string());
        sidecar.attachments.assume(&seen);
        let outcome = sidecar.reconcile(Lane::Attach, "va1").await;
        assert!(!matches!(outcome, Outcome::Done), "{text}: comes again after a pause");
        let va = bench.get::<VolumeAttachment>(&key).await.expect("there");
        let error = va.status.attach_error.expect("noted");
        assert_eq!((error.message.as_str(), error.error_code), (text, None));
        assert!(va.metadata.finalizers.is_empty(), "{text}");
        assert_eq!(publishes(&driver), 0, "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_held_whatever_it_turns_out_to_be() {
    let (bench, driver) = (Bench::start().await, driver());
    let _process = start(&bench, &driver, Config::default());
    for (name, source, text) in [
        (
            "plain",
            json!({"hostPath": {"path": "/tmp/x"}}),
            "pv spec contained non-csi source that was not migrated",
        ),
        (
            "odd",
            json!({"awsElasticBlockStore": {"volumeID": "aws://a/b/c/d"}}),
            "failed to translate in tree pv to CSI: ",
        ),
    ] {
        let mut spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]});
        let fields = source.as_object().expect("fields").clone();
        spec.as_object_mut().expect("a spec").extend(fields);
        bench.create::<Volume>(json!({"metadata": {"name": name}, "spec": spec})).await;
        let key = attachment(&bench, json!({"persistentVolumeName": name})).await;
        let told = until_error(&bench, &key).await;
        assert!(told.starts_with(text), "{name}: {told}");
        let volume = bench.get::<Volume>(&ObjectKey::cluster(name)).await.expect("there");
        let ours = |one: &String| one.starts_with("external-attacher/");
        assert!(volume.metadata.finalizers.iter().any(ours), "{name}");
        let va = bench.get::<VolumeAttachment>(&key).await.expect("there");
        assert!(va.metadata.finalizers.is_empty(), "nothing to detach");
        bench.delete::<VolumeAttachment>(&key).await;
        bench.until_gone::<VolumeAttachment>(&key).await;
    }
    assert_eq!(publishes(&driver), 0);
}

#[tokio::test(start_paused = true)]
async fn the_driver_is_not_called_before_volume_and_attachment_are_held() {
    let cases = [
        // case: attacher/10
        (Write::Volume, "could not add PersistentVolume finalizer: "),
        // case: attacher/11
        (Write::Attachment, "could not save VolumeAttachment: "),
    ];
    for (write, text) in cases {
        let (bench, driver, wire) = (Bench::start().await, driver(), Wire::default());
        volume(&bench, &driver).await;
        wire.fail(write, 2);
        let _process = wire.start(&bench, &driver);
        let key = attachment(&bench, of_pv1()).await;
        let message = until_error(&bench, &key).await;
        assert!(message.starts_with(text) && message.contains("the disk is full"), "{message}");
        let va = bench.get::<VolumeAttachment>(&key).await.expect("there");
        assert!(va.metadata.finalizers.is_empty(), "{write:?}");
        assert_eq!(publishes(&driver), 0, "{write:?}");
        let va = until_attached(&bench, &key).await;
        assert!(va.status.attach_error.is_none());
        assert_eq!(va.metadata.finalizers, [FINALIZER]);
        assert_eq!(publishes(&driver), 1, "{write:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_driver_says_is_passed_on() {
    // case: attacher/14
    let (bench, driver) = (Bench::start().await, driver());
    let _process = start(&bench, &driver, Config::default());
    let handle = volume(&bench, &driver).await;
    let key = attachment(&bench, of_pv1()).await;
    until_attached(&bench, &key).await;
    let va = bench.api.get_raw::<VolumeAttachment>(&key).await.unwrap().expect("there");
    let told = json!({"device": format!("fake-{handle}")});
    assert_eq!(va["status"]["attachmentMetadata"], told);
}

#[tokio::test(start_paused = true)]
async fn an_attach_that_could_not_be_noted_is_repeated() {
    // case: attacher/19
    let (bench, driver, wire) = (Bench::start().await, driver(), Wire::default());
    volume(&bench, &driver).await;
    wire.fail(Write::Status, 1);
    let _process = wire.start(&bench, &driver);
    let key = attachment(&bench, of_pv1()).await;
    let va = until_attached(&bench, &key).await;
    assert!(va.status.attach_error.is_none());
    assert_eq!(publishes(&driver), 2);
    assert_eq!(wire.seen("/status"), 2, "the failure itself is not noted");
}

#[tokio::test(start_paused = true)]
async fn an_error_that_could_not_be_noted_backs_off_all_the_same() {
    // case: attacher/20
    let (bench, driver, wire) = (Bench::start().await, driver(), Wire::default());
    volume(&bench, &driver).await;
    let calls = moments(&driver, Call::ControllerPublishVolume);
    driver.script(Call::ControllerPublishVolume, vec![Fault::before(tonic::Code::Internal); 3]);
    wire.fail(Write::Status, 3);
    let _process = wire.start(&bench, &driver);
    let key = attachment(&bench, of_pv1()).await;
    until_attached(&bench, &key).await;
    assert_eq!(pauses(&calls.lock()), [1, 2, 4]);
}

#[tokio::test(start_paused = true)]
async fn an_attachment_that_vanishes_during_its_detach_is_detached() {
    // case: attacher/27
    let (bench, driver, wire) = (Bench::start().await, driver(), Wire::default());
    let handle = volume(&bench, &driver).await;
    let _process = wire.start(&bench, &driver);
    let key = attachment(&bench, of_pv1()).await;
    until_attached(&bench, &key).await;
    let both = json!({"metadata": {"finalizers": ["example/keep", FINALIZER]}});
    bench.merge::<VolumeAttachment>(&key, both).await;
    bench.pass(Duration::from_millis(50)).await;
    // Somebody else lets go between our two writes.
    let path = "/apis/storage.k8s.io/v1/volumeattachments/va1";
    wire.meddle(Write::Status, path, json!({"metadata": {"finalizers": null}}));
    let before = wire.seen("/status");
    bench.delete::<VolumeAttachment>(&key).await;
    bench.until_gone::<VolumeAttachment>(&key).await;
    bench.pass(Duration::from_secs(60)).await;
    assert!(!published(&driver, &handle));
    assert_eq!(unpublishes(&driver), 1, "nothing is tried again");
    assert_eq!(wire.seen("/status"), before + 1, "and no error is noted");
}

#[tokio::test(start_paused = true)]
async fn a_detach_that_could_not_be_noted_is_repeated() {
    // case: attacher/28
    let (bench, driver, wire) = (Bench::start().await, driver(), Wire::default());
    volume(&bench, &driver).await;
    let _process = wire.start(&bench, &driver);
    let key = attachment(&bench, of_pv1()).await;
    until_attached(&bench, &key).await;
    wire.fail(Write::Attachment, 1);
    bench.delete::<VolumeAttachment>(&key).await;
    let failed = |va: &VolumeAttachment| va.status.detach_error.is_some();
    let va = bench.until::<VolumeAttachment>(&key, failed).await;
    let message = va.status.detach_error.expect("just seen").message;
    assert!(message.starts_with("could not mark as detached: "), "{message}");
    assert_eq!(va.metadata.finalizers, [FINALIZER]);
    bench.until_gone::<VolumeAttachment>(&key).await;
    assert_eq!(unpublishes(&driver), 2);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_nobody_remembers_keeps_the_attachment() {
    // case: attacher/32
    let (bench, driver) = (Bench::start().await, driver());
    volume(&bench, &driver).await;
    bench.delete::<CsiNode>(&ObjectKey::cluster("n1")).await;
    bench
        .create::<VolumeAttachment>(json!({
            "metadata": {"name": "va1", "finalizers": [FINALIZER]},
            "spec": {"attacher": DRIVER, "nodeName": "n1", "source": of_pv1()}}))
        .await;
    let key = ObjectKey::cluster("va1");
    bench.delete::<VolumeAttachment>(&key).await;
    let _process = start(&bench, &driver, Config::default());
    let failed = |va: &VolumeAttachment| va.status.detach_error.is_some();
    let va = bench.until::<VolumeAttachment>(&key, failed).await;
    let message = va.status.detach_error.expect("just seen").message;
    assert_eq!(message, "csinode.storage.k8s.io \"n1\" not found");
    assert_eq!(unpublishes(&driver), 0);
    bench
        .create::<CsiNode>(json!({"metadata": {"name": "n1"},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": "id-of-n1"}]}}))
        .await;
    bench.until_gone::<VolumeAttachment>(&key).await;
    assert_eq!(unpublishes(&driver), 1);
}

#[tokio::test(start_paused = true)]
async fn finalizers_that_move_are_not_mixed_up() {
    // case: attacher/38
    let (bench, driver, wire) = (Bench::start().await, driver(), Wire::default());
    volume(&bench, &driver).await;
    let pv = ObjectKey::cluster("pv1");
    let two = json!({"metadata": {"finalizers": [FINALIZER, "example/keep"]}});
    bench.merge::<Volume>(&pv, two).await;
    let turned = json!({"metadata": {"finalizers": ["example/keep", FINALIZER]}});
    wire.meddle(Write::Volume, "/api/v1/persistentvolumes/pv1", turned);
    let _process = wire.start(&bench, &driver);
    bench.delete::<Volume>(&pv).await;
    let ours_gone = |volume: &Volume| !volume.metadata.has_finalizer(FINALIZER);
    let volume = bench.until::<Volume>(&pv, ours_gone).await;
    assert_eq!(volume.metadata.finalizers, ["example/keep"]);
    assert_eq!(wire.seen("PATCH /api/v1/persistentvolumes/pv1"), 2, "the first one failed");
}

/// A second volume of the driver, so that its list has two pages of one.
async fn second_volume(driver: &Driver) {
    let made = driver.client().create_volume(fake::create_request("v2", 1 << 30)).await;
    made.expect("made");
}

#[tokio::test(start_paused = true)]
async fn half_a_list_decides_nothing() {
    let (bench, driver) = (Bench::start().await, driver());
    let handle = volume(&bench, &driver).await;
    second_volume(&driver).await;
    let config = Config { max_entries: 1, ..Config::default() };
    let _process = start(&bench, &driver, config);
    let key = attachment(&bench, of_pv1()).await;
    until_attached(&bench, &key).await;
    bench.pass(Duration::from_secs(5)).await;
    driver.clear_calls();
    driver.edit(|world| world.volumes.get_mut(&handle).expect("there").published.clear());
    // case: attacher/43
    driver.script(Call::ListVolumes, [Fault::None, Fault::before(tonic::Code::Aborted)]);
    bench.pass(Duration::from_secs(60)).await;
    assert_eq!(driver.calls_of(Call::ListVolumes).len(), 2);
    assert_eq!(publishes(&driver), 0);
    // case: attacher/44
    bench.pass(Duration::from_secs(60)).await;
    assert_eq!(driver.calls_of(Call::ListVolumes).len(), 4, "two pages of one");
    assert_eq!(publishes(&driver), 1);
    assert!(published(&driver, &handle));
}

#[tokio::test(start_paused = true)]
async fn the_trivial_handler_tries_again() {
    // case: attacher/46
    let (bench, driver, wire) = (Bench::start().await, driver(), Wire::default());
    driver.configure(|config| {
        config.plugin.services.remove(PluginService::ControllerService);
    });
    wire.fail(Write::Status, 2);
    let _process = wire.start(&bench, &driver);
    let began = Instant::now();
    let key = attachment(&bench, of_pv1()).await;
    until_attached(&bench, &key).await;
    assert_eq!(wire.seen("/status"), 3);
    assert_eq!(began.elapsed().as_secs(), 3, "1 s and 2 s");
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_to_five_minutes_and_start_anew_after_success() {
    // case: attacher/50
    let (bench, driver) = (Bench::start().await, driver());
    volume(&bench, &driver).await;
    let calls = moments(&driver, Call::ControllerPublishVolume);
    let failing = |times| vec![Fault::before(tonic::Code::Internal); times];
    driver.script(Call::ControllerPublishVolume, failing(12));
    let config = Config { resync: Duration::ZERO, ..Config::default() };
    let _process = start(&bench, &driver, config);
    let key = attachment(&bench, of_pv1()).await;
    bench.pass(Duration::from_secs(1500)).await;
    until_attached(&bench, &key).await;
    let grown = [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300];
    assert_eq!(pauses(&calls.lock()), grown);
    // The same name again, after a success.
    bench.delete::<VolumeAttachment>(&key).await;
    bench.until_gone::<VolumeAttachment>(&key).await;
    calls.lock().clear();
    driver.script(Call::ControllerPublishVolume, failing(2));
    let key = attachment(&bench, of_pv1()).await;
    until_attached(&bench, &key).await;
    assert_eq!(pauses(&calls.lock()), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn what_did_not_change_is_looked_at_again_from_time_to_time() {
    let (bench, driver) = (Bench::start().await, driver());
    driver.configure(|config| {
        config.controller.remove(ControllerCapability::ListVolumesPublishedNodes);
    });
    volume(&bench, &driver).await;
    driver.always(Call::ControllerPublishVolume, Fault::before(tonic::Code::Internal));
    let calls = moments(&driver, Call::ControllerPublishVolume);
    let hour = Duration::from_secs(3600);
    let config = Config {
        resync: Duration::from_secs(100),
        retry_interval_start: hour,
        retry_interval_max: hour,
        ..Config::default()
    };
    let _process = start(&bench, &driver, config);
    attachment(&bench, of_pv1()).await;
    bench.pass(Duration::from_secs(350)).await;
    assert_eq!(calls.lock().len(), 4, "the first time and three more");
}
