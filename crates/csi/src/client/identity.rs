//! Who the driver is, whether it is ready and what it can do.

use std::time::Duration;

use tonic::Code;

use super::Client;
use crate::capabilities::{
    ControllerCapabilities, GroupCapabilities, NodeCapabilities, PluginCapabilities,
};
use crate::names::{self, BadDriverName};
use crate::{CsiError, v1};

const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Why the driver's name is not known.
#[derive(Debug, thiserror::Error)]
pub enum DriverNameError {
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CsiError),
    /// The name is of no use.
    #[error(transparent)]
    Name(#[from] BadDriverName),
}

/// The driver answered a probe with an error that waiting does not cure.
#[derive(Debug, thiserror::Error)]
#[error("CSI driver probe failed: {0}")]
pub struct ProbeFailed(#[from] pub CsiError);

impl Client {
    /// Asks the driver for its name, checks it and uses it as metrics label from then on.
    pub async fn driver_name(&self) -> Result<String, DriverNameError> {
        let name = self.get_plugin_info(v1::GetPluginInfoRequest {}).await?.name;
        names::driver_name(&name)?;
        Ok(self.shared.driver.get_or_init(|| name).clone())
    }

    /// The same client with a name that was asked for on another connection, as metrics label.
    #[must_use]
    pub fn named(self, driver: &str) -> Self {
        self.shared.driver.get_or_init(|| driver.to_owned());
        self
    }

    /// Probes at once and then every second until the driver is ready; each try has its own deadline.
    pub async fn wait_ready(&self, per_try: Duration) -> Result<(), ProbeFailed> {
        let client = self.with_timeout(Some(per_try));
        loop {
            match client.probe(v1::ProbeRequest {}).await {
                Ok(answer) if answer.ready.unwrap_or(true) => return Ok(()),
                Ok(_) => tracing::warn!("CSI driver is not ready"),
                Err(error) if error.code() == Code::DeadlineExceeded => {
                    tracing::warn!("CSI driver probe timed out");
                }
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(PROBE_EVERY).await;
        }
    }

    /// What the plugin as a whole can do.
    pub async fn plugin_capabilities(&self) -> Result<PluginCapabilities, CsiError> {
        let request = v1::GetPluginCapabilitiesRequest {};
        Ok((&self.get_plugin_capabilities(request).await?).into())
    }

    /// What the Controller service can do.
    pub async fn controller_capabilities(&self) -> Result<ControllerCapabilities, CsiError> {
        let request = v1::ControllerGetCapabilitiesRequest {};
        Ok((&self.controller_get_capabilities(request).await?).into())
    }

    /// What the Node service can do.
    pub async fn node_capabilities(&self) -> Result<NodeCapabilities, CsiError> {
        let request = v1::NodeGetCapabilitiesRequest {};
        Ok((&self.node_get_capabilities(request).await?).into())
    }

    /// What the GroupController service can do.
    pub async fn group_capabilities(&self) -> Result<GroupCapabilities, CsiError> {
        let request = v1::GroupControllerGetCapabilitiesRequest {};
        Ok((&self.group_controller_get_capabilities(request).await?).into())
    }

    /// All volumes, page by page. Give the client one deadline for the whole with [`Client::with_deadline`].
    pub async fn list_all_volumes(
        &self,
    ) -> Result<Vec<v1::list_volumes_response::Entry>, CsiError> {
        let mut entries = Vec::new();
        let mut request = v1::ListVolumesRequest::default();
        loop {
            let page = self.list_volumes(request.clone()).await?;
            entries.extend(page.entries);
            if page.next_token.is_empty() {
                return Ok(entries);
            }
            request.starting_token = page.next_token;
        }
    }
}
