//! Opens the streams of `exec` and `attach` for the API server.
//!
//! The pod's shim starts the process, or knows the container that runs. It gets pipes whose other ends stay here, so
//! what flows through them does not pass the shim; only a container's output, which is also logged, does.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use longshore_cluster::Api;
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::Pod;
use longshore_core::model::streams::{StreamEnd, StreamError, StreamRequest};
use longshore_core::stage::paths::NodePaths;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::descriptor::Descriptor;
use super::shim_client::{connect_in, living_shim};
use crate::shim::descriptors;
use crate::shim::protocol::{
    AttachStart, ExecStart, Notice, Request, STREAMS, StreamNotice, read_runs, shim_dir,
};

const PIECE_BYTES: usize = 32 << 10;
/// How long the last output of a terminal, or of a container, may take to arrive after its end.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// Open streams. What was started for them ends when the value is dropped.
pub struct Streams {
    stdin: Option<Descriptor>,
    stdout: Option<Descriptor>,
    stderr: Option<Descriptor>,
    terminal: Option<Descriptor>,
    /// Whether all output ends by itself when the process has ended.
    ends_by_itself: bool,
    ended: watch::Receiver<Option<StreamEnd>>,
    _shim: AbortOnDropHandle<()>,
}

/// Access to the containers of one node's pods. Cheap to clone.
#[derive(Clone)]
pub struct NodeStreams {
    api: Api,
    paths: NodePaths,
}

impl NodeStreams {
    /// Containers of pods below a node's root directory.
    #[must_use]
    pub fn new(api: Api, root_dir: impl Into<PathBuf>) -> Self {
        Self { api, paths: NodePaths::new(root_dir) }
    }

    /// Whether the container runs.
    ///
    /// # Errors
    /// It does not, or the pod is gone.
    pub async fn check(&self, query: &StreamRequest) -> Result<(), StreamError> {
        let dir = self.pod_dir(query).await?;
        let runs = read_runs(&dir).into_iter().filter(|run| run.name == query.container);
        let newest = runs.max_by_key(|run| run.attempt);
        match newest {
            Some(run) if run.outcome.is_none() && living_shim(&dir).is_some() => Ok(()),
            _ => Err(StreamError::NotRunning),
        }
    }

    /// Starts the command, or attaches to the container.
    ///
    /// # Errors
    /// The container does not run, or the pod is gone.
    pub async fn open(&self, query: &StreamRequest) -> Result<Streams, StreamError> {
        let dir = self.pod_dir(query).await?;
        let shim = living_shim(&dir).ok_or(StreamError::NotRunning)?;
        if shim.protocol < STREAMS {
            let text =
                "an earlier version began this pod and starts nothing in it; make the pod anew";
            return Err(StreamError::Failed(text.to_owned()));
        }
        open(&dir, query).await
    }

    async fn pod_dir(&self, query: &StreamRequest) -> Result<PathBuf, StreamError> {
        let key = ObjectKey::new(&query.namespace, &query.pod);
        let pod = self.api.get::<Pod>(&key).await;
        let pod = pod.map_err(|error| StreamError::Failed(error.to_string()))?;
        let pod = pod.ok_or(StreamError::NotRunning)?;
        Ok(self.paths.pod(&pod.metadata.uid))
    }
}

async fn open(pod_dir: &Path, query: &StreamRequest) -> Result<Streams, StreamError> {
    let failed = |error: io::Error| StreamError::Failed(format!("talk to the pod's shim: {error}"));
    let mut wire = Wire::connect(pod_dir).await.map_err(failed)?;
    let mut pipes = Pipes::make(query).map_err(failed)?;
    wire.send(&request(query), &pipes.theirs).await.map_err(failed)?;
    pipes.theirs.clear();
    let wants_terminal = query.command.is_some() && query.tty;
    let (mut accepted, mut input, mut terminal) = (false, None, None);
    let mut early_end = None;
    while early_end.is_none() && !(accepted && (terminal.is_some() || !wants_terminal)) {
        match wire.next().await.map_err(failed)? {
            StreamNotice::NotRunning => return Err(StreamError::NotRunning),
            StreamNotice::Accepted { .. } => {
                accepted = true;
                input = wire.descriptors.pop_front();
            }
            StreamNotice::Terminal => terminal = wire.descriptors.pop_front(),
            StreamNotice::Failed { why } => early_end = Some(StreamEnd::Failed(why)),
            StreamNotice::Ended { exit_code } => early_end = Some(StreamEnd::Exited(exit_code)),
        }
    }
    let opened = Opened { early_end, input, terminal, pipes };
    streams(wire, query, opened).map_err(failed)
}

