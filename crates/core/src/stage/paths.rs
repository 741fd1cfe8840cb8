//! Where things lie below the node's root directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::model::{DriverName, NodeName, VolumeHandle};
use crate::names::sha256_hex;

/// Directory of CSI volumes inside a pod's `volumes` directory.
pub const CSI_DIR: &str = "kubernetes.io~csi";
/// Name of the metadata file beside a mount.
pub const VOL_DATA: &str = "vol_data.json";

/// Why a path cannot be named.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PathError {
    /// The persistent volume has no handle, so its staging directory would be ambiguous.
    #[error("the volume has no volumeHandle")]
    EmptyHandle,
    /// The driver name is empty or would leave its directory.
    #[error("driver name {0:?} cannot be a directory name")]
    BadDriver(String),
}

/// Paths below one root directory.
#[derive(Debug, Clone)]
pub struct NodePaths {
    root: PathBuf,
}

impl NodePaths {
    /// Paths below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The root directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Directory in which drivers leave their registration sockets.
    #[must_use]
    pub fn registry(&self) -> PathBuf {
        self.root.join("plugins_registry")
    }

    /// Directory of all CSI drivers' staged volumes.
    #[must_use]
    pub fn csi_plugins(&self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/csi")
    }

    /// Directory of one staged volume, with its metadata file and `globalmount`.
    ///
    /// # Errors
    /// The handle is empty, or the driver name is no plain file name.
    pub fn staging(
        &self,
        driver: &DriverName,
        handle: &VolumeHandle,
    ) -> Result<PathBuf, PathError> {
        if handle.is_empty() {
            return Err(PathError::EmptyHandle);
        }
        if driver.is_empty() || *driver == "." || *driver == ".." || driver.contains('/') {
            return Err(PathError::BadDriver(driver.to_string()));
        }
        Ok(self.csi_plugins().join(driver.as_str()).join(sha256_hex(&[handle])))
    }

    /// Directory of all pods.
    #[must_use]
    pub fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// Directory of one pod.
    #[must_use]
    pub fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }

    /// Directory of one published volume, with its metadata file and `mount`.
    #[must_use]
    pub fn publish(&self, uid: &str, spec_name: &str) -> PathBuf {
        self.pod(uid).join("volumes").join(CSI_DIR).join(escape(spec_name))
    }

    /// Directory of a volume that the node itself makes (emptyDir, secret, …).
    #[must_use]
    pub fn own_volume(&self, uid: &str, plugin: &str, name: &str) -> PathBuf {
        self.pod(uid).join("volumes").join(format!("kubernetes.io~{plugin}")).join(escape(name))
    }

    /// Directory in which disks of this node are mounted once for all pods.
    #[must_use]
    pub fn local_mounts(&self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/local-volume/mounts")
    }

    /// Where one disk of this node is mounted once for all pods.
    #[must_use]
    pub fn local_mount(&self, volume: &str) -> PathBuf {
        self.local_mounts().join(escape(volume))
    }

    /// Directory of all CSI volumes that are used as devices.
    #[must_use]
    pub fn block_volumes(&self) -> PathBuf {
        self.csi_plugins().join("volumeDevices")
    }

    /// Where the parts of one volume that is used as a device lie.
    #[must_use]
    pub fn block(&self, spec_name: &str) -> BlockPaths {
        let (root, name) = (self.block_volumes(), escape(spec_name));
        BlockPaths {
            data: root.join(&name).join("data"),
            dev: root.join(&name).join("dev"),
            staging: root.join("staging").join(&name),
            publish: root.join("publish").join(&name),
        }
    }

    /// Link to a device in the directory of its pod.
    #[must_use]
    pub fn block_link(&self, uid: &str, spec_name: &str) -> PathBuf {
        self.pod(uid).join("volumeDevices").join(CSI_DIR).join(escape(spec_name))
    }

    /// Bind mount of one `subPath`.
    #[must_use]
    pub fn sub_path(&self, uid: &str, spec_name: &str, container: &str, index: usize) -> PathBuf {
        self.pod(uid)
            .join("volume-subpaths")
            .join(escape(spec_name))
            .join(container)
            .join(index.to_string())
    }
}

/// Where the parts of a volume that is used as a device lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockPaths {
    /// Directory of the metadata file.
    pub data: PathBuf,
    /// Directory of this node's binds of the device, one per pod.
    pub dev: PathBuf,
    /// Staging directory.
    pub staging: PathBuf,
    /// Directory of the files to which the driver publishes, one per pod.
    pub publish: PathBuf,
}

/// The mount point inside a staging directory.
#[must_use]
pub fn staging_target(staging: &Path) -> PathBuf {
    staging.join("globalmount")
}

/// The mount point inside a publish directory.
#[must_use]
pub fn publish_target(publish: &Path) -> PathBuf {
    publish.join("mount")
}

/// A spec name as one path component.
#[must_use]
pub fn escape(name: &str) -> String {
    name.replace('/', "~")
}

/// Content of a `vol_data.json`: a flat map, keys in alphabetical order, on one line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolData(pub BTreeMap<String, String>);

