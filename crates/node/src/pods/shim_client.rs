//! The client of a pod's shim: starts or adopts it, sends requests, follows the runs.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::Command;
use tokio::sync::{Mutex, watch};

use crate::shim::protocol::{
    ISOLATES, Notice, Outcome, PROTOCOL, Request, RunState, ShimIdentity, identity_file, now_ms,
    process_start, read_runs, run_file, shim_dir, write_atomic,
};

/// Why a shim cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// The pod's directory cannot be used.
    #[error("pod directory {dir}: {source}")]
    Dir { dir: PathBuf, source: io::Error },
    /// The program cannot be started.
    #[error("start {program}: {source}")]
    Spawn { program: PathBuf, source: io::Error },
    /// It ended before it could serve.
    #[error("the shim ended before it was ready: {0}")]
    NotReady(String),
    /// It is there but does not answer.
    #[error("talk to the shim in {dir}: {source}")]
    Talk { dir: PathBuf, source: io::Error },
}

/// How to start a shim: program and the arguments before the pod's directory.
#[derive(Debug, Clone)]
pub struct ShimProgram {
    /// The program.
    pub program: PathBuf,
    /// Arguments before the pod's directory.
    pub args: Vec<String>,
}

/// What is known of a shim and its runs.
#[derive(Debug, Clone, Default)]
pub struct ShimView {
    /// The connection ended, so the shim did too (or will be found again by a new connection).
    pub gone: bool,
    /// Runs by container and attempt.
    pub runs: BTreeMap<(String, u32), RunState>,
}

impl ShimView {
    /// The newest run of a container.
    #[must_use]
    pub fn newest(&self, container: &str) -> Option<&RunState> {
        self.runs.values().filter(|run| run.name == container).max_by_key(|run| run.attempt)
    }

    /// The run before the newest.
    #[must_use]
    pub fn previous(&self, container: &str) -> Option<&RunState> {
        let newest = self.newest(container)?.attempt;
        let older = |run: &&RunState| run.name == container && run.attempt < newest;
        self.runs.values().filter(older).max_by_key(|run| run.attempt)
    }

    /// Whether anything runs.
    #[must_use]
    pub fn any_running(&self) -> bool {
        self.runs.values().any(|run| run.outcome.is_none())
    }

    /// Containers that run; none when the shim is gone.
    pub(crate) fn names_running(&self) -> Vec<String> {
        let running = self.runs.values().filter(|run| !self.gone && run.outcome.is_none());
        running.map(|run| run.name.clone()).collect()
    }
}

/// Waits for a change of a shim's view; forever when there is none.
pub(crate) async fn changed(view: Option<&mut watch::Receiver<ShimView>>) {
    match view {
        // An ended channel means that the shim is gone, which the next look finds out.
        Some(view) => drop(view.changed().await),
        None => std::future::pending().await,
    }
}

/// A connection to a living shim.
pub struct ShimClient {
    pod_dir: PathBuf,
    protocol: u32,
    view: watch::Receiver<ShimView>,
    writer: Mutex<OwnedWriteHalf>,
}

impl ShimClient {
    /// Finds the pod's shim, or starts one.
    ///
    /// # Errors
    /// There is none and none can be started.
    pub async fn open(program: &ShimProgram, pod_dir: &Path) -> Result<Self, ShimError> {
        if let Some(client) = Self::adopt(pod_dir).await? {
            return Ok(client);
        }
        // Runs of a shim that is gone: killed, or of an earlier boot. They have ended with it.
        kill_leftovers(pod_dir).await;
        start(program, pod_dir).await?;
        Self::connect(pod_dir).await
    }

    /// Finds the pod's shim; `None` when it is not alive.
    ///
    /// # Errors
    /// It is alive and does not answer.
    pub async fn adopt(pod_dir: &Path) -> Result<Option<Self>, ShimError> {
        if living_shim(pod_dir).is_none() {
            return Ok(None);
        }
        Self::connect(pod_dir).await.map(Some)
    }

    async fn connect(pod_dir: &Path) -> Result<Self, ShimError> {
        let talk = |source| ShimError::Talk { dir: pod_dir.to_owned(), source };
        let stream = connect_in(&shim_dir(pod_dir)).await.map_err(talk)?;
        let (reader, writer) = stream.into_split();
        let mut lines = BufReader::new(reader);
        let mut first = ShimView::default();
        while let Some(Notice::Run(run)) = next_notice(&mut lines).await.map_err(talk)? {
            first.runs.insert((run.name.clone(), run.attempt), run);
        }
        let (sender, view) = watch::channel(first);
        tokio::spawn(listen(lines, sender));
        let protocol = living_shim(pod_dir).map_or(PROTOCOL, |shim| shim.protocol);
        Ok(Self { pod_dir: pod_dir.to_owned(), protocol, view, writer: Mutex::new(writer) })
    }

    /// Whether an earlier version of the program runs here, which isolates less.
    #[must_use]
    pub fn is_old(&self) -> bool {
        self.protocol < ISOLATES
    }

    /// Whether nothing would be lost with a shim of an earlier version.
    #[must_use]
    pub fn is_idle_and_old(&self) -> bool {
        self.protocol < PROTOCOL && !self.view.borrow().any_running()
    }

    /// What is known now, and changes of it.
    #[must_use]
    pub fn view(&self) -> watch::Receiver<ShimView> {
        self.view.clone()
    }