/// What the shim handed out, and our ends of what it got.
struct Opened {
    early_end: Option<StreamEnd>,
    input: Option<OwnedFd>,
    terminal: Option<OwnedFd>,
    pipes: Pipes,
}

fn streams(wire: Wire, query: &StreamRequest, opened: Opened) -> io::Result<Streams> {
    let Opened { early_end, input, terminal, pipes } = opened;
    let exec = query.command.is_some();
    let wrap = |fd: Option<OwnedFd>| fd.map(Descriptor::new).transpose();
    let input = wrap(input)?;
    let terminal = wrap(terminal)?;
    let [stdin, stdout, stderr] = pipes.ours;
    let stdin = match (exec, &terminal) {
        (true, None) => wrap(stdin)?,
        (true, Some(terminal)) => Some(terminal.clone()),
        (false, _) => input.clone(),
    };
    let stdout = match (exec, &terminal) {
        (true, Some(terminal)) => Some(terminal.clone()),
        _ => wrap(stdout)?,
    };
    let (sender, ended) = watch::channel(early_end);
    let shim = tokio::spawn(watch_end(wire, sender));
    Ok(Streams {
        stdin: stdin.filter(|_| query.stdin),
        stdout: stdout.filter(|_| query.stdout),
        stderr: wrap(stderr)?,
        ends_by_itself: terminal.is_some() || !exec,
        // An input that is kept would never end.
        terminal: terminal.or(input.filter(|input| rustix::termios::isatty(input.get()))),
        ended,
        _shim: AbortOnDropHandle::new(shim),
    })
}

/// Holds the connection: when it closes, the shim ends the process.
async fn watch_end(mut wire: Wire, ended: watch::Sender<Option<StreamEnd>>) {
    loop {
        let end = match wire.next().await {
            Ok(StreamNotice::Ended { exit_code }) => StreamEnd::Exited(exit_code),
            Ok(StreamNotice::Failed { why }) => StreamEnd::Failed(why),
            Ok(_) => continue,
            // The pod's processes end with its shim.
            Err(_) => StreamEnd::Exited(137),
        };
        let first = ended.send_if_modified(|known| {
            let first = known.is_none();
            if first {
                *known = Some(end);
            }
            first
        });
        if !first {
            return;
        }
    }
}

fn request(query: &StreamRequest) -> Request {
    let StreamRequest { container, command, stdin, stdout, stderr, tty, .. } = query.clone();
    match command {
        Some(argv) => Request::Exec(ExecStart { container, argv, tty, stdin, stdout, stderr }),
        None => Request::Attach(AttachStart { container, stdin, stdout, stderr }),
    }
}

/// The pipes of a request: the shim's ends, and ours by stream.
struct Pipes {
    theirs: Vec<OwnedFd>,
    ours: [Option<OwnedFd>; 3],
}

impl Pipes {
    fn make(query: &StreamRequest) -> io::Result<Self> {
        let mut pipes = Self { theirs: Vec::new(), ours: [None, None, None] };
        let exec = query.command.is_some();
        if exec && query.tty {
            return Ok(pipes);
        }
        for (index, wanted) in
            [query.stdin && exec, query.stdout, query.stderr].into_iter().enumerate()
        {
            if wanted {
                let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
                let (theirs, ours) = if index == 0 { (read, write) } else { (write, read) };
                pipes.theirs.push(theirs);
                pipes.ours[index] = Some(ours);
            }
        }
        Ok(pipes)
    }
}

impl Streams {
    /// The process's input; dropping it ends the input, unless it is a terminal.
    pub fn stdin(&mut self) -> Option<impl tokio::io::AsyncWrite + Send + Unpin + use<>> {
        self.stdin.take()
    }

