//! Names of volumes and attachments that node, controllers and sidecars must compute alike.

use sha2::{Digest, Sha256};

use crate::model::{DriverName, NodeName, Uid, VolumeHandle, text_types};

/// The volume plugin of every CSI volume, as kubelet and attach-detach controller name it.
pub const CSI_PLUGIN: &str = "kubernetes.io/csi";

/// What metrics call the plugin of a CSI driver.
#[must_use]
pub fn metrics_plugin(driver: &str) -> String {
    format!("{CSI_PLUGIN}:{driver}")
}

text_types! {
    /// The name under which nodes report a volume: `kubernetes.io/csi/<driver>^<handle>` for one
    /// that a controller may attach. A node's status may hold names of other plugins, too.
    UniqueName;
}

/// A name that does not lead back to one driver and one handle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Fewer than three parts, so no plugin and volume can be told apart.
    #[error("unique volume name {0:?} does not have the form <plugin>/<volume>")]
    NoPlugin(String),
    /// The plugin is not the CSI one.
    #[error("unique volume name {0:?} does not belong to a CSI volume")]
    NotCsi(String),
    /// A handle that holds `^` cannot be told apart from the separator.
    #[error("volumeName missing expected data")]
    NoHandle(String),
}

impl UniqueName {
    /// The name of one driver's volume.
    #[must_use]
    pub fn new(driver: &DriverName, handle: &VolumeHandle) -> Self {
        Self(format!("{CSI_PLUGIN}/{driver}^{handle}"))
    }

    /// The name of an inline volume, which belongs to one pod.
    #[must_use]
    pub fn of_pod(pod_uid: &Uid, spec_name: &str) -> Self {
        Self(format!("{CSI_PLUGIN}/{pod_uid}-{spec_name}"))
    }

    /// The name of a directory or disk of this node; pods share it.
    #[must_use]
    pub fn local(volume: &str) -> Self {
        Self(format!("kubernetes.io/local-volume/{volume}"))
    }

    /// The name of one pod's mount of an NFS volume.
    #[must_use]
    pub fn nfs(pod_uid: &Uid, volume: &str) -> Self {
        Self(format!("kubernetes.io/nfs/{pod_uid}-{volume}"))
    }

    /// Whether the volume belongs to a CSI driver.
    #[must_use]
    pub fn is_csi(&self) -> bool {
        self.split_plugin().is_ok_and(|(plugin, _)| plugin == CSI_PLUGIN)
    }

    /// Plugin and volume name: the first two `/` parts, and all the rest.
    pub fn split_plugin(&self) -> Result<(&str, &str), NameError> {
        let no_plugin = || NameError::NoPlugin(self.0.clone());
        let (first, rest) = self.0.split_once('/').ok_or_else(no_plugin)?;
        let (second, volume) = rest.split_once('/').ok_or_else(no_plugin)?;
        let plugin = &self.0[..first.len() + 1 + second.len()];
        Ok((plugin, volume))
    }

    /// Driver and handle, when the name leads back to exactly one of each.
    pub fn driver_and_handle(&self) -> Result<(DriverName, VolumeHandle), NameError> {
        let (plugin, volume) = self.split_plugin()?;
        if plugin != CSI_PLUGIN {
            return Err(NameError::NotCsi(self.0.clone()));
        }
        let mut parts = volume.split('^');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(driver), Some(handle), None) => Ok((driver.into(), handle.into())),
            _ => Err(NameError::NoHandle(self.0.clone())),
        }
    }
}

/// The name of the `VolumeAttachment` that puts `handle` on `node`.
///
/// Everyone who needs the object computes the same name, so two writers cannot make two of them.
#[must_use]
pub fn attachment_name(handle: &VolumeHandle, driver: &DriverName, node: &NodeName) -> String {
    format!("csi-{}", sha256_hex(&[handle, driver, node]))
}

/// Handle of an inline volume, which no controller has named.
#[must_use]
pub fn inline_handle(pod_uid: &Uid, volume: &str) -> VolumeHandle {
    format!("csi-{}", sha256_hex(&[pod_uid, volume])).into()
}

/// Lower-case hex of the SHA-256 of the joined parts.
#[must_use]
pub fn sha256_hex(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachment_names_are_the_recorded_ones() {
        let cases = [
            (
                ["testvol-01", "testdriver-01", "testnode-01"],
                "csi-4d8f42c5f953488d695504cfaf9658961d83f72b5ac9bba3e32c2ddb7708e84f",
            ),
            (
                ["vol02", "driver02", "node02"],
                "csi-70fa8b122628ff5436f098759b79c93487b3894e2bff5637c618405a059b0b47",
            ),
        ];
        for ([handle, driver, node], want) in cases {
            assert_eq!(attachment_name(&handle.into(), &driver.into(), &node.into()), want);
        }
    }

    #[test]
    fn unique_names_split_back() {
        let name = UniqueName::new(&"d.example".into(), &"a/b/c".into());
        assert_eq!(name.as_str(), "kubernetes.io/csi/d.example^a/b/c");
        assert_eq!(name.split_plugin(), Ok(("kubernetes.io/csi", "d.example^a/b/c")));
        assert_eq!(name.driver_and_handle(), Ok(("d.example".into(), "a/b/c".into())));
    }

    #[test]
    fn names_that_lead_nowhere() {
        let short = UniqueName::from("kubernetes.io/csi");
        assert!(matches!(short.split_plugin(), Err(NameError::NoPlugin(_))));
        let other = UniqueName::from("kubernetes.io/gce-pd/disk");
        assert!(matches!(other.driver_and_handle(), Err(NameError::NotCsi(_))));
        // case: attach-detach/C15
        let caret = UniqueName::new(&"d".into(), &"a^b".into());
        let error = caret.driver_and_handle().expect_err("two separators");
        assert_eq!(error.to_string(), "volumeName missing expected data");
    }

    #[test]
    fn an_inline_handle_hashes_pod_and_volume() {
        assert_eq!(inline_handle(&"uid".into(), "v"), format!("csi-{}", sha256_hex(&["uidv"])));
    }
}
