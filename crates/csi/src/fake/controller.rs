//! The Controller service of the fake: volumes, publication, size.

use std::collections::BTreeMap;

use tonic::{Request, Response, Status};

use super::state::{
    PublishedOnNode, State, Volume, capability, multi_node, required, wanted_bytes,
};
use super::{Config, Driver, Version, health, snapshots};
use crate::capabilities::ControllerCapability as Cap;
use crate::{Call, names, v1};

/// The size of a volume whose request has no size.
const DEFAULT_BYTES: i64 = 1 << 30;

pub(super) fn require(config: &Config, capability: Cap) -> Result<(), Status> {
    if config.controller.has(capability) {
        return Ok(());
    }
    Err(Status::unimplemented(format!("{} is not supported", capability.as_str_name())))
}

impl Volume {
    fn create_response(&self, config: &Config) -> v1::CreateVolumeResponse {
        let mut message = self.message(config.topology());
        if let Some(alter) = config.alter_created_volume {
            alter(&mut message);
        }
        v1::CreateVolumeResponse { volume: Some(message) }
    }

    fn message(&self, topology: bool) -> v1::Volume {
        let segments = self.segments.clone();
        v1::Volume {
            capacity_bytes: self.capacity,
            volume_id: self.id.clone(),
            volume_context: self.context.clone(),
            content_source: self.source.clone(),
            accessible_topology: if topology { vec![v1::Topology { segments }] } else { vec![] },
        }
    }

    /// True when a repeated request asks for the volume that already exists.
    fn fits(&self, request: &v1::CreateVolumeRequest) -> bool {
        let range = request.capacity_range.unwrap_or_default();
        let below = range.limit_bytes == 0 || self.capacity <= range.limit_bytes;
        let reachable = request.accessibility_requirements.as_ref().is_none_or(|wanted| {
            let mut all = wanted.requisite.iter().chain(&wanted.preferred).peekable();
            all.peek().is_none() || all.any(|topology| inside(&self.segments, &topology.segments))
        });
        self.capacity >= range.required_bytes
            && below
            && reachable
            && self.parameters == request.parameters
            && self.mutable_parameters == request.mutable_parameters
            && self.capabilities == request.volume_capabilities
            && self.source == request.volume_content_source
    }
}

fn inside(segments: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| segments.get(key) == Some(value))
}

fn check_secrets(
    wanted: Option<&BTreeMap<String, String>>,
    given: &BTreeMap<String, String>,
) -> Result<(), Status> {
    match wanted {
        Some(wanted) if wanted != given => {
            Err(Status::unauthenticated("the secrets are not the right ones"))
        }
        _ => Ok(()),
    }
}

fn create_volume(
    state: &mut State,
    config: &Config,
    request: &v1::CreateVolumeRequest,
) -> Result<v1::CreateVolumeResponse, Status> {
    require(config, Cap::CreateDeleteVolume)?;
    if !names::is_request_name(&request.name) {
        return Err(Status::invalid_argument("name is missing or not allowed"));
    }
    if request.volume_capabilities.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities are required"));
    }
    for wanted in &request.volume_capabilities {
        capability(Some(wanted))?;
    }
    refuse_parameters(config, &request.mutable_parameters)?;
    check_secrets(config.create_secrets.as_ref(), &request.secrets)?;
    let topology = config.topology();
    if let Some(volume) = state.volumes.values().find(|volume| volume.name == request.name) {
        if !volume.fits(request) {
            let text = format!("volume {} exists with other properties", request.name);
            return Err(Status::already_exists(text));
        }
        return Ok(volume.create_response(config));
    }
    let source = snapshots::source_bytes(state, config, request.volume_content_source.as_ref())?;
    let default = source.unwrap_or(DEFAULT_BYTES);
    let capacity = wanted_bytes(request.capacity_range.as_ref(), default, config)?;
    if source.is_some_and(|source| capacity < source) {
        return Err(Status::out_of_range("the volume would be smaller than its source"));
    }
    let wanted = request.accessibility_requirements.as_ref().filter(|_| topology);
    let pool = choose_pool(state, config, wanted, capacity)?;
    let volume = Volume {
        id: state.next_id("vol"),
        name: request.name.clone(),
        capacity,
        parameters: request.parameters.clone(),
        mutable_parameters: request.mutable_parameters.clone(),
        capabilities: request.volume_capabilities.clone(),
        context: config.volume_context.clone(),
        segments: if topology { config.pools[pool].segments.clone() } else { BTreeMap::new() },
        source: request.volume_content_source.clone(),
        published: BTreeMap::new(),
        condition: None,
        health: Vec::new(),
    };
    let response = volume.create_response(config);
    state.volumes.insert(volume.id.clone(), volume);
    Ok(response)
}

