//! A driver in memory, for tests and for the simulator.
//!
//! It follows the rules of the protocol: idempotent calls, capability requirements, the error codes of the tables. On
//! top of that it can be made to fail ([`Fault`], [`Driver::hook`]), it remembers every call
//! ([`Driver::calls`]) and every breach of the call order by its caller ([`Driver::violations`]).

mod controller;
mod groups;
mod health;
mod identity;
mod node;
mod script;
mod snapshots;
mod state;
mod version;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;

use crate::capabilities::{
    ControllerCapabilities, ControllerCapability, GroupCapabilities, NodeCapabilities,
    NodeCapability, PluginCapabilities, PluginService, VolumeExpansion,
};
use crate::server::{self, Routes, Severable};
use crate::{Client, Options, v1};

pub use script::{Action, CallEvent, CallRecord, Fault, Phase};
pub use state::{Group, NodeVolume, PublishedOnNode, State, Target, Volume};
pub use version::Version;

/// The driver's advertised capabilities, its limits and its defects. [`Driver::configure`] changes it at any time.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: String,
    /// What GetPluginInfo says beside the name.
    pub manifest: BTreeMap<String, String>,
    /// The response of Probe; absent means ready.
    pub ready: Option<bool>,
    pub plugin: PluginCapabilities,
    /// Capabilities of the Controller service.
    pub controller: ControllerCapabilities,
    /// Capabilities of the Node service.
    pub node: NodeCapabilities,
    /// Capabilities of the GroupController service, which is served only with its plugin capability.
    pub group: GroupCapabilities,
    /// The version of CSI that the driver was built with: it has no later call, whatever it advertises.
    pub version: Version,
    /// Where volumes can be, each with its size in bytes; volumes without topology use the first one.
    pub pools: Vec<Pool>,
    pub max_volume_size: Option<i64>,
    /// How many volumes fit on a node; zero means no limit.
    pub max_volumes_per_node: i64,
    /// Put into every new volume.
    pub volume_context: BTreeMap<String, String>,
    /// The secrets that CreateVolume has to bring, exactly; absent means any.
    pub create_secrets: Option<BTreeMap<String, String>>,
    /// The same for ControllerModifyVolume.
    pub modify_secrets: Option<BTreeMap<String, String>>,
    /// Names of mutable parameters that are refused.
    pub refused_parameters: Vec<String>,
    /// How many responses report a new snapshot as not ready.
    pub snapshot_polls: u32,
    /// The same for a new group of snapshots.
    pub group_polls: u32,
    /// Whether ControllerExpandVolume requires NodeExpandVolume.
    pub node_expansion_required: bool,
    /// Alters the volume in the response of CreateVolume, as a driver with a bug would; the stored one is as requested.
    pub alter_created_volume: Option<fn(&mut v1::Volume)>,
    /// The `next_token` of every page, as a driver with a bug would return it.
    pub stuck_token: Option<String>,
    /// The most entries of a page, whatever is asked for; zero means no limit of the driver's own.
    pub page_entries: usize,
    /// Create and remove target paths in the real file system, as a real node plugin does.
    pub touch_paths: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// The segments a node must have to reach it.
    pub segments: BTreeMap<String, String>,
    /// Its size in bytes; absent means endless.
    pub capacity: Option<i64>,
}

impl Config {
    fn new(name: &str) -> Self {
        use ControllerCapability as C;
        Self {
            name: name.to_owned(),
            manifest: BTreeMap::new(),
            ready: None,
            plugin: PluginCapabilities {
                services: [PluginService::ControllerService].into(),
                expansion: [VolumeExpansion::Online].into(),
            },
            controller: [
                C::CreateDeleteVolume,
                C::PublishUnpublishVolume,
                C::ListVolumes,
                C::GetCapacity,
                C::CreateDeleteSnapshot,
                C::ListSnapshots,
                C::CloneVolume,
                C::PublishReadonly,
                C::ExpandVolume,
                C::ListVolumesPublishedNodes,
                C::GetVolume,
                C::ModifyVolume,
                C::GetSnapshot,
            ]
            .into(),
            node: [
                NodeCapability::StageUnstageVolume,
                NodeCapability::GetVolumeStats,
                NodeCapability::ExpandVolume,
            ]
            .into(),
            group: GroupCapabilities::default(),
            version: Version::V1_13,
            pools: vec![Pool::default()],
            max_volume_size: None,
            max_volumes_per_node: 0,
            create_secrets: None,
            modify_secrets: None,
            volume_context: BTreeMap::new(),
            refused_parameters: Vec::new(),
            snapshot_polls: 0,
            group_polls: 0,
            node_expansion_required: true,
            alter_created_volume: None,
            stuck_token: None,
            page_entries: 0,
            touch_paths: false,
        }
    }

    /// True when volumes and nodes have a topology.
    pub fn topology(&self) -> bool {
        self.plugin.has(PluginService::VolumeAccessibilityConstraints)
    }

    /// True when snapshots have a topology.
    pub fn snapshot_topology(&self) -> bool {
        self.plugin.has(PluginService::SnapshotAccessibilityConstraints)
    }
}

/// The fake driver as seen from one node. Clones and [`Driver::on_node`] share everything but the node.
#[derive(Clone)]
pub struct Driver {
    backend: Arc<Backend>,
    node: Arc<str>,
}

