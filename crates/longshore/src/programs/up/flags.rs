//! Flags of `longshore up`.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use longshore_files::{make_private_dir, write_private};
use longshore_node::{ApiAddress, PodLimits};

use crate::flags::{CommonFlags, Logging, UsageError, values};

use crate::cli::{Program, Syntax, Threads};
use crate::programs::apiserver::{Server, ServerFlags};
use crate::programs::pod_limits::PodLimitFlags;
use crate::programs::pool::{self, Pool};

/// Flags of `longshore up`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    #[command(flatten)]
    server: ServerFlags,
    /// Name of the node; the host's name when unset.
    #[arg(long, value_name = "NAME", value_parser = values::node_name)]
    node_name: Option<String>,
    /// How many nodes to run; with more than one, each is a process of its own.
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::at_least_one)]
    nodes: NonZeroU32,
    /// A directory for local volumes, with the name that classes use for it (`default` when unset); may be repeated.
    #[arg(long, value_name = "[NAME=]DIR")]
    pool: Vec<String>,
    /// Directory for shared volumes; pool-shared in the data directory when unset.
    #[arg(long, value_name = "DIR")]
    shared_pool: Option<PathBuf>,
    /// Socket of a foreign CSI driver to serve on the first node; may be repeated.
    #[arg(long, value_name = "unix:///PATH", value_parser = values::socket)]
    csi_endpoint: Vec<PathBuf>,
    /// Longest time pods get to end, and volumes that cannot be unmounted are tried, when this program is stopped.
    #[arg(long, default_value = "3s", value_parser = values::duration)]
    stop_timeout: Duration,
    /// Run pods of any image as processes of this host, ignoring what the image holds.
    #[arg(long)]
    run_any_image_on_host: bool,
    #[command(flatten)]
    limits: PodLimitFlags,
}

/// What `longshore up` runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    pub logging: Logging,
    /// The API server.
    pub server: Server,
    /// Name of the node, or with several nodes what their names begin with.
    pub node_name: String,
    /// How many nodes.
    pub nodes: NonZeroU32,
    /// Pools given by the user; empty means the default one of each node.
    pub pools: Vec<Pool>,
    /// Directory of the shared pool.
    pub shared_pool: PathBuf,
    /// Sockets of foreign drivers.
    pub csi_endpoints: Vec<PathBuf>,
    /// What pods get at most to end on shutdown.
    pub stop_timeout: Duration,
    /// Whether pods of other images than `host` run.
    pub run_any_image_on_host: bool,
    /// What pods can use up.
    pub limits: PodLimits,
}

impl Config {
    /// Names of all nodes: the name itself, or `NAME-1` to `NAME-N`.
    #[must_use]
    pub(crate) fn node_names(&self) -> Vec<String> {
        match self.nodes.get() {
            1 => vec![self.node_name.clone()],
            count => (1..=count).map(|n| format!("{}-{n}", self.node_name)).collect(),
        }
    }
}

impl Program for Config {
    const NAME: &'static str = "up";
    const OFFICIAL: &'static [&'static str] = &[];
    const SUMMARY: &'static str =
        "Run everything on this machine: API, controllers, node and drivers";
    const EXAMPLES: &'static str = "longshore up --data-dir /var/lib/longshore\n  kubectl --kubeconfig /var/lib/longshore/kubeconfig get storageclass";
    const SYNTAX: Syntax = Syntax::GO;
    const THREADS: Threads = Threads::Many;
    const RBAC: &'static [&'static str] = &[];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags {
            common,
            server,
            node_name,
            nodes,
            pool,
            shared_pool,
            csi_endpoint,
            stop_timeout,
            run_any_image_on_host,
            limits,
        } = flags;
        let server = Server::try_from(server)?;
        let pools = pool.iter().map(|text| pool::read(text)).collect::<Result<Vec<_>, _>>()?;
        let shared_pool = match shared_pool {
            Some(dir) => absolute("--shared-pool", dir)?,
            None => server.data_dir.join("pool-shared"),
        };
        let csi_endpoints = csi_endpoint
            .into_iter()
            .map(|path| absolute("--csi-endpoint", path))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            logging: Logging::try_from(common)?,
            server,
            node_name: node_name.map_or_else(host_name, Ok)?,
            nodes,
            pools: pool::distinct(pools)?,
            shared_pool,
            csi_endpoints,
            stop_timeout,
            run_any_image_on_host,
            limits: PodLimits::try_from(limits)?,
        })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.logging)
    }

    async fn run(self) -> anyhow::Result<()> {
        super::run(self).await
    }
}

