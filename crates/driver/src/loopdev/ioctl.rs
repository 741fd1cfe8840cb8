//! The loop driver's ioctls. All `unsafe` of the loop layer is here.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use linux_raw_sys::loop_device as raw;

/// The kernel's status of a bound loop device.
pub(super) use raw::loop_info64 as Info;

/// Detaches itself when the last user closes it.
pub(super) const AUTOCLEAR: u32 = raw::LO_FLAGS_AUTOCLEAR as u32;
/// Refuses writes.
pub(super) const READ_ONLY: u32 = raw::LO_FLAGS_READ_ONLY as u32;

/// Number of a device that was free a moment ago.
pub(super) fn get_free(control: &File) -> io::Result<u32> {
    let number = plain(control.as_raw_fd(), raw::LOOP_CTL_GET_FREE, 0)?;
    u32::try_from(number).map_err(|_| io::Error::other("no loop device number"))
}

/// Removes an unbound device.
pub(super) fn remove(control: &File, number: u32) -> io::Result<()> {
    plain(control.as_raw_fd(), raw::LOOP_CTL_REMOVE, libc::c_ulong::from(number)).map(drop)
}

/// Binds `backing` to a free device in one step; `EBUSY` when another process was faster.
pub(super) fn configure(device: &File, backing: RawFd, flags: u32, tag: &str) -> io::Result<()> {
    let mut config = empty_config();
    config.fd = u32::try_from(backing).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    config.info.lo_flags = flags;
    // The kernel keeps 63 bytes and ends them with a zero.
    for (slot, byte) in config.info.lo_file_name[..63].iter_mut().zip(tag.bytes()) {
        *slot = byte;
    }
    let argument = (&raw const config) as libc::c_ulong;
    plain(device.as_raw_fd(), raw::LOOP_CONFIGURE, argument).map(drop)
}

/// What the device is bound to; `None` when it is bound to nothing.
pub(super) fn status(device: &File) -> io::Result<Option<Info>> {
    let mut info = empty_config().info;
    let argument = (&raw mut info) as libc::c_ulong;
    match plain(device.as_raw_fd(), raw::LOOP_GET_STATUS64, argument) {
        Ok(_) => Ok(Some(info)),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Unbinds the device, or lets it unbind when its last user is gone.
pub(super) fn clear(device: &File) -> io::Result<()> {
    plain(device.as_raw_fd(), raw::LOOP_CLR_FD, 0).map(drop)
}

/// Takes over the size that the backing file has now.
pub(super) fn set_capacity(device: &File) -> io::Result<()> {
    plain(device.as_raw_fd(), raw::LOOP_SET_CAPACITY, 0).map(drop)
}

/// Bypasses the page cache below, or uses it.
pub(super) fn set_direct_io(device: &File, direct: bool) -> io::Result<()> {
    plain(device.as_raw_fd(), raw::LOOP_SET_DIRECT_IO, libc::c_ulong::from(direct)).map(drop)
}

/// Makes the block device refuse or take writes.
pub(super) fn set_read_only(device: &File, read_only: bool) -> io::Result<()> {
    let value = libc::c_int::from(read_only);
    let argument = (&raw const value) as libc::c_ulong;
    plain(device.as_raw_fd(), BLKROSET, argument).map(drop)
}

/// Size of the block device in bytes.
pub(super) fn size_bytes(device: &File) -> io::Result<u64> {
    let mut bytes = 0u64;
    let argument = (&raw mut bytes) as libc::c_ulong;
    plain(device.as_raw_fd(), BLKGETSIZE64, argument)?;
    Ok(bytes)
}

/// `_IO(0x12, 93)`.
const BLKROSET: u32 = 0x125d;
/// `_IOR(0x12, 114, size_t)`.
const BLKGETSIZE64: u32 = 0x8008_1272;

fn empty_config() -> raw::loop_config {
    raw::loop_config {
        fd: 0,
        block_size: 0,
        info: raw::loop_info64 {
            lo_device: 0,
            lo_inode: 0,
            lo_rdevice: 0,
            lo_offset: 0,
            lo_sizelimit: 0,
            lo_number: 0,
            lo_encrypt_type: 0,
            lo_encrypt_key_size: 0,
            lo_flags: 0,
            lo_file_name: [0; 64],
            lo_crypt_name: [0; 64],
            lo_encrypt_key: [0; 32],
            lo_init: [0; 2],
        },
        __reserved: [0; 8],
    }
}

/// `argument` is zero or the address of the structure that `request` is defined on; each caller
/// above keeps that structure alive across the call.
#[expect(unsafe_code, reason = "loop devices are driven by ioctl only")]
fn plain(fd: RawFd, request: u32, argument: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: the descriptor is open (borrowed from a `File`), and `argument` is as said above.
    let result = unsafe { libc::ioctl(fd, request as libc::Ioctl, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
