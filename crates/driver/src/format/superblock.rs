//! What the superblocks say: identity and size, read from the bytes and not through a tool.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crc::{CRC_32_ISCSI, Crc};
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
pub(super) fn uuid(image: &File, fstype: FsType) -> io::Result<Uuid> {
    let at = match fstype {
        FsType::Ext4 => EXT4 + 0x68,
        FsType::Xfs => 32,
        FsType::Btrfs => BTRFS[0] + BTRFS_FSID as u64,
    };
    Ok(Uuid::from_bytes(read(image, at)?))
}

/// Bytes that the filesystem on a device or unmounted image spans.
pub(super) fn size_bytes(image: &File, fstype: FsType) -> io::Result<u64> {
    match fstype {
        FsType::Ext4 => {
            let (low, high) = (le32(image, EXT4 + 4)?, le32(image, EXT4 + 0x150)?);
            // The high half is only there where the feature says so.
            let high = if le32(image, EXT4 + 0x60)? & 0x80 == 0 { 0 } else { high };
            Ok(((u64::from(high) << 32) | u64::from(low)).saturating_mul(ext4_block(image)?))
        }
        FsType::Xfs => {
            let blocks = u64::from_be_bytes(read(image, 8)?);
            Ok(blocks.saturating_mul(u64::from(be32(image, 4)?)))
        }
        FsType::Btrfs => Ok(u64::from_le_bytes(read(image, BTRFS[0] + 0x70)?)),
    }
}

/// How much of a device a filesystem that fills it may leave unused, because what is left does
/// not make a whole unit of it.
pub(super) fn slack_bytes(image: &File, fstype: FsType) -> io::Result<u64> {
    match fstype {
        FsType::Ext4 => {
            // A last group that its own tables would fill is not begun.
            let inodes = u64::from(le32(image, EXT4 + 0x28)?);
            let inode: [u8; 2] = read(image, EXT4 + 0x58)?;
            let block = ext4_block(image)?;
            Ok(inodes * u64::from(u16::from_le_bytes(inode)) + (1024 + 64) * block)
        }
        FsType::Xfs => Ok(64 * u64::from(be32(image, 4)?)),
        FsType::Btrfs => Ok(64 << 10),
    }
}

/// Bytes of the log of an xfs, which `statfs` leaves out.
pub(super) fn xfs_log_bytes(device: &File) -> io::Result<u64> {
    Ok(u64::from(be32(device, 96)?) * u64::from(be32(device, 4)?))
}

fn ext4_block(image: &File) -> io::Result<u64> {
    let shift = le32(image, EXT4 + 0x18)?;
    if shift > 6 {
        return Err(io::Error::other("its block size makes no sense"));
    }
    Ok(1024 << shift)
}

fn le32(image: &File, at: u64) -> io::Result<u32> {
    Ok(u32::from_le_bytes(read(image, at)?))
}

fn be32(image: &File, at: u64) -> io::Result<u32> {
    Ok(u32::from_be_bytes(read(image, at)?))
}

fn read<const N: usize>(image: &File, at: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    image.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

/// The checksum of btrfs; ext4 stores its complement.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    static CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);
    CRC32C.checksum(bytes)
}
