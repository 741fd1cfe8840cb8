//! `longshore node-registrar`, also as `csi-node-driver-registrar`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use longshore_cluster::shutdown;
use longshore_core::words;
use longshore_csi::{Client, ConnectOptions, Options};
use longshore_node::registrar::{Health, Introduction, Registrar};

use super::sidecars::{Included, Member};
use crate::cli::{Program, Syntax, Threads};
use crate::flags::{CommonFlags, CsiFlags, Gate, KlogFlags, Logging, UsageError, values};

/// The mode that was once a probe for the kubelet's exec.
const OLD_PROBE: &str = "kubelet-registration-probe";
/// The mode that is the program itself.
const REGISTRATION: &str = "registration";

/// Flags of `longshore node-registrar`, named as csi-node-driver-registrar names them.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    #[command(flatten)]
    csi: CsiFlags,
    /// Socket of the driver as the kubelet sees it, a path on the host (required).
    #[arg(long, default_value = "", hide_default_value = true, value_name = "PATH")]
    kubelet_registration_path: String,
    /// Directory of the kubelet's registration sockets, as this program sees it.
    #[arg(long, default_value = "/registration", value_name = "DIR")]
    plugin_registration_path: PathBuf,
    /// Longest time for the driver's name, and for the answer of the own socket to a health check.
    #[arg(long, default_value = "1s", value_parser = values::positive_duration)]
    timeout: Duration,
    /// Serve /healthz on HOST:PORT or :PORT.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ADDR")]
    http_endpoint: String,
    /// Old form of --http-endpoint: serve /healthz on this port of every interface; 0 is off.
    #[arg(long, default_value = "0", value_parser = values::integer, allow_hyphen_values = true, value_name = "PORT")]
    health_port: i64,
    /// Serve Go's profiler (not part of this version).
    #[arg(long)]
    enable_pprof: bool,
    /// Old: kubelet-registration-probe does nothing and succeeds; anything else registers.
    #[arg(long, default_value = "", hide_default_value = true)]
    mode: String,
    /// Old, accepted without an effect: the wait for the driver's socket is fixed at 30s.
    #[arg(long, default_value = "0s", value_parser = values::duration)]
    connection_timeout: Duration,
    #[command(flatten)]
    klog: KlogFlags,
}

/// What a command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Config {
    /// To do nothing and succeed, as exec probes of old manifests expect.
    OldProbe,
    /// To register the driver.
    Register(Registration),
}

/// What the registrar runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registration {
    pub logging: Logging,
    /// Socket of the driver.
    pub socket: PathBuf,
    /// The same socket as the kubelet sees it.
    pub endpoint: PathBuf,
    /// Directory of the registration sockets.
    pub registry: PathBuf,
    /// Deadline of GetPluginInfo and of the health check.
    pub timeout: Duration,
    /// `HOST:PORT` for `/healthz`.
    pub health: Option<String>,
}

impl Program for Config {
    const NAME: &'static str = "node-registrar";
    const OFFICIAL: &'static [&'static str] = &["csi-node-driver-registrar"];
    const SUMMARY: &'static str =
        "Introduce a CSI driver to the kubelet of its node (as csi-node-driver-registrar)";
    const EXAMPLES: &'static str = "longshore node-registrar --csi-address=/csi/csi.sock --kubelet-registration-path=/var/lib/kubelet/plugins/DRIVER/csi.sock";
    const SYNTAX: Syntax = Syntax::GO;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &[];

    type Flags = Flags;

    /// The order of the checks is upstream's: an old probe needs the path, but not a good port.
    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags {
            common,
            csi: CsiFlags { csi_address },
            kubelet_registration_path,
            plugin_registration_path,
            timeout,
            http_endpoint,
            health_port,
            enable_pprof,
            mode,
            connection_timeout,
            klog,
        } = flags;
        let mut logging = Logging::try_from(common)?.with(klog)?;
        if enable_pprof {
            return Err(UsageError::FlagNotYet {
                flag: "--enable-pprof".into(),
                what: "there is no Go profiler in this program",
            });
        }
        if kubelet_registration_path.is_empty() {
            return Err(UsageError::AsOfficial(
                "--kubelet-registration-path is required: the driver's socket as the kubelet sees it, for example \
                 /var/lib/kubelet/plugins/DRIVER/csi.sock"
                    .into(),
            ));
        }
        if mode == OLD_PROBE {
            return Ok(Self::OldProbe);
        }
        if !connection_timeout.is_zero() {
            logging.notes.push("--connection-timeout has no effect: it is 30s".to_owned());
        }
        if !matches!(mode.as_str(), "" | REGISTRATION) {
            logging.notes.push(format!("--mode={mode} is unknown and has no effect"));
        }
        Ok(Self::Register(Registration {
            logging,
            socket: csi_address,
            endpoint: PathBuf::from(kubelet_registration_path),
            registry: plugin_registration_path,
            timeout,
            health: health_address(&http_endpoint, health_port)?,
        }))
    }

    fn logging(&self) -> Option<&Logging> {
        match self {
            Self::OldProbe => None,
            Self::Register(registration) => Some(&registration.logging),
        }
    }

    async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::OldProbe => Ok(()),
            Self::Register(registration) => run(registration).await,
        }
    }
}

impl Included for Config {
    const GATES: &'static [&'static [Gate]] = &[];

    fn member(self) -> Result<Member, UsageError> {
        match self {
            Self::Register(registration) => Ok(Member::Registrar(registration)),
            Self::OldProbe => {
                let why = "it is the probe of a program of its own";
                Err(UsageError::bad_value("--mode", OLD_PROBE, why))
            }
        }
    }
}

