//! What is on an image: known signatures, or bytes of unknown meaning, or nothing.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// What a probe found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Every byte is zero.
    Nothing,
    /// The signature of a filesystem, volume manager, partition table or the like.
    Signature(&'static str),
    /// Bytes that are not zero and carry no known signature.
    Unknown,
}

/// (name, offset, bytes). The ext signature is shared by its second to fourth generation.
const SIGNATURES: &[(&str, u64, &[u8])] = &[
    ("ext4", 0x438, &[0x53, 0xef]),
    ("xfs", 0, b"XFSB"),
    ("btrfs", 0x1_0040, b"_BHRfS_M"),
    ("luks", 0, b"LUKS\xba\xbe"),
    ("lvm2", 0x218, b"LVM2 001"),
    ("lvm2", 0x18, b"LVM2 001"),
    ("swap", 0xff6, b"SWAPSPACE2"),
    ("swap", 0xff6, b"SWAP-SPACE"),
    ("ntfs", 3, b"NTFS    "),
    ("exfat", 3, b"EXFAT   "),
    ("vfat", 0x52, b"FAT32   "),
    ("vfat", 0x36, b"FAT16   "),
    ("vfat", 0x36, b"FAT12   "),
    ("iso9660", 0x8001, b"CD001"),
    ("f2fs", 0x400, &[0x10, 0x20, 0xf5, 0xf2]),
    ("erofs", 0x400, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("squashfs", 0, b"hsqs"),
    ("md raid", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("md raid", 0x1000, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("bcache", 0x1018, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]),
    ("bcachefs", 0x1018, &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9]),
    ("reiserfs", 0x1_0034, b"ReIsEr"),
    ("jfs", 0x8000, b"JFS1"),
    ("nilfs2", 0x406, &[0x34, 0x34]),
    ("ocfs2", 0x2000, b"OCFSV2"),
    ("gfs2", 0x1_0000, &[0x01, 0x16, 0x19, 0x70]),
    ("zfs", 0x2_0000, &[0x0c, 0xb1, 0xba, 0x00]),
    ("partition table (gpt)", 0x200, b"EFI PART"),
    ("partition table (mbr)", 0x1fe, &[0x55, 0xaa]),
];

/// Looks at the image. An error means that nothing is known, and so nothing may be written.
pub fn probe(image: &File) -> io::Result<Found> {
    let mut buffer = [0; 16];
    for &(name, offset, magic) in SIGNATURES {
        let buffer = &mut buffer[..magic.len()];
        if read_fully(image, buffer, offset)? && buffer == magic {
            return Ok(Found::Signature(name));
        }
    }
    if is_zero(image)? { Ok(Found::Nothing) } else { Ok(Found::Unknown) }
}

/// False when the image ends before the buffer is full.
fn read_fully(image: &File, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
    match image.read_exact_at(buffer, offset) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads every allocated part. A volume that was never used has none, so this is quick when
/// everything is zero.
fn is_zero(image: &File) -> io::Result<bool> {
    let mut buffer = vec![0; 256 << 10];
    let mut at = 0;
    loop {
        at = match rustix::fs::seek(image, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(image, SeekFrom::Hole(at))?;
        while at < end {
            let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
            let got = image.read_at(&mut buffer[..most], at)?;
            if got == 0 {
                return Ok(true);
            }
            if buffer[..got].iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            at += got as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4 << 20).unwrap();
        file
    }

    #[test]
    fn every_signature_is_found() {
        for &(name, offset, magic) in SIGNATURES {
            let file = image();
            file.write_all_at(magic, offset).unwrap();
            assert_eq!(probe(&file).unwrap(), Found::Signature(name), "{name} at {offset:#x}");
        }
    }

    #[test]
    fn zeros_are_nothing_and_other_bytes_are_not() {
        let file = image();
        assert_eq!(probe(&file).unwrap(), Found::Nothing);
        file.write_all_at(&[0; 8192], 1 << 20).unwrap();
        assert_eq!(probe(&file).unwrap(), Found::Nothing, "allocated zeros");
        file.write_all_at(b"x", (4 << 20) - 1).unwrap();
        assert_eq!(probe(&file).unwrap(), Found::Unknown);
    }

    #[test]
    fn a_short_image_is_probed_too() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(100).unwrap();
        assert_eq!(probe(&file).unwrap(), Found::Nothing);
    }

    #[test]
    fn a_failed_read_is_an_error() {
        // A directory opens but does not read, like a device that fails.
        let dir = File::open(std::env::temp_dir()).unwrap();
        assert!(probe(&dir).is_err());
    }
}
