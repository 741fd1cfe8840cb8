//! A container's `/dev`.
//!
//! Its devices are nodes of its own. The host's own nodes, bound into a container, would carry the
//! host's owners and modes, and a pod whose user is root could change them for the whole machine.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Gid, Mode, Uid, chown, makedev, mknodat};
use rustix::mount::{MountFlags, mount, mount_bind};

use super::root::{SetupError, Step, make_dir};

/// Name, major and minor number: the devices that every container has.
const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];
/// Parts of the host's `/dev` that a container has of its own or not at all.
const NOT_COPIED: [&str; 6] = ["pts", "ptmx", "shm", "mqueue", "fd", "console"];

/// Device nodes to be bound into the container, in a filesystem that it cannot reach as a whole.
pub(super) struct Nodes {
    dir: PathBuf,
}

impl Nodes {
    /// Makes the nodes below `base`, which goes when the old root does.
    pub(super) fn make(base: &Path) -> Result<Self, SetupError> {
        let dir = base.join("devices");
        make_dir(&dir)?;
        mount("tmpfs", &dir, "tmpfs", MountFlags::NOSUID, c"mode=0755,size=64k")
            .step("mount the container's devices")?;
        for (name, major, minor) in DEVICES {
            let number = makedev(major, minor);
            make_node(&dir.join(name), FileType::CharacterDevice, number, 0o666)?;
        }
        Ok(Self { dir })
    }

    /// The null device, with which a file is covered.
    pub(super) fn null(&self) -> PathBuf {
        self.dir.join("null")
    }
}

fn make_node(path: &Path, kind: FileType, number: u64, mode: u32) -> Result<(), SetupError> {
    let step = || format!("make the device {}", path.display());
    mknodat(CWD, path, kind, Mode::from_raw_mode(mode), number).step(step())?;
    // A umask may have taken some of it.
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).step(step())
}

/// Mounts a small `/dev`. The usual devices are bound one by one, so that they can be opened also
/// with `nodev`.
pub(super) fn small(dev: &Path, nodes: &Nodes, nodev: MountFlags) -> Result<(), SetupError> {
    let flags = MountFlags::NOSUID | nodev;
    mount("tmpfs", dev, "tmpfs", flags, c"mode=0755,size=64k").step("mount /dev")?;
    for (name, ..) in DEVICES {
        let (source, target) = (nodes.dir.join(name), dev.join(name));
        fs::write(&target, "").step(format!("make {}", target.display()))?;
        mount_bind(source, &target).step(format!("bind /dev/{name}"))?;
    }
    finish(dev)
}

/// Mounts the `/dev` of a privileged container: nodes for all devices of the host, as container
/// runtimes make them. What the container adds or changes stays its own.
pub(super) fn whole(dev: &Path) -> Result<(), SetupError> {
    mount("tmpfs", dev, "tmpfs", MountFlags::NOSUID, c"mode=0755,size=64m").step("mount /dev")?;
    copy_nodes(Path::new("/dev"), dev)?;
    finish(dev)
}

fn copy_nodes(from: &Path, to: &Path) -> Result<(), SetupError> {
    let step = || format!("look at {}", from.display());
    for entry in fs::read_dir(from).step(step())? {
        let entry = entry.step(step())?;
        let name = entry.file_name();
        if NOT_COPIED.iter().any(|other| name == *other) {
            continue;
        }
        // A device may be unplugged meanwhile.
        let Ok(found) = fs::symlink_metadata(entry.path()) else { continue };
        let (kind, target) = (found.file_type(), to.join(&name));
        if kind.is_dir() {
            make_dir(&target)?;
            copy_nodes(&entry.path(), &target)?;
        } else if kind.is_char_device() || kind.is_block_device() {
            let node = FileType::from_raw_mode(found.mode());
            make_node(&target, node, found.rdev(), found.mode() & 0o7777)?;
            let (user, group) = (Uid::from_raw(found.uid()), Gid::from_raw(found.gid()));
            chown(&target, Some(user), Some(group)).step(format!("own {}", target.display()))?;
        }
    }
    Ok(())
}

/// Adds what every `/dev` has beside devices: links, terminals, places for the pod's IPC.
fn finish(dev: &Path) -> Result<(), SetupError> {
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        std::os::unix::fs::symlink(target, dev.join(name)).step(format!("link /dev/{name}"))?;
    }
    for name in ["shm", "mqueue", "pts"] {
        make_dir(&dev.join(name))?;
    }
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("devpts", dev.join("pts"), "devpts", flags, c"newinstance,ptmxmode=0666,mode=0620")
        .step("mount /dev/pts")
}
