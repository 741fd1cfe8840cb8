//! Takes our finalizer off snapshots that nobody restores any more.
//!
//! It is put on before a restore begins and taken off when the volume is saved. In between a claim
//! can be deleted, or a process can end; then nobody else would take it off.

use std::sync::Arc;

use longshore_cluster::{ApiError, ListParams};
use longshore_core::{
    model::{HasMeta, ObjectKey, keys::finalizers, kinds::VolumeSnapshot},
    provision::source::{SourceKind, awaited_snapshot},
};
use tokio_util::sync::CancellationToken;

use super::{fill, make::CsiProvisioner};

/// Sweeps at once and then after every interval until `shutdown`. Ends at once for a driver that
/// has no snapshots, and when the rights do not cover it: they are optional.
pub(super) async fn run(provisioner: Arc<CsiProvisioner>, shutdown: CancellationToken) {
    let Some(interval) = provisioner.config.snapshot_sweep else { return };
    if !provisioner.driver.capabilities.create_delete_snapshot {
        return;
    }
    let mut pause = shutdown.run_until_cancelled(provisioner.parts.claims.synced()).await;
    while pause.is_some() {
        match provisioner.sweep_snapshots().await {
            Ok(()) => {}
            Err(error @ ApiError::Forbidden { .. }) => {
                longshore_cluster::log_process!(%error, "finalizers that were left on snapshots stay there");
                return;
            }
            // Without that kind there is nothing to sweep; it may be defined later.
            Err(error) if error.is_not_found() => {}
            Err(error) => tracing::warn!(%error, "snapshots are not swept this time"),
        }
        pause = shutdown.run_until_cancelled(tokio::time::sleep(interval)).await;
    }
}

impl CsiProvisioner {
    async fn sweep_snapshots(&self) -> Result<(), ApiError> {
        let finalizer = finalizers::SNAPSHOT_SOURCE_PROTECTION;
        let all = self.parts.api.list::<VolumeSnapshot>(None, &ListParams::default()).await?;
        for snapshot in all.iter().filter(|one| one.meta().has_finalizer(finalizer)) {
            let key = snapshot.key();
            if self.is_awaited(&key) {
                continue;
            }
            match fill::remove_finalizer::<VolumeSnapshot>(&self.parts.api, &key, finalizer).await {
                Ok(_) => {
                    longshore_cluster::log_process!(snapshot = %key, "nobody restores it any more; our finalizer is off");
                }
                Err(error) => {
                    longshore_cluster::log_process!(snapshot = %key, %error, "our finalizer stays until the next sweep");
                }
            }
        }
        Ok(())
    }

    /// Claims are looked at last: one that came meanwhile counts.
    fn is_awaited(&self, key: &ObjectKey) -> bool {
        let claims = self.parts.claims.list();
        claims.iter().any(|claim| awaited_snapshot(claim).as_ref() == Some(key))
            || self.is_begun_from(SourceKind::Snapshot, key)
    }
}
