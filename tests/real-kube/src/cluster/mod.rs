//! A real control plane in a temporary directory.

mod control_plane;
mod kubeconfig;
mod rolling;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, bail};

use crate::http::Https;
use crate::node::Node;
use crate::pki::{Ca, write_private};
use crate::process::Process;
use crate::program::{Interrupt, Lifetime, Program, interrupted};
use crate::state::{PREFIX, State};
use crate::sweep;
use crate::tools::{self, Tool};

/// The group that may do everything.
pub const MASTERS: &str = "system:masters";
const ADMIN: &str = "longshore-admin";

/// Which controllers of Kubernetes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Controllers {
    /// None: nothing acts on objects but what the test starts.
    #[default]
    None,
    /// Those that volumes need.
    Volumes,
    /// These, by their names.
    Named(&'static [&'static str]),
    /// All.
    All,
}

/// What a cluster shall have. The default is an API server alone that allows everything.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Rights are checked (`--authorization-mode=RBAC`); otherwise everything is allowed.
    pub rbac: bool,
    /// Every request is written to [`Cluster::audit_log`], without bodies.
    pub audit: bool,
    /// Which controllers run.
    pub controllers: Controllers,
    /// Whether the scheduler runs.
    pub scheduler: bool,
    /// Whether there is a node: containerd and the kubelet. Needs root.
    pub node: bool,
    /// Whether the node's containerd is the pinned one and not the machine's, which may be old.
    pub pinned_containerd: bool,
    /// Whether pods of the node get tokens of their service accounts, and reach the API server at
    /// [`crate::node::API_ADDRESS`] and its port. It listens on every address of the machine then.
    pub service_accounts: bool,
    /// Further flags for kube-apiserver.
    pub more_apiserver_args: Vec<String>,
    /// Further flags for kube-controller-manager.
    pub more_controller_manager_args: Vec<String>,
    /// Further flags for kube-scheduler.
    pub more_scheduler_args: Vec<String>,
    /// The store does not wait for the disk. Faster, and wrong for measurements.
    pub etcd_without_fsync: bool,
    /// Whether the programs may outlive this process.
    pub lifetime: Lifetime,
    /// When set, a start in progress gives up and cleans up.
    pub interrupt: Option<Interrupt>,
}

/// A running cluster. Dropping it ends everything it started, and only that.
pub struct Cluster {
    dir: Option<PathBuf>,
    programs: Vec<Program>,
    /// How those were started that serve ports.
    served: Vec<rolling::Served>,
    apiserver_flags: Vec<String>,
    node: Option<Node>,
    state: State,
    lifetime: Lifetime,
    interrupt: Option<Interrupt>,
    ca: Ca,
    https: Https,
    server: String,
    kubeconfig: PathBuf,
    audit: bool,
    /// How many kubeconfigs were given out; makes their names differ.
    users: AtomicU32,
}

impl Cluster {
    /// Starts a cluster and waits until it is ready.
    ///
    /// # Errors
    /// When a tool is missing or a program does not get ready; what was started is ended again.
    pub fn start(options: &Options) -> Result<Self> {
        let mut cluster = Self::prepare(options)?;
        let etcd = cluster.start_etcd(options)?;
        let port = cluster.start_apiserver(options, etcd)?;
        cluster.server = format!("https://127.0.0.1:{port}");
        cluster.kubeconfig = cluster.kubeconfig_for(ADMIN, &[MASTERS])?;
        cluster.start_controllers(options)?;
        cluster.start_scheduler(options)?;
        if options.node {
            let interrupt = options.interrupt.clone();
            cluster.node = Some(Node::start(&cluster, options, interrupt)?);
        }
        Ok(cluster)
    }

    fn prepare(options: &Options) -> Result<Self> {
        let ca = Ca::new()?;
        let https = Https::new(&ca.pair().certificate, &ca.client(ADMIN, &[MASTERS])?)?;
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir();
        let dir = dir.context("cannot make a temporary directory")?.keep();
        let owner = Process::own(&own_name());
        let cluster = Self {
            dir: Some(dir.clone()),
            programs: Vec::new(),
            served: Vec::new(),
            apiserver_flags: Vec::new(),
            node: None,
            state: State { owner, programs: Vec::new() },
            lifetime: options.lifetime,
            interrupt: options.interrupt.clone(),
            ca,
            https,
            server: String::new(),
            kubeconfig: PathBuf::new(),
            audit: options.audit,
            users: AtomicU32::new(0),
        };
        cluster.state.save(&dir)?;
        let keys = dir.join("pki");
        fs::create_dir(&keys).with_context(|| format!("cannot make {}", keys.display()))?;
        cluster.ca.pair().save(&keys, "ca")?;
        Ok(cluster)
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A kubeconfig for a user with a client certificate of the cluster's CA. At most two groups.
    ///
    /// # Errors
    /// When it cannot be made or written.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        self.write_kubeconfig(&self.server, user, groups)
    }

    fn write_kubeconfig(&self, server: &str, user: &str, groups: &[&str]) -> Result<PathBuf> {
        let pair = self.ca.client(user, groups)?;
        let safe: String =
            user.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let number = self.users.fetch_add(1, Ordering::Relaxed);
        let file = self.dir().join(format!("{safe}-{number}.kubeconfig"));
        let ca = &self.ca.pair().certificate;
        write_private(&file, &kubeconfig::text(server, ca, user, &pair))?;
        Ok(file)
    }

