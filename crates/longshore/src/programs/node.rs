//! `longshore node`: the node agent.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use longshore_cluster::{Api, Metrics, config::ClientConfig, shutdown, telemetry::Endpoint};
use longshore_node::{ApiAddress, NodeAgent, PodLimits, PodsMode, Settings, ShimProgram};

use super::internal;
use super::pod_limits::PodLimitFlags;
use crate::cli::{Program, Syntax, Threads};
use crate::flags::{CommonFlags, Logging, UsageError, log_other_kubeconfig, values};
use crate::process::root;

/// What becomes of pods on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Pods {
    /// They run as host processes.
    Process,
    /// Only their volumes are mounted.
    None,
}

/// Flags of `longshore node`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    /// Client configuration (required).
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Name of the node (required).
    #[arg(long, value_name = "NAME", value_parser = values::node_name)]
    node_name: Option<String>,
    /// Directory for pods, plugins and their registration sockets (required).
    #[arg(long, value_name = "DIR")]
    root_dir: Option<PathBuf>,
    /// Run pods as host processes, or only mount their volumes.
    #[arg(long, value_enum, default_value = "process")]
    pods: Pods,
    /// Serve metrics and health checks on HOST:PORT or :PORT.
    #[arg(long, value_name = "ADDR", value_parser = values::listen_address)]
    http_endpoint: Option<String>,
    /// Run pods of any image as processes of this host, ignoring what the image holds.
    #[arg(long)]
    run_any_image_on_host: bool,
    #[command(flatten)]
    limits: PodLimitFlags,
}

/// What the node agent runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    pub logging: Logging,
    /// Client configuration.
    pub kubeconfig: PathBuf,
    /// Name of the node.
    pub node_name: String,
    /// Absolute; registration sockets are in `plugins_registry` under it.
    pub root_dir: PathBuf,
    /// What becomes of pods.
    pub pods: Pods,
    /// `HOST:PORT` for metrics and health.
    pub http_endpoint: Option<String>,
    /// Whether pods of other images than `host` run.
    pub run_any_image_on_host: bool,
    /// What pods can use up.
    pub limits: PodLimits,
}

impl Program for Config {
    const NAME: &'static str = "node";
    const OFFICIAL: &'static [&'static str] = &[];
    const SUMMARY: &'static str = "Mount volumes and run pods on one node";
    const EXAMPLES: &'static str =
        "longshore node --kubeconfig node.kubeconfig --node-name n1 --root-dir /var/lib/node";
    const SYNTAX: Syntax = Syntax::GO;
    const THREADS: Threads = Threads::Many;
    const RBAC: &'static [&'static str] = &["rbac/node.yaml"];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags {
            common,
            kubeconfig,
            node_name,
            root_dir,
            pods,
            http_endpoint,
            run_any_image_on_host,
            limits,
        } = flags;
        let required = |flag, why| UsageError::Required { flag, why };
        let root_dir =
            root_dir.ok_or_else(|| required("--root-dir", "pods and plugins live there"))?;
        if pods == Pods::None && run_any_image_on_host {
            return Err(UsageError::Together(
                "--run-any-image-on-host needs --pods=process".into(),
            ));
        }
        let limits = PodLimits::try_from(limits)?;
        if pods == Pods::None && limits != PodLimits::default() {
            return Err(UsageError::Together(
                "--pod-max-pids and --container-log-max-… need --pods=process".into(),
            ));
        }
        Ok(Self {
            logging: Logging::try_from(common)?,
            kubeconfig: kubeconfig
                .ok_or_else(|| required("--kubeconfig", "it says where the API server is"))?,
            node_name: node_name.ok_or_else(|| required("--node-name", "pods are bound to it"))?,
            root_dir: super::up::absolute("--root-dir", root_dir)?,
            pods,
            http_endpoint,
            run_any_image_on_host,
            limits,
        })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.logging)
    }

    async fn run(self) -> anyhow::Result<()> {
        run(self).await
    }
}

/// `longshore node`: mounts volumes, and runs pods unless told not to.
async fn run(config: Config) -> Result<()> {
    let Config {
        logging: _,
        kubeconfig,
        node_name,
        root_dir,
        pods,
        http_endpoint,
        run_any_image_on_host,
        limits,
    } = config;
    root::require("node")?;
    let signal = shutdown::on_signals().context("cannot listen for signals")?;
    let metrics = Metrics::new();
    let mut hidden_dirs = vec![root_dir.clone(), kubeconfig.clone()];
    hidden_dirs.extend(key_files(&kubeconfig));
    let api_address = api_address(&kubeconfig);
    log_other_kubeconfig(Some(&kubeconfig));
    let client = ClientConfig {
        user_agent: Some(format!("longshore-node/{}", env!("CARGO_PKG_VERSION"))),
        metrics: Some(metrics.clone()),
        ..ClientConfig::from_kubeconfig(kubeconfig)
    };
    let exe = std::env::current_exe().context("cannot find this program")?;
    let config = longshore_node::NodeConfig {
        node_name,
        hidden_dirs,
        root_dir,
        pods: match pods {
            Pods::Process => PodsMode::Process,
            Pods::None => PodsMode::None,
        },
        shim: ShimProgram { program: exe, args: vec![internal::POD_SHIM.to_owned()] },
        // As the kubelet: pods outlive a restart of the agent.
        stop_pods: false,
        stop_timeout: std::time::Duration::ZERO,
        run_any_image_on_host,
        limits,
    };
    let api = Api::new(client.client().await?);
    let faults = crate::process::faults::of_agent();
    let settings =
        Settings { metrics: metrics.clone(), faults, api_address, ..Settings::default() };
    let agent = NodeAgent::new(config, api).with(settings);
    if let Some(address) = http_endpoint {
        let endpoint = Endpoint::new(&metrics);
        longshore_node::http::serve(&address, endpoint, agent.stats(), &signal).await?;
    }
    agent.run(signal).await.map_err(Into::into)
}

