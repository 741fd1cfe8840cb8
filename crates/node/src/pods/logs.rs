//! Reads container logs for the API server's `log` subresource.

use std::io::{self, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use inotify::{Inotify, WatchMask};
use longshore_cluster::Api;
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::Pod;
use longshore_core::model::streams::{LogError, LogRequest};
use longshore_core::stage::paths::NodePaths;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::run_spec::log_file;
use crate::shim::log::previous;
use crate::shim::protocol::{RunState, read_runs, shim_dir};

/// How often a follower looks that could not get a watch.
const WITHOUT_WATCH: Duration = Duration::from_millis(500);

/// Access to the logs of one node's pods. Cheap to clone.
#[derive(Clone)]
pub struct NodeLogs {
    api: Api,
    paths: NodePaths,
}

impl NodeLogs {
    /// Logs below a node's root directory.
    #[must_use]
    pub fn new(api: Api, root_dir: impl Into<PathBuf>) -> Self {
        Self { api, paths: NodePaths::new(root_dir) }
    }

    /// Opens a log as a stream of pieces that end at line ends.
    ///
    /// # Errors
    /// There is no such pod, container or log.
    pub async fn open(&self, query: LogRequest) -> Result<BoxStream<'static, Bytes>, LogError> {
        let key = ObjectKey::new(&query.namespace, &query.pod);
        let pod =
            self.api.get::<Pod>(&key).await.map_err(|error| LogError::Failed(error.to_string()))?;
        let pod =
            pod.ok_or_else(|| LogError::BadRequest(format!("pods \"{}\" not found", query.pod)))?;
        let container = container_name(&pod, query.container.as_deref())?;
        let current = log_file(&self.paths, &pod.metadata.uid, &container);
        let file = if query.previous { previous(&current) } else { current };
        let opened = match File::open(&file).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(LogError::BadRequest(no_log(&container, &query)));
            }
            other => {
                other.map_err(|error| LogError::Failed(format!("{}: {error}", file.display())))?
            }
        };
        let pod_dir = self.paths.pod(&pod.metadata.uid);
        let follow =
            (query.follow && !query.previous).then(|| Ending::of_newest(pod_dir, container));
        Ok(stream(opened, file, query, follow))
    }
}

fn no_log(container: &str, query: &LogRequest) -> String {
    let (pod, previous) = (&query.pod, query.previous);
    match previous {
        true => format!("previous terminated container {container:?} in pod {pod:?} not found"),
        false => format!("container {container:?} in pod {pod:?} is waiting to start"),
    }
}

fn container_name(pod: &Pod, asked: Option<&str>) -> Result<String, LogError> {
    let all = || pod.spec.containers.iter().chain(&pod.spec.init_containers);
    let names = || all().map(|one| one.name.as_str()).collect::<Vec<_>>().join(" ");
    match asked.filter(|name| !name.is_empty()) {
        Some(name) if all().any(|one| one.name == name) => Ok(name.to_owned()),
        Some(name) => Err(LogError::BadRequest(format!(
            "container {name} is not valid for pod {}",
            pod.metadata.name
        ))),
        None => match pod.spec.containers.as_slice() {
            [one] => Ok(one.name.clone()),
            _ => Err(LogError::BadRequest(format!(
                "a container name must be specified for pod {}, choose one of: [{}]",
                pod.metadata.name,
                names()
            ))),
        },
    }
}

/// Knows when a followed run of a container has ended.
struct Ending {
    pod_dir: PathBuf,
    container: String,
    attempt: Option<u32>,
}

impl Ending {
    fn of_newest(pod_dir: PathBuf, container: String) -> Self {
        let mut ending = Self { pod_dir, container, attempt: None };
        ending.attempt = ending.newest().map(|run| run.attempt);
        ending
    }

    fn newest(&self) -> Option<RunState> {
        let runs = read_runs(&self.pod_dir).into_iter();
        runs.filter(|run| run.name == self.container).max_by_key(|run| run.attempt)
    }

    fn ended(&self) -> bool {
        self.newest().is_none_or(|run| run.outcome.is_some() || self.is_later(&run))
    }

