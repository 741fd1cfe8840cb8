//! The Node service of the fake: staging, publication, size and statistics.

use std::path::Path;

use tonic::{Request, Response, Status};

use super::state::{NodeVolume, State, Target, capability, required};
use super::{Config, Driver, health};
use crate::capabilities::{ControllerCapability, NodeCapability as Cap};
use crate::{Call, v1};

pub(super) fn require(config: &Config, capability: Cap) -> Result<(), Status> {
    if config.node.has(capability) {
        return Ok(());
    }
    Err(Status::unimplemented(format!("{} is not supported", capability.as_str_name())))
}

fn absolute<'a>(field: &str, path: &'a str) -> Result<&'a str, Status> {
    if Path::new(required(field, path)?).is_absolute() {
        return Ok(path);
    }
    Err(Status::invalid_argument(format!("{field} must be absolute")))
}

/// Notes a volume that reaches a node before the controller has published it there.
fn check_attached(state: &mut State, config: &Config, call: Call, volume: &str, node: &str) {
    let needed = config.controller.has(ControllerCapability::PublishUnpublishVolume);
    let there = state.volumes.get(volume).is_some_and(|v| v.published.contains_key(node));
    if needed && !there {
        state.violation(format!("{call}: {volume} is not published to {node}"));
    }
}

fn stage(
    node: &str,
    state: &mut State,
    config: &Config,
    request: &v1::NodeStageVolumeRequest,
) -> Result<v1::NodeStageVolumeResponse, Status> {
    require(config, Cap::StageUnstageVolume)?;
    let id = request.volume_id.as_str();
    required("volume_id", id)?;
    let path = absolute("staging_target_path", &request.staging_target_path)?;
    let wanted = capability(request.volume_capability.as_ref())?.clone();
    state.volume(id)?;
    check_attached(state, config, Call::NodeStageVolume, id, node);
    let volume = state.node(node)?.volumes.entry(id.to_owned()).or_default();
    let wanted = (path.to_owned(), wanted);
    match &volume.staged {
        Some(present) if *present != wanted => {
            Err(Status::already_exists(format!("{id} is staged differently")))
        }
        _ => {
            volume.staged = Some(wanted);
            Ok(v1::NodeStageVolumeResponse {})
        }
    }
}

fn unstage(
    node: &str,
    state: &mut State,
    config: &Config,
    request: &v1::NodeUnstageVolumeRequest,
) -> Result<v1::NodeUnstageVolumeResponse, Status> {
    require(config, Cap::StageUnstageVolume)?;
    let id = required("volume_id", &request.volume_id)?;
    let path = absolute("staging_target_path", &request.staging_target_path)?;
    let mut busy = false;
    if let Some(volume) = state.on_node(node, id) {
        busy = !volume.targets.is_empty();
        volume.staged.take_if(|(staged, _)| staged == path);
    }
    if busy {
        state.violation(format!("NodeUnstageVolume: {id} is still published on {node}"));
    }
    state.tidy(node);
    Ok(v1::NodeUnstageVolumeResponse {})
}

/// The table of second publications on one node.
fn check_second(volume: &NodeVolume, path: &str, wanted: &Target) -> Result<(), Status> {
    use v1::volume_capability::access_mode::Mode;
    match volume.targets.get(path) {
        Some(present) if present == wanted => return Ok(()),
        Some(_) => return Err(Status::already_exists(format!("{path} is published differently"))),
        None => {}
    }
    let mode = wanted.capability.access_mode.map_or(Mode::Unknown, |access| access.mode());
    let shared =
        super::state::multi_node(&wanted.capability) || mode == Mode::SingleNodeMultiWriter;
    match volume.targets.keys().next() {
        Some(other) if !shared => {
            Err(Status::failed_precondition(format!("the volume is published at {other}")))
        }
        _ => Ok(()),
    }
}

fn publish(
    node: &str,
    state: &mut State,
    config: &Config,
    request: &v1::NodePublishVolumeRequest,
) -> Result<v1::NodePublishVolumeResponse, Status> {
    let id = request.volume_id.as_str();
    required("volume_id", id)?;
    let path = absolute("target_path", &request.target_path)?;
    let wanted = Target {
        readonly: request.readonly,
        capability: capability(request.volume_capability.as_ref())?.clone(),
        staging: request.staging_target_path.clone(),
    };
    let staging = config.node.has(Cap::StageUnstageVolume);
    if staging && wanted.staging.is_empty() {
        return Err(Status::failed_precondition("staging_target_path is required"));
    }
    state.volume(id)?;
    check_attached(state, config, Call::NodePublishVolume, id, node);
    let present = state.node(node)?.volumes.get(id).cloned().unwrap_or_default();
    let staged = present.staged.as_ref().is_some_and(|(staged, _)| *staged == wanted.staging);
    if staging && !staged {
        state.violation(format!("NodePublishVolume: {id} is not staged on {node}"));
        return Err(Status::failed_precondition(format!("{id} is not staged")));
    }
    check_second(&present, path, &wanted)?;
    if config.touch_paths {
        create_target(Path::new(path), &wanted.capability)?;
    }
    let volume = state.node(node)?.volumes.entry(id.to_owned()).or_default();
    volume.targets.insert(path.to_owned(), wanted);
    Ok(v1::NodePublishVolumeResponse {})
}

