//! The resizer over a real API server and a driver in memory.

use std::{collections::HashSet, sync::Arc, time::Duration};

use kube::client::Body;
use longshore_cluster::Api;
use longshore_core::model::{
    ObjectKey, Uid,
    keys::annotations,
    kinds::{Claim, Pod, Secret, StorageClass, Volume, VolumeAttributesClass},
};
use longshore_csi::{
    Call,
    capabilities::{ControllerCapability, PluginService},
    fake::{self, Driver, Fault},
};
use parking_lot::Mutex;
use serde_json::json;
use tonic::Code;

use super::{Abilities, AbilitiesError, Config, Resizer};
use crate::testing::{Bench, DRIVER, Process, key};

pub(super) const RESIZED: Call = Call::ControllerExpandVolume;
pub(super) const MODIFIED: Call = Call::ControllerModifyVolume;

pub(super) struct World {
    pub(super) bench: Bench,
    pub(super) driver: Driver,
    pub(super) process: Process,
}

impl World {
    pub(super) async fn start(config: Config) -> Self {
        Self::start_with(config, |_| ()).await
    }

    pub(super) async fn start_with(
        config: Config,
        configure: impl FnOnce(&mut fake::Config),
    ) -> Self {
        let (bench, driver) = (Bench::start().await, Driver::new(DRIVER));
        driver.configure(|driver| {
            driver.controller.insert(ControllerCapability::ExpandVolume);
            driver.controller.insert(ControllerCapability::ModifyVolume);
            driver.node_expansion_required = false;
            configure(driver);
        });
        bench
            .create::<StorageClass>(json!({"metadata": {"name": "fast"}, "provisioner": DRIVER,
                "allowVolumeExpansion": true}))
            .await;
        for class in ["a", "b", "c"] {
            attributes(&bench, class).await;
        }
        let process = run(&bench, &driver, config).await;
        Self { bench, driver, process }
    }

    /// The same with a new process, which reaches the API in its own way.
    pub(super) async fn through(self, config: Config, way: impl FnOnce(&Api) -> Api) -> Self {
        let Self { bench, driver, process } = self;
        process.kill();
        let process = run_in(bench.process_with(way(&bench.api)), &driver, config).await;
        Self { bench, driver, process }
    }

    /// A claim of 1Gi with class `a`, bound to a volume of the driver.
    pub(super) async fn claim(&self, name: &str) -> ObjectKey {
        self.claim_of(name, "a").await
    }

    pub(super) async fn claim_of(&self, name: &str, class: &str) -> ObjectKey {
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": {"requests": {"storage": "1Gi"}}});
        if !class.is_empty() {
            spec["volumeAttributesClassName"] = class.into();
        }
        let metadata = json!({"name": name, "namespace": "default"});
        self.bench.create::<Claim>(json!({"metadata": metadata, "spec": spec})).await;
        let request = fake::create_request(&format!("v-{name}"), 1 << 30);
        let made = self.driver.client().create_volume(request).await.expect("made");
        let handle = made.volume.expect("a volume").volume_id;
        let key = key(name);
        let mut status = json!({"status": {"capacity": {"storage": "1Gi"}}});
        if !class.is_empty() {
            status["status"]["currentVolumeAttributesClassName"] = class.into();
        }
        self.bench.merge_status::<Claim>(&key, status).await;
        self.bench.bind(name, &format!("pv-{name}"), &handle).await;
        key
    }

    pub(super) async fn ask(&self, key: &ObjectKey, size: &str) {
        let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
        self.bench.merge::<Claim>(key, patch).await;
    }

    pub(super) async fn want(&self, key: &ObjectKey, class: &str) {
        self.bench.merge::<Claim>(key, json!({"spec": {"volumeAttributesClassName": class}})).await;
    }

    pub(super) async fn until(&self, key: &ObjectKey, want: impl Fn(&Claim) -> bool) -> Claim {
        self.bench.until::<Claim>(key, want).await
    }

    pub(super) async fn until_stage(&self, key: &ObjectKey, want: &str) -> Claim {
        self.until(key, |claim| stage(claim) == want).await
    }

    pub(super) async fn until_class(&self, key: &ObjectKey, want: &str) -> Claim {
        let is = |claim: &Claim| {
            claim.status.current_volume_attributes_class_name.as_deref() == Some(want)
                && claim.status.modify_volume_status.is_none()
        };
        self.until(key, is).await
    }

