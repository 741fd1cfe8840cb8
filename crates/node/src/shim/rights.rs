//! User, groups and capabilities of a container's first process.

use std::io;

use super::protocol::ContainerRun;
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

/// What container runtimes leave a container by default.
const DEFAULTS: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// Every capability.
pub const ALL: u64 = (1 << CAPABILITIES.len()) - 1;

/// The capability set of a container: the usual set, minus `drop`, plus `add`.
///
/// # Errors
/// The name of a capability that does not exist.
pub fn capability_set(add: &[String], drop: &[String]) -> Result<u64, String> {
    let mut set = DEFAULTS.iter().filter_map(|name| bit(name)).fold(0, |set, bit| set | bit);
    // As runtimes do it: "ALL" first, so that `drop: [ALL], add: [X]` leaves X.
    if names(add, "ALL") {
        set = ALL;
    }
    if names(drop, "ALL") {
        set = 0;
    }
    for name in drop.iter().filter(|name| !is_all(name)) {
        set &= !bit(name).ok_or_else(|| name.clone())?;
    }
    for name in add.iter().filter(|name| !is_all(name)) {
        set |= bit(name).ok_or_else(|| name.clone())?;
    }
    Ok(set)
}

fn names(list: &[String], wanted: &str) -> bool {
    list.iter().any(|name| name.eq_ignore_ascii_case(wanted))
}

fn is_all(name: &str) -> bool {
    name.eq_ignore_ascii_case("ALL")
}

fn bit(name: &str) -> Option<u64> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
    CAPABILITIES.iter().position(|known| *known == short).map(|index| 1 << index)
}

/// Gives up every right that the container shall not have. Irreversible.
///
/// # Errors
/// A right could not be given up; the process must not go on.
pub fn drop_rights(run: &ContainerRun) -> Result<(), SetupError> {
    limit_capabilities(run.capabilities).step("limit capabilities")?;
    become_user(run).step(format!("become user {}:{}", run.uid, run.gid))?;
    if run.no_new_privs {
        prctl(libc::PR_SET_NO_NEW_PRIVS, 1).step("forbid new rights")?;
    }
    // The shim is the only one who knows how a container ended; without it none may run on.
    // Set last, because a change of user clears it.
    prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong).step("tie to the shim")
}

// For user 0 an exec gives exactly the bounding set, so limiting that is enough; for others the
// change of user clears everything.
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
    // SAFETY: the list outlives the call and its length is its own; the process has one thread.
    unsafe {
        check(libc::setgroups(run.groups.len(), run.groups.as_ptr()))?;
        check(libc::setresgid(run.gid, run.gid, run.gid))?;
        check(libc::setresuid(run.uid, run.uid, run.uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn sets() {
        let default = capability_set(&[], &[]).unwrap();
        assert_eq!(default & bit("SYS_ADMIN").unwrap(), 0);
        assert_ne!(default & bit("CHOWN").unwrap(), 0);
        assert_eq!(capability_set(&[], &list(&["ALL"])), Ok(0));
        assert_eq!(capability_set(&list(&["NET_ADMIN"]), &list(&["all"])), Ok(1 << 12));
        assert_eq!(capability_set(&list(&["CAP_SYS_TIME"]), &[]), Ok(default | 1 << 25));
        assert_eq!(capability_set(&list(&["ALL"]), &[]), Ok(ALL));
        assert_eq!(capability_set(&list(&["NONSENSE"]), &[]), Err("NONSENSE".to_owned()));
    }
}
