//! A workload: several users at once, volumes made by hand and by the driver, pods that move, nodes
//! that fail.
//!
//! What happens comes from the seed, step by step, while faults strike the controllers. Then the
//! faults stop: all nodes are back, and everything that can be bound is bound and everything that can
//! run runs. Then all objects are deleted, and nothing may be left.

use std::time::Duration;

use longshore_cluster::{ApiError, DeleteParams, ObjectKey, Patch};
use longshore_core::model::keys::taints;
use longshore_core::model::kinds::{Claim, Node, Pod, StorageClass, Volume};
use longshore_csi::fake::create_request;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::checks::BY_HAND;
use crate::power::{Power, State};
use crate::user::{SETTLE_TIMEOUT, User, UserError};
use crate::{DRIVER, NODES, Run};

const CLAIMS: [&str; 3] = ["c0", "c1", "c2"];
const PODS: [&str; 3] = ["p0", "p1", "p2"];
/// The caller's name in the driver when an administrator makes a volume.
const ADMIN: &str = "admin";
const STEPS: usize = 14;
/// The class of volumes that are made at once.
const NOW: &str = "now";
/// The class of volumes that wait for a pod.
const LATER: &str = "later";
/// The class of volumes that are made by hand.
const HAND: &str = "hand";
const BYTES: i64 = 1 << 30;

/// Whether volumes of this workload are bound to nodes by topology.
pub(crate) fn has_topology(seed: u64) -> bool {
    Profile::of(seed) == Profile::Mixed
}

/// What the users of a workload mostly do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Profile {
    /// A bit of everything, with topology.
    Mixed,
    /// Users create PersistentVolumes by hand and compete for them.
    ByHand,
    /// Users move pods from node to node.
    Moving,
}

impl Profile {
    fn of(seed: u64) -> Self {
        [Self::Mixed, Self::ByHand, Self::Moving][(seed % 3) as usize]
    }

    /// How often each step is taken, in the order of [`Workload::step`].
    fn weights(self) -> [usize; 9] {
        match self {
            Self::Mixed => [5, 2, 5, 2, 1, 1, 1, 1, 2],
            Self::ByHand => [6, 4, 2, 1, 3, 1, 1, 1, 1],
            Self::Moving => [3, 1, 7, 5, 1, 0, 2, 2, 3],
        }
    }

    fn classes(self) -> [&'static str; 4] {
        match self {
            Self::Mixed => [NOW, LATER, LATER, HAND],
            Self::ByHand => [HAND, HAND, HAND, NOW],
            Self::Moving => [NOW, LATER, LATER, HAND],
        }
    }
}

pub(crate) struct Workload {
    user: User,
    power: Power,
    rng: fastrand::Rng,
    profile: Profile,
    topology: bool,
    /// How many volumes were made by hand.
    made: u64,
}

impl Workload {
    pub(crate) fn new(user: User, power: Power, run: &Run) -> Self {
        let rng = fastrand::Rng::with_seed(run.seed);
        let (profile, topology) = (Profile::of(run.seed), has_topology(run.seed));
        Self { user, power, rng, profile, topology, made: 0 }
    }

    pub(crate) async fn live(mut self) -> Result<(), UserError> {
        for (name, binding, provisioner) in [
            (NOW, "Immediate", DRIVER),
            (LATER, "WaitForFirstConsumer", DRIVER),
            (HAND, "Immediate", "kubernetes.io/no-provisioner"),
        ] {
            let class = json!({"metadata": {"name": name}, "provisioner": provisioner,
                "reclaimPolicy": "Delete", "volumeBindingMode": binding});
            self.user.api.create::<StorageClass>(&class).await?;
        }
        for _ in 0..STEPS {
            self.step().await?;
            // Half of the steps are taken together with the next one.
            if self.rng.bool() {
                sleep(Duration::from_millis(self.rng.u64(..8_000))).await;
            }
        }
        self.user.ledger.note("the faults stop");
        for node in NODES {
            self.recover(node).await?;
        }
        self.settle().await?;
        for volume in self.user.truth.list::<Volume>() {
            if volume["spec"]["storageClassName"] == HAND {
                self.user.delete::<Volume>(text(&volume["metadata"]["name"])).await?;
            }
        }
        self.user.leave().await
    }

