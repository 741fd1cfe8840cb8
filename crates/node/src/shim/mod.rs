//! The shim: one small process per pod that is the parent of the pod's containers.
//!
//! It outlives the agent, keeps exit statuses on disk and copies output to log files. It is a
//! program of one thread that forks, so nothing here may start another thread.

mod clients;
pub(crate) mod descriptors;
mod devices;
mod exec;
mod guard;
mod hide;
mod live;
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
mod terminal;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;

use clients::{Client, Received};
use exec::{End, Exec, Stdio};
use guard::Guard;
use live::{Live, Tee};
use protocol::{
    AttachStart, ContainerRun, ExecStart, Notice, Outcome, Request, RunState, ShimIdentity,
    StreamNotice, identity_file, now_ms, process_start, run_file, shim_dir, write_atomic,
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
        accepted: 0,
        live: Vec::new(),
        execs: Vec::new(),
        waiting: Vec::new(),
        leaving: Vec::new(),
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

struct Shim {
    pod_dir: PathBuf,
    listener: UnixListener,
    clients: Vec<Client>,
    /// How many clients there were.
    accepted: u64,
    live: Vec<Live>,
    execs: Vec<Exec>,
    /// Requests for containers whose own program does not run yet.
    waiting: Vec<Received>,
    /// Clients that were attached to containers that have ended.
    leaving: Vec<Tee>,
    known: BTreeMap<(String, u32), RunState>,
    shared: sandbox::Shared,
    /// There is one while containers run.
    guard: Option<Guard>,
    quitting: bool,
}

impl Shim {
    fn run(mut self) -> io::Result<()> {
        while !(self.quitting && self.live.is_empty() && self.execs.is_empty()) {
            self.wait()?;
            self.accept();
            self.hear_clients();
            for live in &mut self.live {
                live.copy();
            }
            self.leaving.retain_mut(|tee| tee.flush() && tee.is_full());
            self.reap_execs();
            self.reap();
            self.serve_waiting();
            self.replace_ended_guard();
            self.forget_clients();
        }
        Ok(())
    }

    fn wait(&self) -> io::Result<()> {
        let clients = self.clients.iter().map(|client| client.stream.as_fd());
        let execs = self.execs.iter().flat_map(|exec| {
            [Some(exec.pidfd.as_fd()), exec.setup.as_ref().map(AsFd::as_fd)].into_iter().flatten()
        });
        let read = [self.listener.as_fd()].into_iter().chain(clients).chain(execs);
        let read = read.chain(self.guard.as_ref().and_then(Guard::fd));
        let leaving = self.leaving.iter().map(|tee| (tee.pipe.as_fd(), PollFlags::OUT));
        let interests: Vec<(BorrowedFd<'_>, PollFlags)> = read
            .map(|fd| (fd, PollFlags::IN))
            .chain(leaving)
            .chain(self.live.iter().flat_map(Live::interests))
            .collect();
        let mut polls: Vec<PollFd<'_>> =
            interests.iter().map(|(fd, flags)| PollFd::new(fd, *flags)).collect();
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
            self.accepted += 1;
            let mut client = Client::new(self.accepted, stream);
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

    fn obey(&mut self, received: Received) {
        match &received.request {
            Request::Start(run) => self.start(run),
            Request::Signal { name, signal } => {
                let running = self.live.iter().find(|live| live.state.name == *name);
                if let (Some(live), Some(signal)) = (running, Signal::from_named_raw(*signal)) {
                    live.signal(signal);
                }
            }
            Request::Exec(ExecStart { container, .. })
            | Request::Attach(AttachStart { container, .. }) => {
                match self.live.iter().find(|live| live.state.name == *container) {
                    None => self.notify(received.client, StreamNotice::NotRunning),
                    Some(live) if !live.is_set_up() => self.waiting.push(received),
                    Some(_) => self.open_streams(received),
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

    /// Requests that came before the container's own program ran.
    fn serve_waiting(&mut self) {
        for received in std::mem::take(&mut self.waiting) {
            self.obey(received);
        }
    }

    fn open_streams(&mut self, received: Received) {
        let Received { client, request, descriptors } = received;
        let opened = match request {
            Request::Exec(start) => self.exec(client, start, descriptors).map(|()| None),
            Request::Attach(start) => self.attach(client, &start, descriptors),
            Request::Start(_) | Request::Signal { .. } | Request::Quit => return,
        };
        match opened {
            Ok(input) => {
                let notice = Notice::Stream(StreamNotice::Accepted { input: input.is_some() });
                let descriptors: Vec<BorrowedFd<'_>> = input.iter().map(AsFd::as_fd).collect();
                let mut clients = self.clients.iter_mut();
                if let Some(client) = clients.find(|one| one.id == client) {
                    client.send_with(&notice, &descriptors);
                }
            }
            Err(error) => self.notify(client, StreamNotice::Failed { why: error.to_string() }),
        }
    }

    fn exec(&mut self, id: u64, start: ExecStart, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let gone = || io::Error::other("the container or its client is gone");
        let client = self.clients.iter().find(|one| one.id == id).ok_or_else(gone)?;
        let live = self.live.iter().find(|live| live.state.name == start.container);
        let live = live.ok_or_else(gone)?;
        let stdio = Stdio::of(&start, descriptors, OwnedFd::from(client.stream.try_clone()?));
        let mut run = ContainerRun { argv: start.argv, ..live.run.clone() };
        if start.tty {
            run.name_terminal();
        }
        self.execs.push(Exec::start(&run, &live.pidfd, stdio, id)?);
        Ok(())
    }

    fn attach(
        &mut self,
        client: u64,
        start: &AttachStart,
        pipes: Vec<OwnedFd>,
    ) -> io::Result<Option<OwnedFd>> {
        let mut all = self.live.iter_mut();
        let live = all.find(|live| live.state.name == start.container);
        let live = live.ok_or_else(|| io::Error::other("the container is gone"))?;
        live.attach(client, start, pipes)
    }

    fn notify(&mut self, client: u64, notice: StreamNotice) {
        if let Some(client) = self.clients.iter_mut().find(|one| one.id == client) {
            client.send(&Notice::Stream(notice));
        }
    }

    fn reap_execs(&mut self) {
        let mut ended = Vec::new();
        self.execs.retain_mut(|exec| {
            exec.hear();
            let end = exec.ended();
            let goes_on = end.is_none();
            ended.extend(end.map(|end| (exec.client, end)));
            goes_on
        });
        for (client, end) in ended {
            let notice = match end {
                End::Exited(exit_code) => StreamNotice::Ended { exit_code },
                End::NotStarted(why) => StreamNotice::Failed { why },
            };
            self.notify(client, notice);
        }
    }

    /// What a client that has left had asked for ends.
    fn forget_clients(&mut self) {
        for client in self.clients.iter().filter(|client| client.gone) {
            self.execs.iter().filter(|exec| exec.client == client.id).for_each(Exec::kill);
            self.live.iter_mut().for_each(|live| live.detach(client.id));
            self.waiting.retain(|received| received.client != client.id);
        }
        self.clients.retain(|client| !client.gone);
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
        Live::new(run, state, child, log)
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
            for tee in outcome.map(|outcome| live.finish(outcome)).into_iter().flatten() {
                self.notify(tee.client, StreamNotice::Ended { exit_code: 0 });
                self.leaving.push(tee);
            }
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

/// The outcome of a run that never began.
fn failed(error: String) -> Outcome {
    Outcome { exit_code: 128, signal: 0, start_error: Some(error), finished_at_ms: now_ms() }
}