    /// Sends a request to the shim.
    ///
    /// # Errors
    /// The shim is gone.
    pub async fn tell(&self, request: &Request) -> Result<(), ShimError> {
        let talk = |source| ShimError::Talk { dir: self.pod_dir.clone(), source };
        let mut line = serde_json::to_vec(request).map_err(io::Error::from).map_err(talk)?;
        line.push(b'\n');
        self.writer.lock().await.write_all(&line).await.map_err(talk)
    }

    /// Kills what runs, ends the shim and waits until it is gone.
    pub async fn quit(self) {
        let shim = living_shim(&self.pod_dir);
        // A shim that is gone already needs no telling.
        let _ = self.tell(&Request::Quit).await;
        if let Some(shim) = shim {
            process_end(shim.pid, shim.pid_started).await;
        }
        kill_leftovers(&self.pod_dir).await;
    }
}

async fn listen(mut lines: BufReader<OwnedReadHalf>, view: watch::Sender<ShimView>) {
    while let Ok(Some(notice)) = next_notice(&mut lines).await {
        if let Notice::Run(run) = notice {
            view.send_modify(|view| {
                view.runs.insert((run.name.clone(), run.attempt), run);
            });
        }
    }
    view.send_modify(|view| view.gone = true);
}

async fn next_notice(lines: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Notice>> {
    let mut line = Vec::new();
    if lines.read_until(b'\n', &mut line).await? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

// Through the directory's descriptor: a socket's path is limited to 108 bytes, data directories
// are not.
pub(super) async fn connect_in(dir: &Path) -> io::Result<UnixStream> {
    let dir = std::fs::File::open(dir)?;
    UnixStream::connect(format!("/proc/self/fd/{}/sock", dir.as_raw_fd())).await
}

async fn start(program: &ShimProgram, pod_dir: &Path) -> Result<(), ShimError> {
    let dir_error = |source| ShimError::Dir { dir: pod_dir.to_owned(), source };
    let dir = shim_dir(pod_dir);
    std::fs::create_dir_all(&dir).map_err(dir_error)?;
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(dir.join("log"))
        .map_err(dir_error)?;
    let mut child = Command::new(&program.program)
        .args(&program.args)
        .arg(pod_dir)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .kill_on_drop(false)
        .spawn()
        .map_err(|source| ShimError::Spawn { program: program.program.clone(), source })?;
    let mut said = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        let mut buffer = [0; 6];
        let count = stdout.read_exact(&mut buffer).await.unwrap_or(0);
        said = String::from_utf8_lossy(&buffer[..count]).into_owned();
    }
    if said == "ready\n" {
        // Reaps it when it ends while this agent lives.
        tokio::spawn(async move { child.wait().await });
        return Ok(());
    }
    let status = child
        .wait()
        .await
        .map(|status| status.to_string())
        .unwrap_or_else(|error| error.to_string());
    // Another shim holds the lock: an agent before us started it and died before it could serve.
    if living_shim(pod_dir).is_some() {
        return Ok(());
    }
    Err(ShimError::NotReady(status))
}

/// The pod's shim, when it is alive.
#[must_use]
pub fn living_shim(pod_dir: &Path) -> Option<ShimIdentity> {
    let identity: ShimIdentity =
        serde_json::from_slice(&std::fs::read(identity_file(pod_dir)).ok()?).ok()?;
    (process_start(identity.pid) == Some(identity.pid_started)).then_some(identity)
}

/// Waits until a process is gone; `started` tells it from a later one with its number.
async fn process_end(pid: i32, started: u64) {
    let Some(handle) = rustix::process::Pid::from_raw(pid) else { return };
    let Ok(handle) = rustix::process::pidfd_open(handle, rustix::process::PidfdFlags::empty())
    else {
        return;
    };
    if process_start(pid) != Some(started) {
        return;
    }
    let wait = move || {
        use rustix::event::{PollFd, PollFlags, poll};
        while let Err(rustix::io::Errno::INTR) =
            poll(&mut [PollFd::new(&handle, PollFlags::IN)], None)
        {}
    };
    if let Err(error) = tokio::task::spawn_blocking(wait).await {
        tracing::warn!(pid, %error, "cannot wait for a process");
    }
}

/// Ends containers whose shim was killed and records that their exit status is lost.
///
/// The shim's guard kills them too, so normally nothing is left; this makes it certain before a
/// volume is taken away.
pub async fn kill_leftovers(pod_dir: &Path) {
    for mut run in read_runs(pod_dir).into_iter().filter(|run| run.outcome.is_none()) {
        if process_start(run.pid) == Some(run.pid_started) {
            if let Some(pid) = rustix::process::Pid::from_raw(run.pid) {
                // It may be gone by now, which is what is wanted.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            process_end(run.pid, run.pid_started).await;
        }
        run.outcome = Some(Outcome {
            exit_code: 137,
            signal: 9,
            start_error: None,
            finished_at_ms: now_ms(),
        });
        let file = run_file(pod_dir, &run.name, run.attempt);
        let saved = serde_json::to_vec(&run)
            .map_err(io::Error::from)
            .and_then(|json| write_atomic(&file, &json));
        if let Err(error) = saved {
            tracing::warn!(file = %file.display(), %error, "cannot record a lost exit status");
        }
    }
}
