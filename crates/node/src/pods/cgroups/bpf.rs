//! The program with which a cgroup of the unified hierarchy judges devices.
//!
//! It is made here instruction by instruction: one block per rule, which allows the access or goes on to
//! the next block; the end refuses.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use super::devices::{ALL, Rule};

/// Registers. The kernel puts the address of what it shows a program into the first but one, and
/// takes the answer from the first.
const ANSWER: u64 = 0;
const CONTEXT: u64 = 1;
const KIND: u64 = 2;
const ACCESS: u64 = 3;
const MAJOR: u64 = 4;
const MINOR: u64 = 5;

/// Codes of the few instructions in use.
const LOAD: u64 = 0x61;
const AND: u64 = 0x54;
const SHIFT_RIGHT: u64 = 0x74;
const SET: u64 = 0xB7;
const COPY: u64 = 0xBC;
const JUMP_UNLESS_EQUAL: u64 = 0x55;
const EXIT: u64 = 0x95;

/// Makes the program that allows what one of the rules does.
pub(super) fn program(rules: &[Rule]) -> Vec<u64> {
    // The first word holds the kind in its low and the access in its high half.
    let mut program = vec![
        instruction(LOAD, KIND, CONTEXT, 0, 0),
        instruction(COPY, ACCESS, KIND, 0, 0),
        instruction(AND, KIND, 0, 0, 0xFFFF),
        instruction(SHIFT_RIGHT, ACCESS, 0, 0, 16),
        instruction(LOAD, MAJOR, CONTEXT, 4, 0),
        instruction(LOAD, MINOR, CONTEXT, 8, 0),
    ];
    for rule in rules {
        program.extend(block(rule));
    }
    program.extend(answer(0));
    program
}

fn instruction(code: u64, to: u64, from: u64, offset: u64, value: u32) -> u64 {
    code | to << 8 | from << 12 | offset << 16 | u64::from(value) << 32
}

fn answer(value: u32) -> [u64; 2] {
    [instruction(SET, ANSWER, 0, 0, value), instruction(EXIT, 0, 0, 0, 0)]
}

fn block(rule: &Rule) -> Vec<u64> {
    let mut made = vec![unless_equal(KIND, rule.kind as u32)];
    if rule.access != ALL {
        made.push(instruction(COPY, ANSWER, ACCESS, 0, 0));
        made.push(instruction(AND, ANSWER, 0, 0, !rule.access));
        made.push(unless_equal(ANSWER, 0));
    }
    made.extend(rule.major.map(|major| unless_equal(MAJOR, major)));
    made.extend(rule.minor.map(|minor| unless_equal(MINOR, minor)));
    made.extend(answer(1));
    let end = made.len();
    for (at, one) in made.iter_mut().enumerate().filter(|(_, one)| is_jump(**one)) {
        *one |= ((end - at - 1) as u64) << 16;
    }
    made
}

/// Leaves the block; where that is, is filled in when the block is whole.
fn unless_equal(register: u64, value: u32) -> u64 {
    instruction(JUMP_UNLESS_EQUAL, register, 0, 0, value)
}

fn is_jump(instruction: u64) -> bool {
    instruction & 0xFF == JUMP_UNLESS_EQUAL
}

/// Arguments of the system call `bpf`, as far as they are used.
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
}

