//! A node under test: API server in memory, fake driver on sockets, agent, and short verbs.

#![allow(dead_code, reason = "each test file uses its own part")]

pub mod proxy;

use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_apiserver::{ApiServer, Config};
use longshore_cluster::{Api, DeleteParams, ListParams, Patch};
use longshore_core::model::kinds::{
    Claim, ConfigMap, CsiDriver, CsiNode, Event, Node, Pod, Volume, VolumeAttachment,
};
use longshore_core::model::{ObjectKey, VolumeHandle};
use longshore_core::names::{UniqueName, attachment_name};
use longshore_core::stage::paths::NodePaths;
use longshore_csi::capabilities::ControllerCapability;
use longshore_csi::registration::registration_server::{Registration, RegistrationServer};
use longshore_csi::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use longshore_csi::server::{Listener, Routes, serve};
use longshore_csi::{fake, v1};
use longshore_files::mounts::MountTable;
use longshore_node::pods::shim_client::living_shim;
use longshore_node::shim::protocol::read_runs;
use longshore_node::{NodeAgent, NodeConfig, NodeStats, PodsMode, Settings, ShimProgram};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Request, Response, Status};

pub const DRIVER: &str = "main.csi.test";

pub struct Rig {
    dir: tempfile::TempDir,
    _server: ApiServer,
    pub api: Api,
    pub driver: fake::Driver,
    /// What the driver was told, word for word.
    pub heard: proxy::Heard,
    /// What drivers were told about their registration.
    pub notes: Notes,
    agent: Option<Agent>,
    tweak: fn(&mut Settings),
    pub metrics: longshore_cluster::Metrics,
    pub stats: Option<NodeStats>,
    serving: Option<(CancellationToken, JoinHandle<()>)>,
    _sockets: DropGuard,
}

pub type Notes = std::sync::Arc<parking_lot::Mutex<Vec<(String, bool, String)>>>;

struct Agent {
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

struct Plugin {
    name: String,
    kind: String,
    endpoint: String,
    notes: Notes,
}

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: self.kind.clone(),
            name: self.name.clone(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec!["1.0.0".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let note = (self.name.clone(), status.plugin_registered, status.error);
        self.notes.lock().push(note);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

fn shim() -> ShimProgram {
    let exe = std::env::current_exe().unwrap();
    let shim = exe.parent().unwrap().parent().unwrap().join("examples/shim");
    assert!(shim.exists(), "{} is built by `cargo test -p longshore-node`", shim.display());
    ShimProgram { program: shim, args: vec!["pod-shim".into()] }
}

impl Rig {
    pub async fn start(attach: bool) -> Self {
        Self::start_with(attach, json!({})).await
    }

    /// With further fields in the `CSIDriver`'s spec.
    pub async fn start_with(attach: bool, extra: Value) -> Self {
        Self::start_tweaked(attach, extra, |_| {}).await
    }

    /// With further settings of the agent.
    pub async fn start_tweaked(attach: bool, extra: Value, tweak: fn(&mut Settings)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = ApiServer::open(Config::memory()).await.unwrap();
        let api = Api::new(server.client());
        let driver = fake::Driver::with_node(DRIVER, "n1", Default::default());
        driver.configure(|config| {
            config.touch_paths = true;
            if !attach {
                config.controller.remove(ControllerCapability::PublishUnpublishVolume);
            }
        });
        let mut object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"attachRequired": attach, "podInfoOnMount": false, "fsGroupPolicy": "File",
                "volumeLifecycleModes": ["Persistent"]}});
        for (key, value) in extra.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        api.create::<CsiDriver>(&object).await.unwrap();
        let stop = CancellationToken::new();
        let registry = dir.path().join("node/plugins_registry");
        std::fs::create_dir_all(&registry).unwrap();
        let socket = dir.path().join("csi.sock");
        let heard = proxy::Heard::new(dir.path().join("node"));
        let notes = Notes::default();
        let plugin = Plugin {
            name: DRIVER.into(),
            kind: "CSIPlugin".into(),
            endpoint: socket.display().to_string(),
            notes: notes.clone(),
        };
        let routes = Routes::new(RegistrationServer::new(plugin));
        tokio::spawn(serve(
            routes,
            Listener::bind(registry.join("reg.sock")).unwrap(),
            stop.clone(),
        ));
        let mut rig = Self {
            dir,
            _server: server,
            api,
            driver,
            heard,
            notes,
            agent: None,
            tweak,
            metrics: longshore_cluster::Metrics::new(),
            stats: None,
            serving: None,
            _sockets: stop.drop_guard(),
        };
        rig.driver_up();
        rig.start_agent().await;
        rig
    }

