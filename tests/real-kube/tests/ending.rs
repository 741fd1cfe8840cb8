//! Clusters end with their owner, or by command, and leave nothing: also when interrupted half-way.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use longshore_files::mounts::MountTable;
use longshore_real_kube::state::{self, State};
use longshore_real_kube::tools::{Tool, need};
use longshore_real_kube::{Cluster, Options, Process, beside, node};
use rustix::process::{Pid, Signal, kill_process};

const API: [Tool; 3] = [Tool::Etcd, Tool::KubeApiserver, Tool::Kubectl];
const TIMEOUT: Duration = Duration::from_secs(120);
/// Tells this program, run as a child, to own a cluster until it is killed.
const HOLD: &str = "LONGSHORE_TEST_HOLD";

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

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// A temporary directory in which a child makes its clusters; none survives a failed test.
struct Temp(tempfile::TempDir);

impl Temp {
    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        for entry in fs::read_dir(self.path()).into_iter().flatten().flatten() {
            let _ = state::end(&entry.path());
        }
    }
}

fn temp(test: &str) -> Temp {
    Temp(tempfile::Builder::new().prefix(&format!("longshore-{test}-")).tempdir().unwrap())
}

/// The cluster that a child has made in its temporary directory, with so many programs.
fn cluster_in(temp: &Path, programs: usize) -> Option<(PathBuf, State)> {
    let dir = fs::read_dir(temp).unwrap().flatten().map(|entry| entry.path()).next()?;
    let state = State::load(&dir).ok()?;
    (state.programs.len() >= programs).then_some((dir, state))
}

/// The cluster in the common temporary directory that a child owns.
fn cluster_of(child: &Child) -> Option<(PathBuf, State)> {
    let entries = fs::read_dir(env::temp_dir()).unwrap().flatten();
    let mut clusters = entries.filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours = name.starts_with(state::PREFIX);
        ours.then(|| Some((entry.path(), State::load(&entry.path()).ok()?))).flatten()
    });
    clusters.find(|(_, state)| state.owner.as_ref().is_some_and(|one| one.pid == child.id()))
}

fn assert_empty(temp: &Path, programs: &[Process]) {
    for process in programs {
        assert!(!process.runs(), "{process:?} still runs");
    }
    let left: Vec<_> = fs::read_dir(temp).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    let text = format!("{}/", temp.display());
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        assert!(!line.contains(&text), "left behind: {:?} {line}", entry.file_name());
    }
}

/// `xtask real-kube …` in a temporary directory of its own.
fn xtask(temp: &Path, args: &[&str]) -> Option<Command> {
    let Some(program) = beside("xtask") else {
        let strict = env::var("LONGSHORE_TEST_STRICT").is_ok_and(|value| value == "1");
        let text = "SKIPPED: xtask is not built; run `cargo build --package xtask`";
        assert!(!strict, "{text}");
        eprintln!("{text}");
        return None;
    };
    let mut command = Command::new(program);
    command.arg("real-kube").args(args).env("TMPDIR", temp);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(command)
}

const SMALL: [&str; 4] = ["up", "--controllers", "none", "--no-scheduler"];

/// Interrupts `up` when so many programs were started.
fn interrupt_up(programs: usize, with: Signal) {
    if !need(&API) {
        return;
    }
    let temp = temp("interrupted");
    let Some(mut command) = xtask(temp.path(), &SMALL) else { return };
    let mut child = command.spawn().unwrap();
    let (_, state) = wait("programs to start", || {
        assert!(child.try_wait().unwrap().is_none(), "it ended: {}", said(&mut child));
        cluster_in(temp.path(), programs)
    });
    interrupt(child, with);
    assert_empty(temp.path(), &state.programs);
}

/// What a child that has ended said.
fn said(child: &mut Child) -> String {
    std::io::read_to_string(child.stderr.take().unwrap()).unwrap()
}

fn interrupt(child: Child, with: Signal) {
    signal(&child, with);
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("interrupted"), "{}: {said}", done.status);
    assert!(done.stdout.is_empty(), "no kubeconfig of a cluster that is gone");
}

/// Cgroups of that name, in every hierarchy.
fn cgroups(name: &str) -> Vec<PathBuf> {
    let table = MountTable::read().unwrap();
    table.cgroups().map(|mount| mount.path.join(name)).filter(|path| path.exists()).collect()
}

