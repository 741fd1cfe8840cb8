//! One method per remote procedure.

use tonic::Streaming;

use super::Client;
use crate::{Call, CsiError, v1};

macro_rules! unary {
    ($($method:ident: $call:ident($request:ident) -> $response:ident;)*) => {
        impl Client { $(
            #[doc = concat!("Calls `", stringify!($call), "`.")]
            pub async fn $method(
                &self,
                request: v1::$request,
            ) -> Result<v1::$response, CsiError> {
                self.unary(Call::$call, request).await
            }
        )* }
    };
}

macro_rules! streaming {
    ($($method:ident: $call:ident($request:ident) -> $response:ident;)*) => {
        impl Client { $(
            #[doc = concat!("Calls `", stringify!($call), "`; the deadline covers the start of the stream.")]
            pub async fn $method(
                &self,
                request: v1::$request,
            ) -> Result<Streaming<v1::$response>, CsiError> {
                self.streaming(Call::$call, request).await
            }
        )* }
    };
}

unary! {
    get_plugin_info: GetPluginInfo(GetPluginInfoRequest) -> GetPluginInfoResponse;
    get_plugin_capabilities: GetPluginCapabilities(GetPluginCapabilitiesRequest) -> GetPluginCapabilitiesResponse;
    probe: Probe(ProbeRequest) -> ProbeResponse;
    create_volume: CreateVolume(CreateVolumeRequest) -> CreateVolumeResponse;
    delete_volume: DeleteVolume(DeleteVolumeRequest) -> DeleteVolumeResponse;
    controller_publish_volume: ControllerPublishVolume(ControllerPublishVolumeRequest) -> ControllerPublishVolumeResponse;
    controller_unpublish_volume: ControllerUnpublishVolume(ControllerUnpublishVolumeRequest) -> ControllerUnpublishVolumeResponse;
    validate_volume_capabilities: ValidateVolumeCapabilities(ValidateVolumeCapabilitiesRequest) -> ValidateVolumeCapabilitiesResponse;
    list_volumes: ListVolumes(ListVolumesRequest) -> ListVolumesResponse;
    get_capacity: GetCapacity(GetCapacityRequest) -> GetCapacityResponse;
    controller_get_capabilities: ControllerGetCapabilities(ControllerGetCapabilitiesRequest) -> ControllerGetCapabilitiesResponse;
    create_snapshot: CreateSnapshot(CreateSnapshotRequest) -> CreateSnapshotResponse;
    delete_snapshot: DeleteSnapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse;
    list_snapshots: ListSnapshots(ListSnapshotsRequest) -> ListSnapshotsResponse;
    get_snapshot: GetSnapshot(GetSnapshotRequest) -> GetSnapshotResponse;
    controller_expand_volume: ControllerExpandVolume(ControllerExpandVolumeRequest) -> ControllerExpandVolumeResponse;
    controller_get_volume: ControllerGetVolume(ControllerGetVolumeRequest) -> ControllerGetVolumeResponse;
    controller_list_volume_health: ControllerListVolumeHealth(ControllerListVolumeHealthRequest) -> ControllerListVolumeHealthResponse;
    controller_get_volume_health: ControllerGetVolumeHealth(ControllerGetVolumeHealthRequest) -> ControllerGetVolumeHealthResponse;
    controller_modify_volume: ControllerModifyVolume(ControllerModifyVolumeRequest) -> ControllerModifyVolumeResponse;
    group_controller_get_capabilities: GroupControllerGetCapabilities(GroupControllerGetCapabilitiesRequest) -> GroupControllerGetCapabilitiesResponse;
    create_volume_group_snapshot: CreateVolumeGroupSnapshot(CreateVolumeGroupSnapshotRequest) -> CreateVolumeGroupSnapshotResponse;
    delete_volume_group_snapshot: DeleteVolumeGroupSnapshot(DeleteVolumeGroupSnapshotRequest) -> DeleteVolumeGroupSnapshotResponse;
    get_volume_group_snapshot: GetVolumeGroupSnapshot(GetVolumeGroupSnapshotRequest) -> GetVolumeGroupSnapshotResponse;
    node_stage_volume: NodeStageVolume(NodeStageVolumeRequest) -> NodeStageVolumeResponse;
    node_unstage_volume: NodeUnstageVolume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse;
    node_publish_volume: NodePublishVolume(NodePublishVolumeRequest) -> NodePublishVolumeResponse;
    node_unpublish_volume: NodeUnpublishVolume(NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse;
    node_get_volume_stats: NodeGetVolumeStats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse;
    node_expand_volume: NodeExpandVolume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse;
    node_get_capabilities: NodeGetCapabilities(NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse;
    node_get_info: NodeGetInfo(NodeGetInfoRequest) -> NodeGetInfoResponse;
    node_get_volume_health: NodeGetVolumeHealth(NodeGetVolumeHealthRequest) -> NodeGetVolumeHealthResponse;
    node_get_storage_health: NodeGetStorageHealth(NodeGetStorageHealthRequest) -> NodeGetStorageHealthResponse;
}

streaming! {
    get_metadata_allocated: GetMetadataAllocated(GetMetadataAllocatedRequest) -> GetMetadataAllocatedResponse;
    get_metadata_delta: GetMetadataDelta(GetMetadataDeltaRequest) -> GetMetadataDeltaResponse;
}
