//! Everything that `longshore up` is, as processes of their own, so that each can be ended alone.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use super::common::{Beside, Home, Instance, PATIENCE, binary};

pub const NODE: &str = "node-a";

/// Drivers and classes; the API alone starts without any.
const OBJECTS: &str = r#"
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: local.csi.longshore.dev}
spec: {attachRequired: false}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: shared.csi.longshore.dev}
spec: {attachRequired: true}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: local.csi.longshore.dev
volumeBindingMode: Immediate
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: shared}
provisioner: shared.csi.longshore.dev
volumeBindingMode: WaitForFirstConsumer
"#;

/// Where the agent ends itself, and what it forgets.
#[derive(Debug, Clone, Default)]
pub struct Plot {
    /// A point, and at which passing of it.
    pub fault: Option<(&'static str, u32)>,
    /// A planted bug.
    pub forgets: Option<&'static str>,
}

/// The processes. Those that are not the API or the agent live as long as this value.
pub struct Stack {
    node: Option<Child>,
    api: Option<Instance>,
    _others: Vec<Beside>,
    pub kubeconfig: PathBuf,
    address: String,
    pub home: Home,
}

impl Stack {
    /// Starts all but the agent.
    pub fn start(test: &str) -> Self {
        let home = Home::new(test);
        let api = Instance::start(&home, "api", &["apiserver"]);
        api.apply(OBJECTS);
        let registry = home.path().join("n/plugins_registry");
        fs::create_dir_all(&registry).unwrap();
        let kubeconfig = api.kubeconfig.clone();
        let at = |path: PathBuf| path.display().to_string();
        let config = at(kubeconfig.clone());
        let mut others = Vec::new();
        let mut start = |name: &str, args: &[&str]| others.push(Beside::start(&home, name, args));
        for kind in ["local", "shared"] {
            let socket = at(home.path().join(format!("{kind}.sock")));
            let endpoint = format!("unix://{socket}");
            let pool = at(home.path().join(format!("pool-{kind}")));
            let driver = ["driver", "--kind", kind, "--node-id", NODE, "--pool", &pool];
            start(kind, &[&driver[..], &["--endpoint", &endpoint]].concat());
            let address = format!("--csi-address={socket}");
            let path = format!("--kubelet-registration-path={socket}");
            let plugins = format!("--plugin-registration-path={}", registry.display());
            start(&format!("{kind}-registrar"), &["node-registrar", &address, &path, &plugins]);
            let line = ["provisioner", &address, "--leak-guard", "--kubeconfig", &config];
            start(&format!("{kind}-provisioner"), &line);
            if kind == "shared" {
                start("attacher", &["attacher", &address, "--kubeconfig", &config]);
            }
        }
        let all = ["controllers", "--controllers=*,scheduler", "--leader-elect=false"];
        start("controllers", &[&all[..], &["--kubeconfig", &config]].concat());
        let address = api.address();
        Self { node: None, api: Some(api), _others: others, kubeconfig, address, home }
    }

    /// The agent's root directory.
    pub fn root(&self) -> PathBuf {
        self.home.path().join("n")
    }

    /// Starts the agent, which must not run.
    pub fn start_node(&mut self, plot: &Plot) {
        assert!(self.node.is_none(), "one agent at a time");
        let log = self.home.path().join("node.log");
        let log = fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(binary());
        command.args(["node", "--node-name", NODE, "--root-dir"]).arg(self.root());
        command.arg("--kubeconfig").arg(&self.kubeconfig).env_remove("KUBECONFIG");
        if let Some((point, times)) = plot.fault {
            command.env("LONGSHORE_NODE_FAULT", format!("{point}:{times}"));
        }
        if let Some(what) = plot.forgets {
            command.env("LONGSHORE_NODE_FORGETS", what);
        }
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.node = Some(command.spawn().unwrap());
    }

    /// Waits until the agent has ended itself; false when it does not.
    pub fn node_died(&mut self, patience: Duration) -> bool {
        use std::os::unix::process::ExitStatusExt as _;
        let began = Instant::now();
        let node = self.node.as_mut().unwrap();
        while began.elapsed() < patience {
            if let Some(status) = node.try_wait().unwrap() {
                assert_eq!(status.signal(), Some(9), "the agent ended: {status}\n{}", self.log());
                self.node = None;
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// `kill -9`.
    pub fn kill_node(&mut self) {
        let mut node = self.node.take().unwrap();
        node.kill().unwrap();
        node.wait().unwrap();
    }

    /// The API ends, as `kill -9` would end it.
    pub fn kill_api(&mut self) {
        self.api.take().unwrap().kill();
    }

    /// The API again, where it was.
    pub fn start_api(&mut self) {
        self.api = Some(Instance::start_at(&self.home, "api", &["apiserver"], &self.address));
    }

    /// The API stands still, or goes on.
    pub fn signal_api(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.api.as_ref().unwrap().pid()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// The last lines of every program.
    pub fn log(&self) -> String {
        let mut all = String::new();
        let files = fs::read_dir(self.home.path()).into_iter().flatten().flatten();
        for file in files.map(|entry| entry.path()) {
            if file.extension().is_some_and(|extension| extension == "log") {
                let text = fs::read_to_string(&file).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let last = lines[lines.len().saturating_sub(25)..].join("\n");
                all += &format!("{}:\n{last}\n", file.display());
            }
        }
        all
    }

    /// Ends the agent in order; it leaves pods and mounts alone.
    pub fn stop_node(&mut self) {
        let mut node = self.node.take().unwrap();
        let pid = rustix::process::Pid::from_child(&node);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let began = Instant::now();
        while node.try_wait().unwrap().is_none() {
            if began.elapsed() > PATIENCE {
                node.kill().unwrap();
                node.wait().unwrap();
                panic!("the agent does not stop:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if let Some(node) = &mut self.node {
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}
