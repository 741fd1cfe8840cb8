//! The two ioctls that freeze and thaw. All `unsafe` of freezing is here.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Freezes the filesystem; `EBUSY` when it is frozen already.
pub(super) fn freeze(mount: &impl AsFd) -> io::Result<()> {
    plain(mount, linux_raw_sys::ioctl::FIFREEZE)
}

/// Thaws the filesystem; `EINVAL` when it is not frozen.
pub(super) fn thaw(mount: &impl AsFd) -> io::Result<()> {
    plain(mount, linux_raw_sys::ioctl::FITHAW)
}

#[expect(unsafe_code, reason = "there is no safe wrapper for these two")]
fn plain(mount: &impl AsFd, request: u32) -> io::Result<()> {
    // SAFETY: the descriptor is open, and neither request reads its argument.
    let result = unsafe {
        libc::ioctl(mount.as_fd().as_raw_fd(), request as libc::Ioctl, 0 as libc::c_ulong)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
