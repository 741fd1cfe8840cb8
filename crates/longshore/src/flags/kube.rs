//! Which cluster a program talks to, and at what rate.

use std::path::PathBuf;

use super::{Throttle, values};

/// Which cluster to talk to, and how hard.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Kubernetes API")]
pub(crate) struct KubeFlags {
    /// Client configuration; without it the in-cluster one is used.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "FILE")]
    pub kubeconfig: String,
    /// Requests per second; unset, requests in flight are limited by how the server copes.
    #[arg(long, value_parser = values::rate, allow_hyphen_values = true, value_name = "N")]
    pub kube_api_qps: Option<f32>,
    /// Requests that may exceed the rate at once (10 when only the rate is set).
    #[arg(long, value_parser = values::count, value_name = "N")]
    pub kube_api_burst: Option<u32>,
}

/// Access to a cluster.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KubeAccess {
    /// The kubeconfig file; none means in-cluster.
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server, over what the kubeconfig says.
    pub master: Option<String>,
    pub throttle: Throttle,
}

impl KubeFlags {
    /// The access these flags describe. `overriding` is the `KUBECONFIG` of programs that let it win over the flag.
    #[must_use]
    pub(crate) fn access(self, master: String, overriding: Option<String>) -> KubeAccess {
        let Self { kubeconfig, kube_api_qps, kube_api_burst } = self;
        let throttle = Throttle::new(kube_api_qps, kube_api_burst);
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let kubeconfig = overriding.or_else(|| some(kubeconfig)).map(PathBuf::from);
        KubeAccess { kubeconfig, master: some(master), throttle }
    }
}
