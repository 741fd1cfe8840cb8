//! `longshore hostpath-provisioner` and `longshore nfs-provisioner`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use longshore_cluster::{Api, Metrics, ObjectKey, shutdown};
use longshore_core::words;
use longshore_core::{backoff::Backoff, model::kinds::Node};
use longshore_provisioner::{Config, Election, Host, Provisioner};
use tokio_util::sync::CancellationToken;

use super::sidecar::client_config;
use crate::cli::{Program, Syntax, Threads};
use crate::directory_provisioners::{
    base::Base,
    hostpath::{self, NodePin},
    nfs::{self, Export},
};
use crate::flags::{
    CommonFlags, KubeAccess, KubeFlags, Logging, UsageError, log_other_kubeconfig, values,
};
use crate::process::unless_stopped;

/// Flags that both have.
#[derive(Debug, Clone, clap::Args)]
struct Shared {
    /// Name by which classes ask for it (also PROVISIONER_NAME); unset, longshore.dev/hostpath of the
    /// hostpath-provisioner and longshore.dev/nfs of the nfs-provisioner.
    #[arg(long, value_name = "NAME")]
    provisioner_name: Option<String>,
    /// Claims, and volumes, worked on at once.
    #[arg(long, default_value = "4", value_parser = values::count, value_name = "N")]
    worker_threads: u32,
    /// Work only while holding the lease (also ENABLE_LEADER_ELECTION).
    #[arg(long, default_value_t = true, help_heading = "Leader election")]
    leader_election: bool,
    /// Namespace of the lease; unset, the pod's own.
    #[arg(long, default_value = "", hide_default_value = true, help_heading = "Leader election")]
    leader_election_namespace: String,
    /// Serve metrics and health on HOST:PORT or :PORT.
    #[arg(long, value_name = "ADDR", value_parser = values::listen_address, help_heading = "Diagnostics")]
    http_endpoint: Option<String>,
    // Last: its heading would go on over what follows.
    #[command(flatten)]
    kube: KubeFlags,
    #[arg(skip = Variables::of_process())]
    variables: Variables,
}

/// The variables of the environment that stand in for flags, as manifests set them.
#[derive(Debug, Clone, Default)]
struct Variables {
    provisioner_name: Option<String>,
    node_name: Option<String>,
    nfs_server: Option<String>,
    nfs_path: Option<String>,
    leader_election: Option<String>,
}

impl Variables {
    /// Those of this process; an empty one counts as absent.
    fn of_process() -> Self {
        let read = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        Self {
            provisioner_name: read("PROVISIONER_NAME"),
            node_name: read("NODE_NAME"),
            nfs_server: read("NFS_SERVER"),
            nfs_path: read("NFS_PATH"),
            leader_election: read("ENABLE_LEADER_ELECTION"),
        }
    }
}

/// What both run on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Common {
    pub logging: Logging,
    pub kube: KubeAccess,
    /// Name by which classes ask for it.
    pub name: String,
    /// Claims, and volumes, at once.
    pub threads: usize,
    /// Whether to campaign for the lease.
    pub leader_election: bool,
    /// Namespace of the lease; none is the pod's own.
    pub lease_namespace: Option<String>,
    /// `HOST:PORT` for metrics and health.
    pub http_endpoint: Option<String>,
}

impl Common {
    fn read(common: CommonFlags, shared: Shared, default: &str) -> Result<Self, UsageError> {
        let Shared {
            kube,
            provisioner_name,
            worker_threads,
            leader_election,
            leader_election_namespace,
            http_endpoint,
            variables,
        } = shared;
        let name = provisioner_name.or(variables.provisioner_name);
        let name = name.unwrap_or_else(|| default.to_owned());
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-./_".contains(c))
        {
            let why = "a provisioner's name has letters, digits, dashes, dots and at most a slash";
            return Err(UsageError::bad_value("--provisioner-name", name, why));
        }
        if worker_threads == 0 {
            return Err(UsageError::bad_value("--worker-threads", 0, "it must be at least one"));
        }
        let wanted = variables.leader_election.as_deref().map(values::boolean).transpose();
        let wanted = wanted.map_err(|why| {
            let text = variables.leader_election.clone().unwrap_or_default();
            UsageError::bad_value("ENABLE_LEADER_ELECTION", text, why)
        })?;
        Ok(Self {
            logging: Logging::try_from(common)?,
            kube: kube.access(None),
            name,
            threads: worker_threads as usize,
            leader_election: leader_election && wanted.unwrap_or(true),
            lease_namespace: Some(leader_election_namespace).filter(|name| !name.is_empty()),
            http_endpoint,
        })
    }
}

