//! Keeps containers from writing to the program that starts them.
//!
//! Until its own program is loaded, a container's first process runs this one, and
//! `/proc/self/exe` leads to its file on the host, also as a container's command or as the
//! interpreter of a script. So the shim starts itself once more from a mount of that file that is
//! read-only and in no namespace.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{CWD, StatVfsMountFlags};
use rustix::mount::{OpenTreeFlags, open_tree};

use super::root::add_attributes;

const EXE: &str = "/proc/self/exe";
/// Set in the second life, so that there is no third.
const SEALED: &str = "LONGSHORE_SHIM_SEALED";

/// Returns when this program cannot be written through its own process; at first it starts anew.
///
/// # Errors
/// The program stays writable.
pub(super) fn seal() -> io::Result<()> {
    let name = std::env::args_os().next().unwrap_or_default();
    if rustix::fs::statvfs(EXE)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
        // Started through a descriptor, it would carry that one's number as its name.
        let name = std::path::Path::new(&name).file_name().unwrap_or_default().to_owned();
        return Ok(rustix::thread::set_name(&CString::new(name.into_vec())?)?);
    }
    if std::env::var_os(SEALED).is_some() {
        return Err(io::Error::other("it is writable although it was started read-only"));
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, EXE, flags)?;
    add_attributes(&tree, libc::MOUNT_ATTR_RDONLY)?;
    Err(start_anew(&tree))
}

/// Comes back only with an error.
#[expect(unsafe_code, reason = "execveat replaces the process image")]
fn start_anew(program: &OwnedFd) -> io::Error {
    let text = |text: std::ffi::OsString| CString::new(text.into_vec());
    let args: Result<Vec<CString>, _> = std::env::args_os().map(text).collect();
    let variables = std::env::vars_os().chain([(SEALED.into(), "1".into())]);
    let env: Result<Vec<CString>, _> = variables
        .map(|(mut pair, value)| {
            pair.push("=");
            pair.push(value);
            text(pair)
        })
        .collect();
    let (args, env) = match (args, env) {
        (Ok(args), Ok(env)) => (args, env),
        (Err(error), _) | (_, Err(error)) => return error.into(),
    };
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (args_raw, env_raw) = (pointers(&args), pointers(&env));
    // SAFETY: the path is a valid empty string; both lists end with a null pointer and outlive the
    // call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            args_raw.as_ptr(),
            env_raw.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}
