//! Which blocks of a file are its own.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: u32 = 0xc020_660b;
const LAST: u32 = 0x1;
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
pub fn own_bytes(file: &File) -> io::Result<u64> {
    const NONE: Extent = Extent {
        logical: 0,
        physical: 0,
        length: 0,
        reserved: [0; 2],
        flags: 0,
        reserved_too: [0; 3],
    };
    let mut own = 0;
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
        own +=
            found.iter().filter(|one| one.flags & SHARED == 0).map(|one| one.length).sum::<u64>();
        match found.last() {
            Some(last) if last.flags & LAST == 0 && last.logical + last.length > start => {
                start = last.logical + last.length;
            }
            _ => return Ok(own),
        }
    }
}

#[expect(unsafe_code, reason = "extents are told by ioctl only")]
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
            // A filesystem that does not tell, such as one in memory.
            return;
        };
        assert_eq!(own, 600 * 4096);
    }
}
