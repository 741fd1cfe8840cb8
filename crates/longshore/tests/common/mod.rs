//! A real `longshore up` (or `apiserver`) in a child process, and clean-up that also works after a panic.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use longshore_testing::{Need, holds_within, need};

/// How long a condition may take before a test gives up. Long, because machines can be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What every end-to-end test needs.
pub fn can_run(test: &str) -> bool {
    need(test, &[Need::Root, Need::LoopDevices, Need::Tool("mkfs.ext4")])
}

pub fn can_kubectl(test: &str) -> bool {
    need(test, &[Need::Root, Need::LoopDevices, Need::Tool("mkfs.ext4"), Need::Tool("kubectl")])
}

/// The binary under test.
pub fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_longshore"))
}

/// A directory of this test's own, removed at the end with all that hangs on it.
pub struct Home {
    dir: Option<tempfile::TempDir>,
}

impl Home {
    pub fn new(test: &str) -> Self {
        let prefix = format!("longshore-e2e-{test}-");
        Self { dir: Some(tempfile::Builder::new().prefix(&prefix).tempdir().unwrap()) }
    }

    /// Outside of `/tmp`, of which pods have one of their own.
    pub fn outside_tmp(test: &str) -> Self {
        let prefix = format!("longshore-e2e-{test}-");
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir_in("/var/tmp").unwrap();
        Self { dir: Some(dir) }
    }

    pub fn path(&self) -> &Path {
        self.dir.as_ref().unwrap().path()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        sweep(self.path());
        if let Some(dir) = self.dir.take() {
            let _ = dir.close();
        }
    }
}

/// Ends processes, mounts and loop devices that refer to `dir`: the safety net of a failed test.
fn sweep(dir: &Path) {
    let text = dir.display().to_string();
    for pid in [processes_of(dir), container_processes(dir)].concat() {
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
    }
    for cgroup in cgroups_below(dir) {
        for pod in fs::read_dir(&cgroup).into_iter().flatten().flatten() {
            for container in fs::read_dir(pod.path()).into_iter().flatten().flatten() {
                let _ = fs::remove_dir(container.path());
            }
            let _ = fs::remove_dir(pod.path());
        }
        let _ = fs::remove_dir(&cgroup);
        let _ = cgroup.parent().map(fs::remove_dir);
    }
    for _ in 0..3 {
        for mount in mounts_below(dir).into_iter().rev() {
            let _ = Command::new("umount").args(["-l", &mount]).stderr(Stdio::null()).status();
        }
    }
    for (device, backing) in loops() {
        if backing.contains(&text) {
            let _ = Command::new("losetup").args(["-d", &device]).stderr(Stdio::null()).status();
        }
    }
}

/// Processes whose command line names `dir`.
pub fn processes_of(dir: &Path) -> Vec<u32> {
    let text = dir.display().to_string();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    pids.filter(|pid| *pid != std::process::id())
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&text)
        })
        .collect()
}

pub fn mounts_below(dir: &Path) -> Vec<String> {
    let points = longshore_files::mounts::mounts_below(dir).unwrap();
    points.into_iter().map(|point| point.display().to_string()).collect()
}

/// Where instances below `dir` have the cgroups of their pods.
pub fn cgroups_below(dir: &Path) -> Vec<PathBuf> {
    let below =
        |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|one| one.path());
    let mut found = Vec::new();
    for data in below(dir).flat_map(|one| below(&one).chain([one]).collect::<Vec<_>>()) {
        for root in below(&data.join("nodes")).chain([data]) {
            let bases = fs::read_to_string(root.join("cgroup")).unwrap_or_default();
            found.extend(bases.lines().map(PathBuf::from));
        }
    }
    found.retain(|cgroup| cgroup.exists());
    found
}

/// Processes of containers of instances below `dir`. Their command lines do not name it.
pub fn container_processes(dir: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    let mut cgroups = cgroups_below(dir);
    while let Some(cgroup) = cgroups.pop() {
        let text = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        found.extend(text.lines().filter_map(|pid| pid.parse::<u32>().ok()));
        let below = fs::read_dir(&cgroup).into_iter().flatten().flatten();
        cgroups.extend(below.map(|one| one.path()).filter(|path| path.is_dir()));
    }
    found
}

/// Attached loop devices with their backing files.
pub fn loops() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").unwrap().flatten() {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if !file.is_empty() {
            let name = entry.file_name().to_string_lossy().into_owned();
            found.push((format!("/dev/{name}"), file.trim().to_owned()));
        }
    }
    found
}

pub fn loops_below(dir: &Path) -> Vec<String> {
    let text = dir.display().to_string();
    loops().into_iter().filter(|(_, file)| file.contains(&text)).map(|(device, _)| device).collect()
}

/// Image files in any pool below `dir`.
pub fn images_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(next) = todo.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() && !path.is_symlink() {
                todo.push(path);
            } else if path.extension().is_some_and(|extension| extension == "img") {
                found.push(path);
            }
        }
    }
    found
}

/// A running instance.
pub struct Instance {
    child: Child,
    pub data_dir: PathBuf,
    pub kubeconfig: PathBuf,
    /// The kubectl that the test asks with.
    pub kubectl: PathBuf,
    log: PathBuf,
}

