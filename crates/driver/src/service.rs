//! The CSI services: a lock for each volume, a thread for the blocking work, one line of log.
//!
//! The rules are in [`crate::controller`] and [`crate::node`] and never think about locks or
//! `async`. A call runs to its end even when the caller hangs up, so the lock guards what really
//! happens; a second call for the volume meanwhile gets `Aborted`.

use std::sync::Arc;

use longshore_core::model::keys::manifest;
use longshore_csi::server::Routes;
use longshore_csi::v1 as csi;
use longshore_csi::v1::controller_server::{Controller, ControllerServer};
use longshore_csi::v1::controller_service_capability::rpc::Type as ControllerRpc;
use longshore_csi::v1::group_controller_server::{GroupController, GroupControllerServer};
use longshore_csi::v1::group_controller_service_capability::rpc::Type as GroupRpc;
use longshore_csi::v1::identity_server::{Identity, IdentityServer};
use longshore_csi::v1::node_server::{Node, NodeServer};
use longshore_csi::v1::node_service_capability::rpc::Type as NodeRpc;
use longshore_csi::v1::plugin_capability::service::Type as PluginService;
use tonic::{Request, Response, Status};

use crate::config::DriverKind;
use crate::controller::{source, topology};
use crate::driver::{Driver, Inner};
use crate::id::{SnapshotId, VolumeId};
use crate::locks::LockRequest;
use crate::mutable;
use crate::refusal::Refusal;
use crate::snapshot;

/// The services of the driver's mode.
pub(crate) fn routes(driver: &Driver) -> Routes {
    let service = Service { inner: Arc::clone(&driver.inner) };
    let mode = driver.config().mode;
    let mut routes = Routes::new(IdentityServer::new(service.clone()));
    if mode.controller() {
        routes = routes.add_service(ControllerServer::new(service.clone()));
        routes = routes.add_service(GroupControllerServer::new(service.clone()));
    }
    if mode.node() {
        routes = routes.add_service(NodeServer::new(service));
    }
    routes
}

#[derive(Debug, Clone)]
struct Service {
    inner: Arc<Inner>,
}

type RpcResult<T> = Result<Response<T>, Status>;

impl Service {
    /// Runs `work` on the blocking pool, holding the lock of `volume` if one is named.
    async fn call<T: Send + 'static>(
        &self,
        call: &'static str,
        volume: Option<VolumeId>,
        work: impl FnOnce(&Inner) -> Result<T, Refusal> + Send + 'static,
    ) -> RpcResult<T> {
        self.with_locks(call, volume.map(LockRequest::exclusive).into_iter().collect(), work).await
    }

    /// Like [`Service::call`], holding these locks.
    async fn with_locks<T: Send + 'static>(
        &self,
        call: &'static str,
        locks: Vec<LockRequest>,
        work: impl FnOnce(&Inner) -> Result<T, Refusal> + Send + 'static,
    ) -> RpcResult<T> {
        let inner = Arc::clone(&self.inner);
        let label = locks.first().map(|lock| lock.id.clone()).unwrap_or_default();
        let run = move || {
            let _guards = inner.locks.acquire_all(locks)?;
            work(&inner)
        };
        let result = match tokio::task::spawn_blocking(run).await {
            Ok(result) => result.map_err(Status::from),
            Err(error) => Err(Status::internal(format!("{call} did not finish: {error}"))),
        };
        match &result {
            Ok(_) => tracing::debug!(call, volume = label, "done"),
            Err(status) => {
                tracing::warn!(call, volume = label, code = ?status.code(), error = status.message(), "refused");
            }
        }
        result.map(Response::new)
    }
}

/// The refusal of a call whose capability this driver does not advertise. The volume condition says what these
/// calls would say.
fn not_advertised(call: &str) -> Status {
    Status::unimplemented(format!(
        "{call} is not implemented; this driver reports volume_condition"
    ))
}