    /// The driver serves its socket.
    pub fn driver_up(&mut self) {
        let stop = CancellationToken::new();
        let listener = Listener::bind(self.dir.path().join("csi.sock")).unwrap();
        let serving = serve(proxy::routes(&self.driver, &self.heard), listener, stop.clone());
        let task = tokio::spawn(async move { serving.await.unwrap() });
        self.serving = Some((stop, task));
    }

    /// The driver ends and its socket goes; its registration stays.
    pub async fn driver_down(&mut self) {
        let (stop, task) = self.serving.take().unwrap();
        stop.cancel();
        task.await.unwrap();
        assert!(!self.dir.path().join("csi.sock").exists());
    }

    /// Introduces one more plugin through a socket of its own; it ends with the token.
    pub fn introduce(&self, file: &str, name: &str, kind: &str) -> CancellationToken {
        self.introduce_mortal(file, name, kind).0
    }

    /// Also returns the task that serves: aborted, it leaves its socket behind as `kill -9` does.
    pub fn introduce_mortal(
        &self,
        file: &str,
        name: &str,
        kind: &str,
    ) -> (CancellationToken, JoinHandle<()>) {
        let stop = CancellationToken::new();
        let plugin = Plugin {
            name: name.into(),
            kind: kind.into(),
            endpoint: self.dir.path().join("csi.sock").display().to_string(),
            notes: self.notes.clone(),
        };
        let routes = Routes::new(RegistrationServer::new(plugin));
        let socket = self.root().join("plugins_registry").join(file);
        let serving = serve(routes, Listener::bind(socket).unwrap(), stop.clone());
        (stop, tokio::spawn(async move { serving.await.unwrap() }))
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("node")
    }

    pub async fn start_agent(&mut self) {
        self.driver.clear_calls();
        self.heard.clear();
        self.metrics = longshore_cluster::Metrics::new();
        let config = NodeConfig {
            node_name: "n1".into(),
            root_dir: self.root(),
            pods: PodsMode::Process,
            shim: shim(),
            hidden_dirs: vec![self.dir.path().to_owned()],
            stop_pods: true,
            stop_timeout: Duration::ZERO,
            run_any_image_on_host: false,
            limits: longshore_node::PodLimits::default(),
        };
        let mut settings = Settings { metrics: self.metrics.clone(), ..Settings::default() };
        (self.tweak)(&mut settings);
        let agent = NodeAgent::new(config, self.api.clone()).with(settings);
        let drivers = agent.drivers();
        self.stats = Some(agent.stats());
        let shutdown = CancellationToken::new();
        let token = shutdown.clone();
        let task = tokio::spawn(async move { agent.run(token).await.unwrap() });
        self.agent = Some(Agent { shutdown, task });
        self.until("driver registered", async || {
            drivers.client(DRIVER).is_some()
                && self
                    .api
                    .get_raw::<CsiNode>(&ObjectKey::cluster("n1"))
                    .await
                    .unwrap()
                    .is_some_and(|object| {
                        object["spec"]["drivers"].as_array().is_some_and(|list| !list.is_empty())
                    })
        })
        .await;
    }

    /// As `kill -9` would: no task of the agent gets another turn.
    pub async fn kill_agent(&mut self) {
        let agent = self.agent.take().unwrap();
        agent.task.abort();
        let _ = agent.task.await;
    }

    pub async fn stop(mut self, check: bool) -> PathBuf {
        let agent = self.agent.take().unwrap();
        agent.shutdown.cancel();
        tokio::time::timeout(Duration::from_secs(30), agent.task)
            .await
            .expect("the agent ends")
            .unwrap();
        if check {
            assert_eq!(self.staged_dirs(), Vec::<PathBuf>::new(), "nothing stays staged");
            assert_eq!(mounts_below(self.root()), 0);
        }
        self.root()
    }

