//! A hostile request for every call of the protocol. None of them may change anything, whether it
//! is refused or not: where it names something that exists, something else about it is wrong.

use longshore_csi::v1::*;
use longshore_csi::{Call, Client, CsiError};
use tonic::Code;

use crate::common::*;
use crate::dice::Dice;

/// What there is to lose.
pub struct Kept {
    /// Staged, so that it cannot be deleted.
    pub staged: String,
    /// At rest.
    pub still: String,
    pub snapshot: String,
    pub group: String,
    pub members: Vec<String>,
    pub staging: String,
}

/// Sends one and returns the code of the refusal, if it was one.
pub async fn send(client: &Client, dice: &mut Dice<'_>, kept: &Kept, call: Call) -> Option<Code> {
    let response = match call.service() {
        "Identity" => identity(client, call).await,
        "Controller" => controller(client, dice, kept, call).await,
        "GroupController" => groups(client, dice, kept, call).await,
        "SnapshotMetadata" => metadata(client, dice, kept, call).await,
        "Node" => node(client, dice, kept, call).await,
        other => panic!("no service {other}"),
    };
    response.err().map(|error| error.code())
}

async fn identity(client: &Client, call: Call) -> Result<(), CsiError> {
    match call {
        Call::GetPluginInfo => client.get_plugin_info(GetPluginInfoRequest {}).await.map(drop),
        Call::GetPluginCapabilities => {
            client.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.map(drop)
        }
        Call::Probe => client.probe(ProbeRequest {}).await.map(drop),
        other => panic!("{other} is new"),
    }
}

async fn controller(
    client: &Client,
    dice: &mut Dice<'_>,
    kept: &Kept,
    call: Call,
) -> Result<(), CsiError> {
    let volume_id = dice.text_or(&[&kept.staged, &kept.still]);
    let volume_capability = dice.capability();
    match call {
        Call::CreateVolume => {
            let request = create_request(dice, kept, volume_capability);
            client.create_volume(request).await.map(drop)
        }
        Call::DeleteVolume => {
            let id = dice.text_or(&[&kept.staged]);
            client.delete_volume(delete(&id)).await.map(drop)
        }
        Call::ControllerPublishVolume => {
            let request = ControllerPublishVolumeRequest {
                volume_id,
                node_id: dice.text_or(&["n1"]),
                volume_capability,
                readonly: dice.roll(2) == 0,
                volume_context: dice.map(),
                ..Default::default()
            };
            client.controller_publish_volume(request).await.map(drop)
        }
        Call::ControllerUnpublishVolume => {
            // A volume that its node has staged is not detached.
            let id = dice.text_or(&[&kept.staged]);
            let node = dice.text_or(&["n1"]);
            client.controller_unpublish_volume(detach(&id, &node)).await.map(drop)
        }
        Call::ValidateVolumeCapabilities => {
            let request = ValidateVolumeCapabilitiesRequest {
                volume_id,
                volume_capabilities: volume_capability.into_iter().collect(),
                parameters: dice.map(),
                ..Default::default()
            };
            client.validate_volume_capabilities(request).await.map(drop)
        }
        Call::ListVolumes => {
            let max_entries = i32::try_from(dice.number()).unwrap_or(-7);
            let request = ListVolumesRequest { max_entries, starting_token: dice.text() };
            client.list_volumes(request).await.map(drop)
        }
        Call::GetCapacity => {
            let request = GetCapacityRequest {
                parameters: dice.map(),
                volume_capabilities: volume_capability.into_iter().collect(),
                ..Default::default()
            };
            client.get_capacity(request).await.map(drop)
        }
        Call::ControllerGetCapabilities => {
            let request = ControllerGetCapabilitiesRequest {};
            client.controller_get_capabilities(request).await.map(drop)
        }
        Call::ControllerExpandVolume => {
            let request = ControllerExpandVolumeRequest {
                volume_id,
                capacity_range: dice.range(),
                volume_capability,
                ..Default::default()
            };
            client.controller_expand_volume(request).await.map(drop)
        }
        Call::ControllerGetVolume => {
            let request = ControllerGetVolumeRequest { volume_id };
            client.controller_get_volume(request).await.map(drop)
        }
        Call::ControllerListVolumeHealth => {
            let max_entries = i32::try_from(dice.number()).unwrap_or(-7);
            let starting_token = dice.text();
            let request = ControllerListVolumeHealthRequest {
                max_entries,
                starting_token,
                ..Default::default()
            };
            client.controller_list_volume_health(request).await.map(drop)
        }
        Call::ControllerGetVolumeHealth => {
            let request = ControllerGetVolumeHealthRequest { volume_id, ..Default::default() };
            client.controller_get_volume_health(request).await.map(drop)
        }
        Call::ControllerModifyVolume => {
            let request = ControllerModifyVolumeRequest {
                volume_id,
                mutable_parameters: dice.map(),
                ..Default::default()
            };
            client.controller_modify_volume(request).await.map(drop)
        }
        other => snapshots(client, dice, kept, other).await,
    }
}