/// Preferred topologies first, in order, then the requisite ones; without a requirement any pool.
pub(super) fn choose_pool(
    state: &State,
    config: &Config,
    wanted: Option<&v1::TopologyRequirement>,
    bytes: i64,
) -> Result<usize, Status> {
    let all = 0..config.pools.len();
    let order: Vec<usize> = match wanted {
        None => all.collect(),
        Some(wanted) if wanted.preferred.is_empty() && wanted.requisite.is_empty() => {
            return Err(Status::invalid_argument("accessibility_requirements are empty"));
        }
        Some(wanted) => {
            let ordered = wanted.preferred.iter().chain(&wanted.requisite);
            ordered
                .flat_map(|topology| {
                    let fits =
                        |pool: &usize| inside(&config.pools[*pool].segments, &topology.segments);
                    all.clone().filter(fits).collect::<Vec<_>>()
                })
                .collect()
        }
    };
    let roomy = |pool: &usize| state.room(config, *pool).is_none_or(|room| room >= bytes);
    order.into_iter().find(roomy).ok_or_else(|| {
        Status::resource_exhausted(format!("no accessible pool has room for {bytes} bytes"))
    })
}

fn refuse_parameters(config: &Config, given: &BTreeMap<String, String>) -> Result<(), Status> {
    match given.keys().find(|key| config.refused_parameters.contains(key)) {
        Some(key) => Err(Status::invalid_argument(format!("parameter {key} is not supported"))),
        None => Ok(()),
    }
}

fn delete_volume(
    state: &mut State,
    config: &Config,
    request: &v1::DeleteVolumeRequest,
) -> Result<v1::DeleteVolumeResponse, Status> {
    require(config, Cap::CreateDeleteVolume)?;
    let id = required("volume_id", &request.volume_id)?;
    let Some(volume) = state.volumes.get(id) else { return Ok(v1::DeleteVolumeResponse {}) };
    let mut users: Vec<&str> = volume.published.keys().map(String::as_str).collect();
    users.extend(state.used_on(id));
    if !users.is_empty() {
        let text = format!("volume {id} is in use on {}", users.join(", "));
        state.violation(format!("DeleteVolume: {text}"));
        return Err(Status::failed_precondition(text));
    }
    state.volumes.remove(id);
    Ok(v1::DeleteVolumeResponse {})
}

fn publish(
    state: &mut State,
    config: &Config,
    request: &v1::ControllerPublishVolumeRequest,
) -> Result<v1::ControllerPublishVolumeResponse, Status> {
    require(config, Cap::PublishUnpublishVolume)?;
    let (id, node) = (request.volume_id.as_str(), request.node_id.as_str());
    required("volume_id", id)?;
    required("node_id", node)?;
    let wanted = PublishedOnNode {
        readonly: request.readonly,
        capability: capability(request.volume_capability.as_ref())?.clone(),
    };
    if request.readonly && !config.controller.has(Cap::PublishReadonly) {
        return Err(Status::invalid_argument("readonly is not supported"));
    }
    state.node(node)?;
    let attached = state.volumes.values().filter(|v| v.published.contains_key(node)).count() as i64;
    let full = config.max_volumes_per_node > 0 && attached >= config.max_volumes_per_node;
    let volume = state.volume(id)?;
    // The provisioner adds keys of its own to what the driver gave out, and all of them come back.
    let mut echoed = request.volume_context.clone();
    echoed.retain(|key, _| !key.starts_with("storage.kubernetes.io/"));
    if echoed != volume.context {
        return Err(Status::invalid_argument("volume_context does not belong to the volume"));
    }
    let context = BTreeMap::from([("device".to_owned(), format!("fake-{id}"))]);
    let done = v1::ControllerPublishVolumeResponse { publish_context: context };
    if let Some(present) = volume.published.get(node) {
        return match *present == wanted {
            true => Ok(done),
            false => Err(Status::already_exists(format!("{id} is published differently"))),
        };
    }
    if let Some(other) = volume.published.keys().next().filter(|_| !multi_node(&wanted.capability))
    {
        return Err(Status::failed_precondition(format!("{id} is published to node {other}")));
    }
    if full {
        return Err(Status::resource_exhausted(format!("node {node} can take no more volumes")));
    }
    volume.published.insert(node.to_owned(), wanted);
    Ok(done)
}

