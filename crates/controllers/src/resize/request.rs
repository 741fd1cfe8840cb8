//! Builds the requests to the driver.

use std::borrow::Cow;
use std::collections::BTreeMap;

use longshore_cluster::secrets::read_secret;
use longshore_core::{
    access_mode,
    model::{
        ObjectKey, Quantity, VolumeMode,
        keys::annotations,
        kinds::{CsiSource, SecretRef, Volume},
    },
    provision::migration::{plugin_of, volume_to_csi},
};
use longshore_csi::{
    Client,
    capabilities::ControllerCapability,
    v1::{
        CapacityRange, ControllerExpandVolumeRequest, VolumeCapability,
        volume_capability::{self, AccessType, BlockVolume, MountVolume},
    },
};

use super::{Sidecar, error::ResizeError};

/// A volume as its driver knows it.
pub(super) struct Known<'a> {
    volume: Cow<'a, Volume>,
    csi: CsiSource,
}

/// The CSI form of a volume, translated when its source is an in-tree plugin's.
pub(super) fn known(volume: &Volume) -> Result<Known<'_>, ResizeError> {
    let volume = match volume_to_csi(volume)? {
        Some(translated) => Cow::Owned(translated),
        None => Cow::Borrowed(volume),
    };
    let csi = volume.spec.csi.clone();
    let csi = csi.ok_or_else(|| ResizeError::NotMigrated(volume.name()))?;
    if csi.volume_handle.is_empty() {
        return Err(ResizeError::NoHandle);
    }
    Ok(Known { volume, csi })
}

impl Sidecar {
    /// The driver's client. Where the driver took over from an in-tree plugin, calls are counted by
    /// the form of the volume they are about.
    pub(super) fn driver_for(&self, known: &Known<'_>) -> Client {
        let took_over = plugin_of(&self.name).is_some();
        let translated = matches!(known.volume, Cow::Owned(_));
        self.driver.with_migrated(took_over.then_some(translated))
    }

    pub(super) async fn expand_request(
        &self,
        known: &Known<'_>,
        target: Quantity,
    ) -> Result<ControllerExpandVolumeRequest, ResizeError> {
        let Known { volume, csi } = known;
        let secrets = self.secrets(csi.controller_expand_secret_ref.as_ref()).await?;
        let driver = self.driver.controller_capabilities().await?;
        let multi_writer = driver.has(ControllerCapability::SingleNodeMultiWriter);
        let mode = access_mode::for_attach(&volume.spec.access_modes, multi_writer)?;
        let access_type = match volume.spec.volume_mode {
            Some(VolumeMode::Block) => AccessType::Block(BlockVolume {}),
            _ => AccessType::Mount(MountVolume {
                fs_type: csi.fs_type.clone(),
                mount_flags: volume.spec.mount_options.clone(),
                ..MountVolume::default()
            }),
        };
        Ok(ControllerExpandVolumeRequest {
            volume_id: csi.volume_handle.to_string(),
            capacity_range: Some(CapacityRange { required_bytes: target.bytes(), limit_bytes: 0 }),
            secrets,
            volume_capability: Some(VolumeCapability {
                access_mode: Some(volume_capability::AccessMode { mode: mode as i32 }),
                access_type: Some(access_type),
            }),
        })
    }

    /// The secrets for ControllerModifyVolume: those that the volume's annotations name, if both do, else
    /// those for expansion.
    pub(super) async fn modify_secrets(
        &self,
        volume: &Volume,
    ) -> Result<BTreeMap<String, String>, ResizeError> {
        let note = |name| volume.metadata.annotation(name).unwrap_or_default().to_owned();
        let named = SecretRef {
            name: note(annotations::MODIFY_SECRET_NAME),
            namespace: note(annotations::MODIFY_SECRET_NAMESPACE),
        };
        if !named.name.is_empty() && !named.namespace.is_empty() {
            return self.secrets(Some(&named)).await;
        }
        let csi = volume.spec.csi.as_ref();
        self.secrets(csi.and_then(|csi| csi.controller_expand_secret_ref.as_ref())).await
    }

    /// Read anew each time: a rotated secret counts from the next call on.
    async fn secrets(
        &self,
        reference: Option<&SecretRef>,
    ) -> Result<BTreeMap<String, String>, ResizeError> {
        let Some(reference) = reference else { return Ok(BTreeMap::new()) };
        let secret = ObjectKey::new(&reference.namespace, &reference.name);
        let read = read_secret(&self.api, &secret).await;
        read.map_err(|source| ResizeError::Secret { secret, source })
    }
}