impl Instance {
    /// Starts `longshore up` on a free port and waits for its `ready` line.
    pub fn up(home: &Home, name: &str) -> Self {
        Self::start(home, name, &["up"])
    }

    pub fn start(home: &Home, name: &str, args: &[&str]) -> Self {
        Self::start_at(home, name, args, "127.0.0.1:0")
    }

    /// On an address of the caller's choice.
    pub fn start_at(home: &Home, name: &str, args: &[&str], listen: &str) -> Self {
        let data_dir = home.path().join(name);
        let log = home.path().join(format!("{name}.log"));
        let log_file = fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let mut child = Command::new(binary())
            .args(args)
            .args(["--listen", listen, "--data-dir"])
            .arg(&data_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log_file)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Some(path) = line.trim().strip_prefix("ready kubeconfig=") else {
            let text = fs::read_to_string(&log).unwrap_or_default();
            panic!("not ready: {line:?}\n{text}");
        };
        let kubeconfig = PathBuf::from(path);
        Self { child, data_dir, kubeconfig, kubectl: "kubectl".into(), log }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where the API is served, as `--listen` takes it.
    pub fn address(&self) -> String {
        let text = fs::read_to_string(&self.kubeconfig).unwrap();
        let (_, rest) = text.split_once("https://").unwrap();
        let end = rest.find(['"', '\n', '/']).unwrap_or(rest.len());
        rest[..end].trim().to_owned()
    }

    /// Ends the process at once, as a crash would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it with SIGTERM; no process, mount or loop device below `home` may be left.
    pub fn stop_without_a_trace(self, home: &Home) {
        assert_eq!(self.stop(), Some(0));
        assert_eq!(processes_of(home.path()), Vec::<u32>::new());
        assert_eq!(loops_below(home.path()), Vec::<String>::new());
        assert_eq!(mounts_below(home.path()), Vec::<String>::new());
        assert_eq!(cgroups_below(home.path()), Vec::<PathBuf>::new());
    }

    /// SIGTERM, then the exit code.
    pub fn stop(mut self) -> Option<i32> {
        terminate(&mut self.child).unwrap_or_else(|| panic!("did not stop:\n{}", self.log_text()))
    }

    pub fn log_text(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(80)..].join("\n")
    }

    /// Runs the real kubectl against this instance.
    pub fn kubectl(&self, args: &[&str]) -> Output {
        self.kubectl_with(args, "")
    }

    pub fn kubectl_with(&self, args: &[&str], stdin: &str) -> Output {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command.arg("--cache-dir").arg(self.data_dir.join("kubectl-cache"));
        run_with(command.args(args), stdin)
    }

    /// Runs our own client commands against this instance.
    pub fn cli(&self, args: &[&str]) -> Output {
        self.cli_with(args, "")
    }

    pub fn cli_with(&self, args: &[&str], stdin: &str) -> Output {
        let mut command = Command::new(binary());
        run_with(command.args(args).arg("--kubeconfig").arg(&self.kubeconfig), stdin)
    }

    pub fn apply(&self, yaml: &str) {
        let done = self.cli_with(&["apply", "-f", "-"], yaml);
        assert!(done.status.success(), "apply: {}", text(&done));
    }

    /// One object as JSON; null when it is not there.
    pub fn json(&self, kind: &str, name: &str) -> serde_json::Value {
        let done = self.cli(&["get", kind, name, "-o", "json"]);
        if !done.status.success() {
            return serde_json::Value::Null;
        }
        serde_json::from_slice(&done.stdout).unwrap_or_default()
    }

