//! Which cluster a program talks to, and at what rate.

use std::path::PathBuf;

use super::values;

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

/// The limit on API requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Throttle {
    /// Requests in flight, grown and shrunk by how the server answers.
    Adaptive,
    /// Requests per second, as upstream.
    Fixed {
        /// Sustained rate.
        qps: f32,
        /// Requests that may exceed it at once.
        burst: u32,
    },
    /// No limit, which Go clients write as a negative rate.
    Unlimited,
}

impl KubeFlags {
    /// The access these flags describe. `overriding` is the `KUBECONFIG` of programs that let it win over the flag.
    #[must_use]
    pub(crate) fn access(self, master: String, overriding: Option<String>) -> KubeAccess {
        let Self { kubeconfig, kube_api_qps, kube_api_burst } = self;
        // Upstream's defaults stand in for whichever of the two is unset; Go clients also read zero as unset.
        let burst = kube_api_burst.filter(|burst| *burst > 0).unwrap_or(10);
        let throttle = match (kube_api_qps, kube_api_burst) {
            (None, None) => Throttle::Adaptive,
            (Some(qps), _) if qps < 0.0 => Throttle::Unlimited,
            (Some(qps), _) if qps > 0.0 => Throttle::Fixed { qps, burst },
            _ => Throttle::Fixed { qps: 5.0, burst },
        };
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let kubeconfig = overriding.or_else(|| some(kubeconfig)).map(PathBuf::from);
        KubeAccess { kubeconfig, master: some(master), throttle }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttle_is_adaptive_until_a_rate_is_set() {
        for (qps, burst, throttle) in [
            (None, None, Throttle::Adaptive),
            (Some(20.0), None, Throttle::Fixed { qps: 20.0, burst: 10 }),
            (None, Some(40), Throttle::Fixed { qps: 5.0, burst: 40 }),
            (Some(20.0), Some(40), Throttle::Fixed { qps: 20.0, burst: 40 }),
            (Some(0.0), Some(0), Throttle::Fixed { qps: 5.0, burst: 10 }),
            (Some(-1.0), Some(40), Throttle::Unlimited),
        ] {
            let flags =
                KubeFlags { kubeconfig: String::new(), kube_api_qps: qps, kube_api_burst: burst };
            let access = flags.access(String::new(), None);
            assert_eq!(access.throttle, throttle, "{qps:?} {burst:?}");
        }
    }
}
