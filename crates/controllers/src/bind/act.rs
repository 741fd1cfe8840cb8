//! The hands of the binder: carries out the writes of one decision.

use std::time::Duration;

use longshore_cluster::{ApiError, Cache, Cacheable, log_result};
use longshore_core::{
    bind::{Write, edit},
    model::{
        ClaimPhase, Meta,
        kinds::{Claim, Volume},
    },
};
use serde_json::Value;

use super::Binder;

/// Why a turn ended early.
#[derive(Debug)]
pub(super) enum Undone {
    /// What was decided on is not what is there any more.
    Stale,
    /// What was seen may change by itself within this time.
    TooEarly(Duration),
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

impl From<ApiError> for Undone {
    fn from(error: ApiError) -> Self {
        if error.is_conflict() || error.is_not_found() {
            return Self::Stale;
        }
        Self::Failed(error.into())
    }
}

/// Carries out the writes of one decision.
///
/// The first write to an object starts from a live read, or from the answer to an earlier write of this
/// process, which must be the version that the decision saw; the following ones start from the answer to
/// the one before.
pub(super) struct Hands<'a> {
    binder: &'a Binder,
    claim: Option<&'a Claim>,
    volume: Option<&'a Volume>,
    claim_json: Option<Value>,
    volume_json: Option<Value>,
}

impl<'a> Hands<'a> {
    pub(super) fn new(
        binder: &'a Binder,
        claim: Option<&'a Claim>,
        volume: Option<&'a Volume>,
    ) -> Self {
        Self { binder, claim, volume, claim_json: None, volume_json: None }
    }

    pub(super) async fn carry_out(&mut self, write: Write) -> Result<(), Undone> {
        match write {
            Write::PointVolume { chosen_by_us, .. } => {
                let claim = self.claim.ok_or(Undone::Stale)?.metadata.clone();
                self.write_volume(false, |json| edit::point_volume(json, &claim, chosen_by_us))
                    .await
            }
            Write::SetVolumePhase { phase, message, .. } => {
                self.write_volume(true, |json| edit::set_volume_phase(json, &phase, &message)).await
            }
            Write::Unbind { .. } => self.write_volume(false, edit::unbind_volume).await,
            Write::SyncVolumeMigration { migrated_to, finalizers } => {
                self.write_volume(false, |json| {
                    let noted = edit::note_migration(json, migrated_to.as_deref());
                    edit::set_finalizers(json, &finalizers) || noted
                })
                .await
            }
            Write::PointClaim { volume } => {
                self.write_claim(false, |json| edit::point_claim(json, &volume)).await
            }
            Write::SetClaimBound { .. } => {
                let volume = self.volume.ok_or(Undone::Stale)?;
                let written =
                    self.write_claim(true, |json| edit::set_claim_bound(json, volume)).await;
                if written.is_ok() {
                    self.log_bound(volume);
                }
                written
            }
            Write::SetClaimPhase(phase) => {
                self.write_claim(true, |json| edit::set_claim_phase(json, &phase)).await
            }
            Write::SetClass(class) => {
                self.write_claim(false, |json| edit::set_class(json, &class)).await
            }
            Write::AskProvisioner { provisioner } => {
                self.write_claim(false, |json| edit::ask_provisioner(json, &provisioner)).await
            }
            Write::SyncClaimMigration { migrated_to } => {
                self.write_claim(false, |json| edit::note_migration(json, migrated_to.as_deref()))
                    .await
            }
        }
    }

    /// Logs the result for a claim that was not bound before.
    fn log_bound(&self, volume: &Volume) {
        if self.claim.is_none_or(|claim| claim.status.phase == ClaimPhase::Bound) {
            return;
        }
        let driver = volume.spec.csi.as_ref().map(|csi| csi.driver.as_str());
        log_result!(volume = volume.metadata.name, driver, "claim is bound");
    }

    /// What is left in hand when all is done may be written again soon: a claim that waits for its
    /// provisioner is bound next.
    pub(super) fn put_down(self) {
        if let Some(claim) = self.claim_json.filter(|claim| claim["spec"]["volumeName"].is_null()) {
            self.binder.claims.keep_written(claim);
        }
    }

    async fn write_volume(
        &mut self,
        status: bool,
        change: impl FnOnce(&mut Value) -> bool,
    ) -> Result<(), Undone> {
        let seen = &self.volume.ok_or(Undone::Stale)?.metadata;
        let Binder { api, volumes, .. } = self.binder;
        write(api, volumes, &mut self.volume_json, seen, status, change).await
    }

    async fn write_claim(
        &mut self,
        status: bool,
        change: impl FnOnce(&mut Value) -> bool,
    ) -> Result<(), Undone> {
        let seen = &self.claim.ok_or(Undone::Stale)?.metadata;
        let Binder { api, claims, .. } = self.binder;
        write(api, claims, &mut self.claim_json, seen, status, change).await
    }
}

async fn write<T: Cacheable>(
    api: &longshore_cluster::Api,
    cache: &Cache<T>,
    json: &mut Option<Value>,
    seen: &Meta,
    status: bool,
    change: impl FnOnce(&mut Value) -> bool,
) -> Result<(), Undone> {
    let mut object = match json.take() {
        Some(object) => object,
        None => match cache.take_written(&seen.key(), &seen.resource_version) {
            Some(written) => written,
            None => {
                let live = api.get_raw::<T>(&seen.key()).await?.ok_or(Undone::Stale)?;
                if live["metadata"]["resourceVersion"] != seen.resource_version.as_str() {
                    return Err(Undone::Stale);
                }
                live
            }
        },
    };
    if change(&mut object) {
        object = match status {
            true => api.update_status_moved::<T>(object).await?,
            false => api.update_moved::<T>(object).await?,
        };
        cache.assume(&object);
    }
    *json = Some(object);
    Ok(())
}