    /// What the process writes, until it ends.
    pub fn stdout(&mut self) -> Option<BoxStream<'static, Bytes>> {
        let fd = self.stdout.take()?;
        Some(self.output(fd))
    }

    /// What the process writes to its standard error, until it ends.
    pub fn stderr(&mut self) -> Option<BoxStream<'static, Bytes>> {
        let fd = self.stderr.take()?;
        Some(self.output(fd))
    }

    fn output(&self, fd: Descriptor) -> BoxStream<'static, Bytes> {
        let output = Output { fd, ended: self.ended.clone(), ends_by_itself: self.ends_by_itself };
        futures::stream::unfold(output, |mut output| async move {
            let piece = output.next().await?;
            Some((piece, output))
        })
        .boxed()
    }

    /// Changes the size of the terminal, if there is one.
    pub fn resizer(&self) -> impl Fn(u16, u16) + Send + Sync + use<> {
        let terminal = self.terminal.clone();
        move |width, height| {
            let size = rustix::termios::Winsize {
                ws_col: width,
                ws_row: height,
                ws_xpixel: 0,
                ws_ypixel: 0,
            };
            if let Some(terminal) = &terminal {
                // An input that is no terminal has no size.
                let _ = rustix::termios::tcsetwinsize(terminal.get(), size);
            }
        }
    }

    /// Waits until the process has ended, or the container to which the client is attached. What was started
    /// ends when the future is dropped.
    pub async fn ended(mut self) -> StreamEnd {
        match self.ended.wait_for(Option::is_some).await.map(|end| end.clone()) {
            Ok(Some(end)) => end,
            Ok(None) | Err(_) => StreamEnd::Failed("the pod's shim is gone".to_owned()),
        }
    }
}

struct Output {
    fd: Descriptor,
    ended: watch::Receiver<Option<StreamEnd>>,
    ends_by_itself: bool,
}

impl Output {
    /// The next piece; none when the process has ended and all that it wrote was read. What it left running may
    /// hold the pipe open, and is not waited for.
    async fn next(&mut self) -> Option<Bytes> {
        let mut buffer = vec![0; PIECE_BYTES];
        let read = tokio::select! {
            biased;
            read = self.fd.read(&mut buffer) => read,
            () = async { drop(self.ended.wait_for(Option::is_some).await) } => {
                if self.ends_by_itself {
                    tokio::time::timeout(LAST_OUTPUT, self.fd.read(&mut buffer)).await.ok()?
                } else {
                    self.fd.read_now(&mut buffer)
                }
            }
        };
        match read {
            Ok(count) if count > 0 => {
                buffer.truncate(count);
                Some(buffer.into())
            }
            _ => None,
        }
    }
}

/// A connection to the shim for one request.
struct Wire {
    stream: UnixStream,
    input: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
}

impl Wire {
    async fn connect(pod_dir: &Path) -> io::Result<Self> {
        let stream = connect_in(&shim_dir(pod_dir)).await?;
        Ok(Self { stream, input: Vec::new(), descriptors: VecDeque::new() })
    }

    async fn send(&self, request: &Request, fds: &[OwnedFd]) -> io::Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let (mut rest, mut fds) = (line.as_slice(), fds.as_slice());
        while !rest.is_empty() {
            let send = || descriptors::send(&self.stream, rest, fds);
            let sent = self.stream.async_io(Interest::WRITABLE, send).await?;
            (rest, fds) = (&rest[sent..], &[]);
        }
        Ok(())
    }

    /// The next notice about this request.
    async fn next(&mut self) -> io::Result<StreamNotice> {
        loop {
            while let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.input.drain(..=end).collect();
                if let Notice::Stream(notice) = serde_json::from_slice(&line)? {
                    return Ok(notice);
                }
            }
            let mut buffer = [0; 4096];
            let (stream, received) = (&self.stream, &mut self.descriptors);
            let receive = || descriptors::receive(stream, &mut buffer, received);
            let count = stream.async_io(Interest::READABLE, receive).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.input.extend_from_slice(&buffer[..count]);
        }
    }
}
