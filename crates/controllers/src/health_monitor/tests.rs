//! The health monitor over a real API server and a driver in memory.

use std::time::Duration;

use longshore_core::model::{
    ObjectKey,
    kinds::{Node, Pod, Volume},
};
use longshore_csi::{
    Call,
    capabilities::ControllerCapability,
    fake::{self, Driver, Fault, Version},
    v1,
};
use serde_json::json;
use tonic::Code;

use super::{Abilities, Config, HealthMonitor};
use crate::testing::{Bench, DRIVER, Process};

struct World {
    bench: Bench,
    driver: Driver,
    process: Option<Process>,
    config: Config,
}

impl World {
    /// A driver of CSI 1.12 that has the condition of volumes in lists, or one that does not list.
    async fn start(lists: bool, config: Config) -> Self {
        let (bench, driver) = (Bench::start().await, Driver::new(DRIVER));
        driver.configure(|config| {
            config.version = Version::V1_12;
            config.controller.insert(ControllerCapability::VolumeCondition);
            config.controller.insert(ControllerCapability::GetVolume);
            config.controller.remove(ControllerCapability::ListVolumesPublishedNodes);
            if lists {
                config.controller.insert(ControllerCapability::ListVolumes);
            } else {
                config.controller.remove(ControllerCapability::ListVolumes);
            }
        });
        Self { bench, driver, process: None, config }
    }

    async fn run(&mut self) {
        let abilities = Abilities::ask(&self.driver.client()).await.expect("able");
        let mut process = self.bench.process();
        let monitor =
            HealthMonitor::new(&process.context, self.driver.client(), self.config.clone());
        let shutdown = process.shutdown.clone();
        process.spawn(async move { monitor.run(abilities, shutdown).await });
        self.process = Some(process);
    }

    /// A claim that is bound to a volume of the driver; the volume's handle.
    async fn claim(&self, name: &str) -> String {
        self.bench.claim(name, "any").await;
        let handle = self.volume(name).await;
        self.bench.bind(name, &format!("pv-{name}"), &handle).await;
        handle
    }

    async fn volume(&self, name: &str) -> String {
        let request = fake::create_request(&format!("v-{name}"), 1 << 30);
        let made = self.driver.client().create_volume(request).await.expect("made");
        made.volume.expect("a volume").volume_id
    }

    fn condition(&self, handle: &str, abnormal: bool, message: &str) {
        let condition = v1::VolumeCondition { abnormal, message: message.to_owned() };
        self.driver.edit(|state| {
            let volume = state.volumes.get_mut(handle).expect("the volume");
            volume.condition = Some(condition.clone());
        });
    }

    fn calls(&self, call: Call) -> usize {
        self.driver.calls_of(call).len()
    }
}

