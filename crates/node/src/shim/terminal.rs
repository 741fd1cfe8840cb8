//! Terminals of containers. They are made in the container's own `/dev/pts`, so that programs in it find
//! the name of their terminal.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, Uid, fchown, fstat, major, minor, open};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};

use super::descriptors;
use super::protocol::{Notice, StreamNotice};
use super::root::{SetupError, Step};

/// The device that makes terminals.
const MULTIPLEXER: (u32, u32) = (5, 2);

/// Makes a terminal in the root that this process is in, sends its other end through `socket`, and makes it
/// the process's standard streams and controlling terminal. The process must lead a session.
pub(super) fn connect(socket: &OwnedFd, uid: u32) -> Result<(), SetupError> {
    let (master, terminal) = make().step("open a terminal")?;
    // The owner reopens it by its name.
    fchown(&terminal, Some(Uid::from_raw(uid)), None).step("own the terminal")?;
    let notice = Notice::Stream(StreamNotice::Terminal).line().step("hand the terminal over")?;
    descriptors::send(socket, &notice, &[master.as_fd()]).step("hand the terminal over")?;
    rustix::process::ioctl_tiocsctty(&terminal).step("control the terminal")?;
    rustix::stdio::dup2_stdin(&terminal).step("redirect input")?;
    rustix::stdio::dup2_stdout(&terminal).step("redirect output")?;
    rustix::stdio::dup2_stderr(&terminal).step("redirect errors")
}

fn make() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let master = open("/dev/pts/ptmx", flags, Mode::empty())?;
    // What is there belongs to the container, which may have put something else in its place.
    let found = fstat(&master)?;
    let device = (major(found.st_rdev), minor(found.st_rdev));
    if !FileType::from_raw_mode(found.st_mode).is_char_device() || device != MULTIPLEXER {
        return Err(io::Error::other("/dev/pts/ptmx is not the device that makes terminals"));
    }
    unlockpt(&master)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let terminal = ioctl_tiocgptpeer(&master, flags)?;
    Ok((master, terminal))
}
