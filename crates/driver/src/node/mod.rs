//! The node's side: loop devices and mounts. Everything blocks.
//!
//! What is true is read from the kernel each time: the loop device is found by the image's
//! (device, inode), the mounts by the device's number. The record only says what was intended.

pub(crate) mod ephemeral;
pub(crate) mod expand;
pub(crate) mod left;
pub(crate) mod publish;
pub(crate) mod settle;
pub(crate) mod stage;
pub(crate) mod stats;
pub(crate) mod tune;

use std::path::Path;

use longshore_files::mounts::{Mount, MountTable};

use crate::driver::Inner;
use crate::id::VolumeId;
use crate::loopdev::{self, Backing, LoopDevice, MAJOR, Tag};
use crate::mount::checked_path::CheckedPath;
use crate::pool::record::Staged;
use crate::pool::{Pool, PoolError};
use crate::refusal::{Refusal, required, required_short};

/// A volume as the kernel sees it on this node.
pub(crate) struct Observed {
    pub id: VolumeId,
    pub backing: Backing,
    pub tag: Tag,
    pub device: Option<LoopDevice>,
    pub table: MountTable,
    /// This node's note that it has the volume staged, or is about to.
    pub staged: Option<Staged>,
}

impl Observed {
    /// Whether a mount shows this volume, as a filesystem or as a device node.
    pub(crate) fn shows(&self, entry: &Mount) -> bool {
        self.is_filesystem(entry) || self.is_node(entry)
    }

    /// Whether a mount is of the filesystem on this volume.
    pub(crate) fn is_filesystem(&self, entry: &Mount) -> bool {
        self.device.is_some_and(|device| entry.is_of((MAJOR, device.number), &device.path()))
    }

    fn is_node(&self, entry: &Mount) -> bool {
        let Some(device) = self.device else { return false };
        self.table.of_node(&device.path()).any(|node| node.path == entry.path)
    }

    /// Every mount that shows this volume.
    pub(crate) fn mounts(&self) -> Vec<&Mount> {
        let Some(device) = self.device else { return Vec::new() };
        let path = device.path();
        let mut mounts = self.table.of_device((MAJOR, device.number), &path);
        for entry in &self.table.mounts {
            if entry.root.file_name() == path.file_name() && self.is_node(entry) {
                mounts.push(entry);
            }
        }
        mounts
    }

    /// What is mounted at a path.
    pub(crate) fn at(&self, checked: &CheckedPath) -> Option<&Mount> {
        self.table.at(checked.path())
    }
}

impl Inner {
    /// Observes a volume's image, loop device and mounts.
    pub(crate) fn observe(&self, pool: &Pool, id: &VolumeId) -> Result<Observed, Refusal> {
        let tag = Tag::new(id, &self.config.node_id, pool.file_id());
        let (device, backing) = match pool.image_id(id) {
            Ok(backing) => (loopdev::find(id, backing.into(), &tag)?, backing.into()),
            // The image of a staged volume was removed: the volume must still be unstaged.
            Err(error @ PoolError::ImageMissing(_)) => {
                let (device, backing) = loopdev::find_tagged(id, &tag)?.ok_or(error)?;
                (Some(device), backing)
            }
            Err(error) => return Err(error.into()),
        };
        let staged = pool.staged(id, &self.config.node_id)?;
        let table = MountTable::read().map_err(Refusal::MountTable)?;
        Ok(Observed { id: id.clone(), backing, tag, device, table, staged })
    }

    /// The id in a node request; unknown forms belong to no volume. A missing field is a worse
    /// mistake than an unknown volume, so callers name the fields that must not be empty.
    pub(crate) fn node_volume(
        &self,
        given: &str,
        fields: &[(&str, &str)],
    ) -> Result<VolumeId, Refusal> {
        required_short("volume_id", given)?;
        for (field, value) in fields {
            required(field, value)?;
        }
        Ok(self.node_id_of(given))
    }

    /// The volume that an id in a node request stands for. Ids that are not of our making belong
    /// to inline volumes, or to none.
    pub(crate) fn node_id_of(&self, given: &str) -> VolumeId {
        VolumeId::parse(given).unwrap_or_else(|| self.ephemeral_id(given))
    }

    /// A path in a node request. Pools are out of bounds: a mount there could hide images.
    pub(crate) fn node_path(&self, field: &str, given: &str) -> Result<CheckedPath, Refusal> {
        let checked = CheckedPath::resolve(required(field, given)?)?;
        let inside = |pool: &Pool| {
            checked.path().starts_with(pool.path()) || pool.path().starts_with(checked.path())
        };
        if self.pools.iter().any(inside) {
            return Err(Refusal::Invalid(format!("{field} {given:?} overlaps a pool")));
        }
        Ok(checked)
    }
}

pub(crate) fn show(path: &Path) -> String {
    path.display().to_string()
}
