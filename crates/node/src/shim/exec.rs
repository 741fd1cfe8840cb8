//! A process beside the container's own (`exec`).
//!
//! It is in the container's namespaces and cgroups, and holds no more rights than the container's first process:
//! the same filter for system calls, capabilities, user and groups, set by the same functions.
//!
//! Unlike that one it is not alone in its pid namespace. Until its own program is loaded it is a copy of the
//! shim, so it forbids others to look into it before it gives rights up, and holds nothing of the shim's open.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Uid, fchown};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, kill_process_group, pidfd_open,
    set_dumpable_behavior, waitpid,
};
use rustix::thread::{
    LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space, move_into_thread_name_spaces,
};

use super::guard::fork;
use super::protocol::{ContainerRun, ExecStart, session_members};
use super::rights::drop_rights;
use super::root::{SetupError, Step};
use super::spawn::{
    close_others, execute, exit_now, find_program, join_cgroups, leave_keyring, reset_signals,
    set_nonblocking,
};
use super::terminal;

/// Where the standard streams of the process lead.
pub(super) enum Stdio {
    /// Each to the descriptor, or to the null device.
    Pipes([Option<OwnedFd>; 3]),
    /// To a terminal whose other end is sent through this socket.
    Terminal(OwnedFd),
}

impl Stdio {
    /// From what came with the request, in the order of the streams.
    pub(super) fn of(start: &ExecStart, received: Vec<OwnedFd>, client: OwnedFd) -> Self {
        if start.tty {
            return Self::Terminal(client);
        }
        let mut received = received.into_iter();
        Self::Pipes(
            [start.stdin, start.stdout, start.stderr]
                .map(|wanted| if wanted { received.next() } else { None }),
        )
    }

    fn descriptors(&self) -> Vec<&OwnedFd> {
        match self {
            Self::Pipes(pipes) => pipes.iter().flatten().collect(),
            Self::Terminal(socket) => vec![socket],
        }
    }
}

/// A process that runs beside a container.
pub(super) struct Exec {
    /// The connection that asked for it; the process ends with it.
    pub client: u64,
    pid: Pid,
    pub pidfd: OwnedFd,
    pub setup: Option<File>,
    setup_text: Vec<u8>,
}

/// How it ended.
pub(super) enum End {
    Exited(i32),
    NotStarted(String),
}

impl Exec {
    /// Starts a process in the container that `container` is the first process of.
    ///
    /// # Errors
    /// There is no process.
    pub(super) fn start(
        run: &ContainerRun,
        container: &OwnedFd,
        stdio: Stdio,
        client: u64,
    ) -> io::Result<Self> {
        let (setup, setup_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let Some(pid) = fork_beside(container)? else {
            let mut keep = stdio.descriptors();
            keep.extend([container, &setup_write]);
            close_others(&keep);
            let error = become_process(run, container, stdio);
            // The shim reports the text; if even this fails there is nobody left to tell.
            let _ = File::from(setup_write).write_all(error.to_string().as_bytes());
            exit_now(128);
        };
        let watched = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from);
        match watched.and_then(|pidfd| set_nonblocking(&setup).map(|()| pidfd)) {
            Ok(pidfd) => {
                let setup = Some(File::from(setup));
                Ok(Self { client, pid, pidfd, setup, setup_text: Vec::new() })
            }
            Err(error) => {
                // Nobody would see its end.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                let _ = waitpid(Some(pid), WaitOptions::empty());
                Err(error)
            }
        }
    }

    /// Reads why it could not be started.
    pub(super) fn hear(&mut self) {
        if let Some(setup) = &mut self.setup {
            match setup.read_to_end(&mut self.setup_text) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => self.setup = None,
            }
        }
    }

    /// Reaps the process when it has ended.
    pub(super) fn ended(&mut self) -> Option<End> {
        let (_, status) = waitpid(Some(self.pid), WaitOptions::NOHANG).ok()??;
        self.hear();
        if !self.setup_text.is_empty() {
            return Some(End::NotStarted(String::from_utf8_lossy(&self.setup_text).into_owned()));
        }
        let signal = status.terminating_signal().unwrap_or(0);
        Some(End::Exited(status.exit_status().unwrap_or(128 + signal)))
    }

    /// Ends the process and all of its session. What has made a session of its own goes on, as a daemon does
    /// when its terminal is closed.
    pub(super) fn kill(&self) {
        // Not reaped yet, so the number is still ours; one that has exited is no error.
        let _ = kill_process_group(self.pid, Signal::KILL);
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
        for member in session_members(self.pid.as_raw_nonzero().get()) {
            let _ = rustix::process::kill_process(member, Signal::KILL);
        }
    }
}

/// Forks into the pid namespace of the container; `None` in the child.
fn fork_beside(container: &OwnedFd) -> io::Result<Option<Pid>> {
    let home = File::open("/proc/self/ns/pid")?;
    move_into_thread_name_spaces(container.as_fd(), ThreadNameSpaceType::PROCESS_ID)?;
    let forked = fork();
    if matches!(forked, Ok(None)) {
        return forked;
    }
    if let Err(error) = move_into_link_name_space(home.as_fd(), Some(LinkNameSpaceType::ProcessID))
    {
        // Each later container of the pod would be inside this one.
        eprintln!("cannot come back from a container's pid namespace: {error}");
        std::process::exit(1);
    }
    forked
}

/// Never comes back, unless something failed.
fn become_process(run: &ContainerRun, container: &OwnedFd, stdio: Stdio) -> SetupError {
    match prepare(run, container, stdio).and_then(|program| execute(&program, run)) {
        Err(error) => error,
        Ok(never) => match never {},
    }
}

fn prepare(run: &ContainerRun, container: &OwnedFd, stdio: Stdio) -> Result<PathBuf, SetupError> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).step("keep others out")?;
    rustix::process::setsid().step("start a session")?;
    join_cgroups(run)?;
    leave_keyring().step("leave the host's keys")?;
    let spaces = ThreadNameSpaceType::MOUNT | ThreadNameSpaceType::CONTROL_GROUP;
    move_into_thread_name_spaces(container.as_fd(), spaces).step("enter the container")?;
    match stdio {
        Stdio::Pipes(pipes) => redirect(pipes, run.uid)?,
        Stdio::Terminal(socket) => terminal::connect(&socket, run.uid)?,
    }
    std::env::set_current_dir(&run.working_dir)
        .step(format!("enter {}", run.working_dir.display()))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    reset_signals();
    drop_rights(run)?;
    find_program(run)
}

/// Connects the standard streams; those that are not wanted with the container's null device.
fn redirect([stdin, stdout, stderr]: [Option<OwnedFd>; 3], uid: u32) -> Result<(), SetupError> {
    let null = File::options().read(true).write(true).open("/dev/null").step("open /dev/null")?;
    for pipe in [&stdin, &stdout, &stderr].into_iter().flatten() {
        // The owner reopens it as /dev/stdout.
        fchown(pipe, Some(Uid::from_raw(uid)), None).step("own the streams")?;
    }
    let or_null = |pipe: &Option<OwnedFd>| {
        pipe.as_ref().map_or(null.as_fd(), AsFd::as_fd).try_clone_to_owned()
    };
    rustix::stdio::dup2_stdin(or_null(&stdin).step("redirect input")?).step("redirect input")?;
    rustix::stdio::dup2_stdout(or_null(&stdout).step("redirect output")?)
        .step("redirect output")?;
    rustix::stdio::dup2_stderr(or_null(&stderr).step("redirect errors")?).step("redirect errors")
}
