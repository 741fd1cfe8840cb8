//! In-tree plugins whose volumes are CSI drivers' by now.

/// In-tree plugin names and the drivers that took over.
const MIGRATED: [(&str, &str); 7] = [
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/azure-file", "file.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
];

/// The driver that took over from this in-tree plugin.
#[must_use]
pub fn driver_for(plugin: &str) -> Option<&'static str> {
    MIGRATED.iter().find(|(from, _)| *from == plugin).map(|(_, to)| *to)
}

/// The in-tree plugin that this driver took over from.
#[must_use]
pub fn plugin_of(driver: &str) -> Option<&'static str> {
    MIGRATED.iter().find(|(_, to)| *to == driver).map(|(from, _)| *from)
}