/// Where the current context of a client configuration reaches the API server. Pods share this machine's
/// network, so it is the same for them.
fn api_address(kubeconfig: &Path) -> Option<ApiAddress> {
    let config = kube::config::Kubeconfig::read_from(kubeconfig).ok()?;
    let current = config.current_context.as_deref()?;
    let context = config.contexts.iter().find(|one| one.name == current)?.context.as_ref()?;
    let cluster = config.clusters.iter().find(|one| one.name == context.cluster)?;
    let server: http::Uri = cluster.cluster.as_ref()?.server.as_ref()?.parse().ok()?;
    let host = server.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
    Some(ApiAddress { host, port: server.port_u16().unwrap_or(443) })
        .filter(|_| server.scheme_str() == Some("https"))
}

/// Files with keys and tokens that a client configuration names.
fn key_files(kubeconfig: &Path) -> Vec<PathBuf> {
    let dir = kubeconfig.parent().unwrap_or(Path::new("/"));
    let text = std::fs::read_to_string(kubeconfig).unwrap_or_default();
    let config: serde_json::Value = serde_saphyr::from_str(&text).unwrap_or_default();
    let users = config["users"].as_array().cloned().unwrap_or_default();
    let named = |user: &serde_json::Value, key: &str| {
        user["user"][key].as_str().filter(|file| !file.is_empty()).map(|file| dir.join(file))
    };
    users
        .iter()
        .flat_map(|user| [named(user, "client-key"), named(user, "tokenFile")])
        .flatten()
        .collect()
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
    fn values_and_refusals() {
        let plain = config("--kubeconfig /k --node-name n --root-dir /r").unwrap();
        assert_eq!((plain.pods, plain.http_endpoint), (Pods::Process, None));
        let mounts =
            config("--kubeconfig /k --node-name n --root-dir /r --pods=none --http-endpoint :1");
        assert_eq!(mounts.unwrap().pods, Pods::None);
        assert_eq!(plain.limits, PodLimits::default());
        let limits = config(
            "--kubeconfig /k --node-name n --root-dir /r --pod-max-pids -1 --container-log-max-size 1Ki \
             --container-log-max-files 2",
        );
        let log = longshore_node::LogLimit { max_size: 1024, max_files: 2 };
        assert_eq!(limits.unwrap().limits, PodLimits { max_pids: None, log });
        for (line, part) in [
            ("--node-name n --root-dir /r", "--kubeconfig is required"),
            ("--kubeconfig /k --root-dir /r", "--node-name is required"),
            ("--kubeconfig /k --node-name n", "--root-dir is required"),
            ("--kubeconfig /k --node-name n --root-dir /r --pods=vm", "it is one of process, none"),
            (
                "--kubeconfig /k --node-name n --root-dir /r --pods=none --pod-max-pids 9",
                "need --pods=process",
            ),
            (
                "--kubeconfig /k --node-name n --root-dir /r --pod-max-pids 0",
                "--pod-max-pids cannot be `0`",
            ),
            (
                "--kubeconfig /k --node-name n --root-dir /r --container-log-max-size much",
                "--container-log-max-size cannot be `much`",
            ),
            (
                "--kubeconfig /k --node-name n --root-dir /r --container-log-max-files 1",
                "--container-log-max-files cannot be `1`",
            ),
            (
                "--kubeconfig /k --node-name n --root-dir /r --pods=none --run-any-image-on-host",
                "needs --pods=process",
            ),
        ] {
            let sentence = config(line).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
    }

    #[test]
    fn pods_are_told_the_server_of_the_current_context() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        let at = |server: &str| {
            let text = format!(
                "current-context: b\ncontexts:\n- {{name: a, context: {{cluster: x, user: u}}}}\n\
                 - {{name: b, context: {{cluster: y, user: u}}}}\nclusters:\n\
                 - {{name: x, cluster: {{server: 'https://x:1'}}}}\n- {{name: y, cluster: {{server: '{server}'}}}}\n"
            );
            std::fs::write(&file, text).unwrap();
            api_address(&file).map(|found| (found.host, found.port))
        };
        assert_eq!(at("https://10.0.0.1:6443"), Some(("10.0.0.1".to_owned(), 6443)));
        assert_eq!(at("https://[::1]:6443/"), Some(("::1".to_owned(), 6443)));
        assert_eq!(at("https://api.example.org"), Some(("api.example.org".to_owned(), 443)));
        assert_eq!(
            at("http://127.0.0.1:8080"),
            None,
            "client libraries always use TLS in a cluster"
        );
    }

    #[test]
    fn keys_and_tokens_of_a_client_configuration_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        let text = "users:\n- name: a\n  user: {client-key: a.key, client-certificate: a.crt}\n\
                    - name: b\n  user: {tokenFile: /b/token}\n";
        std::fs::write(&file, text).unwrap();
        assert_eq!(key_files(&file), [dir.path().join("a.key"), PathBuf::from("/b/token")]);
        assert!(key_files(&dir.path().join("none")).is_empty());
    }
}