    /// The sizes, in GiB, that the driver was asked for.
    pub(super) fn sizes(&self) -> Vec<i64> {
        let calls = self.driver.calls_of(RESIZED).into_iter();
        let bytes = calls.map(|call| number_after(&call.request, "required_bytes"));
        bytes.map(|bytes| bytes >> 30).collect()
    }

    /// The classes that the driver was asked for.
    pub(super) fn classes(&self) -> Vec<String> {
        let calls = self.driver.calls_of(MODIFIED).into_iter();
        let after = |text: &str| text.split("tier").nth(1).map(str::to_owned);
        let named = calls.filter_map(|call| after(&call.request));
        let letter = |text: String| text.chars().find(|c| ('a'..='c').contains(c));
        named.filter_map(letter).map(String::from).collect()
    }

    pub(super) fn fail(&self, call: Call, code: Code) {
        self.driver.script(call, [Fault::Before(code, "no".into())]);
    }

    pub(super) async fn volume(&self, name: &str) -> Volume {
        self.bench.get(&ObjectKey::cluster(name)).await.expect("a volume")
    }
}

pub(super) async fn run(bench: &Bench, driver: &Driver, config: Config) -> Process {
    run_in(bench.process(), driver, config).await
}

async fn run_in(mut process: Process, driver: &Driver, config: Config) -> Process {
    let abilities = Abilities::ask(&driver.client(), config.timeout).await.expect("able");
    let resizer = Resizer::new(&process.context, driver.client(), config, abilities);
    let shutdown = process.shutdown.clone();
    process.spawn(async move { resizer.run(shutdown).await });
    process
}

pub(super) async fn attributes(bench: &Bench, name: &str) {
    bench
        .create::<VolumeAttributesClass>(json!({"metadata": {"name": name}, "driverName": DRIVER,
            "parameters": {"tier": name}}))
        .await;
}

