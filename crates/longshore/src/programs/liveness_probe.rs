//! `longshore liveness-probe`, also as `livenessprobe`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use longshore_cluster::{Metrics, listen, shutdown};
use longshore_csi::metrics::Side;
use longshore_node::liveness::{Liveness, Pages};

use super::sidecars::{Included, Member};
use crate::cli::{Program, Syntax, Threads};
use crate::flags::{CommonFlags, CsiFlags, Gate, KlogFlags, Logging, UsageError, values};

/// The port of the health page unless told otherwise.
const DEFAULT_PORT: &str = "9808";

/// Flags of `longshore liveness-probe`, named as livenessprobe names them.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    #[command(flatten)]
    csi: CsiFlags,
    /// Longest time for one request: dialing the driver and its answer to Probe.
    #[arg(long, default_value = "3s", value_parser = values::positive_duration)]
    probe_timeout: Duration,
    /// Serve /healthz and metrics on HOST:PORT or :PORT.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ADDR")]
    http_endpoint: String,
    /// Old form of --http-endpoint, without metrics: serve /healthz on this port of every interface.
    #[arg(long, default_value = DEFAULT_PORT, value_name = "PORT")]
    health_port: String,
    /// Old: serve metrics on an address of their own.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ADDR")]
    metrics_address: String,
    /// Path of the metrics.
    #[arg(long, default_value = "/metrics", value_name = "PATH")]
    metrics_path: String,
    #[command(flatten)]
    klog: KlogFlags,
}

/// What the liveness probe runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    pub logging: Logging,
    /// Socket of the driver.
    pub socket: PathBuf,
    /// Deadline of one look at the driver.
    pub probe_timeout: Duration,
    /// `HOST:PORT` of the health page.
    pub address: String,
    /// Whether metrics are served, and where.
    pub metrics: Option<MetricsEndpoint>,
}

/// Where metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MetricsEndpoint {
    /// `HOST:PORT` of their own; none means beside the health page.
    pub apart: Option<String>,
    pub path: String,
}

impl Program for Config {
    const NAME: &'static str = "liveness-probe";
    const OFFICIAL: &'static [&'static str] = &["livenessprobe"];
    const SUMMARY: &'static str = "Show over HTTP whether a CSI driver is alive (as livenessprobe)";
    const EXAMPLES: &'static str =
        "longshore liveness-probe --csi-address=/csi/csi.sock --http-endpoint=:9808";
    const SYNTAX: Syntax = Syntax::GO;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &[];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags {
            common,
            csi: CsiFlags { csi_address },
            probe_timeout,
            http_endpoint,
            health_port,
            metrics_address,
            metrics_path,
            klog,
        } = flags;
        let logging = Logging::try_from(common)?.with(klog)?;
        let together = |other: &str| {
            let text = format!(
                "--http-endpoint and {other} cannot be used together; keep --http-endpoint"
            );
            Err(UsageError::AsOfficial(text))
        };
        // As upstream, the default is not told from the same port given.
        if !http_endpoint.is_empty() && health_port != DEFAULT_PORT {
            return together("--health-port");
        }
        if !http_endpoint.is_empty() && !metrics_address.is_empty() {
            return together("--metrics-address");
        }
        if !metrics_path.starts_with('/') {
            let why = "a path begins with /";
            return Err(UsageError::bad_value("--metrics-path", metrics_path, why));
        }
        let listen = |flag: &str, text: &str| {
            values::listen_address(text).map_err(|why| UsageError::bad_value(flag, text, why))
        };
        let (address, metrics) = match (http_endpoint.as_str(), metrics_address.as_str()) {
            ("", metrics) => {
                let port = health_port.parse::<u16>();
                let port = port.map_err(|_| {
                    UsageError::bad_value("--health-port", &health_port, "it is a port number")
                })?;
                let apart = match metrics {
                    "" => None,
                    address => Some(listen("--metrics-address", address)?),
                };
                (format!("0.0.0.0:{port}"), apart.map(Some))
            }
            (endpoint, _) => (listen("--http-endpoint", endpoint)?, Some(None)),
        };
        let metrics = metrics.map(|apart| MetricsEndpoint { apart, path: metrics_path });
        Ok(Self { logging, socket: csi_address, probe_timeout, address, metrics })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.logging)
    }

    async fn run(self) -> anyhow::Result<()> {
        run(self).await
    }
}

