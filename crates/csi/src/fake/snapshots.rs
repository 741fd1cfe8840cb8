//! Snapshots of the fake, kept simple: they are cut at once and have no content.

use tonic::Status;

use super::Config;
use super::controller::{choose_pool, page, require};
use super::state::{Snapshot, State, required};
use crate::capabilities::ControllerCapability as Cap;
use crate::{names, v1};

/// The time of the first snapshot; each later one is a second younger, so that runs repeat exactly.
const EPOCH: i64 = 1_700_000_000;

/// The size of what a new volume is filled from.
pub(super) fn source_bytes(
    state: &State,
    config: &Config,
    source: Option<&v1::VolumeContentSource>,
) -> Result<Option<i64>, Status> {
    use v1::volume_content_source::Type;
    let Some(source) = source else { return Ok(None) };
    let missing = |id: &str| Status::not_found(format!("source {id} does not exist"));
    match &source.r#type {
        None => Err(Status::invalid_argument("volume_content_source is empty")),
        Some(Type::Snapshot(from)) if config.controller.has(Cap::CreateDeleteSnapshot) => {
            let found = state.snapshots.get(&from.snapshot_id);
            found.map(|s| Some(s.message.size_bytes)).ok_or_else(|| missing(&from.snapshot_id))
        }
        Some(Type::Volume(from)) if config.controller.has(Cap::CloneVolume) => {
            let found = state.volumes.get(&from.volume_id);
            found.map(|volume| Some(volume.capacity)).ok_or_else(|| missing(&from.volume_id))
        }
        Some(_) => Err(Status::invalid_argument("this kind of source is not supported")),
    }
}

impl Snapshot {
    /// The snapshot in the next response; every response brings it closer to being ready.
    fn next_response(&mut self) -> v1::Snapshot {
        let mut message = self.message.clone();
        message.ready_to_use = self.polls_left == 0;
        self.polls_left = self.polls_left.saturating_sub(1);
        message
    }
}

pub(super) fn create(
    state: &mut State,
    config: &Config,
    request: &v1::CreateSnapshotRequest,
) -> Result<v1::CreateSnapshotResponse, Status> {
    require(config, Cap::CreateDeleteSnapshot)?;
    if !names::is_request_name(&request.name) {
        return Err(Status::invalid_argument("name is missing or not allowed"));
    }
    let source = required("source_volume_id", &request.source_volume_id)?;
    if let Some(present) = state.snapshots.values_mut().find(|s| s.name == request.name) {
        if present.message.source_volume_id != source {
            let text = format!("snapshot {} is of another volume", request.name);
            return Err(Status::already_exists(text));
        }
        return Ok(v1::CreateSnapshotResponse { snapshot: Some(present.next_response()) });
    }
    let wanted = request.accessibility_requirements.as_ref();
    let id = cut(state, config, &request.name, source, wanted, "")?;
    let snapshot = state.snapshots.get_mut(&id).map(Snapshot::next_response);
    Ok(v1::CreateSnapshotResponse { snapshot })
}

/// Makes a snapshot that does not exist yet and gives back its id.
pub(super) fn cut(
    state: &mut State,
    config: &Config,
    name: &str,
    source: &str,
    wanted: Option<&v1::TopologyRequirement>,
    group: &str,
) -> Result<String, Status> {
    let size_bytes = state.volume(source)?.capacity;
    let accessible_topology = topology(state, config, wanted)?;
    let id = state.next_id("snap");
    let seconds = EPOCH + state.created as i64;
    let message = v1::Snapshot {
        size_bytes,
        snapshot_id: id.clone(),
        source_volume_id: source.to_owned(),
        creation_time: Some(prost_types::Timestamp { seconds, nanos: 0 }),
        ready_to_use: false,
        group_snapshot_id: group.to_owned(),
        accessible_topology,
    };
    let snapshot = Snapshot { name: name.to_owned(), polls_left: config.snapshot_polls, message };
    state.snapshots.insert(id.clone(), snapshot);
    Ok(id)
}

/// Where a new snapshot can be used; empty means everywhere, as it does without the capability.
fn topology(
    state: &State,
    config: &Config,
    wanted: Option<&v1::TopologyRequirement>,
) -> Result<Vec<v1::Topology>, Status> {
    if !config.snapshot_topology() {
        return Ok(Vec::new());
    }
    let pool = choose_pool(state, config, wanted, 0)?;
    let segments = config.pools[pool].segments.clone();
    Ok(if segments.is_empty() { Vec::new() } else { vec![v1::Topology { segments }] })
}

pub(super) fn delete(
    state: &mut State,
    config: &Config,
    request: &v1::DeleteSnapshotRequest,
) -> Result<v1::DeleteSnapshotResponse, Status> {
    require(config, Cap::CreateDeleteSnapshot)?;
    state.snapshots.remove(required("snapshot_id", &request.snapshot_id)?);
    Ok(v1::DeleteSnapshotResponse {})
}

pub(super) fn list(
    state: &mut State,
    config: &Config,
    request: &v1::ListSnapshotsRequest,
) -> Result<v1::ListSnapshotsResponse, Status> {
    require(config, Cap::ListSnapshots)?;
    let wanted = |filter: &str, value: &str| filter.is_empty() || filter == value;
    let found = state.snapshots.values_mut().filter(|snapshot| {
        wanted(&request.snapshot_id, &snapshot.message.snapshot_id)
            && wanted(&request.source_volume_id, &snapshot.message.source_volume_id)
    });
    let entry = |snapshot: &mut Snapshot| v1::list_snapshots_response::Entry {
        snapshot: Some(snapshot.next_response()),
    };
    let all = found.map(entry).collect();
    let (entries, next_token) = page(config, all, request.max_entries, &request.starting_token)?;
    Ok(v1::ListSnapshotsResponse { entries: entries.collect(), next_token })
}

pub(super) fn get(
    state: &mut State,
    config: &Config,
    request: &v1::GetSnapshotRequest,
) -> Result<v1::GetSnapshotResponse, Status> {
    require(config, Cap::GetSnapshot)?;
    let id = required("snapshot_id", &request.snapshot_id)?;
    let found = state.snapshots.get_mut(id);
    let found = found.ok_or_else(|| Status::not_found(format!("snapshot {id} does not exist")))?;
    Ok(v1::GetSnapshotResponse { snapshot: Some(found.next_response()) })
}