    /// Waits until one object's JSON fulfils `done`.
    pub fn wait(
        &self,
        kind: &str,
        name: &str,
        what: &str,
        done: impl Fn(&serde_json::Value) -> bool,
    ) {
        let began = Instant::now();
        let mut last = serde_json::Value::Null;
        while began.elapsed() < PATIENCE {
            last = self.json(kind, name);
            if done(&last) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{kind}/{name} never {what}; last seen {last:#}\nlog:\n{}", self.log_text());
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command that reads this.
pub fn run_with(command: &mut Command, stdin: &str) -> Output {
    use std::io::Write as _;
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let text = stdin.to_owned();
    // Beside it: what a command writes while it reads fills the pipe. One that reads nothing may be gone.
    let writing = std::thread::spawn(move || drop(input.write_all(text.as_bytes())));
    let done = child.wait_with_output().unwrap();
    writing.join().unwrap();
    done
}

pub fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A claim of 16 MiB.
pub fn claim(name: &str, class: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: default}}\n\
         spec:\n  accessModes: [ReadWriteOnce]\n  storageClassName: {class}\n  resources: {{requests: {{storage: 16Mi}}}}\n"
    )
}

/// A claim of [`claim`] that is filled from something.
pub fn filled(name: &str, class: &str, source: &str) -> String {
    format!("{}\n  dataSource: {source}\n", claim(name, class).trim_end())
}

/// The source of a claim that is filled from a snapshot.
pub fn from_snapshot(name: &str) -> String {
    format!("{{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: {name}}}")
}

/// A snapshot of a claim, of the default class of its driver.
pub fn snapshot(name: &str, claim: &str) -> String {
    format!(
        "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\n\
         metadata: {{name: {name}, namespace: default}}\n\
         spec: {{source: {{persistentVolumeClaimName: {claim}}}}}\n"
    )
}

/// Whether a snapshot or a group snapshot can be restored.
pub fn ready(snapshot: &serde_json::Value) -> bool {
    snapshot["status"]["readyToUse"] == true
}

pub fn succeeded(pod: &serde_json::Value) -> bool {
    pod["status"]["phase"] == "Succeeded"
}

/// A pod of [`pod`] that runs on this node only.
pub fn on_node(yaml: &str, node: &str) -> String {
    yaml.replace(
        "spec:\n  restartPolicy",
        &format!("spec:\n  nodeSelector: {{kubernetes.io/hostname: {node}}}\n  restartPolicy"),
    )
}

/// A pod that runs a shell script with the claim at `/data`.
pub fn pod(name: &str, claim: &str, script: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: default}}\nspec:\n  restartPolicy: Never\n  \
         terminationGracePeriodSeconds: 1\n  containers:\n  - name: main\n    image: host\n    command: [/bin/sh, -c, {}]\n    \
         volumeMounts: [{{name: data, mountPath: /data}}]\n  volumes:\n  - name: data\n    persistentVolumeClaim: {{claimName: {claim}}}\n",
        serde_json::Value::from(script)
    )
}

/// Waits for any condition.
pub fn eventually(what: &str, done: impl Fn() -> bool) {
    assert!(holds_within(PATIENCE, done), "never happened: {what}");
}

/// SIGTERM; then the exit code, or none if the process goes on.
fn terminate(child: &mut Child) -> Option<Option<i32>> {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mut status = None;
    let ended = holds_within(PATIENCE, || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.filter(|_| ended).map(|status| status.code())
}

/// Another program of ours beside an instance; killed with the value.
pub struct Beside {
    child: Child,
    log: PathBuf,
}

impl Beside {
    /// `longshore ARGS`, with its log in the home.
    pub fn start(home: &Home, name: &str, args: &[&str]) -> Self {
        Self::start_command(home, name, Command::new(binary()).args(args))
    }

    pub fn start_command(home: &Home, name: &str, command: &mut Command) -> Self {
        let log = home.path().join(format!("{name}.log"));
        let file = fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        Self { child: command.env_remove("KUBECONFIG").spawn().unwrap(), log }
    }

    /// SIGTERM, then the exit code.
    pub fn stop(mut self) -> Option<i32> {
        terminate(&mut self.child).unwrap_or_else(|| panic!("did not stop:\n{}", self.log_text()))
    }

    pub fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Instance {
    /// The messages of an object's events, each after its reason.
    pub fn events(&self, name: &str) -> Vec<String> {
        let done = self.cli(&["get", "events", "-A", "-o", "json"]);
        let list: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
        let all = list["items"].as_array().cloned().unwrap_or_default();
        let about = all.into_iter().filter(|event| event["involvedObject"]["name"] == name);
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        about
            .map(|event| format!("{}: {}", text(&event["reason"]), text(&event["message"])))
            .collect()
    }

    /// Waits for an event of an object with all these words, and gives it.
    pub fn event(&self, name: &str, words: &[&str]) -> String {
        let began = Instant::now();
        loop {
            let events = self.events(name);
            let found = events.iter().find(|event| words.iter().all(|word| event.contains(word)));
            if let Some(found) = found {
                return found.clone();
            }
            assert!(
                began.elapsed() < PATIENCE,
                "{name} never had an event with {words:?}, but {events:#?}\nlog:\n{}",
                self.log_text()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn bound(&self, claim: &str) -> serde_json::Value {
        self.wait("pvc", claim, "was bound", |claim| claim["status"]["phase"] == "Bound");
        let name = self.json("pvc", claim)["spec"]["volumeName"].as_str().unwrap().to_owned();
        self.json("pv", &name)
    }

    /// Runs a pod with the claim at `/data` to its end, which has to be a good one, and removes it.
    pub fn run_pod(&self, name: &str, claim: &str, script: &str) {
        self.apply(&pod(name, claim, script));
        self.wait("pod", name, "succeeded", succeeded);
        self.delete("pod", name);
    }

    /// All objects of a kind.
    pub fn list(&self, kind: &str) -> Vec<serde_json::Value> {
        let done = self.cli(&["get", kind, "-A", "-o", "json"]);
        let list: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    pub fn delete(&self, kind: &str, name: &str) {
        let done = self.cli(&["delete", kind, name]);
        assert!(done.status.success(), "delete {kind} {name}: {}", text(&done));
        self.wait(kind, name, "went", serde_json::Value::is_null);
    }
}

/// A class of a provisioner; `more` are further lines.
pub fn class(name: &str, provisioner: &str, more: &str) -> String {
    format!(
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {{name: {name}}}\n\
         provisioner: {provisioner}\n{more}\n"
    )
}
