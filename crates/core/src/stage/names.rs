//! Names that node, controllers and sidecars must compute alike.

use sha2::{Digest, Sha256};

/// Prefix of every unique volume name of a CSI volume.
pub const CSI_PLUGIN: &str = "kubernetes.io/csi";

/// Lower-case hex of the SHA-256 of the joined parts.
#[must_use]
pub fn sha256_hex(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
    }
    hex::encode(hash.finalize())
}

/// Name of the `VolumeAttachment` of one volume on one node.
#[must_use]
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256_hex(&[handle, driver, node]))
}

/// Handle of an inline volume, which no controller has named.
#[must_use]
pub fn inline_handle(pod_uid: &str, volume: &str) -> String {
    format!("csi-{}", sha256_hex(&[pod_uid, volume]))
}

/// Unique name of a volume that pods share.
#[must_use]
pub fn unique_volume_name(driver: &str, handle: &str) -> String {
    format!("{CSI_PLUGIN}/{driver}^{handle}")
}

/// Unique name of a volume that belongs to one pod only (inline volumes).
#[must_use]
pub fn pod_volume_name(pod_uid: &str, spec_name: &str) -> String {
    format!("{CSI_PLUGIN}/{pod_uid}-{spec_name}")
}

/// Unique name of a directory or disk of this node; pods share it.
#[must_use]
pub fn local_volume_name(volume: &str) -> String {
    format!("kubernetes.io/local-volume/{volume}")
}

/// Unique name of one pod's mount of an NFS volume.
#[must_use]
pub fn nfs_volume_name(pod_uid: &str, volume: &str) -> String {
    format!("kubernetes.io/nfs/{pod_uid}-{volume}")
}

/// Splits a shared unique name into driver and handle.
#[must_use]
pub fn split_unique_volume_name(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix(CSI_PLUGIN)?.strip_prefix('/')?.split_once('^')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_name_splits_into_its_parts() {
        let name = unique_volume_name("main.csi.test", "vol^1");
        assert_eq!(name, "kubernetes.io/csi/main.csi.test^vol^1");
        assert_eq!(split_unique_volume_name(&name), Some(("main.csi.test", "vol^1")));
        assert_eq!(split_unique_volume_name("kubernetes.io/nfs/x"), None);
    }

    #[test]
    fn the_attachment_name_hashes_handle_driver_and_node_in_that_order() {
        let joined = sha256_hex(&["hdn"]);
        assert_eq!(attachment_name("h", "d", "n"), format!("csi-{joined}"));
        assert_ne!(attachment_name("d", "h", "n"), attachment_name("h", "d", "n"));
    }

    #[test]
    fn an_inline_handle_depends_on_pod_and_volume() {
        assert_eq!(inline_handle("uid", "v"), format!("csi-{}", sha256_hex(&["uidv"])));
    }
}
