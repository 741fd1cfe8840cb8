//! A recording proxy in front of the driver's node service: what was said, and how the node's
//! directories looked at that moment.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_csi::server::Routes;
use longshore_csi::v1::controller_server::ControllerServer;
use longshore_csi::v1::identity_server::IdentityServer;
use longshore_csi::v1::node_server::{Node, NodeServer};
use longshore_csi::v1::volume_capability::AccessType;
use longshore_csi::{fake, v1};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tonic::{Request, Response, Status};

/// One call.
#[derive(Debug, Clone)]
pub struct Call {
    pub name: &'static str,
    /// Empty fields are left out.
    pub request: Value,
    /// Paths below the root with their modes, before the driver did anything.
    pub tree: Vec<String>,
}

/// All calls so far.
#[derive(Clone)]
pub struct Heard {
    root: PathBuf,
    calls: Arc<Mutex<Vec<Call>>>,
    stats: Arc<Mutex<Vec<Value>>>,
    prepare: Arc<Mutex<Option<Prepare>>>,
}

/// What a volume holds when it is published for the first time.
type Prepare = Box<dyn Fn(&Path) + Send>;

impl Heard {
    pub fn new(root: PathBuf) -> Self {
        Self { root, calls: Arc::default(), stats: Arc::default(), prepare: Arc::default() }
    }

    pub fn clear(&self) {
        self.calls.lock().clear();
    }

    pub fn all(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.calls.lock().iter().map(|call| call.name).collect()
    }

    pub fn of(&self, name: &str) -> Vec<Value> {
        let calls = self.calls.lock();
        calls.iter().filter(|call| call.name == name).map(|call| call.request.clone()).collect()
    }

    /// The questions for statistics, apart from the other calls.
    pub fn stats(&self) -> Vec<Value> {
        self.stats.lock().clone()
    }

    /// Fills volumes when they are published.
    pub fn prepare(&self, fill: impl Fn(&Path) + Send + 'static) {
        *self.prepare.lock() = Some(Box::new(fill));
    }

    fn push(&self, name: &'static str, mut request: Value) {
        strip_empty(&mut request);
        let tree = tree(&self.root);
        self.calls.lock().push(Call { name, request, tree });
    }
}

fn strip_empty(value: &mut Value) {
    if let Some(map) = value.as_object_mut() {
        map.retain(|_, value| match value {
            Value::Null => false,
            Value::Bool(set) => *set,
            Value::String(text) => !text.is_empty(),
            Value::Object(map) => !map.is_empty(),
            Value::Array(list) => !list.is_empty(),
            Value::Number(_) => true,
        });
    }
}

/// The node's directories, without those of the shim and the registry: path, kind and mode.
pub fn tree(root: &Path) -> Vec<String> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let mut found = Vec::new();
    let mut todo = vec![root.join("plugins"), root.join("pods")];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(data) = std::fs::symlink_metadata(&path) else { continue };
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if name.contains("/shim") || name.contains("/logs") {
                continue;
            }
            let kind = match data.file_type() {
                kind if kind.is_dir() => "dir",
                kind if kind.is_symlink() => "link",
                kind if kind.is_block_device() => "block",
                _ => "file",
            };
            found.push(format!("{name} {kind} {:04o}", data.mode() & 0o7777));
            if data.is_dir() && !name.ends_with("/mount") && !name.ends_with("/globalmount") {
                todo.push(path);
            }
        }
    }
    found.sort();
    found
}

fn capability(one: Option<&v1::VolumeCapability>) -> Value {
    let Some(one) = one else { return Value::Null };
    let mode = one.access_mode.map(|mode| mode.mode().as_str_name());
    let mut out = match &one.access_type {
        // Without any field it says still that the volume is to be mounted.
        Some(AccessType::Mount(mount)) if *mount == Default::default() => {
            return json!({"mount": {}, "mode": mode});
        }
        Some(AccessType::Block(_)) => json!({"block": true}),
        Some(AccessType::Mount(mount)) => json!({"mount": {"fs_type": mount.fs_type,
            "mount_flags": mount.mount_flags, "group": mount.volume_mount_group}}),
        None => json!({}),
    };
    strip_empty(&mut out["mount"]);
    out["mode"] = json!(mode);
    strip_empty(&mut out);
    out
}

struct Proxy {
    inner: fake::Driver,
    heard: Heard,
}

/// The driver's services, with this one in front of the node's.
pub fn routes(driver: &fake::Driver, heard: &Heard) -> Routes {
    let proxy = Proxy { inner: driver.clone(), heard: heard.clone() };
    Routes::new(NodeServer::new(proxy))
        .add_service(IdentityServer::new(driver.clone()))
        .add_service(ControllerServer::new(driver.clone()))
}

/// The fake removes only empty directories; a real driver takes its volume away, data and all.
fn empty(target: &Path) {
    for entry in std::fs::read_dir(target).into_iter().flatten().flatten() {
        let path = entry.path();
        let _ =
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    }
}

type Answer<T> = Result<Response<T>, Status>;

/// The fake knows no inline volumes: their directory is all there is to them.
fn is_inline(id: &str) -> bool {
    id.starts_with("csi-")
}