/// An absolute path; where a relative one would lead depends on who asks.
fn absolute(flag: &'static str, path: PathBuf) -> Result<PathBuf, UsageError> {
    match path.is_absolute() && path != Path::new("/") {
        true => Ok(path),
        false => {
            let why = "write an absolute path, and not /";
            Err(UsageError::bad_value(flag, path.display(), why))
        }
    }
}

/// Flags of `longshore hostpath-provisioner`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct HostpathFlags {
    #[command(flatten)]
    common: CommonFlags,
    /// Directory in which each volume gets a directory (required).
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// The node this runs on (also NODE_NAME); unset, the host's name.
    #[arg(long, value_name = "NAME", value_parser = values::node_name)]
    node_name: Option<String>,
    /// One runs on each node: answer only claims that were placed on this node, without a lease.
    #[arg(long)]
    node_deployment: bool,
    #[command(flatten)]
    shared: Shared,
}

/// What the hostpath provisioner runs on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Hostpath {
    /// What both have.
    pub common: Common,
    /// Directory of the volumes' directories.
    pub root: PathBuf,
    /// The node; none is named like the host.
    pub node_name: Option<String>,
    /// Whether each node has one.
    pub node_deployment: bool,
}

impl Program for Hostpath {
    const NAME: &'static str = "hostpath-provisioner";
    const OFFICIAL: &'static [&'static str] = &[];
    const SUMMARY: &'static str = "Make a directory of this node for each claim";
    const EXAMPLES: &'static str =
        "longshore hostpath-provisioner --kubeconfig admin.kubeconfig --root /srv/volumes";
    const SYNTAX: Syntax = Syntax::GO;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &["hostpath-provisioner/rbac.yaml"];

    type Flags = HostpathFlags;

    fn from_flags(flags: HostpathFlags) -> Result<Self, UsageError> {
        let HostpathFlags { common, shared, root, node_name, node_deployment } = flags;
        let required = UsageError::Required { flag: "--root", why: "the volumes are made there" };
        let root = absolute("--root", root.ok_or(required)?)?;
        let node_name = node_name.or_else(|| shared.variables.node_name.clone());
        if node_deployment && node_name.is_none() {
            return Err(UsageError::Environment {
                variable: "NODE_NAME",
                why: "(or --node-name) with --node-deployment",
            });
        }
        let mut common = Common::read(common, shared, "longshore.dev/hostpath")?;
        // All nodes would share one lease, and only one of them would work.
        common.leader_election &= !node_deployment;
        Ok(Self { common, root, node_name, node_deployment })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.common.logging)
    }

    async fn run(self) -> anyhow::Result<()> {
        hostpath(self).await
    }
}

/// Flags of `longshore nfs-provisioner`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct NfsFlags {
    #[command(flatten)]
    common: CommonFlags,
    /// The NFS server, as nodes reach it (required; also NFS_SERVER).
    #[arg(long, value_name = "HOST")]
    server: Option<String>,
    /// The exported path (required; also NFS_PATH).
    #[arg(long, value_name = "PATH")]
    path: Option<PathBuf>,
    /// Where the export is mounted here.
    #[arg(long, value_name = "DIR", default_value = "/persistentvolumes")]
    mount: PathBuf,
    #[command(flatten)]
    shared: Shared,
}

/// What the NFS provisioner runs on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Nfs {
    /// What both have.
    pub common: Common,
    pub server: String,
    pub path: PathBuf,
    /// Where it is mounted.
    pub mount: PathBuf,
}