fn number_after(text: &str, word: &str) -> i64 {
    let rest = text.split(word).nth(1).unwrap_or_default();
    let digits: String =
        rest.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

pub(super) fn stage(claim: &Claim) -> &str {
    let stage = claim.status.allocated_resource_statuses.get("storage");
    stage.map(String::as_str).unwrap_or_default()
}

pub(super) fn size(claim: &Claim) -> String {
    claim.status.capacity["storage"].to_string()
}

pub(super) fn kinds(claim: &Claim) -> Vec<&str> {
    let mut kinds: Vec<&str> =
        claim.status.conditions.iter().map(|one| one.kind.as_str()).collect();
    kinds.sort_unstable();
    kinds
}

pub(super) fn modify_stage(claim: &Claim) -> (&str, &str) {
    let begun = claim.status.modify_volume_status.as_ref();
    begun.map_or(("", ""), |begun| {
        (begun.target_volume_attributes_class_name.as_str(), begun.status.as_str())
    })
}

#[tokio::test(start_paused = true)]
async fn growth_that_a_node_has_to_finish() {
    let world =
        World::start_with(Config::default(), |driver| driver.node_expansion_required = true).await;
    let claim = world.claim("data").await;
    // case: resizer/1
    world.ask(&claim, "2Gi").await;
    let seen = world.until_stage(&claim, "NodeResizePending").await;
    assert_eq!(seen.status.allocated_resources["storage"].to_string(), "2Gi");
    assert_eq!(
        (size(&seen), kinds(&seen)),
        ("1Gi".into(), vec!["FileSystemResizePending", "Resizing"])
    );
    let volume = world.volume("pv-data").await;
    assert_eq!(volume.capacity().to_string(), "2Gi");
    assert_eq!(volume.metadata.annotation(annotations::PRE_RESIZE_CAPACITY), Some("1Gi"));
    assert_eq!(world.bench.events("FileSystemResizeRequired").await.len(), 1);
    // The node finishes; the volume's mark goes.
    let done = json!({"status": {"capacity": {"storage": "2Gi"}, "conditions": null,
        "allocatedResourceStatuses": null}});
    world.bench.merge_status::<Claim>(&claim, done).await;
    let unmarked =
        |volume: &Volume| volume.metadata.annotation(annotations::PRE_RESIZE_CAPACITY).is_none();
    world.bench.until::<Volume>(&ObjectKey::cluster("pv-data"), unmarked).await;
    assert_eq!(world.sizes(), [2]);
}

#[tokio::test(start_paused = true)]
async fn growth_that_needs_no_node() {
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    // case: resizer/2
    world.ask(&claim, "2Gi").await;
    let seen = world.until(&claim, |claim| size(claim) == "2Gi").await;
    assert_eq!((stage(&seen), kinds(&seen)), ("", vec![]));
    assert_eq!(seen.metadata.annotation(annotations::NODE_EXPANSION_NOT_REQUIRED), Some("true"));
    assert_eq!(world.bench.events("VolumeResizeSuccessful").await, ["Resize volume succeeded"]);
    // case: resizer/65
    world.driver.configure(|driver| driver.node_expansion_required = true);
    world.ask(&claim, "3Gi").await;
    let seen = world.until_stage(&claim, "NodeResizePending").await;
    assert_eq!(seen.metadata.annotation(annotations::NODE_EXPANSION_NOT_REQUIRED), None);
}

#[tokio::test(start_paused = true)]
async fn an_infeasible_size_is_given_up_for_a_smaller_one() {
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    world.driver.always(RESIZED, Fault::Before(Code::OutOfRange, "too big".into()));
    world.ask(&claim, "5Gi").await;
    // case: resizer/8
    let seen = world.until_stage(&claim, "ControllerResizeInfeasible").await;
    assert!(kinds(&seen).contains(&"ControllerResizeError"), "{:?}", kinds(&seen));
    // case: resizer/20
    world.bench.pass(Duration::from_secs(200)).await;
    assert_eq!(world.sizes(), [5, 5], "one more attempt, then it rests");
    world.bench.pass(Duration::from_secs(150)).await;
    assert_eq!(world.sizes(), [5, 5, 5]);
    // case: resizer/21
    world.driver.clear_faults();
    world.ask(&claim, "2Gi").await;
    let seen = world.until(&claim, |claim| size(claim) == "2Gi").await;
    assert_eq!((world.sizes(), kinds(&seen)), (vec![5, 5, 5, 2], vec![]));
}

#[tokio::test(start_paused = true)]
async fn only_a_final_error_frees_the_claim_for_another_size() {
    for (code, want) in [
        // case: resizer/7
        (Code::FailedPrecondition, 2),
        (Code::Internal, 2),
        // case: resizer/23
        (Code::DeadlineExceeded, 5),
        (Code::Unavailable, 5),
    ] {
        let often = Duration::from_secs(5);
        let world = World::start(Config { retry_interval_max: often, ..Config::default() }).await;
        let claim = world.claim("data").await;
        world.driver.always(RESIZED, Fault::Before(code, "no".into()));
        world.ask(&claim, "5Gi").await;
        world.bench.pass(Duration::from_secs(1)).await;
        world.ask(&claim, "2Gi").await;
        world.bench.pass(Duration::from_secs(30)).await;
        // case: resizer/22
        let seen = world.bench.get::<Claim>(&claim).await.expect("there");
        assert_eq!(stage(&seen), "ControllerResizeInProgress", "{code:?}");
        world.driver.clear_faults();
        world.until(&claim, |claim| size(claim) == format!("{want}Gi")).await;
        let sizes = world.sizes();
        assert_eq!((sizes.first(), sizes.last()), (Some(&5), Some(&want)), "{code:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_in_use_is_expanded_as_soon_as_its_pod_has_ended() {
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    world.bench.pod("p", None, &["data"]).await;
    world.fail(RESIZED, Code::FailedPrecondition);
    world.ask(&claim, "2Gi").await;
    world.bench.pass(Duration::from_secs(100)).await;
    // case: resizer/17
    assert_eq!(world.sizes(), [2]);
    let told = world.bench.events("VolumeResizeFailed").await;
    assert!(told.iter().any(|text| text.contains("only supports offline expansion")), "{told:?}");
    // case: resizer/70
    world.bench.delete::<Pod>(&key("p")).await;
    world.bench.pass(Duration::from_secs(1)).await;
    assert_eq!(world.sizes(), [2, 2]);
    world.until(&claim, |claim| size(claim) == "2Gi").await;
}

#[tokio::test(start_paused = true)]
async fn without_the_flag_pods_are_not_watched() {
    // case: resizer/18
    let world =
        World::start(Config { handle_volume_inuse_error: false, ..Config::default() }).await;
    let claim = world.claim("data").await;
    world.bench.pod("p", None, &["data"]).await;
    world.fail(RESIZED, Code::FailedPrecondition);
    world.ask(&claim, "2Gi").await;
    world.until(&claim, |claim| size(claim) == "2Gi").await;
    assert_eq!(world.sizes(), [2, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_missing_wakes_the_claim_when_it_comes() {
    // case: resizer/24
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    let secret = json!({"spec": {"csi": {"controllerExpandSecretRef": {"name": "s", "namespace": "default"}}}});
    world.bench.merge::<Volume>(&ObjectKey::cluster("pv-data"), secret).await;
    world.ask(&claim, "2Gi").await;
    world.bench.pass(Duration::from_secs(20)).await;
    let seen = world.bench.get::<Claim>(&claim).await.expect("there");
    assert_eq!((stage(&seen), world.sizes()), ("ControllerResizeInProgress", vec![]));
    world.bench.create::<Secret>(json!({"metadata": {"name": "s", "namespace": "default"}})).await;
    world.bench.pass(Duration::from_secs(1)).await;
    assert_eq!(world.sizes(), [2]);
}

#[tokio::test(start_paused = true)]
async fn size_and_class_change_side_by_side() {
    // case: resizer/67
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    for call in [RESIZED, MODIFIED] {
        world.driver.script(call, [Fault::Delay(Duration::from_secs(5))]);
    }
    let patch = json!({"spec": {"volumeAttributesClassName": "b",
        "resources": {"requests": {"storage": "2Gi"}}}});
    world.bench.merge::<Claim>(&claim, patch).await;
    world.bench.pass(Duration::from_millis(100)).await;
    assert_eq!((world.sizes().len(), world.classes().len()), (1, 1), "both in flight");
    world.until_class(&claim, "b").await;
    world.bench.pass(Duration::from_secs(10)).await;
    let seen = world.bench.get::<Claim>(&claim).await.expect("there");
    assert_eq!((size(&seen).as_str(), kinds(&seen), stage(&seen)), ("2Gi", vec![], ""));
    assert!(world.bench.events("VolumeResizeFailed").await.is_empty());
    assert_eq!((world.sizes(), world.classes()), (vec![2], vec!["b".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_class_and_back() {
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    // case: resizer/36
    world.want(&claim, "b").await;
    let seen = world.until_class(&claim, "b").await;
    assert!(kinds(&seen).is_empty());
    assert_eq!(
        world.volume("pv-data").await.spec.volume_attributes_class_name.as_deref(),
        Some("b")
    );
    assert_eq!(
        world.bench.events("VolumeModifySuccessful").await,
        ["external resizer modified volume data with vac b successfully"]
    );
    world.want(&claim, "a").await;
    world.until_class(&claim, "a").await;
    assert_eq!(world.classes(), ["b", "a"]);
}

#[tokio::test(start_paused = true)]
async fn a_class_that_comes_later_wakes_its_claims() {
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    // case: resizer/37
    world.want(&claim, "bb").await;
    world.until(&claim, |claim| modify_stage(claim) == ("", "Pending")).await;
    world.bench.pass(Duration::from_secs(60)).await;
    assert_eq!(world.bench.events("VolumeModifyFailed").await, ["VAC \"bb\" does not exist."]);
    assert!(world.classes().is_empty());
    // case: resizer/69
    attributes(&world.bench, "bb").await;
    world.bench.pass(Duration::from_secs(1)).await;
    world.until_class(&claim, "bb").await;
}

#[tokio::test(start_paused = true)]
async fn an_infeasible_class_rests_and_is_rolled_back_at_once() {
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    world.driver.always(MODIFIED, Fault::Before(Code::InvalidArgument, "no such tier".into()));
    world.want(&claim, "b").await;
    let seen = world.until(&claim, |claim| modify_stage(claim) == ("b", "Infeasible")).await;
    assert_eq!(kinds(&seen), ["ModifyVolumeError", "ModifyingVolume"]);
    // case: resizer/39
    world.bench.pass(Duration::from_secs(200)).await;
    assert_eq!(world.classes().len(), 1);
    world.bench.pass(Duration::from_secs(150)).await;
    assert_eq!(world.classes().len(), 2);
    // case: resizer/51
    world.driver.clear_faults();
    world.want(&claim, "a").await;
    world.bench.pass(Duration::from_secs(1)).await;
    let seen = world.until_class(&claim, "a").await;
    assert_eq!(
        (world.classes(), kinds(&seen)),
        (vec!["b".into(), "b".into(), "a".to_owned()], vec![])
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_class_waits_for_the_verdict_on_the_old_one() {
    for (code, want) in [
        // case: resizer/40
        (Code::Internal, vec!["b", "c"]),
        // case: resizer/41
        (Code::Unavailable, vec!["b", "b", "c"]),
    ] {
        let world = World::start(Config::default()).await;
        let claim = world.claim("data").await;
        world.fail(MODIFIED, code);
        world.want(&claim, "b").await;
        while world.classes().is_empty() {
            world.bench.pass(Duration::from_millis(1)).await;
        }
        world.want(&claim, "c").await;
        world.until_class(&claim, "c").await;
        assert_eq!(world.classes(), want, "{code:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_repeats_what_was_begun() {
    // case: resizer/42
    // case: resizer/60
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    world.driver.always(MODIFIED, Fault::Before(Code::Unavailable, "away".into()));
    world.want(&claim, "b").await;
    world.until(&claim, |claim| modify_stage(claim) == ("b", "InProgress")).await;
    let World { bench, driver, process } = world;
    process.kill();
    driver.clear_faults();
    driver.clear_calls();
    bench.merge::<Claim>(&claim, json!({"spec": {"volumeAttributesClassName": "c"}})).await;
    let process = run(&bench, &driver, Config::default()).await;
    let world = World { bench, driver, process };
    world.until_class(&claim, "c").await;
    assert_eq!(world.classes(), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_class_that_is_taken_back() {
    let world = World::start(Config::default()).await;
    let claim = world.claim_of("data", "").await;
    world.driver.always(MODIFIED, Fault::Before(Code::InvalidArgument, "no".into()));
    world.want(&claim, "b").await;
    world.until(&claim, |claim| modify_stage(claim) == ("b", "Infeasible")).await;
    // case: resizer/43
    // case: resizer/55
    world.bench.merge::<Claim>(&claim, json!({"spec": {"volumeAttributesClassName": null}})).await;
    let seen = world.until(&claim, |claim| kinds(claim) == ["ModifyVolumeError"]).await;
    assert_eq!(modify_stage(&seen), ("b", "Infeasible"));
    assert_eq!(world.bench.events("VolumeModifyCanceled").await, ["Cancelled modify."]);
    assert_eq!(world.classes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn claims_of_one_name_share_no_memory() {
    // case: resizer/72
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    world.driver.always(MODIFIED, Fault::Before(Code::Unavailable, "away".into()));
    world.want(&claim, "b").await;
    world.until(&claim, |claim| modify_stage(claim) == ("b", "InProgress")).await;
    let free = json!({"metadata": {"finalizers": null}});
    world.bench.merge::<Claim>(&claim, free.clone()).await;
    world.bench.delete::<Claim>(&claim).await;
    world.bench.until_gone::<Claim>(&claim).await;
    let volume = ObjectKey::cluster("pv-data");
    world.bench.merge::<Volume>(&volume, free).await;
    world.bench.delete::<Volume>(&volume).await;
    world.driver.clear_faults();
    world.driver.clear_calls();
    let claim = world.claim("data").await;
    world.want(&claim, "c").await;
    world.until_class(&claim, "c").await;
    assert_eq!(world.classes(), ["c"]);
}

#[tokio::test(start_paused = true)]
async fn what_the_driver_must_be_able_to_do() {
    let ask = async |change: fn(&mut fake::Config)| {
        let driver = Driver::new(DRIVER);
        driver.configure(|config| {
            config.controller = [ControllerCapability::CreateDeleteVolume].into();
            config.node = Default::default();
            change(config);
        });
        Abilities::ask(&driver.client(), Duration::from_secs(1)).await
    };
    // case: resizer/34
    let able = ask(|config| {
        config.controller.insert(ControllerCapability::ModifyVolume);
    })
    .await;
    assert!(able.is_ok_and(|able| able.modifies && able.expander == super::Expander::Nobody));
    assert!(matches!(ask(|_| ()).await, Err(AbilitiesError::Neither)));
    // case: resizer/35
    let able =
        ask(|config| config.plugin.services = [PluginService::GroupControllerService].into()).await;
    assert!(matches!(able, Err(AbilitiesError::NoController(_))));
}

#[tokio::test(start_paused = true)]
async fn only_volumes_of_the_node_are_served() {
    let node =
        super::Node { name: "n1".into(), segments: [("host".to_owned(), "n1".to_owned())].into() };
    let world = World::start(Config { node: Some(node), ..Config::default() }).await;
    // The last is reached by every node: each of them would call its driver for it.
    for (name, hosts) in [("here", vec!["n1"]), ("there", vec!["n2"]), ("anywhere", vec![])] {
        let claim = world.claim(name).await;
        let key = ObjectKey::cluster(format!("pv-{name}"));
        let mut raw = world.bench.api.get_raw::<Volume>(&key).await.expect("read").expect("there");
        world.bench.merge::<Volume>(&key, json!({"metadata": {"finalizers": null}})).await;
        world.bench.delete::<Volume>(&key).await;
        world.bench.until_gone::<Volume>(&key).await;
        if !hosts.is_empty() {
            raw["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "host", "operator": "In", "values": hosts}]}]}});
        }
        for field in ["resourceVersion", "uid", "creationTimestamp"] {
            raw["metadata"][field].take();
        }
        world.bench.create::<Volume>(raw).await;
        let both = json!({"spec": {"volumeAttributesClassName": "b",
            "resources": {"requests": {"storage": "2Gi"}}}});
        world.bench.merge::<Claim>(&claim, both).await;
    }
    world.until(&key("here"), |claim| size(claim) == "2Gi").await;
    world.until_class(&key("here"), "b").await;
    world.bench.pass(Duration::from_secs(30)).await;
    assert_eq!((world.sizes(), world.classes()), (vec![2], vec!["b".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn what_is_remembered_is_forgotten_with_the_claim() {
    // case: resizer/73
    let memory = super::memory::Memory::default();
    let uids: Vec<Uid> = (0..1000).map(|n| Uid::from(format!("uid-{n}"))).collect();
    for uid in &uids {
        memory.with(uid, |marks| marks.refused = true);
        memory.with(uid, |marks| marks.modify_uncertain = true);
        drop(memory.lock(uid).await);
    }
    assert_eq!(memory.len(), uids.len());
    memory.with(&uids[0], |marks| (marks.refused, marks.modify_uncertain) = (false, false));
    assert_eq!(memory.len(), uids.len() - 1, "nothing is known of it any more");
    uids.iter().for_each(|uid| memory.forget(uid));
    assert_eq!(memory.len(), 0);
}

/// A refusal: code, reason, message.
pub(super) type Refused = (u16, &'static str, &'static str);

/// The API with some requests refused before they reach the server.
pub(super) fn refusing(
    api: &Api,
    refuse: impl Fn(&http::Request<Body>) -> Option<Refused> + Send + Sync + 'static,
) -> Api {
    let (client, refuse) = (api.client().clone(), Arc::new(refuse));
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, refused) = (client.clone(), refuse(&request));
        async move {
            let Some((code, reason, message)) = refused else { return client.send(request).await };
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                "reason": reason, "code": code, "message": message});
            let body = Body::from(status.to_string().into_bytes());
            Ok(http::Response::builder().status(code).body(body).expect("a response"))
        }
    });
    Api::new(kube::Client::new(service, "default"))
}

/// Answers every first patch of a claim's status with a conflict.
fn conflicting(api: &Api) -> Api {
    let seen: Mutex<HashSet<String>> = Mutex::default();
    refusing(api, move |request| {
        let path = request.uri().path();
        let patches = request.method() == http::Method::PATCH && path.ends_with("/status");
        (patches && seen.lock().insert(path.to_owned())).then_some((
            409,
            "Conflict",
            "the object has been modified",
        ))
    })
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_neither_a_failure_nor_a_wait() {
    // case: resizer/28
    // case: resizer/68
    let world = World::start(Config::default()).await;
    let world = world.through(Config::default(), conflicting).await;
    let mut claims = Vec::new();
    for n in 0..200 {
        claims.push(world.claim(&format!("data-{n}")).await);
    }
    for claim in &claims {
        world.ask(claim, "2Gi").await;
    }
    for claim in &claims {
        world.until(claim, |claim| size(claim) == "2Gi").await;
    }
    assert_eq!(world.sizes(), vec![2; 200], "nobody was asked twice");
    assert!(world.bench.events("VolumeResizeFailed").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_class_waits_for_three_answers_without_a_verdict() {
    // case: resizer/59
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    for _ in 0..3 {
        world.fail(MODIFIED, Code::Unavailable);
    }
    world.want(&claim, "b").await;
    let still = |claim: &Claim| kinds(claim) == ["ModifyVolumeError", "ModifyingVolume"];
    world.until(&claim, still).await;
    world.want(&claim, "c").await;
    world.until_class(&claim, "c").await;
    assert_eq!(world.classes(), ["b", "b", "b", "b", "c"]);
    let told = world.bench.events("VolumeModifyFailed").await;
    assert_eq!(told, ["rpc error: code = Unavailable desc = no. Still modifying to VAC b"]);
}

#[tokio::test(start_paused = true)]
async fn a_rollback_that_is_refused_rests_as_any_other_change() {
    // case: resizer/53
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    world.driver.always(MODIFIED, Fault::Before(Code::InvalidArgument, "no".into()));
    for class in ["b", "a"] {
        world.want(&claim, class).await;
        world.until(&claim, |claim| modify_stage(claim) == (class, "Infeasible")).await;
    }
    world.bench.pass(Duration::from_secs(200)).await;
    assert_eq!(world.classes(), ["b", "a"]);
    world.bench.pass(Duration::from_secs(150)).await;
    assert_eq!(world.classes(), ["b", "a", "a"]);
}

#[tokio::test(start_paused = true)]
async fn volumes_of_others_and_unbound_claims_are_left_alone() {
    // case: resizer/45
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    let uid = world.bench.claim("theirs", "fast").await;
    world
        .bench
        .create::<Volume>(json!({"metadata": {"name": "theirs"}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": "default", "name": "theirs", "uid": uid},
            "csi": {"driver": "other.example", "volumeHandle": "h"}}}))
        .await;
    let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
    world.bench.merge::<Claim>(&key("theirs"), json!({"spec": {"volumeName": "theirs"}})).await;
    world.bench.merge_status::<Claim>(&key("theirs"), bound).await;
    // One of an in-tree plugin, and one whose claim is not bound.
    let uid = world.bench.claim("in-tree", "fast").await;
    world
        .bench
        .create::<Volume>(json!({"metadata": {"name": "in-tree"}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": "default", "name": "in-tree", "uid": uid},
            "awsElasticBlockStore": {"volumeID": "vol-1"}}}))
        .await;
    world.bench.merge::<Claim>(&key("in-tree"), json!({"spec": {"volumeName": "in-tree"}})).await;
    let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
    world.bench.merge_status::<Claim>(&key("in-tree"), bound).await;
    // While it is not bound it cannot ask for more: it has less than it asks for.
    let unbound = world.claim_of("unbound", "b").await;
    let less = json!({"status": {"phase": "Pending", "capacity": {"storage": "512Mi"},
        "currentVolumeAttributesClassName": "a"}});
    world.bench.merge_status::<Claim>(&unbound, less).await;
    for name in ["theirs", "in-tree"] {
        world.want(&key(name), "b").await;
        world.ask(&key(name), "2Gi").await;
    }
    world.bench.pass(Duration::from_secs(60)).await;
    assert!(world.classes().is_empty() && world.sizes().is_empty());
    let again = json!({"status": {"phase": "Bound"}});
    world.bench.merge_status::<Claim>(&unbound, again).await;
    world.until_class(&unbound, "b").await;
    world.until(&unbound, |claim| size(claim) == "1Gi").await;
    assert_eq!((world.classes(), world.sizes()), (vec!["b".to_owned()], vec![1]));
    world.want(&claim, "b").await;
    world.until_class(&claim, "b").await;
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_only_modifies_expands_nothing() {
    // case: resizer/56
    // case: resizer/57
    for modifies in [true, false] {
        let config = Config { modifies, ..Config::default() };
        let world = World::start_with(config, |driver| {
            driver.controller.remove(ControllerCapability::ExpandVolume);
            driver.node = Default::default();
        })
        .await;
        let claim = world.claim("data").await;
        world.ask(&claim, "2Gi").await;
        world.want(&claim, "b").await;
        world.bench.pass(Duration::from_secs(60)).await;
        let seen = world.bench.get::<Claim>(&claim).await.expect("there");
        assert_eq!((stage(&seen), world.sizes()), ("", vec![]), "no expansion");
        assert_eq!(world.classes().len(), usize::from(modifies));
    }
}

/// Refuses the first `times` patches whose path contains `part` with a server's failure.
fn failing(api: &Api, part: &'static str, times: usize) -> Api {
    let left = Mutex::new(times);
    refusing(api, move |request| {
        let hit = request.method() == http::Method::PATCH && request.uri().path().contains(part);
        let mut left = left.lock();
        let fails = hit && *left > 0;
        *left -= usize::from(fails);
        fails.then_some((500, "InternalError", "etcd is away"))
    })
}

#[tokio::test(start_paused = true)]
async fn a_change_that_could_not_be_recorded_is_recorded_before_another_one() {
    // case: resizer/46
    // case: resizer/71
    let world = World::start(Config::default()).await;
    let world =
        world.through(Config::default(), |api| failing(api, "/persistentvolumes/", 3)).await;
    let claim = world.claim("data").await;
    world.want(&claim, "b").await;
    world.until(&claim, |claim| modify_stage(claim) == ("b", "InProgress")).await;
    world.bench.pass(Duration::from_millis(200)).await;
    world.want(&claim, "c").await;
    world.until_class(&claim, "c").await;
    assert_eq!(world.classes(), ["b", "b", "b", "b", "c"], "b until it is written down");
    let told = world.bench.events("VolumeModifySuccessful").await;
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(world.bench.events("VolumeModifyFailed").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn another_pod_keeps_a_claim_in_use() {
    // case: resizer/19
    let world = World::start(Config::default()).await;
    let claims = [world.claim("one").await, world.claim("two").await];
    world.bench.pod("p", None, &["one", "two"]).await;
    world.bench.pod("q", None, &["two"]).await;
    world.driver.script(RESIZED, vec![Fault::Before(Code::FailedPrecondition, "used".into()); 2]);
    for claim in &claims {
        world.ask(claim, "2Gi").await;
    }
    world.bench.pass(Duration::from_secs(5)).await;
    world.bench.delete::<Pod>(&key("p")).await;
    world.until(&claims[0], |claim| size(claim) == "2Gi").await;
    world.bench.pass(Duration::from_secs(100)).await;
    assert_eq!(world.sizes().len(), 3, "the second claim is in use");
    world.bench.delete::<Pod>(&key("q")).await;
    world.until(&claims[1], |claim| size(claim) == "2Gi").await;
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_nobody_knows_that_the_last_error_was_final() {
    // case: resizer/25
    let world = World::start(Config::default()).await;
    let claim = world.claim("data").await;
    world.driver.always(RESIZED, Fault::Before(Code::Internal, "no".into()));
    world.ask(&claim, "5Gi").await;
    world.until(&claim, |claim| kinds(claim).contains(&"ControllerResizeError")).await;
    let World { bench, driver, process } = world;
    process.kill();
    let smaller = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    bench.merge::<Claim>(&claim, smaller).await;
    driver.clear_faults();
    driver.clear_calls();
    let process = run(&bench, &driver, Config::default()).await;
    let world = World { bench, driver, process };
    world.until(&claim, |claim| size(claim) == "5Gi").await;
    assert_eq!(world.sizes(), [5]);
}

#[tokio::test(start_paused = true)]
async fn the_capability_is_the_volumes() {
    // case: resizer/31
    for (multi_writer, block, want) in [
        (false, false, ["\"SINGLE_NODE_WRITER\"", "\"fs_type\":\"xfs\""]),
        (true, true, ["\"SINGLE_NODE_MULTI_WRITER\"", "\"block\""]),
    ] {
        let world = World::start_with(Config::default(), |driver| {
            if multi_writer {
                driver.controller.insert(ControllerCapability::SingleNodeMultiWriter);
            }
        })
        .await;
        let claim = world.claim("data").await;
        let key = ObjectKey::cluster("pv-data");
        let mut raw = world.bench.api.get_raw::<Volume>(&key).await.expect("read").expect("there");
        world.bench.merge::<Volume>(&key, json!({"metadata": {"finalizers": null}})).await;
        world.bench.delete::<Volume>(&key).await;
        world.bench.until_gone::<Volume>(&key).await;
        raw["spec"]["csi"]["fsType"] = "xfs".into();
        raw["spec"]["volumeMode"] = if block { "Block" } else { "Filesystem" }.into();
        for field in ["resourceVersion", "uid", "creationTimestamp"] {
            raw["metadata"][field].take();
        }
        world.bench.create::<Volume>(raw).await;
        world.ask(&claim, "2Gi").await;
        world.until(&claim, |claim| size(claim) == "2Gi").await;
        let request = &world.driver.calls_of(RESIZED)[0].request;
        for part in want {
            assert!(request.contains(part), "{request}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_recovery_a_conflict_is_no_failure_either() {
    // case: resizer/49
    let world = World::start(Config::default()).await;
    let config = Config { recovers: false, ..Config::default() };
    let world = world.through(config, conflicting).await;
    let claim = world.claim("data").await;
    world.ask(&claim, "2Gi").await;
    let seen = world.until(&claim, |claim| size(claim) == "2Gi").await;
    assert!(seen.status.allocated_resources.is_empty() && kinds(&seen).is_empty());
    assert!(world.bench.events("VolumeResizeFailed").await.is_empty());
}
