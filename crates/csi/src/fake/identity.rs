//! The Identity service of the fake.

use tonic::{Request, Response, Status};

use super::Driver;
use crate::{Call, v1};

#[tonic::async_trait]
impl v1::identity_server::Identity for Driver {
    async fn get_plugin_info(
        &self,
        request: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        self.run(Call::GetPluginInfo, request, |_, config, _| {
            Ok(v1::GetPluginInfoResponse {
                name: config.name.clone(),
                vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
                manifest: config.manifest.clone(),
            })
        })
        .await
    }

    async fn get_plugin_capabilities(
        &self,
        request: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        self.run(Call::GetPluginCapabilities, request, |_, config, _| Ok((&config.plugin).into()))
            .await
    }

    async fn probe(
        &self,
        request: Request<v1::ProbeRequest>,
    ) -> Result<Response<v1::ProbeResponse>, Status> {
        self.run(Call::Probe, request, |_, config, _| Ok(v1::ProbeResponse { ready: config.ready }))
            .await
    }
}
