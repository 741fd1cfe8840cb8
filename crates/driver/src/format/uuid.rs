//! A new identity for the copy of a filesystem, so that it can be mounted beside its source.
//!
//! The copy may be of a filesystem that was in use, so its log is replayed where the change needs
//! a clean one. What a tool reports is not believed: the UUID is read back from the superblock.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use uuid::Uuid;

use super::superblock::{self, BTRFS, BTRFS_BYTES, BTRFS_FSID, crc32c};
use super::{FormatError, tool};
use crate::config::FsType;
use crate::loopdev;
use crate::mount::{self, options::Options};

/// Gives the filesystem on `image` (opened for reading and writing, not in use) a UUID of
/// its own and returns it. Repeating it is harmless.
pub fn renew_uuid(image: &File, fstype: FsType) -> Result<Uuid, FormatError> {
    let wanted = Uuid::new_v4();
    let text = wanted.to_string();
    let tool = match fstype {
        FsType::Ext4 => {
            // It replays the journal itself. Filesystems made elsewhere may tie their checksums to
            // the UUID; storing the seed unties them without a pass over all metadata.
            let args = ["-O", "metadata_csum_seed", "-U", &text, tool::IMAGE];
            tool::run(tool::TUNE2FS, &args, image, &[0])?;
            tool::TUNE2FS.name
        }
        FsType::Xfs => {
            replay_xfs(image)?;
            // What `xfs_admin -U` runs, without the shell script around it.
            let change = format!("uuid {text}");
            tool::run(tool::XFS_DB, &["-x", "-f", "-c", &change, tool::IMAGE], image, &[0])?;
            tool::XFS_DB.name
        }
        FsType::Btrfs => {
            let failed = |source| FormatError::Superblock { what: "write the superblock", source };
            renew_btrfs(image, wanted).map_err(failed)?;
            "the change of the superblock"
        }
    };
    let found = read_uuid(image, fstype)?;
    if found != wanted {
        return Err(FormatError::NotRenewed { tool, fstype, found, wanted });
    }
    Ok(wanted)
}

/// The UUID that the filesystem on an image has.
pub fn read_uuid(image: &File, fstype: FsType) -> Result<Uuid, FormatError> {
    superblock::uuid(image, fstype)
        .map_err(|source| FormatError::Superblock { what: "read the superblock", source })
}

/// Mounts the copy in no directory and unmounts it again: that replays its log. Both the mount
/// and the device end with their descriptors, so a crash leaves neither.
fn replay_xfs(image: &File) -> Result<(), FormatError> {
    let held = loopdev::attach_scratch(image)?;
    let mut options = Options::default();
    options.filesystem.push(("nouuid".to_owned(), None));
    drop(mount::detached(&held.device.path(), FsType::Xfs, &options)?);
    Ok(held.release()?)
}

/// Offset and bit of the feature that lets the visible UUID differ from the one in every block.
const FEATURES: usize = 0xbc;
const METADATA_UUID: u64 = 1 << 10;
const METADATA_UUID_AT: usize = 0x23b;
const MAGIC_AT: usize = 0x40;
const MAGIC: &[u8] = b"_BHRfS_M";
const CHECKSUM_KIND: usize = 0xc4;

/// What `btrfstune -M` does, except that no transaction is committed: committing one makes a log
/// tree that is still to be replayed unreadable, and with it the filesystem.
fn renew_btrfs(image: &File, wanted: Uuid) -> io::Result<()> {
    let length = image.metadata()?.len();
    // The copies first: the kernel mounts by the first one, which therefore commits the change.
    for at in BTRFS.into_iter().rev().filter(|at| at + BTRFS_BYTES as u64 <= length) {
        let mut block = vec![0; BTRFS_BYTES];
        image.read_exact_at(&mut block, at)?;
        if &block[MAGIC_AT..MAGIC_AT + MAGIC.len()] != MAGIC {
            if at == BTRFS[0] {
                return Err(io::Error::other("there is no btrfs superblock"));
            }
            continue;
        }
        if block[CHECKSUM_KIND..CHECKSUM_KIND + 2] != [0, 0] {
            return Err(io::Error::other("its checksums are not of the kind crc32c"));
        }
        if block[..4] != crc32c(&block[32..]).to_le_bytes() {
            return Err(io::Error::other("the checksum of a superblock is wrong"));
        }
        rewrite_btrfs(&mut block, wanted);
        image.write_all_at(&block, at)?;
    }
    image.sync_data()
}

fn rewrite_btrfs(block: &mut [u8], wanted: Uuid) {
    let mut features = [0; 8];
    features.copy_from_slice(&block[FEATURES..FEATURES + 8]);
    let features = u64::from_le_bytes(features);
    if features & METADATA_UUID == 0 {
        // The blocks of the trees keep the UUID they were written with.
        block.copy_within(BTRFS_FSID..BTRFS_FSID + 16, METADATA_UUID_AT);
        block[FEATURES..FEATURES + 8].copy_from_slice(&(features | METADATA_UUID).to_le_bytes());
    }
    block[BTRFS_FSID..BTRFS_FSID + 16].copy_from_slice(wanted.as_bytes());
    let sum = crc32c(&block[32..]).to_le_bytes();
    block[..4].copy_from_slice(&sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_btrfs_is_left_alone() {
        let image = tempfile::tempfile().unwrap();
        image.set_len(1 << 20).unwrap();
        assert!(renew_uuid(&image, FsType::Btrfs).is_err());
        let mut block = vec![0; 1 << 20];
        image.read_exact_at(&mut block, 0).unwrap();
        assert!(block.iter().all(|&byte| byte == 0));
    }
}
