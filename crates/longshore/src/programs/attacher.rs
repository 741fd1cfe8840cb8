//! `longshore attacher`, also as `csi-attacher`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use longshore_cluster::SharedCaches;
use longshore_controllers::attacher;
use tokio_util::sync::CancellationToken;

use super::sidecar::{Backoff, Start};
use crate::cli::{Program, Syntax, Threads};
use crate::flags::{
    CommonFlags, CsiFlags, Diagnostics, DiagnosticsFlags, Election, ElectionFlags, Environment,
    Gate, Gates, KlogFlags, KubeAccess, KubeFlags, Logging, Stage, UsageError, values,
};

/// Flags that csi-attacher once had, and what replaced them.
pub(super) const REMOVED: &[(&str, &str)] = &[
    (
        "connection-timeout",
        "use --timeout for the time of one CSI call; the wait for the socket is fixed",
    ),
    ("leader-election-type", "use --leader-election, which always takes a Lease"),
    ("leader-election-identity", "the identity is the host name, so leave the flag out"),
];

const GATES: &[Gate] = &[
    Gate { name: "MutableCSINodeAllocatableCount", default: true, stage: Stage::Stable },
    Gate { name: "ReleaseLeaderElectionOnExit", default: false, stage: Stage::Alpha },
];

/// Flags of `longshore attacher`, named as csi-attacher names them.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    #[command(flatten)]
    csi: CsiFlags,
    /// Longest time one attach or detach call may take.
    #[arg(long, default_value = "15s", value_parser = values::positive_duration)]
    timeout: Duration,
    /// Pause between looks at objects that did not change; 0 is never.
    #[arg(long, default_value = "10m", value_parser = values::duration)]
    resync: Duration,
    /// First delay after a failure; doubles with every further one.
    #[arg(long, default_value = "1s", value_parser = values::positive_duration)]
    retry_interval_start: Duration,
    /// Longest delay after a failure.
    #[arg(long, default_value = "5m", value_parser = values::positive_duration)]
    retry_interval_max: Duration,
    /// Attachments worked on at once, and as many volumes.
    #[arg(long, default_value = "10", value_parser = values::count, value_name = "N")]
    worker_threads: u32,
    /// Page size of ListVolumes; 0 leaves it to the driver.
    #[arg(long, default_value = "0", value_parser = values::count, value_name = "N")]
    max_entries: u32,
    /// File system passed when the volume names none.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TYPE")]
    default_fstype: String,
    /// Pause between comparisons with the driver's list of volumes.
    #[arg(long, default_value = "1m", value_parser = values::positive_duration)]
    reconcile_sync: Duration,
    /// Longest logged CSI response; -1 is no limit.
    #[arg(long, default_value = "-1", value_parser = values::integer, allow_hyphen_values = true, value_name = "N")]
    max_grpc_log_length: i64,
    /// Feature gates: Name=true,Name=false.
    #[arg(long, value_name = "GATES")]
    feature_gates: Vec<String>,
    #[command(flatten)]
    kube: KubeFlags,
    #[command(flatten)]
    election: ElectionFlags,
    #[command(flatten)]
    diagnostics: DiagnosticsFlags,
    #[command(flatten)]
    klog: KlogFlags,
    #[arg(skip = Environment::of_process())]
    environment: Environment,
}

/// What the attacher runs on. Built once from [`Flags`]; past this point no value is doubtful.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Config {
    /// How to log.
    pub logging: Logging,
    /// Socket of the driver.
    pub socket: PathBuf,
    /// Deadline of each CSI call.
    pub call_timeout: Duration,
    /// The cluster.
    pub kube: KubeAccess,
    /// Pause between looks at what did not change; zero is never.
    pub resync: Duration,
    /// Delays after failures.
    pub backoff: Backoff,
    /// Attachments at once, and as many volumes.
    pub workers: NonZeroU32,
    /// Page size of ListVolumes; 0 leaves it to the driver.
    pub max_entries: i32,
    /// File system when the volume names none.
    pub default_fstype: Option<String>,
    /// Pause between comparisons with the driver's list.
    pub reconcile_period: Duration,
    /// Longest logged response; none is no limit.
    pub log_limit: Option<usize>,
    /// Gate `MutableCSINodeAllocatableCount`.
    pub attach_error_codes: bool,
    /// Gate `ReleaseLeaderElectionOnExit`.
    pub release_lease_on_exit: bool,
    /// Leader election, if on.
    pub election: Option<Election>,
    /// Metrics and health, if served.
    pub diagnostics: Option<Diagnostics>,
}