fn soon() -> Config {
    Config {
        list_volumes_interval: Duration::from_secs(10),
        monitor_interval: Duration::from_secs(10),
        ..Config::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_condition_in_a_list_is_an_event_and_so_is_its_end() {
    let mut world = World::start(true, soon()).await;
    let (bad, good) = (world.claim("bad").await, world.claim("good").await);
    world.condition(&bad, true, "disk smells");
    world.condition(&good, false, "fine");
    world.run().await;
    world.bench.pass(Duration::from_secs(1)).await;
    // case: liveness-registrar-health/24
    assert_eq!(world.bench.events("VolumeConditionAbnormal").await, ["disk smells"]);
    assert!(world.bench.events("VolumeConditionNormal").await.is_empty());
    world.condition(&bad, false, "fine again");
    world.bench.pass(Duration::from_secs(10)).await;
    // case: liveness-registrar-health/25
    let normal = world.bench.events("VolumeConditionNormal").await;
    assert_eq!(normal, ["The Volume returns to the healthy state"]);
    assert_eq!(world.calls(Call::ControllerGetVolume), 0, "the list has all");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_halfway_says_nothing() {
    let mut world = World::start(true, soon()).await;
    let handle = world.claim("bad").await;
    world.condition(&handle, true, "disk smells");
    // case: liveness-registrar-health/26
    world.driver.script(Call::ListVolumes, [Fault::before(Code::Internal)]);
    world.run().await;
    world.bench.pass(Duration::from_secs(5)).await;
    assert!(world.bench.events("VolumeConditionAbnormal").await.is_empty());
    world.bench.pass(Duration::from_secs(10)).await;
    assert_eq!(world.bench.events("VolumeConditionAbnormal").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn volumes_without_a_list_are_asked_about_one_by_one() {
    let mut world = World::start(false, Config::default()).await;
    let mut handles = Vec::new();
    for n in 0..25 {
        handles.push(world.claim(&format!("c-{n}")).await);
    }
    world.condition(&handles[3], true, "cable loose");
    world.run().await;
    // case: liveness-registrar-health/30
    world.bench.pass(Duration::from_secs(30)).await;
    assert_eq!(world.calls(Call::ControllerGetVolume), 10);
    world.bench.pass(Duration::from_secs(60)).await;
    assert_eq!(world.calls(Call::ControllerGetVolume), 20);
    world.bench.pass(Duration::from_secs(60)).await;
    assert_eq!(world.bench.events("VolumeConditionAbnormal").await, ["cable loose"]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_the_driver_does_not_know_is_asked_about_again() {
    let mut world = World::start(false, soon()).await;
    let handle = world.claim("lost").await;
    world.driver.edit(|state| {
        state.volumes.remove(&handle);
    });
    world.run().await;
    world.bench.pass(Duration::from_secs(25)).await;
    // case: liveness-registrar-health/29
    assert_eq!(world.calls(Call::ControllerGetVolume), 3);
    assert!(world.bench.events("VolumeConditionAbnormal").await.is_empty());
    // case: liveness-registrar-health/31
    world.bench.delete::<Volume>(&ObjectKey::cluster("pv-lost")).await;
    world
        .bench
        .merge::<Volume>(&ObjectKey::cluster("pv-lost"), json!({"metadata": {"finalizers": null}}))
        .await;
    world.bench.until_gone::<Volume>(&ObjectKey::cluster("pv-lost")).await;
    world.bench.pass(Duration::from_secs(30)).await;
    let then = world.calls(Call::ControllerGetVolume);
    world.bench.pass(Duration::from_secs(60)).await;
    assert_eq!(world.calls(Call::ControllerGetVolume), then, "it is not asked about any more");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_bound_later_is_asked_about_then() {
    let mut world = World::start(false, soon()).await;
    world.run().await;
    world.bench.pass(Duration::from_secs(5)).await;
    // case: liveness-registrar-health/32
    let handle = world.claim("late").await;
    world.condition(&handle, true, "disk smells");
    world.bench.pass(Duration::from_secs(11)).await;
    assert_eq!(world.bench.events("VolumeConditionAbnormal").await, ["disk smells"]);
}

#[tokio::test(start_paused = true)]
async fn drivers_that_cannot_be_asked_are_refused() {
    // case: liveness-registrar-health/23
    for (capabilities, part) in [
        (&[ControllerCapability::ListVolumes][..], "does not support VOLUME_CONDITION"),
        (&[ControllerCapability::VolumeCondition], "neither LIST_VOLUMES nor GET_VOLUME"),
    ] {
        let driver = Driver::new(DRIVER);
        driver.configure(|config| {
            config.version = Version::V1_12;
            config.controller = capabilities.iter().map(|one| *one as i32).collect();
        });
        let error = Abilities::ask(&driver.client()).await.expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
    // case: liveness-registrar-health/37
    let slow = World::start(true, Config::default()).await.driver;
    for call in [Call::GetPluginInfo, Call::GetPluginCapabilities, Call::ControllerGetCapabilities]
    {
        slow.always(call, Fault::Delay(Duration::from_millis(400)));
    }
    assert!(Abilities::ask(&slow.client()).await.is_err(), "all calls together take too long");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_stays_away_is_said_on_claims_of_its_pods() {
    let config = Config { enable_node_watcher: true, ..Config::default() };
    let mut world = World::start(true, config).await;
    world.claim("used").await;
    // case: liveness-registrar-health/36
    world.claim("unused").await;
    for node in ["n1", "n2"] {
        world.bench.node(node).await;
    }
    for name in ["b", "a"] {
        let pod = json!({"metadata": {"name": name, "namespace": "default"}, "spec": {
            "nodeName": "n1", "containers": [{"name": "c", "image": "host"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "used"}}]}});
        world.bench.create::<Pod>(pod).await;
    }
    world.run().await;
    world.bench.ready("n1", false).await;
    // case: liveness-registrar-health/33
    world.bench.pass(Duration::from_secs(4 * 60)).await;
    assert!(world.bench.events("NodeFailed").await.is_empty());
    world.bench.pass(Duration::from_secs(7 * 60)).await;
    let want =
        "Pods: [ a b ] consuming PVC: used in namespace: default are now on a failed node: n1";
    assert_eq!(world.bench.events("NodeFailed").await, [want]);
    world.bench.ready("n1", true).await;
    world.bench.pass(Duration::from_secs(20 * 60)).await;
    // case: liveness-registrar-health/34
    assert_eq!(world.bench.events("NodeRecovered").await, ["Node: n1 recovered"]);
    // case: liveness-registrar-health/35
    world.bench.delete::<Node>(&ObjectKey::cluster("n1")).await;
    world.bench.pass(Duration::from_secs(60)).await;
    assert_eq!(world.bench.events("NodeFailed").await.len(), 1, "equal events are counted");
}
