//! Writes of claims and volumes.

use std::sync::Arc;

use longshore_cluster::{ApiError, OptionalExt as _, Patch};
use longshore_core::model::{
    ObjectKey,
    kinds::{Claim, Volume},
};
use serde_json::Value;

use super::{Sidecar, error::ResizeError};

/// How often a write is repeated on a newer version of the claim.
const TRIES: usize = 10;

/// Whether a write insists on the version that it was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Precondition {
    Version,
    /// As upstream's failure reports: they are true whatever the claim says by now.
    None,
}

impl Sidecar {
    /// Patches the claim's status. `patch` sees the newest version, and says `None` when the write
    /// does not fit it any more. After a conflict the claim is read and the patch made again. `None`
    /// also when the claim is gone.
    pub(super) async fn patch_claim(
        &self,
        claim: &Claim,
        precondition: Precondition,
        patch: impl Fn(&Claim) -> Option<Value>,
    ) -> Result<Option<Arc<Claim>>, ResizeError> {
        let key = claim.metadata.key();
        let failed = |source| ResizeError::Claim { claim: key.clone(), source };
        let _writing = self.memory.lock(&claim.metadata.uid).await;
        for attempt in 1.. {
            let same = |found: &Arc<Claim>| found.metadata.uid == claim.metadata.uid;
            let Some(newest) = self.claims.get(&key).filter(same) else { return Ok(None) };
            let Some(mut patch) = patch(&newest) else { return Ok(None) };
            patch["metadata"]["uid"] = newest.metadata.uid.as_str().into();
            if precondition == Precondition::Version {
                patch["metadata"]["resourceVersion"] =
                    newest.metadata.resource_version.as_str().into();
            }
            match self.api.patch_status::<Claim>(&key, Patch::Strategic(&patch)).await {
                Ok(written) => {
                    self.claims.assume(&written);
                    return Ok(self.claims.get(&key));
                }
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) if error.is_conflict() && attempt < TRIES => {
                    let live = self.api.get_raw::<Claim>(&key).await.map_err(failed)?;
                    let Some(live) = live else { return Ok(None) };
                    self.claims.assume(&live);
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(None)
    }

    /// Patches the volume. It insists on no version, so after a conflict the same patch is sent again.
    pub(super) async fn patch_volume(
        &self,
        volume: &Volume,
        patch: &Value,
    ) -> Result<(), ResizeError> {
        let key = ObjectKey::cluster(&volume.metadata.name);
        let send = async || self.api.patch::<Volume>(&key, Patch::Strategic(patch)).await;
        let mut written = send().await;
        for _ in 1..TRIES {
            if !written.as_ref().is_err_and(ApiError::is_conflict) {
                break;
            }
            written = send().await;
        }
        let failed = |source| ResizeError::Volume { volume: volume.name(), source };
        if let Some(written) = written.optional().map_err(failed)? {
            self.volumes.assume(&written);
        }
        Ok(())
    }
}