fn unpublish(
    state: &mut State,
    config: &Config,
    request: &v1::ControllerUnpublishVolumeRequest,
) -> Result<v1::ControllerUnpublishVolumeResponse, Status> {
    require(config, Cap::PublishUnpublishVolume)?;
    let id = required("volume_id", &request.volume_id)?;
    let node = request.node_id.as_str();
    let hits = |other: &str| node.is_empty() || node == other;
    let used: Vec<String> =
        state.used_on(id).into_iter().filter(|other| hits(other)).map(str::to_owned).collect();
    for other in used {
        state.violation(format!("ControllerUnpublishVolume: {id} is still used on {other}"));
    }
    if let Some(volume) = state.volumes.get_mut(id) {
        volume.published.retain(|other, _| !hits(other));
    }
    Ok(v1::ControllerUnpublishVolumeResponse {})
}

fn validate(
    state: &mut State,
    _: &Config,
    request: &v1::ValidateVolumeCapabilitiesRequest,
) -> Result<v1::ValidateVolumeCapabilitiesResponse, Status> {
    state.volume(&request.volume_id)?;
    if request.volume_capabilities.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities are required"));
    }
    let confirmed = v1::validate_volume_capabilities_response::Confirmed {
        volume_context: request.volume_context.clone(),
        volume_capabilities: request.volume_capabilities.clone(),
        parameters: request.parameters.clone(),
        mutable_parameters: request.mutable_parameters.clone(),
    };
    let message = String::new();
    Ok(v1::ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message })
}

/// Cuts a list into pages: the token is the position of the first entry of the next page.
pub(super) fn page<T>(
    config: &Config,
    all: Vec<T>,
    max: i32,
    token: &str,
) -> Result<(impl Iterator<Item = T>, String), Status> {
    let stuck = config.stuck_token.as_deref();
    let first = token.is_empty() || Some(token) == stuck;
    let start = if first { Some(0) } else { token.parse().ok() };
    let start: usize = start
        .filter(|start| *start <= all.len())
        .ok_or_else(|| Status::aborted(format!("starting_token {token:?} is not valid")))?;
    let max = match usize::try_from(max) {
        Ok(0) => usize::MAX,
        Ok(max) => max,
        Err(_) => return Err(Status::invalid_argument("max_entries must not be negative")),
    };
    let own = if config.page_entries == 0 { usize::MAX } else { config.page_entries };
    let max = max.min(own);
    let end = start.saturating_add(max);
    let next = if end < all.len() { end.to_string() } else { String::new() };
    let next = stuck.map_or(next, str::to_owned);
    Ok((all.into_iter().skip(start).take(max), next))
}

fn list_volumes(
    state: &mut State,
    config: &Config,
    request: &v1::ListVolumesRequest,
) -> Result<v1::ListVolumesResponse, Status> {
    use v1::list_volumes_response::{Entry, VolumeStatus};
    require(config, Cap::ListVolumes)?;
    let entry = |volume: &Volume| Entry {
        volume: Some(volume.message(config.topology())),
        status: Some(VolumeStatus {
            published_node_ids: volume.published.keys().cloned().collect(),
            volume_condition: condition(volume, config),
        }),
    };
    let all = state.volumes.values().map(entry).collect();
    let (entries, next_token) = page(config, all, request.max_entries, &request.starting_token)?;
    Ok(v1::ListVolumesResponse { entries: entries.collect(), next_token })
}

/// CSI 1.13 has no such field.
fn condition(volume: &Volume, config: &Config) -> Option<v1::VolumeCondition> {
    volume.condition.clone().filter(|_| config.version < Version::V1_13)
}

fn get_volume(
    state: &mut State,
    config: &Config,
    request: &v1::ControllerGetVolumeRequest,
) -> Result<v1::ControllerGetVolumeResponse, Status> {
    require(config, Cap::GetVolume)?;
    let volume = state.volume(&request.volume_id)?;
    Ok(v1::ControllerGetVolumeResponse {
        volume: Some(volume.message(config.topology())),
        status: Some(v1::controller_get_volume_response::VolumeStatus {
            published_node_ids: volume.published.keys().cloned().collect(),
            volume_condition: condition(volume, config),
        }),
    })
}

fn get_capacity(
    state: &mut State,
    config: &Config,
    request: &v1::GetCapacityRequest,
) -> Result<v1::GetCapacityResponse, Status> {
    require(config, Cap::GetCapacity)?;
    let wanted = request.accessible_topology.clone().unwrap_or_default().segments;
    let fits = |pool: &usize| !config.topology() || inside(&config.pools[*pool].segments, &wanted);
    let pools = (0..config.pools.len()).filter(fits);
    let room = pools.map(|pool| state.room(config, pool).unwrap_or(i64::MAX));
    Ok(v1::GetCapacityResponse {
        available_capacity: room.fold(0, i64::saturating_add),
        maximum_volume_size: config.max_volume_size,
        minimum_volume_size: None,
    })
}

