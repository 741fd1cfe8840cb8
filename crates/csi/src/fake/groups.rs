//! The GroupController service of the fake: snapshots of several volumes, cut at once.

use tonic::{Request, Response, Status};

use super::state::{Group, State, required};
use super::{Config, Driver, snapshots};
use crate::capabilities::{GroupCapability, PluginService};
use crate::{Call, names, v1};

fn require(config: &Config) -> Result<(), Status> {
    let served = config.plugin.has(PluginService::GroupControllerService);
    if served && config.group.has(GroupCapability::CreateDeleteGetVolumeGroupSnapshot) {
        return Ok(());
    }
    Err(Status::unimplemented("group snapshots are not supported"))
}

fn capabilities(
    _: &mut State,
    config: &Config,
    _: &v1::GroupControllerGetCapabilitiesRequest,
) -> Result<v1::GroupControllerGetCapabilitiesResponse, Status> {
    if !config.plugin.has(PluginService::GroupControllerService) {
        return Err(Status::unimplemented("the GroupController service is not served"));
    }
    Ok((&config.group).into())
}

fn create(
    state: &mut State,
    config: &Config,
    request: &v1::CreateVolumeGroupSnapshotRequest,
) -> Result<v1::CreateVolumeGroupSnapshotResponse, Status> {
    require(config)?;
    if !names::is_request_name(&request.name) {
        return Err(Status::invalid_argument("name is missing or not allowed"));
    }
    if let Some(group) = state.groups.values().find(|group| group.name == request.name) {
        if group.sources != request.source_volume_ids {
            let text = format!("group snapshot {} is of other volumes", request.name);
            return Err(Status::already_exists(text));
        }
        let id = group.id.clone();
        return Ok(v1::CreateVolumeGroupSnapshotResponse {
            group_snapshot: next_response(state, &id),
        });
    }
    for source in &request.source_volume_ids {
        state.volume(source)?;
    }
    let id = state.next_id("group");
    let mut members = Vec::new();
    for source in &request.source_volume_ids {
        let name = format!("{}-{source}", request.name);
        members.push(snapshots::cut(state, config, &name, source, None, &id)?);
    }
    let sources = request.source_volume_ids.clone();
    let (name, polls_left) = (request.name.clone(), config.group_polls);
    state.groups.insert(id.clone(), Group { id: id.clone(), name, sources, members, polls_left });
    Ok(v1::CreateVolumeGroupSnapshotResponse { group_snapshot: next_response(state, &id) })
}

/// The group in the next response; every response brings it closer to being ready.
fn next_response(state: &mut State, id: &str) -> Option<v1::VolumeGroupSnapshot> {
    let group = state.groups.get_mut(id)?;
    let ready_to_use = group.polls_left == 0;
    group.polls_left = group.polls_left.saturating_sub(1);
    let members = group.members.iter().filter_map(|id| state.snapshots.get(id));
    let snapshots: Vec<v1::Snapshot> =
        members.map(|one| v1::Snapshot { ready_to_use, ..one.message.clone() }).collect();
    Some(v1::VolumeGroupSnapshot {
        group_snapshot_id: group.id.clone(),
        creation_time: snapshots.first().and_then(|one| one.creation_time),
        snapshots,
        ready_to_use,
    })
}

fn delete(
    state: &mut State,
    config: &Config,
    request: &v1::DeleteVolumeGroupSnapshotRequest,
) -> Result<v1::DeleteVolumeGroupSnapshotResponse, Status> {
    require(config)?;
    let group = state.groups.remove(required("group_snapshot_id", &request.group_snapshot_id)?);
    for member in group.into_iter().flat_map(|group| group.members) {
        state.snapshots.remove(&member);
    }
    Ok(v1::DeleteVolumeGroupSnapshotResponse {})
}

fn get(
    state: &mut State,
    config: &Config,
    request: &v1::GetVolumeGroupSnapshotRequest,
) -> Result<v1::GetVolumeGroupSnapshotResponse, Status> {
    require(config)?;
    let id = required("group_snapshot_id", &request.group_snapshot_id)?;
    match next_response(state, id) {
        None => Err(Status::not_found(format!("group snapshot {id} does not exist"))),
        found => Ok(v1::GetVolumeGroupSnapshotResponse { group_snapshot: found }),
    }
}

macro_rules! serve {
    ($($method:ident: $call:ident($request:ident) -> $response:ident = $effect:ident;)*) => {
        #[tonic::async_trait]
        impl v1::group_controller_server::GroupController for Driver { $(
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
    group_controller_get_capabilities: GroupControllerGetCapabilities(
        GroupControllerGetCapabilitiesRequest
    ) -> GroupControllerGetCapabilitiesResponse = capabilities;
    create_volume_group_snapshot: CreateVolumeGroupSnapshot(CreateVolumeGroupSnapshotRequest)
        -> CreateVolumeGroupSnapshotResponse = create;
    delete_volume_group_snapshot: DeleteVolumeGroupSnapshot(DeleteVolumeGroupSnapshotRequest)
        -> DeleteVolumeGroupSnapshotResponse = delete;
    get_volume_group_snapshot: GetVolumeGroupSnapshot(GetVolumeGroupSnapshotRequest)
        -> GetVolumeGroupSnapshotResponse = get;
}
