//! In-tree plugins whose volumes are CSI drivers' by now.
//!
//! The API keeps objects in their in-tree form, so that an older cluster can still read them. A
//! driver sees only the CSI form: [`class_to_csi`] translates a class before a volume is made,
//! [`volume_to_in_tree`] the volume that came of it before it is saved, and [`volume_to_csi`] a
//! saved volume before it is attached or deleted; [`inline_to_csi`] does so for a source that stands
//! in a pod. [`repair_handle`] completes handles for comparison with a driver's own list.

mod class;
mod from_csi;
mod inline;
mod to_csi;
mod topology;

use crate::model::kinds::Volume;

pub use class::class_to_csi;
pub use from_csi::volume_to_in_tree;
pub use inline::{inline_spec, inline_to_csi};
pub use to_csi::{repair_handle, volume_to_csi};

/// One in-tree plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plugin {
    Aws,
    Gce,
    AzureDisk,
    AzureFile,
    Cinder,
    Vsphere,
    Portworx,
}

/// In-tree plugin names and the drivers that took over.
const MIGRATED: [(Plugin, &str, &str); 7] = [
    (Plugin::Aws, "kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    (Plugin::Gce, "kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    (Plugin::AzureDisk, "kubernetes.io/azure-disk", "disk.csi.azure.com"),
    (Plugin::AzureFile, "kubernetes.io/azure-file", "file.csi.azure.com"),
    (Plugin::Cinder, "kubernetes.io/cinder", "cinder.csi.openstack.org"),
    (Plugin::Vsphere, "kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
    (Plugin::Portworx, "kubernetes.io/portworx-volume", "pxd.portworx.com"),
];

impl Plugin {
    fn named(name: &str) -> Option<Self> {
        MIGRATED.iter().find(|(_, plugin, _)| *plugin == name).map(|(plugin, ..)| *plugin)
    }

    fn of_driver(driver: &str) -> Option<Self> {
        MIGRATED.iter().find(|(_, _, name)| *name == driver).map(|(plugin, ..)| *plugin)
    }

    fn of_volume(volume: &Volume) -> Option<Self> {
        let spec = &volume.spec;
        let sources = [
            (spec.aws_elastic_block_store.is_some(), Self::Aws),
            (spec.gce_persistent_disk.is_some(), Self::Gce),
            (spec.azure_disk.is_some(), Self::AzureDisk),
            (spec.azure_file.is_some(), Self::AzureFile),
            (spec.cinder.is_some(), Self::Cinder),
            (spec.vsphere_volume.is_some(), Self::Vsphere),
            (spec.portworx_volume.is_some(), Self::Portworx),
        ];
        sources.into_iter().find(|(present, _)| *present).map(|(_, plugin)| plugin)
    }

    fn driver(self) -> &'static str {
        MIGRATED.iter().find(|(plugin, ..)| *plugin == self).map_or("", |(_, _, driver)| driver)
    }

    /// The driver's topology key for zones.
    fn zone_key(self) -> Option<&'static str> {
        match self {
            Self::Aws => Some("topology.ebs.csi.aws.com/zone"),
            Self::Gce => Some("topology.gke.io/zone"),
            Self::AzureDisk => Some("topology.disk.csi.azure.com/zone"),
            Self::Cinder => Some("topology.cinder.csi.openstack.org/zone"),
            Self::Vsphere => Some("topology.csi.vmware.com/zone"),
            Self::AzureFile | Self::Portworx => None,
        }
    }
}

/// Why something has no other form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TranslationError {
    /// Two ways to say where volumes may be.
    #[error("cannot simultaneously set allowed topologies and zone/zones parameters")]
    ZonesTwice,
    /// No plugin of this name was ever moved to CSI.
    #[error("could not find in-tree storage class parameter translation logic for {0:?}")]
    UnknownPlugin(String),
    /// No plugin was moved to this driver.
    #[error("could not find in-tree plugin translation logic for {0}")]
    UnknownDriver(String),
    /// An id that no AWS volume has.
    #[error(
        "failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({0})"
    )]
    AwsId(String),
    /// Disks of other kinds cannot be served by the driver.
    #[error("kind({0}) is not supported in csi migration")]
    AzureKind(String),
    /// A share needs a secret, and a secret has a namespace.
    #[error("could not find a secret namespace in PersistentVolumeSource or ClaimRef")]
    NoSecretNamespace,
    /// A partition that is no number.
    #[error("failed to convert partition {0} to integer")]
    Partition(String),
    /// A handle without the parts it must have.
    #[error("the volume handle {handle:?} cannot be read: {why}")]
    Handle {
        handle: String,
        /// What is wrong with it.
        why: String,
    },
    /// Zones that do not lead to one region.
    #[error("failed to translate topology: {0}")]
    Zones(String),
    /// The volume cannot be read at all.
    #[error("the volume cannot be read: {0}")]
    Unreadable(String),
}

/// The driver that took over from this in-tree plugin.
#[must_use]
pub fn driver_for(plugin: &str) -> Option<&'static str> {
    MIGRATED.iter().find(|(_, from, _)| *from == plugin).map(|(_, _, to)| *to)
}

/// The in-tree plugin that this driver took over from.
#[must_use]
pub fn plugin_of(driver: &str) -> Option<&'static str> {
    MIGRATED.iter().find(|(_, _, to)| *to == driver).map(|(_, from, _)| *from)
}

/// Whether a volume has a source that a driver took over.
#[must_use]
pub fn is_migratable(volume: &Volume) -> bool {
    Plugin::of_volume(volume).is_some()
}

#[cfg(test)]
mod tests;