fn create_target(path: &Path, capability: &v1::VolumeCapability) -> Result<(), Status> {
    use v1::volume_capability::AccessType;
    let made = match capability.access_type {
        Some(AccessType::Block(_)) => std::fs::File::create(path).map(drop),
        _ => std::fs::create_dir(path),
    };
    match made {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Status::internal(format!("cannot create {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

fn remove_target(path: &Path) -> Result<(), Status> {
    let removed =
        if path.is_dir() { std::fs::remove_dir(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Status::internal(format!("cannot remove {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

fn unpublish(
    node: &str,
    state: &mut State,
    config: &Config,
    request: &v1::NodeUnpublishVolumeRequest,
) -> Result<v1::NodeUnpublishVolumeResponse, Status> {
    let id = required("volume_id", &request.volume_id)?;
    let path = absolute("target_path", &request.target_path)?;
    if config.touch_paths {
        remove_target(Path::new(path))?;
    }
    if let Some(volume) = state.on_node(node, id) {
        volume.targets.remove(path);
    }
    state.tidy(node);
    Ok(v1::NodeUnpublishVolumeResponse {})
}

/// The volume on this node, if it is at the path.
fn at_path<'a>(
    state: &'a mut State,
    node: &str,
    id: &str,
    path: &str,
) -> Result<&'a mut NodeVolume, Status> {
    required("volume_id", id)?;
    required("volume_path", path)?;
    let there = |volume: &&mut NodeVolume| {
        let staged = volume.staged.as_ref().is_some_and(|(staged, _)| staged == path);
        staged || volume.targets.contains_key(path)
    };
    let found = state.on_node(node, id).filter(there);
    found.ok_or_else(|| Status::not_found(format!("volume {id} is not at {path}")))
}

fn stats(
    node: &str,
    state: &mut State,
    config: &Config,
    request: &v1::NodeGetVolumeStatsRequest,
) -> Result<v1::NodeGetVolumeStatsResponse, Status> {
    require(config, Cap::GetVolumeStats)?;
    let (id, path) = (&request.volume_id, &request.volume_path);
    let seen = at_path(state, node, id, path)?.expanded_to;
    let volume = state.volume(id)?;
    let total = seen.unwrap_or(volume.capacity);
    let unit = v1::volume_usage::Unit::Bytes.into();
    let condition = volume.condition.clone().filter(|_| config.node.has(Cap::VolumeCondition));
    Ok(v1::NodeGetVolumeStatsResponse {
        usage: vec![v1::VolumeUsage { available: total, total, used: 0, unit }],
        volume_condition: condition,
    })
}

fn expand(
    node: &str,
    state: &mut State,
    config: &Config,
    request: &v1::NodeExpandVolumeRequest,
) -> Result<v1::NodeExpandVolumeResponse, Status> {
    require(config, Cap::ExpandVolume)?;
    let id = &request.volume_id;
    let capacity = state.volume(id)?.capacity;
    let required = request.capacity_range.unwrap_or_default().required_bytes;
    if required > capacity {
        state.violation(format!("NodeExpandVolume: {id} has only {capacity} bytes"));
        return Err(Status::out_of_range(format!("the volume has only {capacity} bytes")));
    }
    at_path(state, node, id, &request.volume_path)?.expanded_to = Some(capacity);
    Ok(v1::NodeExpandVolumeResponse { capacity_bytes: capacity })
}

fn capabilities(
    _: &str,
    _: &mut State,
    config: &Config,
    _: &v1::NodeGetCapabilitiesRequest,
) -> Result<v1::NodeGetCapabilitiesResponse, Status> {
    Ok((&config.node).into())
}

fn info(
    node: &str,
    state: &mut State,
    config: &Config,
    _: &v1::NodeGetInfoRequest,
) -> Result<v1::NodeGetInfoResponse, Status> {
    let segments = state.node(node)?.segments.clone();
    Ok(v1::NodeGetInfoResponse {
        node_id: node.to_owned(),
        max_volumes_per_node: config.max_volumes_per_node,
        accessible_topology: config.topology().then_some(v1::Topology { segments }),
    })
}

macro_rules! serve {
    ($($method:ident: $call:ident($request:ident) -> $response:ident = $effect:expr;)*) => {
        #[tonic::async_trait]
        impl v1::node_server::Node for Driver { $(
            async fn $method(
                &self,
                request: Request<v1::$request>,
            ) -> Result<Response<v1::$response>, Status> {
                let node = self.node.clone();
                self.run(Call::$call, request, move |state, config, request| {
                    $effect(&node, state, config, request)
                })
                .await
            }
        )* }
    };
}

serve! {
    node_stage_volume: NodeStageVolume(NodeStageVolumeRequest) -> NodeStageVolumeResponse = stage;
    node_unstage_volume: NodeUnstageVolume(NodeUnstageVolumeRequest)
        -> NodeUnstageVolumeResponse = unstage;
    node_publish_volume: NodePublishVolume(NodePublishVolumeRequest)
        -> NodePublishVolumeResponse = publish;
    node_unpublish_volume: NodeUnpublishVolume(NodeUnpublishVolumeRequest)
        -> NodeUnpublishVolumeResponse = unpublish;
    node_get_volume_stats: NodeGetVolumeStats(NodeGetVolumeStatsRequest)
        -> NodeGetVolumeStatsResponse = stats;
    node_expand_volume: NodeExpandVolume(NodeExpandVolumeRequest)
        -> NodeExpandVolumeResponse = expand;
    node_get_capabilities: NodeGetCapabilities(NodeGetCapabilitiesRequest)
        -> NodeGetCapabilitiesResponse = capabilities;
    node_get_info: NodeGetInfo(NodeGetInfoRequest) -> NodeGetInfoResponse = info;
    node_get_volume_health: NodeGetVolumeHealth(NodeGetVolumeHealthRequest)
        -> NodeGetVolumeHealthResponse = health::of_volume_on_node;
    node_get_storage_health: NodeGetStorageHealth(NodeGetStorageHealthRequest)
        -> NodeGetStorageHealthResponse = health::of_node;
}