/// Where to serve `/healthz`, if anywhere.
fn health_address(endpoint: &str, port: i64) -> Result<Option<String>, UsageError> {
    // As upstream, zero and less mean that no port was given.
    let port = Some(port).filter(|port| *port > 0);
    match (endpoint, port) {
        ("", None) => Ok(None),
        ("", Some(port)) => match u16::try_from(port) {
            Ok(port) => Ok(Some(format!("0.0.0.0:{port}"))),
            Err(_) => Err(UsageError::AsOfficial(format!(
                "--health-port cannot be `{port}`: a port is at most 65535"
            ))),
        },
        (_, Some(_)) => Err(UsageError::AsOfficial(
            "--http-endpoint and --health-port cannot be used together; keep --http-endpoint"
                .into(),
        )),
        (endpoint, None) => values::listen_address(endpoint)
            .map(Some)
            .map_err(|why| UsageError::bad_value("--http-endpoint", endpoint, why)),
    }
}

/// Registers the driver and stays until a signal, a refusal or a failure.
async fn run(config: Registration) -> Result<()> {
    let Registration { logging: _, socket, endpoint, registry, timeout, health } = config;
    let signal = shutdown::on_signals().context("cannot listen for signals")?;
    let naming = async {
        let calls = Options { timeout: Some(timeout), ..Options::default() };
        let options =
            ConnectOptions { calls, ..ConnectOptions::from(socket.display().to_string()) };
        let csi = Client::connect(options).await?;
        csi.driver_name().await.with_context(|| {
            format!(
                "cannot learn the driver's name at {} within {}",
                socket.display(),
                words::time(timeout)
            )
        })
    };
    let Some(driver) = signal.run_until_cancelled(naming).await else { return Ok(()) };
    let driver = driver?;
    let introduction = Introduction { driver, endpoint, registry };
    let (driver, socket) = (introduction.driver.clone(), introduction.socket());
    let registrar = Registrar::succeed(introduction)?;
    tracing::info!(driver, socket = %socket.display(), "waiting for the kubelet");
    let healthy = async {
        let Some(address) = health else { return std::future::pending().await };
        let serving = async {
            let server = Health { socket, driver, timeout }.listen(&address).await?;
            tracing::info!(address = %server.address()?, "serving /healthz");
            server.run().await
        };
        serving.await.with_context(|| {
            format!(
                "cannot serve /healthz on {address}; choose a free address with --http-endpoint"
            )
        })
    };
    tokio::select! {
        ended = registrar.run_until_refused(signal) => ended.map_err(Into::into),
        ended = healthy => ended,
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

    fn registration(line: &str) -> Registration {
        match config(line) {
            Ok(Config::Register(registration)) => registration,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn defaults_are_the_official_ones() {
        let found = registration("--kubelet-registration-path=/host/csi.sock");
        let expected = Registration {
            logging: Logging::default(),
            socket: "/run/csi/socket".into(),
            endpoint: "/host/csi.sock".into(),
            registry: "/registration".into(),
            timeout: Duration::from_secs(1),
            health: None,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn values_arrive() {
        let found = registration(
            "-csi-address unix:///csi/csi.sock -kubelet-registration-path /p -plugin-registration-path=/r \
             --timeout=500ms --http-endpoint=:9809 -v=5 --mode=registration",
        );
        assert_eq!(found.socket, PathBuf::from("/csi/csi.sock"));
        assert_eq!((found.endpoint, found.registry), ("/p".into(), "/r".into()));
        assert_eq!(found.timeout, Duration::from_millis(500));
        assert_eq!(found.health.as_deref(), Some("0.0.0.0:9809"));
        assert_eq!(found.logging.verbosity, 5);
        assert!(found.logging.notes.is_empty());
    }

    #[test]
    fn old_flags() {
        let path = "--kubelet-registration-path=/p";
        let health = |line: &str| registration(&format!("{path} {line}")).health;
        assert_eq!(health("--health-port=9809").as_deref(), Some("0.0.0.0:9809"));
        assert_eq!(health("--health-port=0"), None);
        assert_eq!(health("--health-port=-1 --http-endpoint=:1").as_deref(), Some("0.0.0.0:1"));
        let notes = registration(&format!("{path} --connection-timeout=5s --mode=other")).logging;
        assert_eq!(
            notes.notes,
            [
                "--connection-timeout has no effect: it is 30s",
                "--mode=other is unknown and has no effect"
            ]
        );
    }

    #[test]
    fn the_old_probe_does_nothing_but_needs_the_path() {
        let probe = "--mode=kubelet-registration-probe";
        // case: liveness-registrar-health/12, liveness-registrar-health/13
        assert!(config(probe).unwrap_err().starts_with("--kubelet-registration-path is required"));
        let with_path = format!("{probe} --kubelet-registration-path=/p");
        assert_eq!(config(&with_path), Ok(Config::OldProbe));
        // The ports are looked at later than that.
        assert_eq!(
            config(&format!("{with_path} --health-port=1 --http-endpoint=:1")),
            Ok(Config::OldProbe)
        );
    }

    #[test]
    fn wrong_flags_are_refused_with_the_reason() {
        for (line, part) in [
            ("", "--kubelet-registration-path is required"),
            ("--kubelet-registration-path=/p --health-port=1 --http-endpoint=:1", "used together"),
            ("--kubelet-registration-path=/p --health-port=70000", "at most 65535"),
            ("--kubelet-registration-path=/p --http-endpoint=x", "HOST:PORT"),
            ("--kubelet-registration-path=/p --enable-pprof", "no Go profiler"),
            ("--kubelet-registration-path=/p --timeout=0s", "more than zero"),
            ("--kubelet-registration-path=/p --csi-address=tcp://h:1", "unix:///path"),
            ("--kubeconfig=/k", "unknown flag --kubeconfig"),
        ] {
            let sentence = config(line).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
    }
}
