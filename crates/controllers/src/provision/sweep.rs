//! Takes our finalizer off snapshots that nobody restores any more.
//!
//! It is put on before a restore begins and taken off when the volume is saved. In between a claim
//! can be deleted, or a process can end; then nobody else would take it off.
//!
//! All snapshots are listed once, for what an earlier process left. From then on only those are looked
//! at that this process has put its finalizer on.

use std::sync::Arc;

use longshore_cluster::{ApiError, Cache, ListParams};
use longshore_core::{
    model::{
        HasMeta, ObjectKey, Uid,
        keys::finalizers,
        kinds::{Claim, VolumeSnapshot},
    },
    provision::{
        name::volume_name,
        source::{SourceKind, awaited_snapshot},
    },
};
use tokio_util::sync::CancellationToken;

use super::make::CsiProvisioner;
use crate::finalizers::{Change, remove_finalizer};

/// Claims by the snapshot that they wait to be filled from.
const BY_SNAPSHOT: &str = "claims-by-awaited-snapshot";

/// Lets claims be found by the snapshot that they wait for.
pub(super) fn index_claims(claims: &Cache<Claim>) {
    claims.index(BY_SNAPSHOT, |claim: &Claim| {
        awaited_snapshot(claim).iter().map(ToString::to_string).collect()
    });
}

/// Sweeps at once and then after every interval until `shutdown`. Ends at once for a driver that
/// has no snapshots, and when the rights do not cover it: they are optional.
pub(super) async fn run(provisioner: Arc<CsiProvisioner>, shutdown: CancellationToken) {
    let Some(interval) = provisioner.config.snapshot_sweep else { return };
    if !provisioner.driver.capabilities.create_delete_snapshot {
        return;
    }
    let mut pause = shutdown.run_until_cancelled(provisioner.parts.claims.synced()).await;
    let mut listed = false;
    while pause.is_some() {
        if !listed {
            match provisioner.find_held_snapshots().await {
                Ok(()) => listed = true,
                Err(error @ ApiError::Forbidden { .. }) => {
                    longshore_cluster::log_process!(%error, "finalizers that were left on snapshots stay there");
                    return;
                }
                // Without that kind there is nothing to sweep; it may be defined later.
                Err(error) if error.is_not_found() => {}
                Err(error) => tracing::warn!(%error, "snapshots are not swept this time"),
            }
        }
        provisioner.sweep_snapshots().await;
        pause = shutdown.run_until_cancelled(tokio::time::sleep(interval)).await;
    }
}

impl CsiProvisioner {
    /// Finds the snapshots that an earlier process has put the finalizer on.
    async fn find_held_snapshots(&self) -> Result<(), ApiError> {
        let finalizer = finalizers::SNAPSHOT_SOURCE_PROTECTION;
        let all = self.parts.api.list::<VolumeSnapshot>(None, &ListParams::default()).await?;
        let held = all.iter().filter(|one| one.meta().has_finalizer(finalizer));
        self.held_snapshots.lock().extend(held.map(HasMeta::key));
        Ok(())
    }

    async fn sweep_snapshots(&self) {
        let finalizer = finalizers::SNAPSHOT_SOURCE_PROTECTION;
        let held: Vec<ObjectKey> = self.held_snapshots.lock().iter().cloned().collect();
        for key in held {
            if self.is_awaited(&key) {
                continue;
            }
            match remove_finalizer::<VolumeSnapshot>(&self.parts.api, &key, finalizer).await {
                Ok(change) => {
                    self.held_snapshots.lock().remove(&key);
                    if matches!(change, Change::Written(_)) {
                        longshore_cluster::log_process!(snapshot = %key, "nobody restores it any more; our finalizer is off");
                    }
                }
                Err(error) => {
                    longshore_cluster::log_process!(snapshot = %key, %error, "our finalizer stays until the next sweep");
                }
            }
        }
    }

    /// Claims are looked at last: one that came meanwhile counts.
    fn is_awaited(&self, key: &ObjectKey) -> bool {
        self.parts.claims.has_indexed(BY_SNAPSHOT, &key.to_string())
            || self.is_begun_from(SourceKind::Snapshot, key)
    }

    /// Whether other claims than this one wait for the snapshot, and have no volume yet.
    pub(super) fn is_awaited_by_others(&self, key: &ObjectKey, claim: &Uid) -> bool {
        let plan = &self.config.plan;
        let waiting = self.parts.claims.by_index(BY_SNAPSHOT, &key.to_string());
        waiting.iter().map(|one| &one.metadata.uid).filter(|uid| *uid != claim).any(|uid| {
            let made = volume_name(&plan.name_prefix, uid, plan.name_uuid_length)
                .ok()
                .and_then(|volume| self.parts.volumes.get(&ObjectKey::cluster(volume)));
            made.is_none()
        })
    }
}