#[test]
fn an_interrupt_at_the_node_leaves_nothing() {
    if !need(&API) || !need(&[Tool::Kubelet]) || !node::possible() {
        return;
    }
    // In the common directory: the paths of a node's sockets have no room for one more.
    let args = [&SMALL[..], &["--node"]].concat();
    let Some(mut command) = xtask(&env::temp_dir(), &args) else { return };
    let mut child = command.spawn().unwrap();
    let (dir, state) = wait("containerd to start", || {
        assert!(child.try_wait().unwrap().is_none(), "it ended: {}", said(&mut child));
        let (dir, state) = cluster_of(&child)?;
        dir.join("node/containerd.sock").exists().then_some((dir, state))
    });
    let name = dir.file_name().unwrap().to_str().unwrap();
    assert!(!cgroups(name).is_empty(), "the node has cgroups named {name}");
    let record = fs::read_to_string(dir.join("node/machine.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    let link = Path::new("/sys/class/net").join(record["link"].as_str().unwrap());
    assert!(link.exists());
    interrupt(child, Signal::INT);
    assert!(!dir.exists() && !state.programs.iter().any(Process::runs));
    assert_eq!(cgroups(name), Vec::<PathBuf>::new());
    assert!(!link.exists(), "{} is still there", link.display());
}

#[test]
fn an_interrupt_at_the_store_leaves_nothing() {
    interrupt_up(1, Signal::INT);
}

#[test]
fn an_interrupt_at_the_api_server_leaves_nothing() {
    interrupt_up(2, Signal::INT);
}

#[test]
fn a_request_to_end_leaves_nothing() {
    interrupt_up(2, Signal::TERM);
}

#[test]
fn up_lives_on_until_down_ends_exactly_it() {
    if !need(&API) {
        return;
    }
    let temp = temp("updown");
    let Some(mut up) = xtask(temp.path(), &SMALL) else { return };
    let (one, two) = (up.spawn().unwrap(), up.output().unwrap());
    let one = one.wait_with_output().unwrap();
    for done in [&one, &two] {
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    let text = String::from_utf8(one.stdout).unwrap();
    let kubeconfig = text.lines().find_map(|line| line.strip_prefix("export KUBECONFIG=")).unwrap();
    let dir = Path::new(kubeconfig).parent().unwrap();
    let first = State::load(dir).unwrap();
    assert!(first.owner.is_none() && first.programs.iter().all(Process::runs));
    let mut kubectl = Command::new(longshore_real_kube::tools::path(Tool::Kubectl).unwrap());
    kubectl.args(["--kubeconfig", kubeconfig, "get", "namespace", "default"]);
    kubectl.arg("--cache-dir").arg(dir.join("kubectl-cache"));
    assert!(kubectl.output().unwrap().status.success());

    let end_one = ["down", dir.to_str().unwrap()];
    assert!(xtask(temp.path(), &end_one).unwrap().output().unwrap().status.success());
    assert!(!dir.exists() && !first.programs.iter().any(Process::runs));
    let (_, second) = cluster_in(temp.path(), 2).unwrap();
    assert!(second.programs.iter().all(Process::runs), "the other cluster was not meant");

    let done = xtask(temp.path(), &["down"]).unwrap().output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("2 programs ended"), "{said}");
    assert_empty(temp.path(), &second.programs);
}

#[test]
fn a_killed_owner_takes_its_programs_along() {
    if env::var_os(HOLD).is_some() {
        let options = Options { etcd_without_fsync: true, ..Options::default() };
        let _cluster = Cluster::start(&options).unwrap();
        thread::sleep(TIMEOUT);
        return;
    }
    if !need(&API) {
        return;
    }
    let temp = temp("killed");
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "a_killed_owner_takes_its_programs_along"]);
    command.env(HOLD, "1").env("TMPDIR", temp.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut owner = command.spawn().unwrap();
    let (dir, state) = wait("programs to start", || cluster_in(temp.path(), 2));
    assert!(!state.abandoned());
    let refused = state::end(&dir).unwrap_err().to_string();
    assert!(refused.contains("which still runs"), "{refused}");

    owner.kill().unwrap();
    owner.wait().unwrap();
    wait("the programs to end", || (!state.programs.iter().any(Process::runs)).then_some(()));
    // The directory of a killed owner is what `down` cleans up.
    assert!(State::load(&dir).unwrap().abandoned());
    assert_eq!(state::end(&dir).unwrap(), 0);
    assert_empty(temp.path(), &state.programs);
}
