//! User, groups and capabilities of a container's first process.

use std::io;

use super::protocol::{ContainerRun, Seccomp};
use super::root::{SetupError, Step};

/// Linux capabilities by number.
const CAPABILITIES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What container runtimes leave a container by default, without `MKNOD` and `NET_RAW`: pods are in
/// the host's network, where a raw socket reads what others send.
const DEFAULTS: [&str; 12] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// `CAP_SYS_ADMIN`, which is nearly all of them.
pub const SYS_ADMIN: u64 = 1 << 21;
/// Every capability.
pub const ALL: u64 = (1 << CAPABILITIES.len()) - 1;

/// A name that no capability has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown capability {0:?}")]
pub struct UnknownCapability(String);

/// The capability set of a container: the usual set, minus `drop`, plus `add`.
///
/// # Errors
/// A name is that of no capability.
pub fn capability_set(add: &[String], drop: &[String]) -> Result<u64, UnknownCapability> {
    let mut set = DEFAULTS.iter().filter_map(|name| bit(name)).fold(0, |set, bit| set | bit);
    // As runtimes do it: "ALL" first, so that `drop: [ALL], add: [X]` leaves X.
    if names_all(add) {
        set = ALL;
    }
    if names_all(drop) {
        set = 0;
    }
    for name in drop.iter().filter(|name| !is_all(name)) {
        set &= !known(name)?;
    }
    for name in add.iter().filter(|name| !is_all(name)) {
        set |= known(name)?;
    }
    Ok(set)
}

fn names_all(list: &[String]) -> bool {
    list.iter().any(|name| is_all(name))
}

fn is_all(name: &str) -> bool {
    name.eq_ignore_ascii_case("ALL") || name.eq_ignore_ascii_case("CAP_ALL")
}

fn known(name: &str) -> Result<u64, UnknownCapability> {
    bit(name).ok_or_else(|| UnknownCapability(name.to_owned()))
}

fn bit(name: &str) -> Option<u64> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
    CAPABILITIES.iter().position(|known| *known == short).map(|index| 1 << index)
}

/// Gives up every right that the container shall not have. Irreversible.
///
/// The filter for system calls is set while the process still holds `CAP_SYS_ADMIN`: without
/// no-new-privileges the kernel takes none later. It allows all that is done after it.
///
/// # Errors
/// A right could not be given up; the process must not go on.
pub(super) fn drop_rights(run: &ContainerRun) -> Result<(), SetupError> {
    limit_capabilities(run.capabilities).step("limit capabilities")?;
    if run.no_new_privs {
        prctl(libc::PR_SET_NO_NEW_PRIVS, 1).step("forbid new rights")?;
    }
    if run.seccomp == Seccomp::RuntimeDefault && !run.privileged {
        super::seccomp::install(run)?;
    }
    become_user(run).step(format!("become user {}:{}", run.uid, run.gid))?;
    let held = if run.uid == 0 { run.capabilities } else { 0 };
    hold_capabilities(held).step("set capabilities")
}

/// Limits what any program of the container can ever hold.
fn limit_capabilities(keep: u64) -> io::Result<()> {
    for index in 0..64 {
        if keep & (1 << index) != 0 {
            continue;
        }
        match prctl(libc::PR_CAPBSET_DROP, index) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            other => other?,
        }
    }
    Ok(())
}

/// Holds these capabilities, as far as this process has them. None is inheritable or ambient: what
/// the agent was started with would otherwise pass the bounding set at the next exec.
fn hold_capabilities(held: u64) -> io::Result<()> {
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    rustix::thread::clear_ambient_capability_set()?;
    let has = capabilities(None)?.permitted;
    let held = CapabilitySet::from_bits_retain(held) & has;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: held, permitted: held, inheritable: none })?;
    Ok(())
}

#[expect(unsafe_code, reason = "prctl has no safe wrapper for these options")]
fn prctl(option: libc::c_int, value: libc::c_ulong) -> io::Result<()> {
    // SAFETY: these options take plain numbers.
    let result = unsafe { libc::prctl(option, value, 0, 0, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[expect(unsafe_code, reason = "libc's calls change the whole process, which is what is wanted")]
fn become_user(run: &ContainerRun) -> io::Result<()> {
    let check =
        |result: libc::c_int| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    let groups = supplementary_groups(run.gid, &run.groups);
    // SAFETY: the list outlives the call and its length is its own; the process has one thread.
    unsafe {
        check(libc::setgroups(groups.len(), groups.as_ptr()))?;
        check(libc::setresgid(run.gid, run.gid, run.gid))?;
        check(libc::setresuid(run.uid, run.uid, run.uid))
    }
}

/// The supplementary groups of a container, its own group among them, as container runtimes set
/// them. A program with the set-group-id bit takes the own group's place, and files that forbid
/// something to that group alone would allow it then.
fn supplementary_groups(own: u32, others: &[u32]) -> Vec<u32> {
    let mut groups = others.to_vec();
    if !groups.contains(&own) {
        groups.insert(0, own);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_default_set_is_the_runtimes_without_raw_sockets_and_devices() {
        let default = capability_set(&[], &[]).unwrap();
        // As /proc/self/status shows it; containerd's is a80425fb.
        assert_eq!(default, 0xa004_05fb);
        for name in ["NET_RAW", "MKNOD", "SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "SYS_MODULE"] {
            assert_eq!(default & bit(name).unwrap(), 0, "{name}");
        }
    }

    #[test]
    fn the_own_group_is_among_the_supplementary_ones_once() {
        for (own, others, expected) in
            [(0, &[][..], &[0][..]), (1000, &[5, 6], &[1000, 5, 6]), (5, &[6, 5], &[6, 5])]
        {
            assert_eq!(supplementary_groups(own, others), expected);
        }
    }

    #[test]
    fn sets_are_added_and_dropped_with_and_without_prefix() {
        let default = capability_set(&[], &[]).unwrap();
        for (add, drop, expected) in [
            (&[][..], &["ALL"][..], 0),
            (&["NET_ADMIN"], &["all"], 1 << 12),
            (&["CAP_SYS_TIME"], &[], default | 1 << 25),
            (&["cap_net_raw"], &[], default | 1 << 13),
            (&["ALL"], &[], ALL),
            (&["CAP_ALL"], &[], ALL),
            (&["ALL"], &["SYS_ADMIN"], ALL & !(1 << 21)),
            (&["ALL"], &["CAP_ALL"], 0),
            (&[], &["CHOWN", "CAP_KILL"], default & !(1 | 1 << 5)),
        ] {
            assert_eq!(capability_set(&list(add), &list(drop)), Ok(expected), "{add:?} {drop:?}");
        }
        let unknown = UnknownCapability("NONSENSE".to_owned());
        assert_eq!(unknown.to_string(), "unknown capability \"NONSENSE\"");
        assert_eq!(capability_set(&list(&["NONSENSE"]), &[]), Err(unknown.clone()));
        assert_eq!(capability_set(&[], &list(&["NONSENSE"])), Err(unknown));
    }
}
