//! The health of volumes and of storage, as the fake reports it.

use tonic::Status;

use super::Config;
use super::controller::{page, require};
use super::state::{State, required};
use crate::capabilities::{ControllerCapability, NodeCapability};
use crate::v1;

fn report(id: &str, entries: &[v1::volume_health::VolumeHealthEntry]) -> v1::VolumeHealth {
    v1::VolumeHealth { volume_id: id.to_owned(), health_statuses: entries.to_vec() }
}

pub(super) fn list(
    state: &mut State,
    config: &Config,
    request: &v1::ControllerListVolumeHealthRequest,
) -> Result<v1::ControllerListVolumeHealthResponse, Status> {
    require(config, ControllerCapability::ListVolumeHealth)?;
    let unlisted = &state.unlisted_health;
    let ill = state.volumes.values();
    let ill = ill.filter(|volume| !volume.health.is_empty() && !unlisted.contains(&volume.id));
    let ill = ill.map(|volume| report(&volume.id, &volume.health));
    let all = ill.chain(state.listed_health.iter().cloned()).collect();
    let (entries, next_token) = page(config, all, request.max_entries, &request.starting_token)?;
    Ok(v1::ControllerListVolumeHealthResponse { entries: entries.collect(), next_token })
}

pub(super) fn get(
    state: &mut State,
    config: &Config,
    request: &v1::ControllerGetVolumeHealthRequest,
) -> Result<v1::ControllerGetVolumeHealthResponse, Status> {
    require(config, ControllerCapability::GetVolumeHealth)?;
    let volume = state.volume(&request.volume_id)?;
    let volume_health = Some(report(&volume.id, &volume.health));
    Ok(v1::ControllerGetVolumeHealthResponse { volume_health })
}

/// What the controller and this node report together; the volume need not be on the node.
pub(super) fn of_volume_on_node(
    node: &str,
    state: &mut State,
    config: &Config,
    request: &v1::NodeGetVolumeHealthRequest,
) -> Result<v1::NodeGetVolumeHealthResponse, Status> {
    super::node::require(config, NodeCapability::GetVolumeHealth)?;
    let id = required("volume_id", &request.volume_id)?;
    let mut entries = state.volume(id)?.health.clone();
    entries.extend(state.node(node)?.volume_health.get(id).cloned().unwrap_or_default());
    Ok(v1::NodeGetVolumeHealthResponse { volume_health: Some(report(id, &entries)) })
}

pub(super) fn of_node(
    node: &str,
    state: &mut State,
    config: &Config,
    _: &v1::NodeGetStorageHealthRequest,
) -> Result<v1::NodeGetStorageHealthResponse, Status> {
    super::node::require(config, NodeCapability::GetStorageHealth)?;
    let backend_health = state.node(node)?.storage_health.clone();
    Ok(v1::NodeGetStorageHealthResponse { backend_health })
}
