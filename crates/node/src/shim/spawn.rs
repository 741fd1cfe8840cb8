//! Starts one container: a child in its own mount, pid and cgroup namespaces, and in the pod's
//! UTS and IPC namespaces.

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};
use rustix::thread::UnshareFlags;

use super::guard::Guard;
use super::protocol::ContainerRun;
use super::rights::drop_rights;
use super::root::{SetupError, Step, enter, make_dir};
use super::sandbox::unshare;
use super::terminal;

/// A started child and what it can be heard through.
pub(super) struct Child {
    pub pid: i32,
    pub pidfd: OwnedFd,
    /// Says why the program could not be started; end of file means that it runs.
    pub setup: OwnedFd,
    /// Leads to its standard input, if it shall have one.
    pub stdin: Option<OwnedFd>,
    pub output: Output,
}

/// Where a container's output comes from.
pub(super) enum Output {
    /// Standard output and errors.
    Pipes(OwnedFd, OwnedFd),
    /// A terminal, which comes through this socket.
    Terminal(OwnedFd),
}

/// The child's ends.
enum Stdio {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Terminal(OwnedFd),
}

impl Stdio {
    /// Makes the streams that the container asks for, with the shim's ends.
    fn make(run: &ContainerRun) -> io::Result<(Self, Option<OwnedFd>, Output)> {
        if run.tty {
            let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
            let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
            return Ok((Self::Terminal(theirs), None, Output::Terminal(ours)));
        }
        let (stdin, input) = match run.stdin {
            true => pipe_with(PipeFlags::CLOEXEC).map(|(read, write)| (Some(read), Some(write)))?,
            false => (None, None),
        };
        let (stdout_read, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr_read, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        let output = Output::Pipes(stdout_read, stderr_read);
        Ok((Self::Pipes { stdin, stdout, stderr }, input, output))
    }

    fn descriptors(&self) -> Vec<&OwnedFd> {
        match self {
            Self::Pipes { stdin, stdout, stderr } => stdin.iter().chain([stdout, stderr]).collect(),
            Self::Terminal(socket) => vec![socket],
        }
    }
}

/// Forks into new namespaces. `base` is an empty directory for the child's root.
///
/// # Errors
/// No child was made, or it could not be guarded and has ended.
pub(super) fn spawn(
    run: &ContainerRun,
    base: &Path,
    shm: OwnedFd,
    guard: &Guard,
) -> io::Result<Child> {
    let (go, go_write) = pipe_with(PipeFlags::CLOEXEC)?;
    let (setup, setup_write) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stdio, stdin, output) = Stdio::make(run)?;
    let pid = fork_into_namespaces()?;
    if pid == 0 {
        let mut keep = stdio.descriptors();
        keep.extend([&go, &setup_write, &shm]);
        close_others(&keep);
        wait_for_guard(go);
        let error = become_container(run, base, shm, &stdio);
        let mut pipe = std::fs::File::from(setup_write);
        // The parent reports the text; if even this fails there is nobody left to tell.
        let _ = pipe.write_all(error.to_string().as_bytes());
        exit_now(128);
    }
    let pidfd = hand_to_guard(pid, guard, go_write)?;
    Ok(Child { pid, pidfd, setup, stdin, output })
}

/// Lets the child go on once it is guarded; otherwise it ends by itself.
fn hand_to_guard(pid: i32, guard: &Guard, go: OwnedFd) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("no process id"))?;
    let guarded = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from).and_then(|pidfd| {
        guard.watch(&pidfd)?;
        rustix::io::write(&go, b"g")?;
        Ok(pidfd)
    });
    if guarded.is_err() {
        drop(go);
        waitpid(Some(pid), WaitOptions::empty())?;
    }
    guarded
}

/// Ends the process when the shim does before the guard knows it.
fn wait_for_guard(go: OwnedFd) {
    let mut byte = [0; 1];
    match std::fs::File::from(go).read_exact(&mut byte) {
        Ok(()) => {}
        Err(_) => exit_now(128),
    }
}

#[expect(unsafe_code, reason = "fork into namespaces has no safe wrapper")]
fn fork_into_namespaces() -> io::Result<i32> {
    let flags = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::SIGCHLD;
    // SAFETY: without CLONE_VM and with a null stack this is a fork; the shim has one thread, so
    // the child inherits no lock held by another.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if pid < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(i32::try_from(pid).expect("process ids fit"))
    }
}

/// Closes what the child has from the shim: logs of other containers, the agent's connection.
/// They would be closed at the exec, but a working directory or a mount path can name them before.
#[expect(unsafe_code, reason = "close_range has no safe wrapper")]
pub(super) fn close_others(keep: &[&OwnedFd]) {
    let mut keep: Vec<_> = keep.iter().map(|fd| fd.as_raw_fd()).collect();
    keep.sort_unstable();
    let mut first = 3;
    for last in keep.iter().map(|fd| fd - 1).chain([libc::c_int::MAX]) {
        if first <= last {
            // SAFETY: the child never uses or drops the values that own these.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
        first = last.saturating_add(2);
    }
}

#[expect(unsafe_code, reason = "a forked child must not run the parent's exit handlers")]
pub(super) fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process, nothing else.
    unsafe { libc::_exit(code) }
}

/// Never comes back, unless something failed.
fn become_container(run: &ContainerRun, base: &Path, shm: OwnedFd, stdio: &Stdio) -> SetupError {
    match prepare(run, base, shm, stdio).and_then(|program| execute(&program, run)) {
        Err(error) => error,
        Ok(never) => match never {},
    }
}

