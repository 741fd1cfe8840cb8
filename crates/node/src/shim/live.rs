//! A container that runs: its output, its input, and who is attached to it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::protocol::{AttachStart, ContainerRun, Outcome, RunState, now_ms, process_start};
use super::spawn::{self, Child, Output};
use super::{descriptors, failed, log};

/// A container that runs.
pub(super) struct Live {
    pub run: ContainerRun,
    pub state: RunState,
    pub pidfd: OwnedFd,
    setup: Option<File>,
    setup_text: Vec<u8>,
    /// Brings the terminal of a container that shall have one.
    terminal: Option<OwnedFd>,
    /// The other end of its terminal.
    master: Option<OwnedFd>,
    /// Leads to its standard input.
    stdin: Option<OwnedFd>,
    streams: Vec<log::Stream>,
    log: log::Log,
    attached: Vec<Tee>,
}

impl Live {
    /// Takes a started child over.
    ///
    /// # Errors
    /// Its descriptors cannot be used.
    pub(super) fn new(
        run: &ContainerRun,
        state: &mut RunState,
        child: Child,
        log: log::Log,
    ) -> io::Result<Self> {
        state.pid = child.pid;
        state.pid_started = process_start(child.pid).unwrap_or(0);
        spawn::set_nonblocking(&child.setup)?;
        let mut live = Self {
            run: run.clone(),
            state: state.clone(),
            pidfd: child.pidfd,
            setup: Some(File::from(child.setup)),
            setup_text: Vec::new(),
            terminal: None,
            master: None,
            stdin: child.stdin,
            streams: Vec::new(),
            log,
            attached: Vec::new(),
        };
        match child.output {
            Output::Pipes(stdout, stderr) => {
                for (pipe, name) in [(stdout, "stdout"), (stderr, "stderr")] {
                    spawn::set_nonblocking(&pipe)?;
                    live.streams.push(log::Stream::new(pipe, name));
                }
            }
            Output::Terminal(socket) => {
                spawn::set_nonblocking(&socket)?;
                live.terminal = Some(socket);
            }
        }
        Ok(live)
    }

