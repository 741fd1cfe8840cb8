//! What the superblocks say: identity, read from the bytes and not through a tool.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use uuid::Uuid;

use crate::config::FsType;

/// Where ext4 keeps its superblock.
const EXT4: u64 = 1024;
/// Where btrfs keeps its first superblock, and the copies that fit.
pub(super) const BTRFS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
/// Size of a btrfs superblock.
pub(super) const BTRFS_BYTES: usize = 4096;
/// Offset of the UUID that users see (`fsid`).
pub(super) const BTRFS_FSID: usize = 0x20;

/// The UUID that the filesystem on an image goes by.
pub fn uuid(image: &File, fstype: FsType) -> io::Result<Uuid> {
    let at = match fstype {
        FsType::Ext4 => EXT4 + 0x68,
        FsType::Xfs => 32,
        FsType::Btrfs => BTRFS[0] + BTRFS_FSID as u64,
    };
    Ok(Uuid::from_bytes(read(image, at)?))
}

fn read<const N: usize>(image: &File, at: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    image.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}
