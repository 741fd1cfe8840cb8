//! The deliberate differences between a pod of ours and the same pod under runc.
//!
//! Both answers are written down, so a third answer fails the test. A pod of ours can do less than
//! under runc, never more, except for calls that newer versions of the machine's libraries allow too.
//! The runtime is a pinned containerd, so its profile does not depend on the machine's age.

/// A reason, and the differences that it explains.
#[derive(Debug)]
pub struct Reason {
    pub why: &'static str,
    /// The difference depends on the machine (kernel, cgroups, version of the runtime), so a run
    /// without it is no error.
    pub of_the_machine: bool,
    /// Probe, our answer, runc's answer.
    pub lines: &'static [Line],
}

/// Probe, our answer, runc's answer.
pub type Line = (&'static str, &'static str, &'static str);

/// The reason and the line of a difference, if it is deliberate.
pub fn find(probe: &str, ours: &str, theirs: &str) -> Option<(&'static Reason, &'static Line)> {
    ALL.iter().find_map(|reason| {
        let line = reason.lines.iter().find(|line| **line == (probe, ours, theirs))?;
        Some((reason, line))
    })
}

/// Every deliberate difference.
pub const ALL: &[Reason] = &[
    Reason {
        why: "pods have neither NET_RAW, because they share the host's network, nor MKNOD",
        of_the_machine: false,
        lines: &[
            ("status CapBnd", "00000000a00405fb", "00000000a80425fb"),
            ("status CapEff", "00000000a00405fb", "00000000a80425fb"),
            ("status CapPrm", "00000000a00405fb", "00000000a80425fb"),
            ("socket packet", "EPERM", "ok"),
            ("socket raw icmp", "EPERM", "ok"),
            ("socket raw 6", "EPERM", "ok"),
            ("socket xdp", "EPERM", "ok"),
            // Since Linux 5.17 NET_RAW is enough to mark packets.
            ("mark of packets", "EPERM", "ok"),
            ("make the device null", "EPERM", "ok"),
            ("make the device of memory", "EPERM", "ok"),
            ("make the device of a disk", "EPERM", "ok"),
        ],
    },
    Reason {
        // A sysfs belongs to a network namespace. Under runc the pod has its own, and the whole
        // filesystem is read-only; the kernel checks that before it checks the file's mode. Here the
        // sysfs is the host's, and only the mount is read-only.
        why: "pods share the host's network, and with it the host's sysfs",
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
        // containerd lets every user of a pod bind low ports of the pod's own network. Here it is the
        // host's, whose setting is not a pod's to change.
        why: "pods share the host's network, and with it the host's low ports",
        of_the_machine: true,
        lines: &[("bind to a low port", "EACCES", "ok")],
    },
    Reason {
        // The profile allows the call. runc passes the profile to libseccomp, and Debian 12 has version
        // 2.5, which cannot name calls of Linux 6.10. runc then answers as an older kernel would.
        why: "the machine's libseccomp does not know these calls yet",
        of_the_machine: true,
        lines: &[("call mseal", "ok", "ENOSYS")],
    },
    Reason {
        // Pods of ours have their own cgroup namespace everywhere. With cgroup v1 containerd shares the
        // host's and leaves writable the tmpfs that holds the hierarchies; with v2 it does as we do.
        why: "with cgroup v1 our pods see their own cgroups only, all of them read-only",
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
];