#[tonic::async_trait]
impl Identity for Service {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> RpcResult<csi::GetPluginInfoResponse> {
        Ok(Response::new(csi::GetPluginInfoResponse {
            name: self.inner.config.driver_name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: [
                ("kind".to_owned(), self.inner.config.kind.to_string()),
                (manifest::MUTABLE_PARAMETERS.to_owned(), mutable::KNOWN.join(",")),
            ]
            .into(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> RpcResult<csi::GetPluginCapabilitiesResponse> {
        // The same from every process of a driver, whatever its mode: callers call any of them.
        let mut services =
            vec![PluginService::ControllerService, PluginService::GroupControllerService];
        if self.inner.config.kind == DriverKind::Local {
            services.push(PluginService::VolumeAccessibilityConstraints);
        }
        let capability = |service: PluginService| csi::PluginCapability {
            r#type: Some(csi::plugin_capability::Type::Service(csi::plugin_capability::Service {
                r#type: service as i32,
            })),
        };
        let mut capabilities: Vec<_> = services.into_iter().map(capability).collect();
        let online = csi::plugin_capability::volume_expansion::Type::Online as i32;
        capabilities.push(csi::PluginCapability {
            r#type: Some(csi::plugin_capability::Type::VolumeExpansion(
                csi::plugin_capability::VolumeExpansion { r#type: online },
            )),
        });
        Ok(Response::new(csi::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<csi::ProbeRequest>) -> RpcResult<csi::ProbeResponse> {
        Ok(Response::new(csi::ProbeResponse { ready: Some(true) }))
    }
}

impl Service {
    /// Refuses calls that only make sense where nodes share a pool.
    fn shared_only(&self, call: &str) -> Result<(), Status> {
        match self.inner.config.kind {
            DriverKind::Shared => Ok(()),
            DriverKind::Local => {
                Err(Status::unimplemented(format!("{call} is not implemented by a local driver")))
            }
        }
    }
}

#[tonic::async_trait]
impl Controller for Service {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> RpcResult<csi::CreateVolumeResponse> {
        let request = request.into_inner();
        let locks = source::locks_for_create(&self.inner, &request);
        self.with_locks("CreateVolume", locks, move |inner| inner.create_volume(&request)).await
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> RpcResult<csi::DeleteVolumeResponse> {
        let request = request.into_inner();
        let id = VolumeId::parse(&request.volume_id);
        self.call("DeleteVolume", id, move |inner| inner.delete_volume(&request)).await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> RpcResult<csi::ControllerPublishVolumeResponse> {
        self.shared_only("ControllerPublishVolume")?;
        let request = request.into_inner();
        let id = VolumeId::parse(&request.volume_id);
        self.call("ControllerPublishVolume", id, move |inner| inner.controller_publish(&request))
            .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> RpcResult<csi::ControllerUnpublishVolumeResponse> {
        self.shared_only("ControllerUnpublishVolume")?;
        let request = request.into_inner();
        let id = VolumeId::parse(&request.volume_id);
        self.call("ControllerUnpublishVolume", id, move |inner| {
            inner.controller_unpublish(&request)
        })
        .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> RpcResult<csi::ValidateVolumeCapabilitiesResponse> {
        let request = request.into_inner();
        let work = move |inner: &Inner| inner.validate_volume_capabilities(request);
        self.call("ValidateVolumeCapabilities", None, work).await
    }

    async fn list_volumes(
        &self,
        request: Request<csi::ListVolumesRequest>,
    ) -> RpcResult<csi::ListVolumesResponse> {
        let request = request.into_inner();
        self.call("ListVolumes", None, move |inner| inner.list_volumes(&request)).await
    }

    async fn get_capacity(
        &self,
        request: Request<csi::GetCapacityRequest>,
    ) -> RpcResult<csi::GetCapacityResponse> {
        let request = request.into_inner();
        self.call("GetCapacity", None, move |inner| inner.get_capacity(&request)).await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> RpcResult<csi::ControllerGetCapabilitiesResponse> {
        let mut types = vec![
            ControllerRpc::CreateDeleteVolume,
            ControllerRpc::ListVolumes,
            ControllerRpc::GetCapacity,
            ControllerRpc::GetVolume,
            ControllerRpc::VolumeCondition,
            ControllerRpc::ModifyVolume,
            ControllerRpc::SingleNodeMultiWriter,
            ControllerRpc::CreateDeleteSnapshot,
            ControllerRpc::ListSnapshots,
            ControllerRpc::CloneVolume,
            ControllerRpc::GetSnapshot,
        ];
        if self.inner.config.kind == DriverKind::Shared {
            types.extend([
                ControllerRpc::PublishUnpublishVolume,
                ControllerRpc::PublishReadonly,
                ControllerRpc::ListVolumesPublishedNodes,
                ControllerRpc::ExpandVolume,
            ]);
        }
        let capability = |rpc: ControllerRpc| csi::ControllerServiceCapability {
            r#type: Some(csi::controller_service_capability::Type::Rpc(
                csi::controller_service_capability::Rpc { r#type: rpc as i32 },
            )),
        };
        let capabilities = types.into_iter().map(capability).collect();
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_snapshot(
        &self,
        request: Request<csi::CreateSnapshotRequest>,
    ) -> RpcResult<csi::CreateSnapshotResponse> {
        let request = request.into_inner();
        let locks = snapshot::locks_for_create(&self.inner, &request);
        self.with_locks("CreateSnapshot", locks, move |inner| inner.create_snapshot(&request)).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<csi::DeleteSnapshotRequest>,
    ) -> RpcResult<csi::DeleteSnapshotResponse> {
        let request = request.into_inner();
        let locks = SnapshotId::parse(&request.snapshot_id)
            .map(LockRequest::exclusive)
            .into_iter()
            .collect();
        self.with_locks("DeleteSnapshot", locks, move |inner| inner.delete_snapshot(&request)).await
    }

    async fn list_snapshots(
        &self,
        request: Request<csi::ListSnapshotsRequest>,
    ) -> RpcResult<csi::ListSnapshotsResponse> {
        let request = request.into_inner();
        self.call("ListSnapshots", None, move |inner| inner.list_snapshots(&request)).await
    }

    async fn get_snapshot(
        &self,
        request: Request<csi::GetSnapshotRequest>,
    ) -> RpcResult<csi::GetSnapshotResponse> {
        let request = request.into_inner();
        self.call("GetSnapshot", None, move |inner| inner.get_snapshot(&request)).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> RpcResult<csi::ControllerExpandVolumeResponse> {
        self.shared_only("ControllerExpandVolume")?;
        let request = request.into_inner();
        let id = VolumeId::parse(&request.volume_id);
        self.call("ControllerExpandVolume", id, move |inner| inner.controller_expand(&request))
            .await
    }

    async fn controller_get_volume(
        &self,
        request: Request<csi::ControllerGetVolumeRequest>,
    ) -> RpcResult<csi::ControllerGetVolumeResponse> {
        let request = request.into_inner();
        self.call("ControllerGetVolume", None, move |inner| inner.get_volume(&request)).await
    }

    async fn controller_list_volume_health(
        &self,
        _: Request<csi::ControllerListVolumeHealthRequest>,
    ) -> RpcResult<csi::ControllerListVolumeHealthResponse> {
        Err(not_advertised("ControllerListVolumeHealth"))
    }

    async fn controller_get_volume_health(
        &self,
        _: Request<csi::ControllerGetVolumeHealthRequest>,
    ) -> RpcResult<csi::ControllerGetVolumeHealthResponse> {
        Err(not_advertised("ControllerGetVolumeHealth"))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<csi::ControllerModifyVolumeRequest>,
    ) -> RpcResult<csi::ControllerModifyVolumeResponse> {
        let request = request.into_inner();
        let id = VolumeId::parse(&request.volume_id);
        self.call("ControllerModifyVolume", id, move |inner| inner.modify_volume(&request)).await
    }
}

#[tonic::async_trait]
impl GroupController for Service {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<csi::GroupControllerGetCapabilitiesRequest>,
    ) -> RpcResult<csi::GroupControllerGetCapabilitiesResponse> {
        let capability = csi::GroupControllerServiceCapability {
            r#type: Some(csi::group_controller_service_capability::Type::Rpc(
                csi::group_controller_service_capability::Rpc {
                    r#type: GroupRpc::CreateDeleteGetVolumeGroupSnapshot as i32,
                },
            )),
        };
        let capabilities = vec![capability];
        Ok(Response::new(csi::GroupControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<csi::CreateVolumeGroupSnapshotRequest>,
    ) -> RpcResult<csi::CreateVolumeGroupSnapshotResponse> {
        let request = request.into_inner();
        let locks = snapshot::group::locks_for_create(&self.inner, &request);
        let work = move |inner: &Inner| inner.create_group(&request);
        self.with_locks("CreateVolumeGroupSnapshot", locks, work).await
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<csi::DeleteVolumeGroupSnapshotRequest>,
    ) -> RpcResult<csi::DeleteVolumeGroupSnapshotResponse> {
        let request = request.into_inner();
        let locks = snapshot::group::locks_for_delete(&self.inner, &request);
        let work = move |inner: &Inner| inner.delete_group(&request);
        self.with_locks("DeleteVolumeGroupSnapshot", locks, work).await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<csi::GetVolumeGroupSnapshotRequest>,
    ) -> RpcResult<csi::GetVolumeGroupSnapshotResponse> {
        let request = request.into_inner();
        self.call("GetVolumeGroupSnapshot", None, move |inner| inner.get_group(&request)).await
    }
}

#[tonic::async_trait]
impl Node for Service {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> RpcResult<csi::NodeStageVolumeResponse> {
        let request = request.into_inner();
        let id = Some(self.inner.node_id_of(&request.volume_id));
        self.call("NodeStageVolume", id, move |inner| inner.stage(&request)).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> RpcResult<csi::NodeUnstageVolumeResponse> {
        let request = request.into_inner();
        let id = Some(self.inner.node_id_of(&request.volume_id));
        self.call("NodeUnstageVolume", id, move |inner| inner.unstage(&request)).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> RpcResult<csi::NodePublishVolumeResponse> {
        let request = request.into_inner();
        let id = Some(self.inner.node_id_of(&request.volume_id));
        self.call("NodePublishVolume", id, move |inner| inner.publish(&request)).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> RpcResult<csi::NodeUnpublishVolumeResponse> {
        let request = request.into_inner();
        let id = Some(self.inner.node_id_of(&request.volume_id));
        self.call("NodeUnpublishVolume", id, move |inner| inner.unpublish(&request)).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> RpcResult<csi::NodeGetVolumeStatsResponse> {
        // It only reads, so it takes no lock and does not block a call that changes the volume.
        let request = request.into_inner();
        self.call("NodeGetVolumeStats", None, move |inner| inner.stats(&request)).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> RpcResult<csi::NodeExpandVolumeResponse> {
        let request = request.into_inner();
        let id = Some(self.inner.node_id_of(&request.volume_id));
        self.call("NodeExpandVolume", id, move |inner| inner.node_expand(&request)).await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> RpcResult<csi::NodeGetCapabilitiesResponse> {
        let types = [
            NodeRpc::StageUnstageVolume,
            NodeRpc::GetVolumeStats,
            NodeRpc::ExpandVolume,
            NodeRpc::VolumeCondition,
            NodeRpc::SingleNodeMultiWriter,
        ];
        let capability = |rpc: NodeRpc| csi::NodeServiceCapability {
            r#type: Some(csi::node_service_capability::Type::Rpc(
                csi::node_service_capability::Rpc { r#type: rpc as i32 },
            )),
        };
        let capabilities = types.into_iter().map(capability).collect();
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> RpcResult<csi::NodeGetInfoResponse> {
        let config = &self.inner.config;
        Ok(Response::new(csi::NodeGetInfoResponse {
            node_id: config.node_id.clone(),
            max_volumes_per_node: i64::from(config.max_volumes),
            accessible_topology: topology::here(config),
        }))
    }

    async fn node_get_volume_health(
        &self,
        _: Request<csi::NodeGetVolumeHealthRequest>,
    ) -> RpcResult<csi::NodeGetVolumeHealthResponse> {
        Err(not_advertised("NodeGetVolumeHealth"))
    }

    async fn node_get_storage_health(
        &self,
        _: Request<csi::NodeGetStorageHealthRequest>,
    ) -> RpcResult<csi::NodeGetStorageHealthResponse> {
        Err(not_advertised("NodeGetStorageHealth"))
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::config::{DriverConfig, PoolConfig};

    fn service(dir: &std::path::Path) -> Service {
        let mut config = DriverConfig::new(DriverKind::Shared, "n1");
        config.pools.push(PoolConfig::new("default", dir));
        Service { inner: Driver::open(config).expect("the driver opens").inner }
    }

    #[tokio::test]
    async fn a_volume_has_one_call_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let service = service(dir.path());
        let id = service.inner.id_for("a");
        let guard = service.inner.locks.acquire(&LockRequest::exclusive(&id)).unwrap();
        let volume_id = id.to_string();
        let create = csi::CreateVolumeRequest { name: "a".into(), ..Default::default() };
        let stage =
            csi::NodeStageVolumeRequest { volume_id: volume_id.clone(), ..Default::default() };
        let delete = csi::DeleteVolumeRequest { volume_id, ..Default::default() };
        let code = |status: Status| status.code();
        let created = service.create_volume(Request::new(create.clone())).await;
        assert_eq!(created.map(drop).map_err(code), Err(Code::Aborted));
        let staged = service.node_stage_volume(Request::new(stage)).await;
        assert_eq!(staged.map(drop).map_err(code), Err(Code::Aborted));
        let deleted = service.delete_volume(Request::new(delete.clone())).await;
        assert_eq!(deleted.map(drop).map_err(code), Err(Code::Aborted));
        // Other volumes are not locked, and the next caller gets the lock.
        let other = csi::DeleteVolumeRequest {
            volume_id: service.inner.id_for("b").to_string(),
            ..Default::default()
        };
        service.delete_volume(Request::new(other)).await.expect("another volume");
        drop(guard);
        service.delete_volume(Request::new(delete)).await.expect("free again");
        let created = service.create_volume(Request::new(create)).await;
        assert_eq!(created.map(drop).map_err(code), Err(Code::InvalidArgument));
    }

    #[tokio::test]
    async fn a_call_that_panics_frees_its_volume() {
        let dir = tempfile::tempdir().unwrap();
        let service = service(dir.path());
        let id = service.inner.id_for("a");
        let work = |_: &Inner| -> Result<(), Refusal> { panic!("a bug") };
        let response = service.call("Test", Some(id.clone()), work).await;
        assert_eq!(response.map(drop).map_err(|status| status.code()), Err(Code::Internal));
        service.inner.locks.acquire(&LockRequest::exclusive(&id)).expect("free again");
    }
}