impl Included for Config {
    const GATES: &'static [&'static [Gate]] = &[];

    fn member(self) -> Result<Member, UsageError> {
        Ok(Member::Liveness(self))
    }
}

/// Waits for the driver, then answers until a signal. The driver may come and go.
async fn run(config: Config) -> Result<()> {
    let Config { logging: _, socket, probe_timeout, address, metrics } = config;
    let signal = shutdown::on_signals().context("cannot listen for signals")?;
    let registry = Metrics::new();
    let calls =
        registry.with_registry(|all| longshore_csi::metrics::Metrics::register(all, Side::Sidecar));
    let finding = Liveness::find(&socket, probe_timeout, calls);
    let Some(found) = signal.run_until_cancelled(finding).await else { return Ok(()) };
    let liveness =
        found.with_context(|| format!("cannot ask the driver at {}", socket.display()))?;
    tracing::info!(driver = liveness.driver(), "connected to the driver");
    let mut pages = Pages { health: Some(liveness), metrics: None };
    let mut apart = None;
    if let Some(MetricsEndpoint { apart: other, path }) = metrics {
        match other {
            None => pages.metrics = Some((path, registry)),
            Some(address) => {
                let listener = listen::listen(&address).await.with_context(|| {
                    format!("cannot listen on {address}; choose a free --metrics-address")
                })?;
                tracing::info!(address = %listener.local_addr()?, "serving metrics");
                apart = Some((listener, Pages { health: None, metrics: Some((path, registry)) }));
            }
        }
    }
    let measured = async {
        match apart {
            Some((listener, pages)) => pages.serve(listener).await,
            None => std::future::pending().await,
        }
    };
    let listener = match listen::listen(&address).await {
        Ok(listener) => listener,
        Err(error) => {
            // Upstream ends without a failure here, and manifests may count on that.
            tracing::error!(address, %error, "cannot listen; choose a free --http-endpoint");
            return Ok(());
        }
    };
    tracing::info!(address = %listener.local_addr()?, "serving /healthz");
    tokio::select! {
        () = signal.cancelled() => Ok(()),
        ended = pages.serve(listener) => ended.context("the health page failed"),
        ended = measured => ended.context("the metrics page failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testing::flags;

    fn config(line: &str) -> Result<Config, String> {
        let flags: Flags = flags(line, &[])?;
        Config::from_flags(flags).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_the_official_ones() {
        let expected = Config {
            logging: Logging::default(),
            socket: "/run/csi/socket".into(),
            probe_timeout: Duration::from_secs(3),
            address: "0.0.0.0:9808".into(),
            metrics: None,
        };
        assert_eq!(config(""), Ok(expected));
    }

    #[test]
    fn pages_and_ports() {
        let shown = |apart: Option<&str>, path: &str| {
            Some(MetricsEndpoint { apart: apart.map(str::to_owned), path: path.to_owned() })
        };
        for (line, address, metrics) in [
            ("--health-port=1", "0.0.0.0:1", None),
            ("--http-endpoint=:2", "0.0.0.0:2", shown(None, "/metrics")),
            ("--http-endpoint=h:2 --metrics-path=/m", "h:2", shown(None, "/m")),
            // case: liveness-registrar-health/8
            ("--http-endpoint=:1 --health-port=9808", "0.0.0.0:1", shown(None, "/metrics")),
            (
                "--metrics-address=:3 -health-port 4",
                "0.0.0.0:4",
                shown(Some("0.0.0.0:3"), "/metrics"),
            ),
        ] {
            let found = config(line).expect(line);
            assert_eq!((found.address.as_str(), found.metrics), (address, metrics), "{line}");
        }
    }

    #[test]
    fn wrong_flags_are_refused_with_the_reason() {
        for (line, part) in [
            // case: liveness-registrar-health/8
            ("--health-port=9999 --http-endpoint=:1", "--health-port cannot be used together"),
            ("--metrics-address=:2 --http-endpoint=:1", "--metrics-address cannot be used"),
            ("--health-port=x", "--health-port cannot be `x`"),
            ("--http-endpoint=x", "HOST:PORT"),
            ("--metrics-path=x --http-endpoint=:1", "a path begins with /"),
            ("--probe-timeout=0s", "more than zero"),
            ("--kubeconfig=/k", "unknown flag --kubeconfig"),
        ] {
            let sentence = config(line).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
    }
}
