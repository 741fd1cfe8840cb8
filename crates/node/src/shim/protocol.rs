//! What agent and shim say to each other: one JSON value per line over a unix socket.
//!
//! The shim is dumb on purpose: it starts, signals and watches. Order, restarts and back-off are
//! the agent's decisions, so an agent that comes back finds nothing but facts.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A host path that the container sees.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// On the host.
    pub source: PathBuf,
    /// In the container.
    pub target: PathBuf,
    pub read_only: bool,
    /// The source is a device that may be opened.
    pub device: bool,
    /// The source is a path of the host that the pod chose: it must show nothing of the instance.
    #[serde(default)]
    pub host: bool,
}

/// Version of what the shim does. A shim of an earlier version goes on with what runs in it.
pub const PROTOCOL: u32 = 3;
/// Shims before this version isolate less.
pub const ISOLATES: u32 = 2;
/// Shims before this version start nothing beside a container, and nobody can attach to what runs in them.
pub const STREAMS: u32 = 3;

/// A cgroup that the pod's processes are in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// Its directory on the host.
    pub dir: PathBuf,
    /// Controllers of its hierarchy as mount options; empty for the unified hierarchy.
    pub controllers: String,
    /// It refuses every device that the container may not open, so mounts need not.
    #[serde(default)]
    pub judges_devices: bool,
}

/// What all containers of a pod share.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sandbox {
    /// Host name; the node's when absent.
    pub hostname: Option<String>,
    /// Lines of `/etc/hosts` beside the host's.
    pub hosts: Vec<String>,
    /// Kernel settings of the pod's own namespaces.
    pub sysctls: Vec<(String, String)>,
    pub cgroups: Vec<Cgroup>,
}

/// Which system calls a container may make.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seccomp {
    /// Those that container runtimes allow.
    #[default]
    RuntimeDefault,
    /// All.
    Unconfined,
}

/// How much output is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLimit {
    /// Largest size of a log file in bytes.
    pub max_size: u64,
    /// How many files there are at most, the current one included.
    pub max_files: u32,
}

impl Default for LogLimit {
    /// As the kubelet's.
    fn default() -> Self {
        Self { max_size: 10 << 20, max_files: 5 }
    }
}

/// Everything that is needed to start a container once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRun {
    /// The container's name, unique in its pod.
    pub name: String,
    /// Number of this run, from 0.
    pub attempt: u32,
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Working directory; made when missing.
    pub working_dir: PathBuf,
    pub binds: Vec<Bind>,
    /// Host directories that the container must not see.
    pub hidden: Vec<PathBuf>,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// Capabilities that may be held, as a bit set.
    pub capabilities: u64,
    /// Nothing that the container starts may gain rights.
    pub no_new_privs: bool,
    /// The container sees the host's devices and may write to `/proc/sys` and `/sys`.
    pub privileged: bool,
    pub read_only_root: bool,
    /// Where output goes.
    pub log: PathBuf,
    /// How much of it is kept.
    #[serde(default)]
    pub log_limit: LogLimit,
    /// What it shares with the pod's other containers.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// Which system calls it may make.
    #[serde(default)]
    pub seccomp: Seccomp,
    /// It has a standard input, which clients attach to.
    #[serde(default)]
    pub stdin: bool,
    /// Its input ends when the first client that was attached to it leaves.
    #[serde(default)]
    pub stdin_once: bool,
    /// Its standard streams are a terminal.
    #[serde(default)]
    pub tty: bool,
}

impl ContainerRun {
    /// Says what kind of terminal it is, as container runtimes do, unless the environment does.
    pub(crate) fn name_terminal(&mut self) {
        if !self.env.iter().any(|(name, _)| name == "TERM") {
            self.env.push(("TERM".into(), "xterm".into()));
        }
    }

    /// Whether mounts must refuse devices: a privileged container has all of them, and from others a
    /// cgroup keeps them where there is one.
    pub(super) fn needs_nodev(&self) -> bool {
        !self.privileged && !self.sandbox.cgroups.iter().any(|cgroup| cgroup.judges_devices)
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Exit code; 128 + signal when a signal ended it.
    pub exit_code: i32,
    /// The signal, 0 when none.
    pub signal: i32,
    /// Why it could not be started, when it could not.
    pub start_error: Option<String>,
    /// Milliseconds since the epoch.
    pub finished_at_ms: u64,
}

/// One run of one container, as the shim knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunState {
    /// Container name.
    pub name: String,
    /// Number of the run.
    pub attempt: u32,
    /// Process id on the host; 0 when it could not even be made.
    pub pid: i32,
    /// Start time of that process in clock ticks since boot: with the pid it is an identity.
    pub pid_started: u64,
    /// Milliseconds since the epoch.
    pub started_at_ms: u64,
    /// Absent while it runs.
    pub outcome: Option<Outcome>,
}