impl Program for Nfs {
    const NAME: &'static str = "nfs-provisioner";
    const OFFICIAL: &'static [&'static str] = &[];
    const SUMMARY: &'static str = "Make a directory of an NFS export for each claim";
    const EXAMPLES: &'static str =
        "longshore nfs-provisioner --server 10.0.0.1 --path /export --mount /persistentvolumes";
    const SYNTAX: Syntax = Syntax::GO;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &["nfs-provisioner/rbac.yaml"];

    type Flags = NfsFlags;

    fn from_flags(flags: NfsFlags) -> Result<Self, UsageError> {
        let NfsFlags { common, shared, server, path, mount } = flags;
        let variables = shared.variables.clone();
        let required = |flag, why| UsageError::Required { flag, why };
        let server = server.or(variables.nfs_server).filter(|server| !server.is_empty());
        let server =
            server.ok_or_else(|| required("--server", "nodes mount the volumes from it"))?;
        let path = path.or(variables.nfs_path.map(PathBuf::from));
        let path = path.ok_or_else(|| required("--path", "it is what the server exports"))?;
        if !path.is_absolute() {
            let why = "an exported path begins with /";
            return Err(UsageError::bad_value("--path", path.display(), why));
        }
        let mount = absolute("--mount", mount)?;
        Ok(Self { common: Common::read(common, shared, "longshore.dev/nfs")?, server, path, mount })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.common.logging)
    }

    async fn run(self) -> anyhow::Result<()> {
        nfs(self).await
    }
}

/// `longshore hostpath-provisioner`.
async fn hostpath(config: Hostpath) -> Result<()> {
    let Hostpath { common, root, node_name, node_deployment } = config;
    open_to_pods();
    let base = Arc::new(Base::make(&root)?);
    let signal = shutdown::on_signals().context("cannot listen for signals")?;
    let host = connect(&common, "hostpath-provisioner").await?;
    let pin = async { Ok(node_pin(host.api(), node_name.unwrap_or_else(host_name)).await) };
    let pin = unless_stopped(&signal, pin).await?;
    tracing::info!(node = pin.node, root = %root.display(), name = common.name, "ready to work");
    sweep(&base);
    run(host, common, hostpath::Hostpath::new(base, pin, node_deployment), signal).await
}

/// `longshore nfs-provisioner`.
async fn nfs(config: Nfs) -> Result<()> {
    let Nfs { common, server, path, mount } = config;
    open_to_pods();
    let base =
        Arc::new(Base::open(&mount).context(
            "the export must be mounted before the provisioner starts; --mount says where",
        )?);
    let signal = shutdown::on_signals().context("cannot listen for signals")?;
    let host = connect(&common, "nfs-provisioner").await?;
    tracing::info!(server, path = %path.display(), mount = %mount.display(), name = common.name, "ready to work");
    sweep(&base);
    let api = host.api().clone();
    run(host, common, nfs::Nfs::new(base, Export { server, path }, api), signal).await
}

async fn connect(common: &Common, program: &str) -> Result<Host> {
    log_other_kubeconfig(common.kube.kubeconfig.as_deref());
    let config = client_config(common.kube.clone(), program, &Metrics::new());
    Ok(Host::connect(&config).await?)
}

async fn run(
    host: Host,
    common: Common,
    provisioner: impl Provisioner,
    signal: CancellationToken,
) -> Result<()> {
    let election = Election { namespace: common.lease_namespace, ..Election::default() };
    let mut host = host.elected(common.leader_election.then_some(election));
    if let Some(address) = &common.http_endpoint {
        host = host.serving_metrics(address, "/metrics");
    }
    let config = Config { threads: common.threads, ..Config::new(common.name) };
    Ok(host.with(config, provisioner).run(signal).await?)
}

/// What is made shall be as open as asked for: pods run as anybody.
fn open_to_pods() {
    rustix::process::umask(rustix::fs::Mode::empty());
}

/// Finishes earlier removals, beside the work.
fn sweep(base: &Arc<Base>) {
    let base = base.clone();
    tokio::task::spawn_blocking(move || {
        if let Err(error) = base.sweep() {
            tracing::warn!(%error, "what was removed earlier is still there");
        }
    });
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().to_lowercase()
}