    async fn step(&mut self) -> Result<(), UserError> {
        let weights = self.profile.weights();
        let mut left = self.rng.usize(..weights.iter().sum::<usize>());
        let chosen = weights.iter().position(|weight| {
            let here = left < *weight;
            left = left.saturating_sub(*weight);
            here
        });
        match chosen.unwrap_or_default() {
            0 => self.make_claim().await,
            1 => self.make_volume().await,
            2 => self.make_pod().await,
            3 => self.delete_pod().await,
            4 => self.delete_claim().await,
            5 => self.delete_volume().await,
            6 => self.partition().await,
            7 => self.power_off().await,
            _ => {
                let node = self.node();
                self.recover(node).await
            }
        }
    }

    fn node(&mut self) -> &'static str {
        NODES[self.rng.usize(..NODES.len())]
    }

    fn note(&self, text: &str) {
        self.user.ledger.note(text);
    }

    /// A claim of any kind, under the first name that is free.
    async fn make_claim(&mut self) -> Result<(), UserError> {
        let free = |name: &&&str| self.user.truth.get::<Claim>(name).is_none();
        let Some(name) = CLAIMS.iter().find(free) else { return Ok(()) };
        let class = self.profile.classes()[self.rng.usize(..4)];
        let mut claim = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "resources": {"requests": {"storage": "1Gi"}}},
        });
        let volumes = self.volumes_by_hand();
        if class == HAND && self.rng.u8(..4) == 0 && !volumes.is_empty() {
            // The user has chosen the volume, whichever claim may have it.
            let volume = &volumes[self.rng.usize(..volumes.len())];
            claim["spec"]["volumeName"] = volume["metadata"]["name"].clone();
        }
        self.note(&format!("a claim of class {class} is made: {name}"));
        self.user.create_claim(&claim).await
    }

    fn volumes_by_hand(&self) -> Vec<Value> {
        let mut all = self.user.truth.list::<Volume>();
        all.retain(|volume| volume["spec"]["storageClassName"] == HAND);
        all
    }

    /// A volume made by hand, for any claim or reserved for a claim of some name.
    async fn make_volume(&mut self) -> Result<(), UserError> {
        self.made += 1;
        let name = format!("hand-{}", self.made);
        let mut request = create_request(&format!("{BY_HAND}{}", self.made), BYTES);
        if self.topology {
            let segments = [(crate::TOPOLOGY_KEY.to_owned(), self.node().to_owned())].into();
            let place = longshore_csi::v1::Topology { segments };
            request.accessibility_requirements = Some(longshore_csi::v1::TopologyRequirement {
                requisite: vec![place.clone()],
                preferred: vec![place],
            });
        }
        let place = request.accessibility_requirements.clone();
        let driver = self.user.truth.driver().on_node(ADMIN, Default::default());
        let client = driver.client();
        let response = self.user.until_responded(|| client.create_volume(request.clone())).await?;
        let handle = response.volume.unwrap_or_default().volume_id;
        let mut volume = json!({
            "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": HAND,
                "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Retain",
                "csi": {"driver": DRIVER, "volumeHandle": handle}},
        });
        if let Some(place) = place.and_then(|place| place.requisite.into_iter().next()) {
            let node = &place.segments[crate::TOPOLOGY_KEY];
            volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [
                {"matchExpressions": [
                    {"key": crate::TOPOLOGY_KEY, "operator": "In", "values": [node]}]}]}});
        }
        if self.rng.u8(..3) == 0 {
            let claim = CLAIMS[self.rng.usize(..CLAIMS.len())];
            volume["spec"]["claimRef"] = json!({"namespace": "default", "name": claim});
        }
        self.note(&format!("volume {name} is made by hand"));
        self.user.api.create::<Volume>(&volume).await?;
        Ok(())
    }

    /// A pod for one of the claims, on any node or, without topology, on a chosen one.
    async fn make_pod(&mut self) -> Result<(), UserError> {
        let free = |name: &&&str| self.user.truth.get::<Pod>(name).is_none();
        let Some(name) = PODS.iter().find(free) else { return Ok(()) };
        let claims = self.user.truth.list::<Claim>();
        if claims.is_empty() {
            return Ok(());
        }
        let claim = &claims[self.rng.usize(..claims.len())]["metadata"]["name"];
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "main", "image": "none"}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]},
        });
        if !self.topology && self.rng.bool() {
            pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": self.node()});
        }
        self.note(&format!("pod {name} is made for claim {claim}"));
        self.user.api.create::<Pod>(&pod).await?;
        Ok(())
    }

    async fn delete_pod(&mut self) -> Result<(), UserError> {
        let pod = PODS[self.rng.usize(..PODS.len())];
        self.user.delete::<Pod>(pod).await
    }

    async fn delete_claim(&mut self) -> Result<(), UserError> {
        let claim = CLAIMS[self.rng.usize(..CLAIMS.len())];
        self.user.delete::<Claim>(claim).await
    }

    /// A user deletes the PersistentVolume of a volume that the driver made.
    async fn delete_volume(&mut self) -> Result<(), UserError> {
        let claim = CLAIMS[self.rng.usize(..CLAIMS.len())];
        let made = |claim: &Value| claim["spec"]["storageClassName"] != HAND;
        match self.user.truth.get::<Claim>(claim).is_some_and(|claim| made(&claim)) {
            true => self.user.delete_volume_of(claim).await,
            false => Ok(()),
        }
    }

    /// A node is partitioned for a while: no controller may assume that it unmounts anything.
    async fn partition(&mut self) -> Result<(), UserError> {
        let node = self.node();
        if self.power.of(node) == State::On {
            self.note(&format!("{node} is cut off"));
            self.power.set(node, State::Partitioned);
            self.set_ready_condition(node, "Unknown").await?;
        }
        Ok(())
    }

    /// A node is off. An administrator may taint it out of service, which frees its volumes; or delete it.
    async fn power_off(&mut self) -> Result<(), UserError> {
        let node = self.node();
        if self.power.of(node) == State::Off {
            return Ok(());
        }
        self.note(&format!("{node} is switched off"));
        self.power.set(node, State::Off);
        self.user.truth.driver().edit(|world| {
            if let Some(state) = world.nodes.get_mut(node) {
                state.volumes.clear();
            }
        });
        self.set_ready_condition(node, "Unknown").await?;
        let known = self.rng.u8(..4);
        if known == 0 {
            return Ok(());
        }
        sleep(Duration::from_millis(self.rng.u64(..4_000))).await;
        if known == 1 {
            self.note(&format!("{node} is removed"));
            gone(self.user.api.delete::<Node>(&ObjectKey::cluster(node), &at_once()).await)?;
        } else {
            self.note(&format!("{node} is said to be out of service"));
            let taint = json!([{"key": taints::OUT_OF_SERVICE, "value": "nodeshutdown",
                "effect": "NoExecute"}]);
            self.set_taints(node, &taint).await?;
        }
        // As the pod garbage collector does for nodes that are gone or out of service.
        for pod in self.user.truth.list::<Pod>() {
            if pod["spec"]["nodeName"] == node {
                let key = ObjectKey::new("default", text(&pod["metadata"]["name"]));
                gone(self.user.api.delete::<Pod>(&key, &at_once()).await)?;
            }
        }
        Ok(())
    }

    async fn recover(&self, node: &str) -> Result<(), UserError> {
        if self.power.is_on(node) {
            return Ok(());
        }
        self.note(&format!("{node} comes back"));
        self.set_taints(node, &json!(null)).await?;
        self.power.set(node, State::On);
        Ok(())
    }

    async fn set_taints(&self, node: &str, all: &Value) -> Result<(), UserError> {
        let patch = json!({"spec": {"taints": all}});
        let key = ObjectKey::cluster(node);
        gone(self.user.api.patch::<Node>(&key, Patch::Merge(&patch)).await.map(|_| ()))
    }

    async fn set_ready_condition(&self, node: &str, ready: &str) -> Result<(), UserError> {
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}});
        let key = ObjectKey::cluster(node);
        gone(self.user.api.patch_status::<Node>(&key, Patch::Merge(&status)).await.map(|_| ()))
    }

    /// Waits until everything is as it should be.
    async fn settle(&self) -> Result<(), UserError> {
        let until = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let open = self.unsettled();
            if open.is_empty() {
                self.note("everything is settled");
                return Ok(());
            }
            if Instant::now() >= until {
                let what = format!("the workload settles ({})", open.join("; "));
                return Err(UserError::Waited { what });
            }
            if !self.user.ledger.breaches().is_empty() {
                return Err(UserError::Breached);
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    fn unsettled(&self) -> Vec<String> {
        let (claims, pods) = (self.user.truth.list::<Claim>(), self.user.truth.list::<Pod>());
        let volumes = self.user.truth.list::<Volume>();
        let mut open: Vec<String> = claims
            .iter()
            .filter_map(|claim| {
                let name = text(&claim["metadata"]["name"]);
                let mine = |pod: &&Value| {
                    let volume = &pod["spec"]["volumes"][0]["persistentVolumeClaim"];
                    volume["claimName"] == name && pod["metadata"]["deletionTimestamp"].is_null()
                };
                let users: Vec<&Value> = pods.iter().filter(mine).collect();
                missing(claim, &users, &volumes).map(|what| format!("claim {name} {what}"))
            })
            .collect();
        let going = |object: &&Value| !object["metadata"]["deletionTimestamp"].is_null();
        let stays = pods.iter().filter(going).map(|pod| text(&pod["metadata"]["name"]));
        open.extend(stays.map(|name| format!("pod {name} is deleted and there")));
        open
    }
}

/// What a claim still has to get, if anything.
fn missing(claim: &Value, users: &[&Value], volumes: &[Value]) -> Option<String> {
    // No new pod may use it, and it goes when the last pod does.
    if !claim["metadata"]["deletionTimestamp"].is_null() {
        return users.is_empty().then(|| "is deleted and there".to_owned());
    }
    let class = text(&claim["spec"]["storageClassName"]);
    if claim["status"]["phase"] != "Bound" {
        let free = |volume: &&Value| volume["status"]["phase"] == "Available";
        let fits = |volume: &Value| {
            let (named, kept) = (&claim["spec"]["volumeName"], &volume["spec"]["claimRef"]["name"]);
            volume["spec"]["storageClassName"] == HAND
                && (named.is_null() || *named == volume["metadata"]["name"])
                && (kept.is_null() || *kept == claim["metadata"]["name"])
        };
        return match class {
            NOW => Some("is not bound".to_owned()),
            LATER if !users.is_empty() => Some("is not bound, and has a pod".to_owned()),
            HAND if volumes.iter().filter(free).any(fits) => {
                Some("is not bound, and there is a volume for it".to_owned())
            }
            _ => None,
        };
    }
    // A volume that is being deleted is not attached.
    let deleted = |volume: &&Value| {
        volume["metadata"]["name"] == claim["spec"]["volumeName"]
            && !volume["metadata"]["deletionTimestamp"].is_null()
    };
    if volumes.iter().any(|volume| deleted(&volume)) {
        return None;
    }
    // One node has it at a time, so that one pod may have to wait for another.
    let runs = |pod: &&&Value| pod["status"]["phase"] == "Running";
    let none = !users.is_empty() && users.iter().find(runs).is_none();
    none.then(|| "has pods, and none of them runs".to_owned())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn at_once() -> DeleteParams {
    DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }
}

/// An object that is gone needs no change any more.
fn gone(done: Result<(), ApiError>) -> Result<(), UserError> {
    match done {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}
