//! The health calls of CSI 1.13 over a real API server and a driver in memory.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use kube::client::Body;
use longshore_cluster::{Api, ListParams};
use longshore_core::model::{
    ObjectKey,
    kinds::{Claim, Event, Volume, VolumeHealthStatus},
};
use longshore_csi::{
    Call, HealthSource,
    capabilities::ControllerCapability,
    fake::{self, Driver, Fault, Version},
    v1,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tonic::Code;

use super::{ABNORMAL, Abilities, Config, HealthMonitor, NORMAL};
use crate::testing::{Bench, DRIVER, Process, key};

/// The calls that a driver has.
const LIST: &[ControllerCapability] = &[ControllerCapability::ListVolumeHealth];
const GET: &[ControllerCapability] = &[ControllerCapability::GetVolumeHealth];
const BOTH: &[ControllerCapability] =
    &[ControllerCapability::ListVolumeHealth, ControllerCapability::GetVolumeHealth];

const DEGRADED: i32 = 1;
const INACCESSIBLE: i32 = 2;
const DATA_LOSS: i32 = 3;

/// What lies between the monitor and the API server, for writes of the status of claims.
#[derive(Default)]
struct Between {
    patches: AtomicUsize,
    /// The next ones are refused so.
    refuse: Mutex<VecDeque<u16>>,
    delay: Mutex<Duration>,
    /// The field is dropped where the path has this in it.
    drop_at: Mutex<Option<&'static str>>,
}

fn is_write(request: &http::Request<Body>) -> bool {
    request.method() == http::Method::PATCH
        && request.uri().path().contains("/persistentvolumeclaims/")
}

fn refusal(code: u16) -> http::Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": "scripted", "code": code});
    let body = Body::from(status.to_string().into_bytes());
    http::Response::builder().status(code).body(body).expect("a response")
}

async fn without_health(request: http::Request<Body>) -> http::Request<Body> {
    let (parts, body) = request.into_parts();
    let bytes = body.collect_bytes().await.expect("a body");
    let mut change: Value = serde_json::from_slice(&bytes).expect("JSON");
    change["status"].as_object_mut().expect("a status").remove("healthStatus");
    http::Request::from_parts(parts, Body::from(change.to_string().into_bytes()))
}

fn api_through(api: &Api, between: &Arc<Between>) -> Api {
    let (client, between) = (api.client().clone(), between.clone());
    let service = tower::service_fn(move |mut request: http::Request<Body>| {
        let (client, between) = (client.clone(), between.clone());
        async move {
            if is_write(&request) {
                between.patches.fetch_add(1, Relaxed);
                let refused = between.refuse.lock().pop_front();
                if let Some(code) = refused {
                    return Ok::<_, kube::Error>(refusal(code));
                }
                let delay = *between.delay.lock();
                tokio::time::sleep(delay).await;
                let drop_at = *between.drop_at.lock();
                if drop_at.is_some_and(|part| request.uri().path().contains(part)) {
                    request = without_health(request).await;
                }
            }
            client.send(request).await
        }
    });
    Api::new(kube::Client::new(service, "default"))
}

struct World {
    bench: Bench,
    driver: Driver,
    between: Arc<Between>,
    process: Option<Process>,
    config: Config,
}

impl World {
    /// A server that keeps the health of volumes, and a driver with these calls for it.
    async fn new(calls: &[ControllerCapability]) -> Self {
        Self::on(Bench::with_volume_health().await, calls)
    }

    fn on(bench: Bench, calls: &[ControllerCapability]) -> Self {
        let driver = Driver::new(DRIVER);
        driver.configure(|config| {
            config.version = Version::V1_13;
            for call in calls {
                config.controller.insert(*call);
            }
        });
        let config = Config {
            list_volumes_interval: Duration::from_secs(10),
            monitor_interval: Duration::from_secs(10),
            ..Config::default()
        };
        Self { bench, driver, between: Arc::default(), process: None, config }
    }

