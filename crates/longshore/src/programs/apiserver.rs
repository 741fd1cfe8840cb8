//! `longshore apiserver`, and the flags of the embedded API server.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use longshore_apiserver::Limits;
use longshore_cluster::shutdown;

use super::listen::{self, Listen, San};
use super::up::{self, absolute};
use crate::cli::{Program, Syntax, Threads};
use crate::flags::{CommonFlags, Gate, Gates, Logging, Stage, UsageError, gates_help, values};

/// Where everything is kept unless `--data-dir` says otherwise.
pub(super) const DEFAULT_DATA_DIR: &str = "/var/lib/longshore";

/// The health of volumes in the status of claims and pods, and that of storage in CSINodes.
const VOLUME_HEALTH: Gate = Gate { name: "CSIVolumeHealth", default: false, stage: Stage::Alpha };

/// Flags of the embedded API server.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ServerFlags {
    /// Where all state is kept.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// Address of the API: of this machine, its name, or 0.0.0.0 for every address; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6443", value_parser = listen::listen)]
    listen: Listen,
    /// A further IP address or DNS name under which clients reach the API, for its certificate; may be
    /// repeated. The addresses and the name of this machine are in it anyway.
    #[arg(long, value_name = "NAME", value_parser = listen::tls_san)]
    tls_san: Vec<San>,
    /// Requests that only read, answered at the same time, watches apart; further ones get 429.
    /// Zero means no bound. Administrators have as many places again for themselves.
    #[arg(long, value_name = "N", default_value_t = Limits::default().reads)]
    max_requests_inflight: usize,
    /// The same for requests that may change something.
    #[arg(long, value_name = "N", default_value_t = Limits::default().writes)]
    max_mutating_requests_inflight: usize,
    /// Longest time of a request, watches and followed logs apart; a client may ask for less.
    #[arg(long, default_value = "1m", value_parser = values::positive_duration)]
    request_timeout: Duration,
    /// How long events are kept after they were last written.
    #[arg(long, default_value = "1h", value_parser = values::positive_duration)]
    event_ttl: Duration,
    /// What all stored objects may take together. When it is reached, creates and growing updates are
    /// refused with 507 StoreFull; deletes pass, and leases, status and the loops of this process have a
    /// tenth more. Events are refused a twentieth earlier. Zero means no limit.
    #[arg(long, value_name = "BYTES", default_value = "128Mi", value_parser = values::bytes)]
    store_limit: u64,
}

/// The embedded API server's place on disk and on the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    /// Absolute.
    pub data_dir: PathBuf,
    pub listen: Listen,
    /// What the certificate names beside this machine's own addresses.
    pub tls_sans: Vec<San>,
    /// Bounds on what clients can use up.
    pub limits: Limits,
    /// Gate `CSIVolumeHealth`. On where everything in the process knows it.
    pub volume_health: bool,
}

impl TryFrom<ServerFlags> for Server {
    type Error = UsageError;

    fn try_from(flags: ServerFlags) -> Result<Self, UsageError> {
        let ServerFlags {
            data_dir,
            listen,
            tls_san,
            max_requests_inflight,
            max_mutating_requests_inflight,
            request_timeout,
            event_ttl,
            store_limit,
        } = flags;
        let limits = Limits {
            reads: max_requests_inflight,
            writes: max_mutating_requests_inflight,
            request_timeout,
            event_ttl,
            store_bytes: usize::try_from(store_limit).unwrap_or(usize::MAX),
            ..Limits::default()
        };
        let data_dir = absolute("--data-dir", data_dir)?;
        Ok(Self { data_dir, listen, tls_sans: tls_san, limits, volume_health: true })
    }
}

/// Flags of `longshore apiserver`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    #[command(flatten)]
    server: ServerFlags,
    #[arg(long, value_name = "GATES", help = gates_help(&[&[VOLUME_HEALTH]]))]
    feature_gates: Vec<String>,
}

/// What `longshore apiserver` runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    pub logging: Logging,
    /// Where it keeps its data and listens.
    pub server: Server,
}

impl Program for Config {
    const NAME: &'static str = "apiserver";
    const OFFICIAL: &'static [&'static str] = &[];
    const SUMMARY: &'static str = "Serve the Kubernetes API alone";
    const EXAMPLES: &'static str = "longshore apiserver --data-dir ./data --listen 127.0.0.1:0";
    const SYNTAX: Syntax = Syntax::GO;
    const THREADS: Threads = Threads::Many;
    const RBAC: &'static [&'static str] = &[];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags { common, server, feature_gates } = flags;
        let gates = Gates::read(&[VOLUME_HEALTH], &feature_gates)?;
        let mut server = Server::try_from(server)?;
        server.volume_health = gates.on(VOLUME_HEALTH.name);
        Ok(Self { logging: Logging::try_from(common)?, server })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.logging)
    }

    async fn run(self) -> anyhow::Result<()> {
        run(self).await
    }
}

/// `longshore apiserver`: the API alone, with its own housekeeping and nothing else.
async fn run(config: Config) -> anyhow::Result<()> {
    let signal = shutdown::on_signals().context("cannot listen for signals")?;
    let mut served = up::RunningApi::start(&config.server, false).await?;
    up::announce(&served.data.kubeconfig())?;
    tokio::select! {
        () = signal.cancelled() => served.stop().await,
        error = served.failed() => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testing::flags;

    fn config(line: &str) -> Result<Config, String> {
        Config::from_flags(flags(line, &[])?).map_err(|error| error.to_string())
    }

    #[test]
    fn health_of_volumes_is_behind_its_gate() {
        for (line, want) in [
            ("", false),
            ("--feature-gates=CSIVolumeHealth=true", true),
            ("--feature-gates CSIVolumeHealth=true,CSIVolumeHealth=false", false),
            ("--feature-gates=AllAlpha=true", true),
        ] {
            assert_eq!(config(line).unwrap().server.volume_health, want, "{line}");
        }
        let error = config("--feature-gates=CSIVolumeHelth=true").unwrap_err();
        assert!(error.contains("did you mean CSIVolumeHealth?"), "{error}");
    }
}