fn prepare(
    run: &ContainerRun,
    base: &Path,
    shm: OwnedFd,
    stdio: &Stdio,
) -> Result<PathBuf, SetupError> {
    redirect(stdio)?;
    rustix::process::setsid().step("start a session")?;
    join_cgroups(run)?;
    // Only now: their roots are the cgroups that the process is in.
    unshare(UnshareFlags::NEWCGROUP).step("make a cgroup namespace")?;
    leave_keyring().step("leave the host's keys")?;
    enter(run, base, shm)?;
    connect_input(stdio, run.uid)?;
    make_dir(&run.working_dir)?;
    std::env::set_current_dir(&run.working_dir)
        .step(format!("enter {}", run.working_dir.display()))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    reset_signals();
    drop_rights(run)?;
    find_program(run)
}

/// Joins the container's cgroups.
pub(super) fn join_cgroups(run: &ContainerRun) -> Result<(), SetupError> {
    for cgroup in &run.sandbox.cgroups {
        // Zero stands for the writer, whatever its number is in which namespace.
        std::fs::write(cgroup.dir.join("cgroup.procs"), "0")
            .step(format!("join the cgroup {}", cgroup.dir.display()))?;
    }
    Ok(())
}

/// Takes a new session keyring: the one of whoever started the agent would be shared by all pods.
#[expect(unsafe_code, reason = "keyctl has no safe wrapper")]
pub(super) fn leave_keyring() -> io::Result<()> {
    const JOIN_SESSION: libc::c_long = 1;
    // SAFETY: a null name asks for a keyring without one.
    let result = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION, 0, 0, 0, 0) };
    let error = io::Error::last_os_error();
    // A kernel without keys, or an agent that may not use them: there is nothing to leave.
    let harmless = matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM));
    if result < 0 && !harmless { Err(error) } else { Ok(()) }
}

/// Leaves the shim's streams.
fn redirect(stdio: &Stdio) -> Result<(), SetupError> {
    let null =
        std::fs::File::options().read(true).write(true).open("/dev/null").step("open /dev/null")?;
    let null = OwnedFd::from(null);
    rustix::stdio::dup2_stdin(&null).step("redirect input")?;
    let (stdout, stderr) = match stdio {
        Stdio::Pipes { stdout, stderr, .. } => (stdout, stderr),
        Stdio::Terminal(_) => (&null, &null),
    };
    rustix::stdio::dup2_stdout(stdout).step("redirect output")?;
    rustix::stdio::dup2_stderr(stderr).step("redirect errors")
}

/// Connects what must come from the container's own devices: the host's would lead to its mounts.
fn connect_input(stdio: &Stdio, uid: u32) -> Result<(), SetupError> {
    match stdio {
        Stdio::Terminal(socket) => terminal::connect(socket, uid),
        Stdio::Pipes { stdin: Some(pipe), .. } => {
            rustix::stdio::dup2_stdin(pipe).step("redirect input")
        }
        Stdio::Pipes { stdin: None, .. } => {
            let null = std::fs::File::open("/dev/null").step("open /dev/null")?;
            rustix::stdio::dup2_stdin(&null).step("redirect input")
        }
    }
}

/// Gives every signal its default: what the shell that started the agent ignored (`nohup`) is not the container's.
#[expect(unsafe_code, reason = "signal dispositions and masks have no safe wrapper")]
pub(super) fn reset_signals() {
    // SAFETY: plain libc calls on this process's own signal state; the set is initialised first.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        // The kernel's own structure, all zero: the default, no flags, no mask. The C library's function leaves out
        // the two signals that it uses itself.
        let default = [0_u64; 4];
        for signal in 1..=libc::SIGRTMAX() {
            // Refused for KILL and STOP, which cannot be ignored anyway.
            let old = std::ptr::null_mut::<u64>();
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), old, size_of::<u64>());
        }
    }
}

pub(super) fn find_program(run: &ContainerRun) -> Result<PathBuf, SetupError> {
    let not_found = |name: &str| {
        io::Error::new(io::ErrorKind::NotFound, format!("{name:?}: executable file not found"))
    };
    let Some(name) = run.argv.first() else {
        return Err(not_found("")).step("exec");
    };
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let path =
        run.env.iter().find(|(key, _)| key == "PATH").map_or("", |(_, value)| value.as_str());
    std::env::split_paths(path)
        .map(|dir| dir.join(name))
        .find(|file| {
            rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file()
        })
        .ok_or_else(|| not_found(name))
        .step("exec")
}

pub(super) enum Never {}

#[expect(unsafe_code, reason = "execve replaces the process image")]
pub(super) fn execute(program: &Path, run: &ContainerRun) -> Result<Never, SetupError> {
    use std::os::unix::ffi::OsStrExt;
    let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::from).step("exec");
    let file = text(program.as_os_str().as_bytes())?;
    let args = run.argv.iter().map(|arg| text(arg.as_bytes())).collect::<Result<Vec<_>, _>>()?;
    let env = run
        .env
        .iter()
        .map(|(key, value)| text(format!("{key}={value}").as_bytes()))
        .collect::<Result<Vec<_>, _>>()?;
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (args_raw, env_raw) = (pointers(&args), pointers(&env));
    // SAFETY: both lists end with a null pointer and outlive the call.
    unsafe { libc::execve(file.as_ptr(), args_raw.as_ptr(), env_raw.as_ptr()) };
    Err(io::Error::last_os_error()).step(format!("exec {}", program.display()))
}

/// Makes reads return at once when there is nothing to read.
///
/// # Errors
/// The descriptor cannot be changed.
pub(super) fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?;
    debug_assert!(fd.as_raw_fd() >= 0);
    Ok(())
}
