//! Names by which volumes and attachments are known to nodes and to the API.

use std::fmt;

use sha2::{Digest, Sha256};

/// The plugin every volume here belongs to.
pub const CSI_PLUGIN: &str = "kubernetes.io/csi";

/// The name under which nodes report a volume: `kubernetes.io/csi/<driver>^<handle>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UniqueName(String);

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
    pub fn new(driver: &str, handle: &str) -> Self {
        Self(format!("{CSI_PLUGIN}/{driver}^{handle}"))
    }

    /// A name as found in a node's status; it may belong to another plugin.
    #[must_use]
    pub fn reported(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// The name as written in a node's status.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
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
    pub fn driver_and_handle(&self) -> Result<(&str, &str), NameError> {
        let (plugin, volume) = self.split_plugin()?;
        if plugin != CSI_PLUGIN {
            return Err(NameError::NotCsi(self.0.clone()));
        }
        let mut parts = volume.split('^');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(driver), Some(handle), None) => Ok((driver, handle)),
            _ => Err(NameError::NoHandle(self.0.clone())),
        }
    }
}

impl fmt::Display for UniqueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of the `VolumeAttachment` that puts `handle` on `node`.
///
/// Everyone who needs the object computes the same name, so two writers cannot make two of them.
#[must_use]
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    let mut hash = Sha256::new();
    for part in [handle, driver, node] {
        hash.update(part.as_bytes());
    }
    format!("csi-{}", hex::encode(hash.finalize()))
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
            assert_eq!(attachment_name(handle, driver, node), want);
        }
    }

    #[test]
    fn unique_names_split_back() {
        let name = UniqueName::new("d.example", "a/b/c");
        assert_eq!(name.as_str(), "kubernetes.io/csi/d.example^a/b/c");
        assert_eq!(name.split_plugin(), Ok(("kubernetes.io/csi", "d.example^a/b/c")));
        assert_eq!(name.driver_and_handle(), Ok(("d.example", "a/b/c")));
    }

    #[test]
    fn names_that_lead_nowhere() {
        let short = UniqueName::reported("kubernetes.io/csi");
        assert!(matches!(short.split_plugin(), Err(NameError::NoPlugin(_))));
        let other = UniqueName::reported("kubernetes.io/gce-pd/disk");
        assert!(matches!(other.driver_and_handle(), Err(NameError::NotCsi(_))));
        // case: attach-detach/C15
        let caret = UniqueName::new("d", "a^b");
        let error = caret.driver_and_handle().expect_err("two separators");
        assert_eq!(error.to_string(), "volumeName missing expected data");
    }
}