    /// A later run has a log of its own under the same name.
    fn superseded(&self) -> bool {
        self.newest().is_some_and(|run| self.is_later(&run))
    }

    fn is_later(&self, run: &RunState) -> bool {
        self.attempt.is_some_and(|attempt| run.attempt > attempt)
    }
}

struct Reader {
    file: File,
    path: PathBuf,
    query: LogRequest,
    follow: Option<Ending>,
    rest: Vec<u8>,
    sent: usize,
    begun: bool,
}

fn stream(
    file: File,
    path: PathBuf,
    query: LogRequest,
    follow: Option<Ending>,
) -> BoxStream<'static, Bytes> {
    let reader = Reader { file, path, query, follow, rest: Vec::new(), sent: 0, begun: false };
    futures::stream::unfold(reader, |mut reader| async move {
        let piece = reader.next().await;
        if let Err(error) = &piece {
            tracing::warn!(file = %reader.path.display(), %error, "log reading ended");
        }
        piece.ok().flatten().map(|piece| (piece, reader))
    })
    .boxed()
}

impl Reader {
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if self.query.limit_bytes.is_some_and(|limit| self.sent >= limit) {
                return Ok(None);
            }
            // Asked before reading: what is written before the end is recorded is read below, and
            // so is what is written before the file was put aside.
            let ended = self.follow.as_ref().is_none_or(Ending::ended);
            let watch = if ended { None } else { Some(self.watch()) };
            let fresh = if self.follow.is_some() { self.fresh_file().await? } else { None };
            let piece = self.read_lines().await?;
            if !piece.is_empty() {
                return Ok(Some(self.cut(piece)));
            }
            if let Some(fresh) = fresh {
                self.file = fresh;
                continue;
            }
            match watch {
                None => return Ok(None),
                Some(Ok(mut watch)) => {
                    if watch.next().await.is_none() {
                        return Ok(None);
                    }
                }
                // The machine has a bound on watches; a follower without one looks now and then.
                Some(Err(_)) => tokio::time::sleep(WITHOUT_WATCH).await,
            }
        }
    }

    /// The file that has the log's name now, when the one that is read was put aside.
    async fn fresh_file(&self) -> io::Result<Option<File>> {
        use std::os::unix::fs::MetadataExt;
        if self.follow.as_ref().is_some_and(Ending::superseded) {
            return Ok(None);
        }
        let fresh = match File::open(&self.path).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let (now, before) = (fresh.metadata().await?, self.file.metadata().await?);
        Ok(((now.dev(), now.ino()) != (before.dev(), before.ino())).then_some(fresh))
    }

    fn watch(&self) -> io::Result<inotify::EventStream<[u8; 1024]>> {
        let inotify = Inotify::init()?;
        let changes =
            WatchMask::MODIFY | WatchMask::ATTRIB | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF;
        inotify.watches().add(&self.path, changes)?;
        if let Some(ending) = &self.follow {
            inotify
                .watches()
                .add(shim_dir(&ending.pod_dir), WatchMask::MOVED_TO | WatchMask::DELETE_SELF)?;
        }
        inotify.into_event_stream([0; 1024])
    }

    async fn read_lines(&mut self) -> io::Result<Vec<u8>> {
        if !self.begun {
            self.begun = true;
            if let Some(lines) = self.query.tail_lines {
                let start = tail_start(&mut self.file, lines).await?;
                self.file.seek(SeekFrom::Start(start)).await?;
            }
        }
        let mut buffer = vec![0; 64 * 1024];
        let mut out = Vec::new();
        loop {
            let count = self.file.read(&mut buffer).await?;
            if count == 0 {
                return Ok(out);
            }
            self.rest.extend_from_slice(&buffer[..count]);
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                self.push_line(&line, &mut out);
            }
            if out.len() >= 64 * 1024 {
                return Ok(out);
            }
        }
    }

    /// A line of the file is `<time> <stream> <F|P> <text>`.
    fn push_line(&self, line: &[u8], out: &mut Vec<u8>) {
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let (Some(time), Some(_), Some(tag), Some(text)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return;
        };
        if let Some(since) = self.query.since {
            let at = std::str::from_utf8(time)
                .ok()
                .and_then(|text| text.parse::<jiff::Timestamp>().ok());
            if at.is_some_and(|at| at < since) {
                return;
            }
        }
        if self.query.timestamps {
            out.extend_from_slice(time);
            out.push(b' ');
        }
        let text = if tag == b"P" { text.strip_suffix(b"\n").unwrap_or(text) } else { text };
        out.extend_from_slice(text);
    }

    fn cut(&mut self, mut piece: Vec<u8>) -> Bytes {
        if let Some(limit) = self.query.limit_bytes {
            piece.truncate(limit - self.sent);
        }
        self.sent += piece.len();
        piece.into()
    }
}

