//! A container's `/proc`, `/sys`, `/dev`, `/tmp` and `/run`, as container runtimes mount them.
//!
//! What belongs to the whole machine is masked or read-only: kernel settings written through
//! `/proc/sys` would hold for the host, and `core_pattern` even names a program that the kernel
//! starts outside of every namespace.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive, mount_remount};

use super::devices::{self, Nodes};
use super::protocol::{Bind, Cgroup, ContainerRun};
use super::root::{SetupError, Step, clone_volume, make_dir, place};

/// Not seen in a container that is not privileged.
pub(super) const MASKED: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// Read-only in a container that is not privileged.
pub(super) const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

const SAFE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Mounts everything that belongs to the system. `shm` is the pod's shared memory, detached;
/// `nodes` are the container's devices; `nodev` refuses others where no cgroup does.
pub(super) fn system_mounts(
    run: &ContainerRun,
    root: &Path,
    shm: OwnedFd,
    nodes: &Nodes,
    nodev: MountFlags,
) -> Result<(), SetupError> {
    let tmp = MountFlags::NOSUID | MountFlags::NODEV;
    for dir in ["proc", "sys", "dev", "tmp", "run"] {
        make_dir(&root.join(dir))?;
    }
    mount("proc", root.join("proc"), "proc", SAFE, None).step("mount /proc")?;
    mount("tmpfs", root.join("tmp"), "tmpfs", tmp, c"mode=1777").step("mount /tmp")?;
    mount("tmpfs", root.join("run"), "tmpfs", tmp, c"mode=0755").step("mount /run")?;
    if run.privileged {
        let sys = Bind {
            source: "/sys".into(),
            target: "/sys".into(),
            read_only: false,
            ..Bind::default()
        };
        place(clone_volume(&sys)?, &root.join("sys"))?;
        devices::whole(&root.join("dev"))?;
        return ipc_mounts(&root.join("dev"), shm);
    }
    let sys = root.join("sys");
    mount("sysfs", &sys, "sysfs", SAFE | MountFlags::RDONLY, None).step("mount /sys")?;
    cgroup_mounts(&run.sandbox.cgroups, &sys.join("fs/cgroup"))?;
    let dev = root.join("dev");
    devices::small(&dev, nodes, nodev)?;
    ipc_mounts(&dev, shm)?;
    protect(root, &nodes.null())
}

/// Mounts the pod's shared memory and message queues.
fn ipc_mounts(dev: &Path, shm: OwnedFd) -> Result<(), SetupError> {
    place(shm, &dev.join("shm"))?;
    match mount("mqueue", dev.join("mqueue"), "mqueue", SAFE, None) {
        // A kernel without message queues.
        Err(rustix::io::Errno::NODEV) => Ok(()),
        other => other.step("mount /dev/mqueue"),
    }
}

/// The container's own cgroups, read-only. The cgroup namespace makes them the roots.
fn cgroup_mounts(cgroups: &[Cgroup], at: &Path) -> Result<(), SetupError> {
    if !at.is_dir() {
        return Ok(());
    }
    let flags = SAFE | MountFlags::RDONLY;
    if cgroups.iter().any(|cgroup| cgroup.controllers.is_empty()) {
        return mount("cgroup", at, "cgroup2", flags, None).step("mount /sys/fs/cgroup");
    }
    mount("tmpfs", at, "tmpfs", SAFE, c"mode=0755,size=64k").step("mount /sys/fs/cgroup")?;
    for cgroup in cgroups {
        let dir = at.join(&cgroup.controllers);
        make_dir(&dir)?;
        let options = CString::new(cgroup.controllers.as_str()).map_err(io::Error::from);
        let options = options.step("name the cgroup controllers")?;
        mount("cgroup", &dir, "cgroup", flags, options.as_c_str())
            .step(format!("mount the cgroup {}", cgroup.controllers))?;
    }
    mount_remount(at, flags, c"mode=0755,size=64k").step("make /sys/fs/cgroup read-only")
}

/// Masks what tells of the host and makes read-only what changes it.
fn protect(root: &Path, null: &Path) -> Result<(), SetupError> {
    let inside = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    for path in READ_ONLY {
        make_read_only(&inside(Path::new(path))).step(format!("make {path} read-only"))?;
    }
    let masked = MASKED.iter().map(PathBuf::from).chain(thermal_throttles());
    for path in masked {
        mask(&inside(&path), null).step(format!("mask {}", path.display()))?;
    }
    Ok(())
}

fn make_read_only(path: &Path) -> io::Result<()> {
    if !path.exists() {
        return Ok(());
    }
    mount_bind_recursive(path, path)?;
    Ok(mount_remount(path, SAFE | MountFlags::BIND | MountFlags::RDONLY, c"")?)
}

/// Covers a directory with an empty one and a file with the null device. The empty directory needs
/// no flag but the one of container runtimes: nothing can ever be in it.
fn mask(path: &Path, null: &Path) -> io::Result<()> {
    let Ok(kind) = fs::symlink_metadata(path) else { return Ok(()) };
    if kind.is_dir() {
        return Ok(mount("tmpfs", path, "tmpfs", MountFlags::RDONLY, c"size=0")?);
    }
    Ok(mount_bind(null, path)?)
}

/// Counters that tell of the load of other tenants, one directory per processor.
fn thermal_throttles() -> Vec<PathBuf> {
    let cpus = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    cpus.map(|cpu| cpu.path().join("thermal_throttle")).filter(|dir| dir.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_or_tells_of_the_host_is_covered() {
        for path in ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"] {
            assert!(MASKED.contains(&path), "{path} is masked");
        }
        for path in ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"] {
            assert!(READ_ONLY.contains(&path), "{path} is read-only");
        }
    }
}