    /// The cluster's directory: logs, keys, data. It goes with the cluster.
    ///
    /// # Panics
    /// Never while the cluster lives.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.as_deref().unwrap_or(Path::new("/nonexistent"))
    }

    /// The API server's port.
    #[must_use]
    pub fn port(&self) -> &str {
        self.server.rsplit(':').next().unwrap_or_default()
    }

    /// The API server's URL.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The administrator's kubeconfig with another address, for instance that of a proxy.
    ///
    /// # Errors
    /// When it cannot be made or written.
    pub fn kubeconfig_at(&self, address: std::net::SocketAddr) -> Result<PathBuf> {
        self.write_kubeconfig(&format!("https://{address}"), ADMIN, &[MASTERS])
    }

    /// A user's kubeconfig with another address; the user may do everything.
    ///
    /// # Errors
    /// When it cannot be made or written.
    pub fn kubeconfig_of_at(&self, user: &str, address: std::net::SocketAddr) -> Result<PathBuf> {
        self.write_kubeconfig(&format!("https://{address}"), user, &[MASTERS])
    }

    /// The CA, for further certificates.
    #[must_use]
    pub fn ca(&self) -> &Ca {
        &self.ca
    }

    /// The file with the CA's certificate.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.dir().join("pki/ca.crt")
    }

    /// The pid of a program, by its name.
    #[must_use]
    pub fn pid(&self, program: &str) -> Option<u32> {
        self.programs.iter().find(|one| one.name() == program).map(Program::pid)
    }

    /// The API server's pid.
    #[must_use]
    pub fn apiserver_pid(&self) -> Option<u32> {
        self.pid(Tool::KubeApiserver.program())
    }

    /// The programs, in the order in which they were started.
    #[must_use]
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// The node, when there is one.
    #[must_use]
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// The node, to start programs inside it.
    #[must_use]
    pub fn node_mut(&mut self) -> Option<&mut Node> {
        self.node.as_mut()
    }

    /// The audit log, when it was asked for.
    #[must_use]
    pub fn audit_log(&self) -> Option<PathBuf> {
        self.audit.then(|| self.dir().join("audit.log"))
    }

    /// Starts a further program that ends with the cluster, before those that were there.
    /// Its log is `NAME.log` in the cluster's directory.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn add(&mut self, name: &str, command: Command) -> Result<&mut Program> {
        if interrupted(self.interrupt.as_ref()) {
            bail!("interrupted before {name} was started");
        }
        let log = self.dir().join(format!("{name}.log"));
        let program = Program::start(name, command, &log, self.lifetime)?;
        self.record(program.process())?;
        self.programs.push(program);
        self.programs.last_mut().context("the program was just added")
    }

    /// Runs kubectl as the administrator.
    ///
    /// # Errors
    /// When kubectl cannot be run. Its own failures are in the output.
    pub fn kubectl(&self, args: &[&str]) -> Result<Output> {
        self.kubectl_as(&self.kubeconfig, args, "")
    }

    /// Runs kubectl with a kubeconfig and something on its standard input.
    ///
    /// # Errors
    /// When kubectl cannot be run.
    pub fn kubectl_as(&self, kubeconfig: &Path, args: &[&str], stdin: &str) -> Result<Output> {
        kubectl_with_input(kubeconfig, &self.dir().join("kubectl-cache"), args, stdin)
    }

    /// Ends the cluster and removes its directory.
    ///
    /// # Errors
    /// When something stays.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    /// Lets a detached cluster run on without this process; [`crate::state::end`] ends it.
    ///
    /// # Errors
    /// When the record cannot be written. Then the cluster is ended.
    pub fn leave_running(mut self) -> Result<PathBuf> {
        if self.lifetime != Lifetime::Detached {
            bail!("the programs of this cluster end with their owner: ask for Lifetime::Detached");
        }
        self.state.owner = None;
        self.state.save(self.dir())?;
        for program in self.programs.drain(..) {
            let _ = program.release();
        }
        if let Some(node) = self.node.take() {
            node.release();
        }
        self.dir.take().context("the cluster has a directory")
    }

    fn record(&mut self, process: &Process) -> Result<()> {
        self.state.programs.push(process.clone());
        self.state.save(self.dir())
    }

    fn end(&mut self) -> Result<()> {
        let mut first = self.node.take().map_or(Ok(()), Node::stop);
        while let Some(program) = self.programs.pop() {
            let ended = program.stop();
            first = first.and(ended);
        }
        let Some(dir) = self.dir.take() else { return first };
        first.and_then(|()| sweep::remove(&dir))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("{error:#}");
        }
    }
}

/// The name of the running program, for messages about who owns a cluster.
fn own_name() -> String {
    let exe = std::env::current_exe().unwrap_or_default();
    exe.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Runs kubectl on any server, with something to read on its standard input.
///
/// # Errors
/// When kubectl cannot be run.
pub fn kubectl_with_input(
    kubeconfig: &Path,
    cache: &Path,
    args: &[&str],
    stdin: &str,
) -> Result<Output> {
    use std::io::Write as _;
    let mut command = Command::new(tools::path(Tool::Kubectl)?);
    command.arg("--kubeconfig").arg(kubeconfig).arg("--cache-dir").arg(cache).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start kubectl")?;
    if let Some(mut pipe) = child.stdin.take() {
        // A kubectl that does not read ends the pipe early, which is no failure.
        let _ = pipe.write_all(stdin.as_bytes());
    }
    child.wait_with_output().context("cannot wait for kubectl")
}