struct Backend {
    config: Mutex<Config>,
    state: Mutex<State>,
    script: Mutex<script::Script>,
    /// Cancelled to cut all connections; absent while the driver is down.
    connections: Mutex<Option<CancellationToken>>,
}

impl Driver {
    /// A driver with all capabilities of the Controller and Node services except topology, on node `node-1`.
    pub fn new(name: &str) -> Self {
        Self::with_node(name, "node-1", BTreeMap::new())
    }

    /// A driver whose first node has an id and a topology of its own.
    pub fn with_node(name: &str, node: &str, segments: BTreeMap<String, String>) -> Self {
        let backend = Arc::new(Backend {
            config: Mutex::new(Config::new(name)),
            state: Mutex::default(),
            script: Mutex::default(),
            connections: Mutex::new(Some(CancellationToken::new())),
        });
        let driver = Self { backend, node: node.into() };
        driver.on_node(node, segments)
    }

    /// The same driver as seen from another node, which is known from now on.
    pub fn on_node(&self, node: &str, segments: BTreeMap<String, String>) -> Self {
        self.backend.state.lock().nodes.entry(node.to_owned()).or_default().segments = segments;
        Self { backend: self.backend.clone(), node: node.into() }
    }

    /// The node this view belongs to.
    pub fn node_id(&self) -> &str {
        &self.node
    }

    pub fn configure(&self, change: impl FnOnce(&mut Config)) -> &Self {
        change(&mut self.backend.config.lock());
        self
    }

    /// Turns topology on with these pools.
    pub fn with_pools(
        &self,
        pools: impl IntoIterator<Item = (BTreeMap<String, String>, Option<i64>)>,
    ) -> &Self {
        self.configure(|config| {
            config.plugin.services.insert(PluginService::VolumeAccessibilityConstraints);
            let pool = |(segments, capacity)| Pool { segments, capacity };
            config.pools = pools.into_iter().map(pool).collect();
        })
    }

    /// A copy of the backend's state.
    pub fn state(&self) -> State {
        self.backend.state.lock().clone()
    }

    /// Changes the backend's state without a call.
    pub fn edit(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.backend.state.lock());
    }

    pub fn volumes(&self) -> BTreeMap<String, Volume> {
        self.state().volumes
    }

    /// The volume with this name.
    pub fn volume_named(&self, name: &str) -> Option<Volume> {
        self.state().volumes.into_values().find(|volume| volume.name == name)
    }

    /// Breaches of the call order by the caller, in order of appearance.
    pub fn violations(&self) -> Vec<String> {
        self.backend.state.lock().violations.clone()
    }

    /// The services, to be served on any listener.
    pub fn routes(&self) -> Routes {
        Routes::new(v1::identity_server::IdentityServer::new(self.clone()))
            .add_service(v1::controller_server::ControllerServer::new(self.clone()))
            .add_service(v1::group_controller_server::GroupControllerServer::new(self.clone()))
            .add_service(v1::node_server::NodeServer::new(self.clone()))
    }

    /// A client in memory with a deadline of one minute per call.
    pub fn client(&self) -> Client {
        self.client_with(Options { timeout: Some(Duration::from_secs(60)), ..Options::default() })
    }

    /// A client in memory. Works under paused time; must be called inside a runtime.
    pub fn client_with(&self, options: Options) -> Client {
        let (accept, accepted) = mpsc::unbounded_channel();
        let incoming = UnboundedReceiverStream::new(accepted).map(io::Result::Ok);
        // Ends with the client, which holds the only dialer.
        tokio::spawn(server::serve_streams(self.routes(), incoming, CancellationToken::new()));
        let backend = self.backend.clone();
        let dial = move || {
            let connections = backend.connections.lock().clone();
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let dialed = match connections {
                None => Err(io::ErrorKind::ConnectionRefused.into()),
                Some(cut) => accept
                    .send(Severable::new(theirs, cut))
                    .map(|()| ours)
                    .map_err(|_| io::ErrorKind::ConnectionRefused.into()),
            };
            std::future::ready(dialed)
        };
        Client::with_dialer(dial, None, options)
    }

    /// Cuts all connections in memory; the next call connects again.
    pub fn sever(&self) {
        let mut connections = self.backend.connections.lock();
        if let Some(cut) = connections.replace(CancellationToken::new()) {
            cut.cancel();
        }
    }

    /// Goes down: all connections in memory are cut and new ones are refused. What exists stays.
    pub fn crash(&self) {
        if let Some(cut) = self.backend.connections.lock().take() {
            cut.cancel();
        }
    }

    /// Comes back after [`Driver::crash`].
    pub fn restart(&self) {
        self.backend.connections.lock().get_or_insert_with(CancellationToken::new);
    }
}

/// A mount capability for one writing node.
pub fn mount_capability() -> v1::VolumeCapability {
    use v1::volume_capability::access_mode::Mode;
    use v1::volume_capability::{AccessMode, AccessType, MountVolume};
    v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: "ext4".to_owned(),
            ..MountVolume::default()
        })),
    }
}

/// A plain request for a volume of at least `bytes`.
pub fn create_request(name: &str, bytes: i64) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(v1::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        volume_capabilities: vec![mount_capability()],
        ..v1::CreateVolumeRequest::default()
    }
}

#[cfg(test)]
mod tests;