/// From agent to shim.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Start a run; a run that is already known is left alone.
    Start(Box<ContainerRun>),
    /// Send a signal to a running container's first process.
    Signal {
        /// Container name.
        name: String,
        /// Signal number.
        signal: i32,
    },
    /// Start a process beside a container's own. It ends with the connection.
    Exec(ExecStart),
    /// Copy a container's output to this client, and let it write to the container's input.
    Attach(AttachStart),
    /// End when nothing runs; what still runs is killed first.
    Quit,
}

impl Request {
    /// How many descriptors come with it.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        match self {
            Self::Exec(ExecStart { tty: true, .. })
            | Self::Start(_)
            | Self::Signal { .. }
            | Self::Quit => 0,
            Self::Exec(start) => {
                [start.stdin, start.stdout, start.stderr].map(usize::from).iter().sum()
            }
            Self::Attach(start) => [start.stdout, start.stderr].map(usize::from).iter().sum(),
        }
    }
}

/// A process to start beside a container's own, with the container's rights. A descriptor comes along for each
/// stream that is wanted, in the order of the fields, unless it gets a terminal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStart {
    pub container: String,
    pub argv: Vec<String>,
    pub tty: bool,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

/// What a client wants of a running container. A descriptor comes along for each output that is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachStart {
    pub container: String,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

/// From shim to agent. After connecting, every known run comes once, then `Ready`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// A run's state.
    Run(RunState),
    /// Everything known has been said.
    Ready,
    /// To the client that asked for streams.
    Stream(StreamNotice),
}

impl Notice {
    /// As it goes over the socket.
    ///
    /// # Errors
    /// It is no JSON.
    pub(crate) fn line(&self) -> std::io::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }
}

/// What becomes of a request for streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamNotice {
    /// The container does not run.
    NotRunning,
    /// The streams are open.
    Accepted {
        /// A descriptor comes along: it leads to the container's input, or is the other end of its terminal.
        input: bool,
    },
    /// The other end of the terminal comes along.
    Terminal,
    /// The process has ended, or the container to which the client was attached.
    Ended {
        /// 128 + signal when a signal ended it.
        exit_code: i32,
    },
    /// There is no process.
    Failed { why: String },
}

/// Who the shim is, so that a later agent can tell it from another process with its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimIdentity {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub pid_started: u64,
    /// See [`PROTOCOL`].
    #[serde(default)]
    pub protocol: u32,
}

/// The shim's directory inside a pod's directory.
#[must_use]
pub fn shim_dir(pod_dir: &Path) -> PathBuf {
    pod_dir.join("shim")
}

/// File with the shim's [`ShimIdentity`].
#[must_use]
pub fn identity_file(pod_dir: &Path) -> PathBuf {
    shim_dir(pod_dir).join("identity.json")
}

/// File with one run's [`RunState`].
#[must_use]
pub fn run_file(pod_dir: &Path, name: &str, attempt: u32) -> PathBuf {
    shim_dir(pod_dir).join(format!("run-{name}-{attempt}.json"))
}

/// All runs on record in a pod's directory; unreadable files are passed over.
#[must_use]
pub fn read_runs(pod_dir: &Path) -> Vec<RunState> {
    let Ok(entries) = std::fs::read_dir(shim_dir(pod_dir)) else { return Vec::new() };
    let mut runs: Vec<RunState> = entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("run-") && name.ends_with(".json")
        })
        .filter_map(|entry| serde_json::from_slice(&std::fs::read(entry.path()).ok()?).ok())
        .collect();
    runs.sort_by(|a, b| (&a.name, a.attempt).cmp(&(&b.name, b.attempt)));
    runs
}

/// Writes a file so that a reader sees the old or the new content, never a part.
///
/// # Errors
/// The file cannot be written.
pub fn write_atomic(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    std::fs::write(&temporary, content)?;
    std::fs::rename(&temporary, path)
}

/// Start time of a process in clock ticks since boot; `None` when there is no such process.
#[must_use]
pub fn process_start(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may hold anything.
    let after_name = stat.rsplit_once(')')?.1;
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Processes of a session, by the number of its leader.
pub(super) fn session_members(leader: i32) -> Vec<rustix::process::Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<i32>().ok());
    pids.filter(|pid| session(*pid) == Some(leader))
        .filter_map(rustix::process::Pid::from_raw)
        .collect()
}

fn session(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(3)?.parse().ok()
}

/// Milliseconds since the epoch.
#[must_use]
pub fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_of_an_earlier_version_gets_all_of_the_isolation() {
        let run: ContainerRun = serde_json::from_value(serde_json::json!({
            "name": "c", "attempt": 0, "argv": ["true"], "env": [], "working_dir": "/", "binds": [],
            "hidden": [], "uid": 0, "gid": 0, "groups": [], "capabilities": 0, "no_new_privs": false,
            "privileged": false, "read_only_root": false, "log": "/l",
        }))
        .unwrap();
        assert_eq!((run.seccomp, run.log_limit), (Seccomp::RuntimeDefault, LogLimit::default()));
        let identity: ShimIdentity =
            serde_json::from_value(serde_json::json!({"pid": 1, "pid_started": 2})).unwrap();
        assert!(identity.protocol < PROTOCOL);
    }
}
