//! The API servers that corpora run against.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use longshore_real_kube::{
    Cluster, Controllers, Interrupt, Lifetime, Options, Program, longshore, tools::Tool,
};

use super::corpus::Corpus;
use crate::setup;

/// Which API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Against {
    /// Ours.
    Embedded,
    /// Kubernetes' own.
    Real,
}

/// What the API recordings were made with; nothing of it touches volumes.
const RECORDED_WITH: &[&str] = &[
    "namespace-controller",
    "garbage-collector-controller",
    "serviceaccount-controller",
    "clusterrole-aggregation-controller",
];

/// Without credentials only the health paths answer, as when the conversations were recorded.
const ANONYMOUS: &str = "\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions: [{path: /livez}, {path: /readyz}, {path: /healthz}]
";

impl Against {
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "embedded" => Ok(Self::Embedded),
            "real" => Ok(Self::Real),
            other => bail!("--against is embedded or real, not {other:?}"),
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Real => "real",
        }
    }
}

/// The programs that a server needs; missing ones are built.
pub fn build_tools(against: Against, corpus: Corpus) -> Result<()> {
    let tools: &[Tool] = match (against, corpus) {
        (Against::Embedded, _) => &[],
        (Against::Real, Corpus::Controllers) => &[Tool::Etcd, Tool::KubeApiserver],
        (Against::Real, Corpus::Apiserver) => {
            &[Tool::Etcd, Tool::KubeApiserver, Tool::KubeControllerManager]
        }
    };
    setup::build(tools)
}

/// A fresh server of its own for one shard.
pub enum Server {
    Embedded { program: Program, kubeconfig: PathBuf },
    Real(Box<Cluster>),
}

impl Server {
    /// Starts a server and waits until it answers. An embedded one keeps its data in `dir`.
    pub fn start(against: Against, corpus: Corpus, dir: &Path, stop: &Interrupt) -> Result<Self> {
        match against {
            Against::Embedded => Self::embedded(dir, stop),
            Against::Real => {
                let mut options = Options {
                    etcd_without_fsync: true,
                    interrupt: Some(stop.clone()),
                    ..Options::default()
                };
                if corpus == Corpus::Apiserver {
                    options.rbac = true;
                    options.controllers = Controllers::Named(RECORDED_WITH);
                    let file = dir.join("authentication.yaml");
                    fs::write(&file, ANONYMOUS)
                        .with_context(|| format!("cannot write {}", file.display()))?;
                    let flag = format!("--authentication-config={}", file.display());
                    options.more_apiserver_args.push(flag);
                }
                Ok(Self::Real(Box::new(Cluster::start(&options)?)))
            }
        }
    }

    fn embedded(dir: &Path, stop: &Interrupt) -> Result<Self> {
        let (data, log) = (dir.join("data"), dir.join("apiserver.log"));
        let mut command = Command::new(longshore());
        command.args(["apiserver", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&data);
        let mut program = Program::start("longshore apiserver", command, &log, Lifetime::Owner)?;
        let ready =
            || fs::read_to_string(&log).is_ok_and(|text| text.contains("ready kubeconfig="));
        program.wait_until(Duration::from_secs(60), Some(stop), ready)?;
        Ok(Self::Embedded { program, kubeconfig: data.join("kubeconfig") })
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        match self {
            Self::Embedded { kubeconfig, .. } => kubeconfig,
            Self::Real(cluster) => cluster.kubeconfig(),
        }
    }

    pub fn stop(self) -> Result<()> {
        match self {
            Self::Embedded { program, .. } => program.stop(),
            Self::Real(cluster) => cluster.stop(),
        }
    }
}
