//! Asks the CSI driver for its name and capabilities.

use std::time::Duration;

use longshore_core::provision::DriverCapabilities;
use longshore_csi::{
    Client, CsiError,
    capabilities::{ControllerCapability, PluginService},
    client::{DriverNameError, ProbeFailed},
};

/// A driver that has introduced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// Its name, which is the provisioner's name too.
    pub name: String,
    pub capabilities: DriverCapabilities,
}

/// Why the driver is not known.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Probe(#[from] ProbeFailed),
    /// It has no usable name.
    #[error("the driver's name: {0}")]
    Name(#[from] DriverNameError),
    /// It does not say what it can do.
    #[error("the driver's capabilities: {0}")]
    Capabilities(#[from] CsiError),
}

/// Waits until the driver is ready and asks for its name and capabilities.
///
/// # Errors
/// When it answers with an error that waiting does not cure.
pub async fn describe(csi: &Client, timeout: Duration) -> Result<Driver, StartError> {
    csi.wait_ready(timeout).await?;
    let csi = csi.with_timeout(Some(timeout));
    let name = csi.driver_name().await?;
    Ok(Driver { name, capabilities: capabilities(&csi).await? })
}

/// What the driver behind the present connection can do. Costs no call while the connection lasts.
pub(super) async fn capabilities(csi: &Client) -> Result<DriverCapabilities, CsiError> {
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
