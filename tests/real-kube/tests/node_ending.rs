//! A node ends with its cluster, also when its owner is interrupted or killed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use longshore_real_kube::tools::{Tool, need};
use longshore_real_kube::{Cluster, Options, beside, node, state};
use rustix::process::{Pid, Signal, kill_process};
use support::Traces;

const TOOLS: [Tool; 4] = [Tool::Etcd, Tool::KubeApiserver, Tool::Kubelet, Tool::Kubectl];
const TIMEOUT: Duration = Duration::from_secs(120);
/// Tells this program, run as a child, to own a cluster until it is killed.
const HOLD: &str = "LONGSHORE_TEST_HOLD";
/// What a node has as soon as its kubelet is started.
const EARLY: [&str; 3] = ["process", "cgroup", "link"];

fn wait<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A temporary directory in which a child makes its clusters; none survives a failed test.
struct Temp(tempfile::TempDir);

impl Temp {
    /// Short, for the sockets below it.
    fn new() -> Self {
        Self(tempfile::Builder::new().prefix("longshore-").rand_bytes(4).tempdir().unwrap())
    }

    /// The directory of the one cluster.
    fn cluster(&self) -> Option<PathBuf> {
        fs::read_dir(self.0.path()).unwrap().flatten().map(|entry| entry.path()).next()
    }

    /// The traces of its node, once the program has written its log.
    fn traces(&self, program: &str) -> Option<Traces> {
        let dir = self.cluster()?;
        dir.join(format!("node/{program}.log")).exists().then(|| Traces::of(&dir))?
    }

    fn xtask(&self, args: &[&str]) -> Option<Command> {
        let Some(program) = beside("xtask") else {
            let strict = env::var("LONGSHORE_TEST_STRICT").is_ok_and(|value| value == "1");
            let text = "SKIPPED: xtask is not built; run `cargo build --package xtask`";
            assert!(!strict, "{text}");
            eprintln!("{text}");
            return None;
        };
        let mut command = Command::new(program);
        command.arg("real-kube").args(args).env("TMPDIR", self.0.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Some(command)
    }

    fn up(&self) -> Option<Command> {
        self.xtask(&["up", "--node", "--controllers", "none", "--no-scheduler"])
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        while let Some(dir) = self.cluster() {
            if state::end(&dir).is_err() {
                break;
            }
        }
    }
}

fn interrupt_at(program: &str) {
    if !node::possible() || !need(&TOOLS) {
        return;
    }
    let temp = Temp::new();
    let Some(mut up) = temp.up() else { return };
    let child = up.spawn().unwrap();
    let traces = wait("the node to start", || temp.traces(program));
    traces.assert_there(&EARLY);
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("interrupted"), "{}: {said}", done.status);
    traces.assert_gone();
    assert_eq!(temp.cluster(), None);
}

#[test]
fn an_interrupt_at_containerd_leaves_nothing() {
    interrupt_at("containerd");
}

#[test]
fn an_interrupt_at_the_kubelet_leaves_nothing() {
    interrupt_at("kubelet");
}

/// `up` lets its programs live on, so after a kill half-way they do, until `down` ends them.
#[test]
fn down_ends_the_node_of_a_killed_up() {
    if !node::possible() || !need(&TOOLS) {
        return;
    }
    let temp = Temp::new();
    let Some(mut up) = temp.up() else { return };
    let mut child = up.spawn().unwrap();
    let traces = wait("the node to start", || temp.traces("kubelet"));
    child.kill().unwrap();
    child.wait().unwrap();
    traces.assert_there(&EARLY);
    let done = temp.xtask(&["down"]).unwrap().output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    traces.assert_gone();
    assert_eq!(temp.cluster(), None);
}

#[test]
fn a_killed_owner_takes_its_node_along() {
    if env::var_os(HOLD).is_some() {
        let options = Options { node: true, etcd_without_fsync: true, ..Options::default() };
        let _cluster = Cluster::start(&options).unwrap();
        thread::sleep(TIMEOUT);
        return;
    }
    if !node::possible() || !need(&TOOLS) {
        return;
    }
    let temp = Temp::new();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "a_killed_owner_takes_its_node_along"]).env(HOLD, "1");
    command.env("TMPDIR", temp.0.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut owner = command.spawn().unwrap();
    let traces = wait("the node to start", || temp.traces("kubelet"));
    traces.assert_there(&EARLY);
    owner.kill().unwrap();
    owner.wait().unwrap();
    // The kernel ends the processes; what has no owner is taken away by `down`.
    traces.wait_for_processes_to_end();
    let dir: &Path = &temp.cluster().unwrap();
    assert_eq!(state::end(dir).unwrap(), 0);
    traces.assert_gone();
}
