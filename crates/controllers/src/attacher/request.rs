//! Builds the ControllerPublishVolume request of an attachment.

use std::{collections::BTreeMap, sync::Arc};

use longshore_cluster::secrets::read_secret;
use longshore_core::{
    access_mode,
    attach::sidecar::{Source, source},
    model::AccessMode,
    model::{
        NodeName, ObjectKey, VolumeMode,
        keys::annotations,
        kinds::{CsiSource, Volume, VolumeAttachment, VolumeSpec},
    },
    provision::migration::{plugin_of, volume_to_csi},
};
use longshore_csi::{
    Client,
    capabilities::{ControllerCapabilities, ControllerCapability},
    v1::{
        ControllerPublishVolumeRequest, VolumeCapability,
        volume_capability::{self, AccessType, BlockVolume, MountVolume},
    },
};

use super::{Sidecar, error::SyncError};

/// The volume behind an attachment.
pub(super) struct Attached {
    pub(super) csi: CsiSource,
    pub(super) access_modes: Vec<AccessMode>,
    pub(super) block: bool,
    pub(super) mount_options: Vec<String>,
    /// The volume's object, unless the attachment describes the volume itself.
    pub(super) volume: Option<Arc<Volume>>,
    /// The volume has an in-tree source, of which this is the translation.
    pub(super) translated: bool,
}

impl Attached {
    fn new(csi: &CsiSource, spec: &VolumeSpec, volume: Option<Arc<Volume>>) -> Self {
        Self {
            csi: csi.clone(),
            access_modes: spec.access_modes.clone(),
            block: spec.volume_mode == Some(VolumeMode::Block),
            mount_options: spec.mount_options.clone(),
            volume,
            translated: false,
        }
    }
}

impl Sidecar {
    /// The volume that an attachment names; `None` when it describes one itself. Watches of two kinds
    /// are not ordered, so a volume that the cache does not show is asked for before it counts as
    /// missing.
    pub(super) async fn volume_of(
        &self,
        attachment: &VolumeAttachment,
    ) -> Result<Option<Arc<Volume>>, SyncError> {
        let known = self.known_volume_of(attachment);
        let Err(SyncError::NoVolume(name)) = &known else { return known };
        match self.api.get_raw::<Volume>(&ObjectKey::cluster(name)).await {
            Ok(Some(volume)) => {
                self.volumes.assume(&volume);
                self.known_volume_of(attachment)
            }
            Ok(None) | Err(_) => known,
        }
    }

    fn known_volume_of(
        &self,
        attachment: &VolumeAttachment,
    ) -> Result<Option<Arc<Volume>>, SyncError> {
        let Source::Volume(name) = source(&attachment.spec.source)? else { return Ok(None) };
        let volume = self.volumes.get(&ObjectKey::cluster(name));
        volume.map(Some).ok_or_else(|| SyncError::NoVolume(name.to_owned()))
    }

    /// What an attachment is about, from the cache alone.
    pub(super) fn look_up(&self, attachment: &VolumeAttachment) -> Result<Attached, SyncError> {
        describe(attachment, self.known_volume_of(attachment)?)
    }

    /// The driver's client. Where the driver took over from an in-tree plugin, calls are counted by
    /// the form of the volume they are about.
    pub(super) fn driver_for(&self, attached: &Attached) -> Client {
        let took_over = plugin_of(&self.name).is_some();
        self.driver.with_migrated(took_over.then_some(attached.translated))
    }

    pub(super) async fn publish_request(
        &self,
        node: &NodeName,
        attached: &Attached,
    ) -> Result<ControllerPublishVolumeRequest, SyncError> {
        let csi = &attached.csi;
        let driver = self.driver.controller_capabilities().await?;
        Ok(ControllerPublishVolumeRequest {
            volume_id: csi.volume_handle.to_string(),
            volume_capability: Some(self.capability(attached, &driver)?),
            readonly: csi.read_only && driver.has(ControllerCapability::PublishReadonly),
            volume_context: csi.volume_attributes.clone(),
            secrets: self.secrets(csi).await?,
            node_id: self.node_id(node)?,
        })
    }

    fn capability(
        &self,
        attached: &Attached,
        driver: &ControllerCapabilities,
    ) -> Result<VolumeCapability, SyncError> {
        let multi_writer = driver.has(ControllerCapability::SingleNodeMultiWriter);
        let mode = access_mode::for_attach(&attached.access_modes, multi_writer)?;
        let access_type = if attached.block {
            AccessType::Block(BlockVolume {})
        } else {
            let own = &attached.csi.fs_type;
            let fs_type = if own.is_empty() { &self.config.default_fstype } else { own };
            AccessType::Mount(MountVolume {
                fs_type: fs_type.clone(),
                mount_flags: attached.mount_options.clone(),
                ..MountVolume::default()
            })
        };
        Ok(VolumeCapability {
            access_mode: Some(volume_capability::AccessMode { mode: mode as i32 }),
            access_type: Some(access_type),
        })
    }

    /// Read anew each time: a rotated secret counts from the next call on.
    pub(super) async fn secrets(
        &self,
        csi: &CsiSource,
    ) -> Result<BTreeMap<String, String>, SyncError> {
        let Some(reference) = &csi.controller_publish_secret_ref else {
            return Ok(BTreeMap::new());
        };
        let key = ObjectKey::new(&reference.namespace, &reference.name);
        let read = read_secret(&self.api, &key).await;
        read.map_err(|source| SyncError::Secret { secret: key.to_string(), source })
    }

    /// The driver's id of a node, as the node's agent registered it.
    pub(super) fn node_id(&self, node: &NodeName) -> Result<String, SyncError> {
        let csi_node = self.csi_nodes.get(&ObjectKey::cluster(node));
        let csi_node = csi_node.ok_or_else(|| SyncError::NoCsiNode(node.clone()))?;
        let driver = csi_node.driver(&self.name).map(|driver| driver.node_id.clone());
        driver.ok_or_else(|| SyncError::NoDriver { node: node.clone(), driver: self.name.clone() })
    }

    /// For a detach the id of the attach will do: the node may be gone by now.
    pub(super) fn last_node_id(&self, attachment: &VolumeAttachment) -> Result<String, SyncError> {
        self.node_id(&attachment.spec.node_name).or_else(|error| {
            let noted = attachment.metadata.annotation(annotations::ATTACH_NODE_ID);
            noted.map(str::to_owned).ok_or(error)
        })
    }
}

/// What an attachment is about, given the volume that it names.
pub(super) fn describe(
    attachment: &VolumeAttachment,
    volume: Option<Arc<Volume>>,
) -> Result<Attached, SyncError> {
    let Some(volume) = volume else {
        return match source(&attachment.spec.source)? {
            Source::Inline(csi, spec) => Ok(Attached::new(csi, spec, None)),
            Source::Volume(name) => Err(SyncError::NoVolume(name.to_owned())),
        };
    };
    let translated = volume_to_csi(&volume)?;
    let spec = translated.as_ref().map_or(&volume.spec, |new| &new.spec);
    let csi = spec.csi.as_ref().ok_or(SyncError::NotCsi)?;
    let attached = Attached::new(csi, spec, Some(volume.clone()));
    Ok(Attached { translated: translated.is_some(), ..attached })
}