/// Where the last `lines` lines begin.
async fn tail_start(file: &mut File, lines: usize) -> io::Result<u64> {
    const BLOCK: u64 = 16 * 1024;
    let size = file.metadata().await?.len();
    let (mut at, mut found) = (size, 0);
    while at > 0 {
        let begin = at.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(begin)).await?;
        let mut block = vec![0; usize::try_from(at - begin).map_err(io::Error::other)?];
        file.read_exact(&mut block).await?;
        for (index, byte) in block.iter().enumerate().rev() {
            let position = begin + index as u64;
            if *byte == b'\n' && position + 1 < size {
                found += 1;
                if found >= lines {
                    return Ok(position + 1);
                }
            }
        }
        at = begin;
    }
    Ok(if lines == 0 { size } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::protocol::{Outcome, run_file};

    fn record(pod_dir: &std::path::Path, attempt: u32, over: bool) {
        let outcome = Outcome { exit_code: 0, signal: 0, start_error: None, finished_at_ms: 1 };
        let run = RunState {
            name: "c".into(),
            attempt,
            pid: 0,
            pid_started: 0,
            started_at_ms: 0,
            outcome: over.then_some(outcome),
        };
        let file = run_file(pod_dir, "c", attempt);
        let json = serde_json::to_vec(&run).unwrap();
        crate::shim::protocol::write_atomic(&file, &json).unwrap();
    }

    fn append(path: &std::path::Path, text: &str) {
        use std::io::Write;
        let line = format!("2026-01-01T00:00:00Z stdout F {text}\n");
        let mut file = std::fs::File::options().create(true).append(true).open(path).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }

    /// As the shim does it.
    fn rotate(path: &std::path::Path) {
        let _ = std::fs::remove_file(path.with_extension("log.1"));
        std::fs::hard_link(path, path.with_extension("log.1")).unwrap();
        std::fs::write(path.with_extension("log.new"), "").unwrap();
        std::fs::rename(path.with_extension("log.new"), path).unwrap();
    }

    #[tokio::test]
    async fn a_follower_goes_on_in_the_new_file_and_ends_with_its_run() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(shim_dir(dir.path())).unwrap();
        let path = dir.path().join("c.log");
        record(dir.path(), 0, false);
        append(&path, "one");
        let ending = Ending::of_newest(dir.path().to_owned(), "c".into());
        let query = LogRequest { follow: true, tail_lines: Some(1), ..LogRequest::default() };
        let file = File::open(&path).await.unwrap();
        let mut log = stream(file, path.clone(), query, Some(ending));
        assert_eq!(log.next().await.unwrap(), "one\n");
        append(&path, "two");
        rotate(&path);
        append(&path, "three");
        assert_eq!(log.next().await.unwrap(), "two\n");
        assert_eq!(log.next().await.unwrap(), "three\n");
        // Put aside while the follower waits.
        let waiting = tokio::spawn(async move { (log.next().await, log) });
        tokio::task::yield_now().await;
        rotate(&path);
        append(&path, "four");
        let (piece, mut log) = waiting.await.unwrap();
        assert_eq!(piece.unwrap(), "four\n");
        // The next run begins before the follower has seen the end of this one.
        record(dir.path(), 0, true);
        rotate(&path);
        append(&path, "of the next run");
        record(dir.path(), 1, false);
        assert_eq!(log.next().await, None);
    }
}
