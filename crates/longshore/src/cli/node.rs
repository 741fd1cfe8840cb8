//! `longshore node`: the node agent.

use std::path::PathBuf;

use longshore_node::PodLimits;

use crate::flags::{CommonFlags, Logging, UsageError, values};

use super::limits::PodLimitFlags;

/// What becomes of pods on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Pods {
    /// They run as host processes.
    Process,
    /// Only their volumes are mounted.
    None,
}

/// Flags of `longshore node`.
#[derive(Debug, Clone, clap::Args)]
pub struct Flags {
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
pub struct Config {
    /// How to log.
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

impl TryFrom<Flags> for Config {
    type Error = UsageError;

    fn try_from(flags: Flags) -> Result<Self, UsageError> {
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
}

#[cfg(test)]
mod tests {
    use super::super::testing::flags;
    use super::*;

    fn config(line: &str) -> Result<Config, String> {
        flags::<Flags>(line, &[])
            .and_then(|flags| Config::try_from(flags).map_err(|error| error.to_string()))
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
}
