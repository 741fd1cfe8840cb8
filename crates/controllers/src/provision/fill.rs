//! What a claim is filled from: looked up, and marked so that it does not go meanwhile.

use longshore_cluster::ApiError;
use longshore_core::{
    model::{
        Kind, ObjectKey,
        keys::finalizers,
        kinds::{Claim, StorageClass, Volume, VolumeSnapshot, VolumeSnapshotContent},
    },
    provision::source::{
        CloneView, Content, RestoreView, Source, SourceError, SourceKind, clone, cloned_volume,
        content_of, restore, snapshot_source,
    },
};
use longshore_provisioner::{Cause, ProvisionError};

use super::make::CsiProvisioner;
use crate::finalizers::{Change, add_finalizer, remove_finalizer};

impl CsiProvisioner {
    /// Finds what the driver is to be told, and puts our finalizer on the source.
    pub(super) async fn fill(
        &self,
        claim: &Claim,
        class: &StorageClass,
        source: &Source,
    ) -> Result<Content, ProvisionError> {
        let Source { kind, key } = source;
        let found = match kind {
            SourceKind::Snapshot => self.snapshot_handle(claim, class, key).await,
            SourceKind::Claim => self.volume_handle(claim, class, key).await,
        };
        let handle = found.map_err(|why| {
            let name = &key.name;
            ProvisionError::unchanged(format!(
                "error getting handle for DataSource Type {kind} by Name {name}: {why}"
            ))
        })?;
        let held = match kind {
            SourceKind::Snapshot => self.hold_snapshot(key).await,
            SourceKind::Claim => self.hold_claim(key).await,
        };
        held.map_err(ProvisionError::Unchanged)?;
        let ObjectKey { namespace, name } = key.clone();
        Ok(Content { kind: *kind, namespace, name, handle })
    }

    async fn snapshot_handle(
        &self,
        claim: &Claim,
        class: &StorageClass,
        key: &ObjectKey,
    ) -> Result<String, SourceError> {
        let api = &self.parts.api;
        let missing = |why: String| SourceError::SnapshotMissing { name: key.name.clone(), why };
        let snapshot = match api.get::<VolumeSnapshot>(key).await {
            Ok(Some(snapshot)) => snapshot,
            Ok(None) => return Err(missing(not_found::<VolumeSnapshot>(&key.name))),
            Err(error) => return Err(missing(error.to_string())),
        };
        let name = content_of(&snapshot)?;
        let content = api.get::<VolumeSnapshotContent>(&ObjectKey::cluster(name)).await;
        let content = content.unwrap_or_else(|error| {
            tracing::warn!(snapshot = %key, content = name, %error, "the content cannot be read");
            None
        });
        restore(&RestoreView {
            claim,
            class,
            snapshot: &snapshot,
            content: content.as_ref(),
            guard_volume_mode: self.config.plan.guard_volume_mode,
        })
    }

    async fn volume_handle(
        &self,
        claim: &Claim,
        class: &StorageClass,
        key: &ObjectKey,
    ) -> Result<String, SourceError> {
        let Some(source) = self.parts.claims.get(key) else {
            return Err(SourceError::ClaimMissing {
                name: key.name.clone(),
                namespace: claim.metadata.namespace.clone(),
                why: format!("persistentvolumeclaim {:?} not found", key.name),
            });
        };
        let name = cloned_volume(claim, &source)?;
        let volume = self.parts.api.get::<Volume>(&ObjectKey::cluster(name)).await;
        let volume = volume.unwrap_or_else(|error| {
            tracing::warn!(claim = %key, volume = name, %error, "the volume cannot be read");
            None
        });
        let view = CloneView { claim, class, source: &source, volume: volume.as_ref() };
        clone(&view).inspect_err(|error| {
            // The event says only that the volume does not fit; here is what there is to see.
            if *error == SourceError::VolumeUnfit {
                let csi = volume.as_ref().and_then(|volume| volume.spec.csi.as_ref());
                let bound_to = volume.as_ref().and_then(|volume| volume.spec.claim_ref.as_ref());
                tracing::warn!(
                    claim = %key,
                    volume = name,
                    phase = volume.as_ref().map(|volume| volume.status.phase.as_str()),
                    driver = csi.map(|csi| csi.driver.as_str()),
                    bound_to = bound_to.map(|claim| format!("{}/{}", claim.namespace, claim.name)),
                    "this volume cannot be cloned for the class"
                );
            }
        })
    }

    async fn hold_claim(&self, key: &ObjectKey) -> Result<(), Cause> {
        let finalizer = finalizers::CLONING_PROTECTION;
        if self.parts.claims.get(key).is_some_and(|one| one.metadata.has_finalizer(finalizer)) {
            return Ok(());
        }
        let changed = add_finalizer::<Claim>(&self.parts.api, key, finalizer).await?;
        if matches!(changed, Change::Gone) {
            return Err(not_found::<Claim>(&key.name).into());
        }
        changed.assume_in(&self.parts.claims);
        Ok(())
    }

    async fn hold_snapshot(&self, key: &ObjectKey) -> Result<(), Cause> {
        let finalizer = finalizers::SNAPSHOT_SOURCE_PROTECTION;
        match add_finalizer::<VolumeSnapshot>(&self.parts.api, key, finalizer).await {
            Ok(Change::Gone) => Err(not_found::<VolumeSnapshot>(&key.name).into()),
            Ok(_) => {
                self.held_snapshots.lock().insert(key.clone());
                Ok(())
            }
            // Rights that were granted to an older official program do not cover this.
            Err(error @ ApiError::Forbidden { .. }) => {
                longshore_cluster::log_result!(snapshot = %key, %error, "restoring without protection of the snapshot");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The volume is saved: the snapshot may go, unless other claims are still filled from it. When this
    /// fails the sweep does it later.
    pub(super) async fn release_snapshot(&self, claim: &Claim) {
        let Some(key) = snapshot_source(claim) else { return };
        if self.is_awaited_by_others(&key, &claim.metadata.uid) {
            return;
        }
        let finalizer = finalizers::SNAPSHOT_SOURCE_PROTECTION;
        match remove_finalizer::<VolumeSnapshot>(&self.parts.api, &key, finalizer).await {
            Ok(_) => {
                self.held_snapshots.lock().remove(&key);
            }
            Err(ApiError::Forbidden { .. }) => {}
            Err(error) => {
                tracing::warn!(snapshot = %key, %error, "our finalizer stays on the snapshot for now");
            }
        }
    }
}

/// In the API's own words.
fn not_found<T: Kind>(name: &str) -> String {
    match T::GROUP {
        "" => format!("{} {name:?} not found", T::PLURAL),
        group => format!("{}.{group} {name:?} not found", T::PLURAL),
    }
}
