//! Kills the pod's containers when the shim ends before them.
//!
//! The shim alone records how a container ended, so none may run on without it. The guard is a fork
//! of the shim outside of the containers' namespaces: a container can neither see nor end it. It holds
//! a pidfd of every container, and the end of the shim closes the socket between the two.
//!
//! A guard that was killed is replaced at once; when none can be started, the shim kills its containers.
//! When both are killed at the same moment, the agent kills what is left before it takes a volume away.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, WaitOptions, pidfd_send_signal, waitpid};

use super::descriptors;
use super::spawn::{close_others, exit_now};

/// The shim's side of its guard.
pub(super) struct Guard {
    pid: Pid,
    /// Closed to let the guard end.
    socket: Option<OwnedFd>,
}

impl Guard {
    /// Forks a guard that knows no container yet.
    ///
    /// # Errors
    /// There is no guard.
    pub(super) fn start() -> io::Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        match fork()? {
            Some(pid) => Ok(Self { pid, socket: Some(ours) }),
            None => {
                close_others(&[&theirs]);
                // Only what operators see of it depends on the name.
                let _ = rustix::thread::set_name(c"pod-guard");
                kill_all(watch_until_the_shim_ends(&theirs));
                exit_now(0)
            }
        }
    }

    /// Hands a container over. It ends with the shim from here on, also when the shim ends before the
    /// guard has read this.
    ///
    /// # Errors
    /// The guard does not have it.
    pub(super) fn watch(&self, container: &OwnedFd) -> io::Result<()> {
        let gone = || io::Error::other("the guard is gone");
        let socket = self.socket.as_ref().ok_or_else(gone)?;
        descriptors::send(socket, b"c", &[container.as_fd()]).map(drop)
    }

    /// Becomes readable when the guard has ended: it never writes.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn has_ended(&self) -> bool {
        !matches!(waitpid(Some(self.pid), WaitOptions::NOHANG), Ok(None))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.socket = None;
        // An error means that it was reaped before.
        while let Err(rustix::io::Errno::INTR) = waitpid(Some(self.pid), WaitOptions::empty()) {}
    }
}

/// `None` in the child.
#[expect(unsafe_code, reason = "fork has no safe wrapper")]
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the shim has one thread, so the child inherits no lock held by another.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Returns the containers that still run when the shim has ended.
fn watch_until_the_shim_ends(shim: &OwnedFd) -> Vec<OwnedFd> {
    let mut containers: Vec<OwnedFd> = Vec::new();
    loop {
        let mut polls: Vec<PollFd<'_>> = [shim]
            .into_iter()
            .chain(&containers)
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        if poll(&mut polls, None).is_err() {
            continue;
        }
        let ready: Vec<bool> = polls.iter().map(|one| !one.revents().is_empty()).collect();
        let mut ended = ready.iter().skip(1);
        containers.retain(|_| ended.next() != Some(&true));
        if ready[0] && !receive(shim, &mut containers) {
            return containers;
        }
    }
}

/// Takes one container over; false when the shim has ended.
fn receive(shim: &OwnedFd, containers: &mut Vec<OwnedFd>) -> bool {
    match descriptors::receive(shim, &mut [0], containers) {
        Err(error) => error.kind() == io::ErrorKind::Interrupted,
        Ok(count) => count > 0,
    }
}

fn kill_all(containers: Vec<OwnedFd>) {
    for container in containers {
        // It may have ended by now, which is what is wanted.
        let _ = pidfd_send_signal(&container, Signal::KILL);
    }
}
