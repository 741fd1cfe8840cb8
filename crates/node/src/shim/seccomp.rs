//! Which system calls a container may make: the list that container runtimes use by default.
//!
//! The filter is a small program for the kernel, made here instruction by instruction, because it
//! answers in two ways: a call that is known and refused fails with `EPERM`; one that is newer than
//! the list fails with `ENOSYS`, and so does `clone3`, whose flags cannot be judged, so that C
//! libraries fall back to what they did before. Calls of the 32-bit and x32 interfaces are all
//! refused: their numbers mean other calls.

use std::io;

use super::protocol::ContainerRun;
use super::root::{SetupError, Step};
use super::syscalls::{ALWAYS, BY_CAPABILITY, NEWEST};

/// Flags of `clone` that make namespaces, all but the one for time, which shares its bit with a
/// signal number.
const NAMESPACES: u32 = 0x7E02_0000;
/// Sockets to the machine that this one runs on.
const AF_VSOCK: u32 = 40;
/// Sockets into the kernel's cryptography.
const AF_ALG: u32 = 38;
/// The newest kind of sockets that container runtimes know.
const AF_MCTP: u32 = 45;
/// Values of `personality` that change nothing of security.
const PERSONALITIES: [u32; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xFFFF_FFFF];

const CAP_SYS_ADMIN: u32 = 21;

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xC000_00B7;

const ALLOW: u32 = 0x7FFF_0000;
const ERRNO: u32 = 0x0005_0000;
const EPERM: u32 = ERRNO | libc::EPERM as u32;
const ENOSYS: u32 = ERRNO | libc::ENOSYS as u32;

/// Offsets in what the kernel shows a filter.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
/// The low half: both machines are little-endian.
const FIRST_ARGUMENT: u32 = 16;

/// Makes the filter of a container with these capabilities.
fn filter(capabilities: u64) -> Vec<libc::sock_filter> {
    let mut program = Program::default();
    program.load(ARCH);
    program.unless(AUDIT_ARCH, EPERM);
    program.load(NUMBER);
    // The x32 interface marks its numbers with this bit.
    program.at_least(0x4000_0000, ENOSYS);
    program.on(libc::SYS_clone3, ENOSYS);
    for number in ALWAYS {
        program.on(*number, ALLOW);
    }
    for (capability, numbers) in BY_CAPABILITY {
        if capabilities & (1 << capability) != 0 {
            for number in *numbers {
                program.on(*number, ALLOW);
            }
        }
    }
    if capabilities & (1 << CAP_SYS_ADMIN) == 0 {
        program.judge(libc::SYS_clone, |program| {
            program.any_bit(NAMESPACES, EPERM);
            program.give(ALLOW);
        });
    } else {
        program.on(libc::SYS_clone, ALLOW);
    }
    program.judge(libc::SYS_socket, |program| {
        program.equal(AF_VSOCK, EPERM);
        program.equal(AF_ALG, EPERM);
        program.at_least(AF_MCTP + 1, EPERM);
        program.give(ALLOW);
    });
    program.judge(libc::SYS_personality, |program| {
        for value in PERSONALITIES {
            program.equal(value, ALLOW);
        }
        program.give(EPERM);
    });
    program.at_least(NEWEST + 1, ENOSYS);
    program.give(EPERM);
    program.0
}

/// A filter under construction. Every condition is followed by its own answer, so no jump is far.
#[derive(Default)]
struct Program(Vec<libc::sock_filter>);

impl Program {
    fn push(&mut self, code: u32, jt: u8, jf: u8, k: u32) {
        let code = u16::try_from(code).expect("codes are small");
        self.0.push(libc::sock_filter { code, jt, jf, k });
    }

