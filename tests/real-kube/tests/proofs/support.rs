//! What the proofs have in common.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use longshore_real_kube::tools::{self, Tool};
use longshore_real_kube::{Cluster, Controllers, Lifetime, Options, Program, longshore};
use longshore_testing::holds_within;
use serde_json::Value;

/// The name by which the official driver goes.
pub const DRIVER: &str = "hostpath.csi.k8s.io";
/// How long something may take before a proof gives up. Long, because machines can be busy.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// The top of the checkout.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The official driver, and what it has on disk.
pub struct Hostpath {
    program: Program,
    pub socket: PathBuf,
    state: PathBuf,
}

impl Hostpath {
    /// Starts it in `dir`.
    pub fn start(dir: &Path, flags: &[&str]) -> Self {
        let (socket, state) = (dir.join("hostpath.sock"), dir.join("hostpath"));
        let mut command = Command::new(tools::path(Tool::Hostpath).unwrap());
        command.arg(format!("--endpoint=unix://{}", socket.display()));
        command.arg(format!("--statedir={}", state.display()));
        command.args(["--nodeid=node-a", "--v=5"]).args(flags);
        let log = dir.join("hostpath.log");
        let mut program = Program::start("hostpath", command, &log, Lifetime::Owner).unwrap();
        program.wait_until(TIMEOUT, None, || socket.exists()).unwrap();
        Self { program, socket, state }
    }

    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// The ids of the volumes that it knows.
    pub fn volumes(&self) -> Vec<String> {
        let text = fs::read(self.state.join("state.json")).unwrap_or_default();
        let state: Value = serde_json::from_slice(&text).unwrap_or_default();
        let all = state["Volumes"].as_array().cloned().unwrap_or_default();
        all.iter().map(|one| text_of(&one["VolID"])).collect()
    }

    /// Where it keeps them.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The directories of volumes.
    pub fn directories(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.state).into_iter().flatten().flatten();
        let dirs = entries.filter(|entry| entry.path().is_dir());
        dirs.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// How often it was asked for something, for instance `NodePublishVolume`.
    pub fn calls(&self, rpc: &str) -> usize {
        let log = fs::read_to_string(self.program.log()).unwrap_or_default();
        log.lines().filter(|line| line.contains("GRPC call") && line.ends_with(rpc)).count()
    }

    pub fn stop(self) {
        self.program.stop().unwrap();
    }
}

/// A cluster that checks rights and writes down every request; its own binder binds.
pub fn guarded_cluster() -> Cluster {
    Cluster::start(&Options {
        rbac: true,
        audit: true,
        controllers: Controllers::Volumes,
        etcd_without_fsync: true,
        ..Options::default()
    })
    .unwrap()
}

/// Applies `deploy/rbac`, as its README says. The API server makes the namespaces of Kubernetes a
/// moment after it is ready.
pub fn apply_deploy_rbac(cluster: &Cluster) {
    let dir = root().join("deploy/rbac");
    let (first, all) = (dir.join("00-namespace.yaml"), dir);
    kubectl(cluster, &["apply", "-f", &first.display().to_string()]);
    let last = std::cell::RefCell::new(String::new());
    eventually(
        "deploy/rbac is applied",
        || last.borrow().clone(),
        || {
            let done = cluster.kubectl(&["apply", "-f", &all.display().to_string()]).unwrap();
            *last.borrow_mut() = String::from_utf8_lossy(&done.stderr).into_owned();
            done.status.success()
        },
    );
}

/// Mount points below a directory.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    longshore_files::mounts::mounts_below(dir).unwrap()
}

/// A service account, as the API server sees it.
pub struct Account {
    pub namespace: &'static str,
    pub name: &'static str,
}

impl Account {
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }

    /// A kubeconfig that makes its holder this account, with the groups that every account has.
    pub fn kubeconfig(&self, cluster: &Cluster) -> PathBuf {
        let group = format!("system:serviceaccounts:{}", self.namespace);
        cluster.kubeconfig_for(&self.user(), &["system:serviceaccounts", &group]).unwrap()
    }
}

/// Starts a program of ours as an account.
pub fn start_ours(cluster: &mut Cluster, account: &Account, name: &str, args: &[&str]) {
    let kubeconfig = account.kubeconfig(cluster);
    let mut command = Command::new(longshore());
    command.args(args).arg("--kubeconfig").arg(kubeconfig).env_remove("KUBECONFIG");
    cluster.add(name, command).unwrap();
}

/// The log of a program of the cluster, for messages.
pub fn log_of(cluster: &Cluster, name: &str) -> String {
    fs::read_to_string(cluster.dir().join(format!("{name}.log"))).unwrap_or_default()
}

/// Runs kubectl as the administrator; it must succeed.
pub fn kubectl(cluster: &Cluster, args: &[&str]) -> String {
    kubectl_with(cluster, args, "")
}

pub fn kubectl_with(cluster: &Cluster, args: &[&str], stdin: &str) -> String {
    let done = cluster.kubectl_as(cluster.kubeconfig(), args, stdin).unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "kubectl {args:?}: {error}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// One object as JSON.
pub fn object(cluster: &Cluster, kind: &str, name: &str) -> Value {
    serde_json::from_str(&kubectl(cluster, &["get", kind, name, "-o", "json"])).unwrap()
}

/// Whether an account may do something, by the API server's own word.
pub fn may(cluster: &Cluster, account: &Account, what: &[&str]) -> bool {
    let mut args = vec!["auth", "can-i"];
    args.extend(what);
    let done = cluster.kubectl_as(&account.kubeconfig(cluster), &args, "").unwrap();
    String::from_utf8_lossy(&done.stdout).trim() == "yes"
}

/// The requests of an account by the audit log: all, and those that were forbidden.
pub fn requests(cluster: &Cluster, account: &Account) -> (Vec<String>, Vec<String>) {
    let (mut all, mut forbidden) = (Vec::new(), Vec::new());
    let log = fs::read_to_string(cluster.audit_log().unwrap()).unwrap();
    for line in log.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        // Those of kubectl ask about rights on purpose.
        let agent = text_of(&event["userAgent"]);
        if event["user"]["username"] != account.user() || agent.starts_with("kubectl") {
            continue;
        }
        let resource = text_of(&event["objectRef"]["resource"]);
        all.push(format!("{} {resource}", text_of(&event["verb"])));
        if event["responseStatus"]["code"] == 403 {
            forbidden.push(format!(
                "{} {}",
                text_of(&event["verb"]),
                text_of(&event["requestURI"])
            ));
        }
    }
    (all, forbidden)
}

pub fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Waits for any condition.
pub fn eventually(what: &str, log: impl Fn() -> String, done: impl Fn() -> bool) {
    assert!(holds_within(TIMEOUT, done), "never happened: {what}\n{}", log());
}