fn create_request(
    dice: &mut Dice<'_>,
    kept: &Kept,
    capability: Option<VolumeCapability>,
) -> CreateVolumeRequest {
    let volume_content_source = match dice.roll(4) {
        0 => Some(from_volume(&dice.text_or(&[&kept.staged, &kept.still]))),
        1 => Some(from_snapshot(&dice.text_or(&[&kept.snapshot, &kept.members[0]]))),
        2 => Some(VolumeContentSource::default()),
        _ => None,
    };
    CreateVolumeRequest {
        name: dice.text_or(&["kept", "still"]),
        capacity_range: dice.range(),
        volume_capabilities: capability.into_iter().collect(),
        parameters: dice.map(),
        mutable_parameters: dice.map(),
        accessibility_requirements: dice.topology(),
        volume_content_source,
        ..Default::default()
    }
}

async fn snapshots(
    client: &Client,
    dice: &mut Dice<'_>,
    kept: &Kept,
    call: Call,
) -> Result<(), CsiError> {
    match call {
        Call::CreateSnapshot => {
            let (name, source) = match dice.roll(4) {
                // A name that is taken, by a snapshot of the other volume.
                0 => ("s".to_owned(), kept.staged.clone()),
                1 => ("a\u{1}".to_owned(), kept.still.clone()),
                2 => (String::new(), kept.still.clone()),
                _ => (dice.text(), dice.text()),
            };
            let request =
                CreateSnapshotRequest { parameters: dice.map(), ..snapshot(&name, &source) };
            client.create_snapshot(request).await.map(drop)
        }
        Call::DeleteSnapshot => {
            // A member goes only with its group.
            let id = dice.text_or(&[&kept.members[0]]);
            client.delete_snapshot(delete_snapshot(&id)).await.map(drop)
        }
        Call::ListSnapshots => {
            let request = ListSnapshotsRequest {
                max_entries: i32::try_from(dice.number()).unwrap_or(-7),
                starting_token: dice.text(),
                source_volume_id: dice.text_or(&[&kept.still]),
                snapshot_id: dice.text_or(&[&kept.snapshot]),
                ..Default::default()
            };
            client.list_snapshots(request).await.map(drop)
        }
        Call::GetSnapshot => {
            let snapshot_id = dice.text_or(&[&kept.snapshot, &kept.staged]);
            let request = GetSnapshotRequest { snapshot_id, ..Default::default() };
            client.get_snapshot(request).await.map(drop)
        }
        other => panic!("{other} is new"),
    }
}

async fn groups(
    client: &Client,
    dice: &mut Dice<'_>,
    kept: &Kept,
    call: Call,
) -> Result<(), CsiError> {
    let group_snapshot_id = dice.text_or(&[&kept.group, &kept.snapshot]);
    // Never the group's own list.
    let snapshot_ids = match dice.roll(3) {
        0 => vec![],
        1 => vec![kept.members[0].clone()],
        _ => vec![kept.members[0].clone(), dice.text()],
    };
    match call {
        Call::GroupControllerGetCapabilities => {
            let request = GroupControllerGetCapabilitiesRequest {};
            client.group_controller_get_capabilities(request).await.map(drop)
        }
        Call::CreateVolumeGroupSnapshot => {
            let source_volume_ids = match dice.roll(4) {
                0 => vec![],
                1 => vec![kept.still.clone(), kept.still.clone()],
                2 => vec![kept.still.clone(), dice.text()],
                _ => vec![dice.text()],
            };
            let request = CreateVolumeGroupSnapshotRequest {
                name: dice.text_or(&["g"]),
                source_volume_ids,
                parameters: dice.map(),
                ..Default::default()
            };
            client.create_volume_group_snapshot(request).await.map(drop)
        }
        Call::DeleteVolumeGroupSnapshot => {
            let request = DeleteVolumeGroupSnapshotRequest {
                group_snapshot_id,
                snapshot_ids,
                ..Default::default()
            };
            client.delete_volume_group_snapshot(request).await.map(drop)
        }
        Call::GetVolumeGroupSnapshot => {
            let request = GetVolumeGroupSnapshotRequest {
                group_snapshot_id,
                snapshot_ids,
                ..Default::default()
            };
            client.get_volume_group_snapshot(request).await.map(drop)
        }
        other => panic!("{other} is new"),
    }
}

