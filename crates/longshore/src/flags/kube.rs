//! Which cluster a program talks to, and at what rate.

use std::path::{Path, PathBuf};

use super::{Throttle, values};

/// Which cluster to talk to, and how hard.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Kubernetes API")]
pub(crate) struct KubeFlags {
    /// Client configuration; unset, $KUBECONFIG, and without that the service account of the pod.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "FILE")]
    pub kubeconfig: String,
    /// Requests per second; unset, requests in flight are limited by how the server copes.
    #[arg(long, value_parser = values::rate, allow_hyphen_values = true, value_name = "N")]
    pub kube_api_qps: Option<f32>,
    /// Requests that may exceed the rate at once (10 when only the rate is set).
    #[arg(long, value_parser = values::count, value_name = "N")]
    pub kube_api_burst: Option<u32>,
}

/// The flag of programs to which the API server can be named.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct MasterFlag {
    /// URL of the API server, instead of the one in the kubeconfig.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "URL",
        help_heading = "Kubernetes API"
    )]
    master: String,
}

impl MasterFlag {
    /// The URL, if one was given.
    pub(crate) fn url(self) -> Option<String> {
        Some(self.master).filter(|url| !url.is_empty())
    }
}

/// Access to a cluster.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KubeAccess {
    /// The kubeconfig file of the flag; with none, `KUBECONFIG` is read, then the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server, over what the kubeconfig says.
    pub master: Option<String>,
    pub throttle: Throttle,
}

impl KubeFlags {
    /// The access these flags describe.
    #[must_use]
    pub(crate) fn access(self, master: Option<String>) -> KubeAccess {
        let Self { kubeconfig, kube_api_qps, kube_api_burst } = self;
        let throttle = Throttle::new(kube_api_qps, kube_api_burst);
        let kubeconfig = Some(kubeconfig).filter(|file| !file.is_empty()).map(PathBuf::from);
        KubeAccess { kubeconfig, master, throttle }
    }
}

/// Logs that `--kubeconfig` wins, if `KUBECONFIG` names another file.
pub(crate) fn log_other_kubeconfig(flag: Option<&Path>) {
    let variable = std::env::var("KUBECONFIG").ok();
    if let Some(note) = other_kubeconfig(flag, variable.as_deref()) {
        tracing::info!("{note}");
    }
}

fn other_kubeconfig(flag: Option<&Path>, variable: Option<&str>) -> Option<String> {
    let (flag, variable) = (flag?, variable.filter(|text| !text.is_empty())?);
    (flag != Path::new(variable)).then(|| {
        let flag = flag.display();
        format!("--kubeconfig={flag} is used; the environment says KUBECONFIG={variable}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_wins_and_another_variable_is_named_once() {
        let note = "--kubeconfig=/flag is used; the environment says KUBECONFIG=/env";
        for (flag, variable, want) in [
            (Some("/flag"), Some("/env"), Some(note)),
            (Some("/flag"), Some("/flag"), None),
            (Some("/flag"), Some(""), None),
            (Some("/flag"), None, None),
            (None, Some("/env"), None),
        ] {
            let said = other_kubeconfig(flag.map(Path::new), variable);
            assert_eq!(said.as_deref(), want, "{flag:?} {variable:?}");
        }
    }
}
