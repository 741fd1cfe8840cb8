//! The driver's name and readiness.

use std::{collections::BTreeMap, time::Duration};

use tonic::Code;

use super::Client;
use crate::names::{self, BadDriverName};
use crate::{CsiError, v1};

const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Why the driver's name is not known.
#[derive(Debug, thiserror::Error)]
pub enum DriverNameError {
    #[error(transparent)]
    Call(#[from] CsiError),
    /// The name is of no use.
    #[error(transparent)]
    Name(#[from] BadDriverName),
}

/// A probe failed with an error that does not go away by waiting.
#[derive(Debug, thiserror::Error)]
#[error("CSI driver probe failed: {0}")]
pub struct ProbeFailed(#[from] pub CsiError);

impl Client {
    /// Requests the driver's name and validates it. The first one is the metrics label from then on.
    pub async fn driver_name(&self) -> Result<String, DriverNameError> {
        self.driver_name_and_manifest().await.map(|(name, _)| name)
    }

    /// As [`Self::driver_name`], with what else the driver says about itself.
    pub async fn driver_name_and_manifest(
        &self,
    ) -> Result<(String, BTreeMap<String, String>), DriverNameError> {
        let info = self.get_plugin_info(v1::GetPluginInfoRequest {}).await?;
        names::driver_name(&info.name)?;
        self.shared.peer.name.get_or_init(|| info.name.clone());
        Ok((info.name, info.manifest))
    }

    /// Sets the driver name for metrics, where it is known from another connection.
    #[must_use]
    pub fn with_driver_name(self, driver: &str) -> Self {
        self.shared.peer.name.get_or_init(|| driver.to_owned());
        self
    }

    /// Probes at once and then every second until the driver is ready; each try has its own deadline.
    pub async fn wait_ready(&self, per_try: Duration) -> Result<(), ProbeFailed> {
        let client = self.with_timeout(Some(per_try));
        // Its name is known only after this, as a rule.
        let (address, driver) = (self.address(), self.driver());
        loop {
            match client.probe(v1::ProbeRequest {}).await {
                Ok(response) if response.ready.unwrap_or(true) => return Ok(()),
                Ok(_) => tracing::warn!(address, driver, "CSI driver is not ready"),
                Err(error) if error.code() == Code::DeadlineExceeded => {
                    tracing::warn!(address, driver, "CSI driver probe timed out");
                }
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(PROBE_EVERY).await;
        }
    }
}