    /// Whether its own program runs, so that others can be started beside it.
    pub(super) fn is_set_up(&self) -> bool {
        self.setup.is_none() && self.terminal.is_none()
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.state.pid) {
            // Not reaped yet, so the number is still ours; an exited child is no error.
            let _ = kill_process(pid, signal);
        }
    }

    /// What to wait for. Output waits while an attached client does not take what was read before.
    pub(super) fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let own = [Some(self.pidfd.as_fd()), self.setup.as_ref().map(AsFd::as_fd)];
        let own = own.into_iter().chain([self.terminal.as_ref().map(AsFd::as_fd)]).flatten();
        let output = self.streams.iter().filter(|stream| !self.is_stalled(stream.name()));
        let output = output.map(|stream| stream.fd().as_fd());
        let clients = self.attached.iter().filter(|tee| tee.is_full());
        own.chain(output)
            .map(|fd| (fd, PollFlags::IN))
            .chain(clients.map(|tee| (tee.pipe.as_fd(), PollFlags::OUT)))
    }

    fn is_stalled(&self, stream: &str) -> bool {
        self.attached.iter().any(|tee| tee.stream == stream && tee.is_full())
    }

    pub(super) fn copy(&mut self) {
        if let Some(setup) = &mut self.setup {
            match setup.read_to_end(&mut self.setup_text) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => self.setup = None,
            }
        }
        self.receive_terminal();
        self.attached.retain_mut(Tee::flush);
        let ready: Vec<&'static str> = self.streams.iter().map(log::Stream::name).collect();
        let ready: Vec<_> = ready.into_iter().filter(|name| !self.is_stalled(name)).collect();
        let (log, attached) = (&mut self.log, &mut self.attached);
        self.streams.retain_mut(|stream| {
            let name = stream.name();
            !ready.contains(&name) || stream.copy(log, |bytes| tee(attached, name, bytes))
        });
    }

    fn receive_terminal(&mut self) {
        let Some(socket) = &self.terminal else { return };
        let mut received = Vec::new();
        match descriptors::receive(socket, &mut [0; 256], &mut received) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            _ => self.terminal = None,
        }
        let Some(master) = received.pop() else { return };
        let output = spawn::set_nonblocking(&master).and_then(|()| master.try_clone());
        match output {
            Ok(output) => {
                self.streams.push(log::Stream::new(output, "stdout"));
                self.master = Some(master);
            }
            Err(error) => eprintln!("cannot read a container's terminal: {error}"),
        }
    }

    /// Attaches a client. `pipes` take its standard output and errors, in this order, as far as it wants them.
    /// Returns what leads to the container's input, or the other end of its terminal.
    ///
    /// # Errors
    /// A descriptor cannot be used; the client is not attached.
    pub(super) fn attach(
        &mut self,
        client: u64,
        start: &AttachStart,
        pipes: Vec<OwnedFd>,
    ) -> io::Result<Option<OwnedFd>> {
        let input = match (&self.master, &self.stdin) {
            (Some(master), _) => Some(master.try_clone()?),
            (None, Some(stdin)) if start.stdin => Some(stdin.try_clone()?),
            _ => None,
        };
        let wanted = [(start.stdout, "stdout"), (start.stderr, "stderr")];
        let wanted = wanted.into_iter().filter(|(wanted, _)| *wanted);
        let mut tees = Vec::new();
        for ((_, stream), pipe) in wanted.zip(pipes) {
            spawn::set_nonblocking(&pipe)?;
            tees.push(Tee { client, stream, pipe: File::from(pipe), pending: Vec::new() });
        }
        self.attached.extend(tees);
        if start.stdin && self.run.stdin_once {
            // The input ends when the first who was attached to it leaves.
            self.stdin = None;
        }
        Ok(input)
    }

    pub(super) fn detach(&mut self, client: u64) {
        self.attached.retain(|tee| tee.client != client);
    }

    pub(super) fn ended(&self) -> Option<Outcome> {
        let pid = Pid::from_raw(self.state.pid)?;
        let (_, status) = waitpid(Some(pid), WaitOptions::NOHANG).ok()??;
        let signal = status.terminating_signal().unwrap_or(0);
        let exit_code = status.exit_status().unwrap_or(128 + signal);
        Some(Outcome { exit_code, signal, start_error: None, finished_at_ms: now_ms() })
    }

    /// Copies the last of the output, and returns who is attached; they may still have something to take.
    pub(super) fn finish(&mut self, outcome: Outcome) -> Vec<Tee> {
        self.receive_terminal();
        let (log, attached) = (&mut self.log, &mut self.attached);
        for stream in &mut self.streams {
            let name = stream.name();
            stream.copy(log, |bytes| {
                tee(attached, name, bytes);
                true
            });
        }
        self.copy();
        self.state.outcome = Some(match self.setup_text.is_empty() {
            true => outcome,
            false => failed(String::from_utf8_lossy(&self.setup_text).into_owned()),
        });
        std::mem::take(&mut self.attached)
    }
}

/// Hands output to all who are attached; false when one of them cannot take more.
fn tee(attached: &mut [Tee], stream: &str, bytes: &[u8]) -> bool {
    let mut go_on = true;
    for tee in attached.iter_mut().filter(|tee| tee.stream == stream) {
        tee.pending.extend_from_slice(bytes);
        tee.flush();
        go_on &= !tee.is_full();
    }
    go_on
}

/// One output stream of one attached client.
pub(super) struct Tee {
    pub client: u64,
    stream: &'static str,
    pub pipe: File,
    pending: Vec<u8>,
}

impl Tee {
    pub(super) fn is_full(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Writes what waits; false when the client has left.
    pub(super) fn flush(&mut self) -> bool {
        while !self.pending.is_empty() {
            match self.pipe.write(&self.pending) {
                Ok(count) => drop(self.pending.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => {
                    self.pending.clear();
                    return false;
                }
            }
        }
        true
    }
}