    fn load(&mut self, offset: u32) {
        self.push(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    }

    fn give(&mut self, answer: u32) {
        self.push(libc::BPF_RET | libc::BPF_K, 0, 0, answer);
    }

    fn equal(&mut self, value: u32, answer: u32) {
        self.push(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, value);
        self.give(answer);
    }

    fn unless(&mut self, value: u32, answer: u32) {
        self.push(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, value);
        self.give(answer);
    }

    fn at_least(&mut self, value: u32, answer: u32) {
        self.push(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, value);
        self.give(answer);
    }

    fn any_bit(&mut self, mask: u32, answer: u32) {
        self.push(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, mask);
        self.give(answer);
    }

    fn on(&mut self, number: libc::c_long, answer: u32) {
        self.equal(u32::try_from(number).expect("numbers are small"), answer);
    }

    /// Judges a call by its first argument. `rules` must always give an answer.
    fn judge(&mut self, number: libc::c_long, rules: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        inner.load(FIRST_ARGUMENT);
        rules(&mut inner);
        let length = u8::try_from(inner.0.len()).expect("rules are short");
        let number = u32::try_from(number).expect("numbers are small");
        self.push(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, length, number);
        self.0.extend(inner.0);
    }
}

/// Installs the filter. The process has no-new-privileges or still holds `CAP_SYS_ADMIN`.
///
/// # Errors
/// The kernel does not take it; the process must not go on.
#[expect(unsafe_code, reason = "seccomp has no safe wrapper")]
pub(super) fn install(run: &ContainerRun) -> Result<(), SetupError> {
    let mut filter = filter(run.capabilities);
    let length = u16::try_from(filter.len()).expect("the filter is short");
    let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its instructions outlive the call, and the length is its own.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    };
    let result = if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    result.step("limit system calls")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would do, for the few instructions in use.
    fn decide(filter: &[libc::sock_filter], arch: u32, number: i64, args: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend_from_slice(&u32::try_from(number).unwrap().to_le_bytes());
        data.extend_from_slice(&arch.to_le_bytes());
        data.extend_from_slice(&0u64.to_le_bytes());
        for arg in args {
            data.extend_from_slice(&arg.to_le_bytes());
        }
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let one = &filter[at];
            at += 1;
            let jump = |taken| usize::from(if taken { one.jt } else { one.jf });
            match u32::from(one.code) {
                0x20 => {
                    let offset = usize::try_from(one.k).unwrap();
                    accumulator = u32::from_le_bytes(data[offset..offset + 4].try_into().unwrap());
                }
                0x06 => return one.k,
                0x15 => at += jump(accumulator == one.k),
                0x35 => at += jump(accumulator >= one.k),
                0x45 => at += jump(accumulator & one.k != 0),
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn native(capabilities: u64, number: i64, first: u64) -> u32 {
        decide(&filter(capabilities), AUDIT_ARCH, number, [first, 0, 0, 0, 0, 0])
    }

    fn default_set() -> u64 {
        super::super::rights::capability_set(&[], &[]).unwrap()
    }

    #[test]
    fn ordinary_calls_are_allowed_and_those_that_reach_the_host_are_not() {
        for number in [
            libc::SYS_read,
            libc::SYS_execve,
            libc::SYS_openat,
            libc::SYS_futex,
            libc::SYS_ioctl,
            libc::SYS_setresuid,
            libc::SYS_setgroups,
            libc::SYS_capset,
            libc::SYS_prctl,
            libc::SYS_chroot,
            libc::SYS_name_to_handle_at,
            libc::SYS_mmap,
            libc::SYS_rseq,
        ] {
            assert_eq!(native(default_set(), number, 0), ALLOW, "{number}");
        }
        for number in [
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_request_key,
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_io_uring_setup,
            libc::SYS_io_uring_enter,
            libc::SYS_io_uring_register,
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_open_tree,
            libc::SYS_move_mount,
            libc::SYS_fsopen,
            libc::SYS_mount_setattr,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_pivot_root,
            libc::SYS_sethostname,
            libc::SYS_setdomainname,
            libc::SYS_userfaultfd,
            libc::SYS_kexec_load,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_delete_module,
            libc::SYS_reboot,
            libc::SYS_swapon,
            libc::SYS_swapoff,
            libc::SYS_settimeofday,
            libc::SYS_clock_settime,
            libc::SYS_acct,
            libc::SYS_quotactl,
            libc::SYS_open_by_handle_at,
            libc::SYS_fanotify_init,
            libc::SYS_lookup_dcookie,
            libc::SYS_vhangup,
            libc::SYS_syslog,
            libc::SYS_move_pages,
            libc::SYS_mbind,
        ] {
            assert_eq!(native(default_set(), number, 0), EPERM, "{number}");
        }
    }

    #[test]
    fn calls_that_are_newer_than_the_list_seem_not_to_exist() {
        const STATMOUNT: i64 = 457;
        assert_eq!(native(default_set(), libc::SYS_clone3, 0), ENOSYS);
        assert_eq!(native(default_set(), STATMOUNT, 0), ENOSYS);
        assert_eq!(native(default_set(), 5000, 0), ENOSYS);
    }

    #[test]
    fn arguments_are_judged() {
        let set = default_set();
        for (number, first, expected) in [
            (libc::SYS_clone, 17, ALLOW),
            (libc::SYS_clone, 0x3D_0F00, ALLOW),
            (libc::SYS_clone, 0x1000_0000 | 17, EPERM),
            (libc::SYS_clone, 0x0002_0000, EPERM),
            (libc::SYS_clone, 0x0200_0000, EPERM),
            (libc::SYS_clone, 0x4000_0000, EPERM),
            (libc::SYS_socket, 1, ALLOW),
            (libc::SYS_socket, 2, ALLOW),
            (libc::SYS_socket, 40, EPERM),
            (libc::SYS_socket, 38, EPERM),
            (libc::SYS_socket, 45, ALLOW),
            (libc::SYS_socket, 46, EPERM),
            (libc::SYS_personality, 0, ALLOW),
            (libc::SYS_personality, 0xFFFF_FFFF, ALLOW),
            (libc::SYS_personality, 0x0004_0000, EPERM),
            (libc::SYS_personality, 0x0040_0000, EPERM),
        ] {
            assert_eq!(native(set, number, first), expected, "{number} {first:#x}");
            // The kernel takes 32 bits of these, so the upper half changes nothing.
            let wide = first | 0xFFFF_0000_0000_0000;
            assert_eq!(native(set, number, wide), expected, "{number} {wide:#x}");
        }
    }

    #[test]
    fn a_capability_brings_its_calls() {
        let with = |capability: u32| default_set() | 1 << capability;
        for (capability, number) in [
            (21, libc::SYS_mount),
            (21, libc::SYS_unshare),
            (21, libc::SYS_sethostname),
            (2, libc::SYS_open_by_handle_at),
            (22, libc::SYS_reboot),
            (16, libc::SYS_init_module),
            (20, libc::SYS_acct),
            (25, libc::SYS_settimeofday),
            (34, libc::SYS_syslog),
        ] {
            assert_eq!(native(default_set(), number, 0), EPERM, "{number}");
            assert_eq!(native(with(capability), number, 0), ALLOW, "{number}");
        }
        assert_eq!(native(with(21), libc::SYS_clone, 0x1000_0000), ALLOW);
        assert_eq!(native(0, libc::SYS_chroot, 0), EPERM);
        // Not even then: what they reach has no namespace.
        for number in [libc::SYS_keyctl, libc::SYS_io_uring_setup, libc::SYS_kexec_load] {
            assert_eq!(native(super::super::rights::ALL, number, 0), EPERM, "{number}");
        }
    }

    #[test]
    fn other_interfaces_are_no_way_around() {
        let filter = filter(super::super::rights::ALL);
        for number in 0..500 {
            // 0x4000_0003 is i386, 0x4000_0028 is 32-bit ARM.
            for arch in [0x4000_0003, 0x4000_0028, 0] {
                assert_eq!(decide(&filter, arch, number, [0; 6]), EPERM, "{arch:#x} {number}");
            }
            let x32 = number | 0x4000_0000;
            assert_eq!(decide(&filter, AUDIT_ARCH, x32, [0; 6]), ENOSYS, "x32 {number}");
        }
    }
}
