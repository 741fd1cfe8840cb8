//! A new identity for a fresh ext4 that was copied from a template, without running a program.
//!
//! Templates are made with `metadata_csum_seed`: no checksum but that of the superblocks depends on
//! the UUID. The seed for hashing names in directories is renewed too, which is possible because no
//! directory of a fresh filesystem has an index.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use uuid::Uuid;

use super::FormatError;
use super::superblock::crc32c;
use super::uuid::read_uuid;
use crate::config::FsType;

const SUPERBLOCK_BYTES: usize = 1024;
const UUID: usize = 0x68;
const HASH_SEED: usize = 0xec;
const CHECKSUM: usize = 0x3fc;
const INCOMPAT: usize = 0x60;
const CSUM_SEED: u32 = 0x2000;
const RO_COMPAT: usize = 0x64;
const METADATA_CSUM: u32 = 0x400;
const SPARSE_SUPER: u32 = 0x1;

/// Gives a fresh ext4 a UUID of its own, in every superblock, and reads it back.
pub fn renew_fresh(image: &File) -> Result<Uuid, FormatError> {
    let wanted = Uuid::new_v4();
    let failed = |source| FormatError::Superblock { what: "renew a template's copy", source };
    renew(image, wanted, Uuid::new_v4()).map_err(failed)?;
    let found = read_uuid(image, FsType::Ext4)?;
    if found != wanted {
        let tool = "the change of the superblocks";
        return Err(FormatError::NotRenewed { tool, fstype: FsType::Ext4, found, wanted });
    }
    Ok(wanted)
}

fn renew(image: &File, wanted: Uuid, hash_seed: Uuid) -> io::Result<()> {
    let first = read(image, 1024)?;
    check(&first)?;
    // Backups first: the kernel mounts by the first one, which therefore commits the change.
    for at in backups(&first)?.into_iter().rev().chain([1024]) {
        let mut block = read(image, at)?;
        check(&block)?;
        block[UUID..UUID + 16].copy_from_slice(wanted.as_bytes());
        block[HASH_SEED..HASH_SEED + 16].copy_from_slice(hash_seed.as_bytes());
        let sum = checksum(&block).to_le_bytes();
        block[CHECKSUM..].copy_from_slice(&sum);
        image.write_all_at(&block, at)?;
    }
    Ok(())
}

fn read(image: &File, at: u64) -> io::Result<[u8; SUPERBLOCK_BYTES]> {
    let mut block = [0; SUPERBLOCK_BYTES];
    image.read_exact_at(&mut block, at)?;
    Ok(block)
}

fn le32(block: &[u8; SUPERBLOCK_BYTES], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&block[at..at + 4]);
    u32::from_le_bytes(bytes)
}

fn checksum(block: &[u8; SUPERBLOCK_BYTES]) -> u32 {
    !crc32c(&block[..CHECKSUM])
}

/// Only a superblock that is as templates have it is changed.
fn check(block: &[u8; SUPERBLOCK_BYTES]) -> io::Result<()> {
    let bad = |why: &str| Err(io::Error::other(why.to_owned()));
    if block[0x38..0x3a] != [0x53, 0xef] {
        return bad("there is no ext4 superblock where one should be");
    }
    if le32(block, INCOMPAT) & CSUM_SEED == 0 || le32(block, RO_COMPAT) & METADATA_CSUM == 0 {
        return bad("its checksums depend on the UUID");
    }
    if le32(block, CHECKSUM) != checksum(block) {
        return bad("the checksum of a superblock is wrong");
    }
    Ok(())
}

/// Where the other superblocks are: in groups 1 and the powers of 3, 5 and 7.
fn backups(first: &[u8; SUPERBLOCK_BYTES]) -> io::Result<Vec<u64>> {
    let shift = le32(first, 0x18);
    let per_group = u64::from(le32(first, 0x20));
    if shift > 6 || per_group == 0 || le32(first, RO_COMPAT) & SPARSE_SUPER == 0 {
        return Err(io::Error::other("its superblocks are not where they are expected"));
    }
    let (first_block, block) = (u64::from(le32(first, 0x14)), 1024u64 << shift);
    let blocks = u64::from(le32(first, 4)) | u64::from(le32(first, 0x150)) << 32;
    let groups = blocks.saturating_sub(first_block).div_ceil(per_group);
    let is_backup = |group: u64| {
        group == 1
            || [3u64, 5, 7].iter().any(|base| {
                let mut power = *base;
                while power < group {
                    power *= base;
                }
                power == group
            })
    };
    let at = |group: u64| (group * per_group + first_block) * block;
    Ok((1..groups).filter(|group| is_backup(*group)).map(at).collect())
}
