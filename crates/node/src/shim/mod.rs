//! The shim: one small process per pod that is the parent of the pod's containers.
//!
//! It outlives the agent, keeps exit statuses on disk and copies output to log files. It is a
//! program of one thread that forks, so nothing here may start another thread.

mod devices;
mod guard;
mod hide;
pub mod log;
pub mod protocol;
pub mod rights;
mod root;
mod sandbox;
mod seal;
mod seccomp;
mod spawn;
mod syscalls;
mod system;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use guard::Guard;
use protocol::{
    ContainerRun, Notice, Outcome, Request, RunState, ShimIdentity, identity_file, now_ms,
    process_start, run_file, shim_dir, write_atomic,
};

/// Exit code when another shim already serves the pod.
pub const ALREADY_RUNNING: u8 = 3;

/// Entry point of the hidden subcommand: `pod-shim POD-DIR`.
///
/// Must be called before any thread is started.
#[must_use]
pub fn main(args: &[String]) -> ExitCode {
    let [pod_dir] = args else {
        eprintln!("usage: pod-shim POD-DIR (started by the node agent, not by hand)");
        return ExitCode::from(2);
    };
    close_inherited();
    if let Err(error) = seal::seal() {
        eprintln!("pod-shim {pod_dir}: cannot protect this program from its containers: {error}");
        return ExitCode::FAILURE;
    }
    match serve(Path::new(pod_dir)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("pod-shim {pod_dir}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// An inherited descriptor could hold a lock or a volume for as long as the pod lives.
#[expect(unsafe_code, reason = "close_range has no safe wrapper")]
fn close_inherited() {
    // SAFETY: called first in the process, nothing owns descriptors above standard error yet.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

fn serve(pod_dir: &Path) -> io::Result<u8> {
    // Fails when already a leader, which is as good.
    let _ = rustix::process::setsid();
    let dir = shim_dir(pod_dir);
    let lock = File::create(dir.join("lock"))?;
    if rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(ALREADY_RUNNING);
    }
    let listener = listen(&dir)?;
    let pid = i32::try_from(std::process::id()).map_err(io::Error::other)?;
    let identity = ShimIdentity {
        pid,
        pid_started: process_start(pid).unwrap_or(0),
        protocol: protocol::PROTOCOL,
    };
    write_atomic(&identity_file(pod_dir), &serde_json::to_vec(&identity)?)?;
    say_ready()?;
    let known = protocol::read_runs(pod_dir)
        .into_iter()
        .map(|run| ((run.name.clone(), run.attempt), run))
        .collect();
    Shim {
        pod_dir: pod_dir.to_owned(),
        listener,
        clients: Vec::new(),
        live: Vec::new(),
        known,
        shared: sandbox::Shared::default(),
        guard: None,
        quitting: false,
    }
    .run()?;
    drop(lock);
    Ok(0)
}

// Bound by a relative name: a socket's path is limited to 108 bytes and data directories are not.
fn listen(dir: &Path) -> io::Result<UnixListener> {
    std::env::set_current_dir(dir)?;
    match std::fs::remove_file("sock") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind("sock")?;
    listener.set_nonblocking(true)?;
    std::env::set_current_dir("/")?;
    Ok(listener)
}

fn say_ready() -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(b"ready\n")?;
    out.flush()?;
    let null = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    gone: bool,
}

/// A container that runs.
struct Live {
    state: RunState,
    pidfd: OwnedFd,
    setup: Option<File>,
    setup_text: Vec<u8>,
    streams: Vec<log::Stream>,
    log: log::Log,
}

struct Shim {
    pod_dir: PathBuf,
    listener: UnixListener,
    clients: Vec<Client>,
    live: Vec<Live>,
    known: BTreeMap<(String, u32), RunState>,
    shared: sandbox::Shared,
    /// There is one while containers run.
    guard: Option<Guard>,
    quitting: bool,
}

impl Shim {
    fn run(mut self) -> io::Result<()> {
        while !(self.quitting && self.live.is_empty()) {
            self.wait()?;
            self.accept();
            self.hear_clients();
            for live in &mut self.live {
                live.copy();
            }
            self.reap();
            self.replace_ended_guard();
            self.clients.retain(|client| !client.gone);
        }
        Ok(())
    }

    fn wait(&self) -> io::Result<()> {
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.listener.as_fd()];
        fds.extend(self.clients.iter().map(|client| client.stream.as_fd()));
        fds.extend(self.guard.as_ref().and_then(Guard::fd));
        for live in &self.live {
            fds.push(live.pidfd.as_fd());
            fds.extend(live.setup.as_ref().map(AsFd::as_fd));
            fds.extend(live.streams.iter().map(|stream| stream.fd().as_fd()));
        }
        let mut polls: Vec<PollFd<'_>> =
            fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        match poll(&mut polls, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let mut client = Client { stream, input: Vec::new(), gone: false };
            for state in self.known.values() {
                client.send(&Notice::Run(state.clone()));
            }
            client.send(&Notice::Ready);
            self.clients.push(client);
        }
    }

    fn hear_clients(&mut self) {
        let mut requests = Vec::new();
        for client in &mut self.clients {
            client.hear(&mut requests);
        }
        for request in requests {
            self.obey(request);
        }
    }

    fn obey(&mut self, request: Request) {
        match request {
            Request::Start(run) => self.start(&run),
            Request::Signal { name, signal } => {
                let running = self.live.iter().find(|live| live.state.name == name);
                if let (Some(live), Some(signal)) = (running, Signal::from_named_raw(signal)) {
                    live.signal(signal);
                }
            }
            Request::Quit => {
                self.quitting = true;
                for live in &self.live {
                    live.signal(Signal::KILL);
                }
            }
        }
    }

    fn start(&mut self, run: &ContainerRun) {
        let key = (run.name.clone(), run.attempt);
        if self.quitting || self.known.contains_key(&key) {
            return;
        }
        let mut state = RunState {
            name: run.name.clone(),
            attempt: run.attempt,
            pid: 0,
            pid_started: 0,
            started_at_ms: now_ms(),
            outcome: None,
        };
        match self.try_start(run, &mut state) {
            Ok(live) => self.live.push(live),
            Err(error) => state.outcome = Some(failed(error.to_string())),
        }
        self.publish(state);
    }

    fn try_start(&mut self, run: &ContainerRun, state: &mut RunState) -> io::Result<Live> {
        let base = shim_dir(&self.pod_dir).join(format!("root-{}", run.name));
        std::fs::create_dir_all(&base)?;
        let log = log::Log::open(&run.log, run.attempt, run.log_limit)?;
        self.shared.enter(&run.sandbox)?;
        let shm = self.shared.shm(&base)?;
        self.replace_ended_guard();
        let guard = match self.guard.take() {
            Some(guard) => guard,
            None => Guard::start()?,
        };
        let child = spawn::spawn(run, &base, shm, self.guard.insert(guard))?;
        state.pid = child.pid;
        state.pid_started = process_start(child.pid).unwrap_or(0);
        for fd in [&child.setup, &child.stdout, &child.stderr] {
            spawn::set_nonblocking(fd)?;
        }
        Ok(Live {
            state: state.clone(),
            pidfd: child.pidfd,
            setup: Some(File::from(child.setup)),
            setup_text: Vec::new(),
            streams: vec![
                log::Stream::new(child.stdout, "stdout"),
                log::Stream::new(child.stderr, "stderr"),
            ],
            log,
        })
    }

    /// Starts another guard for the containers of one that was killed, or kills them.
    fn replace_ended_guard(&mut self) {
        if !self.guard.as_ref().is_some_and(Guard::has_ended) {
            return;
        }
        self.guard = None;
        let watch_all = |guard: Guard| {
            self.live.iter().try_for_each(|live| guard.watch(&live.pidfd)).map(|()| guard)
        };
        match Guard::start().and_then(watch_all) {
            Ok(guard) => self.guard = Some(guard),
            Err(error) => {
                eprintln!("containers are killed, because nothing guards them: {error}");
                self.live.iter().for_each(|live| live.signal(Signal::KILL));
            }
        }
    }

    fn reap(&mut self) {
        let (ended, live): (Vec<_>, Vec<_>) = std::mem::take(&mut self.live)
            .into_iter()
            .map(|live| (live.ended(), live))
            .partition(|(outcome, _)| outcome.is_some());
        self.live = live.into_iter().map(|(_, live)| live).collect();
        for (outcome, mut live) in ended {
            live.copy();
            live.state.outcome = outcome.map(|outcome| live.explain(outcome));
            self.publish(live.state);
        }
    }

    fn publish(&mut self, state: RunState) {
        let file = run_file(&self.pod_dir, &state.name, state.attempt);
        let saved = serde_json::to_vec(&state)
            .map_err(io::Error::from)
            .and_then(|json| write_atomic(&file, &json));
        if let Err(error) = saved {
            eprintln!("cannot save {}: {error}", file.display());
        }
        for client in &mut self.clients {
            client.send(&Notice::Run(state.clone()));
        }
        self.known.insert((state.name.clone(), state.attempt), state);
    }
}

impl Live {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.state.pid) {
            // Not reaped yet, so the number is still ours; an exited child is no error.
            let _ = kill_process(pid, signal);
        }
    }

    fn copy(&mut self) {
        if let Some(setup) = &mut self.setup {
            match setup.read_to_end(&mut self.setup_text) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => self.setup = None,
            }
        }
        let log = &mut self.log;
        self.streams.retain_mut(|stream| stream.copy(log));
    }

    fn ended(&self) -> Option<Outcome> {
        let pid = Pid::from_raw(self.state.pid)?;
        let (_, status) = waitpid(Some(pid), WaitOptions::NOHANG).ok()??;
        let signal = status.terminating_signal().unwrap_or(0);
        let exit_code = status.exit_status().unwrap_or(128 + signal);
        Some(Outcome { exit_code, signal, start_error: None, finished_at_ms: now_ms() })
    }

    fn explain(&self, outcome: Outcome) -> Outcome {
        if self.setup_text.is_empty() {
            return outcome;
        }
        failed(String::from_utf8_lossy(&self.setup_text).into_owned())
    }
}

/// The outcome of a run that never began.
fn failed(error: String) -> Outcome {
    Outcome { exit_code: 128, signal: 0, start_error: Some(error), finished_at_ms: now_ms() }
}

impl Client {
    fn send(&mut self, notice: &Notice) {
        let Ok(mut line) = serde_json::to_vec(notice) else { return };
        line.push(b'\n');
        // An agent that does not listen is cut off; it will connect again and hear everything.
        if self.stream.write_all(&line).is_err() {
            self.gone = true;
        }
    }

    fn hear(&mut self, requests: &mut Vec<Request>) {
        let mut buffer = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.gone = true,
                Ok(count) => {
                    self.input.extend_from_slice(&buffer[..count]);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => self.gone = true,
            }
            break;
        }
        while let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(request) => requests.push(request),
                Err(error) => eprintln!("unreadable request: {error}"),
            }
        }
    }
}
