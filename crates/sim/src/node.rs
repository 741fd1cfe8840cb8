//! A simulated node in place of the node agent.
//!
//! Once a second (less often while it is empty) it compares the pods it should run with what the
//! driver has on it, and takes the steps of the real agent in their order: say that a volume is in
//! use, wait until it is reported attached, stage, publish, run; and back: unpublish, unstage, say
//! that it is no longer in use, remove the pod. What is mounted is asked of the driver, as the
//! agent asks the mount table, so the node has no memory that could be wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longshore_cluster::{Api, ApiError, DeleteParams, ObjectKey, Patch, clock};
use longshore_core::model::Quantity;
use longshore_core::model::kinds::{
    Claim, CsiDriver, CsiNode, Node, Pod, Volume, VolumeAttachment,
};
use longshore_core::names::UniqueName;
use longshore_csi::fake::mount_capability;
use longshore_csi::{Client, CsiError, v1};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::ledger::Ledger;
use crate::power::Power;
use crate::truth::Truth;
use crate::world::World;
use crate::{DRIVER, TOPOLOGY_KEY};

const TICK: Duration = Duration::from_secs(1);
const IDLE_TICK: Duration = Duration::from_secs(3);
/// The agent writes its status this often even if nothing changed.
const HEARTBEAT: Duration = Duration::from_secs(300);