    pub async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let wait = async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let done = tokio::time::timeout(Duration::from_secs(20), wait).await;
        assert!(done.is_ok(), "still not so: {what}; calls: {:?}", calls(&self.driver));
    }

    pub async fn volume(&self, name: &str) {
        self.volume_with(name, json!({})).await;
    }

    /// With further fields in the volume's spec, or attributes in its CSI part.
    pub async fn volume_with(&self, name: &str, extra: Value) {
        let request = fake::create_request(&format!("pv-{name}"), 1 << 20);
        let volume = self.driver.client().create_volume(request).await.unwrap().volume.unwrap();
        self.driver.clear_calls();
        let mode = extra["volumeMode"].as_str().unwrap_or("Filesystem");
        let modes = match &extra["accessModes"] {
            Value::Null => json!(["ReadWriteOnce"]),
            modes => modes.clone(),
        };
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"accessModes": modes, "storageClassName": "", "volumeMode": mode,
                "volumeName": format!("pv-{name}"),
                "resources": {"requests": {"storage": extra["request"].as_str().unwrap_or("1Mi")}}}});
        let claim = self.api.create::<Claim>(&claim).await.unwrap();
        let mut object = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("pv-{name}")},
            "spec": {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": name,
                    "uid": claim["metadata"]["uid"]},
                "csi": {"driver": DRIVER, "volumeHandle": volume.volume_id, "fsType": "ext4"}}});
        for (key, value) in extra.as_object().unwrap() {
            let spec = &mut object["spec"];
            if key == "request" {
                continue;
            }
            let in_csi = ["volumeAttributes", "fsType", "readOnly"].contains(&key.as_str())
                || key.ends_with("SecretRef");
            let place = if in_csi { &mut spec["csi"] } else { spec };
            place[key] = value.clone();
        }
        self.api.create::<Volume>(&object).await.unwrap();
        let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Mi"}}});
        self.api
            .patch_status::<Claim>(&ObjectKey::new("default", name), Patch::Merge(&bound))
            .await
            .unwrap();
    }

    pub fn handle(&self, name: &str) -> VolumeHandle {
        let volumes = self.driver.state().volumes;
        let found = volumes.iter().find(|(_, volume)| volume.name == format!("pv-{name}"));
        found.map(|(id, _)| id.into()).expect("the volume was made")
    }

    pub fn unique(&self, name: &str) -> UniqueName {
        UniqueName::new(&DRIVER.into(), &self.handle(name))
    }

    /// What attacher and attach-detach controller do.
    pub async fn attach(&self, name: &str) {
        let handle = self.handle(name);
        let request = v1::ControllerPublishVolumeRequest {
            volume_id: handle.to_string(),
            node_id: "n1".into(),
            volume_capability: Some(fake::mount_capability()),
            ..Default::default()
        };
        self.driver.client().controller_publish_volume(request).await.unwrap();
        self.driver.clear_calls();
        let va = attachment_name(&handle, &DRIVER.into(), &"n1".into());
        let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": va},
            "spec": {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": format!("pv-{name}")}}});
        self.api.create::<VolumeAttachment>(&object).await.unwrap();
        let attached = json!({"status": {"attached": true,
            "attachmentMetadata": {"golden/attach": "slot-7"}}});
        self.api
            .patch_status::<VolumeAttachment>(&ObjectKey::cluster(&va), Patch::Merge(&attached))
            .await
            .unwrap();
        self.list_attached(name).await;
    }

    /// Puts a volume on the node's list of those that are attached.
    pub async fn list_attached(&self, name: &str) {
        let key = ObjectKey::cluster("n1");
        let node = self.api.get_raw::<Node>(&key).await.unwrap().unwrap();
        let mut list = node["status"]["volumesAttached"].as_array().cloned().unwrap_or_default();
        list.push(json!({"name": self.unique(name), "devicePath": ""}));
        let status = json!({"status": {"volumesAttached": list}});
        self.api.patch_status::<Node>(&key, Patch::Merge(&status)).await.unwrap();
    }

    /// A pod with one container that mounts the claim `data` at `/data`; returns its UID.
    pub async fn pod(&self, name: &str, script: &str, extra: Value) -> String {
        let mut pod = json!({"metadata": {"name": name, "namespace": "default"}, "spec": {
            "nodeName": "n1",
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
            "containers": [{"name": "main", "image": "host", "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "v", "mountPath": "/data"}]}],
        }});
        for (key, value) in extra.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        self.create_pod(pod).await
    }

    pub async fn create_pod(&self, mut pod: Value) -> String {
        pod["apiVersion"] = "v1".into();
        pod["kind"] = "Pod".into();
        let pod = self.api.create::<Pod>(&pod).await.unwrap();
        pod["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    pub async fn config_map(&self, name: &str, data: Value) {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default"}, "data": data});
        self.api.create::<ConfigMap>(&map).await.unwrap();
    }

    pub async fn wait_phase(&self, name: &str, phase: &str) -> Value {
        let key = ObjectKey::new("default", name);
        self.until(&format!("pod {name} is {phase}"), async || {
            let pod = self.api.get_raw::<Pod>(&key).await.unwrap();
            pod.is_some_and(|pod| pod["status"]["phase"] == phase)
        })
        .await;
        self.api.get_raw::<Pod>(&key).await.unwrap().unwrap()
    }

    pub async fn delete_pod(&self, name: &str) {
        let params = DeleteParams::default();
        self.api.delete::<Pod>(&ObjectKey::new("default", name), &params).await.unwrap();
    }

    pub async fn force_delete_pod(&self, name: &str) {
        let params = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.api.delete::<Pod>(&ObjectKey::new("default", name), &params).await.unwrap();
    }

    /// Deletes a pod and waits until nothing of it is left on the node.
    pub async fn end(&self, name: &str) {
        let key = ObjectKey::new("default", name);
        let pod = self.api.get::<Pod>(&key).await.unwrap().unwrap();
        self.delete_pod(name).await;
        self.wait_gone(name).await;
        let dir = self.root().join("pods").join(pod.metadata.uid.as_str());
        self.until("the pod's directory is gone", async || !dir.exists()).await;
    }

    pub async fn wait_gone(&self, name: &str) {
        let key = ObjectKey::new("default", name);
        self.until(&format!("pod {name} is gone"), async || {
            self.api.get_raw::<Pod>(&key).await.unwrap().is_none()
        })
        .await;
    }

    pub async fn has_event(&self, reason: &str, text: &str) -> bool {
        let events = self.api.list::<Event>(Some("default"), &ListParams::default()).await.unwrap();
        events.iter().any(|event| event.reason == reason && event.message.contains(text))
    }

    /// How often an event was seen, repetitions counted.
    pub async fn event_count(&self, reason: &str, text: &str) -> i32 {
        let events = self.api.list::<Event>(Some("default"), &ListParams::default()).await.unwrap();
        let fits = |event: &&Event| event.reason == reason && event.message.contains(text);
        events.iter().filter(fits).map(|event| event.count.unwrap_or(1)).sum()
    }

    /// The value of the metric whose line begins so; 0 when there is none.
    pub fn metric(&self, line: &str) -> f64 {
        let text = self.metrics.render();
        let found = text.lines().find(|one| one.starts_with(line));
        found.and_then(|one| one.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
    }

    pub async fn in_use(&self) -> Vec<UniqueName> {
        let node = self.api.get::<Node>(&ObjectKey::cluster("n1")).await.unwrap().unwrap();
        node.status.volumes_in_use
    }

    pub async fn csi_node(&self) -> Value {
        self.api.get_raw::<CsiNode>(&ObjectKey::cluster("n1")).await.unwrap().unwrap()
    }

    pub fn log(&self, uid: &str) -> String {
        let text =
            std::fs::read_to_string(self.root().join("pods").join(uid).join("logs/main.log"))
                .unwrap_or_default();
        text.lines()
            .map(|line| line.splitn(4, ' ').nth(3).unwrap_or("").to_owned() + "\n")
            .collect()
    }

    pub fn pids(&self, uid: &str) -> Vec<i32> {
        let pod = self.root().join("pods").join(uid);
        let runs =
            read_runs(&pod).into_iter().filter(|run| run.outcome.is_none()).map(|run| run.pid);
        runs.chain(living_shim(&pod).map(|shim| shim.pid)).collect()
    }

    pub fn publish_dir(&self, uid: &str, name: &str) -> PathBuf {
        NodePaths::new(self.root()).publish(uid, &format!("pv-{name}"))
    }

    pub fn staged_dirs(&self) -> Vec<PathBuf> {
        let dir = self.root().join("plugins/kubernetes.io/csi").join(DRIVER);
        std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    }
}

impl Drop for Rig {
    // Also after a panic: no shim and no mount outlives its test, and the directory that goes next holds
    // nothing but files.
    fn drop(&mut self) {
        if let Some(agent) = &self.agent {
            agent.task.abort();
        }
        for entry in std::fs::read_dir(self.root().join("pods")).into_iter().flatten().flatten() {
            if let Some(shim) = living_shim(&entry.path()) {
                let pid = rustix::process::Pid::from_raw(shim.pid).unwrap();
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        unmount_below(&self.root());
    }
}

/// Whether a process runs; one that ended and was not waited for does not.
pub fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    state.is_some_and(|state| state != "Z" && state != "X")
}

/// Undoes all mounts below a directory, those on mounts first.
fn unmount_below(dir: &Path) {
    use rustix::mount::{UnmountFlags, unmount};
    // A call in flight may still mount something.
    for _ in 0..20 {
        let Ok(table) = MountTable::read() else { return };
        let below = table.mounts.iter().filter(|mount| mount.path.starts_with(dir));
        let paths: Vec<&PathBuf> = below.map(|mount| &mount.path).collect();
        if paths.is_empty() {
            return;
        }
        for path in paths.into_iter().rev() {
            let _ = unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
    }
}

/// Names of the calls that change a node, in order.
pub fn calls(driver: &fake::Driver) -> Vec<String> {
    let name = |record: fake::CallRecord| format!("{:?}", record.call);
    driver
        .calls()
        .into_iter()
        .map(name)
        .filter(|name| name.starts_with("Node") && !name.starts_with("NodeGet"))
        .collect()
}

pub fn mounts_below(dir: impl AsRef<Path>) -> usize {
    let table = MountTable::read().unwrap();
    table.mounts.iter().filter(|mount| mount.path.starts_with(dir.as_ref())).count()
}
