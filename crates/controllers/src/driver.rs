//! Every sidecar asks its driver in this one way who it is and what it can do.

use std::time::Duration;

use longshore_core::words;
use longshore_core::{backoff::Backoff, provision::DriverCapabilities};
use longshore_csi::{
    Client, CsiError,
    capabilities::{ControllerCapability, PluginService},
    client::{DriverNameError, ProbeFailed},
};
use tokio_util::sync::CancellationToken;

/// Longest pause between attempts to ask a driver who it is.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A driver that has introduced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// Its name, which is the provisioner's and the attacher's name too.
    pub name: String,
    pub capabilities: DriverCapabilities,
}

/// Why the driver is not known.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error(transparent)]
    Probe(#[from] ProbeFailed),
    #[error("error getting CSI driver name: {0}")]
    Name(#[from] DriverNameError),
    #[error("failed to check what the CSI driver supports: {0}")]
    Capabilities(#[from] CsiError),
}

impl Driver {
    /// Asks the driver for its name and its capabilities; `timeout` is the deadline of each call.
    ///
    /// # Errors
    /// When it does not answer, or answers with a name that is of no use.
    pub async fn describe(csi: &Client, timeout: Duration) -> Result<Self, DriverError> {
        let csi = csi.with_timeout(Some(timeout));
        let name = csi.driver_name().await?;
        Ok(Self { name, capabilities: capabilities(&csi).await? })
    }

    /// Waits until the driver is ready, then asks it.
    ///
    /// # Errors
    /// When it answers with an error that waiting does not cure.
    pub async fn describe_when_ready(csi: &Client, timeout: Duration) -> Result<Self, DriverError> {
        csi.wait_ready(timeout).await?;
        Self::describe(csi, timeout).await
    }

    /// Asks again, after pauses that grow to ten seconds, until the driver answers; `None` when
    /// `shutdown` comes first.
    pub async fn describe_with_retries(
        csi: &Client,
        timeout: Duration,
        first_pause: Duration,
        shutdown: &CancellationToken,
    ) -> Option<Self> {
        let mut pauses = Backoff::new(first_pause, LONGEST_PAUSE).series();
        let asked = async {
            loop {
                match Self::describe_when_ready(csi, timeout).await {
                    Ok(driver) => return driver,
                    Err(error) => {
                        let pause = pauses.pause();
                        tracing::warn!(%error, retry_in = words::time(pause), "the driver cannot be asked who it is");
                        tokio::time::sleep(pause).await;
                    }
                }
            }
        };
        shutdown.run_until_cancelled(asked).await
    }
}

/// What the driver behind the present connection can do. Costs no call while the connection lasts.
pub(crate) async fn capabilities(csi: &Client) -> Result<DriverCapabilities, CsiError> {
    let plugin = csi.plugin_capabilities().await?;
    let controller = if plugin.has(PluginService::ControllerService) {
        csi.controller_capabilities().await?
    } else {
        Default::default()
    };
    Ok(DriverCapabilities {
        controller_service: plugin.has(PluginService::ControllerService),
        topology: plugin.has(PluginService::VolumeAccessibilityConstraints),
        create_delete_volume: controller.has(ControllerCapability::CreateDeleteVolume),
        publish: controller.has(ControllerCapability::PublishUnpublishVolume),
        single_node_multi_writer: controller.has(ControllerCapability::SingleNodeMultiWriter),
        create_delete_snapshot: controller.has(ControllerCapability::CreateDeleteSnapshot),
        clone_volume: controller.has(ControllerCapability::CloneVolume),
        modify_volume: controller.has(ControllerCapability::ModifyVolume),
    })
}