#[repr(C)]
struct Attach {
    cgroup: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

/// Attaches the program to a cgroup in place of an earlier one. It stays until the cgroup goes.
pub(super) fn attach(program: &[u64], cgroup: &Path) -> io::Result<()> {
    const PROG_LOAD: libc::c_int = 5;
    const PROG_ATTACH: libc::c_int = 8;
    const TYPE_CGROUP_DEVICE: u32 = 15;
    const ATTACH_CGROUP_DEVICE: u32 = 6;
    let load = Load {
        kind: TYPE_CGROUP_DEVICE,
        count: u32::try_from(program.len()).map_err(io::Error::other)?,
        instructions: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
    };
    let loaded = own(bpf(PROG_LOAD, &load)?);
    let cgroup = File::open(cgroup)?;
    let attach = Attach {
        cgroup: number(cgroup.as_raw_fd())?,
        program: number(loaded.as_raw_fd())?,
        kind: ATTACH_CGROUP_DEVICE,
        // No cgroup below may add a program of its own; those above hold as well.
        flags: 0,
    };
    bpf(PROG_ATTACH, &attach).map(drop)
}

fn number(fd: i32) -> io::Result<u32> {
    u32::try_from(fd).map_err(io::Error::other)
}

#[expect(unsafe_code, reason = "the number was just given out by the kernel")]
fn own(fd: i32) -> OwnedFd {
    // SAFETY: nothing else knows the descriptor.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[expect(unsafe_code, reason = "bpf has no safe wrapper")]
fn bpf<T>(command: libc::c_int, arguments: &T) -> io::Result<i32> {
    // SAFETY: the arguments and what they point to outlive the call, and the size is their own.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(arguments), size_of::<T>())
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(result).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::super::devices::{Devices, Kind, MAKE, READ, WRITE};
    use super::*;

    /// What the kernel would answer, for the few instructions in use.
    fn decide(program: &[u64], kind: Kind, access: u32, major: u32, minor: u32) -> u64 {
        let context = [u64::from(access) << 16 | kind as u64, major.into(), minor.into()];
        let (mut at, mut registers) = (0, [0; 6]);
        loop {
            let one = program[at];
            let register = |shift: u32| usize::try_from(one >> shift & 0xF).unwrap();
            let (to, from, value) = (register(8), register(12), one >> 32);
            let offset = usize::try_from(one >> 16 & 0xFFFF).unwrap();
            at += 1;
            match one & 0xFF {
                LOAD => registers[to] = context[offset / 4],
                AND => registers[to] &= value,
                SHIFT_RIGHT => registers[to] >>= value,
                SET => registers[to] = value,
                COPY => registers[to] = registers[from],
                JUMP_UNLESS_EQUAL if registers[to] != value => at += offset,
                JUMP_UNLESS_EQUAL => {}
                EXIT => return registers[0],
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn the_usual_devices_are_open_and_others_can_only_be_made() {
        let Devices::Listed(mut rules) = Devices::with_volumes(&[]).unwrap() else {
            panic!("a list")
        };
        let own =
            |minor, access| Rule { kind: Kind::Block, major: Some(7), minor: Some(minor), access };
        rules.extend([own(300, READ | WRITE), own(301, READ)]);
        let program = program(&rules);
        for (kind, access, major, minor, allowed) in [
            (Kind::Char, READ | WRITE, 1, 3, true),
            (Kind::Char, READ, 1, 9, true),
            (Kind::Char, READ | WRITE, 5, 2, true),
            (Kind::Char, READ | WRITE, 136, 1234, true),
            (Kind::Char, MAKE, 1, 1, true),
            (Kind::Block, MAKE, 8, 0, true),
            (Kind::Char, READ, 1, 1, false),
            (Kind::Char, READ, 1, 2, false),
            (Kind::Char, MAKE | READ, 1, 1, false),
            (Kind::Char, READ, 5, 1, false),
            (Kind::Char, READ | WRITE, 10, 200, false),
            (Kind::Block, READ, 1, 3, false),
            (Kind::Block, READ, 7, 0, false),
            (Kind::Block, READ | WRITE, 7, 300, true),
            (Kind::Block, READ, 7, 301, true),
            (Kind::Block, WRITE, 7, 301, false),
            (Kind::Block, READ | WRITE, 7, 301, false),
            (Kind::Char, READ, 7, 300, false),
        ] {
            let found = decide(&program, kind, access, major, minor);
            assert_eq!(found, u64::from(allowed), "{kind:?} {major}:{minor} {access}");
        }
    }

    #[test]
    fn without_rules_everything_is_refused() {
        assert_eq!(decide(&program(&[]), Kind::Char, READ, 1, 3), 0);
    }
}
