//! Which blocks of a file are its own.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: u32 = 0xc020_660b;
const LAST: u32 = 0x1;
/// Where it is, or will be, is not known yet.
const UNKNOWN: u32 = 0x2;
const DELALLOC: u32 = 0x4;
const SHARED: u32 = 0x2000;
/// How many extents are asked for at a time.
const COUNT: usize = 256;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

/// `struct fiemap`, with room for its extents.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; COUNT],
}

/// Bytes that the file has on disk and shares with no other file.
pub(crate) fn own_bytes(file: &File) -> io::Result<u64> {
    let mut own = 0;
    walk(file, |extent| {
        if extent.flags & SHARED == 0 {
            own += extent.length;
        }
        true
    })?;
    Ok(own)
}

/// Whether the first `bytes` of the file are all on disk, and its own.
pub(crate) fn has_all(file: &File, bytes: u64) -> io::Result<bool> {
    let mut covered = 0;
    walk(file, |extent| {
        let there = extent.flags & (SHARED | UNKNOWN | DELALLOC) == 0 && extent.logical <= covered;
        if there {
            covered = covered.max(extent.logical + extent.length);
        }
        there && covered < bytes
    })?;
    Ok(covered >= bytes)
}

/// Visits each extent, in order, for as long as `visit` wants more.
fn walk(file: &File, mut visit: impl FnMut(&Extent) -> bool) -> io::Result<()> {
    const NONE: Extent = Extent {
        logical: 0,
        physical: 0,
        length: 0,
        reserved: [0; 2],
        flags: 0,
        reserved_too: [0; 3],
    };
    let mut start = 0;
    loop {
        let mut map = Map {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped: 0,
            count: COUNT as u32,
            reserved: 0,
            extents: [NONE; COUNT],
        };
        ask(file, &mut map)?;
        let found = &map.extents[..(map.mapped as usize).min(COUNT)];
        if !found.iter().all(&mut visit) {
            return Ok(());
        }
        match found.last() {
            Some(last) if last.flags & LAST == 0 && last.logical + last.length > start => {
                start = last.logical + last.length;
            }
            _ => return Ok(()),
        }
    }
}

#[expect(unsafe_code, reason = "only an ioctl lists extents")]
fn ask(file: &File, map: &mut Map) -> io::Result<()> {
    // SAFETY: the descriptor is open, and `map` has the layout of the kernel's structure followed
    // by as many extents as it says.
    let result = unsafe {
        libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as libc::Ioctl, std::ptr::from_mut(map))
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_file_without_relations_owns_what_it_has() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        // More extents than are asked for at a time, each with a hole after it.
        for n in 0..600 {
            file.write_all_at(&[7; 4096], n * 16384).unwrap();
        }
        file.sync_all().unwrap();
        let Ok(own) = own_bytes(&file) else {
            // A filesystem without that ioctl, such as one in memory.
            return;
        };
        assert_eq!(own, 600 * 4096);
        assert!(has_all(&file, 4096).unwrap() && !has_all(&file, 4097).unwrap());
    }

    #[test]
    fn what_was_set_aside_is_there_and_a_hole_is_not() {
        let file = tempfile::tempfile().unwrap();
        if own_bytes(&file).is_err()
            || rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 8 << 20)
                .is_err()
        {
            return;
        }
        assert!(has_all(&file, 8 << 20).unwrap(), "never written, but there");
        assert!(!has_all(&file, (8 << 20) + 4096).unwrap());
        file.set_len(16 << 20).unwrap();
        assert!(!has_all(&file, 16 << 20).unwrap());
        file.write_all_at(&[7; 4096], 12 << 20).unwrap();
        file.sync_all().unwrap();
        assert!(has_all(&file, 8 << 20).unwrap() && !has_all(&file, 13 << 20).unwrap());
    }
}