/// Why a tick stopped early; the next one goes on.
#[derive(Debug, thiserror::Error)]
enum Stopped {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Driver(#[from] CsiError),
}

pub(crate) struct SimNode {
    name: String,
    api: Api,
    csi: Client,
    truth: Truth,
    ledger: Ledger,
    topology: bool,
    power: Power,
}

/// By volume, where it is staged and where it is published.
type Mounted = BTreeMap<String, (Option<String>, Vec<String>)>;

/// Whether something is published for a pod.
fn is_on(mounted: &Mounted, pod: &Value) -> bool {
    let own = format!("/pods/{}/", text(&pod["metadata"]["uid"]));
    mounted.values().any(|(_, targets)| targets.iter().any(|target| target.starts_with(&own)))
}

/// A volume that a pod on this node wants.
struct Wanted {
    pod: String,
    volume: String,
    handle: String,
    context: BTreeMap<String, String>,
}

impl Wanted {
    fn target(&self) -> String {
        format!("/pods/{}/{}", self.pod, self.volume)
    }
}

fn unique(handle: &str) -> UniqueName {
    UniqueName::new(&DRIVER.into(), &handle.into())
}

fn staging(handle: &str) -> String {
    format!("/staging/{handle}")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

impl SimNode {
    pub(crate) fn new(name: &str, world: &World) -> Self {
        let World { api, driver, truth, ledger, power, .. } = world;
        let mut topology = false;
        driver.configure(|config| topology = config.topology());
        let segments = match topology {
            true => BTreeMap::from([(TOPOLOGY_KEY.to_owned(), name.to_owned())]),
            false => BTreeMap::new(),
        };
        Self {
            name: name.to_owned(),
            api: api.clone(),
            csi: driver.on_node(name, segments).client(),
            truth: truth.clone(),
            ledger: ledger.clone(),
            topology,
            power: power.clone(),
        }
    }

    /// Creates the Node and the CSINode.
    pub(crate) async fn register(&self) -> Result<(), ApiError> {
        let name = &self.name;
        let node = json!({"metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, TOPOLOGY_KEY: name},
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        }});
        present(self.api.create::<Node>(&node).await)?;
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        self.api.patch_status::<Node>(&ObjectKey::cluster(name), Patch::Merge(&status)).await?;
        let keys = if self.topology { json!([TOPOLOGY_KEY]) } else { json!([]) };
        let csi_node = json!({
            "metadata": {"name": name},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": name, "topologyKeys": keys}]},
        });
        present(self.api.create::<CsiNode>(&csi_node).await)
    }

    pub(crate) async fn run(self) {
        let mut beat = Instant::now() + HEARTBEAT;
        let mut registered = 0;
        loop {
            if !self.power.is_on(&self.name) {
                tokio::time::sleep(TICK).await;
                continue;
            }
            let returns = self.power.returns(&self.name);
            if returns != registered
                && let Err(error) = self.register().await
            {
                self.ledger.note(format!("{}: {error}", self.name));
                tokio::time::sleep(TICK).await;
                continue;
            }
            registered = returns;
            if Instant::now() >= beat {
                beat += HEARTBEAT;
                if let Err(error) = self.heartbeat().await {
                    self.ledger.note(format!("{}: {error}", self.name));
                }
            }
            let pause = match self.tick().await {
                Ok(busy) => {
                    if busy {
                        TICK
                    } else {
                        IDLE_TICK
                    }
                }
                Err(error) => {
                    self.ledger.note(format!("{}: {error}", self.name));
                    TICK
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn heartbeat(&self) -> Result<(), ApiError> {
        let now = clock::seconds(clock::now());
        let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": now});
        let status = json!({"status": {"conditions": [ready]}});
        let key = ObjectKey::cluster(&self.name);
        self.api.patch_status::<Node>(&key, Patch::Merge(&status)).await.map(|_| ())
    }

    /// Returns whether there is anything on the node.
    async fn tick(&self) -> Result<bool, Stopped> {
        let mut pods = self.truth.list::<Pod>();
        pods.retain(|pod| pod["spec"]["nodeName"] == self.name.as_str());
        self.check_claims(&pods);
        let wanted = self.wanted(&pods);
        self.tear_down(&wanted).await?;
        self.remove_deleted(&pods).await?;
        self.report_in_use(&wanted).await?;
        for one in &wanted {
            self.set_up(one).await?;
            self.expand(one).await?;
        }
        self.run_ready(&pods).await?;
        Ok(!pods.is_empty() || !self.mounted().is_empty())
    }

    /// A claim never goes while a pod has its volume mounted.
    fn check_claims(&self, pods: &[Value]) {
        let mounted = self.mounted();
        for pod in pods.iter().filter(|pod| is_on(&mounted, pod)) {
            for claim in claim_names(pod) {
                if self.truth.get::<Claim>(claim).is_none() {
                    let pod = &pod["metadata"]["name"];
                    self.ledger.breach(format!("claim {claim} is gone while pod {pod} has it"));
                }
            }
        }
    }

    /// The volumes of pods that are to run; claims that are not bound yet are waited for.
    fn wanted(&self, pods: &[Value]) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        for pod in pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()) {
            for claim in claim_names(pod) {
                let claim = self
                    .truth
                    .get::<Claim>(claim)
                    .filter(|claim| claim["status"]["phase"] == "Bound");
                let volume = claim
                    .and_then(|claim| self.truth.get::<Volume>(text(&claim["spec"]["volumeName"])));
                let Some(volume) = volume else { continue };
                let source = &volume["spec"]["csi"];
                let context = source["volumeAttributes"].as_object().into_iter().flatten();
                wanted.push(Wanted {
                    pod: text(&pod["metadata"]["uid"]).to_owned(),
                    volume: text(&volume["metadata"]["name"]).to_owned(),
                    handle: text(&source["volumeHandle"]).to_owned(),
                    context: context.map(|(k, v)| (k.clone(), text(v).to_owned())).collect(),
                });
            }
        }
        wanted
    }

    /// What the driver has on this node: by volume, where it is staged and published.
    fn mounted(&self) -> Mounted {
        let world = self.truth.driver().state();
        let Some(state) = world.nodes.get(&self.name) else { return BTreeMap::new() };
        let places = state.volumes.iter().map(|(id, volume)| {
            let staged = volume.staged.as_ref().map(|(path, _)| path.clone());
            (id.clone(), (staged, volume.targets.keys().cloned().collect()))
        });
        places.collect()
    }

    async fn tear_down(&self, wanted: &[Wanted]) -> Result<(), Stopped> {
        let targets: BTreeSet<String> = wanted.iter().map(Wanted::target).collect();
        for (id, (staged, published)) in self.mounted() {
            for path in published.iter().filter(|path| !targets.contains(*path)) {
                self.ledger.note(format!("{} unpublishes {id}", self.name));
                let request = v1::NodeUnpublishVolumeRequest {
                    volume_id: id.clone(),
                    target_path: path.clone(),
                };
                self.csi.node_unpublish_volume(request).await?;
            }
            let needed = wanted.iter().any(|one| one.handle == id);
            if let Some(path) = staged.filter(|_| !needed) {
                self.ledger.note(format!("{} unstages {id}", self.name));
                let request = v1::NodeUnstageVolumeRequest {
                    volume_id: id.clone(),
                    staging_target_path: path,
                };
                self.csi.node_unstage_volume(request).await?;
            }
        }
        Ok(())
    }

    /// Pods go when nothing of theirs is left on the node.
    async fn remove_deleted(&self, pods: &[Value]) -> Result<(), Stopped> {
        let mounted = self.mounted();
        for pod in pods.iter().filter(|pod| !pod["metadata"]["deletionTimestamp"].is_null()) {
            if is_on(&mounted, pod) {
                continue;
            }
            let name = text(&pod["metadata"]["name"]);
            self.ledger.note(format!("{} removes pod {name}", self.name));
            let now = DeleteParams {
                grace_period_seconds: Some(0),
                ..DeleteParams::uid(text(&pod["metadata"]["uid"]))
            };
            match self.api.delete::<Pod>(&ObjectKey::new("default", name), &now).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    fn must_attach(&self) -> bool {
        let driver = self.truth.get::<CsiDriver>(DRIVER);
        driver.is_none_or(|driver| driver["spec"]["attachRequired"] != false)
    }

    /// In use is what is mounted and what is about to be; said before the first mount and taken
    /// back after the last.
    async fn report_in_use(&self, wanted: &[Wanted]) -> Result<(), Stopped> {
        if !self.must_attach() {
            return Ok(());
        }
        let mut in_use: BTreeSet<_> = wanted.iter().map(|one| unique(&one.handle)).collect();
        in_use.extend(self.mounted().keys().map(|id| unique(id)));
        let node = self.truth.get::<Node>(&self.name).unwrap_or_default();
        let said =
            items(&node["status"]["volumesInUse"]).iter().map(|name| UniqueName::from(text(name)));
        if said.collect::<BTreeSet<_>>() == in_use {
            return Ok(());
        }
        self.ledger.note(format!("{} says in use: {in_use:?}", self.name));
        let status = json!({"status": {"volumesInUse": in_use}});
        let key = ObjectKey::cluster(&self.name);
        self.api.patch_status::<Node>(&key, Patch::Merge(&status)).await?;
        Ok(())
    }

    /// Stages and publishes a volume once the node's status reports it attached.
    async fn set_up(&self, one: &Wanted) -> Result<(), Stopped> {
        let Some(publish_context) = self.publish_context(one) else { return Ok(()) };
        let mounted = self.mounted();
        let (staged, targets) = mounted.get(&one.handle).cloned().unwrap_or_default();
        if staged.is_none() {
            self.ledger.note(format!("{} stages {}", self.name, one.handle));
            let request = v1::NodeStageVolumeRequest {
                volume_id: one.handle.clone(),
                publish_context: publish_context.clone(),
                staging_target_path: staging(&one.handle),
                volume_capability: Some(mount_capability()),
                volume_context: one.context.clone(),
                ..Default::default()
            };
            self.csi.node_stage_volume(request).await?;
        }
        // The driver gives a volume of this kind to one pod at a time; the next one waits.
        if targets.is_empty() {
            self.ledger.note(format!("{} publishes {}", self.name, one.handle));
            let request = v1::NodePublishVolumeRequest {
                volume_id: one.handle.clone(),
                publish_context,
                staging_target_path: staging(&one.handle),
                target_path: one.target(),
                volume_capability: Some(mount_capability()),
                volume_context: one.context.clone(),
                ..Default::default()
            };
            self.csi.node_publish_volume(request).await?;
        }
        Ok(())
    }

    /// Expands a volume whose claim waits for its node, as the agent does.
    async fn expand(&self, one: &Wanted) -> Result<(), Stopped> {
        let Some(claim) = self.claim_of(one) else { return Ok(()) };
        let waits = text(&claim["status"]["allocatedResourceStatuses"]["storage"]);
        let published =
            self.mounted().get(&one.handle).is_some_and(|(_, targets)| !targets.is_empty());
        if !published || !["NodeResizePending", "NodeResizeInProgress"].contains(&waits) {
            return Ok(());
        }
        let size = text(&claim["status"]["allocatedResources"]["storage"]);
        self.ledger.note(format!("{} expands {} to {size}", self.name, one.handle));
        let bytes = size.parse::<Quantity>().map_or(0, |size| size.bytes());
        let request = v1::NodeExpandVolumeRequest {
            volume_id: one.handle.clone(),
            volume_path: one.target(),
            staging_target_path: staging(&one.handle),
            capacity_range: Some(v1::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            volume_capability: Some(mount_capability()),
            ..Default::default()
        };
        self.csi.node_expand_volume(request).await?;
        let kinds = longshore_core::resize::conditions::OF_RESIZE;
        let mut kept = items(&claim["status"]["conditions"]).to_vec();
        kept.retain(|condition| !kinds.contains(&text(&condition["type"])));
        let patch = json!({"metadata": {"uid": claim["metadata"]["uid"]}, "status": {
            "capacity": {"storage": size}, "allocatedResourceStatuses": null, "conditions": kept}});
        let key = ObjectKey::new("default", text(&claim["metadata"]["name"]));
        self.api.patch_status::<Claim>(&key, Patch::Merge(&patch)).await?;
        Ok(())
    }

    fn claim_of(&self, one: &Wanted) -> Option<Value> {
        let claims = self.truth.list::<Claim>();
        claims.into_iter().find(|claim| claim["spec"]["volumeName"] == one.volume.as_str())
    }

    /// What the driver said when it attached the volume; `None` while it is not attached.
    fn publish_context(&self, one: &Wanted) -> Option<BTreeMap<String, String>> {
        if !self.must_attach() {
            return Some(BTreeMap::new());
        }
        let node = self.truth.get::<Node>(&self.name)?;
        let attached = items(&node["status"]["volumesAttached"]);
        attached.iter().find(|volume| volume["name"] == unique(&one.handle).as_str())?;
        let all = self.truth.list::<VolumeAttachment>();
        let attachment = all.iter().find(|attachment| {
            attachment["spec"]["nodeName"] == self.name.as_str()
                && attachment["spec"]["source"]["persistentVolumeName"] == one.volume.as_str()
                && attachment["status"]["attached"] == true
        })?;
        let metadata = attachment["status"]["attachmentMetadata"].as_object().into_iter().flatten();
        Some(metadata.map(|(k, v)| (k.clone(), text(v).to_owned())).collect())
    }

    async fn run_ready(&self, pods: &[Value]) -> Result<(), Stopped> {
        let mounted = self.mounted();
        for pod in pods {
            let waits = pod["status"]["phase"] == "Pending"
                && pod["metadata"]["deletionTimestamp"].is_null();
            let own = format!("/pods/{}/", text(&pod["metadata"]["uid"]));
            let mine =
                |targets: &Vec<String>| targets.iter().any(|target| target.starts_with(&own));
            let there = mounted.values().filter(|(_, targets)| mine(targets)).count();
            if !waits || there < claim_names(pod).count() {
                continue;
            }
            let name = text(&pod["metadata"]["name"]);
            self.ledger.note(format!("{} runs pod {name}", self.name));
            let status = json!({"status": {"phase": "Running"}});
            let key = ObjectKey::new("default", name);
            match self.api.patch_status::<Pod>(&key, Patch::Merge(&status)).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Already there is as good as made.
fn present(made: Result<Value, ApiError>) -> Result<(), ApiError> {
    match made {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

fn claim_names(pod: &Value) -> impl Iterator<Item = &str> {
    let volumes = items(&pod["spec"]["volumes"]).iter();
    volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
}