/// A service that this driver does not have.
async fn metadata(
    client: &Client,
    dice: &mut Dice<'_>,
    kept: &Kept,
    call: Call,
) -> Result<(), CsiError> {
    let id = dice.text_or(&[&kept.snapshot]);
    match call {
        Call::GetMetadataAllocated => {
            let request = GetMetadataAllocatedRequest { snapshot_id: id, ..Default::default() };
            client.get_metadata_allocated(request).await.map(drop)
        }
        Call::GetMetadataDelta => {
            let request = GetMetadataDeltaRequest {
                base_snapshot_id: id,
                target_snapshot_id: dice.text(),
                ..Default::default()
            };
            client.get_metadata_delta(request).await.map(drop)
        }
        other => panic!("{other} is new"),
    }
}

async fn node(
    client: &Client,
    dice: &mut Dice<'_>,
    kept: &Kept,
    call: Call,
) -> Result<(), CsiError> {
    let volume_id = dice.text_or(&[&kept.staged, &kept.still]);
    let (path, volume_capability) = (dice.text(), dice.capability());
    match call {
        Call::NodeStageVolume => {
            let request = NodeStageVolumeRequest {
                volume_id,
                staging_target_path: path,
                volume_capability,
                volume_context: dice.map(),
                ..Default::default()
            };
            client.node_stage_volume(request).await.map(drop)
        }
        Call::NodeUnstageVolume => {
            client.node_unstage_volume(unstage(&volume_id, &path)).await.map(drop)
        }
        Call::NodePublishVolume => {
            let mut request = NodePublishVolumeRequest {
                volume_id,
                staging_target_path: dice.text_or(&[&kept.staging]),
                target_path: path,
                volume_capability,
                volume_context: dice.map(),
                ..Default::default()
            };
            if dice.roll(2) == 0 {
                let key = "csi.storage.k8s.io/ephemeral".to_owned();
                request.volume_context.insert(key, "true".to_owned());
            }
            client.node_publish_volume(request).await.map(drop)
        }
        Call::NodeUnpublishVolume => {
            client.node_unpublish_volume(unpublish(&volume_id, &path)).await.map(drop)
        }
        Call::NodeGetVolumeStats => {
            client.node_get_volume_stats(stats(&volume_id, &path)).await.map(drop)
        }
        Call::NodeExpandVolume => {
            let request = NodeExpandVolumeRequest {
                volume_id,
                volume_path: path,
                capacity_range: dice.range(),
                staging_target_path: dice.text(),
                volume_capability,
                ..Default::default()
            };
            client.node_expand_volume(request).await.map(drop)
        }
        Call::NodeGetCapabilities => {
            client.node_get_capabilities(NodeGetCapabilitiesRequest {}).await.map(drop)
        }
        Call::NodeGetInfo => client.node_get_info(NodeGetInfoRequest {}).await.map(drop),
        Call::NodeGetVolumeHealth => {
            let request = NodeGetVolumeHealthRequest {
                volume_id,
                volume_publish_path: path,
                staging_target_path: dice.text_or(&[&kept.staging]),
            };
            client.node_get_volume_health(request).await.map(drop)
        }
        Call::NodeGetStorageHealth => {
            client.node_get_storage_health(NodeGetStorageHealthRequest::default()).await.map(drop)
        }
        other => panic!("{other} is new"),
    }
}