#[tonic::async_trait]
impl Node for Proxy {
    async fn node_stage_volume(
        &self,
        request: Request<v1::NodeStageVolumeRequest>,
    ) -> Answer<v1::NodeStageVolumeResponse> {
        let one = request.get_ref();
        self.heard.push("NodeStageVolume", json!({"volume_id": one.volume_id, "staging": one.staging_target_path,
            "publish_context": one.publish_context, "capability": capability(one.volume_capability.as_ref()),
            "secrets": one.secrets, "volume_context": one.volume_context}));
        Node::node_stage_volume(&self.inner, request).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<v1::NodeUnstageVolumeRequest>,
    ) -> Answer<v1::NodeUnstageVolumeResponse> {
        let one = request.get_ref();
        self.heard.push(
            "NodeUnstageVolume",
            json!({"volume_id": one.volume_id, "staging": one.staging_target_path}),
        );
        Node::node_unstage_volume(&self.inner, request).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<v1::NodePublishVolumeRequest>,
    ) -> Answer<v1::NodePublishVolumeResponse> {
        let one = request.get_ref();
        self.heard.push("NodePublishVolume", json!({"volume_id": one.volume_id, "staging": one.staging_target_path,
            "target": one.target_path, "readonly": one.readonly, "publish_context": one.publish_context,
            "capability": capability(one.volume_capability.as_ref()), "secrets": one.secrets,
            "volume_context": one.volume_context}));
        if is_inline(&one.volume_id) {
            std::fs::create_dir_all(&one.target_path)?;
            return Ok(Response::new(v1::NodePublishVolumeResponse {}));
        }
        let target = PathBuf::from(&one.target_path);
        let new = !target.exists();
        let answer = Node::node_publish_volume(&self.inner, request).await;
        if let Some(fill) = self.heard.prepare.lock().as_ref().filter(|_| new && answer.is_ok()) {
            fill(&target);
        }
        answer
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Answer<v1::NodeUnpublishVolumeResponse> {
        let one = request.get_ref();
        self.heard.push(
            "NodeUnpublishVolume",
            json!({"volume_id": one.volume_id, "target": one.target_path}),
        );
        if is_inline(&one.volume_id) {
            std::fs::remove_dir(&one.target_path)?;
            return Ok(Response::new(v1::NodeUnpublishVolumeResponse {}));
        }
        empty(Path::new(&one.target_path));
        Node::node_unpublish_volume(&self.inner, request).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<v1::NodeGetVolumeStatsRequest>,
    ) -> Answer<v1::NodeGetVolumeStatsResponse> {
        let one = request.get_ref();
        let mut asked = json!({"volume_id": one.volume_id, "path": one.volume_path,
            "staging": one.staging_target_path});
        strip_empty(&mut asked);
        self.heard.stats.lock().push(asked);
        // The fake knows a device only by its publish file, and inline volumes not at all.
        let path = Path::new(&one.volume_path);
        let known = self.inner.state().volumes.contains_key(&one.volume_id);
        if !known || !path.is_dir() {
            use v1::volume_usage::Unit;
            let usage = |unit: Unit| v1::VolumeUsage {
                total: 10,
                available: 9,
                used: 1,
                unit: unit.into(),
            };
            let usage = if path.is_dir() {
                vec![usage(Unit::Bytes), usage(Unit::Inodes)]
            } else {
                vec![usage(Unit::Bytes)]
            };
            return Ok(Response::new(v1::NodeGetVolumeStatsResponse {
                usage,
                volume_condition: None,
            }));
        }
        Node::node_get_volume_stats(&self.inner, request).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<v1::NodeExpandVolumeRequest>,
    ) -> Answer<v1::NodeExpandVolumeResponse> {
        let one = request.get_ref();
        let bytes = one.capacity_range.map(|range| range.required_bytes);
        self.heard.push(
            "NodeExpandVolume",
            json!({"volume_id": one.volume_id, "path": one.volume_path,
            "staging": one.staging_target_path, "required_bytes": bytes, "secrets": one.secrets,
            "capability": capability(one.volume_capability.as_ref())}),
        );
        Node::node_expand_volume(&self.inner, request).await
    }

    async fn node_get_capabilities(
        &self,
        request: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Answer<v1::NodeGetCapabilitiesResponse> {
        Node::node_get_capabilities(&self.inner, request).await
    }

    async fn node_get_info(
        &self,
        request: Request<v1::NodeGetInfoRequest>,
    ) -> Answer<v1::NodeGetInfoResponse> {
        Node::node_get_info(&self.inner, request).await
    }

    async fn node_get_volume_health(
        &self,
        request: Request<v1::NodeGetVolumeHealthRequest>,
    ) -> Answer<v1::NodeGetVolumeHealthResponse> {
        Node::node_get_volume_health(&self.inner, request).await
    }

    async fn node_get_storage_health(
        &self,
        request: Request<v1::NodeGetStorageHealthRequest>,
    ) -> Answer<v1::NodeGetStorageHealthResponse> {
        Node::node_get_storage_health(&self.inner, request).await
    }
}