fn expand(
    state: &mut State,
    config: &Config,
    request: &v1::ControllerExpandVolumeRequest,
) -> Result<v1::ControllerExpandVolumeResponse, Status> {
    require(config, Cap::ExpandVolume)?;
    let range = request.capacity_range.as_ref();
    let range = range.ok_or_else(|| Status::invalid_argument("capacity_range is required"))?;
    let volume = state.volume(&request.volume_id)?.clone();
    let wanted = wanted_bytes(Some(range), volume.capacity, config)?;
    let more = (wanted - volume.capacity).max(0);
    let fits = |pool: &usize| !config.topology() || config.pools[*pool].segments == volume.segments;
    let home = (0..config.pools.len()).find(fits);
    if home.and_then(|pool| state.room(config, pool)).is_some_and(|room| room < more) {
        return Err(Status::resource_exhausted(format!("no room for {more} more bytes")));
    }
    let volume = state.volume(&request.volume_id)?;
    volume.capacity += more;
    Ok(v1::ControllerExpandVolumeResponse {
        capacity_bytes: volume.capacity,
        node_expansion_required: config.node_expansion_required,
    })
}

fn modify(
    state: &mut State,
    config: &Config,
    request: &v1::ControllerModifyVolumeRequest,
) -> Result<v1::ControllerModifyVolumeResponse, Status> {
    require(config, Cap::ModifyVolume)?;
    check_secrets(config.modify_secrets.as_ref(), &request.secrets)?;
    refuse_parameters(config, &request.mutable_parameters)?;
    let volume = state.volume(&request.volume_id)?;
    volume.mutable_parameters.extend(request.mutable_parameters.clone());
    Ok(v1::ControllerModifyVolumeResponse {})
}

fn capabilities(
    _: &mut State,
    config: &Config,
    _: &v1::ControllerGetCapabilitiesRequest,
) -> Result<v1::ControllerGetCapabilitiesResponse, Status> {
    Ok((&config.controller).into())
}

macro_rules! serve {
    ($($method:ident: $call:ident($request:ident) -> $response:ident = $effect:expr;)*) => {
        #[tonic::async_trait]
        impl v1::controller_server::Controller for Driver { $(
            async fn $method(
                &self,
                request: Request<v1::$request>,
            ) -> Result<Response<v1::$response>, Status> {
                self.run(Call::$call, request, $effect).await
            }
        )* }
    };
}

serve! {
    create_volume: CreateVolume(CreateVolumeRequest) -> CreateVolumeResponse = create_volume;
    delete_volume: DeleteVolume(DeleteVolumeRequest) -> DeleteVolumeResponse = delete_volume;
    controller_publish_volume: ControllerPublishVolume(ControllerPublishVolumeRequest)
        -> ControllerPublishVolumeResponse = publish;
    controller_unpublish_volume: ControllerUnpublishVolume(ControllerUnpublishVolumeRequest)
        -> ControllerUnpublishVolumeResponse = unpublish;
    validate_volume_capabilities: ValidateVolumeCapabilities(ValidateVolumeCapabilitiesRequest)
        -> ValidateVolumeCapabilitiesResponse = validate;
    list_volumes: ListVolumes(ListVolumesRequest) -> ListVolumesResponse = list_volumes;
    get_capacity: GetCapacity(GetCapacityRequest) -> GetCapacityResponse = get_capacity;
    controller_get_capabilities: ControllerGetCapabilities(ControllerGetCapabilitiesRequest)
        -> ControllerGetCapabilitiesResponse = capabilities;
    create_snapshot: CreateSnapshot(CreateSnapshotRequest) -> CreateSnapshotResponse
        = snapshots::create;
    delete_snapshot: DeleteSnapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse
        = snapshots::delete;
    list_snapshots: ListSnapshots(ListSnapshotsRequest) -> ListSnapshotsResponse = snapshots::list;
    get_snapshot: GetSnapshot(GetSnapshotRequest) -> GetSnapshotResponse = snapshots::get;
    controller_expand_volume: ControllerExpandVolume(ControllerExpandVolumeRequest)
        -> ControllerExpandVolumeResponse = expand;
    controller_get_volume: ControllerGetVolume(ControllerGetVolumeRequest)
        -> ControllerGetVolumeResponse = get_volume;
    controller_list_volume_health: ControllerListVolumeHealth(ControllerListVolumeHealthRequest)
        -> ControllerListVolumeHealthResponse = health::list;
    controller_get_volume_health: ControllerGetVolumeHealth(ControllerGetVolumeHealthRequest)
        -> ControllerGetVolumeHealthResponse = health::get;
    controller_modify_volume: ControllerModifyVolume(ControllerModifyVolumeRequest)
        -> ControllerModifyVolumeResponse = modify;
}
