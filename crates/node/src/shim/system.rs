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

use super::protocol::{Bind, Cgroup, ContainerRun};
use super::root::{SetupError, Step, clone_volume, make_dir, place};

const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

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

/// Mounts everything that belongs to the system. `shm` is the pod's shared memory, detached.
pub(super) fn system_mounts(
    run: &ContainerRun,
    root: &Path,
    shm: OwnedFd,
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
        mount_bind_recursive("/dev", root.join("dev")).step("bind /dev")?;
        return ipc_mounts(&root.join("dev"), shm);
    }
    let sys = root.join("sys");
    mount("sysfs", &sys, "sysfs", SAFE | MountFlags::RDONLY, None).step("mount /sys")?;
    cgroup_mounts(&run.sandbox.cgroups, &sys.join("fs/cgroup"))?;
    let dev = root.join("dev");
    devices(&dev)?;
    ipc_mounts(&dev, shm)?;
    protect(root)
}

/// A small `/dev`. It is `nodev`, so a device made by the container cannot be opened; the usual
/// ones are bound from the host one by one.
fn devices(dev: &Path) -> Result<(), SetupError> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", dev, "tmpfs", flags, c"mode=0755,size=64k").step("mount /dev")?;
    for name in DEVICES {
        let bind = Bind {
            source: Path::new("/dev").join(name),
            target: dev.join(name),
            read_only: false,
            device: true,
            host: false,
        };
        if bind.source.exists() {
            fs::write(&bind.target, "").step(format!("make {}", bind.target.display()))?;
            place(clone_volume(&bind)?, &bind.target)?;
        }
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        std::os::unix::fs::symlink(target, dev.join(name)).step(format!("link /dev/{name}"))?;
    }
    for name in ["shm", "mqueue", "pts"] {
        make_dir(&dev.join(name))?;
    }
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("devpts", dev.join("pts"), "devpts", flags, c"newinstance,ptmxmode=0666,mode=0620")
        .step("mount /dev/pts")?;
    std::os::unix::fs::symlink("pts/ptmx", dev.join("ptmx")).step("link /dev/ptmx")
}

/// Shared memory and message queues of the pod. A host's `/dev` need not have places for them.
fn ipc_mounts(dev: &Path, shm: OwnedFd) -> Result<(), SetupError> {
    if dev.join("shm").is_dir() {
        place(shm, &dev.join("shm"))?;
    }
    let queues = dev.join("mqueue");
    if queues.is_dir() {
        match mount("mqueue", &queues, "mqueue", SAFE, None) {
            // A kernel without message queues.
            Err(rustix::io::Errno::NODEV) => {}
            other => other.step("mount /dev/mqueue")?,
        }
    }
    Ok(())
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
fn protect(root: &Path) -> Result<(), SetupError> {
    let inside = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    for path in READ_ONLY {
        make_read_only(&inside(Path::new(path))).step(format!("make {path} read-only"))?;
    }
    let masked = MASKED.iter().map(PathBuf::from).chain(thermal_throttles());
    for path in masked {
        mask(&inside(&path)).step(format!("mask {}", path.display()))?;
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

/// Covers a directory with an empty one and a file with the null device.
fn mask(path: &Path) -> io::Result<()> {
    let Ok(kind) = fs::symlink_metadata(path) else { return Ok(()) };
    if kind.is_dir() {
        return Ok(mount("tmpfs", path, "tmpfs", SAFE | MountFlags::RDONLY, c"size=0")?);
    }
    Ok(mount_bind("/dev/null", path)?)
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