/// What one node of several runs on, handed from the main process to the node's own in a file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct NodeConfig {
    pub node: String,
    /// The instance's data directory, which pods must not see.
    pub data_dir: PathBuf,
    /// The node's kubelet-style root.
    pub root: PathBuf,
    /// How to reach the API.
    pub kubeconfig: PathBuf,
    /// Where pods reach the API.
    pub api_address: ApiAddress,
    /// Pools of the local driver.
    pub pools: Vec<Pool>,
    /// Pool of the shared driver.
    pub shared_pool: PathBuf,
    /// Sockets of foreign drivers on this node.
    pub csi_endpoints: Vec<PathBuf>,
    /// What pods get at most to end on shutdown.
    pub stop_timeout: Duration,
    /// Whether pods of other images than `host` run.
    pub run_any_image_on_host: bool,
    /// What pods can use up.
    pub limits: PodLimits,
    /// Whether this is the only node.
    pub only_node: bool,
    /// Whether this is the first node, which also takes claims that no node was chosen for.
    pub first: bool,
}

/// In a node's root: how the node runs.
const NODE_FILE: &str = "host.json";

impl NodeConfig {
    /// Writes it down, for the node's own process and for `longshore reset`.
    pub(crate) fn save(&self) -> anyhow::Result<PathBuf> {
        make_private_dir(&self.root)
            .with_context(|| format!("cannot make {}", self.root.display()))?;
        let file = self.root.join(NODE_FILE);
        write_private(&file, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    /// What an instance of this version wrote down.
    pub(crate) fn load(root: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(root.join(NODE_FILE)).ok()?;
        serde_json::from_str(&text).ok()
    }
}

/// An absolute form of a path that was given relative to the working directory.
pub(crate) fn absolute(flag: &str, path: PathBuf) -> Result<PathBuf, UsageError> {
    std::path::absolute(&path).map_err(|error| UsageError::bad_value(flag, path.display(), error))
}

/// The host's name as Kubernetes writes node names.
pub(crate) fn host_name() -> Result<String, UsageError> {
    let name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    values::node_name(&name).map_err(|_| {
        UsageError::Other(format!(
            "the host name `{name}` is no node name; give one with --node-name"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testing::flags;

    fn config(line: &str) -> Result<Config, String> {
        flags::<Flags>(line, &[])
            .and_then(|flags| Config::from_flags(flags).map_err(|error| error.to_string()))
    }

    #[test]
    fn defaults() {
        let config = config("").unwrap();
        assert_eq!(config.server.data_dir, PathBuf::from("/var/lib/longshore"));
        assert_eq!(config.server.listen.to_string(), "127.0.0.1:6443");
        assert_eq!(config.shared_pool, PathBuf::from("/var/lib/longshore/pool-shared"));
        assert_eq!(config.stop_timeout, Duration::from_secs(3));
        assert_eq!(config.node_names().len(), 1);
        assert!(config.pools.is_empty() && !config.run_any_image_on_host);
    }

    #[test]
    fn values_arrive() {
        let config = config(
            "--data-dir /d --listen 127.0.0.1:0 --node-name n --nodes 3 --pool fast=/p --pool slow=/q \
             --csi-endpoint unix:///a.sock --csi-endpoint=/b.sock --stop-timeout 1m --shared-pool /s",
        )
        .unwrap();
        assert_eq!(config.node_names(), ["n-1", "n-2", "n-3"]);
        assert_eq!(config.pools.len(), 2);
        assert_eq!(config.pools[0], Pool { name: "fast".into(), dir: "/p".into() });
        assert_eq!(config.csi_endpoints, [PathBuf::from("/a.sock"), PathBuf::from("/b.sock")]);
        assert_eq!(config.shared_pool, PathBuf::from("/s"));
        let bare = self::config("--pool /p").unwrap().pools;
        assert_eq!(bare, [Pool { name: "default".into(), dir: "/p".into() }]);
    }

    #[test]
    fn relative_paths_become_absolute() {
        assert!(config("--data-dir here").unwrap().server.data_dir.is_absolute());
    }

    #[test]
    fn wrong_flags_are_refused_with_the_reason() {
        for (line, part) in [
            ("--nodes 0", "--nodes cannot be `0`: it must be at least 1"),
            ("--listen localhost", "it is HOST:PORT"),
            ("--tls-san https://x", "it is an IP address or a DNS name"),
            ("--node-name Upper", "a node name has lower-case letters"),
            ("--pool a=", "the directory is missing"),
            ("--pool a=/p --pool a=/q", "the pool name `a` is used twice"),
            ("--pool a=/p --pool b=/p", "are the same directory"),
            ("--data-dri /d", "did you mean --data-dir?"),
            ("--stop-timeout 5", "a duration is written as in Go"),
        ] {
            let sentence = config(line).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
    }
}
