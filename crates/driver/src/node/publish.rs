//! NodePublishVolume and NodeUnpublishVolume.

use std::os::fd::AsFd;

use longshore_csi::v1::{
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse,
};

use super::{Observed, ephemeral, show};
use crate::access::Access;
use crate::driver::Inner;
use crate::loopdev::{self, LoopDevice};
use crate::mount::checked_path::{CheckedPath, PathError, same_text};
use crate::mount::{self, unmount};
use crate::pool::record::Record;
use crate::refusal::Refusal;

impl Inner {
    /// Shows a staged volume at a pod's path.
    pub(crate) fn publish(
        &self,
        request: &NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Refusal> {
        let access = Access::parse(request.volume_capability.as_ref(), self.config.kind)?;
        if ephemeral::is_ephemeral(request) {
            return self.publish_ephemeral(request, &access);
        }
        let id = self.node_volume(&request.volume_id, &[("target_path", &request.target_path)])?;
        let (pool, record) = self.need(&id)?;
        let target = self.node_path("target_path", &request.target_path)?;
        if request.staging_target_path.is_empty() {
            return Err(Refusal::Precondition("staging_target_path is missing".to_owned()));
        }
        let staging = self.node_path("staging_target_path", &request.staging_target_path)?;
        if staging.path() == target.path() {
            return Err(Refusal::Invalid("target_path is the staging path".to_owned()));
        }
        // The device is found by the image's inode, so a device that came to show another
        // file is not published.
        let observed = self.observe(pool, &id)?;
        let device = need_staged(&observed, &staging, &access, &request.staging_target_path)?;
        let staged_read_only = observed.staged.as_ref().is_some_and(|staged| staged.read_only);
        let read_only = request.readonly || access.reads_only() || staged_read_only;
        if already_published(&observed, &target, read_only, access.is_block())? {
            return Ok(NodePublishVolumeResponse {});
        }
        check_other_targets(&observed, &staging, &access, &record)?;
        if access.is_block() {
            self.publish_block(&observed, device, &target, read_only)?;
        } else {
            self.publish_directory(&staging, &target, read_only)?;
        }
        self.fault("publish.mounted");
        Ok(NodePublishVolumeResponse {})
    }

    /// A read-only mount does not stop writes to a device node, so the device itself refuses
    /// them; all targets of a raw volume therefore share one kind of access.
    fn publish_block(
        &self,
        observed: &Observed,
        device: LoopDevice,
        target: &CheckedPath,
        read_only: bool,
    ) -> Result<(), Refusal> {
        if device.read_only && !read_only {
            let text = format!("volume {} is staged for reading only", observed.id);
            return Err(Refusal::Precondition(text));
        }
        if let Some(other) =
            observed.mounts().into_iter().find(|entry| entry.read_only != read_only)
        {
            let text = format!(
                "volume {} is published with other access at {}",
                observed.id,
                show(&other.path)
            );
            return Err(Refusal::Precondition(text));
        }
        if !device.read_only {
            loopdev::set_read_only(device, read_only)?;
        }
        let node = device.path();
        let node = CheckedPath::resolve(&show(&node))?.open()?;
        let made = target.make_file()?;
        let onto = target.open()?;
        undo_leaf(
            target,
            made,
            mount::bind(node.as_fd(), onto.as_fd(), read_only).map_err(Refusal::from),
        )
    }

    fn publish_directory(
        &self,
        staging: &CheckedPath,
        target: &CheckedPath,
        read_only: bool,
    ) -> Result<(), Refusal> {
        let from = staging.open()?;
        let made = target.make_dir()?;
        self.fault("publish.target-made");
        target.must_be_empty()?;
        let onto = target.open()?;
        let bound = mount::bind(from.as_fd(), onto.as_fd(), read_only).map_err(Refusal::from);
        undo_leaf(target, made, bound)
    }

    /// Takes a volume away from a pod's path and removes the empty directory or file there.
    pub(crate) fn unpublish(
        &self,
        request: &NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Refusal> {
        let id = self.node_volume(&request.volume_id, &[("target_path", &request.target_path)])?;
        let (pool, record) = match self.find(&id)? {
            Some(found) => found,
            // A repeated call: done the first time.
            None if is_kubelet_id(&request.volume_id) => {
                self.node_path("target_path", &request.target_path)?.remove()?;
                return Ok(NodeUnpublishVolumeResponse {});
            }
            None => self.need(&id)?,
        };
        let target = match self.node_path("target_path", &request.target_path) {
            Ok(target) => target,
            // Nothing can be mounted in a directory that is not there.
            Err(Refusal::Path(PathError::NoParent(_))) => {
                if record.ephemeral {
                    self.drop_ephemeral(pool, &self.observe(pool, &id)?)?;
                }
                return Ok(NodeUnpublishVolumeResponse {});
            }
            Err(error) => return Err(error),
        };
        if record.ephemeral {
            return self.unpublish_ephemeral(pool, &id, &target);
        }
        let staged_at = |path: &str| {
            CheckedPath::resolve(path).is_ok_and(|checked| checked.path() == target.path())
        };
        let staged = pool.staged(&id, &self.config.node_id)?;
        if staged.is_some_and(|staged| staged_at(&staged.path)) {
            return Err(Refusal::Invalid("target_path is the staging path".to_owned()));
        }
        loop {
            let observed = self.observe(pool, &id)?;
            let Some(entry) = observed.at(&target) else { break };
            if !observed.shows(entry) {
                let text = format!("what is mounted at {} is not volume {id}", show(&entry.path));
                return Err(Refusal::Precondition(text));
            }
            unmount(&entry.path)?;
        }
        self.fault("unpublish.unmounted");
        target.remove()?;
        Ok(NodeUnpublishVolumeResponse {})
    }
}

/// The form of the ids that the kubelet gives to inline volumes.
fn is_kubelet_id(given: &str) -> bool {
    let digits = given.strip_prefix("csi-").unwrap_or_default();
    digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn need_staged(
    observed: &Observed,
    staging: &CheckedPath,
    access: &Access,
    given: &str,
) -> Result<LoopDevice, Refusal> {
    let refuse = || {
        let text = format!("volume {} is not staged at {given}", observed.id);
        Refusal::Precondition(text)
    };
    let device = observed.device.ok_or_else(refuse)?;
    let staged = observed.staged.as_ref().ok_or_else(refuse)?;
    if staged.block != access.is_block() {
        let text = format!("volume {} is staged for another kind of access", observed.id);
        return Err(Refusal::Precondition(text));
    }
    let here = if staged.block {
        same_text(&staged.path, given)
    } else {
        observed.at(staging).is_some_and(|entry| observed.is_filesystem(entry))
    };
    if here { Ok(device) } else { Err(refuse()) }
}

/// Removes what was made for a mount that then failed.
fn undo_leaf(target: &CheckedPath, made: bool, result: Result<(), Refusal>) -> Result<(), Refusal> {
    if result.is_err() && made {
        target.remove()?;
    }
    result
}

fn already_published(
    observed: &Observed,
    target: &CheckedPath,
    read_only: bool,
    block: bool,
) -> Result<bool, Refusal> {
    let Some(entry) = observed.at(target) else { return Ok(false) };
    if !observed.shows(entry) {
        let text = format!("something else is mounted at {}", show(&entry.path));
        return Err(Refusal::Precondition(text));
    }
    let same = observed.is_filesystem(entry) != block && entry.read_only == read_only;
    if same {
        return Ok(true);
    }
    Err(Refusal::Exists(format!(
        "volume {} is published at {} in another way",
        observed.id,
        show(&entry.path)
    )))
}

/// Modes for one user at a time allow one target (CSI, table at NodePublishVolume).
fn check_other_targets(
    observed: &Observed,
    staging: &CheckedPath,
    access: &Access,
    record: &Record,
) -> Result<(), Refusal> {
    if access.many_targets() {
        return Ok(());
    }
    match observed.mounts().into_iter().find(|entry| entry.path != staging.path()) {
        None => Ok(()),
        Some(other) => Err(Refusal::Precondition(format!(
            "volume {} is published at {}, and access mode {} allows one target",
            record.id,
            show(&other.path),
            access.mode.as_str_name()
        ))),
    }
}
