//! Where a pod of ours deliberately answers otherwise than under runc.
//!
//! Both answers are written down, so that a third one fails. With the exception of calls that newer
//! versions of the fixture's runtime allow, a pod of ours can do less, never more.

/// A reason, and the differences that it has.
#[derive(Debug)]
pub struct Reason {
    pub why: &'static str,
    /// Whether machines exist on which there is no difference: kernels, cgroups, runtimes.
    pub of_the_machine: bool,
    /// Probe, our answer, runc's answer.
    pub lines: &'static [Line],
}

/// Probe, our answer, runc's answer.
pub type Line = (&'static str, &'static str, &'static str);

/// The reason and the line for a difference, if it is meant.
pub fn find(probe: &str, ours: &str, theirs: &str) -> Option<(&'static Reason, &'static Line)> {
    ALL.iter().find_map(|reason| {
        let line = reason.lines.iter().find(|line| **line == (probe, ours, theirs))?;
        Some((reason, line))
    })
}

/// Every difference that is meant.
pub const ALL: &[Reason] = &[
    Reason {
        why: "pods are in the host's network, so they have no NET_RAW; and no MKNOD",
        of_the_machine: false,
        lines: &[
            ("status CapBnd", "00000000a00405fb", "00000000a80425fb"),
            ("status CapEff", "00000000a00405fb", "00000000a80425fb"),
            ("status CapPrm", "00000000a00405fb", "00000000a80425fb"),
            ("socket packet", "EPERM", "ok"),
            ("socket raw icmp", "EPERM", "ok"),
            ("socket raw 6", "EPERM", "ok"),
            // Since Linux 5.17 NET_RAW is enough to mark packets.
            ("mark of packets", "EPERM", "ok"),
            ("make the device null", "EPERM", "ok"),
            ("make the device of memory", "EPERM", "ok"),
            ("make the device of a disk", "EPERM", "ok"),
        ],
    },
    Reason {
        // The root and hostPath volumes show devices of the host.
        why: "devices are kept shut by nodev, where runc has a cgroup for them",
        of_the_machine: false,
        lines: &[
            ("mount /", "rw nodev", "rw"),
            ("mount /", "ro nodev", "ro"),
            ("mount /dev", "tmpfs rw nosuid nodev", "tmpfs rw nosuid"),
        ],
    },
    Reason {
        why: "devices are kept shut by nodev, also on volumes, whatever filesystem they are on",
        of_the_machine: true,
        lines: &[
            ("mount /data", "ext4 rw nodev", "ext4 rw"),
            ("mount /probe", "ext4 ro nodev", "ext4 ro"),
            ("mount /data", "overlay rw nodev", "overlay rw"),
            ("mount /probe", "overlay ro nodev", "overlay ro"),
            ("mount /data", "tmpfs rw nodev", "tmpfs rw"),
            ("mount /probe", "tmpfs ro nodev", "tmpfs ro"),
            ("mount /data", "xfs rw nodev", "xfs rw"),
            ("mount /probe", "xfs ro nodev", "xfs ro"),
            ("mount /data", "btrfs rw nodev", "btrfs rw"),
            ("mount /probe", "btrfs ro nodev", "btrfs ro"),
        ],
    },
    Reason {
        // A sysfs belongs to a network namespace. In one of its own the whole filesystem is
        // read-only, which the kernel looks at before it looks at the file's mode.
        why: "pods are in the host's network, and with it in its sysfs, whose mount is read-only",
        of_the_machine: true,
        lines: &[
            ("open for writing /sys/power/state", "EACCES", "EROFS"),
            ("open for writing /sys/kernel/mm/transparent_hugepage/enabled", "EACCES", "EROFS"),
            ("open for writing /sys/module/kernel/parameters/panic", "EACCES", "EROFS"),
            ("open for writing /sys/kernel/profiling", "EACCES", "EROFS"),
            ("open for writing /sys/kernel/uevent_helper", "EACCES", "EROFS"),
        ],
    },
    Reason {
        // containerd's pull requests 9320 and 7510, and its profile of 2026; Debian 12 has 1.6.
        why: "newer runtimes refuse io_uring, vsock and the kernel's cryptography too",
        of_the_machine: true,
        lines: &[
            ("call io_uring_setup", "EPERM", "EFAULT"),
            ("call io_uring_enter", "EPERM", "EBADF"),
            ("call io_uring_register", "EPERM", "EINVAL"),
            ("socket vsock", "EPERM", "ok"),
            ("socket vsock", "EPERM", "EAFNOSUPPORT"),
            ("socket alg", "EPERM", "EAFNOSUPPORT"),
            ("socket alg", "EPERM", "ok"),
        ],
    },
    Reason {
        // runc answers ENOSYS to whatever is newer than its profile.
        why: "newer runtimes know these calls, that of Debian 12 does not",
        of_the_machine: true,
        lines: &[
            ("call fchmodat2", "ENOENT", "ENOSYS"),
            ("call futex_wake", "EINVAL", "ENOSYS"),
            ("call mseal", "ok", "ENOSYS"),
            ("call set_mempolicy_home_node", "EPERM", "ENOSYS"),
        ],
    },
    Reason {
        // The pod's standard input is no terminal, so the kernel refuses it there.
        why: "typing into terminals is refused by us alone, before the kernel looks at them",
        of_the_machine: false,
        lines: &[("terminal input", "EPERM", "ENOTTY")],
    },
    Reason {
        // The profile means to allow them beside ptrace, which can do the same. Up to 1.6 it has
        // the names wrong.
        why: "newer runtimes allow reading the memory of the pod's own processes",
        of_the_machine: true,
        lines: &[
            ("call process_vm_readv", "ok", "EPERM"),
            ("call process_vm_writev", "ok", "EPERM"),
        ],
    },
    Reason {
        // There containerd shares the host's cgroup namespace and leaves a tmpfs writable.
        why: "with cgroups of the old kind ours are the pod's own, and read-only throughout",
        of_the_machine: true,
        lines: &[
            ("cgroups seem to be roots", "yes", "no"),
            (
                "mount /sys/fs/cgroup",
                "tmpfs ro nosuid nodev noexec",
                "tmpfs rw nosuid nodev noexec",
            ),
            ("writable below /sys", "0 ", "1 /sys/fs/cgroup"),
            ("write to /sys/fs/cgroup", "EROFS", "ok"),
            ("write to /sys/fs/cgroup", "EROFS", "EACCES"),
        ],
    },
    Reason {
        // Empty in both. The null device is the host's own node here, a copy of it there.
        why: "what is masked is covered with an empty directory with more flags, or the null device",
        of_the_machine: true,
        lines: &[
            ("mount /proc/acpi", "tmpfs ro nosuid nodev noexec", "tmpfs ro"),
            ("mount /proc/asound", "tmpfs ro nosuid nodev noexec", "tmpfs ro"),
            ("mount /proc/scsi", "tmpfs ro nosuid nodev noexec", "tmpfs ro"),
            ("mount /sys/firmware", "tmpfs ro nosuid nodev noexec", "tmpfs ro"),
            ("mount /sys/devices/virtual/powercap", "tmpfs ro nosuid nodev noexec", "tmpfs ro"),
            ("mount /proc/interrupts", "devtmpfs rw", "tmpfs rw nosuid"),
            ("mount /proc/kcore", "devtmpfs rw", "tmpfs rw nosuid"),
            ("mount /proc/keys", "devtmpfs rw", "tmpfs rw nosuid"),
            ("mount /proc/latency_stats", "devtmpfs rw", "tmpfs rw nosuid"),
            ("mount /proc/timer_list", "devtmpfs rw", "tmpfs rw nosuid"),
            ("mount /proc/sched_debug", "devtmpfs rw", "tmpfs rw nosuid"),
        ],
    },
    Reason {
        why: "a container ends with its shim, which alone knows how it ended",
        of_the_machine: false,
        lines: &[("signal at the parent's end", "9", "0")],
    },
    Reason {
        why: "there are no termination messages, so there is no file for them",
        of_the_machine: false,
        lines: &[(
            "all of /dev",
            "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero",
            "fd full mqueue null ptmx pts random shm stderr stdin stdout termination-log tty urandom zero",
        )],
    },
];
