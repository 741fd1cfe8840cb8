//! Mounting and unmounting through descriptors, so that a path cannot change between a check and
//! the act.

pub mod checked_path;
pub mod options;

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags,
};

use crate::config::FsType;
use options::Options;

/// Why a mount could not be made or undone.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel refused to mount the filesystem.
    #[error("cannot mount {fstype} from {device}: {source}{}", if detail.is_empty() { String::new() } else { format!(" ({detail})") })]
    Filesystem { fstype: FsType, device: String, detail: String, source: io::Error },
    #[error("cannot {what}: {source}")]
    Bind { what: &'static str, source: io::Error },
    #[error("cannot unmount {path}: {source}")]
    Unmount { path: String, source: io::Error },
}

/// Mounts the filesystem on `device` over the directory `onto`.
pub fn mount_filesystem(
    device: &Path,
    fstype: FsType,
    options: &Options,
    onto: BorrowedFd<'_>,
) -> Result<(), MountError> {
    let mount = detached(device, fstype, options)?;
    // The descriptor closes before anybody can want to unmount: an open one makes it busy.
    place_mount(&mount, onto).map_err(|source| MountError::Filesystem {
        fstype,
        device: device.display().to_string(),
        detail: String::new(),
        source: source.into(),
    })
}

/// Mounts the filesystem on `device` nowhere: it is gone again when the descriptor closes.
pub fn detached(device: &Path, fstype: FsType, options: &Options) -> Result<OwnedFd, MountError> {
    let fail = |detail: String, source: rustix::io::Errno| MountError::Filesystem {
        fstype,
        device: device.display().to_string(),
        detail,
        source: source.into(),
    };
    let context = rustix::mount::fsopen(fstype.as_str(), FsOpenFlags::FSOPEN_CLOEXEC)
        .map_err(|e| fail(String::new(), e))?;
    let mount = make_mount(&context, device, options);
    mount.map_err(|error| fail(explanation(&context), error))
}

fn make_mount(
    context: &OwnedFd,
    device: &Path,
    options: &Options,
) -> Result<OwnedFd, rustix::io::Errno> {
    rustix::mount::fsconfig_set_string(context, "source", device)?;
    if options.read_only {
        rustix::mount::fsconfig_set_flag(context, "ro")?;
    }
    for (key, value) in &options.filesystem {
        match value {
            Some(value) => {
                rustix::mount::fsconfig_set_string(context, key.as_str(), value.as_str())?
            }
            None => rustix::mount::fsconfig_set_flag(context, key.as_str())?,
        }
    }
    rustix::mount::fsconfig_create(context)?;
    let mut attributes = options.attributes;
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
    rustix::mount::fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Changes one option of the filesystem that is mounted at `at`, wherever else it is mounted, too.
pub fn reconfigure(at: &OwnedFd, option: (&str, Option<&str>)) -> Result<(), MountError> {
    let picked = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
    let change = || {
        let context = rustix::mount::fspick(at, "", picked)?;
        match option {
            (key, Some(value)) => rustix::mount::fsconfig_set_string(&context, key, value)?,
            (key, None) => rustix::mount::fsconfig_set_flag(&context, key)?,
        }
        rustix::mount::fsconfig_reconfigure(&context)
    };
    change().map_err(|error: rustix::io::Errno| MountError::Bind {
        what: "change an option of the mounted filesystem",
        source: error.into(),
    })
}

/// The kernel keeps its reasons in the context, one to a read.
fn explanation(context: &OwnedFd) -> String {
    let Ok(fd) = context.try_clone() else { return String::new() };
    let mut file = std::fs::File::from(fd);
    let mut lines = Vec::new();
    let mut buffer = [0; 1024];
    while let Ok(length @ 1..) = file.read(&mut buffer) {
        let line = String::from_utf8_lossy(&buffer[..length]);
        lines.push(line.trim().trim_start_matches(['e', 'w', 'i']).trim().to_owned());
    }
    lines.join("; ")
}

/// Mounts what `from` is over `onto` as well: a directory over a directory, or a device node
/// over a file. A read-only mount is never visible as anything else.
pub fn bind(from: BorrowedFd<'_>, onto: BorrowedFd<'_>, read_only: bool) -> Result<(), MountError> {
    let fail = |what| move |source: io::Error| MountError::Bind { what, source };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(from, "", flags);
    let tree = tree.map_err(|e| fail("copy the staged mount")(e.into()))?;
    if read_only {
        make_read_only(&tree).map_err(fail("make the mount read-only"))?;
    }
    place_mount(&tree, onto).map_err(|e| fail("place the mount")(e.into()))
}

fn place_mount(mount: &OwnedFd, onto: BorrowedFd<'_>) -> Result<(), rustix::io::Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount.as_fd(), "", onto, "", flags)
}

/// Takes the topmost mount at a resolved path away. Never lazily: when this returns, no process can
/// write through it any more.
pub fn unmount(path: &Path) -> Result<(), MountError> {
    let fail = |source: rustix::io::Errno| MountError::Unmount {
        path: path.display().to_string(),
        source: source.into(),
    };
    for _ in 0..BUSY_TRIES {
        match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
            Err(rustix::io::Errno::BUSY) => std::thread::sleep(BUSY_PAUSE),
            done => return done.map_err(fail),
        }
    }
    rustix::mount::unmount(path, UnmountFlags::NOFOLLOW).map_err(fail)
}

/// A process that was just forked has all files of its parent until it runs its program, so a mount
/// that no process uses may be busy for a moment.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

#[expect(unsafe_code, reason = "rustix has no mount_setattr")]
fn make_read_only(mount: &OwnedFd) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the descriptor is open, the path is a constant string, and `attr` outlives the
    // call, which reads exactly the size given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