/// The node's labels say by which name volumes are pinned to it. Waits until the API server answers.
async fn node_pin(api: &Api, node: String) -> NodePin {
    let mut pauses = Backoff::new(Duration::from_secs(1), Duration::from_secs(30)).series();
    let found = loop {
        match api.get::<Node>(&ObjectKey::cluster(&node)).await {
            Ok(found) => break found,
            Err(error) => {
                let pause = pauses.pause();
                tracing::warn!(%error, node, retry_in = words::time(pause), "cannot read the node");
                tokio::time::sleep(pause).await;
            }
        }
    };
    if found.is_none() {
        tracing::warn!(
            node,
            "there is no such node; volumes are pinned to that host name (--node-name)"
        );
    }
    let labels = found.map(|found| found.metadata.labels).unwrap_or_default();
    NodePin { node, labels }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testing::flags;

    fn hostpath(line: &str, variables: Variables) -> Result<Hostpath, String> {
        let mut flags: HostpathFlags = flags(line, &[])?;
        flags.shared.variables = variables;
        Hostpath::from_flags(flags).map_err(|error| error.to_string())
    }

    fn nfs(line: &str, variables: Variables) -> Result<Nfs, String> {
        let mut flags: NfsFlags = flags(line, &[])?;
        flags.shared.variables = variables;
        Nfs::from_flags(flags).map_err(|error| error.to_string())
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn flags_come_before_the_environment() {
        let config = hostpath("--root /srv/volumes --kubeconfig /k", Variables::default()).unwrap();
        assert_eq!(config.common.name, "longshore.dev/hostpath");
        assert!(config.common.leader_election && !config.node_deployment);
        assert_eq!(config.common.kube.kubeconfig, Some("/k".into()));
        assert_eq!(config.node_name, None);
        let set = Variables {
            provisioner_name: some("custom-provisioner"),
            node_name: some("node-a"),
            leader_election: some("false"),
            ..Variables::default()
        };
        let config = hostpath("--root /srv/volumes", set.clone()).unwrap();
        assert_eq!(config.common.name, "custom-provisioner");
        assert_eq!(config.node_name.as_deref(), Some("node-a"));
        assert!(!config.common.leader_election);
        let config =
            hostpath("--root /srv/v --provisioner-name=a.b/c --node-name n2", set).unwrap();
        assert_eq!(
            (config.common.name.as_str(), config.node_name.as_deref()),
            ("a.b/c", Some("n2"))
        );
        let set = Variables { node_name: some("node-a"), ..Variables::default() };
        let config = hostpath("--root /srv/v --node-deployment", set).unwrap();
        assert!(config.node_deployment && !config.common.leader_election);
        let set = Variables {
            nfs_server: some("10.0.0.1"),
            nfs_path: some("/export"),
            ..Variables::default()
        };
        let config = nfs("", set.clone()).unwrap();
        assert_eq!(
            (config.server.as_str(), config.path.as_path()),
            ("10.0.0.1", Path::new("/export"))
        );
        assert_eq!(config.mount, Path::new("/persistentvolumes"));
        let config = nfs("--server s --path /p --mount /m --leader-election=false", set).unwrap();
        assert_eq!((config.server.as_str(), config.path.as_path()), ("s", Path::new("/p")));
        assert!(!config.common.leader_election);
        assert_eq!(config.common.name, "longshore.dev/nfs");
    }

    #[test]
    fn wrong_flags_are_refused_with_the_reason() {
        for (line, part) in [
            ("", "--root is required"),
            ("--root volumes", "--root cannot be `volumes`"),
            ("--root /", "not /"),
            ("--root /a --worker-threads=0", "--worker-threads"),
            ("--root /a --node-deployment", "NODE_NAME"),
            ("--root /a --provisioner-name=a b", "unexpected argument"),
            ("--root /a --provisioner-name=a|b", "--provisioner-name cannot be `a|b`"),
        ] {
            let sentence = hostpath(line, Variables::default()).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
        let unclear = Variables { leader_election: some("maybe"), ..Variables::default() };
        assert!(hostpath("--root /a", unclear).unwrap_err().contains("ENABLE_LEADER_ELECTION"));
        for (line, part) in [
            ("--path /p", "--server is required"),
            ("--server s", "--path is required"),
            ("--server s --path p", "--path cannot be `p`"),
            ("--server s --path /p --mount m", "--mount cannot be `m`"),
        ] {
            let sentence = nfs(line, Variables::default()).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
    }
}