    async fn run(&mut self) {
        let abilities = Abilities::ask(&self.driver.client()).await.expect("able");
        let mut process = self.bench.process_with(api_through(&self.bench.api, &self.between));
        let monitor =
            HealthMonitor::new(&process.context, self.driver.client(), self.config.clone());
        let shutdown = process.shutdown.clone();
        process.spawn(async move { monitor.run(abilities, shutdown).await });
        self.process = Some(process);
        // The first cycle begins at once.
        self.bench.pass(Duration::from_secs(1)).await;
    }

    /// As long as it takes from one cycle to the next.
    async fn cycles(&self, count: u32) {
        self.bench.pass(Duration::from_secs(10) * count).await;
    }

    /// A claim that is bound to a volume of the driver; the volume's handle.
    async fn claim(&self, name: &str) -> String {
        self.bench.claim(name, "any").await;
        let request = fake::create_request(&format!("v-{name}"), 1 << 30);
        let made = self.driver.client().create_volume(request).await.expect("made");
        let handle = made.volume.expect("a volume").volume_id;
        self.bench.bind(name, &format!("pv-{name}"), &handle).await;
        handle
    }

    /// What the driver says of a volume from now on.
    fn health(&self, handle: &str, entries: &[(i32, &str)]) {
        let entries = entries.iter().map(|(status, reason)| entry(*status, reason, "text"));
        let entries: Vec<_> = entries.collect();
        self.driver.edit(|state| {
            state.volumes.get_mut(handle).expect("the volume").health = entries;
        });
    }

    async fn health_of(&self, claim: &str) -> VolumeHealthStatus {
        let claim = self.bench.get::<Claim>(&key(claim)).await.expect("the claim");
        claim.status.health_status
    }

    /// What stands in the status of a claim, as `Status/Reason`.
    async fn standing(&self, claim: &str) -> Vec<String> {
        let health = self.health_of(claim).await.health_conditions;
        health.iter().map(|one| format!("{}/{}", one.status, one.reason)).collect()
    }

    /// Messages of the events with this reason, and how often each was written.
    async fn events(&self, reason: &str) -> Vec<(String, i32)> {
        self.bench.pass(Duration::from_millis(50)).await;
        let events = self.bench.api.list::<Event>(None, &ListParams::default()).await;
        let events = events.expect("listed").into_iter().filter(|event| event.reason == reason);
        let mut events: Vec<_> =
            events.map(|event| (event.message, event.count.unwrap_or(1))).collect();
        events.sort();
        events
    }

    fn patches(&self) -> usize {
        self.between.patches.load(Relaxed)
    }

    fn calls(&self, call: Call) -> usize {
        self.driver.calls_of(call).len()
    }

    /// The lines of this metric.
    fn metric(&self, name: &str) -> Vec<String> {
        let text = self.process.as_ref().expect("a process").context.metrics.render();
        text.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect()
    }
}

fn entry(status: i32, reason: &str, message: &str) -> v1::volume_health::VolumeHealthEntry {
    let (reason, message) = (reason.to_owned(), message.to_owned());
    v1::volume_health::VolumeHealthEntry { status, reason, message }
}

fn once(texts: &[&str]) -> Vec<(String, i32)> {
    texts.iter().map(|text| ((*text).to_owned(), 1)).collect()
}

const RECOVERED: &str = "The Volume returns to the healthy state";

