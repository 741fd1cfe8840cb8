//! Asks a driver for a snapshot: finds the class, keeps the claim, makes the content.

use longshore_cluster::ApiError;
use longshore_core::{
    model::{
        ObjectKey,
        keys::finalizers,
        kinds::{Claim, HasMeta as _, Volume, VolumeSnapshot, VolumeSnapshotContent},
    },
    snapshot::{
        Failure,
        class::{SourceError, default_class, volume_of},
        create::{self, CreateError, Input, claim_lacks_finalizer},
        dynamic_content_name, needs_claim,
    },
};
use serde_json::json;

use super::{
    error::ControllerError,
    snapshots::{Flow, Snapshots},
};
use crate::finalizers::{Change, add_finalizer};

impl Snapshots {
    /// Gives the snapshot the only default class of its volume's driver.
    pub(super) async fn find_class(
        &self,
        snapshot: &VolumeSnapshot,
    ) -> Result<Flow, ControllerError> {
        match self.default_class_of(snapshot).await {
            Ok(class) => {
                let metadata = json!({"uid": snapshot.metadata.uid});
                let patch =
                    json!({"metadata": metadata, "spec": {"volumeSnapshotClassName": class}});
                self.shared.patch(&self.shared.snapshots, &snapshot.key(), &patch).await?;
                Ok(Flow::On)
            }
            Err(error) => {
                if let ControllerError::Source(SourceError::Ambiguous(classes)) = &error {
                    let classes = classes.join(", ");
                    tracing::warn!(snapshot = %snapshot.key(), classes, "more than one class is the default; take the annotation off all but one");
                }
                let message = format!("Failed to set default snapshot class with error {error}");
                let reason = "SetDefaultSnapshotClassFailed";
                self.fail(snapshot, &Failure { reason, message, unready: false }).await
            }
        }
    }

    async fn default_class_of(&self, snapshot: &VolumeSnapshot) -> Result<String, ControllerError> {
        let name = snapshot.spec.source.persistent_volume_claim_name.as_deref().unwrap_or_default();
        let key = ObjectKey::new(&snapshot.metadata.namespace, name);
        let claim = self.shared.claims.get(&key);
        let claim = claim.ok_or_else(|| SourceError::NoClaim(name.to_owned()))?;
        let volume = self.volume_of(&claim).await?;
        let volume = volume_of(&claim, volume.as_ref())?;
        let csi = volume.spec.csi.as_ref();
        let csi = csi.ok_or_else(|| SourceError::NotCsi(snapshot.key().to_string()))?;
        let classes = self.shared.classes.list();
        Ok(default_class(classes.iter().map(|class| &**class), &csi.driver)?.to_owned())
    }

    /// Read live: it is asked for once in the life of a snapshot.
    async fn volume_of(&self, claim: &Claim) -> Result<Option<Volume>, ControllerError> {
        let name = &claim.spec.volume_name;
        if name.is_empty() {
            return Ok(None);
        }
        Ok(self.shared.api.get(&ObjectKey::cluster(name.as_str())).await?)
    }

    pub(super) async fn create_content(
        &self,
        snapshot: &VolumeSnapshot,
    ) -> Result<Flow, ControllerError> {
        match self.make_content(snapshot).await {
            Ok(()) => {
                let key = snapshot.key();
                let text = format!("Waiting for a snapshot {key} to be created by the CSI driver.");
                self.shared.recorder.normal(snapshot, "CreatingSnapshot", text);
                Ok(Flow::On)
            }
            Err(error) if error.is_conflict() => Err(error),
            Err(error) => {
                let message = format!("Failed to create snapshot content with error {error}");
                self.fail(snapshot, &Failure::unready("SnapshotContentCreationFailed", message))
                    .await
            }
        }
    }

    async fn make_content(&self, snapshot: &VolumeSnapshot) -> Result<(), ControllerError> {
        let claim = self.keep_claim(snapshot).await?;
        let volume = self.volume_of(&claim).await?;
        let class = snapshot.spec.volume_snapshot_class_name.as_deref().map(ObjectKey::cluster);
        let class = class.and_then(|class| self.shared.classes.get(&class));
        let node = volume.as_ref().and_then(|volume| self.shared.managing_node(volume));
        let content = create::content(&Input {
            snapshot,
            claim: &claim,
            volume: volume.as_ref(),
            class: class.as_deref(),
            keep_mode: self.shared.config.prevent_volume_mode_conversion,
            node: node.as_ref(),
        })?;
        let name = dynamic_content_name(&snapshot.metadata.uid);
        let made = match self.shared.api.create::<VolumeSnapshotContent>(&content).await {
            // Made by an earlier pass whose response was lost; whose it is, the next look says.
            Err(error) if error.is_already_exists() => {
                let key = ObjectKey::cluster(&name);
                self.shared.api.get_raw::<VolumeSnapshotContent>(&key).await?.ok_or(error)
            }
            made => made,
        };
        match made {
            Ok(made) => {
                self.shared.contents.assume(&made);
                Ok(())
            }
            Err(source) => {
                let key = snapshot.key();
                let text = format!(
                    "Error creating volume snapshot content object for snapshot {key}: {source}."
                );
                self.shared.recorder.warning(snapshot, "CreateSnapshotContentFailed", text);
                Err(ControllerError::Save { name: key.to_string(), source })
            }
        }
    }

    /// Puts our finalizer on the claim: it stays while a snapshot is taken of it.
    async fn keep_claim(
        &self,
        snapshot: &VolumeSnapshot,
    ) -> Result<std::sync::Arc<Claim>, ControllerError> {
        let name = snapshot.spec.source.persistent_volume_claim_name.as_deref().unwrap_or_default();
        let key = ObjectKey::new(&snapshot.metadata.namespace, name);
        let cached = self.shared.claims.get(&key);
        let missing = || CreateError::NoClaim(snapshot.metadata.name.clone());
        if claim_lacks_finalizer(snapshot, cached.as_deref())? {
            let finalizer = finalizers::CLAIM_AS_SOURCE;
            let changed = add_finalizer::<Claim>(&self.shared.api, &key, finalizer).await;
            let changed = changed
                .map_err(|source| ControllerError::Save { name: name.to_owned(), source })?;
            if matches!(changed, Change::Gone) {
                return Err(missing().into());
            }
            changed.assume_in(&self.shared.claims);
        }
        Ok(self.shared.claims.get(&key).or(cached).ok_or_else(missing)?)
    }

    /// Takes our finalizer off the claim once no snapshot is taken of it any more.
    pub(super) async fn release_claim(&self, snapshot: &VolumeSnapshot) -> Result<(), ApiError> {
        let source = &snapshot.spec.source;
        let Some(name) = &source.persistent_volume_claim_name else { return Ok(()) };
        if needs_claim(snapshot) {
            return Ok(());
        }
        let key = ObjectKey::new(&snapshot.metadata.namespace, name);
        self.shared.release_claim(&key).await.inspect_err(|_| {
            let text = "Error check and remove PVC Finalizer for VolumeSnapshot";
            self.shared.recorder.warning(snapshot, "ErrorPVCFinalizer", text);
        })
    }
}