impl Program for Config {
    const NAME: &'static str = "attacher";
    const OFFICIAL: &'static [&'static str] = &["csi-attacher"];
    const SUMMARY: &'static str =
        "Attach and detach volumes through a CSI driver (as csi-attacher)";
    const EXAMPLES: &'static str =
        "longshore attacher --csi-address=/run/csi/socket --leader-election -v=2";
    const SYNTAX: Syntax = Syntax::Go { removed: REMOVED };
    const CHECKS_BEFORE_VERSION: bool = true;
    const THREADS: Threads = Threads::One;
    const RBAC: &'static [&'static str] = &["rbac/attacher.yaml", "rbac/leader-election.yaml"];

    type Flags = Flags;

    fn from_flags(flags: Flags) -> Result<Self, UsageError> {
        let Flags {
            common,
            csi: CsiFlags { csi_address },
            timeout,
            resync,
            retry_interval_start,
            retry_interval_max,
            worker_threads,
            max_entries,
            default_fstype,
            reconcile_sync,
            max_grpc_log_length,
            feature_gates,
            kube,
            election,
            diagnostics,
            klog,
            environment,
        } = flags;
        let gates = Gates::read(GATES, &feature_gates)?;
        let logging = Logging::try_from(common)?.with(klog)?;
        Ok(Self {
            logging,
            socket: csi_address,
            call_timeout: timeout,
            kube: kube.access(String::new(), None),
            resync,
            backoff: Backoff::new(retry_interval_start, retry_interval_max)?,
            workers: NonZeroU32::new(worker_threads).ok_or_else(|| {
                UsageError::AsOfficial("--worker-threads must be greater than zero".into())
            })?,
            max_entries: i32::try_from(max_entries).map_err(|_| {
                UsageError::bad_value("--max-entries", max_entries, "CSI allows at most 2147483647")
            })?,
            default_fstype: Some(default_fstype).filter(|name| !name.is_empty()),
            reconcile_period: reconcile_sync,
            // Zero and less mean no limit.
            log_limit: usize::try_from(max_grpc_log_length).ok().filter(|limit| *limit > 0),
            attach_error_codes: gates.on("MutableCSINodeAllocatableCount"),
            release_lease_on_exit: gates.on("ReleaseLeaderElectionOnExit"),
            election: election.election(&environment)?,
            diagnostics: diagnostics.endpoint()?,
        })
    }

    fn logging(&self) -> Option<&Logging> {
        Some(&self.logging)
    }

    async fn run(self) -> anyhow::Result<()> {
        run(self).await
    }
}

/// `longshore attacher`.
async fn run(config: Config) -> Result<()> {
    let Config {
        logging: _,
        socket,
        call_timeout,
        kube,
        resync,
        backoff,
        workers,
        max_entries,
        default_fstype,
        reconcile_period,
        log_limit,
        attach_error_codes,
        release_lease_on_exit,
        election,
        diagnostics,
    } = config;
    let start =
        Start { program: "csi-attacher", socket, call_timeout, log_limit, kube, diagnostics };
    let sidecar = start.begin().await?;
    let workers = NonZeroUsize::new(workers.get() as usize).unwrap_or(NonZeroUsize::MIN);
    let config = attacher::Config {
        timeout: call_timeout,
        retry_interval_start: backoff.start,
        retry_interval_max: backoff.max,
        resync,
        worker_threads: workers,
        max_entries,
        default_fstype: default_fstype.unwrap_or_default(),
        reconcile_sync: reconcile_period,
        error_codes: attach_error_codes,
    };
    let lock = format!("external-attacher-leader-{}", sidecar.driver);
    let work = |stop: CancellationToken| {
        let caches = SharedCaches::new(&sidecar.api, &stop);
        let attacher = attacher::Attacher {
            api: sidecar.api.clone(),
            driver: sidecar.csi.clone(),
            caches: attacher::Caches::shared(&caches),
            metrics: Some(sidecar.metrics.clone()),
            config: config.clone(),
        };
        async move {
            if let Err(error) = attacher.run(stop).await {
                tracing::error!(%error, "the attacher did not start");
            }
        }
    };
    sidecar.lead(election, &lock, release_lease_on_exit, work).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testing::flags;

    fn config(line: &str) -> Result<Config, String> {
        let mut flags: Flags = flags(line, REMOVED)?;
        flags.environment = Environment::default();
        Config::from_flags(flags).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_the_official_ones() {
        let config = config("").unwrap();
        assert_eq!(config.call_timeout, Duration::from_secs(15));
        assert_eq!(config.reconcile_period, Duration::from_secs(60));
        assert_eq!(config.resync, Duration::from_secs(600));
        assert_eq!(config.workers.get(), 10);
        assert_eq!((config.max_entries, config.log_limit), (0, None));
        assert!(config.attach_error_codes && !config.release_lease_on_exit);
        assert_eq!(config.kube.kubeconfig, None);
    }

    #[test]
    fn values_arrive() {
        let config = config(
            "-timeout 30s -worker-threads=4 --max-entries=50 --max-grpc-log-length=1000 --reconcile-sync=2m --resync=1m \
             --feature-gates=MutableCSINodeAllocatableCount=false,ReleaseLeaderElectionOnExit=true \
             --kubeconfig=/k --default-fstype=xfs --leader-election-labels=a:b --leader-election",
        )
        .unwrap();
        assert_eq!(config.call_timeout, Duration::from_secs(30));
        assert_eq!(config.resync, Duration::from_secs(60));
        assert_eq!((config.max_entries, config.log_limit), (50, Some(1000)));
        assert!(!config.attach_error_codes && config.release_lease_on_exit);
        assert_eq!(config.kube.kubeconfig, Some(PathBuf::from("/k")));
        assert_eq!(config.election.unwrap().labels["a"], "b");
    }

    #[test]
    fn refusals() {
        for (line, part) in [
            ("-connection-timeout 1s", "use --timeout"),
            ("--worker-threads=0", "--worker-threads must be greater than zero"),
            ("--resync=1", "a duration is written as in Go"),
            ("--master=x", "unknown flag --master"),
            ("--feature-gates=Topology=true", "there is no feature gate `Topology`"),
            ("--max-entries=3000000000", "at most 2147483647"),
            ("--reconcile-sync=1", "a duration is written as in Go"),
        ] {
            let sentence = config(line).expect_err(line);
            assert!(sentence.contains(part), "{line}: {sentence}");
        }
    }
}