#[tokio::test(start_paused = true)]
async fn capabilities_choose_the_calls() {
    use HealthSource::{ConditionList, HealthGet, HealthList};
    // case: health/H1, health/H2, health/H3, health/H4
    for (numbers, want) in [
        (&[11, 3][..], ConditionList),
        (&[16], HealthGet),
        (&[16, 17], HealthList { confirm: true }),
        (&[17], HealthList { confirm: false }),
        (&[11, 3, 16, 17], HealthList { confirm: true }),
    ] {
        let driver = Driver::new(DRIVER);
        driver.configure(|config| config.controller = numbers.iter().copied().collect());
        let able = Abilities::ask(&driver.client()).await.expect("able");
        assert_eq!(able.source, want, "{numbers:?}");
    }
    let driver = Driver::new(DRIVER);
    driver.configure(|config| config.controller = [3, 12].into_iter().collect());
    let error = Abilities::ask(&driver.client()).await.expect_err("unable").to_string();
    assert!(error.contains("LIST_VOLUME_HEALTH; it reports nothing"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_driver_of_both_ages_is_asked_in_the_new_way_alone() {
    let mut world = World::new(BOTH).await;
    world
        .driver
        .configure(|config| config.controller.insert(ControllerCapability::VolumeCondition));
    let handle = world.claim("data").await;
    world.health(&handle, &[(DEGRADED, "Slow")]);
    world.driver.edit(|state| {
        let condition = v1::VolumeCondition { abnormal: true, message: "old words".to_owned() };
        state.volumes.get_mut(&handle).expect("the volume").condition = Some(condition);
    });
    world.run().await;
    world.cycles(3).await;
    // case: health/H5
    assert_eq!(world.calls(Call::ListVolumes) + world.calls(Call::ControllerGetVolume), 0);
    assert_eq!(world.events(ABNORMAL).await, once(&["Degraded/Slow: text"]));
}

#[tokio::test(start_paused = true)]
async fn what_the_driver_reports_becomes_the_status_of_the_claim_and_goes() {
    let mut world = World::new(GET).await;
    let handle = world.claim("data").await;
    world.health(&handle, &[(DEGRADED, "HighLatency")]);
    world.run().await;
    // case: health/H8
    let first = world.health_of("data").await;
    assert_eq!(world.standing("data").await, ["Degraded/HighLatency"]);
    assert_eq!(first.health_conditions[0].message, "text");
    let time = first.last_transition_time.expect("a time");
    assert_eq!(time.subsec_nanosecond(), 0);
    // case: health/H9
    world.cycles(3).await;
    assert_eq!((world.patches(), world.calls(Call::ControllerGetVolumeHealth)), (1, 4));
    // case: health/H10
    world.driver.edit(|state| {
        let volume = state.volumes.get_mut(&handle).expect("the volume");
        volume.health = vec![entry(DEGRADED, "HighLatency", "41 ms")];
    });
    world.cycles(2).await;
    assert_eq!(world.patches(), 1);
    // case: health/H11
    world.health(&handle, &[(DEGRADED, "HighLatency"), (DEGRADED, "Worn")]);
    world.cycles(1).await;
    assert_eq!(world.standing("data").await, ["Degraded/HighLatency", "Degraded/Worn"]);
    assert!(world.health_of("data").await.last_transition_time > Some(time));
    // case: health/H12
    world.health(&handle, &[(DEGRADED, "Worn")]);
    world.cycles(1).await;
    assert_eq!(world.standing("data").await, ["Degraded/Worn"]);
    assert_eq!(world.patches(), 3);
    let gauges = world.metric("csi_controller_volume_health_status{");
    let want = format!(
        "csi_controller_volume_health_status{{driver_name=\"{DRIVER}\",namespace=\"default\",persistentvolumeclaim=\"data\",status=\"Degraded\",reason=\"Worn\"}} 1"
    );
    assert_eq!(gauges, [want]);
    // case: health/H13
    assert!(world.events(NORMAL).await.is_empty());
    world.health(&handle, &[]);
    world.cycles(5).await;
    assert_eq!(world.health_of("data").await, VolumeHealthStatus::default());
    assert_eq!(world.events(NORMAL).await, once(&[RECOVERED]));
    assert_eq!(world.patches(), 4);
    let began = once(&["Degraded/HighLatency: text", "Degraded/Worn: text"]);
    assert_eq!(world.events(ABNORMAL).await, began);
    assert!(world.metric("csi_controller_volume_health_status{").is_empty());
}

#[tokio::test(start_paused = true)]
async fn healthy_volumes_cost_no_write() {
    for calls in [GET, BOTH] {
        let mut world = World::new(calls).await;
        world.config.list_volumes_interval = Duration::from_secs(1);
        world.config.monitor_interval = Duration::from_secs(1);
        for n in 0..3 {
            world.claim(&format!("c-{n}")).await;
        }
        world.run().await;
        // case: health/H14
        world.bench.pass(Duration::from_secs(1_000)).await;
        assert_eq!(world.patches(), 0);
        assert!(world.events(ABNORMAL).await.is_empty() && world.events(NORMAL).await.is_empty());
        assert!(world.health_of("c-2").await.last_transition_time.is_none());
        if calls == BOTH {
            assert_eq!(world.calls(Call::ControllerGetVolumeHealth), 0, "the list has all");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_cost_of_a_list_is_that_of_what_is_wrong() {
    let mut world = World::new(BOTH).await;
    let mut handles = Vec::new();
    for n in 0..200 {
        handles.push(world.claim(&format!("c-{n}")).await);
    }
    handles[..20].iter().for_each(|handle| world.health(handle, &[(INACCESSIBLE, "Gone")]));
    world.driver.configure(|config| config.page_entries = 7);
    world.driver.clear_calls();
    world.run().await;
    assert_eq!((world.patches(), world.calls(Call::ControllerListVolumeHealth)), (20, 3));
    world.cycles(3).await;
    assert_eq!((world.patches(), world.calls(Call::ControllerListVolumeHealth)), (20, 12));
    assert_eq!(world.calls(Call::ControllerGetVolumeHealth), 0);
}

#[tokio::test(start_paused = true)]
async fn a_status_without_a_word_is_shown_and_clears_nothing() {
    let mut world = World::new(GET).await;
    let handle = world.claim("data").await;
    world.health(&handle, &[(DEGRADED, "Slow")]);
    world.run().await;
    // case: health/H16
    world.health(&handle, &[(9, "Novel")]);
    world.cycles(2).await;
    assert_eq!(world.standing("data").await, ["Degraded/Slow"]);
    let gauges = world.metric("csi_controller_volume_health_status{");
    assert!(gauges.iter().any(|line| line.contains("status=\"Unknown\",reason=\"Novel\"")));
    assert_eq!(world.events(ABNORMAL).await, once(&["Degraded/Slow: text", "Unknown/Novel: text"]));
    assert!(world.events(NORMAL).await.is_empty());
    world.health(&handle, &[]);
    world.cycles(1).await;
    assert!(world.standing("data").await.is_empty());
    assert_eq!(world.events(NORMAL).await, once(&[RECOVERED]));
}

#[tokio::test(start_paused = true)]
async fn whatever_a_driver_says_is_made_acceptable_for_the_api() {
    let mut world = World::new(GET).await;
    let handle = world.claim("data").await;
    let mut all: Vec<_> =
        (0..18).map(|n| entry(DEGRADED, &format!("R{n:02}"), &"ü".repeat(2_500))).collect();
    all.push(entry(DATA_LOSS, &"R".repeat(300), "long reason"));
    all.push(entry(INACCESSIBLE, "disk is bad", ""));
    world.driver.edit(|state| {
        state.volumes.get_mut(&handle).expect("the volume").health = all;
    });
    world.run().await;
    // case: health/H17, health/H18, health/H19
    let kept = world.health_of("data").await.health_conditions;
    assert_eq!((kept.len(), world.patches()), (16, 1));
    assert_eq!(kept[0].reason.len(), 256);
    assert_eq!((&*kept[1].reason, &*kept[1].message), ("Unspecified", "disk is bad"));
    world.cycles(2).await;
    assert_eq!(world.patches(), 1, "what the API made of it is what was sent");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_made_anew_is_left_alone() {
    let mut world = World::new(GET).await;
    let handle = world.claim("data").await;
    world.health(&handle, &[(DATA_LOSS, "Gone")]);
    *world.between.delay.lock() = Duration::from_secs(60);
    world.run().await;
    assert_eq!(world.patches(), 1, "on its way");
    // case: health/H21
    world.bench.delete::<Claim>(&key("data")).await;
    world.bench.merge::<Claim>(&key("data"), json!({"metadata": {"finalizers": null}})).await;
    world.bench.until_gone::<Claim>(&key("data")).await;
    world.bench.claim("data", "any").await;
    *world.between.delay.lock() = Duration::ZERO;
    world.cycles(20).await;
    assert_eq!(world.health_of("data").await, VolumeHealthStatus::default());
    assert_eq!(world.patches(), 1, "its volume is another one");
    assert!(world.metric("csi_controller_volume_health_status{").is_empty());
}

#[tokio::test(start_paused = true)]
async fn every_claim_of_a_handle_and_no_other_claim_is_written() {
    let mut world = World::new(LIST).await;
    let handle = world.claim("one").await;
    // case: health/H22
    world.bench.claim("two", "any").await;
    world.bench.bind("two", "pv-two", &handle).await;
    world.health(&handle, &[(DEGRADED, "Slow")]);
    // case: health/H23
    for name in ["released", "other-uid"] {
        let handle = world.claim(name).await;
        world.health(&handle, &[(DEGRADED, "Slow")]);
    }
    let released = json!({"status": {"phase": "Released"}});
    world.bench.merge_status::<Volume>(&ObjectKey::cluster("pv-released"), released).await;
    world.bench.delete::<Claim>(&key("other-uid")).await;
    world.bench.merge::<Claim>(&key("other-uid"), json!({"metadata": {"finalizers": null}})).await;
    world.bench.until_gone::<Claim>(&key("other-uid")).await;
    world.bench.claim("other-uid", "any").await;
    world.run().await;
    world.cycles(3).await;
    for (claim, unhealthy) in
        [("one", true), ("two", true), ("released", false), ("other-uid", false)]
    {
        assert_eq!(!world.standing(claim).await.is_empty(), unhealthy, "{claim}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_monitor_of_one_node_watches_its_volumes_alone() {
    for calls in [GET, LIST] {
        let mut world = World::new(calls).await;
        world.bench.node("n1").await;
        world.bench.node("n2").await;
        let mut handles = Vec::new();
        for (name, place) in [("here", Some("n1")), ("there", Some("n2")), ("anywhere", None)] {
            let handle = world.claim(name).await;
            world.health(&handle, &[(DEGRADED, "Slow")]);
            if let Some(node) = place {
                let affinity = json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "host", "operator": "In", "values": [node]}]}]}}}});
                let volume = ObjectKey::cluster(format!("pv-{name}"));
                world.bench.merge::<Volume>(&volume, affinity).await;
            }
            handles.push(handle);
        }
        let told = json!({"status": {"healthStatus": {"healthConditions": [
            {"status": "DataLoss", "reason": "Gone"}]}}});
        world.bench.merge_status::<Claim>(&key("there"), told).await;
        world.config.node = Some("n1".into());
        world.run().await;
        world.cycles(3).await;
        // case: health/H23
        assert_eq!(world.standing("here").await, ["Degraded/Slow"]);
        assert_eq!(world.standing("there").await, ["DataLoss/Gone"]);
        assert!(world.standing("anywhere").await.is_empty());
        let asked = world.driver.calls_of(Call::ControllerGetVolumeHealth);
        assert!(asked.iter().all(|call| call.request.contains(&handles[0])), "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_is_no_recovery() {
    for code in [Code::Unavailable, Code::DeadlineExceeded, Code::NotFound] {
        let mut world = World::new(GET).await;
        let handle = world.claim("data").await;
        world.health(&handle, &[(DEGRADED, "Slow")]);
        world.run().await;
        world.health(&handle, &[]);
        world.driver.always(Call::ControllerGetVolumeHealth, Fault::before(code));
        // case: health/H24
        world.cycles(5).await;
        assert_eq!(world.standing("data").await, ["Degraded/Slow"], "{code:?}");
        let lines = world.metric("csi_volume_health_probe_total{");
        assert!(
            lines.iter().any(|line| line.ends_with("result=\"error\"} 5")
                && line.contains("/csi.v1.Controller/ControllerGetVolumeHealth")),
            "{lines:?}"
        );
        world.driver.clear_faults();
        world.cycles(1).await;
        assert!(world.standing("data").await.is_empty(), "{code:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_ends_early_adds_and_takes_nothing() {
    let mut world = World::new(LIST).await;
    let mut handles = Vec::new();
    for name in ["a", "b", "c"] {
        handles.push(world.claim(name).await);
    }
    world.health(&handles[2], &[(DEGRADED, "Slow")]);
    world.run().await;
    assert_eq!(world.standing("c").await, ["Degraded/Slow"]);
    world.driver.configure(|config| config.page_entries = 1);
    world.health(&handles[0], &[(DEGRADED, "Worn")]);
    world.health(&handles[1], &[(INACCESSIBLE, "Gone")]);
    world.health(&handles[2], &[]);
    // case: health/H25
    for _ in 0..3 {
        let faults = [Fault::None, Fault::before(Code::Unavailable)];
        world.driver.script(Call::ControllerListVolumeHealth, faults);
        world.cycles(1).await;
        assert_eq!(world.standing("a").await, ["Degraded/Worn"]);
        assert!(world.standing("b").await.is_empty(), "it was on the page that failed");
        assert_eq!(world.standing("c").await, ["Degraded/Slow"], "no absence is counted");
    }
    world.cycles(1).await;
    assert_eq!(world.standing("b").await, ["Inaccessible/Gone"]);
    assert_eq!(world.standing("c").await, ["Degraded/Slow"], "left out for the first time");
    world.cycles(1).await;
    assert!(world.standing("c").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stale_token_begins_the_list_again_once() {
    let mut world = World::new(LIST).await;
    let handle = world.claim("data").await;
    world.health(&handle, &[(DEGRADED, "Slow")]);
    let aborted = || Fault::before(Code::Aborted);
    // case: health/H26
    world.driver.script(Call::ControllerListVolumeHealth, [aborted()]);
    world.run().await;
    assert_eq!(world.standing("data").await, ["Degraded/Slow"]);
    assert_eq!(world.calls(Call::ControllerListVolumeHealth), 2);
    world.health(&handle, &[]);
    for _ in 0..3 {
        world.driver.script(Call::ControllerListVolumeHealth, [aborted(), aborted()]);
        world.cycles(1).await;
    }
    assert_eq!(world.standing("data").await, ["Degraded/Slow"], "these cycles do not count");
    assert_eq!(world.calls(Call::ControllerListVolumeHealth), 8);
}

#[tokio::test(start_paused = true)]
async fn volumes_are_asked_about_one_by_one_when_the_list_fails() {
    let mut world = World::new(BOTH).await;
    let (bad, good) = (world.claim("bad").await, world.claim("good").await);
    world.health(&good, &[(DEGRADED, "Slow")]);
    world.run().await;
    world.health(&bad, &[(DATA_LOSS, "Gone")]);
    world.health(&good, &[]);
    // case: health/H27
    world.driver.script(Call::ControllerListVolumeHealth, [Fault::before(Code::Internal)]);
    world.cycles(1).await;
    assert_eq!(world.standing("bad").await, ["DataLoss/Gone"]);
    assert!(world.standing("good").await.is_empty(), "it was asked about");
    assert_eq!(world.calls(Call::ControllerGetVolumeHealth), 2);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_fails_is_made_up_for() {
    let mut world = World::new(GET).await;
    let handle = world.claim("data").await;
    world.health(&handle, &[(DEGRADED, "Slow")]);
    world.between.refuse.lock().extend([409, 500, 503]);
    world.run().await;
    assert!(world.standing("data").await.is_empty());
    // case: health/H28
    world.cycles(2).await;
    assert!(world.standing("data").await.is_empty());
    // What stands is written even if the driver does not answer any more.
    world.driver.always(Call::ControllerGetVolumeHealth, Fault::before(Code::Unavailable));
    world.cycles(1).await;
    assert_eq!(world.standing("data").await, ["Degraded/Slow"]);
    world.cycles(2).await;
    assert_eq!(world.patches(), 4);
    world.driver.clear_faults();
    world.health(&handle, &[]);
    world.between.refuse.lock().push_back(500);
    world.cycles(2).await;
    assert!(world.standing("data").await.is_empty());
    assert_eq!(world.patches(), 6);
    assert_eq!(world.events(ABNORMAL).await, once(&["Degraded/Slow: text"]));
    assert_eq!(world.events(NORMAL).await, once(&[RECOVERED]));
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_said_once() {
    let mut world = World::new(GET).await;
    let handle = world.claim("data").await;
    world.health(&handle, &[(DEGRADED, "Slow")]);
    world.between.refuse.lock().extend([403; 4]);
    world.run().await;
    world.cycles(3).await;
    // case: health/H29
    let said = world.events("VolumeHealthNotWritten").await;
    assert!(said.len() == 1 && said[0].1 == 1, "{said:?}");
    assert!(said[0].0.contains("needs patch on persistentvolumeclaims/status"), "{said:?}");
    assert_eq!(world.patches(), 4, "it is tried in each cycle");
    world.cycles(1).await;
    assert_eq!(world.standing("data").await, ["Degraded/Slow"]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_lists_leave_out_is_healthy_after_two_of_them() {
    let mut world = World::new(LIST).await;
    let handle = world.claim("data").await;
    world.health(&handle, &[(DEGRADED, "Slow")]);
    world.run().await;
    let slow = ["Degraded/Slow"];
    // case: health/H31
    for entries in [&[][..], &[(DEGRADED, "Slow")], &[]] {
        world.health(&handle, entries);
        world.cycles(1).await;
        assert_eq!(world.standing("data").await, slow);
    }
    // case: health/H32
    world.driver.script(Call::ControllerListVolumeHealth, [Fault::before(Code::Internal)]);
    world.cycles(1).await;
    assert_eq!(world.standing("data").await, slow, "a failed list is none");
    // case: health/H35
    world.process.take().expect("a process").kill();
    world.run().await;
    assert_eq!(world.standing("data").await, slow, "left out once, as far as this one knows");
    // case: health/H30
    world.cycles(1).await;
    assert!(world.standing("data").await.is_empty());
    assert_eq!(world.events(NORMAL).await, once(&[RECOVERED]));
}

#[tokio::test(start_paused = true)]
async fn two_lists_around_a_failed_one_are_in_a_row() {
    let mut world = World::new(LIST).await;
    let handle = world.claim("data").await;
    world.health(&handle, &[(DEGRADED, "Slow")]);
    world.run().await;
    world.health(&handle, &[]);
    // case: health/H32
    let faults = [Fault::None, Fault::before(Code::Internal)];
    world.driver.script(Call::ControllerListVolumeHealth, faults);
    world.cycles(2).await;
    assert_eq!(world.standing("data").await, ["Degraded/Slow"]);
    world.cycles(1).await;
    assert!(world.standing("data").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_a_list_leaves_out_is_asked_about() {
    let mut world = World::new(BOTH).await;
    let handle = world.claim("data").await;
    world.health(&handle, &[(DEGRADED, "Slow")]);
    world.run().await;
    let get = Call::ControllerGetVolumeHealth;
    // case: health/H34
    world.driver.edit(|state| state.unlisted_health = [handle.clone()].into());
    world.cycles(2).await;
    assert_eq!(world.standing("data").await, ["Degraded/Slow"]);
    assert_eq!((world.calls(get), world.patches()), (2, 1));
    world.health(&handle, &[]);
    // case: health/H24
    world.driver.script(get, [Fault::before(Code::NotFound), Fault::before(Code::Unavailable)]);
    world.cycles(2).await;
    assert_eq!(world.standing("data").await, ["Degraded/Slow"], "an error confirms nothing");
    // case: health/H33
    world.cycles(1).await;
    assert!(world.standing("data").await.is_empty());
    assert_eq!(world.calls(get), 5);
}

#[tokio::test(start_paused = true)]
async fn a_healthy_volume_in_a_list_is_healthy_at_once() {
    let mut world = World::new(LIST).await;
    let handle = world.claim("data").await;
    world.health(&handle, &[(DEGRADED, "Slow")]);
    world.run().await;
    // case: health/H36
    world.health(&handle, &[]);
    let healthy = v1::VolumeHealth { volume_id: handle, health_statuses: Vec::new() };
    world.driver.edit(|state| state.listed_health = vec![healthy]);
    world.cycles(1).await;
    assert!(world.standing("data").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn pages_that_repeat_a_volume_add_up() {
    let mut world = World::new(LIST).await;
    let handle = world.claim("data").await;
    world.health(&handle, &[(DEGRADED, "Slow")]);
    let health_statuses = vec![entry(INACCESSIBLE, "Gone", "")];
    // case: health/H37
    world.driver.edit(|state| {
        state.listed_health = vec![v1::VolumeHealth { volume_id: handle, health_statuses }];
    });
    world.driver.configure(|config| config.page_entries = 1);
    world.run().await;
    assert_eq!(world.standing("data").await, ["Inaccessible/Gone", "Degraded/Slow"]);
    // A list that never ends is a failed one.
    world.driver.configure(|config| config.stuck_token = Some("again".to_owned()));
    world.cycles(3).await;
    assert_eq!(world.standing("data").await, ["Inaccessible/Gone", "Degraded/Slow"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_drops_the_field_is_tried_every_tenth_cycle() {
    // The gate is off there, as it is upstream.
    let mut world = World::on(Bench::start().await, GET);
    let handle = world.claim("data").await;
    world.health(&handle, &[(DEGRADED, "Slow")]);
    world.run().await;
    world.cycles(9).await;
    // case: health/H38
    assert_eq!(world.patches(), 1);
    assert_eq!(
        world.metric("csi_volume_health_server_drops "),
        ["csi_volume_health_server_drops 1"]
    );
    world.cycles(1).await;
    assert_eq!(world.patches(), 2);
    world.health(&handle, &[(DEGRADED, "Slow"), (DATA_LOSS, "Gone")]);
    world.cycles(1).await;
    let began = once(&["DataLoss/Gone: text", "Degraded/Slow: text"]);
    assert_eq!(world.events(ABNORMAL).await, began);
    assert_eq!(world.metric("csi_controller_volume_health_status{").len(), 2);
    world.health(&handle, &[]);
    world.cycles(30).await;
    assert_eq!(world.events(NORMAL).await, once(&[RECOVERED]));
    assert_eq!(world.patches(), 2, "nothing is left to be written");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_keeps_the_field_again_is_noticed() {
    let mut world = World::new(GET).await;
    let (new, old) = (world.claim("new").await, world.claim("old").await);
    let told = json!({"status": {"healthStatus": {"healthConditions": [
        {"status": "Degraded", "reason": "Slow"}]}}});
    world.bench.merge_status::<Claim>(&key("old"), told).await;
    world.health(&old, &[(DEGRADED, "Slow")]);
    world.health(&new, &[(DEGRADED, "Slow")]);
    *world.between.drop_at.lock() = Some("/new/");
    world.run().await;
    // case: health/H40
    world.health(&old, &[(DATA_LOSS, "Gone")]);
    world.cycles(11).await;
    assert_eq!(world.standing("old").await, ["DataLoss/Gone"], "a field that is there may change");
    assert_eq!(
        world.metric("csi_volume_health_server_drops "),
        ["csi_volume_health_server_drops 1"]
    );
    // case: health/H39
    *world.between.drop_at.lock() = None;
    world.cycles(10).await;
    assert_eq!(world.standing("new").await, ["Degraded/Slow"]);
    assert_eq!(
        world.metric("csi_volume_health_server_drops "),
        ["csi_volume_health_server_drops 0"]
    );
    world.health(&old, &[]);
    world.cycles(1).await;
    assert!(world.standing("old").await.is_empty(), "writes are as fast as ever");
}
