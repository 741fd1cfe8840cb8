//! The state of the fake driver's backend.

use std::collections::{BTreeMap, BTreeSet};

use tonic::Status;

use super::Config;
use crate::v1;

/// Volumes, snapshots and nodes, and the caller's violations of the protocol.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub volumes: BTreeMap<String, Volume>,
    pub snapshots: BTreeMap<String, Snapshot>,
    pub groups: BTreeMap<String, Group>,
    pub nodes: BTreeMap<String, NodeState>,
    /// What lists of health hold beside the volumes that are not healthy: paging may repeat a volume, and a driver may
    /// list a healthy one.
    pub listed_health: Vec<v1::VolumeHealth>,
    /// Volumes that lists of health leave out although something is wrong with them.
    pub unlisted_health: BTreeSet<String>,
    /// Breaches of the call order by the caller.
    pub violations: Vec<String>,
    pub(super) created: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    pub id: String,
    /// The name in its create request.
    pub name: String,
    pub capacity: i64,
    /// The parameters it was made with.
    pub parameters: BTreeMap<String, String>,
    /// The mutable parameters as they are now.
    pub mutable_parameters: BTreeMap<String, String>,
    /// The capabilities in its create request.
    pub capabilities: Vec<v1::VolumeCapability>,
    /// The context callers must echo.
    pub context: BTreeMap<String, String>,
    /// Segments a node must have to reach it; empty means every node.
    pub segments: BTreeMap<String, String>,
    /// What it was filled from.
    pub source: Option<v1::VolumeContentSource>,
    /// Nodes it is published to by the controller.
    pub published: BTreeMap<String, PublishedOnNode>,
    /// Its condition, up to CSI 1.12; absent means normal.
    pub condition: Option<v1::VolumeCondition>,
    /// Its health, from CSI 1.13 on; empty means healthy.
    pub health: Vec<v1::volume_health::VolumeHealthEntry>,
}

/// How a volume is published to a node.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedOnNode {
    pub readonly: bool,
    pub capability: v1::VolumeCapability,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The name in its create request.
    pub name: String,
    /// How many more responses report it as not ready.
    pub polls_left: u32,
    pub message: v1::Snapshot,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub id: String,
    /// The name in its create request.
    pub name: String,
    /// The volumes it is of.
    pub sources: Vec<String>,
    pub members: Vec<String>,
    /// How many responses still report it as not ready.
    pub polls_left: u32,
}

#[derive(Clone, Debug, Default)]
pub struct NodeState {
    pub segments: BTreeMap<String, String>,
    /// What is on it, by volume id.
    pub volumes: BTreeMap<String, NodeVolume>,
    /// What only this node sees of the health of volumes, by volume id.
    pub volume_health: BTreeMap<String, Vec<v1::volume_health::VolumeHealthEntry>>,
    /// The health of its storage; empty means healthy.
    pub storage_health: Vec<v1::node_get_storage_health_response::StorageBackendHealth>,
}

/// A volume on a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeVolume {
    /// Staging path and capability.
    pub staged: Option<(String, v1::VolumeCapability)>,
    /// Where it is published, by target path.
    pub targets: BTreeMap<String, Target>,
    /// The size the node sees; absent until it was expanded there.
    pub expanded_to: Option<i64>,
}

impl NodeVolume {
    fn is_idle(&self) -> bool {
        self.staged.is_none() && self.targets.is_empty()
    }
}

/// A publication at a target path: everything but the path and the secrets.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub readonly: bool,
    pub capability: v1::VolumeCapability,
    pub staging: String,
}

impl State {
    pub(super) fn next_id(&mut self, prefix: &str) -> String {
        self.created += 1;
        format!("{prefix}-{}", self.created)
    }

    pub(super) fn volume(&mut self, id: &str) -> Result<&mut Volume, Status> {
        self.volumes
            .get_mut(required("volume_id", id)?)
            .ok_or_else(|| Status::not_found(format!("volume {id} does not exist")))
    }

    pub(super) fn node(&mut self, id: &str) -> Result<&mut NodeState, Status> {
        self.nodes
            .get_mut(required("node_id", id)?)
            .ok_or_else(|| Status::not_found(format!("node {id} does not exist")))
    }

    pub(super) fn on_node(&mut self, node: &str, volume: &str) -> Option<&mut NodeVolume> {
        self.nodes.get_mut(node)?.volumes.get_mut(volume)
    }

    /// Nodes on which the volume is staged or published.
    pub fn used_on(&self, volume: &str) -> Vec<&str> {
        let used = |state: &NodeState| state.volumes.get(volume).is_some_and(|v| !v.is_idle());
        self.nodes.iter().filter(|(_, state)| used(state)).map(|(id, _)| id.as_str()).collect()
    }

    /// Drops records of volumes that are nowhere on the node any more.
    pub(super) fn tidy(&mut self, node: &str) {
        if let Some(state) = self.nodes.get_mut(node) {
            state.volumes.retain(|_, volume| !volume.is_idle());
        }
    }

    pub(super) fn violation(&mut self, text: String) {
        self.violations.push(text);
    }

    /// Bytes left in a pool; `None` means endless.
    pub(super) fn room(&self, config: &Config, pool: usize) -> Option<i64> {
        let pool = &config.pools[pool];
        let inside = |volume: &&Volume| !config.topology() || volume.segments == pool.segments;
        let used: i64 = self.volumes.values().filter(inside).map(|volume| volume.capacity).sum();
        pool.capacity.map(|capacity| (capacity - used).max(0))
    }
}

/// Refuses an empty required field.
pub(super) fn required<'a>(field: &str, value: &'a str) -> Result<&'a str, Status> {
    if value.is_empty() {
        return Err(Status::invalid_argument(format!("{field} is required")));
    }
    Ok(value)
}

/// Refuses a capability without access type or mode.
pub(super) fn capability(
    given: Option<&v1::VolumeCapability>,
) -> Result<&v1::VolumeCapability, Status> {
    let given = given.ok_or_else(|| Status::invalid_argument("volume_capability is required"))?;
    let mode = given.access_mode.map_or(0, |access| access.mode);
    if given.access_type.is_none() || mode == 0 {
        return Err(Status::invalid_argument("volume_capability needs access type and mode"));
    }
    Ok(given)
}

/// True for the modes that allow more than one node.
pub(super) fn multi_node(capability: &v1::VolumeCapability) -> bool {
    use v1::volume_capability::access_mode::Mode;
    let mode = capability.access_mode.map_or(Mode::Unknown, |access| access.mode());
    matches!(
        mode,
        Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter
    )
}

/// Checks a capacity range and returns the smallest size in it.
pub(super) fn wanted_bytes(
    range: Option<&v1::CapacityRange>,
    default: i64,
    config: &Config,
) -> Result<i64, Status> {
    let range = range.copied().unwrap_or_default();
    if range.required_bytes < 0 || range.limit_bytes < 0 {
        return Err(Status::invalid_argument("capacity_range must not be negative"));
    }
    let limit = if range.limit_bytes == 0 { i64::MAX } else { range.limit_bytes };
    let wanted = match range.required_bytes {
        0 => default.min(limit),
        required => required,
    };
    if wanted > limit || config.max_volume_size.is_some_and(|max| wanted > max) {
        return Err(Status::out_of_range(format!("a volume of {wanted} bytes is not possible")));
    }
    Ok(wanted)
}