impl VolData {
    /// Metadata of a staged volume.
    #[must_use]
    pub fn staged(driver: &DriverName, handle: &VolumeHandle) -> Self {
        Self::from_pairs([("driverName", driver), ("volumeHandle", handle)])
    }

    /// Metadata of a published volume.
    #[must_use]
    pub fn published(
        driver: &DriverName,
        handle: &VolumeHandle,
        spec_name: &str,
        node: &NodeName,
        inline: bool,
    ) -> Self {
        let attachment = crate::names::attachment_name(handle, driver, node);
        Self::from_pairs([
            ("attachmentID", attachment.as_str()),
            ("driverName", driver),
            ("nodeName", node),
            ("specVolID", spec_name),
            ("volumeHandle", handle),
            ("volumeLifecycleMode", if inline { "Ephemeral" } else { "Persistent" }),
        ])
    }

    /// Metadata of a volume that is used as a device.
    #[must_use]
    pub fn mapped(
        driver: &DriverName,
        handle: &VolumeHandle,
        spec_name: &str,
        node: &NodeName,
    ) -> Self {
        let mut data = Self::published(driver, handle, spec_name, node, false);
        data.0.remove("volumeLifecycleMode");
        data
    }

    /// With the SELinux label of the mount, if there is one.
    #[must_use]
    pub fn with_context(mut self, label: &str) -> Self {
        if !label.is_empty() {
            self.0.insert("seLinuxMountContext".to_owned(), label.to_owned());
        }
        self
    }

    fn from_pairs<const N: usize>(pairs: [(&str, &str); N]) -> Self {
        Self(pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    /// The volume that the data is about, if they say so.
    #[must_use]
    pub fn volume(&self) -> Option<(DriverName, VolumeHandle)> {
        Some((self.get("driverName")?.into(), self.get("volumeHandle")?.into()))
    }

    /// One value, `None` when the key is missing or empty.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The file's content.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.0).expect("a map of strings is always JSON")
    }

    /// Reads a file's content.
    ///
    /// # Errors
    /// The text is not a flat JSON map of strings.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publish_target_of_a_pod() {
        // case: node/N1
        let paths = NodePaths::new("/r");
        for (uid, name, expected) in [
            ("P", "pv-1", "/r/pods/P/volumes/kubernetes.io~csi/pv-1/mount"),
            ("P", "a/b", "/r/pods/P/volumes/kubernetes.io~csi/a~b/mount"),
        ] {
            assert_eq!(publish_target(&paths.publish(uid, name)), PathBuf::from(expected));
        }
    }

    #[test]
    fn staging_target_of_a_handle() {
        // case: node/N2
        let paths = NodePaths::new("/r");
        let staging = paths.staging(&"main.csi.test".into(), &"testvol-01".into()).unwrap();
        assert_eq!(
            staging_target(&staging),
            PathBuf::from(
                "/r/plugins/kubernetes.io/csi/main.csi.test/\
                 c6ff72d8d849bd92263e582484049904b7ae498f2b7a177a1478a3faaa4a87bb/globalmount"
            )
        );
        assert_eq!(paths.staging(&"main.csi.test".into(), &"".into()), Err(PathError::EmptyHandle));
        assert!(matches!(paths.staging(&"../x".into(), &"h".into()), Err(PathError::BadDriver(_))));
    }

    #[test]
    fn devices_lie_as_recorded() {
        let paths = NodePaths::new("/r");
        let root = "/r/plugins/kubernetes.io/csi/volumeDevices";
        let block = paths.block("pv");
        for (path, expected) in [
            (block.data, format!("{root}/pv/data")),
            (block.dev, format!("{root}/pv/dev")),
            (block.staging, format!("{root}/staging/pv")),
            (block.publish, format!("{root}/publish/pv")),
            (paths.block_link("P", "pv"), "/r/pods/P/volumeDevices/kubernetes.io~csi/pv".into()),
        ] {
            assert_eq!(path, PathBuf::from(expected));
        }
        let data = VolData::mapped(&"d".into(), &"h".into(), "pv", &"n1".into());
        assert_eq!(data.get("volumeLifecycleMode"), None);
        assert_eq!(data.0.len(), 5);
    }

    #[test]
    fn vol_data_is_one_sorted_line() {
        let data = VolData::published(&"d".into(), &"h".into(), "pv", &"n1".into(), false);
        let va = crate::names::attachment_name(&"h".into(), &"d".into(), &"n1".into());
        assert_eq!(
            data.to_json(),
            format!(
                "{{\"attachmentID\":\"{va}\",\"driverName\":\"d\",\"nodeName\":\"n1\",\
                 \"specVolID\":\"pv\",\"volumeHandle\":\"h\",\"volumeLifecycleMode\":\"Persistent\"}}"
            )
        );
        assert_eq!(VolData::from_json(&data.to_json()).unwrap(), data);
        assert_eq!(
            VolData::staged(&"d".into(), &"h".into()).to_json(),
            r#"{"driverName":"d","volumeHandle":"h"}"#
        );
    }
}
